"""`rows`: every kind of table as `Rows`; and rows whose passes show progress."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from decoct.data.arrays import ArrayRows
from decoct.data.base import Rows, RowsProxy
from decoct.errors import RequestError, RowsError
from decoct.runtime import progress


def rows(source: Any, *, dask: Any = None) -> Rows:
    """Return the rows of a table, in memory, in files or on a cluster.

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
        - a URL of Parquet files such as ``s3://bucket/folder`` or ``gs://bucket/*.parquet``, or a
          list of them: anything fsspec opens, with credentials as fsspec finds them;
        - a `pyarrow.dataset.Dataset`;
        - a Dask DataFrame, a Dask matrix (N, D), or a mapping of Dask arrays: they stay with the
          workers, see `decoct.data.dask_rows.DaskRows`;
        - rows already: returned as they are.
    dask
        A `distributed.Client`, a cluster, or a scheduler's address: its workers store or read the
        rows. For files, it makes the workers the readers; for Dask collections the default is the
        current client.

    Returns
    -------
    Rows
        Files are numbered in the order of their sorted paths.

    Raises
    ------
    RowsError
        The source is of another kind, empty, missing or unreadable; the message says which.
    RequestError
        ``dask`` is not installed, has no client, or does not apply to such a source.

    Examples
    --------
    >>> import decoct.data
    >>> rows = decoct.data.rows({"x": [[0.0], [1.0], [2.0]], "y": [0, 1, 1]})
    >>> rows.n_rows
    3
    >>> rows.map_reduce(lambda chunk: int(chunk.columns["y"].sum()), int.__add__)
    2
    """
    if type(source).__module__.partition(".")[0] == "xarray":
        raise RowsError(
            f"An xarray {type(source).__name__} is not a table; give its data frame: "
            "data.to_dataframe().reset_index()."
        )
    if _is_dask(source):
        return _on_dask(source, dask)
    # not isinstance(source, Rows): before Python 3.12 that evaluates n_rows, which may read a CSV
    if callable(getattr(source, "map_reduce", None)):
        return source
    if dask is not None:
        return _on_dask(source, dask)
    if _is_files(source):
        from decoct.data.arrow import ArrowRows  # with it come pyarrow.dataset and pandas

        return ArrowRows(source)
    if isinstance(source, Mapping):
        return ArrayRows(source)
    if isinstance(source, np.ndarray) and source.ndim == 2:
        return ArrayRows({"x": source})
    return ArrayRows.from_table(source)


def _is_dask(source: object) -> bool:
    """Whether a source is a Dask collection or a mapping with one in it; imports no Dask."""
    if isinstance(source, Mapping):
        return any(_is_dask(column) for column in source.values())
    return hasattr(source, "__dask_graph__") and not isinstance(source, type)


def _on_dask(source: Any, dask: Any) -> Rows:
    try:
        from decoct.data.dask_cluster import Cluster
        from decoct.data.dask_rows import DaskRows
        from decoct.data.dask_sources import FileSource
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("dask", "distributed", "cloudpickle"):
            raise
        raise RequestError("Rows on a cluster need Dask: pip install 'decoct[dask]'.") from error
    if _is_dask(source):
        return DaskRows.of_collection(source, Cluster.of(dask))
    if _is_files(source):
        return DaskRows(FileSource(source, Cluster.of(dask)))
    raise RequestError(
        f"dask= is for files and Dask collections; an object of type {type(source).__qualname__} "
        "is in this process's memory already, so leave dask= out."
    )


def _is_files(source: object) -> bool:
    """Whether a source is a path, a list of paths, or a `pyarrow.dataset.Dataset`."""
    dataset = sys.modules.get("pyarrow.dataset")  # only that module makes one
    if dataset is not None and isinstance(source, dataset.Dataset):
        return True
    paths = source if isinstance(source, (list, tuple)) else [source]
    return bool(paths) and all(isinstance(path, (str, Path)) for path in paths)


def counted_rows(rows: Rows) -> int:
    """Return N; if that takes a pass, as for CSV files, show its progress."""
    survey = getattr(rows, "survey", None)
    if survey is not None:
        survey()
    return rows.n_rows


def traffic(rows: Rows) -> dict[str, int] | None:
    """Return what travelled to and from a cluster, if the rows live on one."""
    known = getattr(rows, "traffic", None)
    return None if known is None else asdict(known)


def watched(rows: Rows, label: str) -> Rows:
    """Return the same rows, with a task of this label announced for every `map_reduce`.

    Rows in memory come back as they are: a pass over them takes no time.
    """
    if isinstance(rows, ArrayRows):
        return rows
    counted_rows(rows)
    return _WatchedRows(rows, label)


class _WatchedRows(RowsProxy):
    def __init__(self, rows: Rows, label: str) -> None:
        super().__init__(rows)
        self._label = label

    def map_reduce(self, *args: Any, **options: Any) -> Any:
        progress.begin(self._label, self.n_rows)
        return self._rows.map_reduce(*args, **options)
