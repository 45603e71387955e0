"""Parts whose rows have to be counted: CSV files, and whatever else a data set can scan."""

from __future__ import annotations

import abc
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.dataset as ds

from decoct.data.arrow_parts import (
    SMALLEST_BATCH,
    FilePart,
    OnBytes,
    count_batches,
    list_countable,
    slice_batch,
)
from decoct.data.arrow_schema import explain_errors, find_changed_column
from decoct.data.base import DEFAULT_CHUNK
from decoct.data.file_version import ChangeGuard
from decoct.errors import RowsError


class _Counted(abc.ABC):
    """One group of rows; their number and missing values are found in one pass."""

    path: str
    schema: pa.Schema
    _surveyed: tuple[int, set[str]] | None = None

    @abc.abstractmethod
    def read_batches(
        self, schema: pa.Schema, size: int, groups: Sequence[int] | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the columns of ``schema``; see `Part.read_batches`."""

    def walk(self, schema: pa.Schema, on_bytes: OnBytes | None) -> Iterator[pa.RecordBatch]:
        """Yield batches; report the bytes read where they are known."""
        return self.read_batches(schema, DEFAULT_CHUNK)

    def has_rows(self, schema: pa.Schema) -> bool:
        with closing(self.read_batches(pa.schema([schema.field(0)]), SMALLEST_BATCH)) as batches:
            return any(len(batch) for batch in batches)

    def count_rows(self, schema: pa.Schema) -> Sequence[int]:
        return [self._get_survey(schema)[0]]

    def find_missing(self, schema: pa.Schema) -> set[str]:
        return self._get_survey(schema)[1]

    def survey(self, schema: pa.Schema, on_bytes: OnBytes | None = None) -> None:
        if self._surveyed is None:
            asked = list_countable(schema)
            rows, holes = self._count(schema, asked or schema.names[:1], on_bytes)
            self._surveyed = rows, holes.intersection(asked)

    def _get_survey(self, schema: pa.Schema) -> tuple[int, set[str]]:
        self.survey(schema)
        assert self._surveyed is not None
        return self._surveyed

    def _count(
        self, schema: pa.Schema, names: list[str], on_bytes: OnBytes | None
    ) -> tuple[int, set[str]]:
        try:
            return count_batches(self.walk(pa.schema(map(schema.field, names)), on_bytes))
        except RowsError as error:
            # the column that changes its type may not be needed; reading it is an error later
            changed = find_changed_column(error.__cause__, self.schema.names)
            others = [name for name in names if name != changed]
            if changed is None or not others:
                raise
            return self._count(schema, others, on_bytes)


class CsvPart(FilePart, _Counted):
    """A CSV file, plain or gzipped, streamed a megabyte at a time by one thread."""

    def __init__(self, fragment: ds.FileFragment) -> None:
        FilePart.__init__(self, fragment, "CSV")
        with explain_errors(self.path, self.kind), self._open([], {}) as (_, reader):
            self.schema = reader.schema
            list(self.schema.names)  # names that are not text raise here

    @property
    def unread(self) -> int:
        return 0 if self._surveyed else self._guard.n_bytes

    def read_batches(
        self, schema: pa.Schema, size: int, groups: Sequence[int] | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        with closing(self.walk(schema, None)) as batches:
            for batch in batches:
                yield from slice_batch(batch, size)

    def walk(
        self, schema: pa.Schema, on_bytes: OnBytes | None
    ) -> Generator[pa.RecordBatch, None, None]:
        types = {field.name: field.type for field in schema if field.name in self.schema.names}
        names = list(types) or self.schema.names[:1]
        position = 0
        with (
            explain_errors(self.path, self.kind, self.schema.names),
            self.require_unchanged(),
            self._open(names, types) as (file, reader),
        ):
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
        with self._fragment.open() as file:
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


class ScannedPart(_Counted):
    """A fragment of a data set, or a filtered data set, of any format that Arrow scans.

    Parameters
    ----------
    path
        For messages.
    schema
        The columns.
    scan
        Returns a scanner.
    source
        What it scans.
    """

    unread = 0

    def __init__(
        self,
        path: str,
        schema: pa.Schema,
        scan: Callable[..., ds.Scanner],
        source: ds.Dataset | ds.Fragment,
    ) -> None:
        self.path = path
        self._guard = ChangeGuard(source, "data")
        self.schema = schema
        self._scan = scan

    def read_batches(
        self, schema: pa.Schema, size: int, groups: Sequence[int] | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        with explain_errors(self.path, "data", self.schema.names), self._guard.require_unchanged():
            scanner = self._scan(
                columns=schema.names,
                batch_size=size,
                batch_readahead=1,
                fragment_readahead=1,
                use_threads=False,  # with threads it reads ahead without limit
            )
            for batch in scanner.to_batches():
                yield batch if batch.schema == schema else batch.cast(schema)
