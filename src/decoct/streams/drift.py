"""How far a posterior lies from where rows were compressed.

A site and the weights beside it are right where the rows were expanded. What they leave there is of
third order and grows with the distance, which is counted in sd of the posterior of that time.
"""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Float

from decoct.samplers.base import Sampler, WeightedDensity
from decoct.stats.divergences import Gaussian

DRIFTED = 5.0
"""Posterior sd, by `distance`, above which no KL is predicted."""

DRAWS = 400
"""Fewest draws that say where a posterior lies."""

DRAWS_PER_PARAMETER = 20
"""Draws for the smallest sd along any axis to come out no more than a fifth too small."""

MOST_DRAWS = 2000
"""Draws above which axes are not worth their memory: of more than a hundred parameters."""

SMALLEST = 1e-12
"""Least variance along a principal axis of the correlations."""


def locate(
    key: jax.Array,
    density: WeightedDensity,
    sampler: Sampler,
    like: Float[np.ndarray, " d"] | None = None,
) -> Gaussian:
    """Return where draws of a posterior lie.

    Exchangeable components are in the order of those of ``like``, if it is given.
    """
    n = min(MOST_DRAWS, max(DRAWS, DRAWS_PER_PARAMETER * density.dim))
    z = sampler.draw(key, density, n).flat
    return moments(z if like is None else density.model.relabelled(z, like))


def moments(draws: Float[np.ndarray, "S d"]) -> Gaussian:
    """Return where draws lie; as if coordinates were independent, if the draws are too few."""
    mean, (n, dim) = draws.mean(axis=0), draws.shape
    if n < DRAWS_PER_PARAMETER * dim:
        return Gaussian(mean, np.diag(draws.var(axis=0)))
    return Gaussian(mean, np.atleast_2d(np.cov(draws.T)))


def distance(place: Gaussian, mean: Float[np.ndarray, " d"]) -> float:
    """Return by how many sd a mean lies away, in the coordinate or principal axis where it is most.

    The axes are those of the correlations. They see what no coordinate does: along two collinear
    columns each coefficient is uncertain, and their sum is not. Infinite where the place is none: a
    mean or variance that is not finite, or no spread at all.
    """
    moved = mean - place.mean
    if not (np.isfinite(moved).all() and np.isfinite(place.cov).all() and (place.sd > 0.0).all()):
        return np.inf
    scaled = moved / place.sd
    variances, axes = np.linalg.eigh(place.cov / np.outer(place.sd, place.sd))
    along = scaled @ axes / np.sqrt(np.maximum(variances, SMALLEST))
    return float(np.abs([scaled, along]).max(initial=0.0))
