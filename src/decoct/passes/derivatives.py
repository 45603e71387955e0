"""Value, gradient and Hessian of a scalar function, traced once."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jaxtyping import Array, Float


def to_second_order(
    function: Callable[[Float[Array, " d"]], Float[Array, ""]], z: Float[Array, " d"]
) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, "d d"]]:
    """Return f(z), ∇f(z) and ∇²f(z), forward over reverse.

    One trace holds all three, which compiles faster than one each.
    """

    def gradient_first(z: Float[Array, " d"]) -> tuple[Array, tuple[Array, Array]]:
        value, gradient = jax.value_and_grad(function)(z)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(gradient_first, has_aux=True)(z)
    return value, gradient, hessian
