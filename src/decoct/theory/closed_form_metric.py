"""The Fisher metric of conjugate models in closed form (Campbell & Beronov 2019, Eq. 21 and 24).

With Q Qᵀ = Σ, L Lᵀ = Σ_w and G = AAᵀ,

    GaussianMean       Cov_w[f_n, f_m] = ν_mᵀΨν_n + ½ tr(ΨᵀΨ)                          (Eq. 21)
                       ν_n = Q⁻¹(x_n − μ_w), Ψ = Q⁻¹Σ_wQ⁻ᵀ
    LinearRegression   Cov_w[f_n, f_m] = σ⁻⁴(ν_nν_m β_nᵀβ_m + ½(β_nᵀβ_m)²)             (Eq. 24)
                       ν_n = y_n − μ_wᵀx_n, β_n = Lᵀx_n
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from decoct.data.base import Columns, Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import ModelError, RequestError
from decoct.models.base import AbstractModel
from decoct.models.conjugate import AbstractConjugate
from decoct.models.gaussian import GaussianMean
from decoct.models.linear import LinearRegression
from decoct.runtime.precision import float64
from decoct.stats.divergences import Gaussian
from decoct.theory.information_geometry import Metric, nonnegative_weights


@float64
def exact_metric(model: AbstractModel, rows: Rows | object, at: np.ndarray | Gaussian) -> Metric:
    """Return G in closed form: `GaussianMean` (Eq. 21) and `LinearRegression` (Eq. 24).

    The factor has D + 1 columns for the mean of a Gaussian, D + D(D + 1)/2 for a regression. ``at``
    is w ≥ 0, the point of the manifold, or the distribution of θ itself.
    """
    family = ConjugateFamily.of(model, rows)
    return family.metric(family.at(at))


@dataclass(frozen=True, eq=False)
class ConjugateFamily:
    """The posteriors π_w of a conjugate model over rows in memory, and their metric."""

    model: AbstractConjugate
    columns: Columns
    n_rows: int
    factor: Callable[[Any, Columns, Gaussian], np.ndarray]

    @classmethod
    def of(cls, model: AbstractModel, rows: Rows | object) -> ConjugateFamily:
        factor = next((f for kind, f in _FACTORS.items() if isinstance(model, kind)), None)
        if factor is None or not cast(AbstractConjugate, model).is_conjugate:
            raise ModelError(
                f"{type(model).__name__} has no metric in closed form; only GaussianMean and "
                "LinearRegression with a noise_scale have. Estimate it from draws: metric()."
            )
        table = encoded(as_rows(rows), model)
        columns = table.take(np.arange(table.n_rows))
        return cls(cast(AbstractConjugate, model), columns, table.n_rows, factor)

    def at(self, point: np.ndarray | Gaussian) -> Gaussian:
        """Return π_w for weights w; a Gaussian as it is."""
        if isinstance(point, Gaussian):
            dim = len(self.posterior(self.statistics(np.zeros(self.n_rows))).mean)
            if np.shape(point.mean) != (dim,) or np.shape(point.cov) != (dim, dim):
                raise RequestError(
                    f"The Gaussian has {np.size(point.mean)} dimensions and the model has {dim}; "
                    f"give a mean of shape ({dim},) and a cov of shape ({dim}, {dim})."
                )
            return point
        return self.posterior(self.statistics(nonnegative_weights(point, self.n_rows)))

    def path(self, weights: Float[np.ndarray, " n"]) -> Callable[[float], Gaussian]:
        """Return t -> π at (1 − t)w + t 1; sufficient statistics are linear in the weights."""
        start, end = self.statistics(weights), self.statistics(np.ones(self.n_rows))
        return lambda t: self.posterior(
            jax.tree.map(lambda a, b: (1.0 - t) * a + t * b, start, end)
        )

    def statistics(self, weights: Float[np.ndarray, " n"]) -> Any:
        return jax.tree.map(np.asarray, _sufficient(self.model, self.columns, weights))

    def posterior(self, statistics: Any) -> Gaussian:
        mean, cov = _posterior(self.model, statistics)
        return Gaussian(np.asarray(mean), np.asarray(cov))

    def metric(self, at: Gaussian) -> Metric:
        return Metric(self.factor(self.model, self.columns, at), np.zeros(self.n_rows))


_sufficient = eqx.filter_jit(lambda model, columns, weights: model.sufficient(columns, weights))
_posterior = eqx.filter_jit(lambda model, statistics: model.exact_posterior(statistics))


def _gaussian_mean_factor(model: GaussianMean, columns: Columns, at: Gaussian) -> np.ndarray:
    """Return [ν_nᵀK, √(½ tr ΨᵀΨ)] with K = Q⁻¹L, Ψ = KKᵀ (Eq. 21)."""
    scale = np.linalg.cholesky(np.asarray(model.covariance))
    spread = np.linalg.solve(scale, np.linalg.cholesky(at.cov))
    offsets = np.linalg.solve(scale, (columns["x"] - at.mean).T).T
    shared = np.linalg.norm(spread.T @ spread) / np.sqrt(2.0)
    return np.column_stack([offsets @ spread, np.full(len(offsets), shared)])


def _linear_factor(model: LinearRegression, columns: Columns, at: Gaussian) -> np.ndarray:
    """Return [ν_nβ_n, the upper triangle of β_nβ_nᵀ so scaled that products are ½(βᵀβ)²] (Eq. 24).

    The diagonal is divided by √2; what is above it stands for two entries and stays.
    """
    precision = 1.0 / float(np.square(cast(np.ndarray, model.noise_scale)))
    beta = columns["x"] @ np.linalg.cholesky(at.cov)
    residual = columns["y"] - columns["x"] @ at.mean
    i, j = np.triu_indices(beta.shape[1])
    products = beta[:, i] * beta[:, j] * np.where(i == j, np.sqrt(0.5), 1.0)
    return precision * np.column_stack([residual[:, None] * beta, products])


_FACTORS: dict[type, Callable[[Any, Columns, Gaussian], np.ndarray]] = {
    GaussianMean: _gaussian_mean_factor,
    LinearRegression: _linear_factor,
}
