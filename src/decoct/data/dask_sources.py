"""Where a cluster's rows come from: DataFrames, arrays, Parquet files, in partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import dask.array as da
import numpy as np
import pyarrow.dataset as ds
import pyarrow.fs as fs
from dask.delayed import delayed

from decoct.data.arrays import ArrayRows
from decoct.data.arrow import ArrowRows
from decoct.data.base import Columns
from decoct.data.dask_cluster import Cluster
from decoct.data.dask_layout import Layout, coalesce
from decoct.data.dask_tasks import Failed, guard, pack, pick, unpack
from decoct.data.dask_types import ColumnType, cast, find_common_types
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
    """Some columns of a table.

    Attributes
    ----------
    types
        Their types.
    partitions
        A delayed `Columns` per partition.
    layout
        How many rows are in each.
    files
        What a worker needs to open the files of each partition, if they are in files.
    """

    types: dict[str, ColumnType]
    partitions: list[Any]
    layout: Layout
    files: list[bytes] | None = None

    def pick(self, partition: int, rows: np.ndarray) -> Any:
        """Return delayed `Columns` of some rows, by their ascending numbers in the partition.

        Of files, only the row groups that hold such rows are read.
        """
        if self.files is None:
            return _make_task(pick)(self.partitions[partition], rows)
        n_rows = self.layout.lengths[partition]
        return _make_task(_take_from_files)(self.types, n_rows, self.files[partition], rows)


class Source(Protocol):
    """A table in partitions."""

    columns: tuple[str, ...]

    def n_rows(self, cluster: Cluster) -> int: ...

    def view(self, names: tuple[str, ...], cluster: Cluster) -> View: ...


class FrameSource:
    """A Dask DataFrame. Lengths and types of its partitions are asked for in one pass, once.

    A column without a usable type is refused by the first view that has it; other views work.

    Parameters
    ----------
    frame
        The DataFrame.
    """

    def __init__(self, frame: Any) -> None:
        self.columns = tuple(frame.columns)
        for name in self.columns:
            if not isinstance(name, str):
                raise RowsError(f"Column names are strings; {name!r} is not.")
        if len(set(self.columns)) < len(self.columns):
            raise RowsError("The table has two columns of the same name; rename one.")
        if not self.columns:
            raise RowsError("The table has no columns; give at least one.")
        self._frame = frame
        self._surveyed: tuple[tuple[int, ...], list[Found]] | None = None

    def n_rows(self, cluster: Cluster) -> int:
        return sum(self._survey(cluster)[0])

    def view(self, names: tuple[str, ...], cluster: Cluster) -> View:
        lengths, found = self._survey(cluster)
        chosen = find_common_types([_require_types(one, names) for one in found])
        frames = self._frame[list(names)].to_delayed()
        if len(frames) != len(lengths):
            # Dask joins partitions of files of which few columns are read
            lengths = tuple(cluster.gather([_make_task(_count_rows)(one) for one in frames]))
        load = _make_task(_load_frame)
        partitions = [load(one, chosen, n) for one, n in zip(frames, lengths, strict=True)]
        return View(chosen, partitions, Layout(lengths))

    def _survey(self, cluster: Cluster) -> tuple[tuple[int, ...], list[Found]]:
        if self._surveyed is None:
            frames = self._frame.to_delayed()
            found = cluster.gather([_make_task(_survey_frame)(one) for one in frames])
            lengths = tuple(n for n, _ in found)
            if not sum(lengths):
                raise RowsError("The table is empty; give at least one row.")
            self._surveyed = lengths, [types for _, types in found]
        return self._surveyed


class ArraySource:
    """Dask arrays of equal length, rows on axis 0.

    Parameters
    ----------
    columns
        Name -> array. Where the arrays are cut differently, they are cut like the first one.
    """

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        for name, array in columns.items():
            _check_array(name, array)
        self.columns = tuple(columns)
        self._arrays: dict[str, Any] = dict(columns)
        self._cut: dict[str, Any] | None = None

    def n_rows(self, cluster: Cluster) -> int:
        return len(self._align(cluster)[self.columns[0]])

    def view(self, names: tuple[str, ...], cluster: Cluster) -> View:
        arrays = self._align(cluster)
        types = {name: ColumnType(arrays[name].dtype, arrays[name].shape[1:]) for name in names}
        lengths = tuple(map(int, arrays[names[0]].chunks[0]))
        blocks = [arrays[name].to_delayed().reshape(len(lengths)) for name in names]
        load = _make_task(_load_blocks)
        partitions = [load(types, n, *parts) for n, *parts in zip(lengths, *blocks, strict=True)]
        return View(types, partitions, Layout(lengths))

    def _align(self, cluster: Cluster) -> dict[str, Any]:
        if self._cut is None:
            known = {k: _find_lengths(v, cluster) for k, v in self._arrays.items()}
            lengths = {name: len(array) for name, array in known.items()}
            if len(set(lengths.values())) > 1:
                what = ", ".join(f"'{name}' {length}" for name, length in lengths.items())
                raise RowsError(f"The columns differ in length ({what}); make them equally long.")
            if not next(iter(lengths.values())):
                raise RowsError("The table is empty; give at least one row.")
            rows = next(iter(known.values())).chunks[0]
            self._cut = {
                name: array.rechunk((rows, *array.shape[1:])) for name, array in known.items()
            }
        return self._cut


class FileSource:
    """Parquet files, read by the workers; lengths and types come from the files' footers.

    Parameters
    ----------
    source
        Parquet files the workers can open too: as `ArrowRows` takes them, unfiltered.

    Attributes
    ----------
    files
        The same rows, read here.
    """

    def __init__(self, source: str | Path | Sequence[str | Path] | ds.Dataset) -> None:
        if isinstance(source, ds.Dataset) and not _is_unfiltered_parquet(source):
            raise RowsError(
                "The workers read unfiltered Parquet data sets alone; give the files' paths, or "
                "filter with dask.dataframe."
            )
        self.files = ArrowRows(source)
        dataset: Any = self.files.dataset
        if not _is_unfiltered_parquet(dataset):
            raise RowsError(
                f"{dataset.files[0]} is not Parquet, and the workers of a cluster read Parquet "
                "alone; convert it, or open it with dask.dataframe.read_csv."
            )
        self.columns = self.files.columns
        self._where = dataset.schema, dataset.filesystem
        self._groups = list(_list_row_groups(dataset))
        self._versions = _find_versions(dataset.filesystem, dataset.files)
        self._parts: list[tuple[list[_Groups], int]] | None = None

    def n_rows(self, cluster: Cluster) -> int:
        return self.files.n_rows

    def view(self, names: tuple[str, ...], cluster: Cluster) -> View:
        nothing = self.files.take(np.empty(0, dtype=np.int64), names)
        types = {name: ColumnType(v.dtype, v.shape[1:]) for name, v in nothing.items()}
        parts = self._cut(cluster.n_threads)
        load, packed = _make_task(_load_files), [self._pack(groups) for groups, _ in parts]
        lengths = tuple(n for _, n in parts)
        partitions = [load(types, n, files) for n, files in zip(lengths, packed, strict=True)]
        return View(types, partitions, Layout(lengths), packed)

    def _pack(self, groups: Sequence[_Groups]) -> bytes:
        paths = [one.fragment.path for one in groups]
        versions = {path: self._versions[path] for path in paths}
        # twice: a fragment looks into its file when it is unpacked, which may have changed
        return pack((*self._where, versions, pack(groups)))

    def _cut(self, n_threads: int) -> list[tuple[list[_Groups], int]]:
        """Return neighbouring row groups by partition, with the partition's number of rows."""
        if self._parts is None:
            counts = [n for *_, n in self._groups]
            share = -(-sum(counts) // (PARTITIONS_PER_THREAD * n_threads))
            most = min(PARTITION_ROWS, max(FEWEST_ROWS, share))
            self._parts = [
                (_group_by_file([self._groups[i][:2] for i in run]), sum(counts[i] for i in run))
                for run in coalesce(counts, most)
            ]
        return self._parts


class _Groups(NamedTuple):
    """Row groups of a file, in the order of their rows: a fragment that travels forgets it."""

    fragment: Any
    ids: list[int]

    def open(self) -> ds.ParquetFileFragment:
        return self.fragment.subset(row_group_ids=self.ids)


def _is_unfiltered_parquet(dataset: ds.Dataset) -> bool:
    is_parquet = isinstance(getattr(dataset, "format", None), ds.ParquetFileFormat)
    return is_parquet and not getattr(dataset, "_scan_options", None)


def _list_row_groups(dataset: ds.Dataset) -> Iterator[tuple[Any, int, int]]:
    """Yield every row group: its fragment, its number there, and how many rows it has."""
    fragment: Any
    for fragment in dataset.get_fragments():
        with explain_errors(fragment.path, "Parquet"):
            groups = fragment.row_groups
        for group in groups:
            yield fragment, group.id, group.num_rows


def _group_by_file(groups: Sequence[tuple[Any, int]]) -> list[_Groups]:
    """Return neighbouring row groups of the same file together."""
    found: list[_Groups] = []
    for fragment, group in groups:
        if not found or found[-1].fragment is not fragment:
            found.append(_Groups(fragment, []))
        found[-1].ids.append(group)
    return [_Groups(one.open(), one.ids) for one in found]


def _make_task(function: Callable[..., Any]) -> Callable[..., Any]:
    return delayed(function, pure=False)


@guard
def _count_rows(frame: Any) -> int:
    return len(frame)


@guard
def _survey_frame(frame: Any) -> tuple[int, Found]:
    if not len(frame):
        return 0, {}
    return len(frame), {name: _find_type(frame, name) for name in frame.columns}


def _find_type(frame: Any, name: str) -> ColumnType | Failed:
    try:
        return ColumnType.of(_convert_frame(frame[[name]])[name])
    except Exception as error:
        return Failed.of(error)


def _require_types(found: Found, names: Sequence[str]) -> dict[str, ColumnType]:
    """Return the types of these columns of a partition; raise why one has none."""
    types = {}
    for name in names if found else ():
        kind = found[name]
        if isinstance(kind, Failed):
            raise kind.error()
        types[name] = kind
    return types


def _convert_frame(frame: Any) -> Columns:
    return next(ArrayRows.from_table(frame).chunks(len(frame))).columns


@guard
def _load_frame(frame: Any, types: Mapping[str, ColumnType], n_rows: int) -> Columns:
    _check_length(len(frame), n_rows)
    if not n_rows:
        return {name: kind.empty() for name, kind in types.items()}
    columns = _convert_frame(frame)
    return cast(columns, types)


@guard
def _load_blocks(types: Mapping[str, ColumnType], n_rows: int, *blocks: Any) -> Columns:
    columns = {}
    for (name, kind), block in zip(types.items(), blocks, strict=True):
        _check_length(len(block), n_rows)
        if not n_rows:
            columns[name] = kind.empty()
            continue
        values = next(ArrayRows({name: block}).chunks(n_rows)).columns[name]
        if np.result_type(values.dtype, kind.dtype) != kind.dtype:
            raise RowsError(
                f"Column '{name}' is {kind.dtype} by its Dask array but {values.dtype} in a block; "
                f"convert it with .astype({str(values.dtype)!r})."
            )
        columns[name] = kind.cast(values)
    return columns


@guard
def _load_files(types: Mapping[str, ColumnType], n_rows: int, packed: bytes) -> Columns:
    files = _open_partition(n_rows, packed)
    with closing(files.chunks(n_rows, tuple(types))) as chunks:
        columns = next(chunks).columns
    return cast(columns, types)


@guard
def _take_from_files(
    types: Mapping[str, ColumnType], n_rows: int, packed: bytes, rows: np.ndarray
) -> Columns:
    columns = _open_partition(n_rows, packed).take(rows, tuple(types))
    return cast(columns, types)


def _open_partition(n_rows: int, packed: bytes) -> ArrowRows:
    """Return the rows of a partition, on a worker, if its files are still those of the table."""
    schema, filesystem, versions, groups = unpack(packed)
    for path, found in _find_versions(filesystem, list(versions)).items():
        if found != versions[path]:
            raise RowsError(
                f"{path} changed while it was in use, or is another file where the workers are; "
                "open the table again and start afresh."
            )
    form = ds.ParquetFileFormat()
    fragments = [one.open() for one in unpack(groups)]
    files = ArrowRows(ds.FileSystemDataset(fragments, schema, form, filesystem))
    _check_length(files.n_rows, n_rows)
    return files


def _find_versions(filesystem: fs.FileSystem, paths: Sequence[str]) -> dict[str, str | None]:
    with explain_errors(paths[0], "Parquet"):
        return {path: find_version(filesystem, path) for path in paths}


def _check_length(have: int, want: int) -> None:
    if have != want:
        raise RowsError(
            f"A partition had {want} rows and now has {have}: the data changed while they were in "
            "use; open the table again."
        )


def _check_array(name: object, array: Any) -> None:
    if not isinstance(name, str):
        raise RowsError(f"Column names are strings; {name!r} is not.")
    if not isinstance(array, da.Array):
        raise RowsError(
            f"Column '{name}' is of type {type(array).__qualname__} beside Dask arrays; make it "
            "one too (dask.array.from_array, or .to_dask_array() of a Series)."
        )
    if array.ndim == 0:
        raise RowsError(
            f"Column '{name}' is a single number; a column is an array with one entry per row."
        )


def _find_lengths(array: Any, cluster: Cluster) -> Any:
    """Return the array with the lengths of its blocks; asking for them walks it once."""
    if not np.isnan(array.shape[0]):
        return array
    whole = array.rechunk((array.chunks[0], *array.shape[1:]))
    blocks = whole.to_delayed().reshape(-1)
    lengths = cluster.gather([_make_task(_count_rows)(block) for block in blocks])
    return da.concatenate(
        [
            da.from_delayed(block, (n, *whole.shape[1:]), dtype=array.dtype)
            for block, n in zip(blocks, lengths, strict=True)
        ]
    )
