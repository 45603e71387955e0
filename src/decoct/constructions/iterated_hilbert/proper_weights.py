"""Weights whose site is a Gaussian.

A coreset of rows m and the site of all others has the precision A = H − Σ w_m H_m, with H = −Σ∇²f_n
and H_m = −∇²f_m, smoothed or not. Least squares does not know that A must have no negative
eigenvalue: where the rows take more curvature than there is, π_w is improper. So after

    min_{w ≥ 0} ‖b − Σ w_m r_m‖²

every eigenvector v of A (in units of the posterior's precision) with a negative eigenvalue adds the
constraint Σ w_m vᵀH_mv ≤ (1 − ε) vᵀHv, until there is none. Least squares with linear inequalities
is a search for the shortest vector that keeps them, which is non-negative least squares in the
constraints (Lawson & Hanson 1974, ch. 23, algorithm LDP).

Rows of few groups have curvature B = Σ w_m H_m in few parameters S alone. With K = (H + εΛ)⁻¹, Λ
the posterior's precision, A + εΛ is ⪰ 0 if no eigenvalue λ of K_SS B_SS is above 1. One above 1 has
the direction v ∝ K_·S B_SS v_S, with B v = λ (H + εΛ) v, along which A + εΛ is negative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
from jaxtyping import Float

from decoct.constructions.iterated_hilbert.expansion import is_proper
from decoct.solvers.nnls import nnls

MOST_CUTS = 15
"""Rounds of cutting planes. A common factor t < 1 of all weights removes eigenvalues that are still
negative, as A(t w) = (1 − t) H + t A(w) is ⪰ 0 for small t."""

ZERO_CURVATURE = 1e-7
"""Eigenvalue of A, in units of the posterior's precision, that counts as 0."""

INSIDE = 1e-3
"""ε, the part of the curvature along a cut that is left to the site."""

HALVINGS = 30
"""Steps of the search for the largest factor of weights."""

ROOM = 0.05
"""Part of the posterior's precision that rows may take where H is negative. The site cannot give it
back, which costs a quarter of its square in nats."""

LARGEST_CONDITION = 1e12
"""Largest product of a diagonal entry of H + εΛ and of its inverse: beyond, that is rounding."""

FEW = 0.25
"""Share of the parameters up to which the parameters of the rows are treated apart."""


@dataclass(frozen=True)
class WholeCurvature:
    """The curvature H of all rows, whether it is ⪰ 0, and the posterior's precision Λ."""

    hessian: Float[np.ndarray, "d d"]
    precision: Float[np.ndarray, "d d"]
    is_proper: bool = True

    @classmethod
    def of(
        cls, hessian: Float[np.ndarray, "d d"], precision: Float[np.ndarray, "d d"]
    ) -> WholeCurvature:
        """Return it, with `ROOM` in place of negative eigenvalues of H in units of Λ."""
        found = cls(hessian, precision)
        if not is_proper(hessian):
            scaled = found._factor.T @ hessian @ found._factor
            values, vectors = scipy.linalg.eigh(scaled, subset_by_value=(-np.inf, 0.0))
            sides = precision @ (found._factor @ vectors)
            found = cls(hessian + (sides * (ROOM - values)) @ sides.T, precision, False)
        return found

    def improper_directions(self, of_rows: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "k d"]:
        """Return directions v with vᵀ(H − B)v < 0: none where H − B is ⪰ 0, rounding apart."""
        found = self._shares(of_rows)
        if found is not None:
            shares, directions = found
            return directions[shares > 1.0]
        scaled = self._factor.T @ (self.hessian - of_rows) @ self._factor
        try:  # far cheaper than eigenvectors
            np.linalg.cholesky(scaled + ZERO_CURVATURE * np.eye(len(scaled)))
        except np.linalg.LinAlgError:
            negative = scipy.linalg.eigh(scaled, subset_by_value=(-np.inf, -ZERO_CURVATURE))[1]
            return (self._factor @ negative).T
        return np.zeros((0, len(scaled)))

    def largest_factor(self, of_rows: Float[np.ndarray, "d d"]) -> float:
        """Return the largest t ≤ 1 for which H − tB is ⪰ 0; 1 where that is not so of H alone."""
        if not self.is_proper:
            return 1.0
        found = self._shares(of_rows)
        if found is not None:
            most = found[0].max(initial=0.0)
            return 1.0 if most <= 1.0 else (1.0 - INSIDE) / most

        def fits(t: float) -> bool:
            precision = self.hessian - t * of_rows
            return is_proper(0.5 * (precision + precision.T))

        if fits(1.0):
            return 1.0
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _shares(
        self, of_rows: Float[np.ndarray, "d d"]
    ) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, "s d"]] | None:
        """Return λ and v with B v = λ (H + εΛ) v; None where rows have curvature in many places."""
        places = np.flatnonzero(of_rows.any(axis=1))
        if len(places) > FEW * len(of_rows) or self._inverse is None:
            return None
        inside = of_rows[np.ix_(places, places)]
        root = np.linalg.cholesky(self._inverse[np.ix_(places, places)])
        shares, vectors = np.linalg.eigh(root.T @ inside @ root)
        return shares, (self._inverse[:, places] @ (inside @ root @ vectors)).T

    @cached_property
    def _factor(self) -> Float[np.ndarray, "d d"]:
        """L with LLᵀ = Λ⁻¹."""
        return np.linalg.inv(np.linalg.cholesky(self.precision)).T

    @cached_property
    def _inverse(self) -> Float[np.ndarray, "d d"] | None:
        """(H + εΛ)⁻¹; None where that is not ≻ 0, or too inaccurate."""
        matrix = self.hessian + ZERO_CURVATURE * self.precision
        try:
            half = np.linalg.inv(np.linalg.cholesky(matrix))
        except np.linalg.LinAlgError:
            return None
        inverse = half.T @ half
        condition = (np.diag(inverse) * np.diag(matrix)).max()
        return inverse if condition < LARGEST_CONDITION else None


def proper_weights(
    vectors: Float[np.ndarray, "m S"],
    target: Float[np.ndarray, " S"],
    weights: Float[np.ndarray, " m"],
    curvature_of: Callable[[np.ndarray], np.ndarray],
    along: Callable[[np.ndarray], np.ndarray],
    whole: WholeCurvature,
) -> Float[np.ndarray, " m"]:
    """Return weights near those of least squares that leave the site a precision ⪰ 0.

    The vectors and the target are remainders at the draws, of the rows and of all rows.
    ``curvature_of`` goes from weights to Σ w_m H_m, ``along`` from directions (k, d) to vᵀH_mv,
    (m, k).
    """
    # unit vectors, and no more of the draws than they span
    norms = np.linalg.norm(vectors, axis=1)
    q, r = np.linalg.qr(vectors.T / norms)
    free, inverse = q.T @ target, np.linalg.inv(r)
    bends, most = np.zeros((0, len(weights))), np.zeros(0)
    for _ in range(MOST_CUTS):
        directions = whole.improper_directions(curvature_of(weights))
        if not len(directions):
            break
        room = ((directions @ whole.hessian) * directions).sum(axis=1)
        possible = room > 0.0  # else all rows together bend the other way there
        if not possible.any():
            break
        bends = np.concatenate([bends, along(directions)[:, possible].T / norms])
        most = np.concatenate([most, (1.0 - INSIDE) * room[possible]])
        weights = _constrain(inverse, free, bends, most) / norms
    return weights


def _constrain(
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
