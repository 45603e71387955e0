"""decoct and its peers on the same posteriors: ``python -m benchmarks.peers``.

Every method runs on every posterior in a process of its own on one core, two at a time. A cell of
the table, one budget of a method, is appended to the CSV file as it ends; cells that are there are
not run again, so that the whole can be run in pieces. The truth of a posterior, long NUTS on all
rows, is run first and kept in ``--cache``. `benchmarks.peers.page` makes the page of the file.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from benchmarks.peers.cell import METHODS
from benchmarks.peers.picture import draw
from benchmarks.peers.posteriors import POSTERIORS
from benchmarks.peers.truth import CHAINS, chain_file
from benchmarks.tables import RESULTS
from decoct.runtime.resources import cores

FIGURES = ("mean_rms", "mean_worst", "sd_rms", "sd_worst", "w1_worst", "kl")

FIELDS = (
    *("posterior", "n_rows", "dim", "method", "seed", "number", "of", "budget"),
    *("evaluations", *FIGURES, "cpu_seconds", "compile_seconds", "peak_gb", "draws"),
    *(f"truth_{figure}" for figure in FIGURES),
    "failed",
)


@dataclass
class Table:
    """The CSV file, and what it has."""

    path: Path
    lines: list[dict[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.path.exists():
            with self.path.open(newline="") as file:
                self.lines = list(csv.DictReader(file))

    def cells_of(self, posterior: str, method: str) -> list[dict[str, str]]:
        """Return the lines of a method on a posterior."""
        return [r for r in self.lines if (r["posterior"], r["method"]) == (posterior, method)]

    def is_complete(self, posterior: str, method: str) -> bool:
        """Whether all its budgets are there."""
        there = self.cells_of(posterior, method)
        return bool(there) and len(there) >= int(there[-1]["of"])

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line to the file at once."""
        rounded = {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in line.items()}
        with self.lock:
            is_new = not self.path.exists()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n", restval="")
                if is_new:
                    writer.writeheader()
                writer.writerow(rounded)
            self.lines.append({**dict.fromkeys(FIELDS, ""), **rounded})


@dataclass
class Run:
    """How processes are started, and until when."""

    table: Table
    cache: Path
    quick: bool
    seed: int
    limit: int
    until: float

    def start(self, core: int, *arguments: str) -> subprocess.Popen[str]:
        """Start a process that has a core to itself."""
        module = ["taskset", "-c", str(core), sys.executable, "-m", "benchmarks.peers.cell"]
        options = ["--cache", str(self.cache), "--seed", str(self.seed)]
        options += ["--limit", str(self.limit), "--until", str(self.until)]
        options += ["--quick"] if self.quick else []
        # what one method compiles must not be there for the next
        own = {**os.environ, "DECOCT_COMPILATION_CACHE": "0"}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*module, *arguments, *options], env=own, stdout=pipe, stderr=pipe, text=True
        )

    def run_chain(self, core: int, posterior: str, chain: int) -> None:
        """Run one chain of the truth of a posterior."""
        child = self.start(core, posterior, "truth", "--chain", str(chain))
        _, errors = child.communicate()
        if child.returncode:
            raise RuntimeError(f"The truth of {posterior} was not reached: {last_of(errors)}")

    def run_method(self, core: int, posterior: str, method: str) -> None:
        """Run a method's budgets that are not done; that a process died is a result too."""
        done = [int(one["number"]) for one in self.table.cells_of(posterior, method)]
        child = self.start(core, posterior, method, "--done", *map(str, done))
        assert child.stdout is not None
        assert child.stderr is not None
        for text in child.stdout:
            line = json.loads(text)
            self.table.append(line)
            done.append(line["number"])
            show(line)
        errors = child.stderr.read()
        status = child.wait()
        if status not in (0, -signal.SIGTERM):
            number = next(n for n in range(len(done) + 1) if n not in done)
            reason = f"the process ended with {status}: {last_of(errors)}"
            if status == -signal.SIGPROF:
                reason = f"stopped after {self.limit} s of processor time"
            line = {"posterior": posterior, "method": method, "seed": self.seed, "failed": reason}
            line |= {"number": number, "of": number + 1}  # what costs more is not tried
            self.table.append(line)
            show(line)


def last_of(errors: str) -> str:
    """Return the last line of what a process complained of."""
    lines = errors.strip().splitlines()
    return lines[-1][:200] if lines else "no message"


def show(line: Mapping[str, Any]) -> None:
    """Print a cell."""
    name = f"{line['posterior']:12s} {line['method']:14s} {line.get('budget', ''):18s}"
    if "failed" in line:
        print(name, line["failed"], flush=True)
        return
    passes = line["evaluations"] / line["n_rows"]
    figures = ", ".join(f"{k} {line[k]:.2g}" for k in FIGURES)
    print(f"{name} {passes:.4g} N, {line['cpu_seconds']} s, {figures}", flush=True)


def run_jobs(jobs: Sequence[tuple[Callable[..., None], tuple[Any, ...]]], until: float) -> None:
    """Run jobs in order, one on each core at a time; none is begun after ``until``."""
    waiting, lock = list(jobs), threading.Lock()

    def work(core: int) -> None:
        while True:
            with lock:
                if not waiting or time.time() > until:
                    return
                function, arguments = waiting.pop(0)
            function(core, *arguments)

    workers = [threading.Thread(target=work, args=(core,)) for core in range(min(2, cores()))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--posteriors", nargs="+", choices=list(POSTERIORS), default=list(POSTERIORS)
    )
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--quick", action="store_true", help="few rows, for a look")
    parser.add_argument("--csv", type=Path, help="default results/peers.csv, with --quick none")
    parser.add_argument("--picture", type=Path, help="draw error against evaluations to this file")
    folder = Path(tempfile.gettempdir()) / "decoct-peers"
    parser.add_argument("--cache", type=Path, default=folder, help="where truths are kept")
    parser.add_argument("--minutes", type=float, default=inf, help="begin nothing after these")
    parser.add_argument("--limit", type=int, default=170, help="most processor seconds of a cell")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cache = options.cache / "quick" if options.quick else options.cache
    cache.mkdir(parents=True, exist_ok=True)
    path = options.csv or (cache / "peers.csv" if options.quick else RESULTS / "peers.csv")
    until = time.time() + 60.0 * options.minutes
    run = Run(Table(path), cache, options.quick, options.seed, options.limit, until)
    chains = [
        (run.run_chain, (posterior, chain))
        for posterior in options.posteriors
        for chain in range(CHAINS)
        if not chain_file(cache, posterior, chain).exists()
    ]
    run_jobs(chains, until)
    methods = [
        (run.run_method, (posterior, method))
        for posterior in options.posteriors
        for method in options.methods
        if not run.table.is_complete(posterior, method)
    ]
    run_jobs(methods, until)
    if options.picture is not None:
        draw(path, options.picture)


if __name__ == "__main__":
    main()
