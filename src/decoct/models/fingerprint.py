"""Values of a model's functions at fixed points, by which the model is recognised.

A file cannot store functions of the user's own, and `AbstractModel.to_dict` does not describe them.
Two models count as the same if at two points θ_k of unconstrained space

    Σ_m c_m f_m(θ_k),   c_m = 1 + ½ cos m,   log π₀(θ_k),   and   Σ_i c_i φ_i(θ_k)

agree to `TOLERANCE`, with m over some rows: the first ones of a table, or those of a coreset.
Constants are compared through their effect on these rows. Values do not depend on the JAX release.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from decoct.models.base import AbstractModel, Params
from decoct.models.parameters import ParameterSpace
from decoct.runtime.precision import float64

TOLERANCE = 1e-4
"""Relative difference that rounding may make, also of constants that were float32 on the way."""

EXAMPLES = 64
"""Rows of a table that are evaluated."""

NAMES = {
    "log_likelihood": "log-likelihood of the rows",
    "log_prior": "log prior",
    "likelihood_params": "sum of likelihood parameters",
}


@float64
def fingerprint(model: AbstractModel, rows: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the values of a model's functions on encoded rows, and where they are; JSON-ready."""
    initial = model.init(rows)
    start = ParameterSpace.of(initial).flatten(initial)
    points = np.stack([start, start + 0.1 * np.cos(np.arange(len(start)))])
    return {"at": points.tolist(), **_values(model, rows, points)}


@float64
def find_difference(
    known: Mapping[str, Any], model: AbstractModel, rows: Mapping[str, np.ndarray]
) -> str | None:
    """Return in what a model differs from the one that `fingerprint` was of, or None.

    What is left out of ``known`` is not compared.
    """
    points = np.asarray(known["at"], dtype=np.float64)
    dim = ParameterSpace.of(model.init(rows)).dim
    if dim != points.shape[1]:
        return f"it has {dim} parameters, not {points.shape[1]}"
    for name, found in _values(model, rows, points).items():
        expected = known.get(name, found)
        if not np.allclose(found, expected, rtol=TOLERANCE, atol=1e-2 * TOLERANCE, equal_nan=True):
            return (
                f"at two points its {NAMES[name]} is {found[0]:.10g} and {found[1]:.10g}, "
                f"not {expected[0]:.10g} and {expected[1]:.10g}"
            )
    return None


def _values(
    model: AbstractModel, rows: Mapping[str, np.ndarray], points: np.ndarray
) -> dict[str, list[float]]:
    space = ParameterSpace.of(model.init(rows))
    columns = jax.device_put(dict(rows))
    params = [space.unflatten(jnp.asarray(z)) for z in points]

    def potentials(one: Params) -> np.ndarray:
        if not len(next(iter(rows.values()))):
            return np.zeros(0)
        return np.asarray(model.potentials(one, columns))

    def likelihood_params(one: Params) -> np.ndarray:
        return np.asarray(space.ravel(model.to_likelihood_params(one)))

    return {
        "log_likelihood": [_weighted_sum(potentials(one)) for one in params],
        "log_prior": [float(model.log_prior(one)) for one in params],
        "likelihood_params": [_weighted_sum(likelihood_params(one)) for one in params],
    }


def _weighted_sum(values: Float[np.ndarray, " n"]) -> float:
    """Return a sum in which each value counts differently."""
    return float((1.0 + 0.5 * np.cos(np.arange(1.0, len(values) + 1.0))) @ values)
