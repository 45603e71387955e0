"""The manifold of a Gaussian location model in closed form (Campbell & Beronov 2019, Eq. 20-21).

With A = Σ⁻¹ and π_w = N(μ_w, Σ_w),

    Cov_w[f_n, f_m] = (x_n − μ_w)ᵀAΣ_wA(x_m − μ_w) + ½ tr(AΣ_wAΣ_w),

the inner product of D + 1 numbers a row, so that nothing has to be drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float, Int

from decoct.constructions.base import Problem, Selection
from decoct.constructions.manifold.base import Height, correlations, greedy_row
from decoct.constructions.manifold.exact import ExactManifold, Information
from decoct.data.base import Columns
from decoct.models.gaussian import GaussianMean
from decoct.tangent import Tangent

NOISE = 1e-13
"""Correlation with the residual that round-off can make, relative to ‖b‖."""


@dataclass(frozen=True)
class GaussianView:
    """π_w = N(mean, factor-ed cov): vectors are ((x − mean) factor, shared)."""

    manifold: GaussianManifold
    selection: Selection
    mean: Float[np.ndarray, " d"]
    factor: Float[np.ndarray, "d d"]
    shared: float

    def vectors(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n k"]:
        return np.column_stack([(x - self.mean) @ self.factor, np.full(len(x), self.shared)])

    @property
    def target(self) -> Float[np.ndarray, " k"]:
        n = self.manifold.problem.n_rows
        offset = (self.manifold.sum_of_rows - n * self.mean) @ self.factor
        return np.append(offset, n * self.shared)

    @property
    def origin(self) -> None:
        return None

    def best_row(self, blocked: Int[np.ndarray, " k"]) -> int | None:
        vectors = self.vectors(self.manifold.rows["x"])
        target = self.target
        residual = target - self.selection.weights @ vectors[self.selection.indices]
        scores = correlations(vectors @ residual, np.square(vectors).sum(axis=1))
        least = NOISE * float(np.linalg.norm(target))
        everything = np.arange(len(vectors))
        return greedy_row(scores, everything, self.selection, blocked, least)

    def tangent(self) -> Tangent:
        return Tangent(self.vectors(self.selection.rows["x"]), self.target)

    def height(self, weights: Float[np.ndarray, " m"]) -> Height:
        return self.manifold.height(self.selection._replace(weights=weights))

    def third_moments(self) -> None:
        return None

    def predicted_kl(self) -> float:
        return self.manifold.height(self.selection).kl


class GaussianManifold(ExactManifold):
    """Exact views of `GaussianMean`."""

    def __init__(self, problem: Problem) -> None:
        model = problem.potentials.model
        assert isinstance(model, GaussianMean)
        self.inverse = np.linalg.inv(np.asarray(model.covariance))
        inverse_prior = np.linalg.inv(np.asarray(model.prior_covariance))
        self._prior = Information(inverse_prior, inverse_prior @ np.asarray(model.prior_mean))
        super().__init__(problem)
        self.sum_of_rows = self.rows["x"].sum(axis=0)

    def prior(self) -> Information:
        return self._prior

    def information(self, rows: Columns, weights: Float[np.ndarray, " m"]) -> Information:
        return Information(weights.sum() * self.inverse, self.inverse @ (weights @ rows["x"]))

    def at(self, key: jax.Array, selection: Selection) -> GaussianView:
        here = self.posterior(selection)
        factor = self.inverse @ np.linalg.cholesky(here.cov)
        inner = self.inverse @ here.cov
        shared = float(np.sqrt(0.5 * np.sum(inner * inner.T)))
        return GaussianView(self, selection, here.mean, factor, shared)
