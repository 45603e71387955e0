"""Draws as the ArviZ ecosystem keeps them: an xarray DataTree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from decoct.errors import RequestError
from decoct.models.base import AbstractModel
from decoct.models.parameters import ParameterSpace
from decoct.runtime.precision import float64
from decoct.samplers.base import Draws

if TYPE_CHECKING:
    import xarray as xr

UNCONSTRAINED = "unconstrained_posterior"

MARK = "decoct_coreset"
"""Attribute of draws: the fingerprint of the coreset that they were sampled from."""

PER_DRAW = ("diverging", "acceptance_rate", "n_steps", "energy")


@eqx.filter_jit
def _constrain(model, space, z):
    return jax.vmap(jax.vmap(lambda one: model.constrain(space.unflatten(one))))(z)


@float64
def to_datatree(
    model: AbstractModel, space: ParameterSpace, rows: Mapping[str, np.ndarray], draws: Draws
) -> xr.DataTree:
    """Return draws with the model's names, coordinates and the sampler's statistics.

    The raw rows have the names of coefficients.
    """
    from arviz_base import from_dict

    named = {k: np.asarray(v) for k, v in _constrain(model, space, jnp.asarray(draws.z)).items()}
    dims, coords = _axes(model, rows, {name: v.shape[2:] for name, v in named.items()})
    stats = {k: v for k, v in draws.info.items() if k in PER_DRAW}
    groups = {"posterior": named, "sample_stats": stats} if stats else {"posterior": named}
    tree = from_dict(groups, dims=dims, coords=coords)
    # apart, because a model may have a "z" or a dimension "parameter" of its own
    flat = from_dict({UNCONSTRAINED: {"z": draws.z}}, dims={"z": ["parameter"]})
    tree[UNCONSTRAINED] = flat[UNCONSTRAINED]
    scalars = {k: v for k, v in draws.info.items() if k not in PER_DRAW and np.ndim(v) == 0}
    # attributes of NetCDF are strings and numbers
    attributes = {k: v if isinstance(v, str) else float(v) for k, v in scalars.items()}
    tree["posterior"].attrs.update({"sampler": draws.sampler, **attributes})
    return tree


def _axes(
    model: AbstractModel, rows: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """Return the names of the axes of each variable, and the labels along them.

    Variables that share the name of an axis share its labels. A name with two lengths is not used.
    """
    dims = {name: list(axes) for name, axes in model.dims().items() if name in shapes}
    known = model.coords(rows)
    for name, (dim, labels) in known.items():
        if shapes.get(name) == (len(labels),):
            dims[name] = [dim]
    lengths: dict[str, set[int]] = {}
    for name, axes in dims.items():
        for dim, length in zip(axes, shapes[name], strict=False):
            lengths.setdefault(dim, set()).add(length)
    for name, axes in dims.items():
        plain = (dim if len(lengths[dim]) == 1 else f"{name}_dim_{i}" for i, dim in enumerate(axes))
        dims[name] = list(plain)
    coords = {
        dim: np.asarray(labels, dtype=object)
        for dim, labels in known.values()
        if lengths.get(dim) == {len(labels)}
    }
    return dims, coords


def unconstrained(
    draws: xr.DataTree | np.ndarray, dim: int, mark: str = ""
) -> Float[np.ndarray, "chains S d"]:
    """Return the flat unconstrained draws of a DataTree, or of an (n, d) or (chains, n, d) array.

    ``mark`` is the fingerprint of the coreset that they are to be of; draws without one will do.

    Raises
    ------
    RequestError
        The draws have no unconstrained group (those of other packages have none), are not finite
        numbers, have another number of parameters, or were sampled from another coreset.
    """
    wanted = (
        f"pass what coreset.sample() returned, or an array of unconstrained draws of shape "
        f"(n, {dim}); from_numpyro(...).unconstrain and from_pymc(...).unconstrain make it of "
        "NumPyro's and PyMC's draws."
    )
    if hasattr(draws, "children"):  # an xarray.DataTree, without loading xarray
        tree: Any = draws
        if UNCONSTRAINED not in tree.children:
            raise RequestError(f"The draws have no group '{UNCONSTRAINED}'; {wanted}")
        if mark and tree.attrs.get(MARK, mark) != mark:
            raise RequestError("These draws were sampled from another coreset; sample this one.")
        array = tree[UNCONSTRAINED]["z"]
        if "posterior" not in tree.children or set(array.dims) != {"chain", "draw", "parameter"}:
            raise RequestError(
                "The draws have lost the group 'posterior' or a dimension, chain or draw; keep "
                "them: draws.isel(chain=[0])."
            )
        z = array.transpose("chain", "draw", "parameter").to_numpy()
    else:
        try:
            z = np.asarray(draws, dtype=np.float64)
        except (TypeError, ValueError):
            raise RequestError(
                f"A {type(draws).__name__} is not an array of draws; {wanted}"
            ) from None
        z = z[None] if z.ndim == 2 else z
    if z.ndim != 3 or not z.shape[1] or z.shape[-1] != dim:
        raise RequestError(
            f"The draws have shape {z.shape}; this model has {dim} unconstrained parameters, so "
            f"(n, {dim}) or (chains, n, {dim}) is wanted."
        )
    if not np.isfinite(z).all():
        raise RequestError("A draw is NaN or infinite; give draws that are finite.")
    return z


def refuse_weighted(draws: Any) -> None:
    """Refuse draws of a DataTree that are not equally likely."""
    if "log_weight" in getattr(draws, "children", {}).get("sample_stats", {}):
        raise RequestError(
            "These draws are weighted ('log_weight' in sample_stats); give check.correct(draws), "
            "which resamples them."
        )
