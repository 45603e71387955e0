"""Models: a prior and one log-likelihood value per row.

π_w(θ) ∝ exp(Σ_n w_n f_n(θ)) π₀(θ), with f_n the potential (log-likelihood) of row n
(Campbell & Beronov 2019, Eq. 1-2). A model has hyper-parameters only: never data, never a key.

Checks of raw columns that several models share are here too; each failure names column and row.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from decoct.data.base import Rows, check_columns
from decoct.errors import BadValueError, RequestError, RowsError
from decoct.models.parameters import NoiseScale

Params = Any
"""A pytree of unconstrained real arrays."""

RawRows = Mapping[str, np.ndarray]
"""Columns as the user gave them: name -> array with the rows on axis 0."""

EncodedColumns = dict[str, np.ndarray]
"""Numeric columns as `AbstractModel.log_likelihood` wants them, rows on axis 0."""

PerRow = Float[Array, " n"]
PerDraw = Float[np.ndarray, "n S"]
"""A number per row; a number per row and draw."""


def is_of_functions(spec: Mapping[str, Any]) -> bool:
    """Return whether a model is the user's functions, which a file names and cannot store.

    ``spec`` is what its `to_dict` returns.
    """
    return "name" in spec


class AbstractModel(eqx.Module):
    """A prior and one log-likelihood value per row, over unconstrained parameters.

    Sub-classes are `equinox.Module`s. Numeric hyper-parameters should be stored as NumPy arrays
    (use ``eqx.field(converter=...)``) so that changing them does not recompile anything.

    Examples
    --------
    >>> import decoct
    >>> isinstance(decoct.models.LogisticRegression(), decoct.models.AbstractModel)
    True
    """

    @abc.abstractmethod
    def init(self, rows: RawRows) -> Params:
        """Return a starting point; its structure and shapes define the parameters.

        Parameters
        ----------
        rows
            A few *encoded* rows (at least one), for their shapes only.
        """

    @abc.abstractmethod
    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> PerRow:
        """Return the potential f_n of every row at likelihood parameters φ, in nats; pure JAX."""

    def to_likelihood_params(self, params: Params) -> Params:
        """Return φ(θ), the pytree of what the rows depend on; pure JAX. θ itself by default.

        Scales of a multilevel model's effects, on which no row depends, are left to the prior. A
        site is a quadratic in φ.
        """
        return params

    def to_effects(self, params: Params) -> Params:
        """Return φ(θ) in its own units, in which samplers centre effects; pure JAX."""
        return self.to_likelihood_params(params)

    @property
    def noise_scale(self) -> NoiseScale | None:
        """Which entries of φ are in units of the noise; None where none are."""
        return None

    def potentials(self, params: Params, rows: Mapping[str, Array]) -> PerRow:
        """Return the potential f_n(θ) of every row, in nats; pure JAX."""
        return self.log_likelihood(self.to_likelihood_params(params), rows)

    @abc.abstractmethod
    def log_prior(self, params: Params) -> Float[Array, ""]:
        """Return log π₀(θ), Jacobians of the unconstraining transform included; pure JAX."""

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        """Turn raw columns into the numeric arrays of `log_likelihood`, on the host.

        Stateless over rows: encoding a table in pieces gives the pieces of the encoded table.

        Parameters
        ----------
        rows
            Raw columns of one chunk.
        start
            Global number of the first row of the chunk, or the global numbers of all of them;
            used to name bad rows.

        Raises
        ------
        RowsError
            A column is missing, or a value cannot be used; the message names column and row.
        """
        return numeric_columns(rows, start)

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the raw columns `encode` needs; None for all of them."""
        return None

    def predict(self, params: Params, rows: Mapping[str, Array]) -> PerRow:
        """Return the expected response of every row at likelihood parameters φ; pure JAX.

        ``rows`` come from `encode_explanatory`.
        """
        raise RequestError(
            f"A {type(self).__name__} does not predict new rows; give it a function "
            "predict(params, rows)."
        )

    def simulate(
        self, rng: np.random.Generator, expected: PerDraw, params: Params, rows: EncodedColumns
    ) -> PerDraw:
        """Return a new response of every row at each of S draws; NumPy.

        Parameters
        ----------
        rng
            Where all randomness comes from.
        expected
            What `predict` returned at these draws.
        params
            The likelihood parameters φ; every array has the draws on its first axis.
        rows
            From `encode_explanatory`.
        """
        raise RequestError(
            f"A {type(self).__name__} cannot simulate new responses; give it a function "
            "simulate(rng, expected, params, rows), or ask for kind='mean'."
        )

    @property
    def explanatory(self) -> tuple[str, ...] | None:
        """Names of the raw columns `encode_explanatory` needs.

        None: those that the coreset's rows have, as far as they are there.
        """
        return None

    def encode_explanatory(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        """Return the arrays that `predict` takes: `encode` for rows without the response."""
        return self.encode(rows, start)

    def design_matrix(self, rows: Mapping[str, Array]) -> Float[Array, "n d"] | None:
        """Return X where f_n depends on the flat φ through X_n·φ alone, else None.

        ``rows`` are encoded; pure JAX. With it, `log_likelihood_at` must give the potentials, and
        averages of their derivatives over a Gaussian become sums of nine terms.
        """
        return None

    def log_likelihood_at(self, predictor: PerRow, rows: Mapping[str, Array]) -> PerRow:
        """Return f_n at values of the linear predictor X_n·φ; for models with `design_matrix`."""
        raise NotImplementedError(f"{type(self).__name__} has no linear predictor.")

    def check(self, rows: Rows) -> None:
        """Refuse a table as a whole (labels not two-valued, constant response, ...).

        May pass over the data once. Raises `RowsError`. Without more, what `check_rows` refuses.
        """
        self.check_rows(rows)

    def check_rows(self, rows: Rows) -> None:
        """Refuse single rows, of a table that comes in pieces: `check` sees it whole.

        May pass over the rows once. Raises `RowsError`.
        """

    def distinct(self, rows: Rows) -> tuple[float, ...]:
        """Return the smallest few values of the response, ascending; () where none is excluded.

        For `check_values` of tables that come in pieces. May pass over the rows once.
        """
        return ()

    def check_values(self, values: Sequence[float]) -> None:
        """Refuse a response that has these among its values (`few_values` of all pieces).

        Raises `RowsError`.
        """

    def constrain(self, params: Params) -> dict[str, Array]:
        """Return named quantities on their natural scale; pure JAX."""
        if isinstance(params, dict):
            return params
        leaves = jax.tree_util.tree_flatten_with_path(params)[0]
        return {jax.tree_util.keystr(path).strip(".[]'") or "params": v for path, v in leaves}

    def coords(self, rows: RawRows) -> dict[str, tuple[str, list[str]]]:
        """Return, for a constrained name, its dimension name and the labels along it."""
        return {}

    def dims(self) -> dict[str, list[str]]:
        """Return, for a constrained name, the name of each of its axes; all labels are numbers."""
        return {}

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> AbstractModel:
        """Rebuild a model from its ``to_dict()``."""
        return cls(**{name: value for name, value in spec.items() if name != "kind"})

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description with every hyper-parameter, for the coreset file."""
        return {"kind": "custom", "name": type(self).__name__}


def forwarded(inner: str, name: str, kind: type = AbstractModel) -> Any:
    """Return a method that calls the one of this name of the model in the field ``inner``."""

    def method(self: Any, *args: Any, **options: Any) -> Any:
        return getattr(getattr(self, inner), name)(*args, **options)

    method.__doc__ = getattr(kind, name).__doc__
    return method


def require_model(model: Any) -> None:
    """Refuse anything but a model of decoct, before any row is read."""
    if isinstance(model, type):
        raise RequestError(
            f"model is the class {model.__name__}; give an instance, such as {model.__name__}(...)."
        )
    if not isinstance(model, AbstractModel):
        raise RequestError(
            f"A {type(model).__name__} is not a model with a log-likelihood for each row; give a "
            "model of decoct.models, decoct.Model, decoct.from_numpyro or decoct.from_pymc. "
            "For mixtures of Gaussians use decoct.mixture.build."
        )


def row_number(start: int | np.ndarray, offset: int) -> int:
    """Return the global number of row ``offset`` of a chunk."""
    return int(start + offset) if np.ndim(start) == 0 else int(np.asarray(start)[offset])


def column(rows: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a column, or say which ones there are."""
    check_columns([name], tuple(rows))
    return np.asarray(rows[name])


def numeric(rows: Mapping[str, np.ndarray], name: str, start: int | np.ndarray = 0) -> np.ndarray:
    """Return a column as finite numbers: float64 for floats, integers and booleans unchanged."""
    values = column(rows, name)
    if values.dtype.kind not in "fiub":
        raise RowsError(
            f"Column '{name}' is not numeric (its type is {values.dtype}); "
            "encode it as numbers or use a formula with C(...)."
        )
    if values.dtype.kind != "f":
        return values
    finite = np.isfinite(values)
    if not finite.all():
        bad = int(np.argmin(finite.reshape(len(values), -1).all(axis=1)))
        what = "NaN" if np.isnan(values[bad]).any() else "an infinite value"
        raise BadValueError(
            f"has {what}", row_number(start, bad), "; drop or impute such rows.", name
        )
    return values.astype(np.float64, copy=False)


def numeric_columns(
    rows: Mapping[str, np.ndarray],
    start: int | np.ndarray = 0,
    names: Iterable[str] | None = None,
) -> dict[str, np.ndarray]:
    """Return these columns (None: all) as finite numbers."""
    return {name: numeric(rows, name, start) for name in (rows if names is None else names)}
