"""Draws as the ArviZ ecosystem keeps them: an xarray DataTree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from decoct.errors import RequestError
from decoct.models.base import AbstractModel
from decoct.parameters import ParameterSpace
from decoct.posteriors.base import Draws
from decoct.precision import float64

UNCONSTRAINED = "unconstrained_posterior"
PER_DRAW = ("diverging", "acceptance_rate", "n_steps", "energy")


@eqx.filter_jit
def _constrain(model, space, z):
    return jax.vmap(jax.vmap(lambda one: model.constrain(space.unflatten(one))))(z)


@float64
def to_datatree(
    model: AbstractModel,
    space: ParameterSpace,
    rows: Mapping[str, np.ndarray],
    draws: Draws,
) -> xr.DataTree:
    """Return draws with the model's names, coordinates and the sampler's statistics.

    Parameters
    ----------
    model, space
        What was sampled.
    rows
        Raw rows, for the names of coefficients.
    draws
        What a sampler returned.
    """
    from arviz_base import from_dict

    named = {k: np.asarray(v) for k, v in _constrain(model, space, jnp.asarray(draws.z)).items()}
    dims, coords = model.dims(), {}
    for name, (dim, labels) in model.coords(rows).items():
        if name in named and named[name].ndim == 3 and named[name].shape[-1] == len(labels):
            dims[name], coords[dim] = [dim], np.asarray(labels, dtype=object)
    stats = {k: v for k, v in draws.info.items() if k in PER_DRAW}
    groups = {"posterior": named, "sample_stats": stats} if stats else {"posterior": named}
    tree = from_dict(groups, dims=dims, coords=coords)
    # apart, because a model may have a "z" or a dimension "parameter" of its own
    flat = from_dict({UNCONSTRAINED: {"z": draws.z}}, dims={"z": ["parameter"]})
    tree[UNCONSTRAINED] = flat[UNCONSTRAINED]
    scalars = {k: v for k, v in draws.info.items() if k not in PER_DRAW and np.ndim(v) == 0}
    tree["posterior"].attrs.update(_attributes({"sampler": draws.sampler, **scalars}))
    return tree


def unconstrained(draws: xr.DataTree | np.ndarray, dim: int) -> Float[np.ndarray, "chains S d"]:
    """Return the flat unconstrained draws of a DataTree, or of an (n, d) or (chains, n, d) array.

    Raises
    ------
    RequestError
        The draws have no unconstrained group, or another number of parameters.
    """
    if isinstance(draws, xr.DataTree):
        if UNCONSTRAINED not in draws.children:
            raise RequestError(
                f"The draws have no group '{UNCONSTRAINED}'; pass what coreset.sample() returned, "
                f"or an array of unconstrained draws of shape (n, {dim})."
            )
        z = draws[UNCONSTRAINED]["z"].transpose("chain", "draw", "parameter").to_numpy()
    else:
        z = np.asarray(draws, dtype=np.float64)
        z = z[None] if z.ndim == 2 else z
    if z.ndim != 3 or z.shape[-1] != dim:
        raise RequestError(
            f"The draws have shape {z.shape}; this model has {dim} unconstrained parameters, so "
            f"(n, {dim}) or (chains, n, {dim}) is wanted."
        )
    return z


def _attributes(values: dict[str, Any]) -> dict[str, Any]:
    """NetCDF attributes are strings and numbers."""
    return {k: (v if isinstance(v, str) else float(v)) for k, v in values.items()}
