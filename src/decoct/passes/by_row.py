"""A pass that returns a few numbers of every row: N of each, in row order.

Only the potentials of one chunk are in memory at a time.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from decoct.data.base import Chunk
from decoct.passes.chunk_sums import LEAST_PADDED, ChunkFunction, Embedding, pad, require_finite
from decoct.passes.expansions import BLOCK

CACHED = 1 << 17
"""Potentials that a kernel takes at once: with them transposed they stay in the cache."""


class RowStatistic(eqx.Module):
    """Numbers of a row, from its potentials at the draws; a value that a cluster can carry."""

    @abc.abstractmethod
    def measure(self, potentials: Float[Array, "S n"]) -> Any:
        """Return a pytree of arrays with n rows; pure JAX."""

    def finish(self, measured: Any) -> tuple[Float[np.ndarray, " n"], ...]:
        """Return the numbers, each an array of n, from what was measured; on the host."""
        return measured


@dataclass(frozen=True)
class ByRowOf(ChunkFunction):
    """Chunk -> a statistic of each of its rows."""

    statistic: RowStatistic

    def __call__(self, chunk: Chunk, at: Embedding) -> Pieces:
        with jax.enable_x64(True):
            rows, mask = pad(chunk, self.size)
            found = _measure(self.model, self.space, self.statistic, at, rows, mask)
            totals, sums, measured = jax.tree.map(np.asarray, found)
            require_finite(self.model, self.space, chunk, at, sums[: chunk.n_rows])
            numbers = self.statistic.finish(measured)
        piece = chunk.start, tuple(one[: chunk.n_rows] for one in numbers)
        return Pieces((piece,), totals)


@dataclass(frozen=True)
class Pieces:
    """Numbers of the rows of some chunks, with the number of each chunk's first row.

    ``totals`` (S,) are the sums of their potentials, in plain double precision.
    """

    parts: tuple[tuple[int, tuple[np.ndarray, ...]], ...]
    totals: Float[np.ndarray, " S"]

    def __add__(self, other: Pieces) -> Pieces:
        return Pieces(self.parts + other.parts, self.totals + other.totals)

    def joined(self) -> tuple[np.ndarray, ...]:
        """Return the totals, and the numbers of all rows in row order."""
        in_order = [numbers for _, numbers in sorted(self.parts, key=lambda part: part[0])]
        return self.totals, *(np.concatenate(one) for one in zip(*in_order, strict=True))


@eqx.filter_jit
def _measure(model, space, statistic: RowStatistic, at: Embedding, rows, mask):
    """Return the sums of potentials over the rows, over the draws, and every row's statistic."""
    n = len(next(iter(rows.values())))
    fitting = max(LEAST_PADDED, min(BLOCK, CACHED // at.size))
    size = min(n & -n, 1 << (fitting.bit_length() - 1))  # a power of two that divides n

    def of_block(block):
        rows, mask = block
        # the barrier keeps XLA from evaluating the potentials once for each sum
        potentials = jax.lax.optimization_barrier(at.evaluate(model, space, rows))
        return potentials @ mask, (potentials.sum(axis=0), statistic.measure(potentials))

    split = lambda one: one.reshape(n // size, size, *one.shape[1:])  # noqa: E731
    totals, found = jax.lax.map(of_block, jax.tree.map(split, (rows, mask)))
    return totals.sum(axis=0), *jax.tree.map(lambda one: one.reshape(n, *one.shape[2:]), found)
