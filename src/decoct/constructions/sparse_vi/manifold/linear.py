"""The manifold of linear regression with known noise, in closed form (Eq. 23-24).

Equations are those of Campbell & Beronov (2019).

With π_w = N(μ_w, Σ_w), ν_n = y_n − μ_wᵀx_n and noise σ,

    Cov_w[f_n, f_m] = σ⁻⁴(ν_nν_m x_nᵀΣ_wx_m + ½(x_nᵀΣ_wx_m)²).

As vectors these would have D + D² numbers a row. Let P = LLᵀ be the precision of the full posterior
N(μ₁, P⁻¹). In the coordinates φ = Lᵀ(θ − μ₁), with x̃_n = L⁻¹x_n and ỹ_n = y_n − μ₁ᵀx_n, that is
N(0, I), and π_w = N(m, C) has

    C⁻¹ = P̃₀ + σ⁻²Σ w_n x̃_nx̃_nᵀ,     C⁻¹m = −L⁻¹P₀μ₁ + σ⁻²Σ w_n ỹ_nx̃_n,     P̃₀ = L⁻¹P₀L⁻ᵀ,

so that fᵀ(1 − w) = log π/π_w is a quadratic with slope −m at m and Hessian C⁻¹ − I. With u_n = Cx̃_n

    Cov_w[f_n, fᵀ(1 − w)] = σ⁻²(½u_nᵀ(u_n − x̃_n) − ν_n u_nᵀm),
    KL(π_w‖π) = ½(tr C − D − log det C + mᵀm):

one product of D² numbers a row whatever the support, and no sum over the rows. The same formulas
give bᵀb from Σ f_n, whose slope is a = P̃₀m + L⁻¹P₀μ₁ − m and whose Hessian is P̃₀ − I.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import LinAlgError, cholesky, eigh, eigvalsh, solve_triangular
from scipy.linalg.lapack import get_lapack_funcs

from decoct.constructions.base import Problem, Selection
from decoct.constructions.sparse_vi.manifold.base import LocalView, Manifold, take_all_rows
from decoct.errors import ModelError
from decoct.stats.divergences import Tangent


@dataclass(frozen=True)
class LinearView(LocalView):
    """π_w as N(m, C) of φ: offset m (d,) and cov C (d, d)."""

    manifold: LinearManifold
    selection: Selection
    offset: Float[np.ndarray, " d"]
    cov: Float[np.ndarray, "d d"]

    def covariances(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        x, u, nu = self._directions(slice(None))
        squares = np.einsum("nd,nd->n", x, u)
        variances = self.manifold.precision**2 * squares * (nu**2 + 0.5 * squares)
        products = self._with_residual(x, u, nu)
        return np.arange(len(x)), products, variances, self._target_norm()

    def tangent(self) -> Tangent:
        """Return vectors with the Gram matrix of Eq. 24, from its eigenvectors."""
        x, u, nu = self._directions(self.selection.indices)
        inner = x @ u.T
        gram = self.manifold.precision**2 * inner * (np.outer(nu, nu) + 0.5 * inner)
        values, basis = eigh(gram)
        kept = values > 1e-14 * values[-1]  # the rest is round-off
        basis, root = basis[:, kept], np.sqrt(values[kept])
        with_target = gram @ self.selection.weights + self._with_residual(x, u, nu)
        return Tangent(basis * root, (basis.T @ with_target) / root)

    def full_tangent(self) -> Tangent:
        """Return σ⁻²(ν_nβ_n, β_nβ_nᵀ/√2) of every row, β_n = Aᵀx_n and AAᵀ = Σ_w, and their sum."""
        x, y, upper = self.manifold.rows["x"], self.manifold.rows["y"], self.manifold.factor.T
        mean = self.manifold.centre + solve_triangular(upper, self.offset)
        root = solve_triangular(upper, cholesky(self.cov, lower=True))
        beta, nu = x @ root, y - x @ mean
        first, second = np.triu_indices(beta.shape[1])
        twice = np.where(first == second, np.sqrt(0.5), 1.0)  # a product off the diagonal is twice
        vectors = np.hstack([nu[:, None] * beta, twice * beta[:, first] * beta[:, second]])
        vectors *= self.manifold.precision
        return Tangent(vectors, vectors.sum(axis=0))

    def _directions(self, which: Int[np.ndarray, " m"] | slice) -> tuple[np.ndarray, ...]:
        """Return x̃_n, u_n and ν_n."""
        x = self.manifold.x[which]
        return x, x @ self.cov, self.manifold.y[which] - x @ self.offset

    def _with_residual(
        self, x: np.ndarray, u: np.ndarray, nu: np.ndarray
    ) -> Float[np.ndarray, " n"]:
        """Return Cov_w[f_n, fᵀ(1 − w)]."""
        quadratic = np.einsum("nd,nd->n", u, u) - np.einsum("nd,nd->n", u, x)
        return self.manifold.precision * (0.5 * quadratic - nu * (u @ self.offset))

    def _target_norm(self) -> float:
        """Return ‖b‖, the standard deviation of Σ f_n."""
        manifold = self.manifold
        slope = manifold.prior @ self.offset - manifold.prior_shift - self.offset
        bent = self.cov @ (manifold.prior - np.eye(len(slope)))
        return float(np.sqrt(slope @ self.cov @ slope + 0.5 * (bent * bent.T).sum()))


class LinearManifold(Manifold):
    """Exact views of `LinearRegression` with known noise.

    It and its views raise a ModelError of a prior so wide that a precision is singular in float64.
    """

    def __init__(self, problem: Problem) -> None:
        model: Any = problem.potentials.model
        super().__init__(problem)
        self.rows = take_all_rows(problem)
        x, y = self.rows["x"], self.rows["y"]
        self.precision = float(1.0 / np.square(model.noise_scale))  # σ⁻²
        scales = np.broadcast_to(np.asarray(model.prior_scale), (problem.potentials.dim,))
        self.factor = _factor(np.diag(scales**-2.0) + self.precision * x.T @ x)  # L
        half = solve_triangular(self.factor, self.precision * x.T @ y, lower=True)
        self.centre = solve_triangular(self.factor.T, half)  # μ₁
        self.x = np.ascontiguousarray(solve_triangular(self.factor, x.T, lower=True).T)  # x̃_n
        self.y = y - x @ self.centre  # ỹ_n
        root = solve_triangular(self.factor, np.diag(1.0 / scales), lower=True)
        # P̃₀ and −L⁻¹P₀μ₁
        self.prior, self.prior_shift = root @ root.T, -root @ (self.centre / scales)

    def kl(self, selection: Selection) -> float:
        """Return KL(π_w‖π)."""
        information, factor, cov, mean = self._posterior(selection)
        kl = 0.5 * (np.trace(cov) - len(cov)) + np.log(np.diag(factor)).sum()
        if kl < 1e-3:  # tr C − D − log det C would lose its digits
            excess = 1.0 / eigvalsh(information) - 1.0
            kl = 0.5 * (excess - np.log1p(excess)).sum()
        return float(kl + 0.5 * mean @ mean)

    def at(self, key: jax.Array, selection: Selection) -> LinearView:
        _, _, cov, mean = self._posterior(selection)
        return LinearView(self, selection, mean, cov)

    def _posterior(self, selection: Selection) -> tuple[np.ndarray, ...]:
        """Return C⁻¹, its lower Cholesky factor, C and m."""
        x, y = self.x[selection.indices], self.y[selection.indices]
        weights = self.precision * selection.weights
        scaled = np.sqrt(weights)[:, None] * x
        information = self.prior + scaled.T @ scaled
        factor = _factor(information)
        (potri,) = get_lapack_funcs(("potri",), (factor,))
        lower = np.tril(potri(factor, lower=1)[0])
        cov = lower + np.tril(lower, -1).T
        return information, factor, cov, cov @ (self.prior_shift + (weights * y) @ x)


def _factor(precision: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    try:
        return cholesky(precision, lower=True)
    except LinAlgError as error:
        raise ModelError(
            "The precision of a posterior is not numerically positive definite: the prior is too "
            "weak along some direction of x. Give a smaller prior_scale, or scale x."
        ) from error
