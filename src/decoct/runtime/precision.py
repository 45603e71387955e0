"""Precision and compilation: float64 whatever the user's JAX flag; short programs compile quickly.

JAX's global ``jax_enable_x64`` flag belongs to the user and is never touched; every entry
point of decoct runs under the scoped switch instead and hands back NumPy arrays.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import equinox as eqx
import jax

P = ParamSpec("P")
R = TypeVar("R")

QUICKLY: Any = {"xla_backend_optimization_level": 1}
if jax.__version_info__ < (0, 11):  # the option is gone since
    QUICKLY["xla_cpu_use_fusion_emitters"] = False
QUICKLY = {name: value for name, value in QUICKLY.items() if name not in os.getenv("XLA_FLAGS", "")}
"""XLA's options for short programs: they compile in two thirds of the time and run a tenth longer.
The two kernels of a pass have XLA's default options. Options in ``XLA_FLAGS`` stay as they are."""


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function`` with 64-bit JAX types, leaving the user's global flag alone."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapped


def compile_quickly(function: Callable[P, R]) -> Callable[P, R]:
    """Compile ``function`` by `QUICKLY`; not for use inside another compiled function."""
    return cast(Any, eqx.filter_jit)(function, compiler_options=QUICKLY)
