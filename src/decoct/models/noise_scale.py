"""Likelihood parameters in units of the noise: see `NoiseScale`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array


@dataclass(frozen=True)
class NoiseScale:
    """Which likelihood parameters are in units of the noise.

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
