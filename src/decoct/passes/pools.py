"""Pools of candidate rows, filled by weighted reservoirs while the data go by.

A reservoir keeps the rows with the smallest scores; with E_n/p_n for scores, E_n independent
standard exponential numbers, that is a sample without replacement with odds p_n (Efraimidis &
Spirakis 2006). The numbers come from the key and the global row number, so no chunking changes the
sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from decoct.data.base import Chunk, Columns
from decoct.runtime.precision import compiled_quickly


class Pool(NamedTuple):
    """Rows of a table: global numbers (those of candidates ascend) and their encoded columns."""

    indices: Int[np.ndarray, " p"]
    rows: Columns

    def some(self, places: Int[np.ndarray, " m"] | slice) -> Pool:
        """Return the rows at these places."""
        rows = {name: column[places] for name, column in self.rows.items()}
        return Pool(self.indices[places], rows)


BLOCK = 8192
"""Rows whose random numbers are made at once, by one program for all tables."""

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


def row_exponentials(key: jax.Array, numbers: UInt[np.ndarray, " n"]) -> Float[np.ndarray, "n 2"]:
    """Return two standard exponential numbers for each global row number."""
    n = len(numbers)
    padded = np.concatenate([numbers, np.zeros(-n % BLOCK, dtype=np.uint64)])
    parts = [_exponentials(key, one) for one in padded.reshape(-1, BLOCK)]
    return np.concatenate([np.asarray(part) for part in parts])[:n] if parts else np.zeros((0, 2))


@compiled_quickly
def _exponentials(key, numbers) -> Float[Array, "n 2"]:
    def one(number):
        high, low = number >> 32, number & 0xFFFFFFFF
        row_key = jax.random.fold_in(jax.random.fold_in(key, high), low)
        return jax.random.exponential(row_key, (2,), dtype=jnp.float64)

    return jax.vmap(one)(numbers)
