"""Parquet files as one data set with the schema they have in common, here or behind a URL."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from decoct.data.arrow_schema import common_schema, plain_fields, reading
from decoct.data.discovery import PARQUET, find_files, find_remote, is_remote
from decoct.errors import RowsError

_READERS = 16
"""Threads that read the footers of files, each of which mostly waits."""


def parquet_dataset(source: str | Path | Sequence[str | Path]) -> ds.Dataset:
    """Return the Parquet files of a path, a folder, a pattern, a URL or a list of them.

    Files are in the order of their sorted paths. Their columns must agree; numbers are widened to
    a type that holds them all. Sub-folders ``key=value`` of a folder or pattern add a column.

    Raises
    ------
    RowsError
        There are no such files, they are not Parquet, unreadable, or their columns differ.
    """
    if is_remote(source):
        found, files, base = find_remote(source)
        filesystem: fs.FileSystem = fs.PyFileSystem(fs.FSSpecHandler(found))
    else:
        (files, base), filesystem = find_files(source), fs.LocalFileSystem()
    if not files[0].lower().endswith(PARQUET):
        raise RowsError(
            f"{files[0]} is not Parquet, and the workers of a cluster read Parquet alone; convert "
            "it, or open it with dask.dataframe.read_csv."
        )
    layout: dict[str, Any] = {"format": ds.ParquetFileFormat(), "filesystem": filesystem}
    if base is not None:
        layout |= {"partitioning": "hive", "partition_base_dir": base}
    with reading(files[0], "Parquet"):
        first = ds.dataset(files, **layout)
    schema = common_schema(_schemas(first))
    partitions = [field for field in first.schema if field.name not in schema.names]
    with reading(files[0], "Parquet"):
        return ds.dataset(files, schema=pa.schema([*schema, *plain_fields(partitions)]), **layout)


def _schemas(dataset: ds.Dataset) -> dict[str, pa.Schema]:
    def schema_of(fragment: ds.Fragment) -> tuple[str, pa.Schema]:
        path = getattr(fragment, "path", "The data set")
        with reading(path, "Parquet"):
            return path, fragment.physical_schema

    with ThreadPoolExecutor(_READERS) as readers:
        return dict(readers.map(schema_of, dataset.get_fragments()))
