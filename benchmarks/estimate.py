"""What `decoct.estimate` says beside what the build takes: ``python -m benchmarks.estimate``.

Twelve problems with 2 to 200 parameters, in CPU seconds, one after the other and each in processes
of its own, so that neither finds what the other compiled in memory. Target: a factor of 3.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import decoct
from benchmarks import data
from benchmarks.tables import RESULTS, in_process, write_csv

Rows = dict[str, np.ndarray]
Problem = tuple[decoct.models.AbstractModel, Rows]


def logistic(dim: int, n: int) -> Problem:
    """Return standard normal covariates and labels of a linear predictor of variance 1."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, dim))
    eta = x @ rng.normal(size=dim) / np.sqrt(dim)
    return decoct.models.LogisticRegression(), {"x": x, "y": rng.random(n) < 1 / (1 + np.exp(-eta))}


def sparse(dim: int, n: int) -> Problem:
    """Return covariates one in ten of which is 1."""
    rng = np.random.default_rng(0)
    x = (rng.random((n, dim)) < 0.1).astype(np.float64)
    eta = x @ (0.5 * rng.normal(size=dim))
    model = decoct.models.LogisticRegression(prior_scale=2.5)
    return model, {"x": x, "y": rng.random(n) < 1 / (1 + np.exp(-eta))}


def poisson(dim: int, n: int) -> Problem:
    """Return counts of mean about 1."""
    rng = np.random.default_rng(0)
    x = 0.3 * rng.normal(size=(n, dim))
    counts = rng.poisson(np.exp(x @ (0.3 * rng.normal(size=dim))))
    return decoct.models.PoissonRegression(), {"x": x, "y": counts}


def rare_levels(n: int = 100_000) -> Problem:
    """Return standardised indicators of levels of 1 to 1000 rows; two levels have one label."""
    rng = np.random.default_rng(0)
    sizes = np.array([1, 1, 2, 3, 5, 8, 12, 20, 30, 50, 100, 300, 1000])
    level = np.full(n, -1)
    level[: sizes.sum()] = np.repeat(np.arange(len(sizes)), sizes)
    plain = rng.normal(size=(n, 8))
    indicators = (level[:, None] == np.arange(len(sizes))).astype(np.float64)
    effects = 1.5 * rng.normal(size=len(sizes))
    eta = plain @ (0.5 * rng.normal(size=8)) + indicators @ effects - 0.5
    y = rng.random(n) < 1 / (1 + np.exp(-eta))
    y[level == 4], y[level == 7] = True, False
    x = np.c_[plain, indicators]
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    model = decoct.models.LogisticRegression(prior_scale=1.0)
    return model, {"x": np.c_[x, np.ones(n)], "y": y}


def phishing() -> Problem:
    """Return all 68 features of the phishing set, and a constant."""
    return decoct.models.LogisticRegression(), data.phishing_full()


PROBLEMS: dict[str, tuple[Callable[[], Problem], int, int]] = {
    "logistic, N = 1e5": (lambda: logistic(2, 100_000), 2, 20),
    "logistic, N = 1e6": (lambda: logistic(5, 1_000_000), 5, 50),
    "Poisson, N = 1.5e4": (lambda: poisson(9, 15_000), 9, 50),
    "logistic, N = 2e5": (lambda: logistic(10, 200_000), 10, 100),
    "rare levels, N = 1e5": (rare_levels, 22, 150),
    "logistic, N = 3e5": (lambda: logistic(30, 300_000), 30, 220),
    "logistic, N = 2,000": (lambda: logistic(40, 2_000), 40, 100),
    "logistic 50, N = 1e5": (lambda: logistic(50, 100_000), 50, 300),
    "phishing, N = 11,055": (phishing, 69, 430),
    "logistic 100, N = 1e5": (lambda: logistic(100, 100_000), 100, 400),
    "sparse, N = 3e4": (lambda: sparse(124, 30_000), 124, 300),
    "logistic 200, N = 1e5": (lambda: logistic(200, 100_000), 200, 600),
}


def measure(name: str, stage: str) -> dict[str, Any]:
    """Return the estimate of one problem, or what its build took."""
    make, _, size = PROBLEMS[name]
    model, rows = make()
    started = time.process_time()
    if stage == "estimate":
        cost = decoct.estimate(model, rows, size=size)
        found = {"estimated_cpu_s": cost.cpu_seconds, "laplace_cpu_s": cost.laplace_seconds}
        return {**found, "probe_cpu_s": time.process_time() - started}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", decoct.errors.ShortBuildWarning)
        report = decoct.build(model, rows, size=size, seed=0).report
    return {"build_cpu_s": time.process_time() - started, "status": report.status.name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problem", choices=PROBLEMS)
    parser.add_argument("--stage", choices=["estimate", "build"], default="build")
    arguments = parser.parse_args()
    if arguments.problem is not None:
        print(json.dumps(measure(arguments.problem, arguments.stage)))
        return
    table = Table(
        "problem", "d", "size", "estimated", "build", "ratio", "Laplace", "probe", "status"
    )
    lines = []
    for name, (_, dim, size) in PROBLEMS.items():
        line = {"problem": name, "dim": dim, "size": size}
        for stage in ("estimate", "build"):
            line |= in_process("benchmarks.estimate", "--problem", name, "--stage", stage)
        line["ratio"] = line["estimated_cpu_s"] / line["build_cpu_s"]
        lines.append({k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in line.items()})
        laplace = "" if line["laplace_cpu_s"] is None else f"{line['laplace_cpu_s']:.2g}"
        figures = ("estimated_cpu_s", "build_cpu_s", "ratio")
        words = [f"{line[key]:.2g}" for key in figures]
        probe = f"{line['probe_cpu_s']:.2g}"
        table.add_row(name, str(dim), str(size), *words, laplace, probe, line["status"])
    Console(width=120).print(table)
    write_csv(RESULTS / "estimate.csv", lines)


if __name__ == "__main__":
    main()
