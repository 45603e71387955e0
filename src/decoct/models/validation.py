"""Checks of raw columns that several models share; each failure names column and row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from decoct.data.base import checked_columns
from decoct.errors import BadValueError, RowsError


def row_number(start: int | np.ndarray, offset: int) -> int:
    """Return the global number of row ``offset`` of a chunk."""
    return int(start + offset) if np.ndim(start) == 0 else int(np.asarray(start)[offset])


def column(rows: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a column, or say which ones there are."""
    checked_columns([name], tuple(rows))
    return np.asarray(rows[name])


def numeric(rows: Mapping[str, np.ndarray], name: str, start: int | np.ndarray = 0) -> np.ndarray:
    """Return a column as finite numbers: float64 for floats, integers and booleans unchanged."""
    values = column(rows, name)
    if values.dtype.kind not in "fiub":
        raise RowsError(
            f"Column '{name}' is not numeric (its type is {values.dtype}); "
            "encode it as numbers or use a formula with C(...)."
        )
    if values.dtype.kind != "f":
        return values
    finite = np.isfinite(values)
    if not finite.all():
        bad = int(np.argmin(finite.reshape(len(values), -1).all(axis=1)))
        what = "NaN" if np.isnan(values[bad]).any() else "an infinite value"
        raise BadValueError(
            f"has {what}", row_number(start, bad), "; drop or impute such rows.", name
        )
    return values.astype(np.float64, copy=False)


def numeric_columns(
    rows: Mapping[str, np.ndarray],
    start: int | np.ndarray = 0,
    names: Iterable[str] | None = None,
) -> dict[str, np.ndarray]:
    """Return these columns (None: all) as finite numbers."""
    return {name: numeric(rows, name, start) for name in (rows if names is None else names)}
