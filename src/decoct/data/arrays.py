"""Rows in memory: mappings of arrays, and DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from decoct.data.base import (
    Chunk,
    Chunks,
    Columns,
    Names,
    Rows,
    check_columns,
    check_size,
    checked_indices,
)
from decoct.errors import RowsError

if TYPE_CHECKING:
    import narwhals as nw


class ArrayRows(Rows):
    """Rows in memory, one array a column.

    Parameters
    ----------
    columns
        Name -> array (NumPy, JAX, a list, a pandas or polars Series), rows on axis 0, all equally
        long. NumPy arrays are kept as they are, without a copy.
    start
        The number that the first row has in errors: of rows that are part of a stream.

    Raises
    ------
    RowsError
        No column, no row, or columns of unequal lengths.

    Examples
    --------
    >>> from decoct.data import ArrayRows
    >>> rows = ArrayRows({"x": [1.0, 2.0, 4.0], "y": [0, 1, 1]})
    >>> rows.n_rows, rows.columns
    (3, ('x', 'y'))
    >>> rows.take([2, 0])["x"]
    array([4., 1.])
    """

    def __init__(self, columns: Mapping[Any, Any], start: int = 0) -> None:
        self._start = start
        self._columns = {k: _convert_array(k, v) for k, v in columns.items()}
        check_lengths({name: len(values) for name, values in self._columns.items()})

    @classmethod
    def from_table(cls, table: Any) -> ArrayRows:
        """Return the rows of a pandas, polars or Arrow table, or of any other narwhals knows.

        Categories and strings become object arrays of `str`; missing values become NaN (numbers),
        NaT (dates) or None (strings).

        Raises
        ------
        RowsError
            The table is lazy, empty, repeats a column name, or has a column of unusable type.
        """
        import narwhals as nw
        import pyarrow as pa

        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        try:
            frame = nw.from_native(table, eager_only=True)
            columns = list(frame.iter_columns())
        except TypeError as error:
            raise RowsError(
                f"An object of type {type(table).__qualname__} is not a table; give a dict of "
                "arrays, a NumPy matrix, a pandas, polars or Arrow table (a lazy one after "
                ".collect() or .compute()), the path of a Parquet or CSV file, a folder or "
                "pattern of such files, or a pyarrow dataset."
            ) from error
        except nw.exceptions.DuplicateError as error:
            raise RowsError("The table has two columns of the same name; rename one.") from error
        return cls(
            {str(series.name): _convert_series(series, str(series.name)) for series in columns}
        )

    @property
    def n_rows(self) -> int:
        return len(next(iter(self._columns.values())))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def chunks(self, size: int | None = None, columns: Names = None) -> Chunks:
        """Yield consecutive chunks of ``size`` rows: views, never copies."""
        step = check_size(size)
        names = check_columns(columns, self.columns)
        whole = Chunk(self._start, {name: self._columns[name] for name in names})
        return (whole.piece(start, start + step) for start in range(0, self.n_rows, step))

    def take(self, indices: np.ndarray | Sequence[int], columns: Names = None) -> Columns:
        """Return the rows with these global numbers, in the order asked for."""
        names = check_columns(columns, self.columns)
        rows = checked_indices(indices, self.n_rows)
        return {name: self._columns[name][rows] for name in names}


def _convert_series(series: nw.Series[Any], name: str) -> np.ndarray:
    import pyarrow as pa

    from decoct.data.arrow_columns import convert_column

    dtype = getattr(series.to_native(), "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "fiub":
        return series.to_numpy()
    try:
        values = series.to_arrow()
    except (pa.ArrowException, TypeError):
        # an object column of mixed values: the model says what it cannot use
        return series.to_numpy()
    return convert_column(name, values)


def _convert_array(name: str, values: Any) -> np.ndarray:
    import narwhals as nw
    import pyarrow as pa

    check_name(name)
    if isinstance(values, pa.Array):
        values = pa.chunked_array([values])
    series = nw.from_native(values, series_only=True, pass_through=True)
    if isinstance(series, nw.Series):
        return _convert_series(series, name)
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        if values.dtype.kind in "fiub":
            return np.ma.filled(values.astype(np.float64), np.nan)
        kept = np.array(values, dtype=object)
        kept[np.ma.getmaskarray(values)] = None
        return kept
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise RowsError(f"Column '{name}' is ragged: its rows differ in length.") from error
    if array.ndim == 0:
        raise RowsError(
            f"Column '{name}' is a single {type(values).__name__}; "
            "a column is an array with one entry per row."
        )
    return array


def check_name(name: object) -> None:
    """Refuse a name of a column that is no string."""
    if not isinstance(name, str):
        raise RowsError(f"Column names are strings; {name!r} is not.")


def check_lengths(lengths: Mapping[str, int]) -> None:
    """Refuse a table without columns or rows, or with columns of several lengths."""
    if not lengths:
        raise RowsError("The table has no columns; give at least one.")
    if len(set(lengths.values())) > 1:
        what = ", ".join(f"'{name}' {length}" for name, length in lengths.items())
        raise RowsError(f"The columns differ in length ({what}); make them equally long.")
    if not next(iter(lengths.values())):
        raise RowsError("The table is empty; give at least one row.")
