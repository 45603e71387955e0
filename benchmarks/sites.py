"""KL of coresets with a site, and of rows alone: ``python -m benchmarks.sites``.

True KL(coreset‖full) in nats by draws of the coreset posterior (NUTS, 4,000 of them, all rows
evaluated at each), its Monte Carlo standard error, median over seeds, beside the figure to reach.
The Laplace fits that `benchmarks.quality` compares say nothing here: with a site they agree by
construction.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import decoct
from benchmarks import data
from benchmarks.quality import model_for
from benchmarks.tables import RESULTS, write_csv
from decoct.constructions import IteratedHilbert
from decoct.demo.flights import FORMULA, load_flights

TO_REACH = {
    "synth_lr": {0: 6e-3, 10: 5e-6, 50: 5e-10, 100: 1e-15},
    "phishing": {0: 6e-2, 10: 2e-2, 50: 4e-3, 100: 1.3e-3},
    "ds1": {0: 0.13, 10: 8e-2, 50: 1.3e-2, 100: 4e-3},
    "synth_poiss": {0: 1.7e-3, 10: 1e-12},
    "biketrips": {0: 3e-3, 10: 7e-5, 50: 2e-6, 100: 1e-7},
    "airportdelays": {0: 9e-3, 10: 9e-4, 50: 2.5e-4, 100: 1e-4},
    "phishing_full": {0: 6e-3, 10: 5.5e-3, 50: 4e-3, 100: 3e-3},
    "flights": {0: 5e-3, 10: 1e-4, 50: 4e-5, 100: 2e-5},
    "logistic_200": {0: 2e-2, 50: 1e-2, 100: 8e-3},
}
"""Nats by set and size."""


def problem(name: str) -> tuple[decoct.models.AbstractModel, Any]:
    """Return model and rows of a set."""
    if name == "flights":
        rows = load_flights()
        return decoct.models.from_formula(FORMULA, rows, "bernoulli"), decoct.rows(rows)
    if name == "phishing_full":
        return decoct.models.LogisticRegression(), decoct.rows(data.phishing_full())
    if name == "logistic_200":
        rng = np.random.default_rng(0)
        x = np.column_stack([rng.normal(size=(100_000, 199)), np.ones(100_000)])
        chance = 1.0 / (1.0 + np.exp(-x @ (rng.normal(size=200) * np.sqrt(4.0 / 200.0))))
        y = (rng.random(100_000) < chance).astype(int)
        return decoct.models.LogisticRegression(), decoct.rows({"x": x, "y": y})
    return model_for(name), decoct.rows(data.paper_set(name))


def results_of(name: str, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield one line per size, with a site and without."""
    model, rows = problem(name)
    sizes = list(TO_REACH[name])
    draws = 4000 if rows.n_rows < 50_000 else 1000
    for site in (True, False):
        asked = sizes if site else [size for size in sizes if size]
        found: dict[int, list[tuple[int, float, float, float]]] = {size: [] for size in asked}
        for seed in range(seeds):
            started = time.perf_counter()
            method = IteratedHilbert(site=site)
            built = decoct.path(model, rows, asked, seed=seed, method=method)
            seconds = time.perf_counter() - started
            for size, coreset in zip(asked, built, strict=True):
                drawn = coreset.sample(draws // 4, 4, seed=seed)
                check = decoct.check(coreset, rows, drawn, max_draws=draws, exact=True)
                found[size].append((coreset.size, check.kl, check.kl_se, seconds))
        for size, runs in found.items():
            kept, kl, error, seconds = np.median(np.array(runs), axis=0)
            yield {
                "set": name,
                "N": rows.n_rows,
                "size": size,
                "site": site,
                "rows": int(kept),
                "kl_median": kl,
                "kl_se": error,
                "kl_min": min(one[1] for one in runs),
                "kl_max": max(one[1] for one in runs),
                "to_reach": TO_REACH[name][size],
                "path_seconds": seconds,
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", nargs="+", choices=list(TO_REACH), default=list(TO_REACH))
    parser.add_argument("--output", type=Path, default=RESULTS / "sites.csv")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    for name in options.sets:
        for one in results_of(name, options.seeds):
            kind = "site" if one["site"] else "rows"
            print(
                f"{name:14s} {kind} {one['size']:4d} ({one['rows']} rows): {one['kl_median']:.1e} "
                f"± {one['kl_se']:.0e} nats, to reach {one['to_reach']:.1e}",
                flush=True,
            )
            results.append(one)
        write_csv(options.output, results)


if __name__ == "__main__":
    main()
