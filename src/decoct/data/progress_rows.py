"""Rows that show progress: for code that passes over the data without announcing it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from decoct.data.arrays import ArrayRows
from decoct.data.base import Chunk, Rows
from decoct.data.rows_proxy import RowsProxy
from decoct.runtime import progress

T = TypeVar("T")


def counted_rows(rows: Rows) -> int:
    """Return N; if that takes a pass, as for CSV files, show its progress."""
    survey = getattr(rows, "survey", None)
    if survey is not None:
        survey()
    return rows.n_rows


def traffic(rows: Rows) -> dict[str, int] | None:
    """Return what travelled to and from a cluster, if the rows live on one."""
    known = getattr(rows, "traffic", None)
    return None if known is None else known.to_dict()


def watched(rows: Rows, label: str) -> Rows:
    """Return the same rows, with a task announced for every pass.

    Rows in memory come back as they are: a pass over them takes no time.

    Parameters
    ----------
    rows
        The table.
    label
        What the passes are for.
    """
    if isinstance(rows, ArrayRows):
        return rows
    counted_rows(rows)
    return _WatchedRows(rows, label)


class _WatchedRows(RowsProxy):
    def __init__(self, rows: Rows, label: str) -> None:
        super().__init__(rows)
        self._label = label

    def chunks(
        self, size: int | None = None, columns: Sequence[str] | None = None
    ) -> Generator[Chunk, None, None]:
        return self._counted(self._rows.chunks(size, columns))

    def _counted(self, chunks: Generator[Chunk, None, None]) -> Generator[Chunk, None, None]:
        progress.begin(self._label, self.n_rows)
        try:
            for chunk in chunks:
                yield chunk
                progress.advance(chunk.n_rows)
        finally:
            chunks.close()

    def map_reduce(
        self,
        fn: Callable[..., T],
        reduce: Callable[[T, T], T],
        *broadcast: object,
        size: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> T:
        progress.begin(self._label, self.n_rows)
        return self._rows.map_reduce(fn, reduce, *broadcast, size=size, columns=columns)
