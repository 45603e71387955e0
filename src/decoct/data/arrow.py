"""Rows in Parquet and CSV files, or behind any Arrow dataset: streamed, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from decoct.data.arrays import convert_column
from decoct.data.arrow_open import open_dataset
from decoct.data.arrow_parts import SMALLEST_BATCH, Part
from decoct.data.arrow_schema import check_unique, unwrap_fields
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
from decoct.errors import RowsError
from decoct.runtime import progress
from decoct.runtime.resources import cores

T = TypeVar("T")

_READ_AHEAD = 2

MOST_READERS = 4
"""Files or row groups that `take` reads at once, each a batch of rows at a time."""


class ArrowRows(SequentialRows):
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
        self.dataset, self._parts = open_dataset(source)
        self._schema = pa.schema(unwrap_fields(self.dataset.schema))
        self._widths: dict[str, int] = {}
        check_unique(self._parts[0].path, self._schema.names)
        if not any(part.has_rows(self._schema) for part in self._parts):
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
        schema = self._select(columns)
        return read_ahead(partial(self._cut, schema, step, self._missing), _READ_AHEAD)

    def survey(self) -> None:
        """Count the rows of files that do not store their number, such as CSV; once."""
        unread = sum(part.unread for part in self._parts)
        if unread:
            progress.begin("counting rows", unread, "B")
        for part in self._parts:
            part.survey(self._schema, _count_bytes)

    def locate(self, row: int) -> tuple[str, int]:
        """Return the file of a row, and its number in that file, from 0."""
        (place,) = checked_indices([row], self.n_rows)
        part = int(np.searchsorted(self._ends, place, side="right"))
        return self._parts[part].path, int(place - (self._ends[part - 1] if part else 0))

    def find_file(self, row: int) -> tuple[str, int] | None:
        """Return what `locate` does if there are several files, one of which has the row."""
        if len(self._parts) == 1 or row >= self.n_rows:
            return None
        return self.locate(row)

    def take(
        self, indices: np.ndarray | Sequence[int], columns: Sequence[str] | None = None
    ) -> Columns:
        """Return the rows with these global numbers, in the order asked for.

        Only Parquet row groups (Arrow record batches) that hold such rows are read; a CSV file is
        scanned as far as the last of them.
        """
        schema = self._select(columns)
        rows, places = np.unique(checked_indices(indices, self.n_rows), return_inverse=True)
        found = pa.Table.from_batches(list(self._find(schema, rows)), schema=schema)
        if len(found) < len(rows):
            raise RowsError("A file lost rows while it was being read; read the table again.")
        values = self._convert(found, self._missing)
        return {name: column[places] for name, column in values.items()}

    def _select(self, columns: Sequence[str] | None) -> pa.Schema:
        names = checked_columns(columns, self.columns)
        return pa.schema([self._schema.field(name) for name in names])

    @cached_property
    def _ends(self) -> np.ndarray:
        """The number of rows up to the end of every part."""
        return np.cumsum([sum(part.count_rows(self._schema)) for part in self._parts])

    @property
    def _total(self) -> int:
        return int(self._ends[-1])

    @cached_property
    def _missing(self) -> frozenset[str]:
        """Integer and boolean columns with a missing value somewhere: float64 everywhere."""
        return frozenset().union(*(part.find_missing(self._schema) for part in self._parts))

    def _find(self, schema: pa.Schema, rows: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Yield rows, given their ascending numbers; as many files or groups at once as cores."""
        first = np.searchsorted(rows, np.concatenate([[0], self._ends]))
        numbers, workers = np.flatnonzero(np.diff(first)), min(cores(), MOST_READERS)
        runs = -(-workers // max(1, len(numbers)))
        jobs: list[Callable[[], list[pa.RecordBatch]]] = []
        for number in numbers:
            part, start = self._parts[number], self._ends[number - 1] if number else 0
            counts = np.asarray(part.count_rows(self._schema), dtype=np.int64)
            of_part = rows[first[number] : first[number + 1]] - start
            jobs += [
                partial(_pick_rows, part, schema, counts, some)
                for some in _split_by_groups(counts, of_part, runs)
            ]
        if len(jobs) == 1 or workers == 1:
            for job in jobs:
                yield from job()
            return
        with ThreadPoolExecutor(workers, "decoct-take") as pool:
            for batches in pool.map(lambda job: job(), jobs):
                yield from batches

    def _cut(self, schema: pa.Schema, size: int, missing: frozenset[str]) -> Iterator[Chunk]:
        # a multiple of the size, so that cutting a batch needs no copy
        batch_size = size * -(-SMALLEST_BATCH // size)
        start, held, kept = 0, 0, []
        for part in self._parts:
            for batch in part.read_batches(schema, batch_size):
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
        return Chunk(start, self._convert(pa.Table.from_batches(batches), missing, start))

    def _convert(self, table: pa.Table, missing: frozenset[str], start: int = 0) -> Columns:
        columns = {}
        for name in table.column_names:
            values, width = table.column(name), self._widths.get(name)
            columns[name] = convert_column(name, values, name in missing, start, width)
            if columns[name].ndim == 2:
                self._widths[name] = columns[name].shape[1]
        return columns


def _split_by_groups(counts: np.ndarray, rows: np.ndarray, most: int) -> list[np.ndarray]:
    """Cut ascending row numbers of a part into at most so many runs, of whole groups each."""
    group = np.searchsorted(np.cumsum(counts), rows, side="right")
    runs = np.array_split(np.unique(group), most)
    return np.split(rows, np.searchsorted(group, [run[0] for run in runs[1:] if len(run)]))


def _pick_rows(
    part: Part, schema: pa.Schema, counts: np.ndarray, rows: np.ndarray
) -> list[pa.RecordBatch]:
    """Return rows of a part, given their ascending numbers in it, reading only their groups."""
    ends = np.cumsum(counts)
    groups, place = np.unique(np.searchsorted(ends, rows, side="right"), return_inverse=True)
    left_out = ends[groups] - np.cumsum(counts[groups])
    rows = rows - left_out[place]
    found, start = [], 0
    with closing(part.read_batches(schema, DEFAULT_CHUNK, groups.tolist())) as batches:
        for batch in batches:
            first, last = np.searchsorted(rows, [start, start + len(batch)])
            if last > first:
                found.append(batch.take(pa.array(rows[first:last] - start)))
            if last == len(rows):
                break
            start += len(batch)
    return found


def _count_bytes(units: float) -> None:
    progress.advance(units, "B")
