"""From a formula and a table to a frozen design: parse, learn, lay out, standardise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from formulaic import Formula, ModelSpec, SimpleFormula
from formulaic.parser import DefaultFormulaParser
from formulaic.parser.types import ASTNode
from formulaic.parser.types import Factor as FormulaicFactor
from formulaic.parser.types import Term as FormulaicTerm

from decoct.data.base import Chunk, Rows, columns_length
from decoct.errors import ModelError, RowsError
from decoct.models.base import RawRows
from decoct.models.formula.design_matrix import Design, LevelFactor, NumberFactor, Term
from decoct.models.formula.expression import (
    Expression,
    compile_expression,
    raw_column,
    reason,
    shorten,
)
from decoct.models.formula.learn import Learnt, Moments, learn

MAX_TERMS = 10_000
"""Most products of columns in a formula; (a + b)**n goes through 2ⁿ of them."""

MAX_POWER = 64
"""Largest power of a sum of columns."""

MAX_COLUMNS = 2000
"""A wider design is refused: it is dense, and a coreset of it would be most of the data."""

SAMPLE = 8
"""Rows on which formulaic lays out the columns; no constant comes from them."""


def fit_design(formula: str, rows: Rows, standardize: bool = True) -> Design:
    """Freeze a formula on a table; see `from_formula` for the arguments and errors."""
    response, terms = _parse(formula, rows.columns)
    expressions = _expressions([response, *terms])
    names = tuple(dict.fromkeys(n for e in expressions.values() for n in e.inputs))
    head = rows.take(np.arange(min(SAMPLE, rows.n_rows)), names)
    sample = {name: raw_column(head, name) for name in names}
    text = {name for name in names if sample[name].dtype == object}
    grouped = {k for k, e in expressions.items() if e.coding or (e.lookup and k in text)}
    label = response.factors[0].expr
    if label in grouped:
        inner = expressions[label].inputs[0]
        plain = sample[inner].tolist()[0]
        raise RowsError(
            f"The response '{label}' is text or a category; make it numbers, for example "
            f"'I({inner} == {plain!r}) ~ ...'."
        )
    learnt = learn(rows, expressions, grouped, sample)
    numbers = NumberFactor(expressions[label], learnt.states[label])
    if numbers.encode(sample)[False].shape[1] != 1:
        raise ModelError(f"The response '{label}' is more than one number per row.")
    design = _lay_out(formula, numbers, terms, learnt, sample)
    return _standardize(design, rows, sample) if standardize else design


def _parse(formula: str, columns: Sequence[str]) -> tuple[FormulaicTerm, list[FormulaicTerm]]:
    """Return the term of the response and those of the right-hand side."""
    said = f"The formula '{shorten(formula)}'"
    try:
        available = {"__formulaic_variables_available__": list(columns)}
        products = _count_products(DefaultFormulaParser().get_ast(formula), len(columns))
        parsed = Formula.from_spec(formula, context=available) if products <= MAX_TERMS else None
    except Exception as error:
        raise ModelError(f"{said} cannot be read: {shorten(reason(error))}.") from error
    if parsed is None:
        raise ModelError(
            f"{said} multiplies out to more than {MAX_TERMS:,} terms; leave out interactions or "
            "lower the power."
        )
    left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", None)
    if not isinstance(left, SimpleFormula) or not isinstance(right, SimpleFormula):
        raise ModelError(f"{said} is not of the form 'response ~ terms'.")
    if len(left) != 1 or len(left[0].factors) != 1 or not _expressions(left):
        raise ModelError(f"{said} needs one response on its left side.")
    if not len(right) or formula.rstrip().endswith("~"):
        raise ModelError(
            f"{said} has no terms on its right side; write '1' there for an intercept alone."
        )
    return left[0], list(right)


def _count_products(tree: Any, n_columns: int) -> float:
    """Return how many products of columns formulaic goes through to multiply a formula out."""
    counts: dict[int, float] = {}
    nodes = [tree]
    for node in nodes:  # not recursive: a sum of a thousand terms is a thousand deep
        nodes.extend(getattr(node, "args", ()))
    for node in reversed(nodes):
        inner = [counts[id(one)] for one in getattr(node, "args", ())]
        counts[id(node)] = _products_at(node, inner, n_columns)
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


def _lay_out(
    formula: str,
    response: NumberFactor,
    terms: Sequence[FormulaicTerm],
    learnt: Learnt,
    sample: RawRows,
) -> Design:
    """Let formulaic choose columns, codings and names, and keep them as plain data."""
    expressions = _expressions(terms)
    matrix = _formulaic_matrix(terms, expressions, learnt, sample)
    spec = matrix.model_spec
    products = [scoped for layout in spec.structure for scoped in layout.scoped_terms]
    used = {(f.factor.expr, f.reduced) for product in products for f in product.factors}
    factors, at = [], {}
    for label, expression in expressions.items():
        at[label] = len(at)
        if label not in learnt.levels:
            factors.append(NumberFactor(expression, learnt.states[label]))
            continue
        coding = spec.encoder_state[label][1]["contrasts"]
        codings = {
            reduced: coding.get_coding_matrix(reduced_rank=reduced).to_numpy(dtype=np.float64)
            for reduced in (False, True)
            if (label, reduced) in used
        }
        levels = tuple(coding.levels)
        factors.append(LevelFactor(expression, levels, codings, learnt.states[label]))
    laid = tuple(
        Term(float(p.scale), tuple((at[f.factor.expr], f.reduced) for f in p.factors))
        for p in products
    )
    names = tuple(map(str, spec.column_names))
    if len(names) > MAX_COLUMNS:
        raise ModelError(
            f"The formula '{formula}' makes {len(names)} columns, more than {MAX_COLUMNS}; "
            "leave out interactions or group rare levels."
        )
    shift, scale = np.zeros(len(names)), np.ones(len(names))
    design = Design(formula, response, tuple(factors), laid, names, shift, scale)
    x, known = design.encode(sample)["x"], np.asarray(matrix)
    if x.shape != known.shape or not np.allclose(x, known.astype(np.float64)):
        raise ModelError(f"The formula '{formula}' cannot be frozen; write its terms more plainly.")
    return design


def _formulaic_matrix(
    terms: Sequence[FormulaicTerm],
    expressions: Mapping[str, Expression],
    learnt: Learnt,
    sample: RawRows,
) -> Any:
    """Return formulaic's model matrix of the sample, from factors evaluated here.

    It gets the values and the levels, so that it evaluates and learns nothing itself.
    """
    values, known = {}, {}
    for label, e in expressions.items():
        values[label] = e.evaluate(sample, learnt.states[label], e.coding or e.code)
        if label not in learnt.levels:
            NumberFactor(e, learnt.states[label]).encode(sample)
            continue
        state = {"categories": list(learnt.levels[label])}
        known[label] = (FormulaicFactor.Kind.CATEGORICAL, state)
        values[label] = pd.Series(values[label]) if e.lookup else values[label]
    looked_up: list[str | FormulaicTerm] = [
        FormulaicTerm(
            f if f.eval_method.value == "literal" else FormulaicFactor(f.expr, eval_method="lookup")
            for f in term.factors
        )
        for term in terms
    ]
    spec = ModelSpec.from_spec(looked_up, na_action="ignore", output="numpy", encoder_state=known)
    rows = pd.DataFrame(index=range(columns_length(sample)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return spec.get_model_matrix(rows, context=values)
    except Exception as error:
        raise ModelError(f"The formula cannot be laid out: {reason(error)}.") from error


def _standardize(design: Design, rows: Rows, sample: RawRows) -> Design:
    """Return the design with full-data means and standard deviations of its numeric columns.

    Indicators, other codings of categories, and constant columns stay as they are. Columns are
    shifted only with an intercept, where that leaves the model the same.
    """
    n, coded, flags = columns_length(sample), [f.encode(sample) for f in design.factors], []
    for term in design.terms:
        number = any(isinstance(design.factors[i], NumberFactor) for i, _ in term.parts)
        flags += [number] * term.columns(coded, n).shape[1]
    numeric = np.array(flags, dtype=bool)
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


def _column_moments(chunk: Chunk, design: Design, numeric: np.ndarray) -> Moments:
    return Moments.of(design.encode(chunk.columns, chunk.start)["x"][:, numeric])
