"""KL of coresets with a site, and of rows alone: ``python -m benchmarks.quality``.

True KL(coreset‖full) in nats by draws of the coreset posterior (NUTS, 4,000 of them, all rows
evaluated at each), its Monte Carlo standard error, median over seeds, beside the figure to reach.
The Laplace fits that `benchmarks.constructions` compares say nothing here: with a site they agree
by construction. Rows alone are left out where they are hopeless, at a tenth of d(d+3)/2 and fewer.
Lines of sets that are not run again are kept.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import decoct
from benchmarks import data
from benchmarks.constructions import model_for
from benchmarks.tables import RESULTS, read_csv, write_csv
from decoct.constructions import IteratedHilbert
from decoct.data import encoded
from decoct.demo.flights import FORMULA, load_flights
from decoct.passes.potentials import Potentials

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
    "sparse_120": {0: 0.1, 10: 8e-2, 50: 4e-2, 100: 3e-2},
    "logistic_1000": {0: 0.1},
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
        return decoct.models.LogisticRegression(), decoct.rows(logistic(100_000, 200))
    if name == "logistic_1000":
        return decoct.models.LogisticRegression(), wide_rows()
    if name == "sparse_120":
        return decoct.models.LogisticRegression(), decoct.rows(sparse())
    return model_for(name), decoct.rows(data.paper_set(name))


def logistic(n: int, d: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return normal columns and a constant; the linear predictor has a variance of about 4."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(n, d - 1)), np.ones(n)])
    beta = np.random.default_rng(d).normal(size=d) * np.sqrt(4.0 / d)
    return {"x": x, "y": (rng.random(n) < 1.0 / (1.0 + np.exp(-x @ beta))).astype(np.int64)}


def sparse(n: int = 30_000, d: int = 120) -> dict[str, np.ndarray]:
    """Return 0/1 columns that are 1 in half of the rows down to a hundredth, and a constant."""
    rng = np.random.default_rng(0)
    share = np.geomspace(0.5, 0.01, d - 1)
    x = np.column_stack([rng.random((n, d - 1)) < share, np.ones(n)]).astype(float)
    beta = np.concatenate([rng.normal(size=d - 1), [-1.0]])
    return {"x": x, "y": (rng.random(n) < 1.0 / (1.0 + np.exp(-x @ beta))).astype(np.int64)}


def wide_rows(n: int = 1_000_000, d: int = 1000, piece: int = 20_000) -> decoct.data.Rows:
    """Return the rows of a Parquet file of 4 GB, which is written the first time."""
    file = Path(tempfile.gettempdir()) / f"decoct-{n}-{d}.parquet"
    if not file.exists():
        part = file.with_suffix(".part")
        schema = pa.schema([("x", pa.list_(pa.float32(), d)), ("y", pa.int8())])
        with pq.ParquetWriter(part, schema, compression="none") as writer:
            for seed in range(n // piece):
                rows = logistic(piece, d, seed)
                x = pa.array(rows["x"].astype(np.float32).ravel())
                columns = [pa.FixedSizeListArray.from_arrays(x, d), rows["y"].astype(np.int8)]
                writer.write_table(pa.table(columns, schema=schema), row_group_size=piece)
        part.rename(file)
    return decoct.rows(file)


def results_of(name: str, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield one line per size, with a site and without."""
    model, rows = problem(name)
    sizes = list(TO_REACH[name])
    draws = 4000 if rows.n_rows < 50_000 else 1000
    dim = Potentials(model, encoded(rows, model)).dim
    hopeless = max(sizes) <= 0.1 * dim * (dim + 3) / 2
    for site in (True,) if hopeless else (True, False):
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
    parser.add_argument("--output", type=Path, default=RESULTS / "quality.csv")
    options = parser.parse_args()
    results = read_csv(options.output)
    for name in options.sets:
        results = [one for one in results if one["set"] != name]
        for one in results_of(name, options.seeds):
            kind = "site" if one["site"] else "rows"
            print(
                f"{name:14s} {kind} {one['size']:4d} ({one['rows']} rows): {one['kl_median']:.1e} "
                f"± {one['kl_se']:.0e} nats, to reach {one['to_reach']:.1e}",
                flush=True,
            )
            results.append(one)
        write_csv(options.output, sorted(results, key=lambda one: list(TO_REACH).index(one["set"])))


if __name__ == "__main__":
    main()
