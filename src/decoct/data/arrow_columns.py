"""Arrow columns as NumPy arrays."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from decoct.errors import BadValueError, RowsError

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def unwrap_type(kind: pa.DataType) -> pa.DataType:
    """Return the type behind dictionary encoding, an extension, a decimal or a view."""
    if isinstance(kind, pa.BaseExtensionType):
        return unwrap_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return unwrap_type(kind.value_type)
    if kind == getattr(pa, "string_view", pa.string)():
        return pa.string()
    return pa.float64() if pa.types.is_decimal(kind) else kind


def convert_column(
    name: str,
    values: Column,
    has_missing: bool = False,
    start: int = 0,
    width: int | None = None,
) -> np.ndarray:
    """Turn a piece of an Arrow column into NumPy, without a copy if possible.

    If integers or booleans are missing in some piece of the column (``has_missing``), every piece
    is float64, so that a column has one type wherever it is cut. ``start`` is the number of the
    first row, for messages; ``width`` how long the lists of earlier pieces are, if there were any.
    """
    if values.type != unwrap_type(values.type):
        values = values.cast(unwrap_type(values.type))
    kind = values.type
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_number(kind.value_type):
        values = _cast_to_one_length(name, values, start, width)
        kind = values.type
    if pa.types.is_fixed_size_list(kind) and _is_number(kind.value_type):
        return _convert_to_matrix(name, values)
    if pa.types.is_null(kind):
        return np.full(len(values), np.nan)
    if (has_missing or values.null_count) and is_count(kind):
        values = values.cast(pa.float64(), safe=False)
    elif not (_is_number(kind) or _is_text_or_date(kind)):
        _refuse_other_encodings(name, values, start)
        raise RowsError(
            f"Column '{name}' has type {kind}; make it numbers, strings, dates or "
            "lists of numbers, or leave it out."
        )
    return values.to_numpy(zero_copy_only=False)


def is_count(kind: pa.DataType) -> bool:
    """Whether a missing value changes the NumPy type."""
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def _is_number(kind: pa.DataType) -> bool:
    return is_count(kind) or pa.types.is_floating(kind)


def _is_text_or_date(kind: pa.DataType) -> bool:
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_time = pa.types.is_timestamp(kind) or pa.types.is_duration(kind)
    return is_text or is_time or pa.types.is_date(kind)


def _refuse_other_encodings(name: str, values: Column, start: int) -> None:
    """Name the first byte of text that is not UTF-8, which Arrow reads as binary."""
    if not (pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)):
        return
    for row, value in enumerate(values, start):
        try:
            (value.as_py() or b"").decode()
        except UnicodeDecodeError as error:
            byte = f"byte {error.start} is 0x{error.object[error.start]:02x}"
            raise BadValueError(
                f"has type {values.type} because it is not UTF-8",
                row,
                f" ({byte}); save text as UTF-8.",
                name,
            ) from None


def _cast_to_one_length(name: str, values: Column, start: int, width: int | None) -> Column:
    """Return lists as fixed-size lists; refuse those of several lengths."""
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


def _convert_to_matrix(name: str, values: Column) -> np.ndarray:
    if isinstance(values, pa.ChunkedArray):  # without a copy of a single chunk
        values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    kind, width = values.type.value_type, values.type.list_size
    # not flatten(): it leaves missing lists out
    inside = values.values.slice(values.offset * width, len(values) * width)
    if (values.null_count or inside.null_count) and not pa.types.is_floating(kind):
        raise RowsError(f"Column '{name}' has missing values in lists of {kind}; use float.")
    matrix = inside.to_numpy(zero_copy_only=False).reshape(len(values), width)
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        matrix = np.where(missing[:, None], np.nan, matrix).astype(matrix.dtype)
    return matrix
