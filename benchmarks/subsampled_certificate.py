"""Certificates from a sample of rows beside exact ones.

``python -m benchmarks.subsampled_certificate``, with names of problems for some of them only.
Twenty tables of 150,000 rows with something planted: rare and separated levels, rows of high
leverage, outliers times 1,000, modes without draws, heavy tails; and coresets made bad afterwards:
wrong weights, rows dropped, a wrong site. `decoct.check` judges the same 1,000 NUTS draws twice,
with ``exact=False`` and ``exact=True``. Tables and builds have seed 0, draws 1, checks 0, 1 and 2
(``--seeds``).

A line has both verdicts: KL in nats with its 95 % interval, k-hat, whether the draws can be used,
seconds; ``evaluated`` is the rows that the first one evaluated at the draws, N where it fell back
to all. The program ends with an error where the first one is content and the exact one is not.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import expit

import decoct
from benchmarks.tables import RESULTS, write_csv
from decoct.constructions import Construction, IteratedHilbert, Uniform
from decoct.coreset import Coreset
from decoct.models.base import AbstractModel
from decoct.models.site import GaussianSite

N = 150_000
SITE = IteratedHilbert(site=True)
ROWS = IteratedHilbert(site=False)


def logistic(rng: np.random.Generator, x: np.ndarray, scale: float = 0.5) -> dict[str, np.ndarray]:
    x = np.column_stack([x, np.ones(len(x))])
    beta = scale * rng.normal(size=x.shape[1])
    return {"x": x, "y": (rng.random(len(x)) < expit(x @ beta)).astype(int)}


def plain(dim: int = 8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return logistic(rng, rng.normal(size=(N, dim)))


def rare_levels(sizes: tuple[int, ...], separated: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    """Standardised columns of levels with few rows, some of them with one label only."""
    rng = np.random.default_rng(0)
    level = np.full(N, -1)
    level[: sum(sizes)] = np.repeat(np.arange(len(sizes)), sizes)
    level = rng.permutation(level)
    columns = (level[:, None] == np.arange(len(sizes))).astype(float)
    columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    rows = logistic(rng, np.column_stack([rng.normal(size=(N, 4)), columns]), 0.3)
    for one in separated:
        rows["y"][level == one] = 1
    return rows


def leverage(count: int, factor: float, contradict: bool) -> dict[str, np.ndarray]:
    """A few rows with covariates ``factor`` times as large, with the wrong label or not."""
    rows = plain()
    chosen = np.random.default_rng(1).choice(N, count, replace=False)
    rows["x"][chosen, :-1] *= factor
    if contradict:
        rows["y"][chosen] = 1 - rows["y"][chosen]
    return rows


def counts(outliers: int) -> dict[str, np.ndarray]:
    """Poisson counts, of which a few are 1,000 times as large."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(N, 5)), np.ones(N)])
    y = rng.poisson(np.exp(x @ np.array([0.2, -0.1, 0.1, 0.0, 0.1, 0.5])))
    y[rng.choice(N, outliers, replace=False)] = 1000 * 2
    return {"x": x, "y": y}


def heavy_tails(outliers: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(N, 3)), np.ones(N)])
    y = x @ np.array([1.0, -0.5, 0.25, 2.0]) + rng.standard_t(2.0, size=N)
    y[rng.choice(N, outliers, replace=False)] *= 1e3
    return {"x": x, "y": y}


def student(scale: float = 1.0) -> decoct.Model:
    """Regression with Student-t noise of 4 degrees of freedom and unknown scale."""

    def log_likelihood(params, rows):
        z = (rows["y"] - rows["x"] @ params["beta"]) * jnp.exp(-params["log_scale"])
        return -2.5 * jnp.log1p(z**2 / 4.0) - params["log_scale"]

    def log_prior(params):
        return -0.5 * (jnp.sum((params["beta"] / scale) ** 2) + params["log_scale"] ** 2)

    return decoct.Model(log_likelihood, log_prior, {"beta": np.zeros(4), "log_scale": 0.0})


def two_means() -> decoct.Model:
    """A mixture of two normals whose labels can be swapped."""

    def log_likelihood(params, rows):
        first, second = (-0.5 * (rows["y"] - params["mu"][k]) ** 2 for k in (0, 1))
        return jnp.logaddexp(first, second)

    def log_prior(params):
        return -0.5 * jnp.sum((params["mu"] / 3.0) ** 2)

    return decoct.Model(log_likelihood, log_prior, {"mu": np.array([-1.0, 1.0])})


def signed() -> decoct.Model:
    """A coefficient that enters as its square, but for one row that knows its sign."""

    def log_likelihood(params, rows):
        a, b = params["a"], params["b"]
        fit = (a * rows["x"]) ** 2 + b
        sign = jnp.where(rows["knows"] > 0, 3.0 * jnp.tanh(a), 0.0)
        return -0.5 * (rows["y"] - fit) ** 2 + sign

    def log_prior(params):
        return -0.5 * params["a"] ** 2 - 0.5 * params["b"] ** 2

    return decoct.Model(log_likelihood, log_prior, {"a": -1.0, "b": 0.0})


def mixture_rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"y": rng.normal(size=N) + np.where(rng.random(N) < 0.5, -1.5, 1.5)}


def signed_rows() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=N)
    y = (1.3 * x) ** 2 + 0.5 + rng.normal(size=N)
    return {"x": x, "y": y, "knows": (np.arange(N) == 777).astype(float)}


def barely_seen() -> decoct.Model:
    """Logistic regression, and one row with a large potential in one draw of a hundred."""

    def log_likelihood(params, rows):
        eta = rows["x"] @ params["beta"]
        bump = 8.0 * jnp.exp(-0.5 * ((params["beta"][0] - rows["at"]) / 0.002) ** 2)
        plain = -jnp.logaddexp(0.0, jnp.where(rows["y"] > 0, -eta, eta))
        return plain + jnp.where(rows["at"] > -1e3, bump, 0.0)

    def log_prior(params):
        return -0.5 * jnp.sum(params["beta"] ** 2)

    return decoct.Model(log_likelihood, log_prior, {"beta": np.zeros(9)})


def barely_seen_rows() -> dict[str, np.ndarray]:
    rows = plain()
    fit = decoct.laplace(decoct.models.LogisticRegression(), rows)
    rows["at"] = np.full(N, -1e6)
    rows["at"][4321] = fit.mean[0] + 2.2 * np.sqrt(fit.cov[0, 0])
    return rows


LOGISTIC = decoct.models.LogisticRegression()
POISSON = decoct.models.PoissonRegression()


def built(
    model: AbstractModel, rows: dict[str, np.ndarray], size: int, method: Construction = SITE
) -> tuple[Coreset, dict[str, np.ndarray]]:
    return decoct.build(model, rows, size=size, method=method, seed=0, progress=False), rows


def changed(found, **fields):
    coreset, rows = found
    return replace(coreset, **{name: change(coreset) for name, change in fields.items()}), rows


def without(found, count: int):
    """Drop the rows of largest weight."""
    coreset, rows = found
    kept = np.sort(np.argsort(-coreset.weights)[count:])
    taken = {name: column[kept] for name, column in coreset.rows.items()}
    indices, weights = coreset.indices[kept], coreset.weights[kept]
    return replace(coreset, indices=indices, weights=weights, rows=taken), rows


def site_times(
    linear: float, precision: float, shift: float = 0.0
) -> Callable[[Any], GaussianSite]:
    """Return a site with other terms; ``shift`` moves it by posterior standard deviations."""

    def change(coreset) -> GaussianSite:
        one = coreset.site
        sd = 1.0 / np.sqrt(np.diag(one.precision))
        centre = one.centre + shift * sd
        return GaussianSite(centre, linear * one.linear, precision * one.precision, one.constant)

    return change


PROBLEMS: dict[str, Callable[[], tuple[Any, dict[str, np.ndarray]]]] = {
    "plain, site alone": lambda: built(LOGISTIC, plain(), 0),
    "plain, 100 rows, no site": lambda: built(LOGISTIC, plain(), 100, ROWS),
    "levels of 1 to 50 rows, site alone": lambda: built(
        LOGISTIC, rare_levels((1, 1, 2, 3, 5, 8, 20, 50)), 0
    ),
    "levels of 1 to 50 rows, 40 rows": lambda: built(
        LOGISTIC, rare_levels((1, 1, 2, 3, 5, 8, 20, 50)), 40
    ),
    "separated levels, 30 rows": lambda: built(
        LOGISTIC, rare_levels((2, 10, 40, 200), separated=(0, 1, 2)), 30
    ),
    "levels of 200 rows, site alone": lambda: built(
        LOGISTIC, rare_levels((200, 300, 500), separated=()), 0
    ),
    "5 rows of leverage × 30": lambda: built(LOGISTIC, leverage(5, 30.0, False), 10),
    "1 row of leverage × 1000, wrong label": lambda: built(LOGISTIC, leverage(1, 1e3, True), 10),
    "20 rows of leverage × 30, wrong labels, site alone": lambda: built(
        LOGISTIC, leverage(20, 30.0, True), 0
    ),
    "counts, 3 outliers × 1000": lambda: built(POISSON, counts(3), 10),
    "heavy tails, outliers × 1000, site alone": lambda: built(student(), heavy_tails(10), 0),
    "heavy tails, 60 rows, no site": lambda: built(student(), heavy_tails(10), 60, ROWS),
    "mode without draws: swapped means": lambda: built(two_means(), mixture_rows(), 20, ROWS),
    "mode without draws: one row knows": lambda: built(signed(), signed_rows(), 20, ROWS),
    "one row seen in few draws": lambda: built(barely_seen(), barely_seen_rows(), 10),
    "wrong weights": lambda: changed(
        built(LOGISTIC, plain(), 10), weights=lambda one: 3.0 * one.weights
    ),
    "rows dropped": lambda: without(built(LOGISTIC, plain(), 60, ROWS), 5),
    "site moved by 0.3 sd": lambda: changed(
        built(LOGISTIC, plain(), 0), site=site_times(1.0, 1.0, 0.3)
    ),
    "site of half the precision": lambda: changed(
        built(LOGISTIC, plain(), 0), site=site_times(1.0, 0.5)
    ),
    "500 uniform rows": lambda: built(LOGISTIC, plain(), 500, Uniform()),
}


def judged(coreset, rows, draws, seed: int, exact: bool) -> tuple[Any, float]:
    started = time.perf_counter()
    found = decoct.check(coreset, rows, draws, seed=seed, exact=exact, progress=False)
    return found, time.perf_counter() - started


def measured(name: str, seeds: int) -> list[dict[str, Any]]:
    """Certify one problem's coreset, by default with several seeds, and once exactly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coreset, rows = PROBLEMS[name]()
        draws = coreset.sample(draws=250, chains=4, warmup=300, seed=1, progress=False)
        judged(coreset, rows, draws, 0, exact=True)  # compiles
        exact, exact_seconds = judged(coreset, rows, draws, 0, exact=True)
        judged(coreset, rows, draws, 0, exact=False)
        lines = []
        for seed in range(seeds):
            found, seconds = judged(coreset, rows, draws, seed, exact=False)
            line: dict[str, Any] = {"problem": name, "dim": coreset.dim, "size": coreset.size}
            line |= {"seed": seed, "evaluated": found.sampled_rows}
            for prefix, one in (("", found), ("exact_", exact)):
                low, high = one.kl_interval
                line |= {f"{prefix}kl": one.kl, f"{prefix}low": low, f"{prefix}high": high}
                line |= {f"{prefix}khat": one.khat, f"{prefix}grade": one.grade.value}
            lines.append(line | {"seconds": seconds, "exact_seconds": exact_seconds})
            lines[-1]["wrongly_content"] = found.ok and not exact.ok
    return lines


def show(results: list[dict[str, Any]]) -> None:
    table = Table(title=f"Certificates of coresets of {N:,} rows, by a sample and by all")
    shown = ("problem", "evaluated", "kl", "exact_kl", "khat", "exact_khat", "grade", "exact_grade")
    for name in (*shown, "seconds", "exact_seconds"):
        table.add_column(name)
    for one in results:
        cells = (one[name] for name in (*shown, "seconds", "exact_seconds"))
        table.add_row(*(f"{v:.2g}" if isinstance(v, float) else str(v) for v in cells))
    Console(width=180).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), help=", ".join(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    results = []
    for name in options.problems:
        results += measured(name, options.seeds)
        print(name, file=sys.stderr, flush=True)
        write_csv(RESULTS / "subsampled_certificate.csv", results)
    show(results)
    wrong = [one["problem"] for one in results if one["wrongly_content"]]
    if wrong:
        sys.exit(f"Content where the exact certificate is not: {', '.join(wrong)}.")


if __name__ == "__main__":
    main()
