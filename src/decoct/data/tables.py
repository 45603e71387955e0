"""The public door to the engines: whatever holds a table becomes `Rows`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from decoct.data.arrays import ArrayRows
from decoct.data.arrow import ArrowRows
from decoct.data.base import Rows
from decoct.errors import RowsError


def rows(source: Any) -> Rows:
    """Return the rows of a table, wherever it lives.

    Parameters
    ----------
    source
        One of

        - a mapping of equally long arrays (NumPy, JAX, lists), rows on axis 0;
        - a NumPy matrix (N, D): one column "x";
        - a pandas, polars or Arrow table, or any other table in memory that narwhals knows;
        - the path of a Parquet file (``.parquet``, ``.pq``), of a CSV file (``.csv``,
          ``.csv.gz``), of a folder of either (searched recursively, Hive partitions included), a
          glob pattern, or a list of paths: streamed, never loaded whole;
        - a `pyarrow.dataset.Dataset`;
        - rows already: returned as they are.

    Returns
    -------
    Rows
        Files are numbered in the order of their sorted paths.

    Raises
    ------
    RowsError
        The source is of another kind, empty, missing or unreadable; the message says which.

    Examples
    --------
    >>> import decoct.data
    >>> rows = decoct.data.rows({"x": [[0.0], [1.0], [2.0]], "y": [0, 1, 1]})
    >>> rows.n_rows
    3
    >>> rows.map_reduce(lambda chunk: int(chunk.columns["y"].sum()), int.__add__)
    2
    """
    # not isinstance(source, Rows): before Python 3.12 that evaluates n_rows, which may walk a CSV
    if callable(getattr(source, "map_reduce", None)):
        return source
    if isinstance(source, (str, Path, ds.Dataset)) or _is_list_of_paths(source):
        return ArrowRows(source)
    if isinstance(source, Mapping):
        return ArrayRows(source)
    if isinstance(source, np.ndarray) and source.ndim == 2:
        return ArrayRows({"x": source})
    if isinstance(source, pa.RecordBatch) or _is_table(source):
        return ArrayRows.from_table(source)
    raise RowsError(
        f"An object of type {type(source).__qualname__} is not a table; give a dict of "
        "arrays, a NumPy matrix, a pandas, polars or Arrow table, the path of a Parquet or CSV "
        "file, a folder or pattern of such files, or a pyarrow dataset."
    )


def _is_list_of_paths(source: object) -> bool:
    return (
        isinstance(source, (list, tuple))
        and bool(source)
        and all(isinstance(entry, (str, Path)) for entry in source)
    )


def _is_table(source: object) -> bool:
    try:
        known = nw.from_native(source, pass_through=True)
    except nw.exceptions.DuplicateError:
        return True
    return isinstance(known, (nw.DataFrame, nw.LazyFrame))
