"""Rows in memory: mappings of arrays and DataFrames, and how an Arrow column becomes NumPy."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from decoct.data.base import (
    Chunk,
    Columns,
    SequentialRows,
    checked_columns,
    checked_indices,
    checked_size,
)
from decoct.errors import BadValueError, RowsError

if TYPE_CHECKING:
    import narwhals as nw
    import pyarrow as pa


class ArrayRows(SequentialRows):
    """Rows held in memory, one array a column.

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
        self._columns = {_check_name(k): _convert_array(k, v) for k, v in columns.items()}
        _check_lengths({name: len(values) for name, values in self._columns.items()})

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
                f"An object of type {type(table).__qualname__} is not a table in memory; "
                "collect it first (.collect() or .compute())."
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

    def chunks(
        self, size: int | None = None, columns: Sequence[str] | None = None
    ) -> Generator[Chunk, None, None]:
        """Yield consecutive chunks of ``size`` rows: views, never copies."""
        step = checked_size(size)
        names = checked_columns(columns, self.columns)
        whole = Chunk(self._start, {name: self._columns[name] for name in names})
        return (whole.piece(start, start + step) for start in range(0, self.n_rows, step))

    def take(
        self, indices: np.ndarray | Sequence[int], columns: Sequence[str] | None = None
    ) -> Columns:
        """Return the rows with these global numbers, in the order asked for."""
        names = checked_columns(columns, self.columns)
        rows = checked_indices(indices, self.n_rows)
        return {name: self._columns[name][rows] for name in names}


def unwrap_type(kind: pa.DataType) -> pa.DataType:
    """Return the type behind dictionary encoding, an extension, a decimal or a view."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return unwrap_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return unwrap_type(kind.value_type)
    if kind == getattr(pa, "string_view", pa.string)():
        return pa.string()
    return pa.float64() if pa.types.is_decimal(kind) else kind


def convert_column(
    name: str,
    values: pa.Array | pa.ChunkedArray,
    has_missing: bool = False,
    start: int = 0,
    width: int | None = None,
) -> np.ndarray:
    """Turn an Arrow column into NumPy, without a copy where it can be had.

    Parameters
    ----------
    name
        The column, for messages.
    values
        One piece of the column.
    has_missing
        Whether integers or booleans are missing in some piece of this column: then every piece
        is float64, so that a column has one type wherever it is cut.
    start
        The number of the first row, for messages.
    width
        How long the lists of earlier pieces are, if there were any.
    """
    import pyarrow as pa

    if values.type != unwrap_type(values.type):
        values = values.cast(unwrap_type(values.type))
    if _is_list(values.type) and _is_number(values.type.value_type):
        values = _cast_to_one_length(name, values, start, width)
    kind = values.type
    if pa.types.is_fixed_size_list(kind) and _is_number(kind.value_type):
        return _convert_to_matrix(name, values)
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if (has_missing or values.null_count) and _is_count(kind):
        values = values.cast(pa.float64(), safe=False)
    elif not (_is_number(kind) or _is_text(kind) or _is_date(kind)):
        _refuse_other_encodings(name, values, start)
        raise RowsError(
            f"Column '{name}' has type {kind}; make it numbers, strings, dates or "
            "lists of numbers, or leave it out."
        )
    return values.to_numpy(zero_copy_only=False)


def _refuse_other_encodings(name: str, values: pa.Array | pa.ChunkedArray, start: int) -> None:
    """Name the first byte of text that is not UTF-8, which Arrow reads as binary."""
    import pyarrow as pa

    if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        return
    for row, value in enumerate(values, start):
        try:
            (value.as_py() or b"").decode()
        except UnicodeDecodeError as error:
            byte = f"byte {error.start} is 0x{error.object[error.start]:02x}"
            raise BadValueError(
                f"has type {values.type}, for it is not UTF-8",
                row,
                f" ({byte}); save text as UTF-8.",
                name,
            ) from None


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def _cast_to_one_length(
    name: str, values: pa.Array | pa.ChunkedArray, start: int, width: int | None
) -> pa.Array | pa.ChunkedArray:
    """Return lists as fixed-size lists; refuse those of several lengths."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.list_value_length(values)  # pyright: ignore[reportAttributeAccessIssue]
    known = lengths.drop_null().to_numpy()
    if width is None:
        width = int(known[0]) if len(known) else 0
    if (known != width).any():
        other = pc.fill_null(pc.not_equal(lengths, width), False)  # pyright: ignore
        row = int(np.argmax(other.to_numpy(zero_copy_only=False)))
        raise BadValueError(
            f"has a list of {lengths[row]} numbers",
            start + row,
            f" and of {width} before; give all lists one length.",
            name,
        )
    return values.cast(pa.list_(values.type.value_type, width))


def _convert_to_matrix(name: str, values: pa.Array | pa.ChunkedArray) -> np.ndarray:
    import pyarrow as pa

    parts = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    width = values.type.list_size
    if not parts:
        return np.empty((0, width), values.type.value_type.to_pandas_dtype())
    arrays = [_convert_part_to_matrix(name, part, width) for part in parts]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _convert_part_to_matrix(name: str, part: pa.FixedSizeListArray, width: int) -> np.ndarray:
    # not flatten(): it leaves missing lists out
    import pyarrow as pa

    inside = part.values.slice(part.offset * width, len(part) * width)
    if (part.null_count or inside.null_count) and not pa.types.is_floating(inside.type):
        raise RowsError(f"Column '{name}' has missing values in lists of {inside.type}; use float.")
    matrix = inside.to_numpy(zero_copy_only=False).reshape(len(part), width)
    if part.null_count:
        missing = part.is_null().to_numpy(zero_copy_only=False)
        matrix = np.where(missing[:, None], np.nan, matrix).astype(matrix.dtype)
    return matrix


def _is_count(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return _is_count(kind) or pa.types.is_floating(kind)


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_date(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind)


def _convert_series(series: nw.Series[Any], name: str) -> np.ndarray:
    import pyarrow as pa

    native = series.to_native()
    dtype = getattr(native, "dtype", None)
    if isinstance(dtype, np.dtype) and dtype.kind in "fiub":
        return series.to_numpy()
    try:
        values = series.to_arrow()
    except (pa.ArrowException, TypeError):
        # an object column of mixed values: the model says what it cannot use
        return series.to_numpy()
    return convert_column(name, values)


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise RowsError(f"Column names are strings; {name!r} is not.")
    return name


def _convert_array(name: str, values: Any) -> np.ndarray:
    import narwhals as nw
    import pyarrow as pa

    series = nw.from_native(values, series_only=True, pass_through=True)
    if isinstance(series, nw.Series):
        return _convert_series(series, name)
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return convert_column(name, values)
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


def _check_lengths(lengths: Mapping[str, int]) -> None:
    if not lengths:
        raise RowsError("The table has no columns; give at least one.")
    if len(set(lengths.values())) > 1:
        what = ", ".join(f"'{name}' {length}" for name, length in lengths.items())
        raise RowsError(f"The columns differ in length ({what}); make them equally long.")
    if not next(iter(lengths.values())):
        raise RowsError("The table is empty; give at least one row.")
