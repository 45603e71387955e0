"""Published SparseVI against ours at equal rows kept: ``python -m benchmarks.sparse_vi``.

KL(π_w‖π) as a fraction of KL(π₀‖π), between Laplace fits for the regressions and exact for the
Gaussian mean; median over seeds. CPU seconds are those of the whole process (all its threads);
"cold" is a build in a process of its own with an empty compilation cache. `--million` times builds
from a million logistic rows instead. Both write a CSV.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import decoct
from benchmarks import data
from benchmarks.constructions import laplace_kl, model_for
from benchmarks.tables import RESULTS, in_process, write_csv
from decoct.constructions import IteratedHilbert, SparseVI
from decoct.samplers import Exact, Laplace
from decoct.stats import Gaussian


class Published(NamedTuple):
    """A figure of the published code: rows kept, KL as a fraction of the prior's, CPU seconds."""

    rows: int
    fraction: float
    cpu: float


REGRESSIONS = {
    "synth_lr": (Published(43, 3.1e-4, 175), Published(58, 2.9e-5, 350)),
    "phishing": (Published(45, 3.4e-3, 225), Published(76, 4.6e-4, 411)),
    "ds1": (Published(44, 1.8e-3, 275), Published(50, 1.1e-3, 402)),
    "synth_poiss": (Published(21, 2.4e-4, 135), Published(37, 1.3e-5, 259)),
    "biketrips": (Published(17, 2.5e-4, 279), Published(24, 4.8e-5, 416)),
    "airportdelays": (Published(19, 4.6e-2, 237), Published(26, 2.7e-3, 423)),
}
GAUSSIAN = (Published(100, 1.7e-5, 150), Published(200, 2.2e-7, 299))
GAUSSIAN_SAMPLED = (Published(99, 2.0e-4, 99), Published(184, 2.9e-6, 211))
EXACT, SAMPLED = "Gaussian, exact", "Gaussian, draws"
PROBLEMS = {**REGRESSIONS, EXACT: GAUSSIAN, SAMPLED: GAUSSIAN_SAMPLED}
DIM = 200

CONVERGED = 1e-12
"""What a Gaussian coreset of as many rows as parameters is to reach."""

SPARSE_VI_SHARE = 1.0 / 3.0
ITERATED_HILBERT_SHARE = 0.1
CHEAPER = 100.0
THOROUGH = IteratedHilbert(site=False, draws=3000, restarts=12, restart_above=0.01)
"""More draws and local optima than the default, which suffices everywhere but on ds1."""

PICKS = 3
"""Picks per row: rows lose their weight on the way, so that more picks fill the size better."""


class Task(NamedTuple):
    """One published figure, and what ours is measured by."""

    problem: str
    published: Published
    model: Any
    rows: dict[str, np.ndarray]
    full: Gaussian
    prior_kl: float
    methods: dict[str, tuple[Any, float]]


def problem_of(name: str) -> tuple[dict[str, np.ndarray], Any]:
    """Return rows and model; the Gaussian mean of §5.1 has those of the published trial 0."""
    if name in REGRESSIONS:
        return data.paper_set(name), model_for(name)
    mean = np.random.RandomState(0).multivariate_normal(np.ones(DIM), np.eye(DIM), 1000)
    return {"x": mean}, decoct.models.GaussianMean(np.eye(DIM))


def methods_of(name: str, published: Published) -> dict[str, tuple[Any, float]]:
    """Return our methods for a published figure, with the fraction of KL(π₀‖π) to reach."""
    if name == EXACT:
        goal = CONVERGED if published.rows == DIM else published.fraction
        return {"SparseVI": (SparseVI(picks=2 * published.rows), goal)}
    if name == SAMPLED:
        return {"IteratedHilbert": (IteratedHilbert(site=False), published.fraction)}
    greedy = SparseVI(picks=PICKS * published.rows)
    return {
        "SparseVI": (greedy, SPARSE_VI_SHARE * published.fraction),
        "IteratedHilbert": (THOROUGH, ITERATED_HILBERT_SHARE * published.fraction),
    }


def tasks(only: str | None) -> Iterator[Task]:
    """Yield every published figure."""
    for name, figures in PROBLEMS.items():
        if only not in (None, name) and not (only == "gaussian" and name in (EXACT, SAMPLED)):
            continue
        rows, model = problem_of(name)
        full = decoct.laplace(model, rows)
        prior = decoct.kl_gaussian(Gaussian(np.zeros(full.dim), np.eye(full.dim)), full)
        for published in figures:
            yield Task(name, published, model, rows, full, prior, methods_of(name, published))


def cold_cpu(problem: str, published: Published, method: str) -> float:
    """Return the CPU seconds of a build in a new process that has nothing compiled."""
    arguments = ("--cold", problem, str(published.rows), method)
    with tempfile.TemporaryDirectory() as cache:
        return in_process("benchmarks.sparse_vi", *arguments, XDG_CACHE_HOME=cache)["cpu"]


def first_build(problem: str, size: str, method: str) -> float:
    """Return the CPU seconds of this process's first build."""
    (published,) = (one for one in PROBLEMS[problem] if one.rows == int(size))
    rows, model = problem_of(problem)
    return built_once(
        problem, model, rows, published, methods_of(problem, published)[method][0], 0
    )[1]


def built_once(
    problem: str, model: Any, rows: Any, published: Published, method: Any, seed: int
) -> tuple[decoct.Coreset, float]:
    """Return a coreset and the CPU seconds it took."""
    sampler = Laplace(judge=False) if problem in REGRESSIONS else Exact()
    started = time.process_time()
    coreset = decoct.build(
        model, rows, size=published.rows, seed=seed, method=method, sampler=sampler
    )
    return coreset, time.process_time() - started


def measured(task: Task, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield one result per method."""
    for name, (method, goal) in task.methods.items():
        cold = cold_cpu(task.problem, task.published, name)
        asked = (task.problem, task.model, task.rows, task.published, method)
        built_once(*asked, 0)
        built = [built_once(*asked, seed) for seed in range(seeds)]
        fractions = [laplace_kl(one, task.full) / task.prior_kl for one, _ in built]
        yield {
            "problem": task.problem,
            "method": name,
            "asked": task.published.rows,
            "rows": int(np.median([one.size for one, _ in built])),
            "fraction_median": float(np.median(fractions)),
            "fraction_min": min(fractions),
            "fraction_max": max(fractions),
            "published": task.published.fraction,
            "goal": goal,
            "cpu_warm": float(np.median([cpu for _, cpu in built])),
            "cpu_cold": cold,
            "cpu_published": task.published.cpu,
        }


def million(seeds: int) -> list[dict[str, Any]]:
    """Time builds of 100 rows from a million, chosen among a subsample; judge them by Laplace fits.

    The first one has to compile.
    """
    rows = data.logistic(n=1_000_000)
    model = decoct.models.LogisticRegression()
    full = decoct.laplace(model, rows)
    method = SparseVI(picks=200, subsample=5_000, subsample_totals=True)
    results = []
    for seed in range(seeds):
        started, cpu = time.perf_counter(), time.process_time()
        coreset = decoct.build(model, rows, size=100, seed=seed, method=method)
        wall, cpu = time.perf_counter() - started, time.process_time() - cpu
        kl = laplace_kl(coreset, full)
        print(
            f"N = 1,000,000, 10 covariates, {coreset.size} rows, seed {seed}: {wall:.0f} s wall, "
            f"{cpu:.0f} s CPU{' (cold)' if seed == 0 else ''}; KL {kl:.1e} nats, "
            f"{coreset.report.passes} passes"
        )
        results.append(
            {
                "n_rows": len(rows["y"]),
                "covariates": full.dim,
                "asked": 100,
                "rows": coreset.size,
                "seed": seed,
                "kl_nats": kl,
                "wall_s": wall,
                "cpu_s": cpu,
                "cold": seed == 0,
                "passes": coreset.report.passes,
            }
        )
    return results


def show(results: list[dict[str, Any]]) -> None:
    """Print the results as one table."""
    table = Table(title="KL(π_w‖π)/KL(π₀‖π) at equal rows, median over seeds; CPU seconds")
    left = ("problem", "method")
    for name in (*left, "rows", "median", "min", "max", "published", "goal", ""):
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for name in ("warm", "cold", "published", "÷", ""):
        table.add_column(name, justify="right")
    for one in results:
        cheaper = one["cpu_published"] / one["cpu_warm"]
        table.add_row(
            one["problem"],
            one["method"],
            str(one["rows"]),
            *(f"{one[key]:.1e}" for key in ("fraction_median", "fraction_min", "fraction_max")),
            f"{one['published']:.1e}",
            f"{one['goal']:.1e}",
            "met" if one["fraction_median"] <= one["goal"] else "MISSED",
            *(f"{one[key]:.2f}" for key in ("cpu_warm", "cpu_cold")),
            f"{one['cpu_published']:.0f}",
            f"{cheaper:.0f}",
            "met" if cheaper >= CHEAPER else "MISSED",
        )
    Console(width=max(150, Console().width)).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", choices=(*REGRESSIONS, "gaussian"), help="one problem")
    parser.add_argument("--million", action="store_true", help="time a million rows instead")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/sparse_vi*.csv")
    parser.add_argument("--cold", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cold:
        print(json.dumps({"cpu": first_build(*options.cold)}))
        return
    if options.million:
        write_csv(options.output or RESULTS / "sparse_vi_million.csv", million(options.seeds))
        return
    results: list[dict[str, Any]] = []
    for task in tasks(options.only):
        results.extend(measured(task, options.seeds))
    show(results)
    write_csv(options.output or RESULTS / "sparse_vi.csv", results)


if __name__ == "__main__":
    main()
