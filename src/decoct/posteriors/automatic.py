"""The default sampler of constructions: exact, else Laplace where it fits, else NUTS."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax

from decoct.diagnostics.chains import USABLE_KHAT
from decoct.errors import ModelError
from decoct.models.conjugate import AbstractConjugate
from decoct.posteriors.base import Draws, WeightedDensity
from decoct.posteriors.exact import Exact
from decoct.posteriors.laplace import Laplace
from decoct.posteriors.nuts import NUTS


@dataclass(frozen=True)
class Automatic:
    """Exact, else Laplace while its k-hat against π_w is at most 0.7, else NUTS.

    Attributes
    ----------
    nuts
        The NUTS configuration to fall back on.
    """

    nuts: NUTS = field(default_factory=lambda: NUTS(warmup=300))

    def draw(self, key: jax.Array, density: WeightedDensity, n: int) -> Draws:
        model = density.model
        if isinstance(model, AbstractConjugate) and model.is_conjugate:
            return Exact().draw(key, density, n)
        try:
            draws = Laplace().draw(key, density, n)
        except ModelError:
            return self.nuts.draw(key, density, n)
        if draws.info["khat"] <= USABLE_KHAT:
            return draws
        return self.nuts.draw(key, density, n)
