"""log(exp(x)) = x, in functions that other packages wrote.

A Poisson rate exp(η) comes back as log(rate) in its log density. A compiler must not undo that:
for large |η| the two differ, as exp(η) overflows or is 0. Here x is what was meant, and saves a
logarithm for every row and draw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun, primitives


def simplified(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pure JAX function without logarithms of exponentials.

    Parameters
    ----------
    fn
        Takes and returns pytrees of arrays.
    """

    def wrapped(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(fn, return_shape=True)(*arguments)
        leaves = jaxpr_as_fun(_without_logs(closed))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shape), leaves)

    return wrapped


def _without_logs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the program with every log(exp(x)) replaced by x, at its outermost level."""
    jaxpr: Any = closed.jaxpr
    exponents: dict[Any, Any] = {}
    instead: dict[Any, Any] = {}
    kept = []

    def now(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else instead.get(atom, atom)

    for eqn in jaxpr.eqns:
        inputs = [now(atom) for atom in eqn.invars]
        first = inputs[0] if inputs and not isinstance(inputs[0], Literal) else None
        if eqn.primitive is primitives.log_p and first in exponents:
            instead[eqn.outvars[0]] = exponents[first]
            continue
        if eqn.primitive is primitives.exp_p:
            exponents[eqn.outvars[0]] = inputs[0]
        kept.append(eqn.replace(invars=inputs))
    outputs = [now(atom) for atom in jaxpr.outvars]
    return closed.replace(jaxpr=jaxpr.replace(eqns=kept, outvars=outputs))
