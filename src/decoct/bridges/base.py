"""What the bridges share: a model of another framework, seen as a prior and one number per row.

A bridge answers three pure functions of the unconstrained parameters θ and some rows x_n,

    potentials(θ, x) = (f_1(θ), ..., f_n(θ)),   log_prior(θ, x) = log π₀(θ),   constrain(θ).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.bridges.likelihood_params import LikelihoodParams
from decoct.bridges.per_row_latents import check_latents
from decoct.bridges.probing import as_arrays
from decoct.data.base import Rows
from decoct.data.encoded import encoded
from decoct.errors import ModelError, RequestError
from decoct.models.base import (
    AbstractModel,
    EncodedColumns,
    Params,
    RawRows,
    column,
    numeric_columns,
)
from decoct.models.index_bounds import check_indices
from decoct.models.parameters import NoiseScale, ParameterSpace
from decoct.models.site import GaussianSite
from decoct.runtime.precision import float64


class Original:
    """The user's rows and model, which decoct's model can return but does not contain.

    As a pytree this has neither leaves nor identity, and pickled it is empty: compiled functions,
    their caches and messages to workers never contain the data.
    """

    def __init__(self, rows: Rows | None = None, model: Any = None) -> None:
        self.rows, self.model = rows, model

    def __reduce__(self) -> tuple[type[Original], tuple[()]]:
        return Original, ()


jax.tree_util.register_pytree_node(Original, lambda _: ((), None), lambda *_: Original())


@dataclass(frozen=True)
class InputColumns:
    """The encoding of a bridge's inputs: each as numbers, float64 or whole."""

    columns: tuple[str, ...]

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        return numeric_columns({name: column(rows, name) for name in self.columns}, start)


class BridgeModel(AbstractModel):
    """A model of another framework. Sub-classes add what evaluates it.

    Attributes
    ----------
    name
        What the framework calls it; in coreset files.
    start
        Where to start, in unconstrained space: name -> array.
    inputs
        Names of the row-wise inputs.
    axes
        Constrained names, and the name of each of their axes.
    original
        The rows, and for PyMC the model, that this was made from.
    likelihood_params
        What of the parameters the rows depend on, in which a site is a quadratic: names and shapes.
    template
        A few encoded rows, for evaluating what depends on no row.
    improper
        Names of the parameters whose prior has no integral.
    program
        The model's functions of parameters and rows: `potentials`, `log_prior` and `values`, all of
        them by `evaluate`, and the inverse of `values`, `unconstrained`.
    named
        Names of the constrained values that do not depend on the rows.
    """

    kind: ClassVar[str]
    predicts: ClassVar[str]
    """What predicts in that framework."""

    name: str = eqx.field(static=True)
    start: dict[str, np.ndarray]
    inputs: tuple[str, ...] = eqx.field(static=True)
    axes: tuple[tuple[str, tuple[str, ...]], ...] = eqx.field(static=True)
    original: Original
    likelihood_params: LikelihoodParams = eqx.field(static=True)
    template: dict[str, np.ndarray]
    improper: tuple[str, ...] = eqx.field(static=True)
    program: Any = eqx.field(static=True)
    named: tuple[str, ...] = eqx.field(static=True)

    def potentials(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        """Return Σ over what is observed of log p(row n), in nats; pure JAX."""
        return self.program.potentials(params, rows)

    def log_prior(self, params: Params) -> Float[Array, ""]:
        """Return the log density of everything else, Jacobians included; pure JAX."""
        return _log_prior(self.program, params, as_arrays(self.template))

    def constrain(self, params: Params) -> dict[str, Array]:
        """Return latent and deterministic quantities on their natural scale.

        Those that depend on the rows are left out: they are no parameters. The framework's own
        functions give them for any rows, from the same draws.
        """
        values = self.program.values(params, as_arrays(self.template))
        return {name: jnp.asarray(values[name]) for name in self.named}

    @property
    def rows(self) -> Rows:
        """The row-wise inputs as a table, for `decoct.build` and `decoct.check`."""
        if self.original.rows is None:
            raise RequestError(
                "This model came from another process or a compiled function and no longer has "
                "its rows; pass the table itself."
            )
        return self.original.rows

    @property
    def columns(self) -> tuple[str, ...]:
        return self.inputs

    def init(self, rows: RawRows) -> Params:
        return self.start

    def to_likelihood_params(self, params: Params) -> Params:
        """Return φ(θ), a mapping of the names in `likelihood_params` -> array; pure JAX.

        In float64 for arrays of NumPy's; JAX's have the precision that JAX is set to.
        """
        is_numpy = not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
        with jax.enable_x64(True) if is_numpy else nullcontext():
            rows = as_arrays(self.template)
            return self.likelihood_params.compute(self.potentials, params, rows)

    def to_effects(self, params: Params) -> Params:
        rows = as_arrays(self.template)
        return self.likelihood_params.in_own_units(self.potentials, params, rows)

    @property
    def noise_scale(self) -> NoiseScale | None:
        return self.likelihood_params.noise

    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        """Return the potential f_n of every row at likelihood parameters φ, in nats; pure JAX."""
        return self.likelihood_params.evaluate(self.potentials, params, self.start, dict(rows))

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        """Return the inputs as numbers: float64, integers and booleans as they are."""
        return InputColumns(self.inputs).encode(rows, start)

    def predict(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        """Refused: the framework predicts."""
        raise RequestError(
            f"A model of {self.kind} predicts in {self.kind}: give the draws to {self.predicts}."
        )

    def check(self, rows: Rows) -> None:
        """Refuse group numbers outside their array, and a latent for every row; two passes."""
        self.check_rows(rows)
        check_latents(self, self.start, rows)

    def check_rows(self, rows: Rows) -> None:
        """Refuse group numbers outside their array, which JAX would clamp; one pass."""
        check_indices(self, self.start, encoded(rows, self))

    @float64
    def flattened(
        self, given: Mapping[str, Any], what: str, source: str
    ) -> Float[np.ndarray, "chains S d"]:
        """Return a framework's draws, name -> (chains, S, ...), as flat unconstrained ones.

        ``what`` the names are of, and the ``source`` of the draws, are for the message about a
        missing one.
        """
        missing = [name for name in self.start if name not in given]
        if missing:
            raise ModelError(
                f"The draws lack the {what} '{missing[0]}'; give what {source} returned."
            )
        values = {name: np.asarray(given[name], dtype=np.float64) for name in self.start}
        return np.asarray(_unconstrain(self, values))

    def dims(self) -> dict[str, list[str]]:
        return {name: list(names) for name, names in self.axes}

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the parameters' shapes: a file cannot store the model itself."""
        shapes = {name: list(np.shape(value)) for name, value in self.start.items()}
        return {"kind": self.kind, "name": self.name, "parameters": shapes}


@eqx.filter_jit
def _unconstrain(model: Any, values: Mapping[str, Any]) -> Float[Array, "chains S d"]:
    def one(values: Mapping[str, Array]) -> Float[Array, " d"]:
        params = model.program.unconstrained(values, as_arrays(model.template))
        return ParameterSpace.ravel({name: params[name] for name in model.start})

    return jax.vmap(jax.vmap(one))(values)


class SiteDensity:
    """The log density of a coreset's site as a function of θ: name -> array, to a number; pure JAX.

    The site is a quadratic in the flat φ(θ) of the model.
    """

    def __init__(self, model: BridgeModel, site: GaussianSite) -> None:
        # a copy: JAX remembers arrays that a function closes over, in the framework's precision
        self.model, self.site = model, copy.deepcopy(site)

    def __call__(self, params: Params) -> Float[Array, ""]:
        phi = self.model.to_likelihood_params(params)
        return self.site.log_density(ParameterSpace.ravel(phi))


@partial(jax.jit, static_argnums=0)  # so that programs which contain it trace it once
def _log_prior(program: Any, params: Params, rows: Mapping[str, Array]) -> Float[Array, ""]:
    return program.log_prior(params, rows)
