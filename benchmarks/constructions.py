"""KL of rows alone by every construction: ``python -m benchmarks.constructions``.

Reverse KL in nats between Laplace fits of π_w and π, N(0, I) prior, whitened covariates, median
over seeds; beside it the figures to beat and what other constructions reach with as many rows:
SparseVI (three picks a row), GIGA in the tangent space of the full-data Laplace fit ("optimal") and
in that of a Laplace fit to a uniform tenth of the rows ("realistic": what can be had before the
posterior is known), and uniform subsampling. Two larger problems follow: all 68 phishing features,
and robust regression judged by its certificate. Coresets with a site are those of
`benchmarks.quality`: Laplace fits agree with them by construction.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import decoct
from benchmarks import data
from benchmarks.tables import RESULTS, write_csv
from decoct.constructions import Hilbert, IteratedHilbert, SparseVI, Uniform
from decoct.constructions.base import Construction
from decoct.constructions.hilbert.weighting import Subsample
from decoct.samplers import Laplace
from decoct.solvers import GIGA

SIZES = (10, 20, 50, 100)
TO_BEAT = {
    "synth_lr": (3e-3, 2e-5, 1e-8, 1e-9),
    "phishing": (60.0, 4.0, 6e-2, 5e-3),
    "ds1": (40.0, 1.6, 7e-2, 7e-3),
    "synth_poiss": (1e-5, 1e-10, 1e-12, 1e-12),
    "biketrips": (10.0, 0.5, 1e-2, 1e-4),
    "airportdelays": (90.0, 10.0, 0.6, 4e-2),
}
COLUMNS = {
    "sparse_vi_kl": "SparseVI",
    "giga_optimal_kl": "GIGA opt.",
    "giga_realistic_kl": "GIGA real.",
    "uniform_kl": "uniform",
}
ROWS_ALONE = IteratedHilbert(site=False)
PICKS, DRAWS, MIN_PILOT = 3, 500, 50
POISSON = ("synth_poiss", "biketrips", "airportdelays")


def model_for(name: str) -> decoct.models.AbstractModel:
    """Return the papers' model of a data set."""
    if name in POISSON:
        return decoct.models.PoissonRegression(link="softplus")
    return decoct.models.LogisticRegression()


def laplace_kl(coreset: decoct.Coreset, full: decoct.stats.Gaussian) -> float:
    """Return KL between the Laplace fits of π_w and π."""
    fit = coreset.laplace()
    return decoct.kl_gaussian(fit, full)


def others(size: int, n: int) -> dict[str, Construction]:
    """Return the constructions to compare with, by column."""
    pilot = Subsample(rows=max(MIN_PILOT, n // 10), sampler=Laplace(judge=False))
    return {
        "sparse_vi_kl": SparseVI(picks=PICKS * size),
        "giga_optimal_kl": Hilbert(GIGA(), weighting="laplace", draws=DRAWS),
        "giga_realistic_kl": Hilbert(GIGA(), weighting=pilot, draws=DRAWS),
        "uniform_kl": Uniform(),
    }


def kls_of(
    method: Construction,
    model: decoct.models.AbstractModel,
    rows: dict[str, np.ndarray],
    size: int,
    seeds: int,
    full: decoct.stats.Gaussian,
) -> list[float]:
    """Return the KL of one coreset a seed; SparseVI draws from Laplace fits, as KL is judged."""
    sampler = Laplace(judge=False) if isinstance(method, SparseVI) else None
    return [
        laplace_kl(
            decoct.build(model, rows, size=size, seed=seed, method=method, sampler=sampler), full
        )
        for seed in range(seeds)
    ]


def paper_rows(seeds: int) -> Iterator[dict[str, Any]]:
    """Yield one result per set and size."""
    for name, figures in TO_BEAT.items():
        rows, model = data.paper_set(name), model_for(name)
        full = decoct.laplace(model, rows)
        for size, figure in zip(SIZES, figures, strict=True):
            built = [
                decoct.build(model, rows, size=size, seed=seed, method=ROWS_ALONE)
                for seed in range(seeds)
            ]
            kls = [laplace_kl(one, full) for one in built]
            beside = {
                column: float(np.median(kls_of(method, model, rows, size, seeds, full)))
                for column, method in others(size, len(rows["y"])).items()
            }
            yield {
                "set": name,
                "N": len(rows["y"]),
                "dim": full.dim,
                "size": size,
                "rows": int(np.median([one.size for one in built])),
                "kl_median": float(np.median(kls)),
                "kl_min": min(kls),
                "kl_max": max(kls),
                "to_beat": figure,
                **beside,
                "passes": max(one.report.passes for one in built),
                "seconds": float(np.median([sum(one.report.seconds.values()) for one in built])),
            }


def phishing_row(seed: int, size: int = 430) -> dict[str, Any]:
    """Return the result on all phishing features."""
    rows, model = data.phishing_full(), decoct.models.LogisticRegression()
    full = decoct.laplace(model, rows)
    coreset = decoct.build(model, rows, size=size, seed=seed, method=ROWS_ALONE)
    uniform = decoct.build(model, rows, size=size, seed=seed, method=Uniform())
    return _single("phishing_full", rows, coreset, laplace_kl(coreset, full), 0.04) | {
        "uniform_kl": laplace_kl(uniform, full)
    }


def robust_row(seed: int, size: int = 80) -> dict[str, Any]:
    """Return the certificate of robust regression, from NUTS draws."""
    rows = data.robust_regression()
    model = decoct.models.StudentTRegression(scale="log-linear")
    coreset = decoct.build(model, rows, size=size, seed=seed, method=ROWS_ALONE)
    certificate = decoct.check(coreset, rows, coreset.sample(seed=seed))
    return _single("robust (certificate)", rows, coreset, certificate.kl, 1e-4)


def _single(name, rows, coreset, kl, to_beat) -> dict[str, Any]:
    return {
        "set": name,
        "N": len(rows["y"]),
        "dim": coreset.dim,
        "size": coreset.report.size_asked,
        "rows": coreset.size,
        "kl_median": kl,
        "kl_min": kl,
        "kl_max": kl,
        "to_beat": to_beat,
        "passes": coreset.report.passes,
        "seconds": sum(coreset.report.seconds.values()),
    }


def show(results: list[dict[str, Any]]) -> None:
    """Print the results as one table."""
    table = Table(title="Reverse KL in nats between Laplace fits (median over seeds)")
    for name in ("set", "N", "dim", "size", "rows"):
        table.add_column(name, justify="left" if name == "set" else "right")
    for name in ("KL", "min", "max", "to beat", *COLUMNS.values(), "passes", "seconds", ""):
        table.add_column(name, justify="right")
    for one in results:
        met = one["kl_median"] <= one["to_beat"]
        table.add_row(
            one["set"],
            f"{one['N']:,}",
            *(str(one[key]) for key in ("dim", "size", "rows")),
            *(f"{one[key]:.1e}" for key in ("kl_median", "kl_min", "kl_max", "to_beat")),
            *(f"{one[key]:.1e}" if key in one else "" for key in COLUMNS),
            str(one["passes"]),
            f"{one['seconds']:.1f}",
            "met" if met else "MISSED",
        )
    Console(width=max(160, Console().width)).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=("papers", "large"), help="run a part of it")
    parser.add_argument("--output", type=Path, default=RESULTS / "constructions.csv")
    options = parser.parse_args()
    started = time.perf_counter()
    results: list[dict[str, Any]] = []
    if options.only != "large":
        results.extend(paper_rows(options.seeds))
    if options.only != "papers":
        results += [phishing_row(0), robust_row(0)]
    show(results)
    write_csv(options.output, results)
    print(f"{time.perf_counter() - started:.0f} s in all; written to {options.output.name}")


if __name__ == "__main__":
    main()
