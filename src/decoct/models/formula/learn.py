"""What depends on the full data: levels of categories, states of ``center`` and the like."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from formulaic.transforms import TRANSFORMS

from decoct.data.arrays import ArrayRows
from decoct.data.base import Chunk, Rows
from decoct.errors import BadValueError, ModelError, RequestError, RowsError
from decoct.models.base import RawRows
from decoct.models.formula.design_matrix import NumberFactor, State
from decoct.models.formula.expression import STATEFUL, Expression, raw_column, reason, shorten

MAX_LEVELS = 1000
"""A category with more levels is refused: it is an identifier, and the design is dense."""

MANY_LEVELS = 50
"""Levels of a category above which the user is warned: each is a coefficient."""

MOMENTS = ("center", "scale", "standardize")
"""The stateful functions whose states follow from moments, so that they can be streamed."""


Levels = dict[Any, int]
"""Level of a term -> the first row that has it."""


@dataclass(frozen=True)
class Learnt:
    """The states of the stateful functions and the sorted levels of the categories, by term."""

    states: dict[str, State]
    levels: dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of each column; its range; whether all 0 or 1."""

    n: int
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    binary: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> Moments:
        mean = x.mean(axis=0)
        mean = mean + (x - mean).mean(axis=0)
        squares = np.square(x - mean).sum(axis=0)
        binary = ((x == 0) | (x == 1)).all(axis=0)
        return cls(len(x), mean, squares, x.min(axis=0), x.max(axis=0), binary)

    def merge(self, other: Moments) -> Moments:
        """The pairwise update of Chan, Golub & LeVeque (1983)."""
        n = self.n + other.n
        gap = other.mean - self.mean
        return Moments(
            n,
            self.mean + gap * (other.n / n),
            self.squares + other.squares + gap**2 * (self.n * other.n / n),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.binary & other.binary,
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


@dataclass(frozen=True)
class _Need:
    """Something to learn: the levels of an expression, or the state of one call in it.

    ``code`` is what to evaluate; ``call`` is the stateful call, empty when levels are wanted.
    """

    expression: Expression
    code: str
    call: str = ""
    function: str = ""

    def measure(self, raw: RawRows, start: int, state: State) -> Moments | Levels:
        inner = replace(self.expression, code=self.code)
        if self.call:
            numbers = NumberFactor(inner, state).encode(raw, start)[False]
            if numbers.shape[1] != 1:
                raise ModelError(f"The formula's {self.function}(...) takes one number per row.")
            return Moments.of(numbers)
        values = np.asarray(inner.evaluate(raw, state))
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values)))
            raise BadValueError(
                f"The formula's term '{self.expression.label}' has the level {values[bad]}",
                start + bad,
                "; drop such rows.",
            )
        codes, levels = pd.factorize(values, use_na_sentinel=False)
        first = start + np.unique(codes, return_index=True)[1]
        return self._few(dict(zip(levels.tolist(), first.tolist(), strict=True)))

    def merge(self, a: Any, b: Any) -> Any:
        return a.merge(b) if isinstance(a, Moments) else self._few(b | a)

    def _few(self, levels: Levels) -> Levels:
        """Refuse too many levels, and numbers that are text because of a few values among them."""
        label = self.expression.label
        texts = [level for level in levels if isinstance(level, str)]
        words = [text for text in texts if not _is_number(text)]
        mostly_numbers = 2 * len(words) < len(texts)
        if self.expression.lookup and mostly_numbers and (words or len(levels) > MAX_LEVELS):
            problem = "is text, but most of its values are numbers"
            instead = f"or write C({label}) in the formula if these are categories."
            if not words:
                raise RowsError(
                    f"Column '{label}' {problem}; correct the values that are not, {instead}"
                )
            first = min(words, key=levels.__getitem__)
            raise BadValueError(
                f"{problem}; the first other value is {shorten(first)!r}",
                levels[first],
                f": correct it, {instead}",
                label,
            )
        if len(levels) > MAX_LEVELS:
            raise RowsError(
                f"The formula's term '{label}' has more than {MAX_LEVELS} levels; "
                "group the rare ones, or leave it out if it identifies rows."
            )
        return levels


def _merge(needs: Sequence[_Need], a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    return [need.merge(x, y) for need, x, y in zip(needs, a, b, strict=True)]


def _measure(chunk: Chunk, needs: Sequence[_Need], states: Mapping[str, State]) -> list[Any]:
    names = dict.fromkeys(name for need in needs for name in need.expression.inputs)
    raw = {name: raw_column(chunk.columns, name, chunk.start) for name in names}
    return [need.measure(raw, chunk.start, states[need.expression.label]) for need in needs]


def learn(
    rows: Rows, expressions: Mapping[str, Expression], grouped: set[str], sample: RawRows
) -> Learnt:
    """Learn states and levels, inner calls first: one pass over the data for each depth."""
    learnt = Learnt({label: {} for label in expressions}, {})
    for needs in _rounds(expressions, grouped):
        streamed = [n for n in needs if not n.call or n.function in MOMENTS]
        found = []
        if streamed:
            names = tuple(dict.fromkeys(name for n in streamed for name in n.expression.inputs))
            merge = partial(_merge, streamed)
            found = rows.map_reduce(_measure, merge, streamed, learnt.states, columns=names)
        for need, what in zip(streamed, found, strict=True):
            label = need.expression.label
            if isinstance(what, Moments):
                learnt.states[label][need.call] = _moment_state(need, what)
            else:
                learnt.levels[label] = _in_order(label, what)
        for need in needs:
            if need.call and need.function not in MOMENTS:
                _fit_whole(rows, need, sample, learnt.states[need.expression.label])
    return learnt


def _in_order(label: str, levels: Levels) -> tuple[Any, ...]:
    try:
        ordered = tuple(sorted(levels))
    except TypeError as error:
        raise RowsError(
            f"The formula's term '{label}' mixes text and numbers; make it all of one kind."
        ) from error
    if len(ordered) > MANY_LEVELS:
        warnings.warn(
            f"The formula's term '{label}' has {len(ordered)} levels, each of which is a "
            "coefficient; group the rare ones, or make the column numeric if it is no category.",
            stacklevel=2,
        )
    return ordered


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


def _moment_state(need: _Need, moments: Moments) -> dict[str, Any]:
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
    """Let formulaic fit a spline or a polynomial, which needs the whole column at once."""
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
            f"The formula's {need.function}(...) needs the whole column at once, but this table "
            f"is read in pieces; load it into memory{other}."
        )
    filled: State = {**state, need.call: {}}
    need.expression.evaluate(raw, filled, need.call)
    state[need.call] = filled[need.call]
