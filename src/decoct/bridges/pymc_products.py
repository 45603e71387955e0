"""Products of a matrix and a vector as such: PyTensor makes them products of two matrices.

XLA gives the draws' axis of such a product another place in memory, and what is computed from it
comes to half as much again in a pass over the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot


class MatrixVector(Op):
    """A @ v, for JAX."""

    __props__ = ("dtype",)

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def make_node(self, *inputs: Any) -> Apply:
        matrix, vector = inputs
        shape = matrix.type.shape[:1]
        return Apply(self, [matrix, vector], [vector.type.clone(dtype=self.dtype, shape=shape)()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = np.asarray(inputs[0] @ inputs[1], dtype=self.dtype)


def register() -> None:
    """Tell PyTensor's JAX backend, once it is loaded, what `MatrixVector` is."""
    from pytensor.link.jax.dispatch.basic import jax_funcify

    translate: Any = jax_funcify
    if translate.dispatch(MatrixVector) is translate.dispatch(object):
        translate.register(MatrixVector)(_translated)


def _translated(op: MatrixVector, **options: Any) -> Callable[[Array, Array], Array]:
    return lambda matrix, vector: jnp.matmul(matrix, vector).astype(op.dtype)


@node_rewriter([DimShuffle])
def _as_vector(fgraph: FunctionGraph, node: Any) -> list[Any] | bool:
    """Replace squeeze(dot(A, v[:, None])) by A @ v."""
    product: Any = node.inputs[0].owner
    if node.op.new_order != (0,) or product is None or not isinstance(product.op, Dot):
        return False
    matrix, column = product.inputs
    widened: Any = column.owner
    if widened is None or not isinstance(widened.op, DimShuffle):
        return False
    if widened.op.new_order != (0, "x") or matrix.type.ndim != 2:
        return False
    return [MatrixVector(node.outputs[0].type.dtype)(matrix, widened.inputs[0])]


as_vectors = in2out(_as_vector)
