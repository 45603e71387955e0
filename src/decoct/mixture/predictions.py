"""What a fitted mixture says of rows: responsibilities (3) and the predictive density (N7)."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.mixture.cavi import Mixture
from decoct.mixture.normal_wishart import Expected, expected, predictive
from decoct.mixture.stick_breaking import WeightPrior
from decoct.mixture.walks import chunk_rows, squares
from decoct.precision import float64


@float64
def responsibilities(
    mixture: Mixture, prior: WeightPrior, x: Float[np.ndarray, "N D"]
) -> Float[np.ndarray, "N T"]:
    """Return r_nt (3) of rows, seen or new."""
    components = expected(mixture.components)
    at = prior.expected_log(mixture.shares) + components.offset
    pieces = _by_chunks(x, lambda chunk: _responsibilities(components, at, chunk))
    return np.concatenate([piece.T for piece in pieces])


@float64
def log_predictive(
    mixture: Mixture, prior: WeightPrior, x: Float[np.ndarray, "N D"]
) -> Float[np.ndarray, " N"]:
    """Return ln Σ_t E π_t E p(x | μ_t, Λ_t), a mixture of Student's t (N7), in nats."""
    components = expected(mixture.components)
    at, shrink, power = predictive(mixture.components)
    at = at + np.log(prior.mean(mixture.shares))
    pieces = _by_chunks(x, lambda chunk: _log_students(components, at, shrink, power, chunk))
    return np.concatenate(pieces)


@eqx.filter_jit
def _responsibilities(components: Expected, at, x: Float[Array, "D n"]):
    log_joint = jnp.asarray(at)[:, None] - 0.5 * squares(x, components)
    return jax.nn.softmax(log_joint, axis=0)


@eqx.filter_jit
def _log_students(components: Expected, at, shrink, power, x: Float[Array, "D n"]):
    at, shrink, power = (jnp.asarray(one)[:, None] for one in (at, shrink, power))
    each = at - power * jnp.log1p(shrink * squares(x, components))
    return jax.nn.logsumexp(each, axis=0)


def _by_chunks(
    x: Float[np.ndarray, "N D"], fn: Callable[[Array], Array]
) -> list[Float[np.ndarray, "*T n"]]:
    """Return ``fn`` of chunks (D, n) of the rows, the last one padded."""
    N, D = x.shape
    size = chunk_rows(N, D)
    pieces = []
    for begin in range(0, N, size):
        rows = x[begin : begin + size].T
        padded = np.pad(rows, ((0, 0), (0, size - rows.shape[1])))
        pieces.append(np.asarray(fn(jnp.asarray(padded)))[..., : rows.shape[1]])
    return pieces
