"""Independent posterior conditionals as a weighting distribution (Campbell & Broderick 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from decoct.errors import ModelError
from decoct.mixture.vmf.vmf_fit import independent_conditionals, vmf_em
from decoct.mixture.vmf.vmf_mixture import VonMisesFisherMixture
from decoct.passes.potentials import Potentials
from decoct.runtime.randomness import host_rng


@dataclass(frozen=True)
class Conditionals:
    """Independent posterior conditionals of a von Mises–Fisher mixture at the EM fit (Eq. 7.6).

    Attributes
    ----------
    restarts
        Starts of EM.
    """

    restarts: int = 10

    def draw(self, key: jax.Array, potentials: Potentials, n: int) -> Float[np.ndarray, "n d"]:
        model = potentials.model
        if not isinstance(model, VonMisesFisherMixture):
            raise ModelError(
                f"{type(model).__name__} has no independent conditionals; they are for "
                "VonMisesFisherMixture. Use weighting='laplace' or 'subsample'."
            )
        rng = host_rng(key)
        x = potentials.rows.take(np.arange(potentials.n_rows))["x"]
        potentials.counts.passes += 1
        tau = float(model.concentration)
        fit = vmf_em(
            x,
            n_components=model.n_components,
            concentration=tau,
            restarts=self.restarts,
            seed=int(rng.integers(2**31)),
        )
        modes, weights = independent_conditionals(rng, x, fit.responsibilities, tau, n)
        return model.to_unconstrained(modes, weights)
