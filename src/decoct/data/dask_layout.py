"""Which rows are in which partition, and which chunks of a pass can be done inside one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

CHUNKS_AT_ONCE = 64
"""Most chunks of one task: progress and load balance are as fine as a task."""

ROWS_AT_ONCE = 1 << 18
"""Most rows of one task, unless a single chunk is larger."""


@dataclass(frozen=True)
class Slice:
    """Rows ``begin:end`` of a partition, counted from its first row."""

    partition: int
    begin: int
    end: int

    @property
    def n_rows(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class Block:
    """Consecutive whole chunks: several in one partition, or one that lies across partitions."""

    start: int
    slices: tuple[Slice, ...]

    @property
    def n_rows(self) -> int:
        return sum(one.n_rows for one in self.slices)

    @property
    def rows_moved(self) -> int:
        """Rows that have to leave their partition: all but the largest slice."""
        return self.n_rows - max(one.n_rows for one in self.slices)


@dataclass(frozen=True)
class PartitionLengths:
    """Rows of the partitions of a table, in row order; some may be empty."""

    lengths: tuple[int, ...]

    @cached_property
    def starts(self) -> np.ndarray:
        """Global number of the first row of every partition, and N."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    @property
    def n_rows(self) -> int:
        return int(self.starts[-1])

    def cut_blocks(self, size: int) -> Iterator[Block]:
        """Yield the tasks of a pass in chunks of ``size`` rows, in row order."""
        most = size * max(1, min(CHUNKS_AT_ONCE, ROWS_AT_ONCE // size))
        row = 0
        while row < self.n_rows:
            partition = self._find_partition(row)
            end = int(self.starts[partition + 1])
            if end < self.n_rows:  # the last chunk of the table may be short
                end -= (end - row) % size
            end = min(end, row + most) if end > row else min(row + size, self.n_rows)
            yield Block(row, self._slice(row, end))
            row = end

    def split_rows(self, rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each partition with some of these ascending rows, and their numbers in it."""
        ends = np.searchsorted(rows, self.starts)
        for partition, (first, last) in enumerate(pairwise(ends)):
            if last > first:
                yield partition, rows[first:last] - self.starts[partition]

    def _find_partition(self, row: int) -> int:
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def _slice(self, begin: int, end: int) -> tuple[Slice, ...]:
        slices: list[Slice] = []
        while begin < end:
            partition = self._find_partition(begin)
            first, last = map(int, self.starts[partition : partition + 2])
            slices.append(Slice(partition, begin - first, min(end, last) - first))
            begin = min(end, last)
        return tuple(slices)


def coalesce(counts: Sequence[int], most: int) -> list[list[int]]:
    """Return runs of neighbouring non-empty pieces, of at most ``most`` rows if a piece allows."""
    runs: list[list[int]] = []
    n_rows = 0
    for i, count in enumerate(counts):
        if not count:
            continue
        if not runs or n_rows + count > most:
            runs.append([])
            n_rows = 0
        runs[-1].append(i)
        n_rows += count
    return runs
