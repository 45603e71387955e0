"""Rows as vectors of a Hilbert space of functions of θ (Campbell & Broderick 2019, Section 5).

A projection on draws μ_1..μ_S ~ π̂ makes each potential a vector whose inner products estimate

    L2      ⟨f_n, f_m⟩ = Cov_π̂[f_n, f_m]        ≈ Σ_s g_ns g_ms/(S−1),  g_ns = f_n(μ_s) − mean_s

(Eq. 5.4 with 5.10). The vectors are centred, because a potential is defined up to a constant. The
other norms of that paper are in `decoct.constructions.hilbert.norms`.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from decoct.models.base import AbstractModel
from decoct.models.parameters import ParameterSpace
from decoct.runtime.precision import float64

ROUNDING = 8 * np.finfo(np.float64).eps
"""Spread of a potential over the draws, relative to its size, that is rounding alone."""


class Embedding(eqx.Module):
    """One number per row and coordinate, and how those become vectors of the norm."""

    centred: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Number of coordinates."""

    @property
    def scale(self) -> float:
        """Factor that turns coordinates into vectors whose products are those of the norm."""
        return 1.0

    @abc.abstractmethod
    def evaluate(self, model: AbstractModel, space: ParameterSpace, rows) -> Float[Array, "S n"]:
        """Return the coordinates of every row; pure JAX."""

    def first(self, n: int | None) -> Embedding:
        """Return the first coordinates only, for cheap norms; None for all."""
        return self

    def describe(self, coordinate: int) -> str:
        """Say where a coordinate is taken, for error messages."""
        return f"coordinate {coordinate}"

    def vectors(self, values: Float[np.ndarray, "... S"]) -> Float[np.ndarray, "... S"]:
        """Return vectors of the norm from coordinates (rows', or the totals')."""
        if not self.centred:
            return values * self.scale
        mean = values.mean(axis=-1, keepdims=True)
        centred = values - mean
        # What is left of a potential that does not vary is rounding, not a direction.
        spread = np.maximum(centred.max(axis=-1), -centred.min(axis=-1))
        centred[spread <= ROUNDING * np.abs(mean[..., 0])] = 0.0
        centred *= self.scale
        return centred


class Values(Embedding):
    """Potentials at draws, centred over them: the weighted L2 norm (Eq. 5.10)."""

    draws: Float[Array, "S d"]
    centred: ClassVar[bool] = True

    @property
    def size(self) -> int:
        return self.draws.shape[0]

    @property
    def scale(self) -> float:
        return 1.0 / np.sqrt(max(1, self.size - 1))

    def evaluate(self, model: AbstractModel, space: ParameterSpace, rows) -> Float[Array, "S n"]:
        # Draws first, which XLA's CPU backend vectorises best.
        return jax.vmap(lambda z: model.log_likelihood(space.unflatten(z), rows))(self.draws)

    def first(self, n: int | None) -> Values:
        return Values(self.draws[:n])

    def describe(self, coordinate: int) -> str:
        with np.printoptions(precision=4, threshold=8):
            return f"draw {coordinate} (parameters {np.asarray(self.draws[coordinate])})"


@float64
def as_embedding(draws: Float[np.ndarray, "S d"]) -> Values:
    """Return the potentials at draws as an embedding."""
    return Values(jax.device_put(np.asarray(draws, dtype=np.float64)))
