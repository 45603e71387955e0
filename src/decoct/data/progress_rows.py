"""Rows that show progress: for code that passes over the data without announcing it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from decoct.data.arrays import ArrayRows
from decoct.data.base import Rows, RowsProxy
from decoct.runtime import progress


def counted_rows(rows: Rows) -> int:
    """Return N; if that takes a pass, as for CSV files, show its progress."""
    survey = getattr(rows, "survey", None)
    if survey is not None:
        survey()
    return rows.n_rows


def traffic(rows: Rows) -> dict[str, int] | None:
    """Return what travelled to and from a cluster, if the rows live on one."""
    known = getattr(rows, "traffic", None)
    return None if known is None else asdict(known)


def watched(rows: Rows, label: str) -> Rows:
    """Return the same rows, with a task of this label announced for every `map_reduce`.

    Rows in memory come back as they are: a pass over them takes no time.
    """
    if isinstance(rows, ArrayRows):
        return rows
    counted_rows(rows)
    return _WatchedRows(rows, label)


class _WatchedRows(RowsProxy):
    def __init__(self, rows: Rows, label: str) -> None:
        super().__init__(rows)
        self._label = label

    def map_reduce(self, *args: Any, **options: Any) -> Any:
        progress.begin(self._label, self.n_rows)
        return self._rows.map_reduce(*args, **options)
