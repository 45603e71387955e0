"""Files that know their groups of rows: Parquet and Arrow IPC (Feather)."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from decoct.data.arrow_parts import (
    PAGE_BUFFER,
    SMALLEST_BATCH,
    FilePart,
    OnBytes,
    count_batches,
    list_countable,
    slice_batch,
)
from decoct.data.arrow_schema import explain_errors
from decoct.data.base import DEFAULT_CHUNK


class ParquetPart(FilePart):
    """A Parquet file, read page by page; a row group may be larger than memory."""

    unread = 0

    def __init__(self, fragment: ds.ParquetFileFragment, groups: list[int] | None = None) -> None:
        super().__init__(fragment, "Parquet")
        with explain_errors(self.path, self.kind), self._open() as file:
            meta = file.metadata
            self.schema = file.schema_arrow
            self._groups = list(range(meta.num_row_groups)) if groups is None else groups
            self._counts = [meta.row_group(group).num_rows for group in self._groups]
            self._holes, self._unknown = _find_nulls(meta, self._groups, self.schema)

    @contextmanager
    def _open(self) -> Iterator[pq.ParquetFile]:
        # pre_buffer would keep the whole file in memory, an unbuffered stream a whole row group
        with (
            self._fragment.open() as handle,
            pq.ParquetFile(
                handle,
                buffer_size=PAGE_BUFFER,
                pre_buffer=False,
                page_checksum_verification=True,
            ) as file,
        ):
            yield file

    def survey(self, schema: pa.Schema, on_bytes: OnBytes | None = None) -> None:
        return

    def has_rows(self, schema: pa.Schema) -> bool:
        return sum(self._counts) > 0

    def count_rows(self, schema: pa.Schema) -> Sequence[int]:
        return self._counts

    def find_missing(self, schema: pa.Schema) -> set[str]:
        names = set(list_countable(schema))
        absent = {n for n in names - set(self.schema.names) if self._constants.get(n) is None}
        unknown = [schema.field(n) for n in self._unknown & names]
        walk = self.read_batches(pa.schema(unknown), DEFAULT_CHUNK) if unknown else ()
        return names & (self._holes | absent | count_batches(walk)[1])

    def read_batches(
        self, schema: pa.Schema, size: int, groups: Sequence[int] | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        read = self._groups if groups is None else [self._groups[group] for group in groups]
        names = [name for name in schema.names if name in self.schema.names]
        with explain_errors(self.path, self.kind), self.require_unchanged(), self._open() as file:
            for batch in file.iter_batches(size, row_groups=read, columns=names):
                yield self.arrange(batch, schema)


class IpcPart(FilePart):
    """An Arrow IPC (Feather) file, one group for every record batch."""

    def __init__(self, fragment: ds.FileFragment) -> None:
        super().__init__(fragment, "Arrow IPC")
        with explain_errors(self.path, self.kind), self._open() as file:
            self.schema = file.schema
        self._surveyed: tuple[list[int], set[str]] | None = None

    @contextmanager
    def _open(self, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatchFileReader]:
        places = None if names is None else [self.schema.get_field_index(n) for n in names]
        # one thread: none of them can outlive this reader
        options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
        with (
            self._fragment.open() as handle,
            pa.ipc.open_file(handle, options=options) as file,
        ):
            yield file

    @property
    def unread(self) -> int:
        return 0 if self._surveyed else self._guard.n_bytes

    def survey(self, schema: pa.Schema, on_bytes: OnBytes | None = None) -> None:
        if self._surveyed is not None:
            return
        counts, holes = [], set()
        names = [n for n in list_countable(schema) if n in self.schema.names]
        unread = self.unread
        with (
            explain_errors(self.path, self.kind),
            self._open(names or self.schema.names[:1]) as file,
        ):
            for group in range(file.num_record_batches):
                rows, missing = count_batches([file.get_batch(group)])
                counts.append(rows)
                holes |= missing.intersection(names)
                if on_bytes is not None:
                    on_bytes(unread / file.num_record_batches)
        absent = set(list_countable(schema)) - set(names)
        holes |= {name for name in absent if self._constants.get(name) is None}
        self._surveyed = counts, holes

    def has_rows(self, schema: pa.Schema) -> bool:
        with closing(self.read_batches(schema, SMALLEST_BATCH)) as batches:
            return any(len(batch) for batch in batches)

    def count_rows(self, schema: pa.Schema) -> Sequence[int]:
        return self._get_survey(schema)[0]

    def find_missing(self, schema: pa.Schema) -> set[str]:
        return self._get_survey(schema)[1]

    def _get_survey(self, schema: pa.Schema) -> tuple[list[int], set[str]]:
        self.survey(schema)
        assert self._surveyed is not None
        return self._surveyed

    def read_batches(
        self, schema: pa.Schema, size: int, groups: Sequence[int] | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        names = [name for name in schema.names if name in self.schema.names]
        with (
            explain_errors(self.path, self.kind),
            self.require_unchanged(),
            self._open(names) as file,
        ):
            for group in range(file.num_record_batches) if groups is None else groups:
                yield from slice_batch(self.arrange(file.get_batch(group), schema), size)


def _find_nulls(
    meta: pq.FileMetaData, groups: list[int], schema: pa.Schema
) -> tuple[set[str], set[str]]:
    """Return the countable columns with missing values, and those whose file does not say.

    A column of nothing but missing values may be of any type in another file.
    """
    names = {
        *list_countable(schema),
        *(field.name for field in schema if pa.types.is_null(field.type)),
    }
    leaves: list[Any] = [meta.schema.column(i) for i in range(meta.num_columns)]
    asked = [(i, c.path) for i, c in enumerate(leaves) if c.path in names]
    optional = [(i, name) for i, name in asked if leaves[i].max_definition_level > 0]
    holes: set[str] = set()
    unknown: set[str] = set()
    for group in map(meta.row_group, groups):
        for i, name in optional:
            column = group.column(i)
            if column.physical_type != leaves[i].physical_type:
                # pyarrow would end the process when asked for the statistics
                raise pa.ArrowInvalid(f"The footer is damaged at column '{name}'")
            statistics = column.statistics
            if statistics is None or not statistics.has_null_count:
                unknown.add(name)
            elif statistics.null_count:
                holes.add(name)
    return holes, unknown - holes
