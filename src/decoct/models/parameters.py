"""Parameters as one flat vector, and likelihood parameters in units of the noise.

The vector is z in R^d; a model works with a pytree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.errors import ModelError


class ParameterSpace(eqx.Module):
    """The shape of a parameter pytree; equal shapes compare equal, so nothing recompiles.

    Attributes
    ----------
    treedef
        Structure of the pytree.
    shapes
        Shape of each leaf, in flattening order.
    """

    treedef: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @classmethod
    def of(cls, params: Any) -> ParameterSpace:
        leaves, treedef = jax.tree.flatten(params)
        if not leaves:
            raise ModelError("The model's init has no parameters; give at least one array.")
        return cls(treedef, tuple(np.shape(leaf) for leaf in leaves))

    @property
    def dim(self) -> int:
        """d, the number of free parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    def flatten(self, params: Any) -> Float[np.ndarray, " d"]:
        """Return the pytree as one vector."""
        leaves = jax.tree.leaves(params)
        return np.concatenate([np.ravel(np.asarray(leaf, dtype=np.float64)) for leaf in leaves])

    @staticmethod
    def ravel(params: Any) -> Float[Array, " d"]:
        """Return the pytree as one vector; pure JAX."""
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])

    def unflatten(self, z: Float[Array, " d"]) -> Any:
        """Return the vector as a pytree; pure JAX."""
        leaves, begin = [], 0
        for shape in self.shapes:
            end = begin + math.prod(shape)
            leaves.append(jnp.reshape(z[begin:end], shape))
            begin = end
        return jax.tree.unflatten(self.treedef, leaves)


@dataclass(frozen=True)
class NoiseScale:
    """Which likelihood parameters are in units of the noise σ = exp(c t).

    Attributes
    ----------
    name
        That of t; 1/σ takes its place.
    power
        c.
    scaled
        Names of the arrays α, which α/σ takes the place of.
    """

    name: str
    power: float
    scaled: tuple[str, ...]

    def standardise(
        self, phi: Mapping[str, Any], exp: Callable[[Any], Any] = jnp.exp
    ) -> dict[str, Any]:
        """Return (α/σ, 1/σ) in place of (α, t)."""
        precision = exp(-self.power * phi[self.name])
        scaled = {name: phi[name] * precision for name in self.scaled}
        return {**phi, **scaled, self.name: precision}

    def undo(self, phi: Mapping[str, Array]) -> dict[str, Any]:
        """Return (α, t) from (α/σ, 1/σ)."""
        precision = phi[self.name]
        scaled = {name: phi[name] / precision for name in self.scaled}
        return {**phi, **scaled, self.name: -jnp.log(precision) / self.power}

    def label(self, name: str) -> str:
        """Return what has the place of a likelihood parameter."""
        exponent = {1.0: "", -1.0: "-"}.get(self.power, f"{self.power:g} ")
        sigma = f"exp({exponent}{self.name})"
        if name == self.name:
            return f"1 / {sigma}"
        return f"{name} / {sigma}" if name in self.scaled else name
