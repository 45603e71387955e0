"""What the demonstration measures: errors against the full-data fit, and what a gradient costs."""

from __future__ import annotations

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from decoct.errors import ModelError
from decoct.passes.potentials import Potentials
from decoct.runtime.precision import float64
from decoct.samplers.laplace import find_full_mode, gaussian_at
from decoct.stats import kl_gaussian
from decoct.stats.divergences import Gaussian

REPEATS = 7
"""Gradients timed; the fastest counts."""


def fit_all_rows(potentials: Potentials) -> Gaussian:
    """Return the Laplace fit to all rows; ``potentials.counts`` counts its passes."""
    mode = find_full_mode(potentials)
    if not mode.status.ok:
        raise ModelError(mode.status.value)
    return gaussian_at(mode)


def measure_errors(fit: Gaussian, full: Gaussian) -> dict[str, float]:
    """Return how far a Laplace fit is from the full-data one.

    ``kl`` is KL(fit‖full) in nats, ``worst_mean_error`` the largest error of a mean in full-data
    posterior sds, and ``worst_sd_ratio`` the ratio of a posterior sd to the full-data one that is
    farthest from 1.
    """
    ratio = fit.sd / full.sd
    return {
        "kl": kl_gaussian(fit, full),
        "worst_mean_error": float((np.abs(fit.mean - full.mean) / full.sd).max()),
        "worst_sd_ratio": float(ratio[np.argmax(np.abs(np.log(ratio)))]),
    }


@float64
def time_gradient(potentials: Potentials, z: Float[np.ndarray, " d"]) -> float:
    """Return the seconds of one gradient of the full-data log posterior, compiled and warm."""
    model, table, space = potentials.model, potentials.rows, potentials.space
    whole = next(iter(table.chunks(table.n_rows))).columns
    columns = {name: jnp.asarray(values) for name, values in whole.items()}

    @eqx.filter_jit
    def compute(columns: Any, z: Any) -> Any:
        def log_density(z: Any) -> Any:
            params = space.unflatten(z)
            return model.log_likelihood(params, columns).sum() + model.log_prior(params)

        return jax.value_and_grad(log_density)(z)

    at = jnp.asarray(z)
    jax.block_until_ready(compute(columns, at))
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        jax.block_until_ready(compute(columns, at))
        seconds.append(time.perf_counter() - started)
    return min(seconds)
