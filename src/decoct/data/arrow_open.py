"""Files or a data set, opened: their parts and their common columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from decoct.data.arrow_columns import unwrap_type
from decoct.data.arrow_parts import PAGE_BUFFER, CsvPart, IpcPart, ParquetPart, Part, ScannedPart
from decoct.data.discovery import PARQUET, find_files
from decoct.data.file_faults import explain_errors
from decoct.errors import RowsError

_READERS = 16
"""Threads that open files; behind a URL each of them mostly waits."""


def open_dataset(
    source: str | Path | Sequence[str | Path] | ds.Dataset,
) -> tuple[ds.Dataset, list[Part]]:
    """Return a source of rows as a data set, and its parts in order; see `ArrowRows`.

    Columns of several files must agree: numbers are widened to a common type.
    """
    if isinstance(source, ds.Dataset):
        return source, _list_parts(source)
    files, base, remote = find_files(source)
    filesystem: fs.FileSystem = fs.LocalFileSystem()
    if remote is not None:
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(remote))
    is_parquet = files[0].lower().endswith(PARQUET)
    kind = ds.ParquetFileFormat() if is_parquet else ds.CsvFileFormat()
    layout: dict[str, Any] = {"partitioning": "hive", "partition_base_dir": base} if base else {}
    with explain_errors(files[0], "Parquet" if is_parquet else "CSV"):
        dataset = ds.dataset(files, format=kind, filesystem=filesystem, **layout)
    make: Callable[..., Part] = ParquetPart if is_parquet else CsvPart
    fragments = list(dataset.get_fragments())
    with ThreadPoolExecutor(_READERS, "decoct-open") as readers:
        parts: list[Part] = list(readers.map(make, fragments))
    schema = _unify_schemas({part.path: part.schema for part in parts})
    partitions = [field for field in dataset.schema if field.name not in schema.names]
    schema = pa.schema([*schema, *unwrap_fields(partitions)])
    return ds.FileSystemDataset(fragments, schema, kind, filesystem), parts


def _list_parts(dataset: ds.Dataset) -> list[Part]:
    if getattr(dataset, "_scan_options", None):
        # filtered: only the scanner finds out which rows are kept
        return [ScannedPart("The data set", dataset.schema, _choose_scan(dataset), dataset)]
    parts = [_open_fragment(fragment, dataset.schema) for fragment in dataset.get_fragments()]
    if not parts:
        raise RowsError("The table is empty: the data set has no files.")
    return parts


def _open_fragment(fragment: ds.Fragment, schema: pa.Schema) -> Part:
    path = getattr(fragment, "path", "The data set")
    with explain_errors(path, "data"):
        if isinstance(fragment, ds.ParquetFileFragment):
            return ParquetPart(fragment, [group.id for group in fragment.row_groups])
        if isinstance(fragment, ds.FileFragment) and isinstance(fragment.format, ds.IpcFileFormat):
            return IpcPart(fragment)
        inferred = fragment.physical_schema
    return ScannedPart(path, inferred, partial(fragment.scanner, schema=schema), fragment)


def _choose_scan(dataset: ds.Dataset) -> Callable[..., ds.Scanner]:
    """Return the scanner of a data set; that of Parquet files is set to save memory."""
    plain = ds.ParquetFragmentScanOptions()
    form = getattr(dataset, "format", None)
    options = getattr(form, "default_fragment_scan_options", None)
    if not isinstance(form, ds.ParquetFileFormat) or options != plain:
        return dataset.scanner
    options = ds.ParquetFragmentScanOptions(
        use_buffered_stream=True, buffer_size=PAGE_BUFFER, pre_buffer=False
    )
    return partial(dataset.scanner, fragment_scan_options=options)


def unwrap_fields(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return [pa.field(field.name, unwrap_type(field.type)) for field in fields]


def check_unique(path: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise RowsError(f"{path} has two columns '{name}'; rename one.")


def _unify_schemas(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return the columns of all files, numbers widened, or say which two files disagree."""
    first, schema = next(iter(schemas.items()))
    common = {field.name: field for field in unwrap_fields(schema)}
    for path, other in schemas.items():
        check_unique(path, other.names)
        for name in sorted(set(common) ^ set(other.names)):
            one, two = (first, path) if name in common else (path, first)
            raise RowsError(
                f"The files differ in their columns: '{name}' is in {one} but not in {two}; give "
                "every file the same columns."
            )
        for field in unwrap_fields(other):
            common[field.name] = _widen(common[field.name], field, first, path)
    return pa.schema(list(common.values()))


def _widen(one: pa.Field, two: pa.Field, first: str, path: str) -> pa.Field:
    if one.type == two.type:
        return one
    try:
        merged = pa.unify_schemas(
            [pa.schema([one]), pa.schema([two])], promote_options="permissive"
        )
    except pa.ArrowException as error:
        raise RowsError(
            f"Column '{one.name}' is {one.type} in {first} but {two.type} in {path}; "
            "write it with one type."
        ) from error
    return merged.field(0)
