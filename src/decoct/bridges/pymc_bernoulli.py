"""Bernoulli responses with logits, evaluated as one log σ(±logit).

    log p(y | η) = log σ((2y − 1) η),   −∞ where y is neither 0 nor 1.

The same numbers as PyMC's, whose choice between log p and log(1 − p), and guards of p, keep XLA
from turning exp and log into vector code: a pass over the data would cost several times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Array
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.scalar.math import Sigmoid
from pytensor.tensor.basic import as_tensor_variable, switch
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import eq, or_
from pytensor.tensor.random.basic import BernoulliRV

from decoct.bridges.pymc_views import without_views
from decoct.models.logistic import log_sigmoid


class LogSigmoid(Op):
    """log σ(x), elementwise; for JAX, which differentiates it."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        x: Any = as_tensor_variable(inputs[0])
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = np.asarray(-np.logaddexp(0.0, -inputs[0]))

    def infer_shape(self, *given: Any) -> Any:
        # older PyTensor gives the graph, the node and the shapes, newer no graph
        return given[-1]


def register() -> None:
    """Tell PyTensor's JAX backend, once it is loaded, what `LogSigmoid` is."""
    from pytensor.link.jax.dispatch.basic import jax_funcify

    translate: Any = jax_funcify
    if translate.dispatch(LogSigmoid) is translate.dispatch(object):
        translate.register(LogSigmoid)(_translated)


def density(rv: Any, value: Any) -> Any:
    """Return the log density of a Bernoulli variable that was given logits, or None."""
    logits = _logits(rv)
    return None if logits is None else _signed(value, logits)


def _signed(value: Any, logits: Any) -> Any:
    # compared, not cast: XLA on CPU has no vector code from int64 to float64
    one, none = eq(value, 1), eq(value, 0)
    possible: Any = switch(or_(one, none), 0.0, -np.inf)
    return LogSigmoid()(switch(one, 1.0, -1.0) * logits) + possible


def _logits(rv: Any) -> Any:
    """Return the logits of a Bernoulli variable that was given them, or None."""
    if rv.owner is None or not isinstance(rv.owner.op, BernoulliRV):
        return None
    node = without_views(rv.owner.inputs[2].owner)
    if node is None or not isinstance(node.op, Elemwise):
        return None
    return node.inputs[0] if isinstance(node.op.scalar_op, Sigmoid) else None


def _translated(op: Any, **options: Any) -> Callable[[Array], Array]:
    return log_sigmoid
