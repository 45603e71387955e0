"""Checks of a model before any pass: shapes, a finite start, and rows that do not mix."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from decoct.data.base import Columns
from decoct.errors import ModelError
from decoct.models.base import AbstractModel
from decoct.models.parameters import ParameterSpace
from decoct.runtime.precision import float64

EXAMPLES = 8
"""Rows that are evaluated together and alone, to check that a model does not mix them."""

APART = 1e-6
"""Relative difference of two evaluations of a row that is more than rounding."""


@eqx.filter_jit
def log_priors(model, space, draws) -> Array:
    """Return log π₀ at the draws."""
    return jax.vmap(lambda z: model.log_prior(space.unflatten(z)))(draws)


@float64
def check_shape(model: AbstractModel, space: ParameterSpace, example: Columns) -> None:
    """Refuse a likelihood that does not return one value per row."""
    two = {name: np.repeat(column, 2, axis=0) for name, column in example.items()}
    shape = jax.eval_shape(
        lambda z, rows: jnp.asarray(model.potentials(space.unflatten(z), rows)),
        np.zeros(space.dim),
        two,
    ).shape
    if shape != (2,):
        raise ModelError(
            f"log_likelihood returned shape {shape} for 2 rows; it must return one value per row, "
            "shape (2,)."
        )


@eqx.filter_jit
def _together_and_alone(model, space, z, rows):
    """Return potentials of some rows together, together with copies, and one by one."""
    params = space.unflatten(z)
    padded = {
        name: jnp.concatenate([column, column[:1], column[:1]]) for name, column in rows.items()
    }

    def alone(row):
        return model.potentials(params, {name: value[None] for name, value in row.items()})[0]

    together = model.potentials(params, rows)
    return together, model.potentials(params, padded)[: len(together)], jax.vmap(alone)(rows)


@float64
def check_rows_apart(
    model: AbstractModel, space: ParameterSpace, initial, examples: Columns
) -> None:
    """Refuse a likelihood in which a row's value depends on other rows."""
    rows = jax.device_put(dict(examples))
    start, rng = space.flatten(initial), np.random.default_rng(0)
    for spread in (0.0, 0.3, 1.0):
        z = jnp.asarray(start + spread * rng.standard_normal(space.dim))
        values = [np.asarray(one) for one in _together_and_alone(model, space, z, rows)]
        for among in values[:2]:
            alone, tolerance = values[2], APART * (1.0 + np.abs(values[2]))
            with np.errstate(invalid="ignore"):
                differs = np.isfinite(alone) & ~(np.abs(among - alone) <= tolerance)
            if differs.any():
                n = int(np.argmax(differs))
                function = getattr(model, "_log_likelihood", None)
                name = getattr(function, "__qualname__", None) or model.to_dict().get("name")
                raise ModelError(
                    f"The log-likelihood {name} mixes rows: row {n} has log-likelihood "
                    f"{alone[n]:.6g} alone and {among[n]:.6g} among others; it must return one "
                    "value per row that depends on this row alone (no mean, sum or shape over "
                    "rows)."
                )


@float64
def check_start(model: AbstractModel, space: ParameterSpace, initial) -> None:
    """Refuse a model whose start or prior there is not finite."""
    start = space.flatten(initial)
    if not np.isfinite(start).all():
        raise ModelError("The model's init has NaN or infinite values; start at finite numbers.")
    value = np.asarray(log_priors(model, space, start[None]))
    if value.shape != (1,):
        raise ModelError(f"log_prior returned shape {value.shape[1:]}; it must return a scalar.")
    if not np.isfinite(value[0]):
        raise ModelError(
            f"The log prior is {float(value[0])} at the model's init; start where the prior has "
            "mass, in unconstrained space."
        )
