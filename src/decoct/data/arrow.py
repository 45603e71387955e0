"""Rows in Parquet and CSV files, or behind any Arrow dataset: streamed, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from decoct.data.arrow_columns import convert_column
from decoct.data.arrow_open import check_unique, open_dataset, unwrap_fields
from decoct.data.arrow_parts import SMALLEST_BATCH, Part
from decoct.data.base import (
    DEFAULT_CHUNK,
    Chunk,
    Chunks,
    Columns,
    Names,
    Rows,
    check_columns,
    check_size,
    checked_indices,
    read_ahead,
)
from decoct.errors import RowsError
from decoct.runtime import progress
from decoct.runtime.resources import cores

MOST_READERS = 4
"""Files or row groups that `take` reads at once, each a batch of rows at a time."""


class ArrowRows(Rows):
    """Rows of Parquet or CSV files, read in chunks by a thread ahead of the consumer.

    Memory stays at a few chunks whatever the number of rows and however large the row groups.
    Rows are numbered through the files sorted by path, then in file order (for a
    `pyarrow.dataset.Dataset`, in the order of the data set). In a folder or behind a pattern,
    sub-folders named ``key=value`` (Hive partitions) add a column ``key``.

    Parameters
    ----------
    source
        A file, a folder (searched recursively), a glob pattern, a URL of Parquet files, a list of
        files, or a `pyarrow.dataset.Dataset`.

    Attributes
    ----------
    dataset
        The files as a data set with the table's columns.

    Raises
    ------
    RowsError
        A path that is missing, unreadable, empty or of an unknown kind, or files whose columns
        differ; later, a missing column or a file that turns out to be damaged.

    Notes
    -----
    The number of rows comes from the Parquet metadata. A CSV file is read once to count its rows
    (`survey` shows how far that is). Its column types are inferred from the first megabyte; empty
    fields and unquoted ``NA`` are missing values.

    A file that changes after it was opened here is an error of the next pass or `take`. Pages of
    Parquet files are checked against their checksums where the writer left some.

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
        self.dataset, self.parts = open_dataset(source)
        self._schema = pa.schema(unwrap_fields(self.dataset.schema))
        self._widths: dict[str, int] = {}
        check_unique(self.parts[0].path, self._schema.names)
        if not any(part.has_rows(self._schema) for part in self.parts):
            raise RowsError(f"The table is empty: {self.parts[0].path} has no rows.")

    @property
    def n_rows(self) -> int:
        return int(self._ends[-1])

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._schema.names)

    def chunks(self, size: int | None = None, columns: Names = None) -> Chunks:
        """Yield consecutive chunks of ``size`` rows; only these columns are read."""
        step = check_size(size)
        schema = self._select(columns)
        _ = self._missing  # found here, not in the thread, which shows no progress
        return read_ahead(lambda: self._cut(schema, step), 2)

    def survey(self) -> None:
        """Count the rows of files that do not store their number, such as CSV; once."""
        unread = sum(part.unread for part in self.parts)
        if unread:
            progress.begin("counting rows", unread, "B")
        for part in self.parts:
            if part.unread:
                part.survey(self._schema, partial(progress.advance, unit="B"))

    def locate(self, row: int) -> tuple[str, int]:
        """Return the file of a row, and its number in that file, from 0."""
        (place,) = checked_indices([row], self.n_rows)
        part = int(np.searchsorted(self._ends, place, side="right"))
        return self.parts[part].path, int(place - (self._ends[part - 1] if part else 0))

    def find_file(self, row: int) -> tuple[str, int] | None:
        """Return what `locate` does if there are several files, one of which has the row."""
        return self.locate(row) if len(self.parts) > 1 and row < self.n_rows else None

    def take(self, indices: np.ndarray | Sequence[int], columns: Names = None) -> Columns:
        """Return the rows with these global numbers, in the order asked for.

        Only Parquet row groups (Arrow record batches) with such rows are read; a CSV file is
        scanned as far as the last of them.
        """
        schema = self._select(columns)
        rows, places = np.unique(checked_indices(indices, self.n_rows), return_inverse=True)
        found = pa.Table.from_batches(list(self._find(schema, rows)), schema=schema)
        if len(found) < len(rows):
            raise RowsError("A file lost rows while it was being read; read the table again.")
        return {name: column[places] for name, column in self._convert(found).items()}

    def _select(self, columns: Names) -> pa.Schema:
        names = check_columns(columns, self.columns)
        return pa.schema([self._schema.field(name) for name in names])

    @cached_property
    def _ends(self) -> np.ndarray:
        """The number of rows up to the end of every part."""
        return np.cumsum([sum(part.count_rows(self._schema)) for part in self.parts])

    @cached_property
    def _missing(self) -> frozenset[str]:
        """Integer and boolean columns with a missing value somewhere: float64 everywhere."""
        return frozenset().union(*(part.find_missing(self._schema) for part in self.parts))

    def _find(self, schema: pa.Schema, rows: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Yield rows, given their ascending numbers; as many files or groups at once as cores."""
        first = np.searchsorted(rows, [0, *self._ends])
        numbers, workers = np.flatnonzero(np.diff(first)), min(cores(), MOST_READERS)
        jobs: list[Callable[[], list[pa.RecordBatch]]] = []
        for number in numbers:
            part = self.parts[number]
            counts = np.asarray(part.count_rows(self._schema), dtype=np.int64)
            ends = np.cumsum(counts)
            inside = rows[first[number] : first[number + 1]] - (self._ends[number] - ends[-1])
            group = np.searchsorted(ends, inside, side="right")
            for groups in np.array_split(np.unique(group), -(-workers // len(numbers))):
                among = np.isin(group, groups)
                # their numbers when only these groups are read
                left_out = ends[groups] - np.cumsum(counts[groups])
                wanted = inside[among] - left_out[np.searchsorted(groups, group[among])]
                if len(groups):
                    jobs.append(partial(_pick_rows, part, schema, groups.tolist(), wanted))
        with ThreadPoolExecutor(workers, "decoct-take") as pool:
            for batches in pool.map(lambda job: job(), jobs):
                yield from batches

    def _cut(self, schema: pa.Schema, size: int) -> Iterator[Chunk]:
        # a multiple of the size, so that cutting a batch needs no copy
        batch_size = size * -(-SMALLEST_BATCH // size)
        start, buffered, batches = 0, 0, []
        for part in self.parts:
            for batch in part.read_batches(schema, batch_size):
                while buffered + len(batch) >= size:
                    batches.append(batch.slice(0, size - buffered))
                    batch = batch.slice(size - buffered)
                    yield Chunk(start, self._convert(pa.Table.from_batches(batches), start))
                    start, buffered, batches = start + size, 0, []
                if len(batch):  # an empty one would cost the next chunk its zero copies
                    buffered += len(batch)
                    batches.append(batch)
        if batches:
            yield Chunk(start, self._convert(pa.Table.from_batches(batches), start))
        if start + buffered != self.n_rows:
            raise RowsError(
                f"The files had {self.n_rows} rows and now have {start + buffered}: they changed "
                "while they were being read; read the table again."
            )

    def _convert(self, table: pa.Table, start: int = 0) -> Columns:
        columns = {}
        for name in table.column_names:
            values, width = table.column(name), self._widths.get(name)
            columns[name] = convert_column(name, values, name in self._missing, start, width)
            if columns[name].ndim == 2:
                self._widths[name] = columns[name].shape[1]
        return columns


def _pick_rows(
    part: Part, schema: pa.Schema, groups: list[int], rows: np.ndarray
) -> list[pa.RecordBatch]:
    """Return some rows of these groups, given their ascending numbers among them."""
    found, start = [], 0
    with closing(part.read_batches(schema, DEFAULT_CHUNK, groups)) as batches:
        for batch in batches:
            first, last = np.searchsorted(rows, [start, start + len(batch)])
            if last > first:
                found.append(batch.take(pa.array(rows[first:last] - start)))
            if last == len(rows):
                break
            start += len(batch)
    return found
