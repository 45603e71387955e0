"""Values of a model's functions at fixed points, by which the model is recognised.

A file cannot store functions of the user's own, and `AbstractModel.to_dict` does not describe them.
Two models count as the same if at two points θ_k of unconstrained space

    Σ_m c_m f_m(θ_k),   c_m = 1 + ½ cos m,   log π₀(θ_k),   and   Σ_i c_i φ_i(θ_k)

agree to `TOLERANCE`, with m over some rows: the first ones of a table, or those of a coreset. For a
coreset of no rows there are three made-up ones, of zeros, of ones and of halves; values that are
not finite there do not count.

Constants are compared through their effect on these rows. Values do not depend on the JAX release.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.data.base import columns_length
from decoct.models.base import AbstractModel
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
        if name == "log_likelihood" and not columns_length(rows) and not any(expected):
            continue  # of a file that was saved before rows were made up
        if not np.allclose(found, expected, rtol=TOLERANCE, atol=1e-2 * TOLERANCE, equal_nan=True):
            return (
                f"at two points its {NAMES[name]} is {found[0]:.10g} and {found[1]:.10g}, "
                f"not {expected[0]:.10g} and {expected[1]:.10g}"
            )
    return None


def _values(
    model: AbstractModel, rows: Mapping[str, np.ndarray], points: np.ndarray
) -> dict[str, list[float]]:
    space, is_made_up = ParameterSpace.of(model.init(rows)), not columns_length(rows)
    columns = jax.device_put(_make_up(rows) if is_made_up else dict(rows))
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for z in points:
        params = space.unflatten(jnp.asarray(z))
        potentials = np.asarray(model.potentials(params, columns))
        if is_made_up:
            potentials = np.where(np.isfinite(potentials), potentials, 0.0)
        phi = space.ravel(model.to_likelihood_params(params))
        found["log_likelihood"].append(_weighted_sum(potentials))
        found["log_prior"].append(float(model.log_prior(params)))
        found["likelihood_params"].append(_weighted_sum(phi))
    return found


def _make_up(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return three rows of these columns' types and shapes."""
    values = np.array([0.0, 1.0, 0.5])
    shapes = {name: column.shape[1:] for name, column in columns.items()}
    rows = {name: np.multiply.outer(values, np.ones(shape)) for name, shape in shapes.items()}
    return {name: row.astype(columns[name].dtype) for name, row in rows.items()}


def _weighted_sum(values: Float[np.ndarray | Array, " n"]) -> float:
    """Return a sum in which each value counts differently."""
    return float((1.0 + 0.5 * np.cos(np.arange(1.0, len(values) + 1.0))) @ np.asarray(values))
