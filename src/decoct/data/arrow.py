"""Rows in Parquet and CSV files, or behind any Arrow dataset: streamed, in bounded memory."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from decoct.data.arrays import numpy_column
from decoct.data.arrow_parts import SMALLEST_BATCH, Part, from_dataset, from_files
from decoct.data.arrow_schema import check_unique
from decoct.data.base import (
    DEFAULT_CHUNK,
    Chunk,
    Columns,
    SequentialRows,
    checked_columns,
    checked_indices,
    checked_size,
    read_ahead,
)
from decoct.data.discovery import find_files
from decoct.errors import RowsError

_READ_AHEAD = 2


class ArrowRows(SequentialRows):
    """Rows of Parquet or CSV files, read in chunks by a thread ahead of the consumer.

    Memory stays at a few chunks whatever the number of rows and however large the row groups.
    Rows are numbered through the files sorted by path, then in file order (for a
    `pyarrow.dataset.Dataset`, in the order of the data set). In a folder or behind a pattern,
    sub-folders named ``key=value`` (Hive partitions) add a column ``key``.

    Parameters
    ----------
    source
        A file, a folder (searched recursively), a glob pattern, a list of files, or a
        `pyarrow.dataset.Dataset`.

    Raises
    ------
    RowsError
        A path that is missing, unreadable, empty or of an unknown kind, or files whose columns
        differ; later, a missing column or a file that turns out to be damaged.

    Notes
    -----
    The number of rows comes from the Parquet metadata. A CSV file is walked once to count its rows.
    Its column types are inferred from the first megabyte; empty fields and unquoted ``NA`` are
    missing values.

    Examples
    --------
    >>> import os, tempfile
    >>> import pyarrow as pa, pyarrow.parquet as pq
    >>> from decoct.data import ArrowRows
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pq.write_table(pa.table({"y": [3, 1, 4, 1, 5]}), os.path.join(folder, "a.parquet"))
    ...     rows = ArrowRows(folder)
    ...     rows.n_rows, [chunk.columns["y"].tolist() for chunk in rows.chunks(size=2)]
    (5, [[3, 1], [4, 1], [5]])
    """

    def __init__(self, source: str | Path | Sequence[str | Path] | ds.Dataset) -> None:
        if isinstance(source, ds.Dataset):
            self._parts, self._schema = from_dataset(source)
        else:
            self._parts, self._schema = from_files(*find_files(source))
        check_unique(self._parts[0].path, self._schema.names)
        if not any(part.any_row(self._schema) for part in self._parts):
            raise RowsError(f"The table is empty: {self._parts[0].path} has no rows.")

    @property
    def n_rows(self) -> int:
        return self._total

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._schema.names)

    def chunks(
        self, size: int | None = None, columns: Sequence[str] | None = None
    ) -> Generator[Chunk, None, None]:
        """Yield consecutive chunks of ``size`` rows; only these columns are read."""
        step = checked_size(size)
        schema = self._selected(columns)
        return read_ahead(partial(self._cut, schema, step, self._missing), _READ_AHEAD)

    def take(
        self, indices: np.ndarray | Sequence[int], columns: Sequence[str] | None = None
    ) -> Columns:
        """Return the rows with these global numbers, in the order asked for.

        Only Parquet row groups that hold such rows are read; a CSV file is scanned.
        """
        schema = self._selected(columns)
        rows, places = np.unique(checked_indices(indices, self.n_rows), return_inverse=True)
        found = pa.Table.from_batches(list(self._find(schema, rows)), schema=schema)
        if len(found) < len(rows):
            raise RowsError("A file lost rows while it was being read; read the table again.")
        values = self._convert(found, self._missing)
        return {name: column[places] for name, column in values.items()}

    def _selected(self, columns: Sequence[str] | None) -> pa.Schema:
        names = checked_columns(columns, self.columns)
        return pa.schema([self._schema.field(name) for name in names])

    @cached_property
    def _total(self) -> int:
        return sum(sum(part.counts(self._schema)) for part in self._parts)

    @cached_property
    def _missing(self) -> frozenset[str]:
        """Integer and boolean columns with a missing value somewhere: float64 everywhere."""
        return frozenset().union(*(part.missing(self._schema) for part in self._parts))

    def _find(self, schema: pa.Schema, rows: np.ndarray) -> Iterator[pa.RecordBatch]:
        start = 0
        for part in self._parts:
            counts = np.asarray(part.counts(self._schema), dtype=np.int64)
            first, last = np.searchsorted(rows, [start, start + counts.sum()])
            if last > first:
                yield from _pick(part, schema, counts, rows[first:last] - start)
            start += counts.sum()

    def _cut(self, schema: pa.Schema, size: int, missing: frozenset[str]) -> Iterator[Chunk]:
        # a multiple of the size, so that cutting a batch needs no copy
        batch_size = size * -(-SMALLEST_BATCH // size)
        start, held, kept = 0, 0, []
        for part in self._parts:
            for batch in part.batches(schema, batch_size):
                while held + len(batch) >= size:
                    kept.append(batch.slice(0, size - held))
                    batch = batch.slice(size - held)
                    yield self._chunk(start, kept, missing)
                    start, held, kept = start + size, 0, []
                if len(batch):
                    held += len(batch)
                    kept.append(batch)
        if kept:
            yield self._chunk(start, kept, missing)
        if start + held != self.n_rows:
            raise RowsError(
                f"The files had {self.n_rows} rows and now have {start + held}: they changed "
                "while they were being read; read the table again."
            )

    def _chunk(self, start: int, batches: list[pa.RecordBatch], missing: frozenset[str]) -> Chunk:
        return Chunk(start, self._convert(pa.Table.from_batches(batches), missing))

    def _convert(self, table: pa.Table, missing: frozenset[str]) -> Columns:
        return {
            name: numpy_column(name, table.column(name), name in missing)
            for name in table.column_names
        }


def _pick(
    part: Part, schema: pa.Schema, counts: np.ndarray, rows: np.ndarray
) -> Iterator[pa.RecordBatch]:
    """Yield rows of a part, given their ascending numbers in it, reading only their groups."""
    ends = np.cumsum(counts)
    groups, place = np.unique(np.searchsorted(ends, rows, side="right"), return_inverse=True)
    left_out = ends[groups] - np.cumsum(counts[groups])
    rows = rows - left_out[place]
    start = 0
    with closing(part.batches(schema, DEFAULT_CHUNK, groups.tolist())) as batches:
        for batch in batches:
            first, last = np.searchsorted(rows, [start, start + len(batch)])
            if last > first:
                yield batch.take(pa.array(rows[first:last] - start))
            if last == len(rows):
                return
            start += len(batch)
