"""Exact draws where the posterior is Gaussian in closed form (conjugate models)."""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np

from decoct.errors import ModelError
from decoct.models.conjugate import AbstractConjugate
from decoct.runtime.precision import float64
from decoct.runtime.randomness import host_rng
from decoct.samplers.base import Draws, Sampler, WeightedDensity
from decoct.samplers.laplace import find_mode, gaussian_at
from decoct.stats.divergences import Gaussian


@eqx.filter_jit
def _posterior(density: WeightedDensity):
    model = density.model
    assert isinstance(model, AbstractConjugate)
    return model.exact_posterior(model.sufficient(density.rows, density.weights))


@float64
def exact_posterior(density: WeightedDensity) -> Gaussian:
    """Return π_w in closed form, or raise `ModelError`."""
    model = density.model
    if not (isinstance(model, AbstractConjugate) and model.is_conjugate):
        raise ModelError(
            f"{type(model).__name__} has no closed-form posterior; use samplers.Laplace() or "
            "samplers.NUTS()."
        )
    if density.site is not None:
        # a Gaussian times a Gaussian: its mode and the curvature there are all there is to it
        return gaussian_at(find_mode(density))
    mean, cov = (np.asarray(one) for one in _posterior(density))
    finite = np.isfinite(mean).all() and np.isfinite(cov).all()
    if not (finite and np.linalg.eigvalsh(cov)[0] > 0.0):
        raise ModelError(
            f"The closed-form posterior of {type(model).__name__} is lost in rounding; centre and "
            "scale the columns."
        )
    return Gaussian(mean, cov)


@dataclass(frozen=True)
class Exact(Sampler):
    """Independent draws from the closed-form posterior of a conjugate model.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=5)
    >>> sampler = decoct.samplers.Exact()
    >>> coreset.sample(draws=50, chains=1, sampler=sampler)["posterior"]["mean"].shape
    (1, 50, 2)
    """

    def draw(self, key: jax.Array, density: WeightedDensity, n: int) -> Draws:
        rng = host_rng(key)
        return Draws(exact_posterior(density).sample(rng, n)[None], "exact")
