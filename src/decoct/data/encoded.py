"""Rows as a model uses them: raw columns turned into numbers chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from decoct.data.arrays import ArrayRows
from decoct.data.base import (
    Chunk,
    Chunks,
    Columns,
    Names,
    Rows,
    check_columns,
    check_size,
    columns_length,
)
from decoct.errors import ModelError
from decoct.stats.summation import Associative

T = TypeVar("T")

ENCODED_AT_ONCE = 8192
"""Streamed rows encoded in one go, then cut into chunks: encoding has a fixed cost a call."""


class Encoder(Protocol):
    """What a model must have to encode rows."""

    @property
    def columns(self) -> tuple[str, ...] | None: ...

    def encode(self, rows: Mapping[str, np.ndarray], start: Any = 0) -> Mapping[str, Any]: ...


class EncodedRows:
    """Rows seen through a model's ``encode``.

    Rows in memory are encoded once and kept; any others are encoded chunk by chunk, where
    they are, on every pass. ``raw`` is the table as the user gave it.
    """

    def __init__(self, raw: Rows, model: Encoder) -> None:
        self.raw = raw
        self._needs = check_columns(model.columns or None, raw.columns)
        self._encode = _Encode(model)
        self._kept: ArrayRows | None = None
        if isinstance(raw, ArrayRows):
            whole = next(raw.chunks(raw.n_rows, self._needs))
            self._kept = ArrayRows(self._encode.chunk(whole).columns, whole.start)

    @property
    def n_rows(self) -> int:
        return self.raw.n_rows

    @property
    def columns(self) -> tuple[str, ...]:
        return self._kept.columns if self._kept is not None else self._found_columns

    @cached_property
    def _found_columns(self) -> tuple[str, ...]:
        # not the first chunk: on a cluster it would have to be sent
        return tuple(self._encode(self.take_raw([0]), 0))

    def chunks(self, size: int | None = None, columns: Names = None) -> Chunks:
        """Yield consecutive chunks of encoded rows."""
        if self._kept is not None:
            return self._kept.chunks(size, columns)
        return self._encode_chunks(self._select(columns), self.raw.chunks(size, self._needs))

    def _encode_chunks(self, encode: _Encode, chunks: Chunks) -> Chunks:
        with closing(chunks):
            for chunk in chunks:
                yield encode.chunk(chunk)

    def take(self, indices: np.ndarray | Sequence[int], columns: Names = None) -> Columns:
        """Return the encoded rows with these global numbers, in the order asked for."""
        if self._kept is not None:
            return self._kept.take(np.asarray(indices), columns)
        encode = self._select(columns)
        return encode(self.take_raw(indices), np.asarray(indices, dtype=np.int64))

    def take_raw(self, indices: np.ndarray | Sequence[int]) -> Columns:
        """Return rows as the user gave them: every column that the model needs."""
        return self.raw.take(np.asarray(indices), self._needs)

    def map_reduce(
        self,
        fn: Callable[..., T],
        reduce: Callable[[T, T], T],
        *broadcast: object,
        size: int | None = None,
        columns: Names = None,
    ) -> T:
        """Return the reduction of ``fn(encoded chunk, *broadcast)`` over all chunks."""
        if self._kept is not None:
            return self._kept.map_reduce(fn, reduce, *broadcast, size=size, columns=columns)
        # raw.map_reduce, not chunks: an engine may run fn, and so encode, where the rows live
        then, step = _Then(self._select(columns), fn), check_size(size)
        if isinstance(reduce, Associative) and step < ENCODED_AT_ONCE:
            then = replace(then, reduce=reduce, size=step)
            step *= -(-ENCODED_AT_ONCE // step)
        return self.raw.map_reduce(then, reduce, *broadcast, size=step, columns=self._needs)

    def _select(self, columns: Names) -> _Encode:
        if columns is None:
            return self._encode
        return _Encode(self._encode.model, check_columns(columns, self.columns))


def encoded(rows: Rows, model: Encoder) -> EncodedRows:
    """Return rows as numbers: each chunk seen through ``model.encode``.

    Rows already encoded are encoded again from their raw ones.

    Parameters
    ----------
    rows
        The table.
    model
        Its ``encode`` turns raw columns into numbers.

    Returns
    -------
    EncodedRows
        A table of numbers; nothing is encoded before it is read.

    Raises
    ------
    RowsError
        The table lacks a column of the model, or the model refuses a value.

    Examples
    --------
    >>> import decoct
    >>> table = decoct.rows({"x": [[0.5], [1.0]], "y": [0, 1]})
    >>> decoct.data.encoded(table, decoct.models.LogisticRegression()).take([0, 1])["y"]
    array([-1.,  1.])
    """
    return EncodedRows(rows.raw if isinstance(rows, EncodedRows) else rows, model)


@dataclass(frozen=True)
class _Encode:
    """Encode columns, check what came out, keep the columns asked for (None: all)."""

    model: Encoder
    keep: tuple[str, ...] | None = None

    def __call__(self, columns: Columns, numbers: int | np.ndarray) -> Columns:
        n_rows, model = columns_length(columns), type(self.model).__name__
        result = self.model.encode(columns, numbers)
        if not isinstance(result, Mapping) or not result:
            raise ModelError(f"{model}.encode returned no columns; it must return name -> array.")
        for name, values in result.items():
            shape = np.shape(values)
            if not shape or shape[0] != n_rows:
                raise ModelError(
                    f"{model}.encode returned column '{name}' of shape {shape} for {n_rows} rows; "
                    "it must return one entry per row."
                )
        return {name: np.asarray(result[name]) for name in self.keep or result}

    def chunk(self, chunk: Chunk) -> Chunk:
        return Chunk(chunk.start, self(chunk.columns, chunk.start))


@dataclass(frozen=True)
class _Then:
    """``fn`` of an encoded chunk; a class, not a closure, so that it can be sent to workers."""

    encode: _Encode
    fn: Callable[..., Any]
    reduce: Associative | None = None
    size: int = 0

    def __call__(self, chunk: Chunk, *broadcast: object) -> Any:
        whole = self.encode.chunk(chunk)
        if self.reduce is None:
            return self.fn(whole, *broadcast)
        total = None
        for i in range(0, whole.n_rows, self.size):
            part = self.fn(whole.piece(i, i + self.size), *broadcast)
            total = part if total is None else self.reduce(total, part)
        return total
