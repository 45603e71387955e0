"""float64 inside, whatever the user's JAX flag.

JAX's global ``jax_enable_x64`` flag belongs to the user and is never touched; every entry
point of decoct runs under the scoped switch instead and hands back NumPy arrays.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function`` with 64-bit JAX types, leaving the user's global flag alone."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapped
