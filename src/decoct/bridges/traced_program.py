"""The potentials of a model as a traced program: what in it is of parameters alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array, Float

from decoct.bridges.rewrites import rewrite
from decoct.models.base import Params
from decoct.models.index_bounds import compute_equation

Potentials = Callable[[Params, Mapping[str, Any]], Float[Array, " n"]]
"""A pure JAX function of parameters and rows: one number per row."""

CONVERSION = "convert_element_type"
"""The operation of which there are more or fewer in another floating-point precision."""

LOOPS = ("scan", "while")

MOVES = frozenset(
    {"broadcast_in_dim", "concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "pad"}
    | {"reshape", "rev", "scatter", "slice", "split", "squeeze", "transpose"}
)
"""Operations that only concatenate or slice arrays."""

LINEAR = MOVES | {"add", "sub", "neg", "mul", "div", "dot_general", "reduce_sum", CONVERSION}
"""Operations that are linear in the entries of one array of parameters."""

PRODUCTS = ("mul", "dot_general")
"""Operations that multiply entries of parameters, if two inputs depend on these."""

PARAMETERS, ROWS = 1, 2
"""Kinds of values: of parameters alone, of rows; 0 is a constant."""


class TracedProgram:
    """The potentials as a program: its operations, and the values that are of parameters alone.

    Attributes
    ----------
    leaves, rows, outputs
        Variables of θ, of the rows' columns, and of the result.
    equations
        The operations that the result needs, in order.
    values
        The values of parameters alone: θ's leaves, then what is computed from them.
    places
        Those in their order that no conversion of precision gives: the same in any precision.
    frontier
        Those that the rows' operations use.
    operations
        Names of the operations that compute them, conversions of precision left out.
    loops
        Parameters enter a loop over rows, such as `jax.lax.map`.
    products
        Rows multiply entries of arrays of parameters by other parameters: τ z[d, i] with τ = t[d].
    """

    def __init__(self, potentials: Potentials, params: Params, rows: Mapping[str, Any]) -> None:
        closed = jax.make_jaxpr(rewrite(potentials))(params, dict(rows))
        jaxpr: Any = closed.jaxpr
        self.constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        n = len(jax.tree.leaves(params))
        self.leaves, self.rows = list(jaxpr.invars[:n]), list(jaxpr.invars[n:])
        self.outputs = list(jaxpr.outvars)
        self.equations = needed_for(jaxpr.eqns, self.outputs, ())
        kinds = dict.fromkeys(self.leaves, PARAMETERS) | dict.fromkeys(self.rows, ROWS)
        self.of_parameters: list[Any] = []
        frontier = dict.fromkeys(variables_of(self.outputs))
        self.loops = self.products = False
        unknown: set[Any] = set()  # of parameters and of rows
        picked: set[Any] = set()  # those linear in entries of arrays of parameters
        for eqn in self.equations:
            inputs = variables_of(eqn.invars)
            kind = max((kinds.get(v, 0) for v in inputs), default=0)
            kinds |= dict.fromkeys(eqn.outvars, kind)
            if kind == PARAMETERS:
                self.of_parameters.append(eqn)
            elif kind == ROWS:
                frontier |= dict.fromkeys(inputs)
                name = eqn.primitive.name
                enters = {v for v in inputs if kinds.get(v) == PARAMETERS}
                factors = enters | unknown.intersection(inputs)
                is_linear = name in LINEAR and not picked.isdisjoint(inputs)
                self.loops |= bool(enters) and name in LOOPS
                self.products |= is_linear and name in PRODUCTS and len(factors) > 1
                unknown |= set(eqn.outvars) if factors else set()
                picked |= set(eqn.outvars) if is_linear or (enters and name == "gather") else set()
        made = [v for eqn in self.of_parameters for v in eqn.outvars]
        self.values = [*self.leaves, *made]
        self.frontier = [v for v in frontier if kinds.get(v) == PARAMETERS]
        counted = [eqn for eqn in self.of_parameters if eqn.primitive.name != CONVERSION]
        self.places = [*self.leaves, *(v for eqn in counted for v in eqn.outvars)]
        self.operations = tuple(eqn.primitive.name for eqn in counted)

    @property
    def unread(self) -> str | None:
        """Why φ may have more parameters in it than the rows need; None where it has not."""
        if self.loops:
            return "decoct does not read loops over rows, such as jax.lax.map; jax.vmap it does"
        if self.products:
            return (
                "rows multiply entries of an array by another parameter; if that is the scale of "
                "effects, multiply before the index, as in (tau * z)[group]"
            )
        return None

    def given(self, params: Params) -> dict[Any, Any]:
        """Return the variables of θ with their values."""
        return dict(zip(self.leaves, jax.tree.leaves(params), strict=True))

    def compute(self, wanted: Sequence[Any], given: Mapping[Any, Any]) -> list[Array]:
        """Return variables computed from the values of others; pure JAX."""
        values = self.constants | {v: jnp.asarray(x, v.aval.dtype) for v, x in given.items()}
        for eqn in needed_for(self.equations, wanted, given):
            inputs = [a.val if isinstance(a, Literal) else values[a] for a in eqn.invars]
            for variable, value in zip(eqn.outvars, compute_equation(eqn, inputs), strict=True):
                values.setdefault(variable, value)
        return [a.val if isinstance(a, Literal) else values[a] for a in wanted]


def variables_of(atoms: Sequence[Any]) -> list[Any]:
    return [a for a in atoms if not isinstance(a, Literal)]


def needed_for(equations: Sequence[Any], wanted: Sequence[Any], given: Any) -> list[Any]:
    """Return the operations that give what is wanted where some values are given."""
    open_ = {v for v in variables_of(wanted) if v not in given}
    kept = []
    for eqn in reversed(equations):
        if open_.isdisjoint(eqn.outvars):
            continue
        kept.append(eqn)
        open_ |= {v for v in variables_of(eqn.invars) if v not in given}
    return kept[::-1]
