"""One type for a column of several partitions, as `decoct.data.base.Rows` asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from decoct.data.base import Columns
from decoct.errors import RowsError

_NUMBERS, _DATES, _OTHER = "biuf", "Mm", "OSU"
_NAMES = {**dict.fromkeys("iuf", "numbers"), "b": "booleans", "M": "dates", "m": "durations"}


@dataclass(frozen=True)
class ColumnType:
    """The type of a column's entries, each of this shape: () for a plain column."""

    dtype: np.dtype
    shape: tuple[int, ...] = ()
    is_missing: bool = False
    """Only missing values were found, which fit every type."""

    @classmethod
    def of(cls, values: np.ndarray) -> ColumnType:
        missing = values.dtype.kind == "f" and bool(np.isnan(values).all())
        return cls(values.dtype, values.shape[1:], missing)

    def cast(self, values: np.ndarray) -> np.ndarray:
        """Return values of a partition in the type of the whole column.

        A ValueError says that some are missing, which the type does not allow.
        """
        if values.dtype == self.dtype:
            return values
        if self.dtype.kind in "biu" and values.dtype.kind == "f" and np.isnan(values).any():
            raise ValueError("missing values")
        if self.dtype.kind in _OTHER and values.dtype.kind == "f":
            return np.full(values.shape, None, dtype=object)
        if self.dtype.kind in _DATES and values.dtype.kind == "f":
            return np.full(values.shape, "NaT", dtype=self.dtype)
        return values.astype(self.dtype)

    def describe(self) -> str:
        name = _NAMES.get(self.dtype.kind, "text")
        return f"{name} of shape {self.shape}" if self.shape else name


def empty_columns(types: Mapping[str, ColumnType]) -> Columns:
    """Return no rows of columns of these types."""
    return {name: np.empty((0, *kind.shape), kind.dtype) for name, kind in types.items()}


def cast(columns: Columns, types: Mapping[str, ColumnType]) -> Columns:
    """Return a partition's columns in the types of the whole table."""
    found = {}
    for name, kind in types.items():
        try:
            found[name] = kind.cast(columns[name])
        except ValueError as error:
            raise RowsError(
                f"Column '{name}' ({kind.dtype}) has missing values that were not there before: "
                "the data changed while they were in use; open the table again."
            ) from error
    return found


def find_common_types(partitions: Sequence[Mapping[str, ColumnType]]) -> dict[str, ColumnType]:
    """Return the type of every column from those in the partitions that have rows.

    A column that is, say, text in one partition and numbers in another is refused.
    """
    known = [(i, types) for i, types in enumerate(partitions) if types]
    return {name: _find_common(name, [(i, one[name]) for i, one in known]) for name in known[0][1]}


def _find_common(name: str, types: Sequence[tuple[int, ColumnType]]) -> ColumnType:
    typed = [(i, one) for i, one in types if not one.is_missing] or list(types[:1])
    first, common = typed[0]
    for i, one in typed[1:]:
        if one.shape != common.shape or not _is_compatible(one.dtype, common.dtype):
            raise RowsError(
                f"Column '{name}' is {common.describe()} in partition {first} but "
                f"{one.describe()} in partition {i}; make it of one kind."
            )
        common = ColumnType(np.result_type(common.dtype, one.dtype), common.shape)
    if len(typed) < len(types) and common.dtype.kind in "biu":
        return ColumnType(np.dtype(np.float64), common.shape)
    return common


def _is_compatible(one: np.dtype, two: np.dtype) -> bool:
    return one.kind == two.kind or any({one.kind, two.kind} <= set(k) for k in (_NUMBERS, _OTHER))
