"""Base of the regression models: a design matrix, a response, normal coefficients.

Every model on top of this one has rows ``{"x": (N, D), "y": (N,)}``, coefficients β with
independent N(0, s²) priors, and potentials that depend on x_n through η_n = x_n·β.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from decoct.data.base import Chunk, Rows
from decoct.errors import BadValueError, ModelError, RowsError
from decoct.models.base import (
    AbstractModel,
    EncodedColumns,
    Params,
    PerRow,
    RawRows,
    column,
    numeric,
    row_number,
)
from decoct.stats.divergences import HALF_LOG_2PI

REMEMBERED = 4
"""How many distinct values of the response `AbstractRegression.check` remembers."""

SMALLEST = 1e-150
"""Least hyper-parameter whose square can be divided by."""


def positive(name: str, *, max_ndim: int = 0, optional: bool = False) -> Callable[[Any], Any]:
    """Return a converter of a hyper-parameter to positive finite float64.

    ``max_ndim`` is 0 for a number, 1 to allow one number per coefficient; ``optional`` lets None
    through.
    """
    shape = "a positive finite number" + (" or one per coefficient" if max_ndim else "")

    def convert(value: Any) -> np.ndarray | None:
        if optional and value is None:
            return None
        refusal = ModelError(f"{name} must be {shape}, not {value!r}.")
        try:
            array = np.array(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise refusal from error
        usable = array.ndim <= max_ndim and array.size > 0
        if not (usable and (np.isfinite(array) & (array > 0)).all()):
            raise refusal
        if (array < SMALLEST).any():
            raise ModelError(f"{name} must be at least {SMALLEST}, not {value!r}; scale the data.")
        return array

    return convert


def _as_bool(intercept: Any) -> bool:
    if not isinstance(intercept, bool | np.bool_):
        raise ModelError(f"intercept must be True or False, not {intercept!r}.")
    return bool(intercept)


def normal_log_density(
    value: Float[Array, "..."], scale: float | np.ndarray | Float[Array, "..."]
) -> Float[Array, ""]:
    """Return Σ_d log N(value_d | 0, scale_d²), normalised; ``scale`` is a number or one per d."""
    standard = value / scale
    return jnp.sum(-0.5 * standard**2 - jnp.log(scale) - HALF_LOG_2PI)


class AbstractRegression(AbstractModel):
    """Rows ``{"x": (N, D) or (N,), "y": (N,)}`` and coefficients β ~ N(0, diag(s²)).

    s is ``prior_scale``; with ``intercept`` the last coefficient is that of a column of ones.
    """

    prior_scale: np.ndarray = eqx.field(
        default=1.0, converter=positive("prior_scale", max_ndim=1), kw_only=True
    )
    intercept: bool = eqx.field(default=False, converter=_as_bool, static=True, kw_only=True)

    kind: ClassVar[str]

    refusal: ClassVar[tuple[str, str]]
    """Message about a value that `refused` marks, before and after the row: "is {}"."""

    def refused(self, y: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Return which finite values of the response can never occur under this model."""
        return np.zeros(len(y), dtype=bool)

    def code_response(self, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return the response as the potentials need it."""
        return y

    @property
    def columns(self) -> tuple[str, ...]:
        return ("x", "y")

    def init(self, rows: RawRows) -> Params:
        """Return zeros: ``{"beta": (D,)}``.

        Raises
        ------
        ModelError
            ``prior_scale`` has one entry per coefficient, but not as many as there are.
        """
        n = rows["x"].shape[1]
        if self.prior_scale.ndim and len(self.prior_scale) != n:
            last = " (the intercept is the last)" if self.intercept else ""
            raise ModelError(
                f"prior_scale has {len(self.prior_scale)} entries, "
                f"but the model has {n} coefficients{last}."
            )
        return {"beta": np.zeros(n)}

    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> PerRow:
        """Return f_n at x_n·β, in nats."""
        return self.log_likelihood_at(rows["x"] @ params["beta"], rows)

    def predict(self, params: Params, rows: Mapping[str, Array]) -> PerRow:
        """Return x_n·β: the mean, and of Student-t with ν ≤ 1 the median."""
        return rows["x"] @ params["beta"]

    def design_matrix(self, rows: Mapping[str, Array]) -> Float[Array, "n d"] | None:
        """Return x."""
        return rows["x"]

    def log_prior(self, params: Params) -> Float[Array, ""]:
        """Return Σ_d log N(β_d | 0, s_d²)."""
        return normal_log_density(params["beta"], self.prior_scale)

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        """Return ``{"x": (n, D) float64, "y": (n,) float64}``, the intercept's ones included.

        Raises
        ------
        RowsError
            A column is missing, of the wrong shape or not numeric; a value is not finite or not a
            possible response. The message names column and row.
        """
        x = self.encode_explanatory(rows, start)
        return {**x, "y": self.encode_response(rows, start)}

    @property
    def explanatory(self) -> tuple[str, ...]:
        return ("x",)

    def encode_explanatory(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        """Return ``{"x": (n, D) float64}``; errors as in `encode`."""
        x = numeric(rows, "x", start)
        if x.ndim == 1:
            x = x[:, None]
        if x.ndim != 2:
            raise RowsError(
                f"Column 'x' has {x.ndim} dimensions; it must be (rows, features) or (rows,)."
            )
        if self.intercept:
            x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        if not x.shape[1]:
            raise RowsError("Column 'x' has no features; give some, or set intercept=True.")
        return {"x": x.astype(np.float64, copy=False)}

    def encode_response(
        self, rows: RawRows, start: int | np.ndarray = 0, name: str = "y"
    ) -> Float[np.ndarray, " n"]:
        """Return the response alone, the column ``name``; arguments and errors as in `encode`."""
        return self.code_response(self.possible_response(rows, start, name))

    def possible_response(
        self, rows: RawRows, start: int | np.ndarray, name: str
    ) -> Float[np.ndarray, " n"]:
        """Return the response as it is given, float64, or refuse the first impossible value."""
        y = column(rows, name)
        if y.ndim != 1:
            raise RowsError(
                f"Column '{name}' has the shape {y.shape}; the response must be one number per row."
            )
        y = numeric(rows, name, start).astype(np.float64, copy=False)
        bad = np.flatnonzero(self.refused(y))
        if bad.size:
            before, after = self.refusal
            problem = before.format(number_text(float(y[bad[0]])))
            raise BadValueError(problem, row_number(start, int(bad[0])), after, name)
        return y

    def check(self, rows: Rows, name: str = "y") -> None:
        """Refuse a response, the column ``name``, that no data set of this model could have.

        One pass over that column. Raises `RowsError`: the response is constant, or a value of it is
        impossible; the first such row is named.
        """
        values = self.distinct(rows, name)
        if len(values) == 1:
            raise RowsError(
                f"The response '{name}' is the same value {number_text(values[0])} in every row, "
                "so there is nothing to explain; is it the right column?"
            )
        self.check_values(values, name)

    def distinct(self, rows: Rows, name: str = "y") -> tuple[float, ...]:
        return rows.map_reduce(_few_values_of, few_values, self, name, columns=(name,))

    def check_values(self, values: Sequence[float], name: str = "y") -> None:
        """Refuse a response by the smallest few of its values, ascending; one alone may pass."""

    def coords(self, rows: RawRows) -> dict[str, tuple[str, list[str]]]:
        """Return the labels of the coefficients: ``x[0]``, ``x[1]``, …, and the intercept's."""
        x = column(rows, "x")
        names = [f"x[{d}]" for d in range(1 if x.ndim == 1 else x.shape[1])]
        return {"beta": ("coefficient", names + ["intercept"] * self.intercept)}

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"kind": ..., hyper-parameter: value, ...}``, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            "kind": self.kind,
            **{k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()},
        }


def few_values(*pieces: Sequence[float]) -> tuple[float, ...]:
    """Return the smallest few of the values of all pieces, ascending."""
    return tuple(sorted(set().union(*pieces))[:REMEMBERED])


def _few_values_of(chunk: Chunk, model: AbstractRegression, name: str) -> tuple[float, ...]:
    y = model.possible_response(chunk.columns, chunk.start, name)
    return tuple(np.unique(y)[:REMEMBERED].tolist())


def number_text(value: float) -> str:
    """Return a number as text: ``1``, not ``1.0``."""
    return f"{value:.15g}"
