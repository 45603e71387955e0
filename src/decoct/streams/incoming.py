"""The rows of a stream that wait until there are enough of them to compress."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoct.data.arrays import ArrayRows
from decoct.data.base import Chunk, Columns, columns_length
from decoct.data.encoded import encoded
from decoct.errors import RowsError
from decoct.models.base import AbstractModel
from decoct.passes.potentials import Potentials
from decoct.streams.part import joined_columns

PIECES = 32
"""Pieces of the buffer from which on they are laid together."""

NUMBERS = "biuf"


class Stretch(ArrayRows):
    """Consecutive rows of a stream: its chunks carry the numbers the rows have there.

    `take` counts from the beginning of the stretch.
    """

    def __init__(self, start: int, columns: Columns) -> None:
        super().__init__(columns)
        self.start = start

    def chunks(self, size: int | None = None, columns: Any = None) -> Generator[Chunk, None, None]:
        pieces = super().chunks(size, columns)
        return (Chunk(self.start + piece.start, piece.columns) for piece in pieces)


def encoded_stretch(model: AbstractModel, start: int, raw: Columns) -> Stretch:
    """Return rows as the model sees them; a bad value is named by its number in the stream."""
    table = encoded(Stretch(start, raw), model)
    return Stretch(start, next(table.chunks(table.n_rows)).columns)


def check_potentials(potentials: Potentials, rows: Stretch) -> None:
    """Refuse rows whose potential is not finite at the model's start.

    ``potentials`` is of any rows of the same model: to make one costs more than to look at a row.
    """
    potentials.rows = rows
    potentials.totals(potentials.space.flatten(potentials.initial)[None])


@dataclass(frozen=True)
class Layout:
    """The columns of a stream: name -> type and shape of an entry.

    Types are promoted as pieces of other types arrive, so that the rows of a coreset have one type
    whatever they came in.
    """

    columns: dict[str, tuple[np.dtype, tuple[int, ...]]] = field(default_factory=dict)

    def with_piece(self, piece: Columns, start: int) -> Layout:
        """Return the layout that holds this piece too, or refuse it."""
        columns = dict(self.columns)
        for name, values in piece.items():
            dtype, shape = columns.get(name, (values.dtype, values.shape[1:]))
            if shape != values.shape[1:]:
                raise RowsError(
                    f"Column '{name}' has entries of shape {values.shape[1:]} from row {start} on, "
                    f"and {shape} before; every batch must have the same columns."
                )
            if dtype != values.dtype and not _alike(dtype, values.dtype):
                raise RowsError(
                    f"Column '{name}' has the type {values.dtype} from row {start} on, and {dtype} "
                    "before; every batch must have the same columns."
                )
            columns[name] = (np.promote_types(dtype, values.dtype), shape)
        return Layout(columns)

    def cast(self, raw: Columns) -> Columns:
        """Return columns in the types of the layout."""
        return {n: raw[n].astype(kind, copy=False) for n, (kind, _) in self.columns.items()}


def _alike(one: np.dtype, other: np.dtype) -> bool:
    both_numbers = one.kind in NUMBERS and other.kind in NUMBERS
    return both_numbers or (one.kind == other.kind and one.kind in "MmUS")


@dataclass(frozen=True)
class Buffer:
    """Rows from ``start`` on that are not compressed yet, in pieces of their own memory."""

    start: int = 0
    pieces: tuple[Columns, ...] = ()

    @property
    def n_rows(self) -> int:
        return sum(columns_length(piece) for piece in self.pieces)

    def with_piece(self, piece: Columns) -> Buffer:
        """Return the buffer with a copy of more rows; the caller may overwrite his."""
        pieces = (*self.pieces, {name: np.array(values) for name, values in piece.items()})
        if len(pieces) > PIECES:
            pieces = (joined_columns(pieces),)
        return Buffer(self.start, pieces)

    def columns(self) -> Columns:
        """Return all rows."""
        return joined_columns(self.pieces)

    def emptied(self) -> Buffer:
        """Return the buffer that goes on behind these rows."""
        return Buffer(self.start + self.n_rows)
