"""Jacobians of a model's parameters, which priors on the unconstrained scale include.

A prior raised to a power is another prior on each scale: p(σ)^α dσ is not p(z)^α dz for z = log σ.
Power scaling applies to the scale that the model is written in.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.models.base import AbstractModel
from decoct.models.parameters import ParameterSpace
from decoct.runtime.precision import float64


@float64
def log_jacobians(
    model: AbstractModel, space: ParameterSpace, z: Float[np.ndarray, "S d"]
) -> Float[np.ndarray, " S"]:
    """Return log |dx/dz| at each of the draws, up to a constant.

    x are the parameters that `AbstractModel.constrain` gives by the names that they have in the
    model's pytree: the sites of NumPyro models and the variables of PyMC's. For more entries than
    parameters, as a simplex has, it is ½ log det JᵀJ. 0 where no name is on another scale.
    """
    params = space.unflatten(jnp.asarray(z[-1]))
    if not isinstance(params, dict):
        return np.zeros(len(z))
    constrained = model.constrain(params)
    names = [
        k for k in params if k in constrained and not np.array_equal(params[k], constrained[k])
    ]
    return sum((np.asarray(_of_one(model, space, k, z)) for k in names), start=np.zeros(len(z)))


@eqx.filter_jit
def _of_one(
    model: AbstractModel, space: ParameterSpace, name: str, draws: Float[np.ndarray, "S d"]
) -> Float[Array, " S"]:
    def log_jacobian(z: Float[Array, " d"]) -> Float[Array, ""]:
        params = space.unflatten(z)

        def value(one: Any) -> Array:
            return jnp.ravel(model.constrain({**params, name: one})[name])

        own = params[name]
        J = jnp.reshape(jax.jacfwd(value)(own), (-1, own.size))
        return 0.5 * jnp.linalg.slogdet(J.T @ J)[1]

    return jax.lax.map(log_jacobian, jnp.asarray(draws))
