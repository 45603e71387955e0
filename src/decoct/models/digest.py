"""A digest of a model's functions, by which a model is known again.

`AbstractModel.to_dict` describes hyper-parameters, and a model that is made of functions has none:
every `decoct.Model` has the same description. Its functions are told apart by what they compute,

    sha256(jaxpr of f(θ, x), jaxpr of log π₀(θ), the constants in both, θ₀, arrays of the model),

with jaxpr JAX's own text of a traced function. The same functions written down twice agree, in
another process too; another formula, or another number caught in a closure, does not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from decoct.models.base import AbstractModel
from decoct.runtime.precision import float64

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where a function that JAX mentions lies in memory: another place in every process."""

_NUMBERS = (np.ndarray, np.generic, jax.Array, bool, int, float, complex)
"""What counts of a model's own entries; its functions do by what they compute."""


def identity(model: AbstractModel, rows: Mapping[str, np.ndarray]) -> str:
    """Return a model's description with the digest of its functions; see `functions_digest`."""
    return f"{model.to_dict()!r} with functions {functions_digest(model, rows)}"


@float64
def functions_digest(model: AbstractModel, rows: Mapping[str, np.ndarray]) -> str:
    """Return a digest of the log-likelihood, the prior and the start of a model.

    It names the version of JAX, because another one may write the same function differently.

    Parameters
    ----------
    model
        The model.
    rows
        A few encoded rows (at least one), for their shapes and types only.

    Notes
    -----
    A function that JAX calls on the host (``jax.pure_callback``) counts by its name alone, and the
    rules of a ``jax.custom_jvp`` do not count.
    """
    start = model.init(rows)
    values, structure = jax.tree.flatten(start)
    digest = hashlib.sha256(str(structure).encode())
    parts = [
        _traced(lambda params, some: model.log_likelihood(params, some), start, dict(rows)),
        _traced(lambda params: model.log_prior(params), start),
        [*values, *(leaf for leaf in jax.tree.leaves(model) if isinstance(leaf, _NUMBERS))],
    ]
    for part in parts:
        for one in part:
            digest.update(one.encode() if isinstance(one, str) else _array_bytes(one))
    return f"{digest.hexdigest()[:16]} (JAX {jax.__version__})"


def _traced(function: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    """Yield the text of a traced function, and the constants that the text leaves out."""
    closed = jax.make_jaxpr(function)(*arguments)
    yield _ADDRESS.sub("", closed.pretty_print(use_color=False))  # which a terminal would have
    yield from _constants(closed)


def _constants(closed: ClosedJaxpr) -> Iterator[Any]:
    yield from closed.consts
    yield from _constants_inside(closed.jaxpr)


def _constants_inside(jaxpr: Jaxpr) -> Iterator[Any]:
    """Yield the constants in the equations, and in the functions that these call."""
    for equation in jaxpr.eqns:
        yield from (one.val for one in equation.invars if isinstance(one, Literal))
        for _, values in sorted(equation.params.items()):
            for one in jax.tree.leaves(values):
                if isinstance(one, ClosedJaxpr):
                    yield from _constants(one)
                elif isinstance(one, Jaxpr):
                    yield from _constants_inside(one)
                elif isinstance(one, np.ndarray | jax.Array):
                    yield one
    yield from (one.val for one in jaxpr.outvars if isinstance(one, Literal))


def _array_bytes(value: Any) -> bytes:
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    content = repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()
    return repr((array.dtype.str, array.shape)).encode() + content
