"""A model from the user's own JAX functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.data.base import Rows
from decoct.data.encoded import encoded
from decoct.errors import DecoctError, ModelError, RowsError
from decoct.models.base import (
    AbstractModel,
    EncodedColumns,
    Params,
    PerDraw,
    PerRow,
    RawRows,
    numeric_columns,
)
from decoct.models.index_bounds import check_indices, has_indices
from decoct.models.parameters import ParameterSpace


class Model(AbstractModel):
    """A model from plain JAX functions.

    Parameters
    ----------
    log_likelihood
        ``log_likelihood(params, rows) -> (n,)``: one value per row, in nats.
    log_prior
        ``log_prior(params) -> scalar``.
    init
        A pytree of arrays: where to start, in unconstrained space.
    columns
        Names of the columns that ``log_likelihood`` is given, which are all that is read of a
        file, and all that the coreset keeps of its rows. None for every column of the table; all
        of them must then be numeric.
    likelihood_params
        ``likelihood_params(params) -> φ``, a pytree of what the rows depend on; ``log_likelihood``
        is then given φ in place of ``params``. For multilevel models: effects of groups, not their
        scales. None: the parameters themselves.
    predict
        ``predict(params, rows) -> (n,)``: the expected response of each row, for
        `Coreset.predict`; pure JAX. It is given φ where ``log_likelihood`` is.
    simulate
        ``simulate(rng, expected, params, rows) -> (n, S)``: new responses at S draws, with NumPy's
        ``rng``, such as ``rng.normal(expected, np.exp(params["log_sigma"]))``. ``expected`` (n, S)
        is from ``predict``; every array of ``params`` has the draws on its first axis.

    Raises
    ------
    ModelError
        Something that is called is no function, ``init`` has something other than numbers, or
        ``columns`` is not a list of names; later, ``log_likelihood`` asks for a column that it
        does not name, or mixes rows.
    RowsError
        At a build, a group number lies outside its array, which JAX would clamp.

    Examples
    --------
    >>> import decoct, jax.numpy as jnp, numpy as np
    >>> def log_likelihood(params, rows):
    ...     return -0.5 * (rows["y"] - params["mu"]) ** 2
    >>> model = decoct.Model(log_likelihood, lambda p: -0.5 * p["mu"] ** 2, {"mu": 0.0})
    >>> rows = decoct.rows({"y": np.linspace(-1.0, 3.0, 500)})
    >>> round(float(decoct.laplace(model, rows).mean[0]), 3)
    0.998
    """

    _log_likelihood: Callable[..., Any]
    _log_prior: Callable[..., Any]
    _init: Params
    _columns: tuple[str, ...] | None = eqx.field(static=True)
    _likelihood_params: Callable[..., Any] | None = None
    _predict: Callable[..., Any] | None = None
    _simulate: Callable[..., Any] | None = None

    def __init__(
        self,
        log_likelihood: Callable[[Params, Mapping[str, Array]], Array],
        log_prior: Callable[[Params], Array],
        init: Params,
        columns: Sequence[str] | None = None,
        likelihood_params: Callable[[Params], Params] | None = None,
        predict: Callable[[Params, Mapping[str, Array]], Array] | None = None,
        simulate: Callable[..., np.ndarray] | None = None,
    ) -> None:
        functions = {"log_likelihood": log_likelihood, "log_prior": log_prior}
        if likelihood_params is not None:
            functions["likelihood_params"] = likelihood_params
        for name, given in functions.items():
            if not callable(given):
                raise ModelError(f"{name} is {given!r}; give a function of the parameters.")
        self._log_likelihood = log_likelihood
        self._log_prior = log_prior
        self._init = jax.tree.map(_as_array, init)
        self._columns = None if columns is None else _names(columns)
        self._likelihood_params = likelihood_params
        self._predict = predict
        self._simulate = simulate

    @property
    def columns(self) -> tuple[str, ...] | None:
        return self._columns

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        return numeric_columns(rows, start, self._columns)

    def init(self, rows: RawRows) -> Params:
        return self._init

    def to_likelihood_params(self, params: Params) -> Params:
        return params if self._likelihood_params is None else self._likelihood_params(params)

    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> PerRow:
        missing = (
            "The log-likelihood asks for '{}', which is neither a parameter of init nor among the "
            "model's columns ({}); name a column in columns= of decoct.Model."
        )
        with _explain(rows, ModelError, missing):
            return self._log_likelihood(params, rows)

    def log_prior(self, params: Params) -> Float[Array, ""]:
        return jnp.asarray(self._log_prior(params), dtype=jnp.float64)

    def check_rows(self, rows: Rows) -> None:
        """Refuse likelihood parameters that are one for each row, and group numbers outside arrays.

        JAX would clamp such numbers. A pass, if any.
        """
        table = encoded(rows, self)
        phi = jax.tree.leaves(jax.eval_shape(self.to_likelihood_params, self._init))
        most = max((leaf.size for leaf in phi), default=0)
        if ParameterSpace.of(self._init).dim < table.n_rows <= most:
            raise ModelError(
                f"likelihood_params returns an array of {most:,} numbers for {table.n_rows:,} "
                "rows; it must not depend on rows. Return the effects of groups, and index them "
                "in log_likelihood by a column."
            )
        if has_indices(self, self._init, table.take([0])):
            check_indices(self, self._init, table)

    def encode_explanatory(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        return numeric_columns(rows, start)

    def predict(self, params: Params, rows: Mapping[str, Array]) -> PerRow:
        if self._predict is None:
            return super().predict(params, rows)
        missing = (
            "predict asks for '{}', which is neither a parameter of the model nor a column of the "
            "new rows ({})."
        )
        with _explain(rows, RowsError, missing):
            return self._predict(params, rows)

    def simulate(
        self, rng: np.random.Generator, expected: PerDraw, params: Params, rows: EncodedColumns
    ) -> PerDraw:
        if self._simulate is None:
            return super().simulate(rng, expected, params, rows)
        return self._simulate(rng, expected, params, rows)

    def to_dict(self) -> dict[str, Any]:
        columns = {} if self._columns is None else {"columns": list(self._columns)}
        return {**super().to_dict(), **columns}


@contextmanager
def _explain(rows: Mapping[str, Any], kind: type[DecoctError], missing: str) -> Iterator[None]:
    """Say what to do where a column is not there (its name fills ``missing``), or floats index."""
    try:
        yield
    except KeyError as error:
        name = error.args[0] if error.args else None
        if not isinstance(name, str) or name in rows:
            raise
        raise kind(missing.format(name, ", ".join(rows) or "none")) from error
    except TypeError as error:
        if not str(error).startswith("Indexer must have integer"):
            raise
        raise RowsError(
            "The model indexes an array with a column of floats; make group numbers whole, as "
            "table['group'].astype(int) does (a missing value makes a column floats)."
        ) from error


def _as_array(leaf: Any) -> np.ndarray:
    try:
        return np.asarray(leaf, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"init must hold arrays of numbers, such as {{'beta': np.zeros(3)}}, not {leaf!r}."
        ) from error


def _names(columns: Sequence[str]) -> tuple[str, ...]:
    names: Any = columns
    is_list = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    if not is_list or not names or len(set(names)) < len(names):
        raise ModelError(
            "columns must be a list of different names, at least one, such as ('x', 'y'), not "
            f"{columns!r}."
        )
    return tuple(names)
