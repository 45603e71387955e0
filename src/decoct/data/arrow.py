"""Rows in Parquet and CSV files, or behind any Arrow dataset: streamed, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.parquet as pq

from decoct.data.arrays import numpy_column, plain_type
from decoct.data.arrow_schema import (
    changed_column,
    check_unique,
    common_schema,
    plain_fields,
    reading,
)
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
from decoct.data.discovery import PARQUET, find_files
from decoct.errors import RowsError

_READ_AHEAD = 2
_PAGE_BUFFER = 1 << 18
_SMALLEST_BATCH = 8192


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
            self._parts, self._schema = _from_dataset(source)
        else:
            self._parts, self._schema = _from_files(*find_files(source))
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
        batch_size = size * -(-_SMALLEST_BATCH // size)
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


@runtime_checkable
class _Part(Protocol):
    """A file, or a fragment of a data set, in one or more groups of rows."""

    path: str
    schema: pa.Schema

    def any_row(self, schema: pa.Schema) -> bool: ...

    def counts(self, schema: pa.Schema) -> Sequence[int]:
        """Return the number of rows of every group."""
        ...

    def missing(self, schema: pa.Schema) -> set[str]:
        """Return the integer and boolean columns with missing values."""
        ...

    def batches(
        self, schema: pa.Schema, size: int, groups: Sequence[int] | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the columns of ``schema``, cast to it, in batches of at most ``size`` rows.

        Only of these groups, if the part has several and they are given.
        """
        ...


class _ParquetPart:
    """A Parquet file, read page by page: a row group larger than memory is no trouble."""

    def __init__(self, fragment: ds.ParquetFileFragment, groups: list[int] | None = None) -> None:
        self.path = fragment.path
        self._fragment = fragment
        self._constants = ds.get_partition_keys(fragment.partition_expression)
        with reading(self.path, "Parquet"), self._open() as file:
            meta = file.metadata
            self.schema = file.schema_arrow
            self._groups = list(range(meta.num_row_groups)) if groups is None else groups
            self._counts = [meta.row_group(group).num_rows for group in self._groups]
            self._holes, self._unknown = _null_counts(meta, self._groups, self.schema)

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        # pre_buffer would keep the whole file in memory, an unbuffered stream a whole row group
        with (
            self._fragment.open() as handle,
            pq.ParquetFile(handle, buffer_size=_PAGE_BUFFER, pre_buffer=False) as file,
        ):
            yield file

    def any_row(self, schema: pa.Schema) -> bool:
        return sum(self._counts) > 0

    def counts(self, schema: pa.Schema) -> Sequence[int]:
        return self._counts

    def missing(self, schema: pa.Schema) -> set[str]:
        names = set(_countable(schema))
        absent = {n for n in names - set(self.schema.names) if self._constants.get(n) is None}
        unknown = [schema.field(n) for n in self._unknown & names]
        counted = _count(self.batches(pa.schema(unknown), DEFAULT_CHUNK))[1] if unknown else set()
        return names & (self._holes | absent | counted)

    def batches(
        self, schema: pa.Schema, size: int, groups: Sequence[int] | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        read = self._groups if groups is None else [self._groups[group] for group in groups]
        names = [name for name in schema.names if name in self.schema.names]
        with reading(self.path, "Parquet"), self._open() as file:
            for batch in file.iter_batches(size, row_groups=read, columns=names):
                yield pa.RecordBatch.from_arrays(
                    [self._column(batch, field) for field in schema], schema=schema
                )

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name not in self.schema.names:
            constant = pa.scalar(self._constants.get(field.name), field.type)
            return pa.repeat(constant, len(batch))
        values = batch.column(field.name)
        return values if values.type == field.type else values.cast(field.type)


class _ScannedPart:
    """A CSV file, or whatever else a data set can scan; a pass counts its rows."""

    def __init__(
        self,
        path: str,
        kind: str,
        schema: pa.Schema,
        scan: Callable[..., ds.Scanner],
        asks_types: bool = False,
    ) -> None:
        self.path = path
        self.schema = schema
        self._kind = kind
        self._scan = scan
        self._asks_types = asks_types
        self._surveyed: tuple[int, set[str]] | None = None

    def any_row(self, schema: pa.Schema) -> bool:
        with closing(self.batches(pa.schema([schema.field(0)]), _SMALLEST_BATCH)) as batches:
            return any(len(batch) for batch in batches)

    def counts(self, schema: pa.Schema) -> Sequence[int]:
        return [self._survey(schema)[0]]

    def missing(self, schema: pa.Schema) -> set[str]:
        return self._survey(schema)[1]

    def batches(
        self, schema: pa.Schema, size: int, groups: Sequence[int] | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        types = {"schema": schema} if self._asks_types else {}
        with reading(self.path, self._kind, self.schema.names):
            scanner = self._scan(
                columns=schema.names,
                batch_size=size,
                batch_readahead=1,
                fragment_readahead=1,
                **types,
            )
            for batch in scanner.to_batches():
                yield batch if batch.schema == schema else batch.cast(schema)

    def _survey(self, schema: pa.Schema) -> tuple[int, set[str]]:
        if self._surveyed is None:
            countable = _countable(schema)
            rows, holes = self._count(schema, countable or schema.names[:1])
            self._surveyed = rows, holes.intersection(countable)
        return self._surveyed

    def _count(self, schema: pa.Schema, names: list[str]) -> tuple[int, set[str]]:
        try:
            return _count(self.batches(pa.schema(map(schema.field, names)), DEFAULT_CHUNK))
        except RowsError as error:
            # perhaps nobody needs the column that changes its type; whoever reads it is told
            changed = changed_column(error.__cause__, self.schema.names)
            others = [name for name in names if name != changed]
            if changed is None or not others:
                raise
            return self._count(schema, others)


def _from_files(files: list[str], base: str | None) -> tuple[list[_Part], pa.Schema]:
    is_parquet = files[0].lower().endswith(PARQUET)
    layout: dict[str, Any] = {"partitioning": "hive", "partition_base_dir": base} if base else {}
    with reading(files[0], "Parquet" if is_parquet else "CSV"):
        kind = ds.ParquetFileFormat() if is_parquet else _csv_format()
        dataset = ds.dataset(files, format=kind, filesystem=fs.LocalFileSystem(), **layout)
    make: Callable[..., _Part] = _ParquetPart if is_parquet else _csv_part
    parts: list[_Part] = [make(fragment) for fragment in dataset.get_fragments()]
    schema = common_schema({part.path: part.schema for part in parts})
    partitions = [field for field in dataset.schema if field.name not in schema.names]
    return parts, pa.schema([*schema, *plain_fields(partitions)])


def _from_dataset(dataset: ds.Dataset) -> tuple[list[_Part], pa.Schema]:
    schema = pa.schema(plain_fields(dataset.schema))
    if getattr(dataset, "_scan_options", None):
        # filtered: the scanner alone knows which rows are kept
        return [_ScannedPart("The data set", "data", dataset.schema, dataset.scanner)], schema
    parts = [_dataset_part(fragment, dataset.schema) for fragment in dataset.get_fragments()]
    if not parts:
        raise RowsError("The table is empty: the data set has no files.")
    return parts, schema


def _csv_part(fragment: ds.FileFragment) -> _ScannedPart:
    with reading(fragment.path, "CSV"):
        inferred = fragment.physical_schema
    return _ScannedPart(fragment.path, "CSV", inferred, fragment.scanner, asks_types=True)


def _dataset_part(fragment: ds.Fragment, schema: pa.Schema) -> _Part:
    path = getattr(fragment, "path", "The data set")
    with reading(path, "data"):
        if isinstance(fragment, ds.ParquetFileFragment):
            return _ParquetPart(fragment, [group.id for group in fragment.row_groups])
        inferred = fragment.physical_schema
    return _ScannedPart(path, "data", inferred, partial(fragment.scanner, schema=schema))


def _csv_format() -> ds.CsvFileFormat:
    return ds.CsvFileFormat(
        parse_options=pc.ParseOptions(newlines_in_values=True),
        convert_options=pc.ConvertOptions(
            strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )


def _countable(schema: pa.Schema) -> list[str]:
    """Return the columns whose NumPy type depends on whether a value is missing."""
    kinds = ((field.name, plain_type(field.type)) for field in schema)
    return [n for n, kind in kinds if pa.types.is_integer(kind) or pa.types.is_boolean(kind)]


def _null_counts(
    meta: pq.FileMetaData, groups: list[int], schema: pa.Schema
) -> tuple[set[str], set[str]]:
    """Return the countable columns with missing values, and those whose file does not say."""
    names = set(_countable(schema))
    leaves = [meta.schema.column(i) for i in range(meta.num_columns)]
    asked = [(i, c.path) for i, c in enumerate(leaves) if c.path in names]
    optional = [(i, name) for i, name in asked if leaves[i].max_definition_level > 0]
    holes: set[str] = set()
    unknown: set[str] = set()
    for group in map(meta.row_group, groups):
        for i, name in optional:
            statistics = group.column(i).statistics
            if statistics is None or not statistics.has_null_count:
                unknown.add(name)
            elif statistics.null_count:
                holes.add(name)
    return holes, unknown - holes


def _count(batches: Iterable[pa.RecordBatch]) -> tuple[int, set[str]]:
    """Return the number of rows and the columns with missing values."""
    rows = 0
    holes: set[str] = set()
    for batch in batches:
        rows += len(batch)
        holes.update(n for n in batch.schema.names if batch.column(n).null_count)
    return rows, holes


def _pick(
    part: _Part, schema: pa.Schema, counts: np.ndarray, rows: np.ndarray
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
