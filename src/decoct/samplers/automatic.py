"""The default sampler of constructions: exact, else Laplace where it fits, else NUTS."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import numpy as np

from decoct.errors import ModelError
from decoct.samplers.base import Draws, Sampler, WeightedDensity
from decoct.samplers.laplace import Laplace
from decoct.stats.chains import USABLE_KHAT, USABLE_RHAT

if TYPE_CHECKING:
    from decoct.samplers.nuts import NUTS

MISFIT = 1.0
"""KL(q‖π_w) in nats above which draws of q do not stand for draws of π_w."""

LONGER = 8
"""Times as long as the first run is the second of chains that disagree."""

FEWEST = 125
"""Draws a chain from which on a longer run is made: R-hat of fewer is above 1.1 by chance."""

HOPEFUL_RHAT = (1.0 + LONGER * (USABLE_RHAT**2 - 1.0)) ** 0.5
"""R-hat up to which a longer run may do: R-hat² − 1 falls as the draws grow in number."""


@dataclass(frozen=True)
class Automatic(Sampler):
    """Exact, else Laplace q while its k-hat is at most 0.7 and KL(q‖π_w) at most 1 nat, else NUTS.

    Draws of q are resampled in proportion to π_w/q where that KL is above 0.02 nats. Models with
    likelihood parameters use NUTS at once: the mode of their posterior says little about it. NUTS
    chains of at least 125 draws with an R-hat between 1.1 and 1.63 are run again, 8 times as long,
    and every 8th draw is kept.

    Attributes
    ----------
    nuts
        The NUTS configuration to fall back on; None for 300 steps of warm-up.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=5)
    >>> sampler = decoct.samplers.Automatic()
    >>> coreset.sample(draws=50, chains=1, sampler=sampler)["posterior"]["mean"].shape
    (1, 50, 2)
    """

    nuts: NUTS | None = None

    def draw(self, key: jax.Array, density: WeightedDensity, n: int) -> Draws:
        draws = None if density.has_likelihood_params else _without_nuts(key, density, n)
        if draws is not None:
            return draws
        # here, for most builds need none
        from decoct.samplers.nuts import NUTS

        nuts = self.nuts or NUTS(warmup=300)
        draws = nuts.draw(key, density, n)
        disagree = USABLE_RHAT < draws.info["rhat"] <= HOPEFUL_RHAT
        if not disagree or draws.z.shape[1] < FEWEST:
            return draws
        longer = replace(nuts, warmup=LONGER * nuts.warmup)
        return _thin(longer.draw(jax.random.fold_in(key, LONGER), density, LONGER * n))


def _thin(draws: Draws) -> Draws:
    """Return every 8th draw of each chain, and its statistics."""
    info = {name: one[:, ::LONGER] if np.ndim(one) else one for name, one in draws.info.items()}
    return Draws(draws.z[:, ::LONGER].copy(), draws.sampler, info)


def _without_nuts(key: jax.Array, density: WeightedDensity, n: int) -> Draws | None:
    """Return exact draws, or those of Laplace where it fits."""
    model = density.model
    try:
        if getattr(model, "is_conjugate", False):
            from decoct.samplers.exact import Exact  # here, for few models are

            return Exact().draw(key, density, n)
        draws = Laplace(resample=True).draw(key, density, n)
    except ModelError:
        return None
    fits = draws.info["khat"] <= USABLE_KHAT and draws.info["kl"] <= MISFIT
    return draws if fits else None
