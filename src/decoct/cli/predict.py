"""``decoct predict``: a coreset file and new rows to predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from decoct.cli import options as opt
from decoct.cli import output as out
from decoct.runtime.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

WRITTEN = (".parquet", ".pq", ".csv")
"""Endings of files that predictions are written to."""


def predict(
    file: opt.CoresetPath,
    table: Annotated[
        list[str],
        Parameter(
            help=f"The new rows: {opt.FORMS} Their response is not read and need not be there."
        ),
    ],
    /,
    *,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    posterior: opt.Posterior = None,
    kind: Literal["mean", "response"] = "mean",
    quantiles: Annotated[Sequence[float], Parameter(consume_multiple=True)] = (0.05, 0.5, 0.95),
    seed: opt.Seed = 0,
) -> int:
    """Predict new rows: mean, standard deviation and quantiles, one line per row.

    Without --output the lines go to stdout as CSV. The table is streamed and may be larger than
    memory. Without --posterior the coreset is sampled first (1,000 draws).

    For example:

    ```
    decoct predict late.coreset.parquet new.csv --posterior posterior.nc
    decoct predict late.coreset.parquet new.parquet --posterior posterior.nc \\
        --kind response --quantiles 0.025 0.975 -o predictions.parquet
    ```

    Exit codes: 0 done; 2 bad input, no file written; 130 interrupted.

    Parameters
    ----------
    output
        The file to write: .parquet, .pq or .csv.
    kind
        mean: the expected response (a probability, a rate), and how well it is known. response:
        new observations, noise included.
    quantiles
        Probabilities between 0 and 1: a column for each.
    seed
        Seed of the simulated observations, and of the sampler without --posterior.
    """
    if output is not None:
        if not output.name.lower().endswith(WRITTEN):
            raise out.UsageError(f"--output {output} must end in {', '.join(WRITTEN)}.")
        opt.require_apart(output, table)
        opt.require_output(output, file)

    import decoct
    from decoct.runtime.progress import ProgressBar

    coreset = decoct.load(file)
    what_is_left = "nothing was written" if output else "the lines so far are complete"
    with opt.interruption(what_is_left), opt.opened(table, None) as rows:
        given = posterior and out.read_posterior(posterior)
        draws = coreset.sample(draws=250, seed=seed) if given is None else given
        with ProgressBar():
            chunks = coreset.predict_chunks(rows, draws, kind=kind, quantiles=quantiles, seed=seed)
            with closing(chunks):
                if output is None:
                    _print(chunks)
                    return out.DONE
                write = _write_csv if output.suffix.lower() == ".csv" else _write_parquet
                write_atomically(output, lambda temporary: write(temporary, chunks))
    out.put(f"{output}: {rows.n_rows:,} rows predicted")
    return out.DONE


def _print(chunks: Iterator[pd.DataFrame]) -> None:
    for text in _as_csv(chunks):
        if not out.put(text.rstrip("\n")):
            return


def _write_csv(path: str, chunks: Iterator[pd.DataFrame]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.writelines(_as_csv(chunks))


def _as_csv(chunks: Iterator[pd.DataFrame]) -> Iterator[str]:
    for number, chunk in enumerate(chunks):
        yield chunk.to_csv(index=False, header=number == 0, lineterminator="\n")


def _write_parquet(path: str, chunks: Iterator[pd.DataFrame]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = (pa.table(dict(chunk.items())) for chunk in chunks)
    first = next(tables)
    with pq.ParquetWriter(path, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)
