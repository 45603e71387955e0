"""The parts of an Arrow table, each read on its own: files, or fragments of a data set.

A part is a sequence of *groups* of rows (row groups, record batches) whose numbers of rows are
known, so that rows are found by their number without reading the groups before them. A format that
does not store them is a single group, counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.dataset as ds

from decoct.data.arrays import unwrap_type
from decoct.data.file_version import ChangeGuard

SMALLEST_BATCH = 8192
"""Rows in a batch read from a file, at least; a chunk may be smaller."""

PAGE_BUFFER = 1 << 18
"""Bytes of a Parquet column read at a time."""

OnBytes = Callable[[float], None]


@runtime_checkable
class Part(Protocol):
    """A file, or a fragment of a data set, in one or more groups of rows.

    Attributes
    ----------
    path
        The file, for messages.
    schema
        The columns that the file itself declares.
    unread
        Bytes to read before the number of rows is known; 0 if it is.
    """

    path: str
    schema: pa.Schema

    @property
    def unread(self) -> int: ...

    def survey(self, schema: pa.Schema, on_bytes: OnBytes | None = None) -> None:
        """Find out what `count_rows` and `find_missing` return, if that takes a pass; once."""
        ...

    def has_rows(self, schema: pa.Schema) -> bool: ...

    def count_rows(self, schema: pa.Schema) -> Sequence[int]:
        """Return the number of rows of every group."""
        ...

    def find_missing(self, schema: pa.Schema) -> set[str]:
        """Return the integer and boolean columns with missing values."""
        ...

    def read_batches(
        self, schema: pa.Schema, size: int, groups: Sequence[int] | None = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the columns of ``schema``, cast to it, in batches of at most ``size`` rows.

        Only of these groups, if the part has several and they are given.
        """
        ...


class FilePart:
    """What parts that are files share: path, columns of the folder, a guard against changes."""

    def __init__(self, fragment: ds.FileFragment, kind: str) -> None:
        self.path: str = fragment.path
        self.kind = kind
        self.schema = pa.schema([])
        self._fragment = fragment
        self._constants = ds.get_partition_keys(fragment.partition_expression)
        self._guard = ChangeGuard(fragment, kind)
        self.require_unchanged = self._guard.require_unchanged

    def arrange(self, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return a batch with the columns of ``schema``, those of the folder's name included."""
        return pa.RecordBatch.from_arrays(
            [self._arrange_column(batch, field) for field in schema], schema=schema
        )

    def _arrange_column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name not in self.schema.names:
            constant = pa.scalar(self._constants.get(field.name), field.type)
            return pa.repeat(constant, len(batch))
        values = batch.column(field.name)
        # a damaged file may hold invalid text, or more rows than values
        values.validate(full=not pa.types.is_primitive(values.type))
        return values if values.type == field.type else values.cast(field.type)


def slice_batch(batch: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces of at most ``size`` rows."""
    for begin in range(0, len(batch), size):
        yield batch.slice(begin, size)


def list_countable(schema: pa.Schema) -> list[str]:
    """Return the columns whose NumPy type depends on whether a value is missing."""
    kinds = ((field.name, unwrap_type(field.type)) for field in schema)
    return [n for n, kind in kinds if pa.types.is_integer(kind) or pa.types.is_boolean(kind)]


def count_batches(batches: Iterable[pa.RecordBatch]) -> tuple[int, set[str]]:
    """Return the number of rows and the columns with missing values."""
    rows = 0
    holes: set[str] = set()
    for batch in batches:
        rows += len(batch)
        holes.update(n for n in batch.schema.names if batch.column(n).null_count)
    return rows, holes
