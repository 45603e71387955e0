"""One method on one posterior, in a process of its own: cells as JSON objects, one a line."""

from __future__ import annotations

import argparse
import json
import resource
import signal
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path

import jax

from benchmarks.peers import coresets, samplers, variational
from benchmarks.peers.cells import RUNNING, Cell
from benchmarks.peers.posteriors import POSTERIORS, Problem
from benchmarks.peers.truth import Effort, figures, load_truth, run_chain

METHODS = {**samplers.METHODS, **variational.METHODS, **coresets.METHODS}

QUICK_ROWS, QUICK_EFFORT = 5000, Effort(200, 1000)
"""Most rows of a table with ``--quick``, and its truth."""


def run_cells(problem: Problem, name: str, cache: Path, seed: int = 0, first: int = 0, limit=0.0):
    """Yield every budget of a method from ``first`` on: as it begins, and as it ends.

    A budget that takes more processor seconds than ``limit`` ends the process (SIGPROF).
    """
    method, truth = METHODS[name], load_truth(cache, problem.name)
    budgets = method.budgets(problem)
    start = Cell(problem.name, problem.n_rows, problem.dim, name, seed, 0, len(budgets))
    floors = {f"truth_{k}": v for k, v in truth.floors.items() if hasattr(start, f"truth_{k}")}
    for number, budget in enumerate(budgets):
        if number < first:
            continue
        text = " ".join(f"{value:g}" for value in budget)
        yield (cell := replace(start, number=number, budget=text, failed=RUNNING))
        signal.setitimer(signal.ITIMER_PROF, limit)
        started = time.process_time()
        try:
            found = method.run(problem, budget, seed)
            seconds = time.process_time() - started
            reached = {"evaluations": float(found.evaluations), "draws": len(found.z)}
            reached |= {"failed": "", **figures(found.z, found.weights, truth)}
            # that of Gaussians with moments of S draws
            noise = problem.dim * (problem.dim + 3) / (4.0 * len(found.z))
            reached |= {"truth_kl": truth.floors["kl"] + noise}
        except Exception as error:  # whatever a peer raises is its result
            seconds = time.process_time() - started
            reached = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        yield replace(
            cell,
            cpu_seconds=seconds,
            peak_gb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            **(floors | reached),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("posterior", choices=list(POSTERIORS))
    parser.add_argument("method", choices=["truth", *METHODS])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--first", type=int, default=0, help="budgets before it are left out")
    parser.add_argument("--seed", type=int, default=0, help="of the truth, the chain")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--limit", type=float, default=0.0, help="most processor seconds of a cell")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    problem = Problem(options.posterior, QUICK_ROWS if options.quick else None)
    if options.method == "truth":
        run_chain(problem, options.seed, options.cache, QUICK_EFFORT if options.quick else None)
        return
    given = (options.cache, options.seed, options.first, options.limit)
    for cell in run_cells(problem, options.method, *given):
        print(json.dumps(asdict(cell)), flush=True)


if __name__ == "__main__":
    main()
