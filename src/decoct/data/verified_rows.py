"""Rows that are compared with known ones during a pass, without an extra pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoct.data.base import Chunk, Columns, Rows, RowsProxy
from decoct.errors import CoresetFileError


class VerifiedRows(RowsProxy):
    """The same rows; `map_reduce` refuses the first chunk whose rows are not the known ones.

    ``indices`` are global numbers of known rows, ascending, and ``columns`` their raw columns.
    """

    def __init__(self, rows: Rows, indices: np.ndarray, columns: Columns) -> None:
        super().__init__(rows)
        self._known = indices, columns

    def map_reduce(
        self, fn: Callable[..., Any], reduce: Callable[..., Any], *broadcast: object, **options: Any
    ) -> Any:
        return self._rows.map_reduce(_Verified(fn), reduce, *self._known, *broadcast, **options)


@dataclass(frozen=True)
class _Verified:
    """``fn`` of a chunk with verified rows; a class, so that it can be sent."""

    fn: Callable[..., Any]

    def __call__(
        self, chunk: Chunk, indices: np.ndarray, columns: Columns, *broadcast: object
    ) -> Any:
        first, last = np.searchsorted(indices, [chunk.start, chunk.start + chunk.n_rows])
        if last > first:
            places = indices[first:last] - chunk.start
            found = {name: column[places] for name, column in chunk.columns.items()}
            require_same({k: v[first:last] for k, v in columns.items() if k in found}, found)
        return self.fn(chunk, *broadcast)


def require_same(kept: Columns, found: Columns) -> None:
    """Refuse rows of a table, ``found``, that differ from those that a coreset kept of its own."""
    for name, column in kept.items():
        have, want = np.asarray(found[name]), np.asarray(column)
        if want.dtype.kind in "fc":
            same = np.array_equal(have.astype(np.float64), want.astype(np.float64), equal_nan=True)
        else:
            same = have.shape == want.shape and bool((have == want).all())
        if not same:
            raise CoresetFileError(
                f"This is not the table the coreset was built from: column '{name}' differs in "
                "the kept rows."
            )
