"""Multi-path Pathfinder (Zhang, Carpenter, Gelman & Vehtari 2022) through BlackJAX.

From each of several starts L-BFGS maximises log π_w; along the way its inverse Hessians make
Gaussians N(z_l + H_l g_l, H_l), and the one with the largest evidence bound E_q[log π_w − log q] is
kept (their Algorithm 1). The paths are combined by Pareto-smoothed importance resampling (their
Algorithm 2), here against the even mixture of the paths' Gaussians rather than each against its
own: a poor path then wastes candidates but does not distort the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from decoct.errors import ModelError
from decoct.runtime.checks import check_whole
from decoct.runtime.precision import compile_quickly, float64
from decoct.runtime.randomness import host_rng
from decoct.samplers.base import Draws, Sampler, WeightedDensity, log_densities
from decoct.stats.chains import smoothed_log_weights
from decoct.stats.divergences import Gaussian

SPREAD = 2.0
"""Paths start uniformly within this distance of the model's init, in every coordinate."""

LINE_SEARCH_STEPS = 30
"""Most trial points of one L-BFGS step; more are needed only because of round-off."""

FEWEST_CANDIDATES = 1000
"""Candidates at least, however few draws are asked for: k-hat needs a tail."""


@dataclass(frozen=True)
class Pathfinder(Sampler):
    """Independent draws from the best Gaussians along L-BFGS paths, importance-resampled.

    Attributes
    ----------
    paths
        Number of L-BFGS paths, each from a start of its own.
    max_iterations
        Most L-BFGS steps of a path.
    history
        Past steps the inverse Hessian is built from; no less than the dimension makes it dense.
    elbo_draws
        Draws that the evidence bound of each Gaussian is estimated from.
    oversampling
        Candidates per draw asked for. Draws are resampled from them with replacement: about one
        in 2 × ``oversampling`` is a repetition where the Gaussians fit well.

    Raises
    ------
    RequestError
        A number is below 1.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=5)
    >>> sampler = decoct.samplers.Pathfinder()
    >>> coreset.sample(draws=50, chains=1, sampler=sampler)["posterior"]["mean"].shape
    (1, 50, 2)
    """

    paths: int = 4
    max_iterations: int = 100
    history: int = 10
    elbo_draws: int = 100
    oversampling: int = 10

    def __post_init__(self) -> None:
        check_whole(self, paths=1, max_iterations=1, history=1, elbo_draws=1, oversampling=1)

    @float64
    def draw(self, key: jax.Array, density: WeightedDensity, n: int) -> Draws:
        """Return n independent draws from π_w.

        Returns
        -------
        Draws
            ``info`` has ``khat``, of the candidates against π_w before they are resampled: above
            0.7 the draws are no nearer to π_w than the Gaussians are; ``paths``, how many paths
            found a Gaussian; and ``elbo``, the largest of their evidence bounds, in nats.

        Raises
        ------
        ModelError
            No path found a Gaussian.
        """
        path_key, draw_key = jax.random.split(key)
        rng = host_rng(draw_key)
        gaussians = self._gaussians(path_key, density, rng)
        each = -(-max(self.oversampling * n, FEWEST_CANDIDATES) // len(gaussians))
        candidates = np.concatenate([gaussian.sample(rng, each) for gaussian in gaussians])
        log_target = log_densities(density, candidates)
        _check_candidates(log_target)
        log_proposals = np.stack([gaussian.log_density(candidates) for gaussian in gaussians])
        log_mixture = np.asarray(logsumexp(log_proposals, axis=0)) - np.log(len(gaussians))
        log_weights, khat = smoothed_log_weights(log_target - log_mixture)
        weights = np.exp(log_weights - logsumexp(log_weights))
        chosen = rng.choice(len(candidates), size=n, p=weights)
        bounds = [
            float((log_target - log_proposals[p])[p * each : (p + 1) * each].mean())
            for p in range(len(gaussians))
        ]
        info = {"khat": khat, "paths": len(gaussians), "elbo": max(bounds)}
        return Draws(candidates[chosen][None], "pathfinder", info)

    def _gaussians(
        self, key: jax.Array, density: WeightedDensity, rng: np.random.Generator
    ) -> list[Gaussian]:
        """Return the best Gaussian of every path that has one."""
        offsets = rng.uniform(-SPREAD, SPREAD, (self.paths, density.dim))
        found = _paths(
            density,
            jax.random.split(key, self.paths),
            jnp.asarray(density.start + offsets),
            self.elbo_draws,
            self.max_iterations,
            self.history,
        )
        means, covs, elbos = map(np.asarray, found)
        usable = [p for p in range(self.paths) if np.isfinite(elbos[p]) and _is_spd(covs[p])]
        if not usable:
            raise ModelError(
                "None of Pathfinder's paths found a Gaussian; the log density may be unbounded, "
                "not smooth or not finite around the model's init: use NUTS, or start elsewhere."
            )
        return [Gaussian(means[p], covs[p]) for p in usable]


def _check_candidates(log_target: Float[np.ndarray, " n"]) -> None:
    bad = np.isnan(log_target) | (log_target == np.inf)
    if bad.any():
        raise ModelError(
            f"The log density is NaN or +inf at {bad.sum()} of Pathfinder's {len(bad)} candidates; "
            "fix the model or the prior: decoct does not drop them."
        )
    if not np.isfinite(log_target).any():
        raise ModelError(
            "The log density is -inf at all of Pathfinder's candidates; use NUTS, or start "
            "elsewhere (init)."
        )


def _is_spd(cov: np.ndarray) -> bool:
    try:
        np.linalg.cholesky(cov)
    except np.linalg.LinAlgError:
        return False
    return bool(np.isfinite(cov).all())


@compile_quickly
def _paths(density, keys, starts, elbo_draws, max_iterations, history):
    """Mean, covariance and evidence bound of every path's best Gaussian."""
    import blackjax  # here, because importing it puts arrays on a device
    from blackjax.optimizers.lbfgs import lbfgs_inverse_hessian_formula_1

    pathfinder: Any = blackjax.vi.pathfinder

    def one(key, start):
        # BlackJAX promotes ranks, also where a user forbids it
        with jax.numpy_rank_promotion("allow"):
            state, _ = pathfinder.approximate(
                key,
                density.log_density,
                start,
                elbo_draws,
                maxiter=max_iterations,
                maxcor=history,
                maxls=LINE_SEARCH_STEPS,
                ftol=1e-10,
            )
        cov = lbfgs_inverse_hessian_formula_1(state.alpha, state.beta, state.gamma)
        # BlackJAX keeps the gradient of −log π_w, so that the Newton step goes against it
        return state.position - cov @ state.grad_position, 0.5 * (cov + cov.T), state.elbo

    # not vmap, under which every path takes as long as the slowest
    return jax.lax.map(lambda path: one(*path), (keys, starts))
