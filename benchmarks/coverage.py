"""How often the certificate's 95 % interval holds the truth: ``python -m benchmarks.coverage``.

Problems whose KL(π_w‖π) is known, each with 200 seeds of the draws, 4 chains of 250:

- ``gaussian``: two Gaussians of 40 dimensions, closed form; autoregressive chains (ρ = 0.5);
- ``gamma``: a Poisson rate, π_w = Gamma(20, 10) and π = Gamma(16, 7.5), closed form;
  autoregressive chains (ρ = 0.7) taken through the quantile function;
- ``build``, ``rough_build``: a logistic regression with two coefficients on 1,000 rows, 4 of them
  kept by `decoct.build`, or up to 30 by GIGA, sampled with NUTS and certified by `decoct.check`;
  KL by quadrature.

A line has the share of intervals that hold the truth, and of those that lie above and below it.
The aim is 90 to 99 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats
from scipy.special import gammaln, psi

import decoct
from benchmarks import data
from benchmarks.tables import RESULTS, write_csv
from decoct.constructions import Construction, Hilbert, IteratedHilbert
from decoct.data import encoded
from decoct.passes.potentials import Potentials
from decoct.samplers.base import log_densities
from decoct.solvers import GIGA
from decoct.stats import Gaussian, kl_gaussian
from decoct.stats.verdict import judge

CHAINS, DRAWS = 4, 250


class Problem(NamedTuple):
    """KL(π_w‖π) in nats, and the certificate's (k-hat, low, high) for one seed."""

    truth: float
    interval: Callable[[int], tuple[float, float, float]]


def chains(seed: int, dim: int, rho: float) -> np.ndarray:
    """Return stationary autoregressive chains of standard normals (chains, draws, dim)."""
    noise = np.random.default_rng(seed).normal(size=(CHAINS, DRAWS, dim))
    z = noise.copy()
    for t in range(1, DRAWS):
        z[:, t] = rho * z[:, t - 1] + np.sqrt(1.0 - rho**2) * noise[:, t]
    return z


def judged(log_ratios: np.ndarray) -> tuple[float, float, float]:
    found = judge(log_ratios)
    return found.khat, found.kl.reverse_low, found.kl.reverse_high


def gaussian() -> Problem:
    dim, rng = 40, np.random.default_rng(0)
    p = Gaussian(np.zeros(dim), np.eye(dim))
    q = Gaussian(0.03 * rng.normal(size=dim), np.diag(np.exp(0.06 * rng.normal(size=dim))))

    def interval(seed: int) -> tuple[float, float, float]:
        flat = chains(seed, dim, 0.5).reshape(-1, dim)
        return judged((q.log_density(flat) - p.log_density(flat)).reshape(CHAINS, DRAWS))

    return Problem(kl_gaussian(p, q), interval)


def gamma() -> Problem:
    (a, b), (c, d) = (20.0, 10.0), (16.0, 7.5)
    truth = (a - c) * psi(a) - gammaln(a) + gammaln(c) + c * np.log(b / d) + a * (d - b) / b

    def interval(seed: int) -> tuple[float, float, float]:
        uniform = stats.norm.cdf(chains(seed, 1, 0.7)[..., 0])
        theta = stats.gamma.ppf(uniform, a, scale=1.0 / b)
        return judged((c - a) * np.log(theta) - (d - b) * theta)

    return Problem(float(truth), interval)


def built(size: int, method: Construction) -> Problem:
    table = data.logistic(1000, 2)
    model = decoct.models.LogisticRegression()
    coreset = decoct.build(model, table, size=size, method=method, seed=0)
    fit = coreset.laplace()
    axis = np.linspace(-9.0, 9.0, 181)
    units = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    z = fit.mean + units @ np.linalg.cholesky(fit.cov).T
    potentials = Potentials(model, encoded(decoct.rows(table), model))
    log_p = log_densities(coreset.density, z)
    log_q = potentials.totals(z) + potentials.log_prior(z)
    log_p, log_q = (one - np.logaddexp.reduce(one) for one in (log_p, log_q))
    truth = float(np.exp(log_p) @ (log_p - log_q))

    def interval(seed: int) -> tuple[float, float, float]:
        draws = coreset.sample(DRAWS, CHAINS, seed=seed, warmup=300, progress=False)
        check = decoct.check(coreset, table, draws, progress=False)
        return check.khat, *check.kl_interval

    return Problem(truth, interval)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "gaussian": gaussian,
    "gamma": gamma,
    "build": lambda: built(4, IteratedHilbert()),
    "rough_build": lambda: built(30, Hilbert(GIGA())),
}


def measured(name: str, seeds: int) -> dict[str, Any]:
    """Count the intervals of a problem that hold the truth."""
    problem = PROBLEMS[name]()
    found = np.array([problem.interval(seed) for seed in range(seeds)])
    khat, low, high = found.T
    return {
        "problem": name,
        "kl": problem.truth,
        "seeds": seeds,
        "median_khat": float(np.median(khat)),
        "coverage": float(((low <= problem.truth) & (problem.truth <= high)).mean()),
        "above": float((low > problem.truth).mean()),
        "below": float((high < problem.truth).mean()),
    }


def show(results: list[dict[str, Any]]) -> None:
    table = Table(title="95 % intervals of the certificate that hold the truth")
    for name in results[0]:
        table.add_column(name, justify="right")
    for one in results:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in one.values()))
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), help=", ".join(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=200)
    options = parser.parse_args()
    results = [measured(name, options.seeds) for name in options.problems]
    write_csv(RESULTS / "coverage.csv", results)
    show(results)


if __name__ == "__main__":
    main()
