"""How far a posterior lies from where rows were compressed.

A site and the weights beside it are right where the rows were expanded. What they leave there is of
third order and grows with the distance, which is counted in sd of the posterior of that time.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Float

from decoct.runtime import progress
from decoct.samplers.base import Sampler, WeightedDensity
from decoct.stats.divergences import Gaussian

DRIFTED = 5.0
"""Posterior sd, by `distance`, above which no KL is predicted."""

DRAWS, MOST_DRAWS = 400, 2000
"""Fewest and most draws that say where a posterior lies."""

DRAWS_PER_PARAMETER = 20
"""Draws for the smallest sd along any axis to come out no more than a fifth too small."""

SMALLEST = 1e-12
"""Least variance along a principal axis of the correlations."""


def drift_of_parts(
    key: jax.Array, parts: Sequence[WeightedDensity], union: WeightedDensity, sampler: Sampler
) -> float:
    """Return the most sd of a part's posterior by which the posterior of all parts lies away.

    The means are those of draws. Exchangeable components are in the order of the first part's.
    """
    progress.begin("drawing from the parts", len(parts) + 1, "posteriors")
    places: list[Gaussian] = []
    for number, density in enumerate([*parts, union]):
        n = min(MOST_DRAWS, max(DRAWS, DRAWS_PER_PARAMETER * density.dim))
        z = sampler.draw(jax.random.fold_in(key, number), density, n).flat
        places.append(moments(density.model.relabelled(z, places[0].mean) if places else z))
        progress.advance(1, "posteriors")
    return max(distance(place, places[-1].mean) for place in places[:-1])


def moments(draws: Float[np.ndarray, "S d"]) -> Gaussian:
    """Return where draws lie; as if coordinates were independent, if the draws are too few."""
    mean, (n, dim) = draws.mean(axis=0), draws.shape
    if n < DRAWS_PER_PARAMETER * dim:
        return Gaussian(mean, np.diag(draws.var(axis=0)))
    return Gaussian(mean, np.atleast_2d(np.cov(draws.T)))


def distance(place: Gaussian, mean: Float[np.ndarray, " d"]) -> float:
    """Return by how many sd a mean lies away, in the coordinate or principal axis where it is most.

    The axes are those of the correlations. They see what no coordinate does: along two collinear
    columns each coefficient is uncertain, and their sum is not. Infinite where there is no spread.
    """
    moved = mean - place.mean
    if not (np.isfinite(moved).all() and np.isfinite(place.cov).all() and (place.sd > 0.0).all()):
        return np.inf
    scaled = moved / place.sd
    variances, axes = np.linalg.eigh(place.cov / np.outer(place.sd, place.sd))
    along = scaled @ axes / np.sqrt(np.maximum(variances, SMALLEST))
    return float(np.abs([scaled, along]).max(initial=0.0))
