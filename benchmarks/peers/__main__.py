"""decoct and its peers on the same posteriors: ``python -m benchmarks.peers``.

Every method runs on every posterior in a process of its own on one core, two at a time. A cell of
the table, one budget of a method, is appended to the CSV file as it ends; what is there is not run
again, so that a run can be interrupted and resumed. A cell that takes too much processor time is
stopped, and the file says so; larger budgets of that method are then not tried. The truth of a
posterior, long NUTS on all rows, comes first and is kept in ``--cache``. ``python -m
benchmarks.pages`` makes docs/compared.md and its picture of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from benchmarks.peers.cells import HEADINGS, RUNNING, TITLES, Cell, append_cell, read_cells
from benchmarks.tables import RESULTS
from decoct.runtime.resources import cores


@dataclass
class Run:
    """How processes are started, and where cells go."""

    path: Path
    cache: Path
    quick: bool
    limit: float

    def __post_init__(self) -> None:
        self.free: SimpleQueue[int] = SimpleQueue()
        for core in range(min(2, cores())):
            self.free.put(core)
        self.lock = Lock()
        self.cells = read_cells(self.path)

    def run_all(self, jobs: Sequence[tuple[Callable[..., None], str, object]]) -> None:
        """Run jobs in order, one on each core at a time."""
        pool = ThreadPoolExecutor(self.free.qsize())
        try:
            for done in [pool.submit(function, *rest) for function, *rest in jobs]:
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def start(self, core: int, *arguments: str) -> subprocess.Popen[str]:
        """Start a process that has a core to itself."""
        command = ["taskset", "-c", str(core), sys.executable, "-m", "benchmarks.peers.cell"]
        command += [*arguments, "--cache", str(self.cache)] + ["--quick"] * self.quick
        # what one method compiles must not be there for the next
        own = {**os.environ, "DECOCT_COMPILATION_CACHE": "0"}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=own, stdout=pipe, stderr=pipe, text=True)

    def run_chain(self, posterior: str, chain: int) -> None:
        """Run one chain of the truth, unless it is kept."""
        if (self.cache / f"{posterior}_{chain}.npz").exists():
            return
        core = self.free.get()
        child = self.start(core, posterior, "truth", "--seed", str(chain))
        errors = child.communicate()[1]
        self.free.put(core)
        if child.returncode:
            raise RuntimeError(f"The truth of {posterior} was not reached: {last_of(errors)}")

    def run_method(self, posterior: str, method: str) -> None:
        """Run the budgets of a method that are not done; that a process died is a result too."""
        done = [c for c in self.cells if (c.posterior, c.method) == (posterior, method)]
        if done and done[-1].number + 1 >= done[-1].of:
            return
        core = self.free.get()
        arguments = ["--first", str(len(done)), "--limit", str(self.limit)]
        child = self.start(core, posterior, method, *arguments)
        assert child.stdout is not None
        assert child.stderr is not None
        cell = None
        for text in child.stdout:
            cell = Cell(**json.loads(text))
            if cell.failed != RUNNING:
                self.add(cell)
        errors, status = child.stderr.read(), child.wait()
        self.free.put(core)
        if cell is None:
            raise RuntimeError(f"{method} on {posterior} did not begin: {last_of(errors)}")
        interrupted = status in (-signal.SIGINT, -signal.SIGTERM)
        if cell.failed == RUNNING and not interrupted:
            reason = f"the process ended with {status}: {last_of(errors)}"
            if status == -signal.SIGPROF:
                reason = f"over the limit of {self.limit:g} s"
            self.add(replace(cell, of=cell.number + 1, failed=reason))

    def add(self, cell: Cell) -> None:
        """Write and print a cell."""
        with self.lock:
            append_cell(self.path, cell)
            print(cell, flush=True)


def last_of(errors: str) -> str:
    """Return the last line of what a process complained of."""
    lines = errors.strip().splitlines()
    return lines[-1][:200] if lines else "no message"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--posteriors", nargs="+", choices=list(HEADINGS), default=list(HEADINGS))
    parser.add_argument("--methods", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--quick", action="store_true", help="few rows, results in the cache")
    parser.add_argument("--csv", type=Path, default=RESULTS / "peers.csv")
    parser.add_argument("--cache", type=Path, default=RESULTS / "peers_truth")
    parser.add_argument("--limit", type=float, default=240.0, help="processor seconds of a cell")
    options = parser.parse_args()
    cache = options.cache / "quick" if options.quick else options.cache
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / "peers.csv" if options.quick else options.csv
    run = Run(path, cache, options.quick, options.limit)
    run.run_all([(run.run_chain, name, chain) for name in options.posteriors for chain in (0, 1)])
    pairs = [(name, method) for name in options.posteriors for method in options.methods]
    run.run_all([(run.run_method, *pair) for pair in pairs])


if __name__ == "__main__":
    main()
