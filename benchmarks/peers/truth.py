"""The truth: long NUTS on all rows, kept in a folder that git ignores.

NumPyro's NUTS runs in coordinates in which a pilot is standard normal: the Laplace approximation,
or where that says little, for multilevel posteriors and the horseshoe's, the normal distribution
with the moments of decoct's draws. NUTS leaves the posterior of all rows invariant whatever the
coordinates are. Means and covariances are improved by control variates made of the scores
s = ∇ log π at the draws, which have E s = 0 and E z_i s_j = −δ_ij under π whatever π is (Mira,
Solgi & Imparato 2013). What is left of the Monte Carlo error is taken to be the difference between
the two chains, divided by two.

``python -m benchmarks.peers.truth`` says how far the means of the diamonds are from those that
posteriordb publishes, and how many draws of each posterior ended a divergent path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS
from scipy.stats import wasserstein_distance

import decoct
from benchmarks.peers.cells import HEADINGS
from benchmarks.peers.posteriors import Problem
from benchmarks.tables import RESULTS
from decoct.stats.divergences import Gaussian, kl_gaussian

CHAINS = 2


class Effort(NamedTuple):
    """Steps of a chain, whether it adapts a mass matrix, what makes the pilot, and the target."""

    warmup: int = 1000
    draws: int = 6000
    adapts: bool = True
    pilot: str = "laplace"
    target: float = 0.8


EFFORTS = {
    "flights": Effort(150, 1000, False),
    "airports": Effort(150, 3000, False, "decoct"),
    "horseshoe": Effort(1000, 10_000, True, "none", 0.95),
    "election88": Effort(300, 2500, False, "decoct", 0.97),
}
"""Where steps are expensive."""

A_PARAMETER = 10
"""Draws a parameter from which on a regression on all scores is stable; with fewer, the mean of a
parameter has one control: its part of the pilot's covariance times the score, which of a normal
distribution is all of the error."""

PUBLISHED = """
6.659915 6.363226 -4.683738 1.446798 0.1343596 -0.04020570 0.02280763 0.001955594 -0.4448541
-0.09265366 -0.01257998 0.01072972 -0.001372562 0.0007438760 0.9010475 -0.2209063 0.1311297
-0.05778176 0.01817816 -0.002180004 0.03172978 -6.107583 4.626144 -1.440781 7.787996"""
"""posteriordb's means of the diamonds' coefficients and intercept (diamonds-diamonds)."""


class Truth(NamedTuple):
    """Moments of the full posterior and draws from it.

    Attributes
    ----------
    gaussian
        Mean and covariance.
    draws : (S, d)
    floors
        Figure -> what Monte Carlo error alone makes of it.
    """

    gaussian: Gaussian
    draws: np.ndarray
    floors: dict[str, float]


def chain_file(cache: Path, name: str, chain: int) -> Path:
    """Return where a chain is kept."""
    return cache / f"{name}_{chain}.npz"


def run_chain(problem: Problem, chain: int, cache: Path, effort: Effort | None = None) -> None:
    """Run one chain and write its draws and scores."""
    effort = effort or EFFORTS.get(problem.name, Effort())
    pilot = _pilot(problem, effort)
    factor, mean = jnp.asarray(np.linalg.cholesky(pilot.cov)), jnp.asarray(pilot.mean)
    kernel = NUTS(
        potential_fn=lambda u: -problem.log_density(mean + factor @ u),
        dense_mass=effort.adapts and effort.pilot != "none",
        adapt_mass_matrix=effort.adapts,
        target_accept_prob=effort.target,
    )
    steps = {"num_warmup": effort.warmup, "num_samples": effort.draws}
    mcmc = MCMC(kernel, **steps, progress_bar=False)
    key = jax.random.key(1000 + chain)
    start = jax.random.normal(jax.random.fold_in(key, 1), (problem.dim,))
    mcmc.run(key, init_params=start, extra_fields=("z_grad", "num_steps", "diverging"))
    extra = {k: np.asarray(v) for k, v in mcmc.get_extra_fields().items()}
    z = np.asarray(mean + mcmc.get_samples() @ factor.T)
    scores = np.linalg.solve(np.asarray(factor).T, -extra["z_grad"].T).T
    part = chain_file(cache, problem.name, chain).with_suffix(".part.npz")
    kept = {"steps": extra["num_steps"], "diverging": extra["diverging"]}
    np.savez(part, z=z, scores=scores, newton=scores @ pilot.cov, **kept)
    part.rename(chain_file(cache, problem.name, chain))


def _pilot(problem: Problem, effort: Effort) -> Gaussian:
    """Return the normal distribution in whose coordinates chains run."""
    if effort.pilot == "none":
        return Gaussian(problem.start, np.eye(problem.dim))
    if effort.pilot == "laplace":
        return problem.find_mode()[0]
    coreset = decoct.build(problem.bridge, problem.bridge.rows, size=10, seed=0)
    drawn = coreset.sample(1000, 4, seed=0)["unconstrained_posterior"]["z"].to_numpy()
    z = drawn.reshape(-1, problem.dim)
    return Gaussian(z.mean(axis=0), np.cov(z, rowvar=False))


def load_truth(cache: Path, name: str) -> Truth:
    """Return the truth of all chains together."""
    chains = []
    for chain in range(CHAINS):
        with np.load(chain_file(cache, name, chain)) as file:
            chains.append((file["z"], file["scores"], file["newton"]))
    halves = [moments(*one) for one in chains]
    z, scores, newton = (np.concatenate(parts) for parts in zip(*chains, strict=True))
    gaussian = moments(z, scores, newton)
    one = figures_of(halves[0], chains[0][0], None, halves[1], chains[1][0])
    floors = {k: v / (4.0 if k == "kl" else 2.0) for k, v in one.items()}
    return Truth(gaussian, z, floors)


def moments(z: np.ndarray, scores: np.ndarray, newton: np.ndarray) -> Gaussian:
    """Return mean and covariance of draws, with the scores as control variates.

    ``newton`` is scores times a covariance Σ that was not made of these draws: about −δ, δ = z − μ,
    near a normal distribution. Whatever the distribution is, E δ_i newton_j = −Σ_ij, so that
    k_ij = ½(δ_i newton_j + δ_j newton_i) + Σ_ij has mean 0. A covariance is the mean of δ_i δ_j
    plus that of √(b_i b_j) k_ij, −b_i the coefficient of k_ii in a regression of δ_i².
    """
    n, dim = z.shape
    sigma = np.linalg.lstsq(scores, newton, rcond=None)[0]
    if n < A_PARAMETER * dim:
        mean = np.array([_controlled(z[:, i], newton[:, [i]])[0] for i in range(dim)])
    else:
        mean = _controlled(z, scores)[0]
    delta = z - mean
    products = delta.T @ newton / n
    control = 0.5 * (products + products.T) + sigma
    own = [_controlled(delta[:, i] ** 2, (delta * newton)[:, [i]])[1] for i in range(dim)]
    root = np.sqrt(np.maximum(0.0, -np.array(own)))
    return Gaussian(mean, delta.T @ delta / n + np.outer(root, root) * control)


def _controlled(values: np.ndarray, controls: np.ndarray) -> np.ndarray:
    """Return intercept and coefficients of the regression of values on controls."""
    scale = controls.std(axis=0)
    design = np.column_stack([np.ones(len(controls)), controls / scale])
    found = np.linalg.lstsq(design, values, rcond=None)[0]
    return np.concatenate([found[:1], (found[1:].T / scale).T])


def figures(z: np.ndarray, weights: np.ndarray | None, truth: Truth) -> dict[str, Any]:
    """Return errors of draws against the truth; see `figures_of`."""
    weights = np.full(len(z), 1.0 / len(z)) if weights is None else weights / weights.sum()
    mean = weights @ z
    cov = np.atleast_2d(np.cov(z, rowvar=False, aweights=weights, ddof=0))
    return figures_of(Gaussian(mean, cov), z, weights, truth.gaussian, truth.draws)


def figures_of(
    found: Gaussian,
    z: np.ndarray,
    weights: np.ndarray | None,
    truth: Gaussian,
    draws: np.ndarray,
) -> dict[str, Any]:
    """Return errors: means in posterior sd, sds relative, W₁ in sd, KL of Gaussians in nats.

    The KL is NaN where one of the covariances is not positive definite.
    """
    shift = np.abs(found.mean - truth.mean) / truth.sd
    ratio = np.abs(found.sd / truth.sd - 1.0)
    scaled = [(values - truth.mean) / truth.sd for values in (z, draws)]
    distances = [
        wasserstein_distance(one, other, u_weights=weights)
        for one, other in zip(*(values.T for values in scaled), strict=True)
    ]
    try:
        kl = kl_gaussian(found, truth)
    except np.linalg.LinAlgError:  # too few different draws for so many parameters
        kl = np.nan
    return {
        "mean_rms": float(np.sqrt(np.mean(shift**2))),
        "mean_worst": float(shift.max()),
        "sd_rms": float(np.sqrt(np.mean(ratio**2))),
        "sd_worst": float(ratio.max()),
        "w1_worst": float(np.max(distances)),
        "kl": kl,
    }


def main() -> None:
    cache = RESULTS / "peers_truth"
    truth = load_truth(cache, "diamonds")
    mean, sd = truth.gaussian.mean[:-1], truth.gaussian.sd[:-1]
    off = np.abs((mean - np.array(PUBLISHED.split(), float)) / sd).max()
    print(f"diamonds: largest difference from posteriordb's means {off:.2g} sd")
    for name in HEADINGS:
        files = [np.load(chain_file(cache, name, chain)) for chain in range(CHAINS)]
        diverging = np.concatenate([file["diverging"] for file in files])
        print(f"{name}: {diverging.sum()} of {len(diverging)} draws divergent")


if __name__ == "__main__":
    main()
