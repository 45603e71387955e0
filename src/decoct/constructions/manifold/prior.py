"""Whether a prior can be drawn from: constructions that start at w = 0 start from draws of it."""

from __future__ import annotations

import numpy as np

from decoct.errors import ModelError
from decoct.potentials import Potentials

FAR = (1e3, 1e6, 1e9)
"""How far from its start the prior is looked at for mass that never ends."""


def require_proper_prior(potentials: Potentials, name: str) -> None:
    """Refuse a prior that does not fall along some axis.

    Parameters
    ----------
    potentials
        Of the model whose prior it is.
    name
        The construction that starts from the prior, for the message.

    Raises
    ------
    ModelError
        The log density, at a distance r from the model's start along an axis, is not below that at
        the start by log r.
    """
    start = potentials.space.flatten(potentials.initial)
    here = float(potentials.log_prior(start[None])[0])
    axes = np.concatenate([np.eye(len(start)), -np.eye(len(start))])
    for distance in FAR:
        there = potentials.log_prior(start + distance * axes)
        # what can be integrated falls faster than 1/distance in the end
        flat = ~(there - here < -np.log(distance))
        if flat.any():
            axis = int(np.argmax(flat)) % len(start)
            raise ModelError(
                f"The prior does not fall along parameter {axis}: its log density is {here:.4g} at "
                f"the start and {there[int(np.argmax(flat))]:.4g} at a distance of {distance:g}. "
                f"{name} starts from the prior, which must be proper; give a proper prior, or use "
                "IteratedHilbert, which starts from a subsample."
            )
