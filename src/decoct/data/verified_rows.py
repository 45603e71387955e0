"""Rows that are compared with known ones during a pass, without an extra pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from decoct.data.base import Chunk, Columns, Rows, RowsProxy
from decoct.errors import CoresetFileError, DecoctError


class KnownRows(NamedTuple):
    """Some rows of a table: their global numbers, ascending, and their raw columns."""

    indices: np.ndarray
    columns: Columns

    @classmethod
    def of(cls, indices: np.ndarray, columns: Columns) -> KnownRows:
        """Return known rows, given in any order."""
        order = np.argsort(indices, kind="stable")
        return cls(
            np.asarray(indices)[order], {k: np.asarray(v)[order] for k, v in columns.items()}
        )


class VerifiedRows(RowsProxy):
    """The same rows; `map_reduce` refuses the first chunk whose rows are not the known ones."""

    def __init__(self, rows: Rows, known: KnownRows) -> None:
        super().__init__(rows)
        self._known = known

    def map_reduce(
        self, fn: Callable[..., Any], reduce: Callable[..., Any], *broadcast: object, **options: Any
    ) -> Any:
        return self._rows.map_reduce(_Verified(fn), reduce, self._known, *broadcast, **options)


@dataclass(frozen=True)
class _Verified:
    """``fn`` of a chunk with verified rows; a class, so that it can be sent."""

    fn: Callable[..., Any]

    def __call__(self, chunk: Chunk, known: KnownRows, *broadcast: object) -> Any:
        first, last = np.searchsorted(known.indices, [chunk.start, chunk.start + chunk.n_rows])
        if last > first:
            places = known.indices[first:last] - chunk.start
            found = {name: column[places] for name, column in chunk.columns.items()}
            require_same({k: v[first:last] for k, v in known.columns.items() if k in found}, found)
        return self.fn(chunk, *broadcast)


def require_same(
    kept: Columns, found: Columns, error: type[DecoctError] = CoresetFileError
) -> None:
    """Refuse rows of a table, ``found``, that differ from those that a coreset kept of its own."""
    for name, column in kept.items():
        have, want = np.asarray(found[name]), np.asarray(column)
        if want.dtype.kind in "fc":
            same = np.array_equal(have.astype(np.float64), want.astype(np.float64), equal_nan=True)
        else:
            same = have.shape == want.shape and bool((have == want).all())
        if not same:
            raise error(
                f"This is not the table the coreset was built from: column '{name}' differs in "
                "the kept rows."
            )
