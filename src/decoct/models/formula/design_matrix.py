"""A frozen design: the numbers that turn raw columns into a design matrix, row by row.

formulaic parses a formula and lays out its columns once (`model.from_formula`). What is kept is
plain data: the expressions, the levels of the categories, the states of ``center``, ``scale`` and
the splines, the constants of the standardisation. A row is therefore encoded in the same way
alone, in a chunk or in the full table, and after a trip through JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from formulaic.utils.cast import as_columns

from decoct.data.base import columns_length
from decoct.errors import BadValueError, ModelError, RowsError
from decoct.models.base import row_number
from decoct.models.formula.expression import Expression, compile_expression, raw_column

State = dict[str, dict[str, Any]]
"""Call of a stateful function -> what formulaic remembers of it."""


def _frozen(state: State) -> Mapping[str, Mapping[str, Any]]:
    """Return a view that formulaic cannot fill in from the rows at hand."""
    return MappingProxyType({call: MappingProxyType(known) for call, known in state.items()})


@dataclass(frozen=True, eq=False)
class NumberFactor:
    """A factor of a term that is one or more numbers per row, such as ``temp`` or ``bs(temp)``."""

    expression: Expression
    state: State = field(default_factory=dict)

    def encode(
        self, raw: Mapping[str, np.ndarray], start: int | np.ndarray = 0
    ) -> dict[bool, np.ndarray]:
        """Return ``{reduced: (n, k) numbers}``; raise `RowsError` if one is not finite."""
        n = columns_length(raw)
        value = self.expression.evaluate(raw, _frozen(self.state))
        columns = as_columns(value)
        if not isinstance(columns, dict):
            numbers = self._numbers(columns, n, start)[:, None]
            return {False: numbers, True: numbers}
        names = [k for k in columns if not str(k).startswith("__")]
        full = np.stack([self._numbers(columns[k], n, start) for k in names], axis=1)
        dropped = getattr(getattr(value, "__formulaic_metadata__", None), "drop_field", None)
        return {False: full, True: full[:, [k != dropped for k in names]]}

    def _numbers(self, values: Any, n: int, start: int | np.ndarray) -> np.ndarray:
        values, label = np.asarray(values), self.expression.label
        if values.dtype.kind not in "fiub":
            raise RowsError(
                f"The formula's term '{label}' is text; compare it with a value or use C(...)."
            )
        if values.shape not in ((), (n,)):
            raise ModelError(f"The formula's term '{label}' is not one number per row.")
        numbers = np.broadcast_to(values.astype(np.float64, copy=False), (n,))
        finite = np.isfinite(numbers)
        if not finite.all():
            bad = int(np.argmin(finite))
            raise BadValueError(
                f"The formula's term '{label}' is {numbers[bad]}",
                row_number(start, bad),
                "; drop such rows or change the term.",
            )
        return numbers


@dataclass(frozen=True, eq=False)
class LevelFactor:
    """A factor of a term that is one of a few levels, such as ``C(origin)``.

    Attributes
    ----------
    levels
        All levels of the full data, in the order of the coding.
    codings
        ``{reduced: (levels, k) numbers}``: what stands for each level in the design matrix.
    """

    expression: Expression
    levels: tuple[Any, ...]
    codings: dict[bool, np.ndarray]
    state: State = field(default_factory=dict)

    @cached_property
    def _index(self) -> pd.Index:
        values = np.array(self.levels)
        return pd.Index(values if values.dtype.kind in "if" else values.astype(object))

    def codes(self, raw: Mapping[str, np.ndarray], start: int | np.ndarray = 0) -> np.ndarray:
        """Return the number of each row's level; raise `RowsError` for a level never seen."""
        values = np.asarray(self.expression.evaluate(raw, _frozen(self.state)))
        codes, seen = pd.factorize(values)
        known = self._index.get_indexer(pd.Index(seen, dtype=seen.dtype))
        if (known >= 0).all() and (codes >= 0).all():
            return known[codes]
        bad = int(np.argmax((codes < 0) | (known < 0)[codes]))
        few = ", ".join(map(str, self.levels[:8])) + (", …" if len(self.levels) > 8 else "")
        column = self.expression.inputs[0] if self.expression.code == "_0" else None
        subject = "" if column else f"The formula's term '{self.expression.label}' "
        raise BadValueError(
            f"{subject}has the value '{values[bad]}'",
            row_number(start, bad),
            f", which is not one of the levels of the formula's data: {few}.",
            column,
        )

    def encode(
        self, raw: Mapping[str, np.ndarray], start: int | np.ndarray = 0
    ) -> dict[bool, np.ndarray]:
        """Return ``{reduced: (n, k) numbers}``."""
        codes = self.codes(raw, start)
        return {reduced: coding[codes] for reduced, coding in self.codings.items()}


@dataclass(frozen=True)
class Term:
    """A product of factors, ``parts`` holding (number of the factor, reduced)."""

    scale: float
    parts: tuple[tuple[int, bool], ...]

    def columns(self, encoded: Sequence[Mapping[bool, np.ndarray]], n: int) -> np.ndarray:
        """Return the (n, k) row-wise Kronecker product, the first factor running fastest."""
        if len(self.parts) == 1 and self.scale == 1:
            factor, reduced = self.parts[0]
            return encoded[factor][reduced]
        block = np.full((n, 1), self.scale)
        for factor, reduced in self.parts:
            part = encoded[factor][reduced]
            block = (part[:, :, None] * block[:, None, :]).reshape(n, -1)
        return block


@dataclass(frozen=True, eq=False)
class Design:
    """How the raw rows of one table become a design matrix and a response.

    Attributes
    ----------
    formula
        As the user wrote it.
    names
        Labels of the D columns.
    shift, scale
        (D,) constants of the standardisation: each column is (column − shift) / scale.
    """

    formula: str
    response: NumberFactor
    factors: tuple[NumberFactor | LevelFactor, ...]
    terms: tuple[Term, ...]
    names: tuple[str, ...]
    shift: np.ndarray
    scale: np.ndarray

    @property
    def columns(self) -> tuple[str, ...]:
        """The raw columns the formula uses, the response's first."""
        return tuple(dict.fromkeys([*self.response.expression.inputs, *self.explanatory]))

    @property
    def explanatory(self) -> tuple[str, ...]:
        """The raw columns that the terms use; none for an intercept alone."""
        return tuple(dict.fromkeys(n for f in self.factors for n in f.expression.inputs))

    def encode(
        self, rows: Mapping[str, np.ndarray], start: int | np.ndarray = 0
    ) -> dict[str, np.ndarray]:
        """Return ``{"x": (n, D), "y": (n,)}`` for raw rows.

        Raises
        ------
        RowsError
            A missing column, a missing or infinite value, a level never seen; names the row.
        """
        x = self.encode_explanatory(rows, start)
        return {"x": x, "y": self.encode_response(rows, start)}

    def encode_explanatory(
        self, rows: Mapping[str, np.ndarray], start: int | np.ndarray = 0
    ) -> np.ndarray:
        """Return the design matrix (n, D) alone, which needs no response."""
        raw = {name: raw_column(rows, name, start) for name in self.explanatory}
        n, end = columns_length(rows), 0
        encoded = [factor.encode(raw, start) for factor in self.factors]
        x = np.empty((n, len(self.names)))
        for term in self.terms:
            block = term.columns(encoded, n)
            at = slice(end, end := end + block.shape[1])
            if self._standardize[at].any():
                block = (block - self.shift[at]) / self.scale[at]
            x[:, at] = block
        return x

    def encode_response(
        self, rows: Mapping[str, np.ndarray], start: int | np.ndarray = 0
    ) -> np.ndarray:
        """Return the response (n,) alone, which needs none of the other columns."""
        names = self.response.expression.inputs
        raw = {name: raw_column(rows, name, start) for name in names}
        return self.response.encode(raw, start)[False][:, 0]

    @cached_property
    def _standardize(self) -> np.ndarray:
        return (self.shift != 0) | (self.scale != 1)

    def to_dict(self) -> dict[str, Any]:
        """Return the whole design as plain JSON values."""
        return {
            "formula": self.formula,
            "response": _pack_factor(self.response),
            "factors": [_pack_factor(factor) for factor in self.factors],
            "terms": [{"scale": t.scale, "parts": [list(p) for p in t.parts]} for t in self.terms],
            "names": list(self.names),
            "shift": self.shift.tolist(),
            "scale": self.scale.tolist(),
        }

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> Design:
        """Rebuild a design from `to_dict`; every expression is checked again."""
        response = _unpack_factor(spec["response"])
        if not isinstance(response, NumberFactor):
            raise ModelError("The formula's response is a category.")
        return cls(
            str(spec["formula"]),
            response,
            tuple(_unpack_factor(factor) for factor in spec["factors"]),
            tuple(
                Term(float(t["scale"]), tuple((int(i), bool(r)) for i, r in t["parts"]))
                for t in spec["terms"]
            ),
            tuple(spec["names"]),
            np.array(spec["shift"], dtype=np.float64),
            np.array(spec["scale"], dtype=np.float64),
        )

    @cached_property
    def _text(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Design) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def _pack_factor(factor: NumberFactor | LevelFactor) -> dict[str, Any]:
    expression = factor.expression
    spec = {"label": expression.label, "lookup": expression.lookup, "state": _pack(factor.state)}
    if isinstance(factor, LevelFactor):
        spec["levels"] = list(factor.levels)
        spec["codings"] = [[k, _pack_coding(v)] for k, v in sorted(factor.codings.items())]
    return spec


def _unpack_factor(spec: Mapping[str, Any]) -> NumberFactor | LevelFactor:
    expression = compile_expression(spec["label"], spec["lookup"])
    state = _unpack(spec["state"])
    if "levels" not in spec:
        return NumberFactor(expression, state)
    levels = tuple(spec["levels"])
    codings = {bool(k): _unpack_coding(v, len(levels)) for k, v in spec["codings"]}
    return LevelFactor(expression, levels, codings, state)


def _pack_coding(coding: np.ndarray) -> Any:
    """Return the dropped level of an indicator coding, the matrix of any other."""
    levels, k = coding.shape
    dropped = int(np.argmin(coding.any(axis=1))) if k < levels else None
    indicator = _unpack_coding(dropped, levels)
    return dropped if np.array_equal(indicator, coding) else coding.tolist()


def _unpack_coding(packed: Any, levels: int) -> np.ndarray:
    if isinstance(packed, list):
        return np.array(packed, dtype=np.float64).reshape(levels, -1)
    return np.delete(np.eye(levels), [] if packed is None else packed, axis=1)


def _pack(value: Any) -> Any:
    """Return a state as plain JSON values that keep arrays, tuples and non-text keys apart."""
    if isinstance(value, dict):
        return {"dict": [[_pack(k), _pack(v)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_pack(v) for v in value]}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    return value.item() if isinstance(value, np.generic) else value


def _unpack(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {_unpack(k): _unpack(v) for k, v in value["dict"]}
    if "list" in value:
        return [_unpack(v) for v in value["list"]]
    return np.array(value["array"], dtype=value["dtype"])
