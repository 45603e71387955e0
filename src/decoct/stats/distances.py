"""How far a mean is from a Gaussian, in its standard deviations."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from decoct.stats.divergences import Gaussian

DRAWS_PER_PARAMETER = 20
"""Draws for the smallest sd along any axis to come out no more than a fifth too small."""


def moments(draws: Float[np.ndarray, "S d"]) -> Gaussian:
    """Return mean and covariance of draws; a diagonal covariance if the draws are too few."""
    few = len(draws) < DRAWS_PER_PARAMETER * draws.shape[1]
    cov = np.diag(draws.var(axis=0)) if few else np.atleast_2d(np.cov(draws.T))
    return Gaussian(draws.mean(axis=0), cov)


def distance(place: Gaussian, mean: Float[np.ndarray, " d"]) -> float:
    """Return the largest distance of a mean, in sd, along any coordinate or principal axis.

    Principal axes are needed for correlations: with two collinear columns each coefficient is
    uncertain, and their sum is not. Infinite where there is no spread.
    """
    moved = mean - place.mean
    if not (np.isfinite(moved).all() and np.isfinite(place.cov).all() and (place.sd > 0.0).all()):
        return np.inf
    scaled = moved / place.sd
    variances, axes = np.linalg.eigh(place.cov / np.outer(place.sd, place.sd))
    along = scaled @ axes / np.sqrt(np.maximum(variances, 1e-12))
    return float(np.abs([scaled, along]).max(initial=0.0))
