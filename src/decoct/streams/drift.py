"""How far one posterior lies from where rows were chosen, in standard deviations.

Weights are fitted at draws of one posterior, and their error ½‖L − L(w)‖² is measured there. What
a good fit leaves is of third order or higher, so u posterior sd from the draws it is some u³ times
as large or more (`remainder`): an error measured in one place says nothing of a place many sd away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import numpy as np
from jaxtyping import Float

from decoct.errors import ModelError
from decoct.runtime import progress
from decoct.samplers.base import Sampler, WeightedDensity
from decoct.samplers.laplace import Laplace, find_mode, gaussian_at
from decoct.stats.chains import USABLE_KHAT
from decoct.stats.divergences import Gaussian
from decoct.streams.remainder import whitening

DRIFTED = 5.0
"""Posterior sd by which a posterior may move, by `distance`, before the user is warned."""

DRAWS = 400
"""Fewest draws that say where a posterior lies, and how good its Laplace approximation is."""

DRAWS_PER_PARAMETER = 20
"""Draws for the smallest sd along any axis to come out no more than a fifth too small."""

MOST_DRAWS = 2000
"""Draws above which axes are not worth their memory: of more than a hundred parameters."""


@dataclass(frozen=True)
class Drift:
    """Where the posteriors of parts lie, and that of all parts together.

    Attributes
    ----------
    places
        One for each part.
    whole
        Of all parts.
    sampler
        What found them: "laplace", or the name of a sampler.
    """

    places: tuple[Gaussian, ...]
    whole: Gaussian
    sampler: str

    @cached_property
    def distances(self) -> tuple[float, ...]:
        """One for each part, in sd of the part's own posterior."""
        return tuple(distance(place, self.whole.mean) for place in self.places)


def drift_of_parts(
    key: jax.Array,
    parts: Sequence[WeightedDensity],
    union: WeightedDensity,
    sampler: Sampler,
) -> Drift:
    """Return where the posteriors of parts and of all of them lie.

    A part's rows were chosen to be right within the part's posterior, so its own sd are the measure
    of the distance from there to the union's. If C equal parts are cut from one table at random,
    the mean of each lies about √(1 − 1/C) of them from the union's in every coordinate, whatever N
    is; in sd of the union it would grow as √C.

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
        progress.begin("finding the modes of the parts", len(every), "posteriors")
        found, name = _modes(key, every)
    except ModelError:
        progress.begin("drawing from the parts", len(every), "posteriors")
        found, name = _means(key, every, sampler)
    *places, whole = found
    return Drift(tuple(places), whole, name)


def place_of(
    key: jax.Array,
    density: WeightedDensity,
    sampler: Sampler,
    like: Float[np.ndarray, " d"] | None = None,
) -> tuple[Gaussian, str]:
    """Return where draws of a posterior lie, and what drew them.

    Exchangeable components are in the order of those of ``like``, if it is given.
    """
    n = min(MOST_DRAWS, max(DRAWS, DRAWS_PER_PARAMETER * density.dim))
    draws = sampler.draw(key, density, n)
    z = draws.flat
    return moments(z if like is None else density.model.relabelled(z, like)), draws.sampler


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
    most = np.abs([moved / place.sd, moved @ whitening(place)])
    return float(np.max(most, initial=0.0))


def _modes(key: jax.Array, every: Sequence[WeightedDensity]) -> tuple[list[Gaussian], str]:
    found = []
    for one in every:
        found.append(_laplace(key, one))
        progress.advance(1, "posteriors")
    return found, "laplace"


def _means(
    key: jax.Array,
    every: Sequence[WeightedDensity],
    sampler: Sampler,
) -> tuple[list[Gaussian], str]:
    found, name = [], ""
    for i, one in enumerate(every):
        like = found[0].mean if found else None
        place, name = place_of(jax.random.fold_in(key, i), one, sampler, like)
        found.append(place)
        progress.advance(1, "posteriors")
    return found, name


def _laplace(key: jax.Array, density: WeightedDensity) -> Gaussian:
    """Return the Laplace approximation, if it is one: a narrow peak tells nothing of a funnel."""
    khat = Laplace().draw(key, density, DRAWS).info["khat"]
    if not khat <= USABLE_KHAT:
        raise ModelError(f"The Laplace approximation has a k-hat of {khat:.2g}; use NUTS.")
    return gaussian_at(find_mode(density))
