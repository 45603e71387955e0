"""Which parts a list of files or a data set has, and their common columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from decoct.data.arrow_groups import IpcPart, ParquetPart
from decoct.data.arrow_parts import PAGE_BUFFER, Part
from decoct.data.arrow_scans import CsvPart, ScannedPart
from decoct.data.arrow_schema import common_schema, plain_fields, reading
from decoct.data.discovery import PARQUET
from decoct.errors import RowsError


def from_files(files: list[str], base: str | None) -> tuple[list[Part], pa.Schema]:
    """Return the parts of files of one kind, in order; ``base`` is the folder searched."""
    is_parquet = files[0].lower().endswith(PARQUET)
    layout: dict[str, Any] = {"partitioning": "hive", "partition_base_dir": base} if base else {}
    with reading(files[0], "Parquet" if is_parquet else "CSV"):
        kind = ds.ParquetFileFormat() if is_parquet else ds.CsvFileFormat()
        dataset = ds.dataset(files, format=kind, filesystem=fs.LocalFileSystem(), **layout)
    make: Callable[..., Part] = ParquetPart if is_parquet else CsvPart
    parts: list[Part] = [make(fragment) for fragment in dataset.get_fragments()]
    schema = common_schema({part.path: part.schema for part in parts})
    partitions = [field for field in dataset.schema if field.name not in schema.names]
    return parts, pa.schema([*schema, *plain_fields(partitions)])


def from_dataset(dataset: ds.Dataset) -> tuple[list[Part], pa.Schema]:
    """Return the parts of a data set, in its order, with the columns of its schema."""
    schema = pa.schema(plain_fields(dataset.schema))
    if getattr(dataset, "_scan_options", None):
        # filtered: the scanner alone knows which rows are kept
        return [ScannedPart("The data set", dataset.schema, _scan_of(dataset), dataset)], schema
    parts = [_dataset_part(fragment, dataset.schema) for fragment in dataset.get_fragments()]
    if not parts:
        raise RowsError("The table is empty: the data set has no files.")
    return parts, schema


def _dataset_part(fragment: ds.Fragment, schema: pa.Schema) -> Part:
    path = getattr(fragment, "path", "The data set")
    with reading(path, "data"):
        if isinstance(fragment, ds.ParquetFileFragment):
            return ParquetPart(fragment, [group.id for group in fragment.row_groups])
        if isinstance(fragment, ds.FileFragment) and isinstance(fragment.format, ds.IpcFileFormat):
            return IpcPart(fragment)
        inferred = fragment.physical_schema
    return ScannedPart(path, inferred, partial(fragment.scanner, schema=schema), fragment)


def _scan_of(dataset: ds.Dataset) -> Callable[..., ds.Scanner]:
    """Return the scanner of a data set; one of Parquet files has to be told to save memory."""
    plain = ds.ParquetFragmentScanOptions()
    form = getattr(dataset, "format", None)
    options = getattr(form, "default_fragment_scan_options", None)
    if not isinstance(form, ds.ParquetFileFormat) or options != plain:
        return dataset.scanner
    thrifty = ds.ParquetFragmentScanOptions(
        use_buffered_stream=True, buffer_size=PAGE_BUFFER, pre_buffer=False
    )
    return partial(dataset.scanner, fragment_scan_options=thrifty)
