"""The parts of an Arrow table, each read on its own: files, or fragments of a data set.

A part is a sequence of *groups* of rows (row groups, record batches) whose numbers of rows are
known, so that rows are found by their number without reading the groups before them. A format that
does not store them is counted once, in a pass; one without groups is a single group.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from decoct.data.arrow_columns import is_count, unwrap_type
from decoct.data.base import DEFAULT_CHUNK
from decoct.data.file_faults import ChangeGuard, explain_errors
from decoct.errors import RowsError

SMALLEST_BATCH = 8192
"""Rows in a batch read from a file, at least; a chunk may be smaller."""

PAGE_BUFFER = 1 << 18
"""Bytes of a Parquet column read at a time."""

Batches = Generator[pa.RecordBatch, None, None]
OnBytes = Callable[[float], None] | None
Groups = Sequence[int] | None


class Part(abc.ABC):
    """A file, or a fragment of a data set, in one or more groups of rows.

    Its ``schema`` has the columns that the file itself declares.
    """

    has_groups = False
    """Whether every batch of `read_stored` is a group; else all rows are one."""

    def __init__(self, path: str, kind: str, source: ds.Dataset | ds.Fragment) -> None:
        self.path = path
        self.kind = kind
        self.schema = pa.schema([])
        self.guard = ChangeGuard(source, kind)
        self._surveyed: tuple[list[int], set[str]] | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read within this: failures name the file, and a changed file is one."""
        with (
            explain_errors(self.path, self.kind, self.schema.names),
            self.guard.require_unchanged(),
        ):
            yield

    @abc.abstractmethod
    def read_batches(self, schema: pa.Schema, size: int, groups: Groups = None) -> Batches:
        """Yield the columns of ``schema``, cast to it, in batches of at most ``size`` rows.

        Only of these groups, if the part has several and they are given.
        """

    def read_stored(
        self, schema: pa.Schema, on_bytes: OnBytes = None, groups: Groups = None
    ) -> Batches:
        """Yield batches as they are stored; report the bytes read where they are known."""
        return self.read_batches(schema, DEFAULT_CHUNK, groups)

    @property
    def unread(self) -> int:
        """Bytes that `survey` reports; 0 if the number of rows is known."""
        return 0 if self._surveyed else self.guard.n_bytes

    def survey(self, schema: pa.Schema, on_bytes: OnBytes = None) -> tuple[list[int], set[str]]:
        """Return what `count_rows` and `find_missing` do; a pass, the first time."""
        if self._surveyed is None:
            asked = list_countable(schema)
            counts, holes = self._count(schema, asked or schema.names[:1], on_bytes)
            groups = counts if self.has_groups else [sum(counts)]
            self._surveyed = groups, holes.intersection(asked)
        return self._surveyed

    def has_rows(self, schema: pa.Schema) -> bool:
        with closing(self.read_batches(pa.schema([schema.field(0)]), SMALLEST_BATCH)) as batches:
            return any(len(batch) for batch in batches)

    def count_rows(self, schema: pa.Schema) -> Sequence[int]:
        """Return the number of rows of every group."""
        return self.survey(schema)[0]

    def find_missing(self, schema: pa.Schema) -> set[str]:
        """Return the integer and boolean columns with missing values."""
        return self.survey(schema)[1]

    def _count(
        self, schema: pa.Schema, names: Sequence[str], on_bytes: OnBytes
    ) -> tuple[list[int], set[str]]:
        """Return the number of rows of every batch, and the columns with missing values."""
        counts, holes = [], set()
        try:
            for batch in self.read_stored(pa.schema(map(schema.field, names)), on_bytes):
                counts.append(len(batch))
                holes.update(n for n in names if batch.column(n).null_count)
        except RowsError as error:
            from decoct.data.file_messages import find_changed_column

            # the CSV column that changes its type may not be needed; reading it is an error later
            changed = find_changed_column(error.__cause__, self.schema.names)
            others = [name for name in names if name != changed]
            if changed is None or not others:
                raise
            return self._count(schema, others, on_bytes)
        return counts, holes


class ScannedPart(Part):
    """A fragment of a data set, or a filtered data set, of any format that Arrow scans."""

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        scan: Callable[..., ds.Scanner],
        source: ds.Dataset | ds.Fragment,
    ) -> None:
        super().__init__(path, "data", source)
        self.schema = schema
        self._scan = scan

    @property
    def unread(self) -> int:
        return 0

    def read_batches(self, schema: pa.Schema, size: int, groups: Groups = None) -> Batches:
        with self.reading():
            scanner = self._scan(
                columns=schema.names,
                batch_size=size,
                batch_readahead=1,
                fragment_readahead=1,
                use_threads=False,  # with threads it reads ahead without limit
            )
            for batch in scanner.to_batches():
                yield batch if batch.schema == schema else batch.cast(schema)


class FilePart(Part):
    """A part that is a file, with the columns of its folder's name."""

    def __init__(self, fragment: ds.FileFragment, kind: str) -> None:
        super().__init__(fragment.path, kind, fragment)
        self.fragment = fragment
        self._constants = ds.get_partition_keys(fragment.partition_expression)

    def read_batches(self, schema: pa.Schema, size: int, groups: Groups = None) -> Batches:
        with closing(self.read_stored(schema, None, groups)) as batches:
            for batch in batches:
                for begin in range(0, len(batch), size):
                    yield batch.slice(begin, size)

    def list_own(self, schema: pa.Schema) -> list[str]:
        """Return the columns of ``schema`` that are in the file."""
        return [name for name in schema.names if name in self.schema.names]

    def arrange(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return a batch with the columns of ``schema``, those of the folder's name included."""
        columns = []
        for field in schema:
            if field.name in self.schema.names:
                values = batch.column(field.name)
                # a damaged file may have invalid text, or more rows than values
                values.validate(full=not pa.types.is_primitive(values.type))
                columns.append(values if values.type == field.type else values.cast(field.type))
            else:
                constant = pa.scalar(self._constants.get(field.name), field.type)
                columns.append(pa.repeat(constant, len(batch)))
        return pa.RecordBatch.from_arrays(columns, schema=schema)


class CsvPart(FilePart):
    """A CSV file, plain or gzipped, streamed a megabyte at a time by one thread."""

    def __init__(self, fragment: ds.FileFragment) -> None:
        super().__init__(fragment, "CSV")
        with explain_errors(self.path, self.kind), self._open([], {}) as (_, reader):
            self.schema = reader.schema
            list(self.schema.names)  # names that are not text raise here

    def read_stored(
        self, schema: pa.Schema, on_bytes: OnBytes = None, groups: Groups = None
    ) -> Batches:
        own = self.list_own(schema)
        types = {name: schema.field(name).type for name in own}
        position = 0
        columns = own or self.schema.names[:1]
        with self.reading(), self._open(columns, types) as (file, reader):
            for batch in reader:
                if on_bytes is not None:
                    position, before = file.tell(), position
                    on_bytes(position - before)
                yield self.arrange(batch, schema)

    @contextmanager
    def _open(
        self, names: list[str], types: dict[str, pa.DataType]
    ) -> Iterator[tuple[pa.NativeFile, pc.CSVStreamingReader]]:
        """Open the file, which knows its position, and a reader of these columns ([]: all)."""
        packed = self.path.lower().endswith(".gz")
        with self.fragment.open() as file:
            stream = pa.CompressedInputStream(file, "gzip") if packed else file
            # one thread: a parallel reader cannot give the number of a bad row
            with pc.open_csv(
                stream,
                pc.ReadOptions(use_threads=False),
                pc.ParseOptions(newlines_in_values=True),
                pc.ConvertOptions(
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    include_columns=names,
                    column_types=types,
                ),
            ) as reader:
                yield file, reader


class IpcPart(FilePart):
    """An Arrow IPC (Feather) file, one group for every record batch."""

    has_groups = True

    def __init__(self, fragment: ds.FileFragment) -> None:
        super().__init__(fragment, "Arrow IPC")
        with explain_errors(self.path, self.kind), self._open([]) as file:
            self.schema = file.schema

    def read_stored(
        self, schema: pa.Schema, on_bytes: OnBytes = None, groups: Groups = None
    ) -> Batches:
        n_bytes = self.guard.n_bytes if on_bytes else 0
        columns = self.list_own(schema) or self.schema.names[:1]
        with self.reading(), self._open(columns) as file:
            n_groups = file.num_record_batches
            for group in range(n_groups) if groups is None else groups:
                if on_bytes is not None:
                    on_bytes(n_bytes / n_groups)
                yield self.arrange(file.get_batch(group), schema)

    @contextmanager
    def _open(self, names: Sequence[str]) -> Iterator[pa.RecordBatchFileReader]:
        """Open the file to read these columns ([]: all)."""
        places = [self.schema.get_field_index(name) for name in names]
        # one thread: none of them can outlive this reader
        options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
        with (
            self.fragment.open() as handle,
            pa.ipc.open_file(handle, options=options) as file,
        ):
            yield file


class ParquetPart(FilePart):
    """A Parquet file, read page by page; a row group may be larger than memory."""

    def __init__(self, fragment: ds.ParquetFileFragment, groups: list[int] | None = None) -> None:
        super().__init__(fragment, "Parquet")
        with explain_errors(self.path, self.kind), self._open() as file:
            meta = file.metadata
            self.schema = file.schema_arrow
            self.groups = list(range(meta.num_row_groups)) if groups is None else groups
            self.counts = [meta.row_group(group).num_rows for group in self.groups]
            self._holes, self._unknown = self._find_nulls(meta)

    @property
    def unread(self) -> int:
        return 0

    def has_rows(self, schema: pa.Schema) -> bool:
        return sum(self.counts) > 0

    def count_rows(self, schema: pa.Schema) -> Sequence[int]:
        return self.counts

    def find_missing(self, schema: pa.Schema) -> set[str]:
        names = set(list_countable(schema))
        absent = {n for n in names - set(self.schema.names) if self._constants.get(n) is None}
        unknown = self._unknown & names
        counted = self._count(schema, sorted(unknown), None)[1] if unknown else set()
        return names & (self._holes | absent | counted)

    def read_batches(self, schema: pa.Schema, size: int, groups: Groups = None) -> Batches:
        read = self.groups if groups is None else [self.groups[group] for group in groups]
        with self.reading(), self._open() as file:
            for batch in file.iter_batches(size, row_groups=read, columns=self.list_own(schema)):
                yield self.arrange(batch, schema)

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        # pre_buffer would keep the whole file in memory, an unbuffered stream a whole row group
        with (
            self.fragment.open() as handle,
            pq.ParquetFile(
                handle,
                buffer_size=PAGE_BUFFER,
                pre_buffer=False,
                page_checksum_verification=True,
            ) as file,
        ):
            yield file

    def _find_nulls(self, meta: pq.FileMetaData) -> tuple[set[str], set[str]]:
        """Return the countable columns with missing values, and those whose file does not say.

        A column of nothing but missing values may be of any type in another file.
        """
        nulls = [field.name for field in self.schema if pa.types.is_null(field.type)]
        names = {*list_countable(self.schema), *nulls}
        leaves: list[Any] = [meta.schema.column(i) for i in range(meta.num_columns)]
        asked = [(i, leaf) for i, leaf in enumerate(leaves) if leaf.path in names]
        holes, unknown = set(), set()
        for group in map(meta.row_group, self.groups):
            for i, leaf in asked:
                column = group.column(i)
                if leaf.max_definition_level == 0:  # it cannot be missing
                    continue
                if column.physical_type != leaf.physical_type:
                    # pyarrow would end the process when asked for the statistics
                    raise pa.ArrowInvalid(f"The footer is damaged at column '{leaf.path}'")
                statistics = column.statistics
                if statistics is None or not statistics.has_null_count:
                    unknown.add(leaf.path)
                elif statistics.null_count:
                    holes.add(leaf.path)
        return holes, unknown - holes


def list_countable(schema: pa.Schema) -> list[str]:
    """Return the columns whose NumPy type depends on whether a value is missing."""
    return [field.name for field in schema if is_count(unwrap_type(field.type))]
