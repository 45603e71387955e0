"""Regression on raw columns through a formula such as ``late ~ temp + C(origin)``.

formulaic parses the formula and lays out the columns. What depends on the data (the levels of the
categories, the constants of ``center``, ``scale`` and the standardisation) comes from the full
data, in streamed passes, and is then frozen in a `Design`: a coreset never changes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from decoct.data.base import Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.data.tables import watched
from decoct.errors import ModelError, RequestError
from decoct.models.base import EncodedColumns, RawRows, forwarded
from decoct.models.conjugate import AbstractConjugate
from decoct.models.formula.design_matrix import Design
from decoct.models.formula.expression import reason
from decoct.models.formula.fit import fit_design
from decoct.models.linear import LinearRegression
from decoct.models.logistic import LogisticRegression
from decoct.models.poisson import PoissonRegression
from decoct.models.regression import AbstractRegression
from decoct.models.student_t import StudentTRegression
from decoct.runtime.progress import ProgressBar

FAMILIES: dict[str, type[AbstractRegression]] = {
    "gaussian": LinearRegression,
    "bernoulli": LogisticRegression,
    "poisson": PoissonRegression,
    "student": StudentTRegression,
}


class FormulaModel(AbstractConjugate):
    """A regression on named raw columns: a frozen design in front of a base model.

    Parameters
    ----------
    design
        How raw rows become ``x`` and ``y``; see `from_formula`.
    base
        A regression on rows ``{"x": (N, D), "y": (N,)}``, without an intercept of its own.

    Raises
    ------
    ModelError
        The base adds an intercept: the formula says whether there is one.

    Examples
    --------
    >>> import decoct
    >>> table = {"y": [1.0, 2.0, 4.0, 3.0], "x": [0.0, 1.0, 3.0, 2.0]}
    >>> model = decoct.models.from_formula("y ~ x", table, "gaussian", noise_scale=1.0)
    >>> model.response, model.design.names
    ('y', ('Intercept', 'x'))
    """

    design: Design = eqx.field(static=True)
    base: AbstractRegression

    def __check_init__(self) -> None:
        if self.base.intercept:
            raise ModelError("Leave out intercept=True; the formula decides whether there is one.")

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> FormulaModel:
        """Rebuild a model from its ``to_dict()``, to the bit.

        Raises
        ------
        ModelError
            It has an expression that a formula may not have.
        """
        bases: dict[str, Any] = {family.kind: family for family in FAMILIES.values()}
        base = bases[spec["base"]["kind"]].from_dict(spec["base"])
        return cls(Design.from_dict(spec["design"]), base)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.design.columns

    @property
    def response(self) -> str:
        """The left side of the formula."""
        return self.design.response.expression.label

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        """Return ``{"x": (n, D), "y": (n,)}``, standardised; errors name column and row."""
        table = self.design.encode(rows, start)
        y = self.base.encode_response({self.response: table["y"]}, start, self.response)
        return {"x": table["x"], "y": y}

    @property
    def explanatory(self) -> tuple[str, ...]:
        return self.design.explanatory

    def encode_explanatory(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        """Return ``{"x": (n, D)}``, standardised; errors name column and row."""
        return {"x": self.design.encode_explanatory(rows, start)}

    def check(self, rows: Rows) -> None:
        self.base.check(self._responses(rows), self.response)

    def distinct(self, rows: Rows) -> tuple[float, ...]:
        return self.base.distinct(self._responses(rows), self.response)

    def check_values(self, values: Sequence[float]) -> None:
        self.base.check_values(values, self.response)

    def _responses(self, rows: Rows) -> Rows:
        return encoded(rows, _Response(self.design))

    init = forwarded("base", "init")
    log_likelihood = forwarded("base", "log_likelihood")
    design_matrix = forwarded("base", "design_matrix")
    log_likelihood_at = forwarded("base", "log_likelihood_at")
    predict = forwarded("base", "predict")
    simulate = forwarded("base", "simulate")
    log_prior = forwarded("base", "log_prior")
    constrain = forwarded("base", "constrain")  # beta belongs to the standardised columns

    def coords(self, rows: RawRows) -> dict[str, tuple[str, list[str]]]:
        """Return the labels of the design columns, such as ``C(origin)[T.LGA]``."""
        labelled = self.base.coords({"x": np.empty((1, 0))})
        return {name: (dim, list(self.design.names)) for name, (dim, _) in labelled.items()}

    @property
    def is_conjugate(self) -> bool:
        return isinstance(self.base, AbstractConjugate) and self.base.is_conjugate

    sufficient = forwarded("base", "sufficient", AbstractConjugate)
    exact_posterior = forwarded("base", "exact_posterior", AbstractConjugate)

    def unscaled(self, beta: Float[Array, "*draws d"]) -> Float[Array, "*draws d"]:
        """Return coefficients for the columns as they were before the standardisation.

        They predict the same: a slope is divided by the scale of its column, and the intercept
        takes up the shifts.
        """
        slopes = beta / self.design.scale
        at = np.array([name == "Intercept" for name in self.design.names])
        return slopes - at * (slopes * self.design.shift).sum(-1, keepdims=True)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "formula", "design": self.design.to_dict(), "base": self.base.to_dict()}


@dataclass(frozen=True)
class _Response:
    """The response alone, under its own name: what a check of a whole table reads."""

    design: Design

    @property
    def columns(self) -> tuple[str, ...]:
        return self.design.response.expression.inputs

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        return {self.design.response.expression.label: self.design.encode_response(rows, start)}


def from_formula(
    formula: str,
    rows: Rows | Any,
    family: str = "gaussian",
    *,
    prior_scale: float | Sequence[float] = 1.0,
    standardize: bool = True,
    progress: bool | None = None,
    **options: Any,
) -> FormulaModel:
    """Return a regression on the columns of a table, frozen from all of its rows.

    One or two passes over the data (more if ``center`` and the like are nested); a streamed table
    is never in memory.

    Parameters
    ----------
    formula
        Such as ``"late ~ temp + C(origin) + C(carrier)"``, in formulaic's grammar: interactions,
        ``0 +`` for no intercept, ``C(...)`` with its contrasts, ``I(...)``, NumPy's functions of
        one value, ``center``, ``scale``, ``standardize``; for tables in memory also ``bs``,
        ``cr``, ``cs``, ``cc`` and ``poly``. Columns of text are categories.
    rows
        The full data: anything `decoct.rows` accepts.
    family
        ``"gaussian"``, ``"bernoulli"``, ``"poisson"`` (with the link ``"log"``, unless the option
        ``link`` says ``"softplus"``) or ``"student"``.
    prior_scale
        Prior standard deviation of the coefficients: a number, or one per column of the design.
    standardize
        Shift and scale the numeric columns of the design to mean 0 and standard deviation 1.
        Indicators, constant columns and other codings of categories stay; without an intercept
        nothing is shifted, since that would change the model. `FormulaModel.unscaled` turns the
        coefficients back.
    progress
        Show progress on standard error; None shows it on a terminal.
    **options
        Other hyper-parameters of the family: ``noise_scale`` (gaussian), ``link`` (poisson),
        ``nu`` and ``scale`` (student).

    Returns
    -------
    FormulaModel
        The model of `decoct.build`, with the categories, means and scales of this table.

    Raises
    ------
    ModelError
        The formula or an option cannot be used.
    RowsError
        A column is missing; a value is missing, infinite, or not of the right kind.
    RequestError
        The family is unknown; a spline or ``poly`` for a table that is not in memory.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.models import from_formula
    >>> table = {"late": [0, 1, 1, 0], "temp": [9.0, 3.0, 1.0, 7.0], "origin": list("abab")}
    >>> model = from_formula("late ~ temp + C(origin)", table, "bernoulli")
    >>> model.design.names
    ('Intercept', 'temp', 'C(origin)[T.b]')
    """
    if family not in FAMILIES:
        raise RequestError(f"The family '{family}' is unknown; choose from {', '.join(FAMILIES)}.")
    if "intercept" in options:
        raise ModelError("Leave out intercept=; the formula decides whether there is one.")
    if family == "poisson":
        options.setdefault("link", "log")
    try:
        base = FAMILIES[family](prior_scale=prior_scale, **options)
    except TypeError as error:
        raise ModelError(
            f"The family '{family}' cannot be used with these options: {reason(error)}."
        ) from error
    with ProgressBar(progress):
        seen = watched(as_rows(rows), "learning the formula")
        model = FormulaModel(fit_design(formula, seen, standardize), base)
    model.init({"x": np.zeros((1, len(model.design.names))), "y": np.zeros(1)})
    return model
