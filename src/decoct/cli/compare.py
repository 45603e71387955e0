"""``decoct compare``: constructions side by side on a table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from decoct.cli import output as out
from decoct.cli.options import Flag, Whole, opened, seed_in_range

if TYPE_CHECKING:
    from decoct.building.comparison import Comparison


def compare(
    table: list[str],
    /,
    *,
    formula: str,
    sizes: Annotated[list[int], Parameter(consume_multiple=True)],
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    family: Literal["gaussian", "bernoulli", "poisson", "student"] = "gaussian",
    seed: Whole = 0,
    draws: Whole = 400,
    prior_scale: float = 1.0,
    standardize: bool = True,
    dask: str | None = None,
    json: Flag = False,
) -> int:
    """Compare ways to choose rows on your own table: KL and cost against size.

    Uniform, sensitivity, GIGA, SparseVI, moment matching and IteratedHilbert, and the Laplace
    approximation corrected by importance sampling, which keeps no rows. At a k-hat of 0.7 and more
    only a lower bound of the KL is known. ESS is the draws that importance sampling leaves; the KL
    is before that correction, for Laplace too.

    For example:

    ```
    decoct compare flights.parquet --formula "late ~ temp + C(origin)" \\
        --family bernoulli --sizes 50 100 200 -o compared
    ```

    Parameters
    ----------
    table
        Parquet or CSV: a file, several files, a folder, or a quoted pattern.
    formula
        Such as "late ~ temp + C(origin)"; columns of text are categories.
    sizes
        Rows to keep: one number or several; 0 is a site alone.
    output
        A folder for compared.csv and compared.png; made if it is not there. Needs decoct[plots].
    family
        Distribution of the response; poisson has a log link.
    seed
        Seed of everything random.
    draws
        Draws of each coreset posterior that the KL is measured at.
    prior_scale
        Prior standard deviation of every coefficient.
    standardize
        Shift and scale numeric columns to mean 0 and standard deviation 1, where the prior applies.
    dask
        Address of a Dask scheduler, such as tcp://host:8786, whose workers read the table (Parquet)
        and make the passes over it.
    json
        Print one JSON object on stdout instead of the table.
    """
    seed_in_range(seed)
    if min(sizes) < 0:
        raise out.UsageError(f"--sizes must be at least 0, not {min(sizes)}.")
    files = None if output is None else _files(output)

    import decoct
    from decoct.data.progress_rows import traffic
    from decoct.models.formula.model import from_formula

    try:
        with opened(table, dask) as rows:
            model = from_formula(
                formula, rows, family, prior_scale=prior_scale, standardize=standardize
            )
            result = decoct.compare(model, rows, sizes, draws=draws, seed=seed)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; nothing was written.") from None
    if files is not None:
        _write(result, files)
    moved = traffic(rows)
    if json:
        lines = [asdict(line) for line in result.lines]
        out.put_json({"n_rows": result.n_rows, "lines": lines, "traffic": moved})
    else:
        out.put("\n".join([repr(result), *out.travelled(moved)]))
        for path in files or ():
            out.put(str(path))
    return out.DONE


def _files(folder: Path) -> tuple[Path, Path]:
    from decoct.runtime.files import require_writable

    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise out.UsageError("Pictures need matplotlib; install decoct[plots].") from None
    if folder.exists() and not folder.is_dir():
        raise out.UsageError(f"--output {folder} is a file; give a folder.")
    files = (folder / "compared.csv", folder / "compared.png")
    for path in files if folder.is_dir() else (folder,):
        require_writable(path, "--output")
    return files


def _write(result: Comparison, files: tuple[Path, Path]) -> None:
    from decoct.plots import comparison
    from decoct.runtime.files import write_atomically

    table, picture = files
    try:
        table.parent.mkdir(exist_ok=True)
        write_atomically(table, lambda path: result.to_pandas().to_csv(path, index=False))
        write_atomically(picture, lambda path: comparison(result).savefig(path, format="png"))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; not all files were written.") from None
