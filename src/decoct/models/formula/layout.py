"""The columns of a design: formulaic chooses codings and names, and they are kept as plain data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from formulaic import ModelSpec
from formulaic.parser.types import Factor as FormulaicFactor
from formulaic.parser.types import Term as FormulaicTerm

from decoct.data.base import columns_length
from decoct.errors import ModelError
from decoct.models.base import RawRows
from decoct.models.formula.design_matrix import Design, LevelFactor, NumberFactor, Term
from decoct.models.formula.expression import Expression, reason
from decoct.models.formula.learn import Learnt

MAX_COLUMNS = 2000
"""A wider design is refused: it is dense, and a coreset of it would hold the data anyway."""


def lay_out(
    formula: str,
    response: NumberFactor,
    terms: Sequence[FormulaicTerm],
    expressions: Mapping[str, Expression],
    learnt: Learnt,
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
    learnt: Learnt,
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


def _check_same(design: Design, sample: RawRows, matrix: np.ndarray) -> None:
    x = design.encode(sample)["x"]
    if x.shape != matrix.shape or not np.allclose(x, matrix.astype(np.float64)):
        raise ModelError(
            f"The formula '{design.formula}' cannot be frozen; write its terms more plainly."
        )
