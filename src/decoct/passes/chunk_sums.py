"""Functions of one chunk in a pass, and the sums of their results.

Such a function is a value that can be sent to workers. It pads the chunk to a stable number of
rows, so that one compiled program serves all chunks, and returns a `Partial`: sums in pairs of
doubles, and the rows with the smallest scores.

What it evaluates is an `Embedding` of rows as vectors of a Hilbert space of functions of θ
(Campbell & Broderick 2019, Section 5). A projection on draws μ_1..μ_S ~ π̂ makes each potential a
vector whose inner products estimate

    L2      ⟨f_n, f_m⟩ = Cov_π̂[f_n, f_m]        ≈ Σ_s g_ns g_ms/(S−1),  g_ns = f_n(μ_s) − mean_s

(Eq. 5.4 with 5.10). The vectors are centred, because a potential is defined up to a constant. The
other norms of that paper are in `decoct.constructions.hilbert.norms`.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.data.base import Chunk
from decoct.errors import ModelError, PotentialError
from decoct.models.base import AbstractModel
from decoct.models.parameters import ParameterSpace
from decoct.passes.expansions import (
    Expansion,
    bends_along,
    expand_chunk,
    quadratics_of,
    sums_and_variances,
    to_blocks,
)
from decoct.passes.pools import Reservoir, row_exponentials
from decoct.runtime.precision import compile_quickly, float64
from decoct.stats.summation import Sum

ODDS = "odds of a row"
"""Name of the column that a sampled row carries its odds in."""

NORM_DRAWS = 128
"""Draws that ‖g_n‖² is estimated from: it only sets the odds of entering the pool."""

LEAST_PADDED = 128
"""Rows that fewer are padded to, so that one program serves them."""

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


@dataclass(frozen=True)
class ChunkFunction:
    """What all functions of a chunk have; ``size`` is the number of rows to pad to."""

    model: AbstractModel
    space: ParameterSpace
    size: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class TotalsOf(ChunkFunction):
    """Chunk -> Σ f_n(θ_s), the first ``finite`` of which must be."""

    finite: int | None = None

    def __call__(self, chunk: Chunk, at: Embedding) -> Sum:
        with jax.enable_x64(True):
            rows, mask = pad(chunk, self.size)
            totals = np.asarray(chunk_totals(self.model, self.space, at, rows, mask))
            needed, values = at.first(self.finite), totals[: self.finite]
            require_finite(self.model, self.space, chunk, needed, values)
        return Sum.of(totals)


@dataclass(frozen=True)
class PassOf(ChunkFunction):
    """Chunk -> totals, sum of norms, and the chunk's entries for the two reservoirs."""

    places: int

    def __call__(
        self, chunk: Chunk, at: Embedding, key: jax.Array, expansion: Expansion | None
    ) -> Partial:
        with jax.enable_x64(True):
            rows, mask = pad(chunk, self.size)
            # Two kernels: XLA vectorises a log only next to a single reduction.
            totals = np.asarray(chunk_totals(self.model, self.space, at, rows, mask))
            few = at.first(NORM_DRAWS)
            squares = np.asarray(_chunk_squares(self.model, self.space, few, rows, expansion))
            squares = squares[: chunk.n_rows] * (at.size / few.size)
            require_finite(self.model, self.space, chunk, at, totals, squares)
        first, second = row_exponentials(key, chunk.start, chunk.n_rows)
        with np.errstate(divide="ignore"):
            scores = (first / squares, second)
        reservoirs = tuple(Reservoir.of(chunk, one, self.places) for one in scores)
        return Partial.of((totals, np.sqrt(squares).sum()), reservoirs)


@dataclass(frozen=True)
class SampleOf(ChunkFunction):
    """Chunk -> totals, Σ q_n, and the chunk's entries for the two reservoirs."""

    places: int
    scale: float
    cut: float
    has_predictors: bool

    def __call__(self, chunk: Chunk, at: Values, key: jax.Array, expansion: Expansion) -> Partial:
        with jax.enable_x64(True):
            rows, mask = pad(chunk, self.size)
            draws = at.draws[:0] if self.has_predictors else at.draws  # one program for all counts
            model, space, totals = self.model, self.space, np.zeros(0)
            sums, variances = sums_and_variances(model, space, expansion, rows, mask, draws)
            if at.size:
                totals = np.asarray(chunk_totals(model, space, at, rows, mask))
            require_finite(model, space, chunk, at, totals)
        first, second = row_exponentials(key, chunk.start, chunk.n_rows)
        odds = 0.1 + 0.9 * np.sqrt(np.asarray(variances)[: chunk.n_rows]) / self.scale
        scores = [np.where(one < self.cut, one, np.inf) for one in (first / odds, second / odds)]
        known = Chunk(chunk.start, {**chunk.columns, ODDS: odds})
        reservoirs = tuple(Reservoir.of(known, one, self.places) for one in scores)
        return Partial.of((totals, *sums), reservoirs)


@dataclass(frozen=True)
class GradientOf(ChunkFunction):
    """Chunk -> value and gradient of Σ f_n at one point."""

    def __call__(self, chunk: Chunk, at: Values) -> Partial:
        with jax.enable_x64(True):
            rows, mask = pad(chunk, self.size)
            return Partial.of(_chunk_gradient(self.model, self.space, at.draws[0], rows, mask))


@dataclass(frozen=True)
class ExpansionOf(ChunkFunction):
    """Chunk -> value, gradient, Hessian of Σ q_n."""

    strict: bool = True

    def __call__(self, chunk: Chunk, at: Values, expansion: Expansion) -> Partial:
        with jax.enable_x64(True):
            rows, mask = pad(chunk, self.size)
            parts = expand_chunk(self.model, self.space, expansion, rows, mask)
            if self.strict:
                require_finite(self.model, self.space, chunk, at, parts[0])
            return Partial.of(parts)


@dataclass(frozen=True)
class NotFiniteOf(ChunkFunction):
    """Chunk -> the number of its first row of which Σ_ij ∂²f_n/∂φ_i∂φ_j is not finite, if any."""

    def __call__(self, chunk: Chunk, at: Values, expansion: Expansion) -> tuple[int, ...]:
        with jax.enable_x64(True):
            rows, _ = pad(chunk, self.size)
            bends = bends_along(self.model, self.space, expansion, rows, jnp.ones_like(at.draws))
            bad = np.flatnonzero(~np.isfinite(np.asarray(bends)[: chunk.n_rows, 0]))
        return tuple((chunk.start + bad[:1]).tolist())


@dataclass(frozen=True)
class Partial:
    """Sums over chunks, and the rows with the smallest scores so far."""

    sums: tuple[Sum, ...]
    reservoirs: tuple[Reservoir, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Any], reservoirs: tuple[Reservoir, ...] = ()) -> Partial:
        return cls(tuple(Sum.of(np.asarray(part)) for part in parts), reservoirs)

    def __add__(self, other: Partial) -> Partial:
        return Partial(
            tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            tuple(a + b for a, b in zip(self.reservoirs, other.reservoirs, strict=True)),
        )

    def rounded(self) -> list[np.ndarray]:
        return [one.rounded() for one in self.sums]


def pad(chunk: Chunk, size: int, whole: bool = False) -> tuple[dict[str, Array], Array]:
    """Pad a chunk to a stable number of rows with copies of its first row, and a mask.

    Copies keep every value valid, so that a padded row can never make a NaN. A chunk of half of
    ``size`` or more, or any with ``whole``, is padded to all of it: one program more costs more.
    """
    n = chunk.n_rows
    bucket = max(LEAST_PADDED, 2 ** int(np.ceil(np.log2(n))))
    bucket = max(n, size if whole or 2 * n >= size else bucket)
    columns = chunk.columns
    if bucket > n:
        source = np.concatenate([np.arange(n), np.zeros(bucket - n, dtype=np.int64)])
        columns = {name: column[source] for name, column in columns.items()}
    # one call for all of them: `jnp.asarray` of each costs more than a small kernel
    return jax.device_put((dict(columns), (np.arange(bucket) < n).astype(np.float64)))


@compile_quickly
def row_potentials(model, space, at: Embedding, rows) -> Float[Array, "n S"]:
    return at.evaluate(model, space, rows).T


@eqx.filter_jit
def chunk_totals(model, space, at: Embedding, rows, mask) -> Float[Array, " S"]:
    def totals(block) -> Float[Array, " S"]:
        rows, mask = block
        return (at.evaluate(model, space, rows) * mask[None, :]).sum(axis=1)

    return jax.lax.map(totals, to_blocks((rows, mask))).sum(axis=0)


@eqx.filter_jit
def _chunk_squares(
    model, space, at: Embedding, rows, expansion: Expansion | None
) -> Float[Array, " n"]:
    """Σ_s of every row's squared coordinates, centred where the embedding is."""

    def squares(block) -> Float[Array, " n"]:
        # the barrier keeps XLA from making one loop of this and the sums, which it cannot vectorise
        values = jax.lax.optimization_barrier(at.evaluate(model, space, block))
        if expansion is not None:
            assert isinstance(at, Values)
            delta = at.draws - expansion.centre[None]
            values = values - quadratics_of(model, space, expansion, block, delta).T
        if at.centred:
            values = values - values.mean(axis=0, keepdims=True)
        return jnp.square(values).sum(axis=0)

    return jax.lax.map(squares, to_blocks(rows)).reshape(-1)


@compile_quickly
def _chunk_gradient(model, space, z, rows, weights) -> tuple[Float[Array, ""], Float[Array, " d"]]:
    def total(z):
        return weights @ model.log_likelihood(space.unflatten(z), rows)

    return jax.value_and_grad(total)(z)


def require_finite(model, space, chunk: Chunk, at: Embedding, *found: Any) -> None:
    """Refuse non-finite results by the first row and draw with a non-finite potential."""
    if all(np.isfinite(np.asarray(one)).all() for one in found):
        return
    rows, _ = pad(chunk, chunk.n_rows)
    values = np.asarray(row_potentials(model, space, at, rows))[: chunk.n_rows]
    bad = np.argwhere(~np.isfinite(values))
    if not len(bad):
        raise ModelError(
            "The log-likelihoods of the rows are finite, but too large to be added up or squared "
            "in double precision; check the model's units, or give it a narrower prior."
        )
    row, place = bad[0]
    raise PotentialError(chunk.start + int(row), str(values[row, place]), at.describe(place))
