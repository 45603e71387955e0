"""Weights whose site is a Gaussian.

A coreset of rows m and the site of all others has the precision A = H − Σ w_m H_m, with H = −Σ∇²f_n
and H_m = −∇²f_m, smoothed or not. Least squares does not know that A must have no negative
eigenvalue: where the rows take more curvature than there is, π_w is improper. So after

    min_{w ≥ 0} ‖b − Σ w_m r_m‖²

every eigenvector v of A (in units of the posterior's precision) with a negative eigenvalue adds the
constraint Σ w_m vᵀH_mv ≤ (1 − ε) vᵀHv: an equation with a slack variable ≥ 0 and a heavy weight,
which is non-negative least squares again. A few such cuts are enough.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from decoct.solvers.nnls import nnls

MOST_CUTS = 40
"""Rounds of cutting planes; what is negative after them is set to zero."""

ROUNDED = 1e-7
"""Eigenvalue of A, in units of the posterior's precision, that counts as 0."""

INSIDE = 1e-3
"""ε, the part of the curvature along a cut that is left to the site."""

HEAVY = 1e4
"""Weight of a cut's equation, relative to the norm of the target."""


def proper_weights(
    vectors: Float[np.ndarray, "m S"],
    target: Float[np.ndarray, " S"],
    weights: Float[np.ndarray, " m"],
    precision_of: Callable[[np.ndarray], np.ndarray],
    along: Callable[[np.ndarray], np.ndarray],
    factor: Float[np.ndarray, "d d"],
) -> Float[np.ndarray, " m"]:
    """Return weights near those of least squares that leave the site a precision ⪰ 0.

    Parameters
    ----------
    vectors : (m, S)
        Remainders of the rows at the draws.
    target : (S,)
        Remainders of all rows.
    weights : (m,)
        The least-squares weights.
    precision_of
        From weights to A.
    along
        From directions (k, d) to vᵀH_mv, (m, k).
    factor : (d, d)
        L with LLᵀ the posterior covariance.
    """
    # least squares sees no more of the draws than the span of rows and target
    reduced = np.asarray(np.linalg.qr(np.column_stack([vectors.T, target]), mode="r")).T
    vectors, target = reduced[:-1], reduced[-1]
    bends, most = np.zeros((len(weights), 0)), np.zeros(0)
    scale = HEAVY * max(float(np.linalg.norm(target)), 1e-300)
    for _ in range(MOST_CUTS):
        precision = precision_of(weights)
        values, basis = np.linalg.eigh(factor.T @ precision @ factor)
        directions = (factor @ basis[:, values < -ROUNDED]).T
        if not len(directions):
            break
        of_rows = along(directions)
        left = np.einsum("kd,de,ke->k", directions, precision, directions)
        whole = left + weights @ of_rows
        possible = whole > 0.0  # else all rows together bend the other way there
        if not possible.any():
            break
        bends = np.concatenate([bends, of_rows[:, possible]], axis=1)
        most = np.concatenate([most, whole[possible]])
        cuts = len(most)
        relative = scale * bends / most
        # one row of ``system`` per weight and per slack variable
        none = np.zeros((cuts, len(target)))
        system = np.block([[vectors, relative], [none, scale * np.eye(cuts)]])
        right = np.concatenate([target, np.full(cuts, scale * (1.0 - INSIDE))])
        m = len(weights)
        support = [*np.flatnonzero(weights), *range(m, m + cuts)]
        weights = nnls(system, right, support=support).dense(m + cuts)[:m]
    return weights
