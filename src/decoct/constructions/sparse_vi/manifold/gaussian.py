"""The manifold of a Gaussian location model in closed form (Campbell & Beronov 2019, Eq. 20-21).

With A = Σ⁻¹ and π_w = N(μ_w, Σ_w),

    Cov_w[f_n, f_m] = (x_n − μ_w)ᵀAΣ_wA(x_m − μ_w) + ½ tr(AΣ_wAΣ_w).

In the coordinates φ = V⁻¹θ with VᵀΣ₀⁻¹V = I and VᵀAV = Λ = diag(λ) every π_w is a product: with
y_n = VᵀAx_n and s = Σ w_n its variances are c = 1/(1 + sλ) and its means m = c(V⁻¹μ₀ + Σ w_n y_n),

    Cov_w[f_n, f_m] = (y_n − λm)ᵀ diag(c) (y_m − λm) + ½ Σ_d (λ_d c_d)²,

the inner product of D + 1 numbers a row; nothing has to be drawn and no matrix to be factored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh

from decoct.constructions.base import Problem, Selection
from decoct.constructions.sparse_vi.manifold.base import LocalView, Manifold, take_all_rows
from decoct.stats.divergences import Tangent


@dataclass(frozen=True)
class GaussianView(LocalView):
    """π_w as a product of Gaussians: means (d,) and variances (d,) of φ."""

    manifold: GaussianManifold
    selection: Selection
    means: Float[np.ndarray, " d"]
    variances: Float[np.ndarray, " d"]

    @property
    def shared(self) -> float:
        return float(np.sqrt(0.5 * np.square(self.manifold.scales * self.variances).sum()))

    def vectors(self, y: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n k"]:
        offsets = (y - self.manifold.scales * self.means) * np.sqrt(self.variances)
        return np.column_stack([offsets, np.full(len(y), self.shared)])

    @property
    def target(self) -> Float[np.ndarray, " k"]:
        n, manifold = self.manifold.n_rows, self.manifold
        offset = (manifold.sum_of_rows - n * manifold.scales * self.means) * np.sqrt(self.variances)
        return np.append(offset, n * self.shared)

    def covariances(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        vectors, target = self.full_tangent()
        products = vectors @ (target - self.selection.weights @ vectors[self.selection.indices])
        variances = np.square(vectors).sum(axis=1)
        return np.arange(len(vectors)), products, variances, float(np.linalg.norm(target))

    def tangent(self) -> Tangent:
        return Tangent(self.vectors(self.manifold.y[self.selection.indices]), self.target)

    def full_tangent(self) -> Tangent:
        return Tangent(self.vectors(self.manifold.y), self.target)


class GaussianManifold(Manifold):
    """Exact views of `GaussianMean`."""

    def __init__(self, problem: Problem) -> None:
        model: Any = problem.potentials.model
        inverse = np.linalg.inv(np.asarray(model.covariance))
        inverse_prior = np.linalg.inv(np.asarray(model.prior_covariance))
        self.scales, basis = eigh(inverse, inverse_prior)
        super().__init__(problem)
        self.y = take_all_rows(problem)["x"] @ (inverse @ basis)
        self.sum_of_rows = self.y.sum(axis=0)
        self.prior_shift = basis.T @ (inverse_prior @ np.asarray(model.prior_mean))
        self.full = self._moments(float(self.n_rows), self.sum_of_rows)

    def kl(self, selection: Selection) -> float:
        """Return KL(π_w‖π)."""
        means, variances = self._posterior(selection)
        full_means, full_variances = self.full
        # c/c₁ − 1, from the sums of weights: close to 0 it keeps its digits
        excess = (self.n_rows - selection.weights.sum()) * self.scales * variances
        spread = (excess - np.log1p(excess)).sum()
        return 0.5 * float(spread + ((means - full_means) ** 2 / full_variances).sum())

    def at(self, key: jax.Array, selection: Selection) -> GaussianView:
        return GaussianView(self, selection, *self._posterior(selection))

    def _posterior(self, selection: Selection) -> tuple[np.ndarray, np.ndarray]:
        weights = selection.weights
        return self._moments(float(weights.sum()), weights @ self.y[selection.indices])

    def _moments(self, weight: float, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the means and variances of φ."""
        variances = 1.0 / (1.0 + weight * self.scales)
        return variances * (self.prior_shift + total), variances
