"""Where a cluster's rows come from: DataFrames, arrays, Parquet files, in partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import dask.array as da
import numpy as np
import pyarrow.dataset as ds

from decoct.data.arrays import ArrayRows, check_lengths, check_name
from decoct.data.arrow import ArrowRows
from decoct.data.arrow_parts import ParquetPart
from decoct.data.base import Columns
from decoct.data.dask_cluster import Cluster
from decoct.data.dask_layout import PartitionLengths, coalesce
from decoct.data.dask_tasks import Failed, call, pack, pick, unpack
from decoct.data.dask_types import ColumnType, cast, empty_columns, find_common_types
from decoct.data.file_faults import explain_errors, find_version
from decoct.errors import RowsError

PARTITION_ROWS = 1 << 20
"""Most rows of Parquet in a partition, unless a row group is larger."""

FEWEST_ROWS = 1 << 16
"""Rows of Parquet below which a partition is not worth splitting."""

PARTITIONS_PER_THREAD = 4

Found = Mapping[str, ColumnType | Failed]
"""The type of every column of a partition, or the error; empty for a partition without rows."""


class View(NamedTuple):
    """Some columns of a table: their types, and a delayed `Columns` per partition."""

    types: dict[str, ColumnType]
    partitions: list[Any]
    layout: PartitionLengths
    files: list[bytes] | None = None
    """What a worker needs to open the files of each partition, if they are in files."""

    def pick(self, partition: int, rows: np.ndarray) -> Any:
        """Return delayed `Columns` of some rows, by their ascending numbers in the partition.

        Where the table is in files, only the row groups with such rows are read.
        """
        if self.files is None:
            return call(pick, self.partitions[partition], rows)
        n_rows = self.layout.lengths[partition]
        return call(_take_from_files, self.types, n_rows, self.files[partition], rows)


class Source(Protocol):
    """A table in partitions."""

    cluster: Cluster
    columns: tuple[str, ...]

    @property
    def n_rows(self) -> int: ...

    def view(self, names: tuple[str, ...]) -> View: ...

    def find_file(self, row: int) -> tuple[str, int] | None:
        """Return the file of a row, and its number in that file, if there are several files."""
        return None


class FrameSource(Source):
    """A Dask DataFrame. Lengths and types of its partitions are asked for in one pass, once.

    A column without a usable type is refused by the first view that has it; other views work.
    """

    def __init__(self, frame: Any, cluster: Cluster) -> None:
        self.cluster = cluster
        self.columns = tuple(frame.columns)
        for name in self.columns:
            check_name(name)
        if len(set(self.columns)) < len(self.columns):
            raise RowsError("The table has two columns of the same name; rename one.")
        check_lengths(dict.fromkeys(self.columns, 1))
        self._frame = frame

    @property
    def n_rows(self) -> int:
        return sum(self._survey[0])

    def view(self, names: tuple[str, ...]) -> View:
        lengths, found = self._survey
        chosen = find_common_types([_require_types(one, names) for one in found])
        frames = self._frame[list(names)].to_delayed()
        if len(frames) != len(lengths):
            # Dask joins partitions of files of which few columns are read
            lengths = self.cluster.gather([call(len, one) for one in frames])
        partitions = [
            call(_load_frame, one, chosen, n) for one, n in zip(frames, lengths, strict=True)
        ]
        return View(chosen, partitions, PartitionLengths(tuple(lengths)))

    @cached_property
    def _survey(self) -> tuple[list[int], list[Found]]:
        frames = self._frame.to_delayed()
        found = self.cluster.gather([call(_survey_frame, one) for one in frames])
        lengths = [n for n, _ in found]
        if not sum(lengths):
            raise RowsError("The table is empty; give at least one row.")
        return lengths, [types for _, types in found]


class ArraySource(Source):
    """Dask arrays of equal length, rows on axis 0; all are cut like the first one."""

    def __init__(self, columns: Mapping[Any, Any], cluster: Cluster) -> None:
        self.cluster = cluster
        for name, array in columns.items():
            check_name(name)
            _check_array(name, array)
        self.columns = tuple(columns)
        self._given: dict[str, Any] = dict(columns)

    @property
    def n_rows(self) -> int:
        return len(self._arrays[self.columns[0]])

    def view(self, names: tuple[str, ...]) -> View:
        arrays = [self._arrays[name] for name in names]
        types = {k: ColumnType(v.dtype, v.shape[1:]) for k, v in zip(names, arrays, strict=True)}
        lengths = tuple(map(int, arrays[0].chunks[0]))
        blocks = [array.to_delayed().reshape(len(lengths)) for array in arrays]
        partitions = [
            call(_load_blocks, types, n, *parts) for n, *parts in zip(lengths, *blocks, strict=True)
        ]
        return View(types, partitions, PartitionLengths(lengths))

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        known = {k: _find_lengths(v, self.cluster) for k, v in self._given.items()}
        check_lengths({name: len(array) for name, array in known.items()})
        rows = known[self.columns[0]].chunks[0]
        return {name: array.rechunk((rows, *array.shape[1:])) for name, array in known.items()}


class FileSource(Source):
    """Parquet files, as `ArrowRows` takes them, unfiltered, which the workers can open too.

    Lengths and types come from the files' footers.
    """

    def __init__(
        self, source: str | Path | Sequence[str | Path] | ds.Dataset, cluster: Cluster
    ) -> None:
        self.cluster = cluster
        self.files = ArrowRows(source)
        dataset = self.files.dataset
        is_parquet = isinstance(getattr(dataset, "format", None), ds.ParquetFileFormat)
        if not is_parquet or getattr(dataset, "_scan_options", None):
            raise RowsError(
                "The workers of a cluster read only Parquet, unfiltered; convert the files, or "
                "open them, and filter, with dask.dataframe, such as dask.dataframe.read_csv."
            )
        self.columns = self.files.columns

    @property
    def n_rows(self) -> int:
        return self.files.n_rows

    def find_file(self, row: int) -> tuple[str, int] | None:
        return self.files.find_file(row)

    def view(self, names: tuple[str, ...]) -> View:
        nothing = self.files.take(np.empty(0, dtype=np.int64), names)
        types = {name: ColumnType(v.dtype, v.shape[1:]) for name, v in nothing.items()}
        lengths = tuple(n for _, n in self._partitions)
        packed = [files for files, _ in self._partitions]
        partitions = [call(_load_files, types, n, files) for files, n in self._partitions]
        return View(types, partitions, PartitionLengths(lengths), packed)

    @cached_property
    def _partitions(self) -> list[tuple[bytes, int]]:
        """Neighbouring row groups by partition, packed for a worker, and their number of rows."""
        parts = [part for part in self.files.parts if isinstance(part, ParquetPart)]
        groups = [(part, i) for part in parts for i in range(len(part.groups))]
        counts = [part.counts[i] for part, i in groups]
        share = -(-sum(counts) // (PARTITIONS_PER_THREAD * self.cluster.n_threads))
        most = min(PARTITION_ROWS, max(FEWEST_ROWS, share))
        partitions = []
        for run in coalesce(counts, most):
            by_file = groupby((groups[i] for i in run), key=lambda group: group[0])
            files = [
                _FileGroups.of(part, [part.groups[i] for _, i in some]) for part, some in by_file
            ]
            packed = pack((self.files.dataset.schema, files))
            partitions.append((packed, sum(counts[i] for i in run)))
        return partitions


class _FileGroups(NamedTuple):
    """Row groups of a file, in the version that it had when the table was opened."""

    filesystem: Any
    path: str
    version: str | None
    format: Any
    partition: Any
    groups: list[int]

    @classmethod
    def of(cls, part: ParquetPart, groups: list[int]) -> _FileGroups:
        ((filesystem, path, version),) = part.guard.files
        fragment = part.fragment
        return cls(
            filesystem, path, version, fragment.format, fragment.partition_expression, groups
        )

    def open(self) -> ds.ParquetFileFragment:
        """Return the groups, on a worker, if the file is still that of the table."""
        with explain_errors(self.path, "Parquet"):
            if find_version(self.filesystem, self.path) != self.version:
                raise RowsError(
                    f"{self.path} changed while it was in use, or is another file where the "
                    "workers are; open the table again and start again."
                )
            whole = self.format.make_fragment(self.path, self.filesystem, self.partition)
            return whole.subset(row_group_ids=self.groups)  # make_fragment would not keep the order


def _survey_frame(frame: Any) -> tuple[int, Found]:
    found: dict[str, ColumnType | Failed] = {}
    for name in frame.columns if len(frame) else ():
        try:
            found[name] = ColumnType.of(_whole(ArrayRows.from_table(frame[[name]]))[name])
        except Exception as error:
            found[name] = Failed.of(error)
    return len(frame), found


def _require_types(found: Found, names: Sequence[str]) -> dict[str, ColumnType]:
    """Return the types of these columns of a partition; raise why one has none."""
    types = {}
    for name in names if found else ():
        kind = found[name]
        if isinstance(kind, Failed):
            raise kind.error()
        types[name] = kind
    return types


def _whole(rows: ArrayRows) -> Columns:
    return next(rows.chunks(rows.n_rows)).columns


def _load_frame(frame: Any, types: Mapping[str, ColumnType], n_rows: int) -> Columns:
    _check_length(len(frame), n_rows)
    if not n_rows:
        return empty_columns(types)
    return cast(_whole(ArrayRows.from_table(frame)), types)


def _load_blocks(types: Mapping[str, ColumnType], n_rows: int, *blocks: Any) -> Columns:
    for block in blocks:
        _check_length(len(block), n_rows)
    if not n_rows:
        return empty_columns(types)
    found = _whole(ArrayRows(dict(zip(types, blocks, strict=True))))
    for name, kind in types.items():
        dtype = found[name].dtype
        if np.result_type(dtype, kind.dtype) != kind.dtype:
            raise RowsError(
                f"Column '{name}' is {kind.dtype} by its Dask array but {dtype} in a block; "
                f"convert it with .astype({str(dtype)!r})."
            )
    return cast(found, types)


def _load_files(types: Mapping[str, ColumnType], n_rows: int, packed: bytes) -> Columns:
    with closing(_open_partition(n_rows, packed).chunks(n_rows, tuple(types))) as chunks:
        return cast(next(chunks).columns, types)


def _take_from_files(
    types: Mapping[str, ColumnType], n_rows: int, packed: bytes, rows: np.ndarray
) -> Columns:
    return cast(_open_partition(n_rows, packed).take(rows, tuple(types)), types)


def _open_partition(n_rows: int, packed: bytes) -> ArrowRows:
    schema, files = unpack(packed)
    fragments = [one.open() for one in files]
    first = files[0]
    rows = ArrowRows(ds.FileSystemDataset(fragments, schema, first.format, first.filesystem))
    _check_length(rows.n_rows, n_rows)
    return rows


def _check_length(have: int, want: int) -> None:
    if have != want:
        raise RowsError(
            f"A partition had {want} rows and now has {have}: the data changed while they were in "
            "use; open the table again."
        )


def _check_array(name: str, array: Any) -> None:
    if not isinstance(array, da.Array):
        raise RowsError(
            f"Column '{name}' is of type {type(array).__qualname__} among Dask arrays; make it "
            "one too (dask.array.from_array, or .to_dask_array() of a Series)."
        )
    if array.ndim == 0:
        raise RowsError(
            f"Column '{name}' is a single number; a column is an array with one entry per row."
        )


def _find_lengths(array: Any, cluster: Cluster) -> Any:
    """Return the array with the lengths of its blocks; asking for them computes it once."""
    if not np.isnan(array.shape[0]):
        return array
    whole = array.rechunk((array.chunks[0], *array.shape[1:]))
    blocks = whole.to_delayed().reshape(-1)
    lengths = cluster.gather([call(len, block) for block in blocks])
    return da.concatenate(
        [
            da.from_delayed(block, (n, *whole.shape[1:]), dtype=array.dtype)
            for block, n in zip(blocks, lengths, strict=True)
        ]
    )
