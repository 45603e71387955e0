"""What the questions after a fit cost: ``python -m benchmarks.questions``.

Logistic regression in ten dimensions on the Parquet files of `benchmarks.scale`: ten rows and a
site, 4 × 250 draws of NUTS. Every question is answered in a process of its own, from the saved
coreset and draws, with the certificate it needs. Counted are seconds, with compiling; passes, the
rows that are read over N; and the peak memory of the process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import decoct
from benchmarks.scale_parts import SIZE, model_of, peak_gb, write_rows
from benchmarks.tables import RESULTS, in_process, write_csv
from decoct.data.base import Chunks, RowsProxy

SAMPLE = 10_000
"""Rows of the difference estimator."""


class CountedRows(RowsProxy):
    """Rows that count how many of them are read."""

    n_read = 0

    def chunks(self, *args: Any, **options: Any) -> Chunks:
        for chunk in super().chunks(*args, **options):
            self.n_read += chunk.n_rows
            yield chunk

    def take(self, indices: np.ndarray, *args: Any, **options: Any) -> Any:
        self.n_read += len(indices)
        return super().take(indices, *args, **options)


def loo(coreset: Any, rows: Any, draws: Any, **options: Any) -> None:
    decoct.loo(coreset, rows, draws, check=decoct.check(coreset, rows, draws), **options)


def loo_of_some(coreset: Any, rows: Any, draws: Any) -> None:
    loo(coreset, rows, draws, observations=SAMPLE)


def predict(coreset: Any, rows: Any, draws: Any) -> None:
    for _ in coreset.predict_chunks(rows, draws):
        pass


def prior_sensitivity(coreset: Any, rows: Any, draws: Any) -> None:
    priors = {"narrow": lambda params: -0.5 * sum((v**2).sum() for v in params.values())}
    decoct.prior_sensitivity(coreset, draws, priors, rows=rows)


QUESTIONS = {
    "check": decoct.check,
    "loo": loo,
    f"loo from {SAMPLE:,} rows": loo_of_some,
    "log_evidence": decoct.log_evidence,
    "predict": predict,
    "prior_sensitivity": prior_sensitivity,
}


def answer(folder: Path, question: str) -> dict[str, Any]:
    """Answer one question of the coreset in a folder."""
    started = time.perf_counter()
    coreset = decoct.load(folder.with_suffix(".coreset.parquet"))
    rows = CountedRows(decoct.rows(str(folder / "*.parquet")))
    QUESTIONS[question](coreset, rows, np.load(folder.with_suffix(".npy")))
    return {
        "n": coreset.n_rows,
        "question": question,
        "seconds": time.perf_counter() - started,
        "passes": rows.n_read / coreset.n_rows,
        "peak_gb": peak_gb(),
    }


def prepare(folder: Path) -> dict[str, Any]:
    """Write the coreset of the rows in a folder, and its draws, beside it."""
    rows = decoct.rows(str(folder / "*.parquet"))
    coreset = decoct.build(model_of(rows), rows, size=SIZE, progress=False)
    coreset.save(folder.with_suffix(".coreset.parquet"))
    draws = coreset.sample(draws=250, chains=4, seed=1, progress=False)
    np.save(folder.with_suffix(".npy"), draws["unconstrained_posterior"]["z"].to_numpy())
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e5, 1e6, 1e7])
    parser.add_argument("--folder", type=Path, help="rows that are there")
    parser.add_argument("--question", choices=list(QUESTIONS), help="of the coreset beside them")
    options = parser.parse_args()
    if options.folder:
        own = answer(options.folder, options.question) if options.question else None
        print(json.dumps(own or prepare(options.folder)))
        return
    lines, table = [], Table(title="Questions after a fit")
    for head in ("N", "question", "seconds", "passes", "peak GB"):
        table.add_column(head)
    with tempfile.TemporaryDirectory() as folder:
        for n in map(int, options.rows):
            given = "--folder", str(Path(folder) / str(n))
            write_rows(Path(given[1]), n)
            # a process begins with the peak memory of that which starts it: no work is done here
            in_process("benchmarks.questions", *given)
            for question in QUESTIONS:
                line = in_process("benchmarks.questions", *given, "--question", question)
                lines.append(line)
                found = (f"{line[name]:.3g}" for name in ("seconds", "passes", "peak_gb"))
                table.add_row(f"{n:,}", question, *found)
                print(line, flush=True)
    write_csv(RESULTS / "questions.csv", lines)
    Console().print(table)


if __name__ == "__main__":
    main()
