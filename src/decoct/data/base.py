"""Where rows live: the contract every engine keeps.

The whole contract is `Rows.map_reduce`: a function of one chunk and a small broadcast, and an
associative reduction of small results. In-memory arrays, Parquet folders and clusters differ only
in where ``fn`` runs, so everything above this layer is written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

T = TypeVar("T")

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a table.

    Attributes
    ----------
    start
        Global number of the first row.
    columns
        Name -> array, rows on axis 0.
    """

    start: int
    columns: Columns

    @property
    def n_rows(self) -> int:
        return len(next(iter(self.columns.values())))

    def piece(self, begin: int, end: int) -> Chunk:
        """Return rows ``begin:end`` of this chunk, still knowing their global numbers."""
        return Chunk(self.start + begin, {k: v[begin:end] for k, v in self.columns.items()})


@runtime_checkable
class Rows(Protocol):
    """A table of rows, wherever it lives."""

    @property
    def n_rows(self) -> int:
        """N, the number of rows."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        ...

    def chunks(
        self, size: int | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[Chunk]:
        """Yield consecutive chunks of at most ``size`` rows, in row order."""
        ...

    def take(self, indices: np.ndarray, columns: Sequence[str] | None = None) -> Columns:
        """Return the rows with these global numbers, in the order asked for."""
        ...

    def map_reduce(
        self,
        fn: Callable[..., T],
        reduce: Callable[[T, T], T],
        *broadcast: object,
        size: int | None = None,
        columns: Sequence[str] | None = None,
        on_chunk: Callable[[int], None] | None = None,
    ) -> T:
        """Return the reduction of ``fn(chunk, *broadcast)`` over all chunks.

        ``reduce`` must be associative; results are combined in row order. ``on_chunk`` is told
        the number of rows of every chunk done (progress).
        """
        ...


def columns_length(columns: Mapping[str, np.ndarray]) -> int:
    """Return the number of rows of a mapping of equally long arrays."""
    return len(next(iter(columns.values())))
