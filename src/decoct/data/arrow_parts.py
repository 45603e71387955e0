"""The parts of an Arrow table, each read on its own: Parquet files, CSV files, fragments."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.parquet as pq

from decoct.data.arrays import plain_type
from decoct.data.arrow_schema import changed_column, common_schema, plain_fields, reading
from decoct.data.base import DEFAULT_CHUNK
from decoct.data.discovery import PARQUET
from decoct.errors import RowsError

SMALLEST_BATCH = 8192
"""Rows in a batch read from a file, at least; a chunk may be smaller."""

_PAGE_BUFFER = 1 << 18


@runtime_checkable
class Part(Protocol):
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
        with closing(self.batches(pa.schema([schema.field(0)]), SMALLEST_BATCH)) as batches:
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


def from_files(files: list[str], base: str | None) -> tuple[list[Part], pa.Schema]:
    is_parquet = files[0].lower().endswith(PARQUET)
    layout: dict[str, Any] = {"partitioning": "hive", "partition_base_dir": base} if base else {}
    with reading(files[0], "Parquet" if is_parquet else "CSV"):
        kind = ds.ParquetFileFormat() if is_parquet else _csv_format()
        dataset = ds.dataset(files, format=kind, filesystem=fs.LocalFileSystem(), **layout)
    make: Callable[..., Part] = _ParquetPart if is_parquet else _csv_part
    parts: list[Part] = [make(fragment) for fragment in dataset.get_fragments()]
    schema = common_schema({part.path: part.schema for part in parts})
    partitions = [field for field in dataset.schema if field.name not in schema.names]
    return parts, pa.schema([*schema, *plain_fields(partitions)])


def from_dataset(dataset: ds.Dataset) -> tuple[list[Part], pa.Schema]:
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


def _dataset_part(fragment: ds.Fragment, schema: pa.Schema) -> Part:
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
