"""What the demonstration measures: errors against the full-data posterior, and gradients."""

from __future__ import annotations

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from decoct.passes.potentials import Potentials
from decoct.runtime.precision import float64
from decoct.stats import kl_gaussian
from decoct.stats.divergences import Gaussian, kl_from_log_ratios


def compare_fits(fit: Gaussian, full: Gaussian) -> dict[str, float]:
    """Return how far a Laplace fit is from the full-data one.

    ``kl`` is KL(fit‖full) in nats, ``worst_mean_error`` the largest error of a mean in full-data
    posterior sds, and ``worst_sd_ratio`` the ratio of a posterior sd to the full-data one that is
    farthest from 1.
    """
    return {"kl": kl_gaussian(fit, full), **_worst_errors(fit.mean, fit.sd, full.mean, full.sd)}


def weigh_draws(
    z: Float[np.ndarray, "S d"], log_ratios: Float[np.ndarray, " S"]
) -> dict[str, float]:
    """Return how far draws of another posterior are from the full-data one.

    As `compare_fits`. ``log_ratios`` are D_s, log densities of the full-data posterior less those
    of the draws' own, up to a constant. Moments of both posteriors come from the same draws, for
    the full-data one with weights e^D, so that most of their Monte Carlo error cancels.
    """
    r = np.exp(log_ratios - log_ratios.max())
    r /= r.sum()
    mean = r @ z
    sd = np.sqrt(r @ (z - mean) ** 2)
    errors = _worst_errors(z.mean(axis=0), z.std(axis=0), mean, sd)
    return {"kl": kl_from_log_ratios(log_ratios).reverse, **errors}


def weigh_fit(fit: Gaussian, potentials: Potentials, seed: int) -> dict[str, float]:
    """Return how far a Gaussian is from the full-data posterior, in one pass at 500 draws of it."""
    z = fit.sample(np.random.default_rng(seed), 500)
    return weigh_draws(z, potentials.totals(z) + potentials.log_prior(z) - fit.log_density(z))


def _worst_errors(mean: Any, sd: Any, full_mean: Any, full_sd: Any) -> dict[str, float]:
    ratio = sd / full_sd
    return {
        "worst_mean_error": float((np.abs(mean - full_mean) / full_sd).max()),
        "worst_sd_ratio": float(ratio[np.argmax(np.abs(np.log(ratio)))]),
    }


@float64
def time_gradient(potentials: Potentials, z: Float[np.ndarray, " d"]) -> float:
    """Return the seconds of one gradient of the full-data log posterior: the fastest of seven."""
    model, table, space = potentials.model, potentials.rows, potentials.space
    whole = next(iter(table.chunks(table.n_rows))).columns
    columns = {name: jnp.asarray(values) for name, values in whole.items()}

    def log_density(z: Any, columns: Any) -> Any:
        params = space.unflatten(z)
        return model.potentials(params, columns).sum() + model.log_prior(params)

    compute = eqx.filter_jit(jax.value_and_grad(log_density))
    at = jnp.asarray(z)
    jax.block_until_ready(compute(at, columns))
    seconds = []
    for _ in range(7):
        started = time.perf_counter()
        jax.block_until_ready(compute(at, columns))
        seconds.append(time.perf_counter() - started)
    return min(seconds)
