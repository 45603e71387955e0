"""How far one posterior lies from where rows were chosen, in standard deviations.

Weights are fitted at draws of one posterior, and their error ½‖L − L(w)‖² is measured there. What
a good fit leaves is of third order, so at u posterior sd from the draws it is u³ times as large:
an error measured in one place says nothing of a place many sd away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from decoct.diagnostics.divergences import Gaussian
from decoct.errors import ModelError
from decoct.posteriors.automatic import USABLE
from decoct.posteriors.base import Sampler, WeightedDensity
from decoct.posteriors.laplace import Laplace, find_mode, gaussian_at

DRIFTED = 5.0
"""Posterior sd by which a posterior may move, in any coordinate, before the user is warned."""

DRAWS = 400
"""Fewest draws that say where a posterior lies, and how good its Laplace approximation is."""


@dataclass(frozen=True)
class Seen:
    """Where the draws lay at which rows were last compressed.

    Attributes
    ----------
    mean, sd : (d,)
        Of the draws, in unconstrained space.
    """

    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]

    @classmethod
    def of(cls, draws: Float[np.ndarray, "S d"]) -> Seen:
        """Return where draws lie."""
        return cls(draws.mean(axis=0), draws.std(axis=0))

    def distance(self, mean: Float[np.ndarray, " d"]) -> float:
        """Return by how many sd a mean lies away, in the coordinate where it is most."""
        return float(np.max(np.abs(mean - self.mean) / self.sd, initial=0.0))


@dataclass(frozen=True)
class Drift:
    """How far the posteriors of parts lie from the posterior of all parts.

    Attributes
    ----------
    distances
        One for each part, in sd of the part's own posterior.
    sampler
        What found the posteriors: "laplace", or the name of a sampler.
    """

    distances: tuple[float, ...]
    sampler: str


def drift_of_parts(
    key: jax.Array, parts: Sequence[WeightedDensity], union: WeightedDensity, sampler: Sampler
) -> Drift:
    """Return by how many of its own sd each part's posterior lies away from the union's.

    A part's rows were chosen to be right within the part's posterior, so its sd are the measure. If
    C equal parts are cut from one table at random, the mean of each lies about √(1 − 1/C) of them
    from the union's in every coordinate, whatever N is; in sd of the union it would grow as √C.

    Parameters
    ----------
    key
        Decides the draws, where there are any.
    parts, union
        The coreset posteriors.
    sampler
        Draws from all of them if one has no Laplace approximation, or one of k-hat above 0.7: a
        mean does not compare to a mode.

    Raises
    ------
    ModelError
        Nor can the sampler draw from one of them.
    """
    every = [*parts, union]
    try:
        found, name = [_laplace(key, one) for one in every], "laplace"
    except ModelError:
        draws = [
            sampler.draw(jax.random.fold_in(key, i), one, _enough(one))
            for i, one in enumerate(every)
        ]
        found, name = [_moments(one.flat) for one in draws], draws[-1].sampler
    *places, whole = found
    return Drift(tuple(distance(place, whole.mean) for place in places), name)


def distance(place: Gaussian, mean: Float[np.ndarray, " d"]) -> float:
    """Return by how many sd a mean lies away, in the coordinate or principal axis where it is most.

    The axes are those of the correlations. They see what no coordinate does: along two collinear
    columns each coefficient is uncertain, and their sum is not.
    """
    moved = (mean - place.mean) / place.sd
    variances, axes = np.linalg.eigh(place.cov / np.outer(place.sd, place.sd))
    # Below rounding a variance is noise, and may be negative.
    along = Seen(np.zeros(len(moved)), np.sqrt(np.maximum(variances, 1e-12)))
    return max(Seen(place.mean, place.sd).distance(mean), along.distance(moved @ axes))


def _laplace(key: jax.Array, density: WeightedDensity) -> Gaussian:
    """Return the Laplace approximation, if it is one: a narrow peak tells nothing of a funnel."""
    khat = Laplace().draw(key, density, DRAWS).info["khat"]
    if not khat <= USABLE:
        raise ModelError(f"The Laplace approximation has a k-hat of {khat:.2g}; use NUTS.")
    return gaussian_at(find_mode(density))


def _enough(density: WeightedDensity) -> int:
    """Return draws enough for the smallest sd: of 20 d draws it comes out a fifth too small."""
    return max(DRAWS, 20 * density.dim)


def _moments(draws: Float[np.ndarray, "S d"]) -> Gaussian:
    return Gaussian(draws.mean(axis=0), np.atleast_2d(np.cov(draws.T)))
