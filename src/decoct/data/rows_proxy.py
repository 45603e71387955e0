"""The rows of another table: the base of classes that only change how a pass is made."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from decoct.data.base import Chunk, Columns, Rows


class RowsProxy:
    """The rows of another table; a derived class says what its `map_reduce` adds.

    Parameters
    ----------
    rows
        The table.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    @property
    def n_rows(self) -> int:
        return self._rows.n_rows

    @property
    def columns(self) -> tuple[str, ...]:
        return self._rows.columns

    def chunks(
        self, size: int | None = None, columns: Sequence[str] | None = None
    ) -> Generator[Chunk, None, None]:
        return self._rows.chunks(size, columns)

    def take(self, indices: np.ndarray, columns: Sequence[str] | None = None) -> Columns:
        return self._rows.take(indices, columns)
