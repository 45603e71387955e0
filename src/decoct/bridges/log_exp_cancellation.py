"""log(exp(x)) = x, in functions that other packages wrote.

A Poisson rate exp(η) comes back as log(rate), or a log(rate) with 0 log 0 = 0, in its log density.
A compiler must not undo that: for large |η| the two differ, as exp(η) overflows or is 0. Here x is
what was meant, and saves a logarithm for every row and draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, primitives


def simplified(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pure JAX function without logarithms of exponentials.

    Parameters
    ----------
    fn
        Takes and returns pytrees of arrays.
    """

    def wrapped(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*arguments)
        given = [_Known(leaf) for leaf in jax.tree.leaves(arguments)]
        leaves = [known.value for known in _evaluated(closed, given)]
        return jax.tree.unflatten(jax.tree.structure(shape), leaves)

    return wrapped


@dataclass(frozen=True)
class _Known:
    """A value, and x if the value is exp(x)."""

    value: Any
    exponent: Any = None


def _evaluated(closed: ClosedJaxpr, given: Sequence[_Known]) -> list[_Known]:
    """Return the results of a program and of the calls it makes; loops and branches stay."""
    jaxpr: Any = closed.jaxpr
    held = dict(zip(jaxpr.constvars, map(_Known, closed.consts), strict=True))
    held |= dict(zip(jaxpr.invars, given, strict=True))

    def known(atom: Any) -> _Known:
        return _Known(atom.val) if isinstance(atom, Literal) else held[atom]

    for eqn in jaxpr.eqns:
        inputs = [known(atom) for atom in eqn.invars]
        with eqn.ctx.manager:
            held |= dict(zip(eqn.outvars, _results(eqn, inputs), strict=True))
    return [known(atom) for atom in jaxpr.outvars]


def _results(eqn: Any, inputs: list[_Known]) -> list[_Known]:
    """Return what an operation gives."""
    if eqn.primitive is primitives.jit_p:
        return _evaluated(eqn.params["jaxpr"], inputs)
    if eqn.primitive is primitives.log_p and inputs[0].exponent is not None:
        return [_Known(inputs[0].exponent)]
    if _is_xlogy(eqn) and inputs[1].exponent is not None:
        return [_Known(_times(inputs[0].value, inputs[1].exponent))]
    bound = eqn.primitive.get_bind_params(eqn.params)
    # older JAX gives functions apart
    functions, params = bound if isinstance(bound, tuple) else ((), bound)
    values = eqn.primitive.bind(*functions, *(one.value for one in inputs), **params)
    if eqn.primitive is primitives.exp_p and jnp.issubdtype(values.dtype, jnp.floating):
        return [_Known(values, exponent=inputs[0].value)]
    return [_Known(value) for value in (values if eqn.primitive.multiple_results else [values])]


def _is_xlogy(eqn: Any) -> bool:
    """Return whether an operation is JAX's own xlogy, of whose name there may be others."""
    return eqn.primitive is primitives.custom_jvp_call_p and _source(eqn) == _source_of_xlogy()


def _source(eqn: Any) -> str | None:
    """Return the name, file and line of a function with a derivative of its own."""
    return eqn.params["call_jaxpr"].jaxpr.debug_info.func_src_info


@cache
def _source_of_xlogy() -> str:
    made: Any = jax.make_jaxpr(jax.scipy.special.xlogy)(1.0, 1.0)
    (source,) = (_source(eqn) for eqn in made.eqns if eqn.primitive is primitives.custom_jvp_call_p)
    assert source is not None
    return source


def _times(a: Any, x: Any) -> Any:
    """Return a x, 0 where a is 0, in vector code: a choice for every x would take twice as long."""
    most = jnp.where(a == 0.0, jnp.finfo(x.dtype).max, jnp.inf)
    return a * jnp.clip(x, -most, most)
