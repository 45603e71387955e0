"""The expressions a formula may have: checked once, evaluated on any rows, row by row."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from formulaic.transforms import TRANSFORMS
from formulaic.utils.code import sanitize_variable_names
from formulaic.utils.layered_mapping import LayeredMapping
from formulaic.utils.stateful_transforms import stateful_eval

from decoct.errors import BadValueError, ModelError, RowsError
from decoct.models.base import column, numeric, row_number

ELEMENTWISE = ("I", "exp", "exp2", "exp10", "log", "log2", "log10")
STATEFUL = ("center", "scale", "standardize", "bs", "cr", "cs", "cc", "poly")
CODINGS = ("Treatment", "Poly", "Sum", "Helmert", "Diff")
CODINGS += tuple(f"contr.{k}" for k in ("treatment", "SAS", "sum", "helmert", "diff", "poly"))
CODINGS += ("contr.custom",)
NUMPY_FUNCTIONS = {"where": 3, "clip": 3, "round": 2}

DEEPEST = 100
"""Most levels of nesting in an expression: Python compiles it recursively."""

LARGEST_ARGUMENT = 2000
"""Largest whole number a function such as ``poly`` may be given: it makes as many columns."""

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
        if pd.api.types.infer_dtype(values, skipna=False) in ("string", "empty"):
            return values
        null = pd.isna(values)
        if null.any():
            number = row_number(start, int(np.argmax(null)))
            raise BadValueError("has no value", number, "; drop or impute such rows.", name)
        found = pd.api.types.infer_dtype(values)
        types = {"integer": np.int64, "boolean": np.bool_, "floating": np.float64}
        values = values.astype(types.get(found, object))
    else:
        found = values.dtype
    if values.dtype.kind not in "fiub":
        raise RowsError(
            f"Column '{name}' has values of the kind '{found}', which a formula cannot use; "
            "make it all numbers or all text."
        )
    values = numeric({name: values}, name, start)
    small = values.dtype.kind in "iu" and values.dtype.itemsize < 8
    return values.astype(np.int64) if small else values


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
        columns = {}
        for i, name in enumerate(self.inputs):
            values = raw[name]
            # integer powers overflow silently; levels keep their type, for their labels
            whole = values.dtype.kind in "iu" and not self.coding
            columns[f"_{i}"] = values.astype(np.float64) if whole else values
        if code in columns:
            return columns[code]
        try:
            with np.errstate(all="ignore"):
                return stateful_eval(code, LayeredMapping(columns, TRANSFORMS), {}, state, None)  # pyright: ignore[reportArgumentType]
        except Exception as error:
            raise RowsError(
                f"The formula's term '{self.label}' cannot be evaluated: {reason(error)}."
            ) from error


def compile_expression(label: str, lookup: bool = False) -> Expression:
    """Turn a term of a formula into an `Expression`, or refuse it.

    Only functions of one row at a time are allowed: others would depend on chunks. The same rule
    makes it safe to open a coreset file with a formula; so depth of nesting and whole numbers,
    whose powers are slow, are bounded too.
    """
    if lookup:
        return Expression(label, True, "_0", "", (label,))
    quoted: dict[str, str] = {}
    try:
        source = sanitize_variable_names(label, {}, quoted, template="quoted_{}")
        tree = ast.parse(source, mode="eval").body
        _require_shallow(tree)
    except SyntaxError as error:
        raise ModelError(f"The formula's term '{shorten(label)}' is not an expression.") from error
    except (RecursionError, MemoryError) as error:
        raise ModelError(
            f"The formula's term '{shorten(label)}' is nested more than {DEEPEST} deep; make it "
            "a column of the table."
        ) from error
    visitor = _Visitor(label, quoted, [])
    inner, coding = tree, ""
    if isinstance(tree, ast.Call) and ast.unparse(tree.func) == "C" and tree.args:
        inner = tree.args[0]
        visitor.visit(inner)
        visitor.check_coding(tree)
        coding = ast.unparse(tree)
    else:
        visitor.visit(tree)
    if not visitor.inputs:
        visitor.refuse("names no column")
    return Expression(label, False, ast.unparse(inner), coding, tuple(visitor.inputs))


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
            if isinstance(node, ast.BinOp):
                _without_whole_powers(node)
            for child in ast.iter_child_nodes(node):
                self.visit(child)
        elif not (isinstance(node, (*OPERATORS, ast.Constant)) or _is_pi_or_e(node)):
            self.refuse(f"uses '{ast.unparse(node)}', which is not a function of one row")

    def call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name in (*STATEFUL, "np.isin") and node.args:
            self.visit(node.args[0])
            others = _other_arguments(node)
            if not all(map(_is_constant, others)):
                self.refuse(f"gives {name}(...) an argument that is not a constant")
            if name in STATEFUL and any(map(_is_large, others)):
                self.refuse(f"gives {name}(...) a whole number above {LARGEST_ARGUMENT}")
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
            called = isinstance(value, ast.Call)
            name = ast.unparse(value.func if called else value)
            inner = _other_arguments(value, 0) if called else []
            if not (_is_constant(value) or (name in CODINGS and all(map(_is_constant, inner)))):
                self.refuse(f"gives C(...) the argument '{ast.unparse(value)}'")

    def refuse(self, why: str) -> None:
        raise ModelError(f"The formula's term '{shorten(self.label)}' {why}.")


def shorten(text: str) -> str:
    """Return a formula or a term for a message, a long one without its middle."""
    return text if len(text) <= 200 else f"{text[:100]} … {text[-100:]}"


def _require_shallow(tree: ast.AST) -> None:
    """Raise what Python does for trees that are too deep for it, from `DEEPEST` on."""
    level = [tree]
    for _ in range(DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise RecursionError


def _without_whole_powers(node: ast.BinOp) -> None:
    """Turn the whole numbers of constant arithmetic into floats: 9**9**9 then overflows at once."""
    if any(isinstance(inside, ast.Name | ast.Attribute) for inside in ast.walk(node)):
        return
    for inside in ast.walk(node):
        if isinstance(inside, ast.Constant) and type(inside.value) is int:
            try:
                inside.value = float(inside.value)
            except OverflowError:
                inside.value = float("inf")


def _is_large(node: ast.AST) -> bool:
    return any(
        isinstance(inside, ast.Constant)
        and type(inside.value) is int
        and inside.value > LARGEST_ARGUMENT
        for inside in ast.walk(node)
    )


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


def _is_pi_or_e(node: ast.AST) -> bool:
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


def reason(error: Exception) -> str:
    """Return the first line of an error, without a full stop."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
