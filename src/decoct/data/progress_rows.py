"""Rows whose passes show their progress, for code that has no progress of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from decoct.data.arrays import ArrayRows
from decoct.data.base import Chunk, Rows, Stretch
from decoct.data.rows_proxy import RowsProxy

T = TypeVar("T")


def counted_rows(rows: Rows, stretch: Stretch) -> int:
    """Return N; if that takes a pass, as for CSV files, show its progress."""
    survey = getattr(rows, "survey", None)
    if survey is not None:
        survey(stretch)
    return rows.n_rows


def traffic(rows: Rows) -> dict[str, int] | None:
    """Return what travelled to and from a cluster, if the rows live on one."""
    known = getattr(rows, "traffic", None)
    return None if known is None else known.to_dict()


def watched(rows: Rows, stretch: Stretch, label: str) -> Rows:
    """Return the same rows, with progress for every pass over them.

    Rows in memory come back as they are: a pass over them takes no time to show.

    Parameters
    ----------
    rows
        The table.
    stretch
        Called with the work; `decoct.runtime.progress.ProgressBar.stretch`.
    label
        What the passes are for.
    """
    if isinstance(rows, ArrayRows):
        return rows
    counted_rows(rows, stretch)
    return _ProgressRows(rows, stretch, label)


class _ProgressRows(RowsProxy):
    def __init__(self, rows: Rows, stretch: Stretch, label: str) -> None:
        super().__init__(rows)
        self._stretch, self._label = stretch, label

    def chunks(
        self, size: int | None = None, columns: Sequence[str] | None = None
    ) -> Generator[Chunk, None, None]:
        return self._report(self._rows.chunks(size, columns))

    def _report(self, chunks: Generator[Chunk, None, None]) -> Generator[Chunk, None, None]:
        advance = self._stretch(self._label, self.n_rows, "rows")
        try:
            for chunk in chunks:
                yield chunk
                advance(chunk.n_rows)
        finally:
            chunks.close()

    def map_reduce(
        self,
        fn: Callable[..., T],
        reduce: Callable[[T, T], T],
        *broadcast: object,
        size: int | None = None,
        columns: Sequence[str] | None = None,
        on_chunk: Callable[[int], None] | None = None,
    ) -> T:
        advance = self._stretch(self._label, self.n_rows, "rows")

        def advance_both(n_rows: int) -> None:
            advance(n_rows)
            if on_chunk is not None:
                on_chunk(n_rows)

        return self._rows.map_reduce(
            fn, reduce, *broadcast, size=size, columns=columns, on_chunk=advance_both
        )
