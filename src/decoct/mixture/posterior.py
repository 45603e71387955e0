"""Results of a fitted mixture: responsibilities (3), the predictive density (N7), and draws.

Draws from the variational posterior are exact and independent: weights by their sticks or
Dirichlet, and for a component, with A Bartlett's triangular factor of a standard Wishart
(A_ii² ~ χ²(ν + 1 − i), A_ij ~ N(0, 1) for i > j) and LLᵀ = W⁻¹,

    Λ⁻¹ = KKᵀ,  K = LA⁻ᵀ,     μ = m + Kz/√β,  z ~ N(0, I).                                     (D1)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.errors import RequestError
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

MOST_IN_COVARIANCES = 2**29
"""Most numbers in the covariances of one request: 4 GB."""


@float64
def compute_responsibilities(
    mixture: Mixture, prior: WeightPrior, x: Float[np.ndarray, "N D"]
) -> Float[np.ndarray, "N T"]:
    """Return r_nt (3) of rows, seen or new."""
    components, at = _compute_log_joint(*jax.tree.map(np.asarray, (mixture, prior)))
    pieces = _map_chunks(x, lambda chunk: _normalise(components, at, chunk))
    return np.concatenate([piece.T for piece in pieces])


@float64
def compute_log_predictive(
    mixture: Mixture, prior: WeightPrior, x: Float[np.ndarray, "N D"]
) -> Float[np.ndarray, " N"]:
    """Return ln Σ_t E π_t E p(x | μ_t, Λ_t), a mixture of Student's t (N7), in nats."""
    students = _compute_students(mixture.components, np.log(prior.mean(mixture.shares)))
    return np.concatenate(_map_chunks(x, lambda chunk: _mix_students(*students, chunk)))


def draw_parameters(
    rng: np.random.Generator, mixture: Mixture, prior: WeightPrior, n: int
) -> dict[str, Float[np.ndarray, "n T ..."]]:
    """Return ``weights`` (n, T), ``means`` (n, T, D) and ``covariances`` Λ⁻¹ (n, T, D, D)."""
    m, beta, chol, nu = mixture.components
    T, D = m.shape
    if n * T * D * D > MOST_IN_COVARIANCES:
        raise RequestError(
            f"{n:,} draws of {T} covariances of {D} columns take {n * T * D * D * 8e-9:.1f} GB; "
            f"ask for at most {MOST_IN_COVARIANCES // (T * D * D):,} draws in all chains."
        )
    below = np.tril_indices(D, -1)
    means, covariances = np.empty((n, T, D)), np.empty((n, T, D, D))
    for t in range(T):
        bartlett = np.zeros((n, D, D))
        bartlett[:, *below] = rng.standard_normal((n, len(below[0])))
        bartlett[:, range(D), range(D)] = np.sqrt(rng.chisquare(nu[t] - np.arange(D), size=(n, D)))
        # A⁻¹Lᵀ = Kᵀ
        factor = np.linalg.solve(bartlett, np.broadcast_to(chol[t].T, bartlett.shape))
        factor = factor.transpose(0, 2, 1)
        covariances[:, t] = factor @ factor.transpose(0, 2, 1)
        normal = np.einsum("nij,nj->ni", factor, rng.standard_normal((n, D)))
        means[:, t] = m[t] + normal / np.sqrt(beta[t])
    weights = prior.draw(rng, mixture.shares, n)
    return {"weights": weights, "means": means, "covariances": covariances}


@eqx.filter_jit
def _compute_log_joint(mixture: Mixture, prior: WeightPrior) -> tuple[Expected, Float[Array, " T"]]:
    """Return what (2) needs, and it at x = m."""
    components = compute_expected(mixture.components)
    return components, prior.expected_log(mixture.shares) + components.offset


@eqx.filter_jit
def _normalise(
    components: Expected, at: Float[Array, " T"], x: Float[Array, "D n"]
) -> Float[Array, "T n"]:
    return jax.nn.softmax(at[:, None] - 0.5 * compute_squares(x, components), axis=0)


@eqx.filter_jit
def _compute_students(
    components: NormalWishart, log_weights: Float[Any, " T"]
) -> tuple[Expected, Float[Array, " T"], Float[Array, " T"], Float[Array, " T"]]:
    at, shrink, power = compute_predictive(components)
    return compute_expected(components), at + log_weights, shrink, power


@eqx.filter_jit
def _mix_students(
    components: Expected, at: Array, shrink: Array, power: Array, x: Float[Array, "D n"]
) -> Float[Array, " n"]:
    away = jnp.log1p(shrink[:, None] * compute_squares(x, components))
    return jax.nn.logsumexp(at[:, None] - power[:, None] * away, axis=0)


def _map_chunks(
    x: Float[np.ndarray, "N D"], fn: Callable[[Array], Array]
) -> list[Float[np.ndarray, "*T n"]]:
    """Return ``fn`` of chunks (D, n) of rows."""
    N, D = x.shape
    size = choose_chunk_rows(N, D)
    pieces = []
    for begin in range(0, N, size):
        rows = x[begin : begin + size].T
        padded = np.pad(rows, ((0, 0), (0, size - rows.shape[1])))
        pieces.append(np.asarray(fn(jnp.asarray(padded)))[..., : rows.shape[1]])
    return pieces
