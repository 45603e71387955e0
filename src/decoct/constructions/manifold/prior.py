"""Whether a prior can be drawn from: constructions that start at w = 0 start from draws of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from decoct.errors import ModelError
from decoct.potentials import Potentials
from decoct.precision import float64

FAR = 1e9
"""How far from its start the prior is looked at for mass that never ends."""


def require_proper_prior(potentials: Potentials, name: str) -> None:
    """Refuse a prior that does not fall along some axis, or eigenvector of its curvature.

    Parameters
    ----------
    potentials
        Of the model whose prior it is.
    name
        The construction that starts from the prior, for the message.

    Raises
    ------
    ModelError
        The log density, at a distance r = `FAR` from the model's start, is not below that at the
        start by log r: what can be integrated falls faster than 1/r in the end.
    """
    start = potentials.space.flatten(potentials.initial)
    here = float(potentials.log_prior(start[None])[0])
    axes = np.concatenate([np.eye(len(start)), _curved(potentials, start)])
    there = potentials.log_prior(start + FAR * np.concatenate([axes, -axes]))
    flat = ~(there - here < -np.log(FAR))
    if not flat.any():
        return
    first = int(np.argmax(flat))
    axis = first % len(axes)
    along = f"parameter {axis}"
    if axis >= len(start):
        along = f"the direction {np.array2string(axes[axis], precision=2, threshold=8)}"
    raise ModelError(
        f"The prior does not fall along {along}: its log density is {here:.4g} at the start and "
        f"{there[first]:.4g} at a distance of {FAR:g}. {name} starts from the prior, which must be "
        "proper; give a proper prior, or use IteratedHilbert, which starts from a subsample."
    )


@float64
def _curved(potentials: Potentials, start: np.ndarray) -> Float[np.ndarray, "d d"]:
    """Return the eigenvectors of the prior's Hessian at the start, one a row."""
    model, space = potentials.model, potentials.space
    hessian = np.asarray(
        jax.hessian(lambda z: model.log_prior(space.unflatten(z)))(jnp.asarray(start))
    )
    if not np.isfinite(hessian).all():
        return np.eye(len(start))
    return np.linalg.eigh(0.5 * (hessian + hessian.T))[1].T
