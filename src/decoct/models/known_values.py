"""What the likelihood of a user's own functions comes to on some rows: to know it again by.

A coreset file cannot hold such a model, and whoever opens the file passes it. That it has the same
likelihood, constants included, is seen from its value at two points,

    Σ_m c_m f_m(θ_k),   c_m = 1 + ½ cos m,

over the kept rows m = 1, ..., M, at points of unconstrained space. The prior may be another one on
the same support, which those points stand for: weights belong to the likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from decoct.models.base import AbstractModel, RawRows
from decoct.models.parameters import ParameterSpace
from decoct.runtime.precision import float64

CLOSE = 1e-4
"""Relative difference that rounding may make, also of constants that were float32 on the way."""

STEP = 0.1
"""How far the second point is from the first, in every coordinate."""


@float64
def known_values(model: AbstractModel, rows: RawRows, indices: np.ndarray) -> dict[str, Any]:
    """Return a likelihood's values on some rows, and the points they are at; JSON-ready.

    Parameters
    ----------
    model
        The model.
    rows, indices
        Raw rows, and their numbers in the table.
    """
    initial = model.init(model.encode(rows, indices))
    start = ParameterSpace.of(initial).flatten(initial)
    points = np.stack([start, start + STEP * np.cos(np.arange(len(start)))])
    return {"at": points.tolist(), "log_likelihood": _values(model, rows, indices, points)}


@float64
def differing_value(
    known: Mapping[str, Any], model: AbstractModel, rows: RawRows, indices: np.ndarray
) -> str | None:
    """Return in what a model differs from the one with these values, as a sentence, or None.

    Parameters
    ----------
    known
        What `known_values` returned of the other model.
    model, rows, indices
        As there.
    """
    points = np.asarray(known["at"], dtype=np.float64)
    dim = ParameterSpace.of(model.init(model.encode(rows, indices))).dim
    if dim != points.shape[1]:
        return f"it has {dim} parameters, not {points.shape[1]}"
    found, expected = _values(model, rows, indices, points), known["log_likelihood"]
    if np.allclose(found, expected, rtol=CLOSE, atol=1e-2 * CLOSE, equal_nan=True):
        return None
    there = f"{expected[0]:.10g} and {expected[1]:.10g}"
    return (
        "at two points the log-likelihood of the kept rows is "
        f"{found[0]:.10g} and {found[1]:.10g}, not {there}"
    )


def _values(
    model: AbstractModel, rows: RawRows, indices: np.ndarray, points: np.ndarray
) -> list[float]:
    columns = model.encode(rows, indices)
    space = ParameterSpace.of(model.init(columns))
    encoded = {name: jnp.asarray(values) for name, values in columns.items()}
    factors = 1.0 + 0.5 * np.cos(np.arange(1.0, len(indices) + 1.0))
    return [
        float(factors @ np.asarray(model.log_likelihood(space.unflatten(jnp.asarray(z)), encoded)))
        for z in points
    ]
