"""What a build costs: ``python -m benchmarks.cost``.

200,000 × 10 logistic rows to 1e-4 nats: seconds with an empty and a full compilation cache, in
processes of their own, and again in the same process. Then ten rows of tables of N rows and d
parameters, each in a process of its own that has its programs: seconds, likelihoods a row, peak
memory; and the picture of both. Last a Parquet file of 1,000,000 rows of 1,000 columns, 4 GB, to
0.01 nats.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.tables import RESULTS, write_csv

ROWS, DIM = 100_000, 10
ALL_ROWS = (10_000, 100_000, 1_000_000, 3_000_000)
DIMS = (10, 30, 100, 300, 1000)
"""Numbers of rows at `DIM` parameters, and of parameters at `ROWS` rows."""

WIDE = 1_000_000, 1000
"""Rows and parameters of the file."""


def build_once(n: int, d: int, kl: float | None) -> dict[str, Any]:
    """Build twice in this process, and report."""
    import decoct
    from benchmarks.quality import logistic, wide_rows

    rows = wide_rows(n, d) if (n, d) == WIDE else logistic(n, d)
    model = decoct.models.LogisticRegression()
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        coreset = decoct.build(model, rows, size=None if kl else 10, kl=kl, progress=False)
        seconds.append(time.perf_counter() - started)
    return {
        "N": n,
        "d": d,
        "rows": coreset.size,
        "predicted_kl": coreset.report.predicted_kl,
        "first_s": seconds[0],
        "again_s": seconds[1],
        "likelihoods": coreset.report.evaluations / n,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def in_process(n: int, d: int, cache: str, kl: float | None = None) -> dict[str, Any]:
    """Run `build_once` in a process of its own, with its own compilation cache."""
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    command = [sys.executable, "-m", "benchmarks.cost", "--part", str(n), str(d), str(kl or 0)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Draw seconds against N and against d."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    tall = [one for one in lines if one["d"] == DIM]
    wide = [one for one in lines if one["N"] == ROWS]
    for axes, some, x in ((left, tall, "N"), (right, wide, "d")):
        places = [one[x] for one in some]
        axes.loglog(places, [one["first_s"] for one in some], "o-", label="in a new process")
        axes.loglog(places, [one["again_s"] for one in some], "s--", label="again")
        axes.grid(alpha=0.3, which="both")
    left.set(xlabel=f"rows N (d = {DIM})", ylabel="seconds", title="Build of ten rows and a site")
    right.set(xlabel=f"parameters d (N = {ROWS:,})")
    left.legend(frameon=False)
    figure.savefig(path, dpi=110)


def report(output: Path, picture: Path) -> None:
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = (in_process(200_000, 10, cache, 1e-4) for _ in range(2))
        lines = []
        for n, d in dict.fromkeys([*((n, DIM) for n in ALL_ROWS), *((ROWS, d) for d in DIMS)]):
            in_process(n, d, cache)  # leaves its programs
            lines.append(in_process(n, d, cache))
            print(f"{n:,} × {d}: {lines[-1]['first_s']:.1f} s", flush=True)
        wide = in_process(*WIDE, cache, 0.01)
    first = {"case": "200,000 x 10 to 1e-4 nats, empty cache", **cold}
    second = {"case": "the same, full cache", **warm}
    table = Table(title="Cost of a build")
    for name in ("case", "rows", "first_s", "again_s", "likelihoods", "peak_gb"):
        table.add_column(name, justify="right")
    named = [{"case": f"{one['N']:,} × {one['d']}, ten rows", **one} for one in lines]
    last = {"case": "1,000,000 × 1000 to 0.01 nats", **wide}
    for one in (first, second, *named, last):
        numbers = (one["rows"], one["first_s"], one["again_s"], one["likelihoods"], one["peak_gb"])
        table.add_row(one["case"], *(f"{number:.3g}" for number in numbers))
    Console(width=120).print(table)
    write_csv(output, [first, second, *named, last])
    draw(lines, picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", nargs=3, type=float, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=RESULTS / "cost.csv")
    parser.add_argument("--picture", type=Path, default=RESULTS / "cost.png")
    options = parser.parse_args()
    if options.part:
        n, d, kl = options.part
        print(json.dumps(build_once(int(n), int(d), kl or None)))
    else:
        report(options.output, options.picture)


if __name__ == "__main__":
    main()
