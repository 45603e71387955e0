"""A frozen design: the numbers that turn raw columns into a design matrix, row by row.

formulaic parses a formula and lays out its columns once (`decoct.models.formula`). What is kept is
plain data: the expressions, the levels of the categories, the states of ``center``, ``scale`` and
the splines, the constants of the standardisation. A row is therefore encoded in the same way
alone, in a chunk or in the full table, and after a trip through JSON.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from formulaic.transforms import TRANSFORMS
from formulaic.utils.cast import as_columns
from formulaic.utils.code import sanitize_variable_names
from formulaic.utils.layered_mapping import LayeredMapping
from formulaic.utils.stateful_transforms import stateful_eval

from decoct.data.base import columns_length
from decoct.errors import ModelError, RowsError
from decoct.models.validation import column, numeric, row_number

ELEMENTWISE = ("I", "exp", "exp2", "exp10", "log", "log2", "log10")
STATEFUL = ("center", "scale", "standardize", "bs", "cr", "cs", "cc", "poly")
CODINGS = ("Treatment", "Poly", "Sum", "Helmert", "Diff")
CODINGS += tuple(f"contr.{k}" for k in ("treatment", "SAS", "sum", "helmert", "diff", "poly"))
CODINGS += ("contr.custom",)
NUMPY_FUNCTIONS = {"where": 3, "clip": 3, "round": 2}

OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)
OPERATORS += (ast.BitAnd, ast.BitOr, ast.BitXor, ast.UAdd, ast.USub, ast.Invert)
OPERATORS += (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def raw_column(
    rows: Mapping[str, np.ndarray], name: str, start: int | np.ndarray = 0
) -> np.ndarray:
    """Return a column as float64, int64, bool or an object array of strings, without nulls."""
    values = column(rows, name)
    if values.ndim != 1:
        raise RowsError(f"Column '{name}' is not one value per row, which a formula needs.")
    if values.dtype.kind in "OUT":
        values = values.astype(object, copy=False)
        found = pd.api.types.infer_dtype(values, skipna=False)
        if found in ("string", "empty"):
            return values
        values = _from_objects(values, name, start)
    if values.dtype.kind not in "fiub":
        raise RowsError(
            f"Column '{name}' has the type {values.dtype}, which a formula cannot use; "
            "turn it into numbers or text."
        )
    values = numeric({name: values}, name, start)
    small = values.dtype.kind in "iu" and values.dtype.itemsize < 8
    return values.astype(np.int64) if small else values


def _from_objects(values: np.ndarray, name: str, start: int | np.ndarray) -> np.ndarray:
    null = pd.isna(values)
    if null.any():
        number = row_number(start, int(np.argmax(null)))
        raise RowsError(f"Column '{name}' has no value in row {number}; drop or impute such rows.")
    found = pd.api.types.infer_dtype(values)
    types = {"integer": np.int64, "boolean": np.bool_, "floating": np.float64}
    if found not in types:
        raise RowsError(
            f"Column '{name}' holds values of the kind '{found}', which a formula cannot use; "
            "make it all numbers or all text."
        )
    return values.astype(types[found])


@dataclass(frozen=True)
class Expression:
    """Python that a formula evaluates row by row, its columns renamed ``_0``, ``_1``, ….

    The renaming keeps a column called ``scale`` or ``wind speed`` apart from functions and
    operators. Only expressions that `compile_expression` accepts are ever evaluated.

    Attributes
    ----------
    label
        The term as formulaic spells it.
    lookup
        The term is the name of a column, not Python.
    code
        What to evaluate; for ``C(...)``, its first argument.
    coding
        For ``C(...)``, the whole call; else empty.
    inputs
        The raw columns, in the order of ``_0``, ``_1``, ….
    """

    label: str
    lookup: bool
    code: str
    coding: str
    inputs: tuple[str, ...]

    def evaluate(
        self, raw: Mapping[str, np.ndarray], state: Mapping[str, Any], code: str | None = None
    ) -> Any:
        """Return the value on raw columns; ``state`` is that of the stateful functions."""
        code = self.code if code is None else code
        columns = {f"_{i}": self._operand(raw[name]) for i, name in enumerate(self.inputs)}
        if code in columns:
            return columns[code]
        try:
            with np.errstate(all="ignore"):
                return stateful_eval(code, LayeredMapping(columns, TRANSFORMS), {}, state, None)  # pyright: ignore[reportArgumentType]
        except Exception as error:
            why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise RowsError(
                f"The formula's term '{self.label}' cannot be evaluated: {why}."
            ) from error

    def _operand(self, values: np.ndarray) -> np.ndarray:
        # integer powers overflow silently; levels keep their type, for their labels
        whole = values.dtype.kind in "iu" and not self.coding
        return values.astype(np.float64) if whole else values


def compile_expression(label: str, lookup: bool = False) -> Expression:
    """Turn a term of a formula into an `Expression`, or refuse it.

    Only functions of one row at a time are let through: anything else would depend on the chunk a
    row comes in. It is also what makes it safe to open a coreset file that holds a formula.
    """
    if lookup:
        return Expression(label, True, "_0", "", (label,))
    quoted: dict[str, str] = {}
    try:
        source = sanitize_variable_names(label, {}, quoted, template="quoted_{}")
        tree = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise ModelError(f"The formula's term '{label}' is not an expression.") from error
    visitor = _Visitor(label, quoted, [])
    if isinstance(tree, ast.Call) and ast.unparse(tree.func) == "C" and tree.args:
        visitor.visit(tree.args[0])
        visitor.check_coding(tree)
        visitor.check_used()
        inner, coding = ast.unparse(tree.args[0]), ast.unparse(tree)
        return Expression(label, False, inner, coding, tuple(visitor.inputs))
    visitor.visit(tree)
    visitor.check_used()
    return Expression(label, False, ast.unparse(tree), "", tuple(visitor.inputs))


@dataclass
class _Visitor:
    """Renames the columns of a syntax tree in place and refuses what is not row by row."""

    label: str
    quoted: Mapping[str, str]
    inputs: list[str]

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            name = self.quoted.get(node.id, node.id)
            if name not in self.inputs:
                self.inputs.append(name)
            node.id = f"_{self.inputs.index(name)}"
        elif isinstance(node, ast.Call):
            self.call(node)
        elif isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare) and _is_plain(node):
            for child in ast.iter_child_nodes(node):
                self.visit(child)
        elif not isinstance(node, (*OPERATORS, ast.Constant)) and not _is_numpy_constant(node):
            self.refuse(f"uses '{ast.unparse(node)}', which is not a function of one row")

    def call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name in (*STATEFUL, "np.isin") and node.args:
            self.visit(node.args[0])
            if not all(_is_constant(value) for value in _other_arguments(node)):
                self.refuse(f"gives {name}(...) an argument that is not a constant")
            return
        most = _most_arguments(name)
        if most == 0:
            self.refuse(
                f"uses {name}(...), which is not one of a formula's functions: "
                f"{', '.join(('C', *ELEMENTWISE, *STATEFUL))} and NumPy's functions of one value "
                "such as np.sqrt (C(...) must be a term of its own)"
            )
        if node.keywords or len(node.args) > most:
            self.refuse(f"gives {name}(...) too many arguments")
        for child in node.args:
            self.visit(child)

    def check_coding(self, node: ast.Call) -> None:
        for value in _other_arguments(node):
            call = value.func if isinstance(value, ast.Call) else value
            name = ast.unparse(call)
            inner = _other_arguments(value, 0) if isinstance(value, ast.Call) else []
            if not (_is_constant(value) or (name in CODINGS and all(map(_is_constant, inner)))):
                self.refuse(f"gives C(...) the argument '{ast.unparse(value)}'")

    def check_used(self) -> None:
        if not self.inputs:
            self.refuse("names no column")

    def refuse(self, why: str) -> None:
        raise ModelError(f"The formula's term '{self.label}' {why}.")


def _other_arguments(node: ast.Call, skip: int = 1) -> list[ast.expr]:
    return [*node.args[skip:], *(keyword.value for keyword in node.keywords)]


def _is_plain(node: ast.BinOp | ast.UnaryOp | ast.Compare) -> bool:
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and isinstance(node.ops[0], OPERATORS)
    return isinstance(node.op, OPERATORS)


def _is_constant(node: ast.AST) -> bool:
    try:
        ast.literal_eval(node)  # pyright: ignore[reportArgumentType]
    except (ValueError, TypeError):
        return False
    return True


def _is_numpy_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.pi", "np.e")


def _most_arguments(name: str) -> int:
    """Number of arguments a row-by-row function takes; 0 if it is not one.

    The limit matters: one more positional argument of a ufunc is the array it writes to.
    """
    if name in ELEMENTWISE:
        return 1
    function = getattr(np, name[3:], None) if name.startswith("np.") else None
    if isinstance(function, np.ufunc) and function.signature is None:
        return function.nin
    return NUMPY_FUNCTIONS.get(name[3:], 0) if function is not None else 0


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
            raise RowsError(
                f"The formula's term '{label}' is {numbers[bad]} in row "
                f"{row_number(start, bad)}; drop such rows or change the term."
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
        raise RowsError(
            f"{self._name()} has the value '{values[bad]}' in row {row_number(start, bad)}, which "
            f"is not one of the levels of the formula's data: {_few(self.levels)}."
        )

    def _name(self) -> str:
        if self.expression.code == "_0":
            return f"Column '{self.expression.inputs[0]}'"
        return f"The formula's term '{self.expression.label}'"

    def encode(
        self, raw: Mapping[str, np.ndarray], start: int | np.ndarray = 0
    ) -> dict[bool, np.ndarray]:
        """Return ``{reduced: (n, k) numbers}``."""
        codes = self.codes(raw, start)
        return {reduced: coding[codes] for reduced, coding in self.codings.items()}


def _few(levels: Sequence[Any], most: int = 8) -> str:
    return ", ".join(map(str, levels[:most])) + (", …" if len(levels) > most else "")


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
        used = (f.expression.inputs for f in (self.response, *self.factors))
        return tuple(dict.fromkeys(name for names in used for name in names))

    def encode(
        self, rows: Mapping[str, np.ndarray], start: int | np.ndarray = 0
    ) -> dict[str, np.ndarray]:
        """Return ``{"x": (n, D), "y": (n,)}`` for raw rows.

        Raises
        ------
        RowsError
            A missing column, a missing or infinite value, a level never seen; names the row.
        """
        raw = {name: raw_column(rows, name, start) for name in self.columns}
        return {"x": self._matrix(raw, start), "y": self.response.encode(raw, start)[False][:, 0]}

    def encode_response(
        self, rows: Mapping[str, np.ndarray], start: int | np.ndarray = 0
    ) -> np.ndarray:
        """Return the response (n,) alone, which needs none of the other columns."""
        names = self.response.expression.inputs
        raw = {name: raw_column(rows, name, start) for name in names}
        return self.response.encode(raw, start)[False][:, 0]

    def _matrix(self, raw: Mapping[str, np.ndarray], start: int | np.ndarray) -> np.ndarray:
        n, end = columns_length(raw), 0
        encoded = [factor.encode(raw, start) for factor in self.factors]
        x = np.empty((n, len(self.names)))
        for term in self.terms:
            block = term.columns(encoded, n)
            at = slice(end, end := end + block.shape[1])
            if self._standardized[at].any():
                block = (block - self.shift[at]) / self.scale[at]
            x[:, at] = block
        return x

    @cached_property
    def _standardized(self) -> np.ndarray:
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
