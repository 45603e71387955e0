"""What the demonstration measures: errors against the full-data fit, and what a gradient costs."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from decoct.coreset import Coreset
from decoct.data.base import Rows
from decoct.data.encoded import encoded
from decoct.errors import ModelError
from decoct.models.base import AbstractModel
from decoct.passes.potentials import Potentials
from decoct.runtime.precision import float64
from decoct.samplers.laplace import find_full_mode, gaussian_at, laplace
from decoct.stats import kl_gaussian
from decoct.stats.divergences import Gaussian

REPEATS = 7
"""Gradients timed; the fastest counts."""


class FullFit(NamedTuple):
    """The Laplace fit to all rows, and its passes over them."""

    gaussian: Gaussian
    passes: int


class Errors(NamedTuple):
    """How far a Laplace fit is from the full-data one.

    Attributes
    ----------
    kl
        KL(fit‖full) in nats.
    worst_mean_error
        Largest error of a mean, in full-data posterior sds.
    worst_sd_ratio
        The ratio of a posterior sd to the full-data one that is farthest from 1.
    """

    kl: float
    worst_mean_error: float
    worst_sd_ratio: float

    @classmethod
    def of(cls, fit: Gaussian, full: Gaussian) -> Errors:
        off = np.abs(fit.mean - full.mean) / full.sd
        ratio = fit.sd / full.sd
        worst = int(np.argmax(np.abs(np.log(ratio))))
        return cls(kl_gaussian(fit, full), float(off.max()), float(ratio[worst]))


def full_fit(model: AbstractModel, rows: Rows) -> FullFit:
    """Fit the Laplace approximation to all rows, counting passes."""
    potentials = Potentials(model, encoded(rows, model))
    mode = find_full_mode(potentials)
    if not mode.status.ok:
        raise ModelError(mode.status.value)
    return FullFit(gaussian_at(mode), potentials.counts.passes)


def coreset_fit(coreset: Coreset) -> Gaussian:
    """Fit the Laplace approximation to the weighted kept rows."""
    return laplace(coreset.model, dict(coreset.rows), coreset.weights)


@float64
def gradient_seconds(model: AbstractModel, rows: Rows, z: Float[np.ndarray, " d"]) -> float:
    """Return the seconds of one gradient of the full-data log posterior, compiled and warm."""
    table = encoded(rows, model)
    whole = next(iter(table.chunks(table.n_rows))).columns
    columns = {name: jnp.asarray(values) for name, values in whole.items()}
    space = Potentials(model, table).space

    @eqx.filter_jit
    def value_and_gradient(columns: Any, z: Any) -> Any:
        def log_density(z: Any) -> Any:
            params = space.unflatten(z)
            return model.log_likelihood(params, columns).sum() + model.log_prior(params)

        return jax.value_and_grad(log_density)(z)

    at = jnp.asarray(z)
    jax.block_until_ready(value_and_gradient(columns, at))
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        jax.block_until_ready(value_and_gradient(columns, at))
        seconds.append(time.perf_counter() - started)
    return min(seconds)
