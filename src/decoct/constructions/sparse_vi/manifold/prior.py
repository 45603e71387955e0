"""Whether a prior can be drawn from: constructions that start at w = 0 start from draws of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from decoct.errors import ModelError
from decoct.passes.potentials import Potentials
from decoct.runtime.precision import float64

DISTANCE = 1e9
"""Distance from the start at which the prior must have fallen."""


def require_proper_prior(potentials: Potentials, name: str) -> None:
    """Refuse a prior that does not fall fast enough along some direction.

    Along the axes, the eigenvectors of its curvature and, up to 40 parameters, the diagonals of
    all pairs, a proper density must fall faster than 1/r; in directions in which all parameters
    grow, faster than r^−d, whether its tails are round or a product.

    Raises
    ------
    ModelError
        The log density at the distance r = `DISTANCE` from the model's start is not below that at
        the start by log r, or d log r. The message names the construction.
    """
    start = potentials.space.flatten(potentials.initial)
    dim = len(start)
    here = float(potentials.log_prior(start[None])[0])
    unit = np.eye(dim)
    first, second = np.triu_indices(dim if dim <= 40 else 0, 1)
    pairs = np.concatenate([unit[first] + unit[second], unit[first] - unit[second]])
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(15, dim))
    generic = np.concatenate([np.ones((1, dim)), signs]) / np.sqrt(dim)
    curved = _find_curvature_axes(potentials, start)
    axes = np.concatenate([unit, curved, pairs / np.sqrt(2.0), generic])
    dims = np.concatenate([np.ones(len(axes) - len(generic)), np.full(len(generic), dim)])
    there = potentials.log_prior(start + DISTANCE * np.concatenate([axes, -axes]))
    # NaN, as of 0/0 where a scale has become 0, says nothing either way
    flat = there - here >= -np.log(DISTANCE) * np.concatenate([dims, dims])
    if not flat.any():
        return
    worst = int(np.argmax(flat))
    axis = worst % len(axes)
    along = f"parameter {axis}"
    if axis >= len(start):
        along = f"the direction {np.array2string(axes[axis], precision=2, threshold=8)}"
    raise ModelError(
        f"The prior does not fall along {along}: its log density is {here:.4g} at the start and "
        f"{there[worst]:.4g} at a distance of {DISTANCE:g}. {name} starts from the prior, which "
        "must be proper; give a proper prior, or use IteratedHilbert, which starts from a "
        "subsample."
    )


@float64
def _find_curvature_axes(potentials: Potentials, start: np.ndarray) -> Float[np.ndarray, "d d"]:
    """Return the eigenvectors of the prior's Hessian at the start, one a row."""
    model, space = potentials.model, potentials.space
    hessian = np.asarray(
        jax.hessian(lambda z: model.log_prior(space.unflatten(z)))(jnp.asarray(start))
    )
    if not np.isfinite(hessian).all():
        return np.eye(len(start))
    return np.linalg.eigh(0.5 * (hessian + hessian.T))[1].T
