"""What a greedy step costs: ``python -m benchmarks.greedy``.

Each solver builds ``size`` steps on one array of single-precision vectors, made in place; beside it
the time of as many bare products of that array with a vector, taken in the same process before and
after. A step needs one such product; the aim is at most twice its time.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import decoct
from benchmarks import data
from benchmarks.tables import RESULTS, write_csv
from decoct.constructions import Hilbert
from decoct.solvers import GIGA, Budget, FrankWolfe, OrthogonalPursuit, Solver
from decoct.solvers.nnls import UnitVectors

BLOCK = 8192

SOLVERS: dict[str, Solver] = {
    "frank_wolfe": FrankWolfe(),
    "away": FrankWolfe("away"),
    "pairwise": FrankWolfe("pairwise"),
    "giga": GIGA(),
    "pursuit": OrthogonalPursuit(),
}


def pool(rows: int, draws: int, seed: int = 0) -> UnitVectors:
    """Return random vectors with a common part, as potentials have, without a second copy."""
    rng = np.random.default_rng(seed)
    vectors = np.empty((rows, draws), dtype=np.float32)
    common = 0.1 * rng.normal(size=draws).astype(np.float32)
    target = np.zeros(draws)
    for begin in range(0, rows, BLOCK):
        block = vectors[begin : begin + BLOCK]
        rng.standard_normal(out=block, dtype=np.float32)
        block += common
        target += block.sum(axis=0, dtype=np.float64)
    return UnitVectors.scaled(vectors, target, overwrite=True)


def product_seconds(problem: UnitVectors, times: int) -> list[float]:
    """Time bare products of the array with a vector."""
    vector = np.random.default_rng(1).normal(size=len(problem.target)).astype(np.float32)
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        _ = problem.vectors @ vector
        seconds.append(time.perf_counter() - started)
    return seconds


def measured(name: str, problem: UnitVectors, size: int, products: int) -> dict[str, Any]:
    """Run one solver between two halves of the bare products."""
    steps: list[int] = []
    before = product_seconds(problem, products // 2)
    started = time.perf_counter()
    path = SOLVERS[name].solve(
        problem, Budget((size,), None, steps.append), np.random.default_rng(0)
    )
    seconds = time.perf_counter() - started
    bare = sum(steps) * float(np.mean(before + product_seconds(problem, products - products // 2)))
    return {
        "solver": name,
        "rows": len(problem.vectors),
        "draws": len(problem.target),
        "steps": sum(steps),
        "kept": len(path[size].indices),
        "relative_error": path[size].residual_norm / float(np.linalg.norm(problem.target)),
        "seconds": seconds,
        "bare_products_s": bare,
        "ratio": seconds / bare,
    }


def whole_build(name: str, rows: int, draws: int, size: int, products: int) -> dict[str, Any]:
    """Run `decoct.build` on synthetic logistic rows, Laplace fit and embedding included."""
    method = Hilbert(SOLVERS[name], draws=draws)
    table = data.logistic(rows, 10)
    started = time.perf_counter()
    coreset = decoct.build(decoct.models.LogisticRegression(), table, size=size, method=method)
    seconds = time.perf_counter() - started
    stand_in = np.ones((rows, draws), dtype=np.float32)
    vector = np.ones(draws, dtype=np.float32)
    bare = []
    for _ in range(products):
        before = time.perf_counter()
        _ = stand_in @ vector
        bare.append(time.perf_counter() - before)
    expected = size * float(np.median(bare))
    return {
        "solver": f"decoct.build, {name}",
        "rows": rows,
        "draws": draws,
        "steps": size,
        "kept": coreset.size,
        "relative_error": coreset.report.rounds[0]["relative_error"],
        "seconds": seconds,
        "bare_products_s": expected,
        "ratio": seconds / expected,
    }


def peak_gb() -> float:
    """Return the peak resident memory of this process in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def show(results: list[dict[str, Any]]) -> None:
    table = Table(title="Time of a greedy build / time of as many bare products")
    for name in ("solver", "steps", "kept", "error", "seconds", "products, s", "ratio", ""):
        table.add_column(name, justify="left" if name == "solver" else "right")
    for one in results:
        table.add_row(
            one["solver"],
            str(one["steps"]),
            str(one["kept"]),
            f"{one['relative_error']:.1e}",
            f"{one['seconds']:.2f}",
            f"{one['bare_products_s']:.2f}",
            f"{one['ratio']:.2f}",
            "met" if one["ratio"] <= 2.0 else "MISSED",
        )
    Console(width=max(120, Console().width)).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a greedy step costs.")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--size", type=int, default=100, help="steps of each build")
    parser.add_argument("--products", type=int, help="bare products to time (default: size)")
    parser.add_argument("--solvers", nargs="+", choices=list(SOLVERS), default=list(SOLVERS))
    parser.add_argument("--output", type=Path, default=RESULTS / "greedy.csv")
    parser.add_argument("--build", action="store_true", help="whole builds of logistic rows")
    options = parser.parse_args()
    products = max(2, options.products or options.size)
    if options.build:
        arguments = (options.rows, options.draws, options.size, products)
        results = [whole_build(name, *arguments) for name in options.solvers]
    else:
        problem = pool(options.rows, options.draws)
        product_seconds(problem, 3)
        results = [measured(name, problem, options.size, products) for name in options.solvers]
    show(results)
    peak = peak_gb()
    print(f"vectors {options.rows * options.draws * 4 / 1e9:.2f} GB, peak memory {peak:.2f} GB")
    write_csv(options.output, [{**one, "peak_gb": peak} for one in results])


if __name__ == "__main__":
    main()
