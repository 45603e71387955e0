"""From a formula and a table to a frozen design: parse, measure in streamed passes, lay out."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from formulaic import Formula, ModelSpec, SimpleFormula
from formulaic.parser.types import Factor as FormulaicFactor
from formulaic.parser.types import Term as FormulaicTerm
from formulaic.transforms import TRANSFORMS

from decoct.data.arrays import ArrayRows
from decoct.data.base import Chunk, Rows, columns_length
from decoct.errors import ModelError, RequestError, RowsError
from decoct.models.base import RawRows
from decoct.models.design import Design, LevelFactor, NumberFactor, State, Term
from decoct.models.expression import STATEFUL, Expression, compile_expression, raw_column
from decoct.models.validation import row_number

MAX_LEVELS = 1000
"""A category with more levels is refused: it is an identifier, and the design is dense."""

MAX_COLUMNS = 2000
"""A wider design is refused: it is dense, and a coreset of it would hold the data anyway."""

SAMPLE = 8
"""Rows on which formulaic lays out the columns; no constant comes from them."""

MOMENTS = ("center", "scale", "standardize")
"""The stateful functions whose states follow from moments, so that they can be streamed."""


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
        value = sample[expressions[label].inputs[0]][0]
        raise RowsError(
            f"The response '{label}' is text or a category; make it numbers, for example "
            f"'I({label} == {value!r}) ~ ...'."
        )
    learnt = _learn(rows, expressions, grouped, sample)
    numbers = NumberFactor(expressions[label], learnt.states[label])
    if numbers.encode(sample)[False].shape[1] != 1:
        raise ModelError(f"The response '{label}' is more than one number per row.")
    right = _expressions(terms)
    design = _lay_out(formula, numbers, terms, right, learnt, sample)
    return _standardized(design, rows, sample) if standardize else design


# --- what the formula says ---


def _parse(formula: str, columns: Sequence[str]) -> tuple[FormulaicTerm, list[FormulaicTerm]]:
    """Return the term of the response and those of the right-hand side."""
    try:
        available = {"__formulaic_variables_available__": list(columns)}
        parsed = Formula.from_spec(formula, context=available)
    except Exception as error:
        raise ModelError(f"The formula '{formula}' cannot be read: {reason(error)}.") from error
    left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", None)
    if not isinstance(left, SimpleFormula) or not isinstance(right, SimpleFormula):
        raise ModelError(f"The formula '{formula}' is not of the form 'response ~ terms'.")
    if len(left) != 1 or len(left[0].factors) != 1 or not _expressions(left):
        raise ModelError(f"The formula '{formula}' needs one response on its left side.")
    if not len(right) or formula.rstrip().endswith("~"):
        raise ModelError(
            f"The formula '{formula}' has no terms on its right side; "
            "write '1' there for an intercept alone."
        )
    return left[0], list(right)


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


# --- what only the full data can say ---


@dataclass(frozen=True)
class _Learnt:
    """The states of the stateful functions and the sorted levels of the categories, by term."""

    states: dict[str, State]
    levels: dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class _Moments:
    """Count, mean and sum of squared deviations of each column; its range; whether all 0 or 1."""

    n: int
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    binary: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> _Moments:
        mean = x.mean(axis=0)
        mean = mean + (x - mean).mean(axis=0)
        squares = np.square(x - mean).sum(axis=0)
        binary = ((x == 0) | (x == 1)).all(axis=0)
        return cls(len(x), mean, squares, x.min(axis=0), x.max(axis=0), binary)

    def merge(self, other: _Moments) -> _Moments:
        """The pairwise update of Chan, Golub & LeVeque (1983)."""
        n = self.n + other.n
        gap = other.mean - self.mean
        return _Moments(
            n,
            self.mean + gap * (other.n / n),
            self.squares + other.squares + gap**2 * (self.n * other.n / n),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.binary & other.binary,
        )


@dataclass(frozen=True)
class _Need:
    """Something to learn: the levels of an expression, or the state of one call in it.

    ``code`` is what to evaluate; ``call`` is the stateful call, empty when levels are wanted.
    """

    expression: Expression
    code: str
    call: str = ""
    function: str = ""

    def measure(self, raw: RawRows, start: int, state: State) -> _Moments | frozenset[Any]:
        inner = replace(self.expression, code=self.code)
        if not self.call:
            return self._levels(np.asarray(inner.evaluate(raw, state)), start)
        values = NumberFactor(inner, state).encode(raw, start)[False]
        if values.shape[1] != 1:
            raise ModelError(f"The formula's {self.function}(...) takes one number per row.")
        return _Moments.of(values)

    def _levels(self, values: np.ndarray, start: int) -> frozenset[Any]:
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values)))
            raise RowsError(
                f"The formula's term '{self.expression.label}' has the level {values[bad]} in row "
                f"{row_number(start, bad)}; drop such rows."
            )
        return self._few(frozenset(pd.unique(values).tolist()))

    def _few(self, levels: frozenset[Any]) -> frozenset[Any]:
        if len(levels) > MAX_LEVELS:
            raise RowsError(
                f"The formula's term '{self.expression.label}' has more than {MAX_LEVELS} levels; "
                "group the rare ones, or leave it out if it identifies rows."
            )
        return levels

    def merge(self, a: Any, b: Any) -> Any:
        return a.merge(b) if isinstance(a, _Moments) else self._few(a | b)


@dataclass(frozen=True)
class _Merge:
    needs: Sequence[_Need]

    def __call__(self, a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
        return [need.merge(x, y) for need, x, y in zip(self.needs, a, b, strict=True)]


def _measure(chunk: Chunk, needs: Sequence[_Need], states: Mapping[str, State]) -> list[Any]:
    names = dict.fromkeys(name for need in needs for name in need.expression.inputs)
    raw = {name: raw_column(chunk.columns, name, chunk.start) for name in names}
    return [need.measure(raw, chunk.start, states[need.expression.label]) for need in needs]


def _learn(
    rows: Rows, expressions: Mapping[str, Expression], grouped: set[str], sample: RawRows
) -> _Learnt:
    """Learn states and levels, inner calls first: one pass over the data for each depth."""
    learnt = _Learnt({label: {} for label in expressions}, {})
    for needs in _rounds(expressions, grouped):
        streamed = [n for n in needs if not n.call or n.function in MOMENTS]
        names = tuple(dict.fromkeys(name for n in streamed for name in n.expression.inputs))
        found = []
        if streamed:
            merge = _Merge(streamed)
            found = rows.map_reduce(_measure, merge, streamed, learnt.states, columns=names)
        for need, what in zip(streamed, found, strict=True):
            label = need.expression.label
            if isinstance(what, _Moments):
                learnt.states[label][need.call] = _moment_state(need, what)
            else:
                learnt.levels[label] = _in_order(label, what)
        for need in needs:
            if need.call and need.function not in MOMENTS:
                _fit_whole(rows, need, sample, learnt.states[need.expression.label])
    return learnt


def _in_order(label: str, levels: frozenset[Any]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(levels))
    except TypeError as error:
        raise RowsError(
            f"The formula's term '{label}' mixes text and numbers; make it all of one kind."
        ) from error


def _rounds(expressions: Mapping[str, Expression], grouped: set[str]) -> list[list[_Need]]:
    """Return what is to be learnt, in the order of the depth of nesting."""
    rounds: dict[int, list[_Need]] = {}
    for label, expression in expressions.items():
        depth, calls = _stateful_calls(ast.parse(expression.code, mode="eval").body)
        for level, call in calls:
            inner, function = ast.unparse(call.args[0]), ast.unparse(call.func)
            need = _Need(expression, inner, ast.unparse(call), function)
            rounds.setdefault(level, []).append(need)
        if label in grouped:
            rounds.setdefault(depth + 1, []).append(_Need(expression, expression.code))
    return [rounds[level] for level in sorted(rounds)]


def _stateful_calls(node: ast.AST) -> tuple[int, list[tuple[int, ast.Call]]]:
    """Return how deep stateful calls are nested in a tree, and each call with its depth."""
    below = [_stateful_calls(child) for child in ast.iter_child_nodes(node)]
    depth = max((d for d, _ in below), default=0)
    calls = [call for _, found in below for call in found]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in STATEFUL:
        return depth + 1, [*calls, (depth + 1, node)]
    return depth, calls


def _moment_state(need: _Need, moments: _Moments) -> dict[str, Any]:
    """Return what formulaic's center, scale or standardize would remember of the full data."""
    mean, squares = float(moments.mean[0]), float(moments.squares[0])
    given = {"center": True, "scale": False, "ddof": 1, **_arguments(need.call)}
    center, scaled = given["center"], given.get("rescale", given["scale"])
    center = (mean if center else None) if isinstance(center, bool) else float(center)
    state = {"ddof": given["ddof"], "center": center, "scale": None}
    if not isinstance(scaled, bool):
        state["scale"] = float(scaled)
    elif scaled:
        squares += moments.n * (mean - (center or 0.0)) ** 2
        constant = moments.low[0] == moments.high[0] and center == mean
        state["scale"] = (squares / (moments.n - given["ddof"])) ** 0.5 if squares else 1.0
        state["scale"] = 1.0 if constant else state["scale"]
    return state


def _arguments(code: str) -> dict[str, Any]:
    """Return the arguments of a stateful call after the first, defaults filled in."""
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    function = ast.unparse(call.func)
    try:
        bound = inspect.signature(TRANSFORMS[function]).bind(
            None,
            *(ast.literal_eval(value) for value in call.args[1:]),
            **{k.arg or "": ast.literal_eval(k.value) for k in call.keywords},
        )
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"The formula's {function}(...) cannot be used: {reason(error)}."
        ) from error
    bound.apply_defaults()
    return {k: v for k, v in bound.arguments.items() if not k.startswith("_")}


def _fit_whole(rows: Rows, need: _Need, sample: RawRows, state: State) -> None:
    """Let formulaic fit a spline or a polynomial, which looks at the whole column at once."""
    given = _arguments(need.call)
    bounds = [given.get(name) for name in ("knots", "lower_bound", "upper_bound")]
    names = need.expression.inputs
    if given.get("raw") or (None not in bounds and given.get("constraints") != "center"):
        raw = sample
    elif isinstance(rows, ArrayRows):
        whole = next(iter(rows.chunks(rows.n_rows, names)))
        raw = {name: raw_column(whole.columns, name) for name in names}
    else:
        other = "" if need.function == "poly" else ", or give knots, lower_bound and upper_bound"
        raise RequestError(
            f"The formula's {need.function}(...) has to see the whole column at once, and this "
            f"table is read in pieces; load it into memory{other}."
        )
    filled: State = {**state, need.call: {}}
    need.expression.evaluate(raw, filled, need.call)
    state[need.call] = filled[need.call]


# --- the layout of the columns ---


def _lay_out(
    formula: str,
    response: NumberFactor,
    terms: Sequence[FormulaicTerm],
    expressions: Mapping[str, Expression],
    learnt: _Learnt,
    sample: RawRows,
) -> Design:
    """Let formulaic choose columns, codings and names, and keep them as plain data."""
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
    _check_same(design, sample, np.asarray(matrix))
    return design


def _formulaic_matrix(
    terms: Sequence[FormulaicTerm],
    expressions: Mapping[str, Expression],
    learnt: _Learnt,
    sample: RawRows,
) -> Any:
    """Return formulaic's model matrix of the sample, from factors evaluated here.

    It is told the values and the levels, so that it has nothing to evaluate or to learn.
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


def reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _check_same(design: Design, sample: RawRows, matrix: np.ndarray) -> None:
    x = design.encode(sample)["x"]
    if x.shape != matrix.shape or not np.allclose(x, matrix.astype(np.float64)):
        raise ModelError(
            f"The formula '{design.formula}' cannot be frozen; write its terms more plainly."
        )


def _standardized(design: Design, rows: Rows, sample: RawRows) -> Design:
    """Return the design with full-data means and standard deviations of its numeric columns.

    Indicators, other codings of categories, and constant columns stay as they are. Columns are
    shifted only beside an intercept, where that leaves the model the same.
    """
    numeric = _numeric_columns(design, sample)
    if not numeric.any():
        return design
    found = rows.map_reduce(
        _column_moments, _Moments.merge, design, numeric, columns=design.columns
    )
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


def _column_moments(chunk: Chunk, design: Design, numeric: np.ndarray) -> _Moments:
    return _Moments.of(design.encode(chunk.columns, chunk.start)["x"][:, numeric])
