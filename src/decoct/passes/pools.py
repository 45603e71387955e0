"""Pools of candidate rows, filled by weighted reservoirs during a pass.

A reservoir keeps the rows with the smallest scores; with E_n/p_n for scores, E_n independent
standard exponential numbers, that is a sample without replacement with odds p_n (Efraimidis &
Spirakis 2006). The numbers come from the key and the global row number, so no chunking changes the
sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from decoct.data.base import Chunk, Columns


class Pool(NamedTuple):
    """Rows of a table: global numbers (those of candidates ascend) and their encoded columns."""

    indices: Int[np.ndarray, " p"]
    rows: Columns

    def some(self, places: Int[np.ndarray, " m"] | slice) -> Pool:
        """Return the rows at these places."""
        rows = {name: column[places] for name, column in self.rows.items()}
        return Pool(self.indices[places], rows)


EMPTY_POOL = Pool(np.zeros(0, dtype=np.int64), {})


def _join(*pools: Pool) -> Pool:
    names, indices = pools[0].rows, np.concatenate([pool.indices for pool in pools])
    return Pool(indices, {n: np.concatenate([pool.rows[n] for pool in pools]) for n in names})


def merge_pools(*pools: Pool) -> Pool:
    """Return the union of pools, ascending, each row once."""
    both = _join(*pools)
    return both.some(np.unique(both.indices, return_index=True)[1])


@dataclass(frozen=True)
class Reservoir:
    """The rows with the smallest scores so far; ties broken by row number."""

    places: int
    scores: np.ndarray
    pool: Pool

    @classmethod
    def of(cls, chunk: Chunk, scores: np.ndarray, places: int) -> Reservoir:
        chosen = np.flatnonzero(np.isfinite(scores))
        if len(chosen) > places:
            chosen = chosen[np.argpartition(scores[chosen], places - 1)[:places]]
        rows = {name: column[chosen] for name, column in chunk.columns.items()}
        return cls(places, scores[chosen], Pool(chunk.start + chosen, rows))

    def __add__(self, other: Reservoir) -> Reservoir:
        if len(self.scores) == self.places:
            other = other.keep(other.scores < self.scores.max())
        scores = np.concatenate([self.scores, other.scores])
        both = Reservoir(self.places, scores, _join(self.pool, other.pool))
        if len(scores) <= self.places:
            return both
        return both.keep(np.lexsort((both.pool.indices, scores))[: self.places])

    def keep(self, which: np.ndarray) -> Reservoir:
        return Reservoir(self.places, self.scores[which], self.pool.some(which))


def row_exponentials(key: jax.Array, start: int, n: int) -> Float[np.ndarray, "2 n"]:
    """Return two standard exponential numbers for each of n rows from global number ``start`` on.

    Philox counts: a row takes two of the four numbers that a step of its counter gives.
    """
    counter = np.random.Philox(key=np.asarray(jax.random.key_data(key)).astype(np.uint64))
    numbers = np.random.Generator(counter.advance(start // 2))
    uniform = numbers.random((n + start % 2, 2))[start % 2 :]
    return -np.log1p(-uniform.T)
