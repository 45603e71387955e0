"""Weights whose site is a Gaussian.

A coreset of rows m and the site of all others has the precision A = H − Σ w_m H_m, with H = −Σ∇²f_n
and H_m = −∇²f_m, smoothed or not. Least squares does not know that A must have no negative
eigenvalue: where the rows take more curvature than there is, π_w is improper. So after

    min_{w ≥ 0} ‖b − Σ w_m r_m‖²

every eigenvector v of A (in units of the posterior's precision) with a negative eigenvalue adds the
constraint Σ w_m vᵀH_mv ≤ (1 − ε) vᵀHv, until there is none. Least squares with linear inequalities
is a search for the shortest vector that keeps them, which is non-negative least squares in the
constraints (Lawson & Hanson 1974, ch. 23, algorithm LDP).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh

from decoct.solvers.nnls import nnls

MOST_CUTS = 15
"""Rounds of cutting planes. A common factor t < 1 of all weights removes eigenvalues that are still
negative, as A(t w) = (1 − t) H + t A(w) is ⪰ 0 for small t."""

ZERO_CURVATURE = 1e-7
"""Eigenvalue of A, in units of the posterior's precision, that counts as 0."""

INSIDE = 1e-3
"""ε, the part of the curvature along a cut that is left to the site."""


def proper_weights(
    vectors: Float[np.ndarray, "m S"],
    target: Float[np.ndarray, " S"],
    weights: Float[np.ndarray, " m"],
    precision_of: Callable[[np.ndarray], np.ndarray],
    along: Callable[[np.ndarray], np.ndarray],
    factor: Float[np.ndarray, "d d"],
) -> Float[np.ndarray, " m"]:
    """Return weights near those of least squares that leave the site a precision ⪰ 0.

    The vectors and the target are remainders at the draws, of the rows and of all rows.
    ``precision_of`` goes from weights to A, ``along`` from directions (k, d) to vᵀH_mv, (m, k), and
    ``factor`` is L with LLᵀ the posterior covariance.
    """
    # unit vectors, and no more of the draws than they span
    norms = np.linalg.norm(vectors, axis=1)
    q, r = np.linalg.qr(vectors.T / norms)
    free, inverse = q.T @ target, np.linalg.inv(r)
    bends, most = np.zeros((0, len(weights))), np.zeros(0)
    for _ in range(MOST_CUTS):
        precision = precision_of(weights)
        directions = improper_directions(precision, factor)
        if not len(directions):
            break
        of_rows = along(directions)
        left = ((directions @ precision) * directions).sum(axis=1)
        whole = left + weights @ of_rows
        possible = whole > 0.0  # else all rows together bend the other way there
        if not possible.any():
            break
        bends = np.concatenate([bends, of_rows[:, possible].T / norms])
        most = np.concatenate([most, (1.0 - INSIDE) * whole[possible]])
        weights = _constrained(inverse, free, bends, most) / norms
    return weights


def improper_directions(
    precision: Float[np.ndarray, "d d"], factor: Float[np.ndarray, "d d"]
) -> Float[np.ndarray, "k d"]:
    """Return eigenvectors of A, in units of the posterior, with a negative eigenvalue."""
    scaled = factor.T @ precision @ factor
    try:  # far cheaper than eigenvectors
        np.linalg.cholesky(scaled + ZERO_CURVATURE * np.eye(len(scaled)))
    except np.linalg.LinAlgError:
        return (factor @ eigh(scaled, subset_by_value=(-np.inf, -ZERO_CURVATURE))[1]).T
    return np.zeros((0, len(scaled)))


def _constrained(
    inverse: Float[np.ndarray, "m m"],
    free: Float[np.ndarray, " m"],
    bends: Float[np.ndarray, "k m"],
    most: Float[np.ndarray, " k"],
) -> Float[np.ndarray, " m"]:
    """Return min ‖R w − free‖ with w ≥ 0 and bends w ≤ most, from R⁻¹."""
    m = len(free)
    start, scale = inverse @ free, np.linalg.norm(free)
    # with y = (R w − free)/scale: normals y ≥ least
    normals = np.concatenate([inverse, -bends @ inverse]) * scale
    least = np.concatenate([-start, bends @ start - most])
    lengths = np.linalg.norm(normals, axis=1)
    system = np.column_stack([normals, least]) / lengths[:, None]
    unit = np.append(np.zeros(m), 1.0)
    multipliers = nnls(system, unit).dense(len(system))
    left = multipliers @ system - unit
    weights = np.maximum(start - inverse @ (scale * left[:m] / left[m]), 0.0)
    weights[multipliers[:m] > 0.0] = 0.0
    return weights
