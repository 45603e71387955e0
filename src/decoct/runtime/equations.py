"""Operations of traced JAX programs, computed again for other inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def compute_equation(eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return what one operation of a traced program gives for other inputs."""
    with eqn.ctx.manager:
        values = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
    return list(values) if eqn.primitive.multiple_results else [values]
