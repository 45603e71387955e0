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


def merge_pools(*pools: Pool) -> Pool:
    """Return the union of pools, ascending, each row once."""
    indices = np.concatenate([pool.indices for pool in pools])
    unique, first = np.unique(indices, return_index=True)
    rows = {
        name: np.concatenate([pool.rows[name] for pool in pools])[first] for name in pools[0].rows
    }
    return Pool(unique, rows)


@dataclass(frozen=True)
class Reservoir:
    """The rows with the smallest scores so far; ties broken by row number."""

    places: int
    scores: np.ndarray
    indices: np.ndarray
    rows: Columns

    @classmethod
    def of(cls, chunk: Chunk, scores: np.ndarray, places: int) -> Reservoir:
        chosen = np.flatnonzero(np.isfinite(scores))
        if len(chosen) > places:
            chosen = chosen[np.argpartition(scores[chosen], places - 1)[:places]]
        rows = {name: column[chosen] for name, column in chunk.columns.items()}
        return cls(places, scores[chosen], chunk.start + chosen, rows)

    def __add__(self, other: Reservoir) -> Reservoir:
        if len(self.scores) == self.places:
            other = other.keep(other.scores < self.scores.max())
        both = Reservoir(
            self.places,
            np.concatenate([self.scores, other.scores]),
            np.concatenate([self.indices, other.indices]),
            {k: np.concatenate([v, other.rows[k]]) for k, v in self.rows.items()},
        )
        if len(both.scores) <= self.places:
            return both
        return both.keep(np.lexsort((both.indices, both.scores))[: self.places])

    def keep(self, which: np.ndarray) -> Reservoir:
        rows = {name: column[which] for name, column in self.rows.items()}
        return Reservoir(self.places, self.scores[which], self.indices[which], rows)


def row_exponentials(key: jax.Array, start: int, n: int) -> Float[np.ndarray, "2 n"]:
    """Return two standard exponential numbers for each of n rows from global number ``start`` on.

    Philox counts: a row takes two of the four numbers that a step of its counter gives.
    """
    counter = np.random.Philox(key=np.asarray(jax.random.key_data(key)).astype(np.uint64))
    numbers = np.random.Generator(counter.advance(start // 2))
    uniform = numbers.random((n + start % 2, 2))[start % 2 :]
    return -np.log1p(-uniform.T)
