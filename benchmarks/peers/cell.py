"""One method on one posterior, in a process of its own: a JSON object a budget, one a line."""

from __future__ import annotations

import argparse
import json
import resource
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import jax

from benchmarks.peers import coresets, samplers, variational
from benchmarks.peers.method import Method
from benchmarks.peers.posteriors import POSTERIORS, Problem
from benchmarks.peers.truth import Effort, figures, load_truth, run_chain

METHODS = {**samplers.METHODS, **variational.METHODS, **coresets.METHODS}

QUICK_ROWS, QUICK_EFFORT = 5000, Effort(200, 1000)
"""Most rows of a table with ``--quick``, and its truth."""


class Compiling:
    """The seconds that XLA has compiled in this process."""

    def __init__(self) -> None:
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, event: str, seconds: float, **kwargs: object) -> None:
        if event.endswith("backend_compile_duration"):
            self.seconds += seconds


def run_cell(
    problem: Problem, method: Method, budget: Any, seed: int, truth: Truth, clock: Compiling
) -> dict[str, Any]:
    """Return the line of one cell; a method that fails says why in place of figures."""
    compiled, started = clock.seconds, time.process_time()
    try:
        found = method.run(problem, budget, seed)
        seconds = time.process_time() - started
        line = {"evaluations": float(found.evaluations), "draws": len(found.z)}
        line |= figures(found.z, found.weights, truth)
    except Exception as error:  # whatever a peer raises is its result
        seconds = time.process_time() - started
        line = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    return {
        **line,
        "cpu_seconds": round(seconds, 2),
        "compile_seconds": round(clock.seconds - compiled, 2),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        **{f"truth_{figure}": value for figure, value in truth.floors.items()},
    }


def cells(
    problem: Problem,
    name: str,
    cache: Path,
    seed: int = 0,
    done: Sequence[int] = (),
    limit: float = 0.0,
) -> Iterator[dict[str, Any]]:
    """Yield a line for every budget of a method that is not done."""
    method, clock = METHODS[name], Compiling()
    start = {"posterior": problem.name, "n_rows": problem.n_rows, "dim": problem.dim}
    start |= {"method": name, "seed": seed}
    reason = method.unsuited(problem)
    if reason:
        yield {**start, "number": 0, "of": 1, "failed": f"not run: {reason}"}
        return
    budgets, truth = method.budgets(problem), load_truth(cache, problem.name)
    for number, budget in enumerate(budgets):
        if number not in done:
            # what takes more processor time is ended; whoever started it tells
            signal.setitimer(signal.ITIMER_PROF, limit)
            cell = {"number": number, "of": len(budgets), "budget": " ".join(map(str, budget))}
            yield {**start, **cell, **run_cell(problem, method, budget, seed, truth, clock)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("posterior", choices=list(POSTERIORS))
    parser.add_argument("method", choices=["truth", *METHODS])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--chain", type=int, default=0, help="of the truth")
    parser.add_argument("--done", type=int, nargs="*", default=[], help="budgets to leave out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--limit", type=int, default=0, help="most processor seconds of a budget")
    parser.add_argument("--until", type=float, default=inf, help="begin no budget after this time")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    problem = Problem(options.posterior, QUICK_ROWS if options.quick else None)
    if options.method == "truth":
        run_chain(problem, options.chain, options.cache, QUICK_EFFORT if options.quick else None)
        return
    given = (options.cache, options.seed, options.done, options.limit)
    for line in cells(problem, options.method, *given):
        print(json.dumps(line), flush=True)
        if time.time() > options.until:
            break


if __name__ == "__main__":
    main()
