"""From a formula and a table to a frozen design: parse, learn, lay out, standardise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from formulaic import Formula, SimpleFormula
from formulaic.parser import DefaultFormulaParser
from formulaic.parser.types import ASTNode
from formulaic.parser.types import Term as FormulaicTerm

from decoct.data.base import Chunk, Rows, columns_length
from decoct.errors import ModelError, RowsError
from decoct.models.base import RawRows
from decoct.models.formula.design_matrix import Design, NumberFactor
from decoct.models.formula.expression import (
    Expression,
    compile_expression,
    raw_column,
    reason,
    shortened,
)
from decoct.models.formula.layout import lay_out
from decoct.models.formula.learn import Moments, learn

MAX_TERMS = 10_000
"""Most products of columns in a formula; (a + b)**n goes through 2ⁿ of them."""

MAX_POWER = 64
"""Largest power of a sum of columns."""

SAMPLE = 8
"""Rows on which formulaic lays out the columns; no constant comes from them."""


def fit_design(formula: str, rows: Rows, standardize: bool = True) -> Design:
    """Freeze a formula on a table; see `from_formula` for the arguments and errors."""
    response, terms = _parse(formula, rows.columns)
    expressions = _expressions([response, *terms])
    names = tuple(dict.fromkeys(n for e in expressions.values() for n in e.inputs))
    _check_known(names, rows.columns)
    head = rows.take(np.arange(min(SAMPLE, rows.n_rows)), names)
    sample = {name: raw_column(head, name) for name in names}
    text = {name for name in names if sample[name].dtype == object}
    grouped = {k for k, e in expressions.items() if e.coding or (e.lookup and k in text)}
    label = response.factors[0].expr
    if label in grouped:
        inner = expressions[label].inputs[0]
        value = sample[inner][0]
        plain = value.item() if isinstance(value, np.generic) else value
        raise RowsError(
            f"The response '{label}' is text or a category; make it numbers, for example "
            f"'I({inner} == {plain!r}) ~ ...'."
        )
    learnt = learn(rows, expressions, grouped, sample)
    numbers = NumberFactor(expressions[label], learnt.states[label])
    if numbers.encode(sample)[False].shape[1] != 1:
        raise ModelError(f"The response '{label}' is more than one number per row.")
    right = _expressions(terms)
    design = lay_out(formula, numbers, terms, right, learnt, sample)
    return _standardized(design, rows, sample) if standardize else design


def _parse(formula: str, columns: Sequence[str]) -> tuple[FormulaicTerm, list[FormulaicTerm]]:
    """Return the term of the response and those of the right-hand side."""
    try:
        available = {"__formulaic_variables_available__": list(columns)}
        if _count_products(DefaultFormulaParser().get_ast(formula), len(columns)) > MAX_TERMS:
            raise ModelError(
                f"The formula '{shortened(formula)}' multiplies out to more than {MAX_TERMS:,} "
                "terms; leave out interactions or lower the power."
            )
        parsed = Formula.from_spec(formula, context=available)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"The formula '{shortened(formula)}' cannot be read: {shortened(reason(error))}."
        ) from error
    left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", None)
    if not isinstance(left, SimpleFormula) or not isinstance(right, SimpleFormula):
        raise ModelError(
            f"The formula '{shortened(formula)}' is not of the form 'response ~ terms'."
        )
    if len(left) != 1 or len(left[0].factors) != 1 or not _expressions(left):
        raise ModelError(f"The formula '{shortened(formula)}' needs one response on its left side.")
    if not len(right) or formula.rstrip().endswith("~"):
        raise ModelError(
            f"The formula '{shortened(formula)}' has no terms on its right side; "
            "write '1' there for an intercept alone."
        )
    return left[0], list(right)


def _count_products(tree: Any, n_columns: int) -> float:
    """Return how many products of columns formulaic goes through to multiply a formula out."""
    counts: dict[int, float] = {}
    waiting = [tree]
    while waiting:  # not recursive: a sum of a thousand terms is a thousand deep
        node = waiting[-1]
        inner = node.args if isinstance(node, ASTNode) else ()
        unknown = [one for one in inner if id(one) not in counts]
        if unknown:
            waiting.extend(unknown)
            continue
        waiting.pop()
        counts[id(node)] = _products_at(node, [counts[id(one)] for one in inner], n_columns)
    return counts[id(tree)]


def _products_at(node: Any, counts: list[float], n_columns: int) -> float:
    if not isinstance(node, ASTNode):
        return n_columns if str(node) == "." else 1
    operator = str(node.operator)
    if operator in ("**", "^"):
        power = str(list(node.args)[-1])
        if not power.isdecimal():
            return 1  # which formulaic refuses
        return counts[0] ** int(power) if int(power) <= MAX_POWER else math.inf
    if operator in ("*", ":", "/", "in"):
        return sum(counts) + math.prod(counts)
    return sum(counts)


def _expressions(terms: Iterable[FormulaicTerm]) -> dict[str, Expression]:
    return {
        factor.expr: compile_expression(factor.expr, factor.eval_method.value == "lookup")
        for term in terms
        for factor in term.factors
        if factor.eval_method.value != "literal"
    }


def _check_known(names: Sequence[str], columns: Sequence[str]) -> None:
    for name in names:
        if name not in columns:
            raise RowsError(
                f"The formula uses '{name}', but the table has no such column; "
                f"its columns are: {', '.join(sorted(columns))}."
            )


def _standardized(design: Design, rows: Rows, sample: RawRows) -> Design:
    """Return the design with full-data means and standard deviations of its numeric columns.

    Indicators, other codings of categories, and constant columns stay as they are. Columns are
    shifted only beside an intercept, where that leaves the model the same.
    """
    numeric = _numeric_columns(design, sample)
    if not numeric.any():
        return design
    found = rows.map_reduce(_column_moments, Moments.merge, design, numeric, columns=design.columns)
    spread = np.sqrt(found.squares / found.n)
    moved = ~found.binary & (found.low < found.high) & (spread > 0)
    shift, scale = design.shift.copy(), design.scale.copy()
    if "Intercept" in design.names:
        shift[numeric] = np.where(moved, found.mean, 0.0)
    scale[numeric] = np.where(moved, spread, 1.0)
    return replace(design, shift=shift, scale=scale)


def _numeric_columns(design: Design, sample: RawRows) -> np.ndarray:
    """Return, for each column of the design, whether a number enters it."""
    n = columns_length(sample)
    coded = [factor.encode(sample) for factor in design.factors]
    flags = []
    for term in design.terms:
        number = any(isinstance(design.factors[i], NumberFactor) for i, _ in term.parts)
        flags += [number] * term.columns(coded, n).shape[1]
    return np.array(flags, dtype=bool)


def _column_moments(chunk: Chunk, design: Design, numeric: np.ndarray) -> Moments:
    return Moments.of(design.encode(chunk.columns, chunk.start)["x"][:, numeric])
