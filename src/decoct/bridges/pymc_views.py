"""PyTensor's nodes that pass their input on."""

from __future__ import annotations

from typing import Any

from pytensor.compile.ops import ViewOp
from pytensor.scalar.basic import Identity
from pytensor.tensor.elemwise import Elemwise


def without_views(node: Any) -> Any:
    """Return the node that made the value, or None if none did."""
    while node is not None and _is_view(node.op):
        node = node.inputs[0].owner
    return node


def _is_view(op: Any) -> bool:
    return isinstance(op, ViewOp) or (
        isinstance(op, Elemwise) and isinstance(op.scalar_op, Identity)
    )
