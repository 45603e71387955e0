"""The manifold of linear regression with known noise, in closed form (Eq. 23-24).

Equations are those of Campbell & Beronov (2019).

With π_w = N(μ_w, Σ_w), Σ_w = LLᵀ, β_n = Lᵀx_n, ν_n = y_n − μ_wᵀx_n and noise σ,

    Cov_w[f_n, f_m] = σ⁻⁴(ν_nν_m β_nᵀβ_m + ½(β_nᵀβ_m)²).

As vectors these would have D + D² numbers a row. Sums over rows need only p = Σ c_m ν_mβ_m and
R = Σ c_m β_mβ_mᵀ, since Cov[f_n, Σ c_m f_m] = σ⁻⁴(ν_n β_nᵀp + ½ β_nᵀRβ_n): O(D²) a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import cho_factor, cho_solve, eigh

from decoct.constructions.base import Problem, Selection
from decoct.constructions.manifold.base import NOISE, Height, correlations, greedy_row
from decoct.constructions.manifold.exact import CONVERGED, ExactManifold
from decoct.data.base import Columns
from decoct.diagnostics.divergences import Gaussian, kl_gaussian
from decoct.models.linear import LinearRegression
from decoct.tangent import Tangent

RANK = 1e-14
"""Eigenvalue of the support's Gram matrix, relative to the largest, below which it is round-off."""


@dataclass(frozen=True)
class Information:
    """Precision P and shift h of a Gaussian ∝ exp(−½θᵀPθ + hᵀθ)."""

    precision: Float[np.ndarray, "d d"]
    shift: Float[np.ndarray, " d"]

    def __add__(self, other: Information) -> Information:
        return Information(self.precision + other.precision, self.shift + other.shift)

    def gaussian(self) -> Gaussian:
        factor = cho_factor(self.precision)
        cov = cho_solve(factor, np.eye(len(self.shift)))
        return Gaussian(cho_solve(factor, self.shift), 0.5 * (cov + cov.T))


@dataclass(frozen=True)
class LinearView:
    """π_w = N(mean, LLᵀ)."""

    manifold: LinearManifold
    selection: Selection
    mean: Float[np.ndarray, " d"]
    root: Float[np.ndarray, "d d"]

    @property
    def origin(self) -> None:
        return None

    def best_row(self, blocked: Int[np.ndarray, " k"]) -> int | None:
        if self.predicted_kl() <= CONVERGED:
            return None
        beta, nu = self._directions(self.manifold.rows)
        p, R = self._sums_of_everything()
        full = self._products(beta[:1], nu[:1], p, R)  # only for the scale of the round-off
        mine, mine_nu = self._directions(self.selection.rows)
        p = p - (self.selection.weights * mine_nu) @ mine
        R = R - (mine.T * self.selection.weights) @ mine
        squares = np.square(beta).sum(axis=1)
        variances = self.manifold.scale * (nu**2 * squares + 0.5 * squares**2)
        scores = correlations(self._products(beta, nu, p, R), variances)
        least = NOISE * float(np.abs(full).max() / np.sqrt(max(variances[0], 1e-300)))
        everything = np.arange(len(beta))
        return greedy_row(scores, everything, self.selection, blocked, least)

    def tangent(self) -> Tangent:
        """Return vectors with the Gram matrix of Eq. 24, from its eigenvectors."""
        beta, nu = self._directions(self.selection.rows)
        inner = beta @ beta.T
        gram = self.manifold.scale * (np.outer(nu, nu) * inner + 0.5 * inner**2)
        values, basis = eigh(gram)
        kept = values > RANK * values[-1]
        root = np.sqrt(values[kept])
        with_target = self._products(beta, nu, *self._sums_of_everything())
        return Tangent(basis[:, kept] * root, (basis[:, kept].T @ with_target) / root)

    def height(self, weights: Float[np.ndarray, " m"]) -> Height:
        return self.manifold.height(self.selection._replace(weights=weights))

    def third_moments(self) -> None:
        return None

    def predicted_kl(self) -> float:
        return self.manifold.height(self.selection).kl

    def _directions(
        self, rows: Columns
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Return β_n and ν_n."""
        return rows["x"] @ self.root, rows["y"] - rows["x"] @ self.mean

    def _sums_of_everything(self) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
        """Return Σ ν_nβ_n and Σ β_nβ_nᵀ over all rows."""
        gram, moment = self.manifold.gram, self.manifold.moment
        return (moment - gram @ self.mean) @ self.root, self.root.T @ gram @ self.root

    def _products(self, beta, nu, p, R) -> Float[np.ndarray, " n"]:
        quadratic = np.einsum("nd,nd->n", beta @ R, beta)
        return self.manifold.scale * (nu * (beta @ p) + 0.5 * quadratic)


class LinearManifold(ExactManifold):
    """Exact views of `LinearRegression` with known noise."""

    def __init__(self, problem: Problem) -> None:
        model = problem.potentials.model
        assert isinstance(model, LinearRegression)
        assert model.noise_scale is not None
        self.precision = float(1.0 / np.square(model.noise_scale))
        self.scale = self.precision**2
        dim = problem.potentials.dim
        prior = np.broadcast_to(1.0 / np.square(np.asarray(model.prior_scale)), (dim,))
        self.prior = Information(np.diag(prior), np.zeros(dim))
        super().__init__(problem)
        x = self.rows["x"]
        self.gram, self.moment = x.T @ x, x.T @ self.rows["y"]
        everything = Information(self.precision * self.gram, self.precision * self.moment)
        self.full = (self.prior + everything).gaussian()

    def posterior(self, selection: Selection) -> Gaussian:
        """Return π_w."""
        x, y = selection.rows["x"], selection.rows["y"]
        weighted = self.precision * selection.weights[:, None] * x
        return (self.prior + Information(weighted.T @ x, weighted.T @ y)).gaussian()

    def height(self, selection: Selection) -> Height:
        return Height(kl_gaussian(self.posterior(selection), self.full), 1.0)

    def at(self, key: jax.Array, selection: Selection) -> LinearView:
        here = self.posterior(selection)
        return LinearView(self, selection, here.mean, np.linalg.cholesky(here.cov))
