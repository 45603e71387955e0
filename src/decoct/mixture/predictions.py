"""What a fitted mixture says of rows: responsibilities (3) and the predictive density (N7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.errors import RowsError
from decoct.mixture.cavi import Mixture
from decoct.mixture.e_step import choose_chunk_rows, compute_squares
from decoct.mixture.normal_wishart import (
    Expected,
    NormalWishart,
    compute_expected,
    compute_predictive,
)
from decoct.mixture.stick_breaking import WeightPrior
from decoct.runtime.precision import float64

FARTHEST = 1e150
"""Most standard deviations whose square float64 can hold, with room for sums."""


@float64
def compute_responsibilities(
    mixture: Mixture, prior: WeightPrior, x: Float[np.ndarray, "N D"]
) -> Float[np.ndarray, "N T"]:
    """Return r_nt (3) of rows, seen or new."""
    components, at = _compute_log_joint(*jax.tree.map(np.asarray, (mixture, prior)))
    _check_reach(x, components)
    pieces = _map_chunks(x, lambda chunk: _compute_responsibilities(components, at, chunk))
    return np.concatenate([piece.T for piece in pieces])


@float64
def compute_log_predictive(
    mixture: Mixture, prior: WeightPrior, x: Float[np.ndarray, "N D"]
) -> Float[np.ndarray, " N"]:
    """Return ln Σ_t E π_t E p(x | μ_t, Λ_t), a mixture of Student's t (N7), in nats."""
    students = _compute_students(mixture.components, np.log(prior.mean(mixture.shares)))
    _check_reach(x, students[0])
    pieces = _map_chunks(x, lambda chunk: _compute_log_students(*students, chunk))
    return np.concatenate(pieces)


@eqx.filter_jit
def _compute_log_joint(mixture: Mixture, prior: WeightPrior) -> tuple[Expected, Float[Array, " T"]]:
    """Return what (2) needs, and it at x = m."""
    components = compute_expected(mixture.components)
    return components, prior.expected_log(mixture.shares) + components.offset


@eqx.filter_jit
def _compute_students(
    components: NormalWishart, log_weights: Float[Any, " T"]
) -> tuple[Expected, Float[Array, " T"], Float[Array, " T"], Float[Array, " T"]]:
    at, shrink, power = compute_predictive(components)
    return compute_expected(components), at + log_weights, shrink, power


@eqx.filter_jit
def _compute_responsibilities(
    components: Expected, at: Float[Array, " T"], x: Float[Array, "D n"]
) -> Float[Array, "T n"]:
    return jax.nn.softmax(at[:, None] - 0.5 * compute_squares(x, components), axis=0)


@eqx.filter_jit
def _compute_log_students(
    components: Expected,
    at: Float[Array, " T"],
    shrink: Float[Array, " T"],
    power: Float[Array, " T"],
    x: Float[Array, "D n"],
) -> Float[Array, " n"]:
    away = jnp.log1p(shrink[:, None] * compute_squares(x, components))
    return jax.nn.logsumexp(at[:, None] - power[:, None] * away, axis=0)


def _check_reach(x: Float[np.ndarray, "N D"], components: Expected) -> None:
    """Refuse rows so far from a component that the squared distance overflows."""
    deviation = 1.0 / np.abs(components.whiten).sum(axis=2).max()
    farthest = FARTHEST * deviation - np.abs(components.mean).max()
    if max(x.max(), -x.min()) > farthest:
        away = np.abs(x).max(axis=1)
        raise RowsError(
            f"Row {int(np.argmax(away))} of X is {away.max():.3g} from the origin, too many "
            f"standard deviations of a component ({deviation:.3g}) for their square."
        )


def _map_chunks(
    x: Float[np.ndarray, "N D"], fn: Callable[[Array], Array]
) -> list[Float[np.ndarray, "*T n"]]:
    """Return ``fn`` of chunks (D, n) of the rows, the last one padded."""
    N, D = x.shape
    size = choose_chunk_rows(N, D)
    pieces = []
    for begin in range(0, N, size):
        rows = x[begin : begin + size].T
        padded = np.pad(rows, ((0, 0), (0, size - rows.shape[1])))
        pieces.append(np.asarray(fn(jnp.asarray(padded)))[..., : rows.shape[1]])
    return pieces
