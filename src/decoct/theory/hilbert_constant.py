"""Variation of the metric between ŵ and the path from w to π (Campbell & Beronov 2019, Prop. 2).

    KL(π_w‖π) + KL(π‖π_w) ≤ C J_ŵ(w),
    C = E λ_max(G(ŵ)^(−½) G((1 − U)w + U 1) G(ŵ)^(−½)),  U ~ Unif[0, 1]                (Prop. 2)

G has N rows, but a rank r that is often far smaller (D + 1 for `GaussianMean`), so that G(ŵ) has no
inverse. λ_max is therefore the largest vᵀG(γ(U))v/vᵀG(ŵ)v over the v with vᵀG(ŵ)v > 0. Where some
v has vᵀG(ŵ)v = 0 < vᵀG(γ(U))v, no multiple of J bounds anything, and C is infinite. For two members
of the family this cannot be: π_ŵ and π_γ are positive where the prior is, so that a combination of
potentials which is constant under one is constant under the other. C is in closed form for two
models, and is otherwise estimated from draws of π̂ and of the π_γ(U). With Q Qᵀ = Σ, L Lᵀ = Σ_w,

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
from scipy.integrate import quad

from decoct.data.base import Columns, Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import ModelError, RequestError
from decoct.models.base import AbstractModel
from decoct.models.conjugate import AbstractConjugate
from decoct.models.gaussian import GaussianMean
from decoct.models.linear import LinearRegression
from decoct.runtime.precision import float64
from decoct.samplers.base import Sampler
from decoct.samplers.datatree import unconstrained
from decoct.stats.divergences import Gaussian
from decoct.theory.information_geometry import (
    EPS,
    Metric,
    hilbert_objective,
    metric,
    nonnegative_weights,
)
from decoct.theory.path_divergence import PosteriorPath, paired_error

OUTSIDE = 1e-8
"""Share of a metric that may lie outside the range of another one by rounding alone."""


def largest_ratio(of: Metric, reference: Metric) -> float:
    """Return λ_max(Ĝ^(−½) G Ĝ^(−½)) on the range of Ĝ, or infinity if G has more range than Ĝ.

    It does not change when potentials are scaled. Between metrics from S draws and a rank r it is
    too large by about ((1 + √(r/S))/(1 − √(r/S)))², so S should be many times the rank.

    Parameters
    ----------
    of, reference
        G and Ĝ, over the same rows.

    Returns
    -------
    float
        λ_max ≥ 0, without unit; may be infinite.

    Raises
    ------
    RequestError
        The metrics are over different numbers of rows, or the reference was estimated from too few
        draws to see its range.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory.information_geometry import metric
    >>> from decoct.theory.hilbert_constant import largest_ratio
    >>> at = metric(np.random.default_rng(0).normal(size=(4, 200)))
    >>> round(largest_ratio(at, at), 6)
    1.0
    """
    return MetricRange.of(reference).largest_ratio(of)


@dataclass(frozen=True)
class HilbertBound:
    """Proposition 2: KL(π_w‖π) + KL(π‖π_w) ≤ C J.

    Attributes
    ----------
    constant
        C_ŵ(w), how far the metric varies from ŵ along the way from w to 1; may be infinite.
    constant_se
        Its Monte Carlo error over the points of the path; of an exact constant, the error of the
        quadrature.
    objective
        J_ŵ(w), in nats².
    exact
        Whether both are in closed form; else they are estimates, and so is the bound.

    Examples
    --------
    >>> from decoct.theory import HilbertBound
    >>> HilbertBound(constant=2.0, constant_se=0.0, objective=0.1, exact=True).bound
    0.2
    """

    constant: float
    constant_se: float
    objective: float
    exact: bool

    @property
    def bound(self) -> float:
        """C J, in nats."""
        return self.constant * self.objective if np.isfinite(self.constant) else np.inf

    def __str__(self) -> str:
        error = "" if self.exact else f" ± {self.constant_se:.2g}"
        return (
            f"KL(coreset‖full) + KL(full‖coreset) ≤ C J = {self.bound:.4g} nats, with "
            f"C = {self.constant:.4g}{error}, J = {self.objective:.4g}"
        )


@float64
def hilbert_bound(
    model: AbstractModel, rows: Rows | object, weights: np.ndarray, reference: np.ndarray | Gaussian
) -> HilbertBound:
    """Return C and J of Proposition 2 in closed form; C by quadrature over the path.

    Parameters
    ----------
    model
        `GaussianMean`, or `LinearRegression` with known noise.
    rows
        All N rows, in memory: anything `decoct.rows` accepts.
    weights : (N,)
        w ≥ 0, the coreset's weights, 0 for the rows left out.
    reference : (N,)
        ŵ ≥ 0, or π̂ itself as a `Gaussian`.

    Returns
    -------
    HilbertBound
        C, J in nats², and the error of C.

    Raises
    ------
    ModelError
        The model has no closed form; use `hilbert_bound_from_draws`.
    RequestError
        Weights that do not fit.
    RowsError
        The rows cannot be used.

    Warns
    -----
    scipy.integrate.IntegrationWarning
        The quadrature did not converge: the reference is too far from the path.

    Examples
    --------
    >>> import numpy as np
    >>> import decoct
    >>> from decoct.theory.hilbert_constant import hilbert_bound
    >>> model = decoct.models.GaussianMean(covariance=1.0)
    >>> x, one_row = {"x": np.array([-1.0, 0.0, 1.0])}, np.array([0.0, 3.0, 0.0])
    >>> hilbert_bound(model, x, one_row, reference=np.ones(3)).bound < 1e-9  # the same posterior
    True
    """
    family = ConjugateFamily.of(model, rows)
    weights = nonnegative_weights(weights, family.n_rows)
    at_reference = family.metric(family.at(reference))
    seen, path = MetricRange.of(at_reference), family.path(weights)

    def ratio(t: float) -> float:
        return seen.largest_ratio(family.metric(path(t)))

    objective = hilbert_objective(at_reference, weights)
    if not np.isfinite(ratio(0.5)):
        return HilbertBound(np.inf, 0.0, objective, True)
    constant, error = quad(ratio, 0.0, 1.0, epsrel=1e-6, limit=200)
    return HilbertBound(float(constant), float(error), objective, True)


@float64
def hilbert_bound_from_draws(
    model: AbstractModel,
    rows: Rows | object,
    weights: np.ndarray,
    reference: Float[np.ndarray, "..."],
    *,
    key: jax.Array,
    sampler: Sampler | None = None,
    points: int = 20,
    draws: int = 1000,
) -> HilbertBound:
    """Estimate C and J of Proposition 2 from draws: KL(π_w‖π) + KL(π‖π_w) ≤ C J.

    Both metrics are over all N rows, N × S numbers each. C comes out too large when S is not many
    times the rank of the metric: see `largest_ratio`. `hilbert_bound` is exact where there are
    closed forms.

    Parameters
    ----------
    model, rows, weights, key, sampler, draws
        As for `path_divergences`.
    reference : (S, d)
        Draws of the weighting distribution π̂ in unconstrained space, more of them than rows.
    points
        Points of the path in all.

    Returns
    -------
    HilbertBound
        C, J in nats², and the error of C.

    Raises
    ------
    RequestError
        As for `path_divergences`; or the reference draws do not fit the model, or are too few to
        see the range of their metric.
    ModelError, RowsError
        As for `path_divergences`.

    Examples
    --------
    >>> import decoct, jax, numpy as np
    >>> from decoct.theory import hilbert_bound_from_draws
    >>> model, rows = decoct.models.GaussianMean(1.0), {"x": np.array([-1.0, 0.0, 1.0])}
    >>> draws = np.random.default_rng(0).normal(scale=0.5, size=(500, 1))
    >>> weights, key = np.array([0.0, 3.0, 0.0]), jax.random.key(0)
    >>> found = hilbert_bound_from_draws(model, rows, weights, draws, key=key, points=4)
    >>> found.bound >= 0.0
    True
    """
    path = PosteriorPath.of(model, rows, weights, sampler)
    dim = path.potentials.dim
    at_reference = metric(path.vectors(unconstrained(reference, dim).reshape(-1, dim)))
    seen = MetricRange.of(at_reference)
    ratios = np.array(
        [
            seen.largest_ratio(metric(path.vectors(drawn.flat[:draws])))
            for _, drawn in path.points("symmetrised", key, points, draws)
        ]
    )
    objective = hilbert_objective(at_reference, path.weights)
    if not np.isfinite(ratios).all():
        return HilbertBound(np.inf, 0.0, objective, False)
    return HilbertBound(float(ratios.mean()), paired_error(ratios), objective, False)


@dataclass(frozen=True, eq=False)
class MetricRange:
    """The range of a reference metric: an orthonormal basis, and what whitens the metric there.

    Rows are first brought to length 1, which no ratio sees: their units then cannot hide a
    direction behind another one.
    """

    norms: Float[np.ndarray, " n"]
    basis: Float[np.ndarray, "n r"]
    singular: Float[np.ndarray, " r"]

    @classmethod
    def of(cls, reference: Metric) -> MetricRange:
        norms = np.linalg.norm(reference.factor, axis=1)
        lengths = np.where(norms > 0.0, norms, 1.0)
        basis, singular, _ = np.linalg.svd(reference.factor / lengths[:, None], full_matrices=False)
        noise = np.linalg.norm(np.where(norms > 0.0, reference.rounding / lengths, 0.0))
        cut = max(reference.factor.shape) * EPS * singular[0] + noise
        rank = int((singular > cut).sum())
        if reference.draws is not None and rank == reference.draws - 1 < reference.n_rows:
            raise RequestError(
                f"The reference metric over {reference.n_rows} rows comes from {reference.draws} "
                f"draws, which span only {rank} directions; take more draws than rows."
            )
        return cls(norms, basis[:, :rank], singular[:rank])

    def largest_ratio(self, other: Metric) -> float:
        if other.n_rows != len(self.norms):
            raise RequestError(
                f"One metric is over {other.n_rows} rows, the reference over {len(self.norms)}."
            )
        constant = self.norms == 0.0
        if (np.linalg.norm(other.factor[constant], axis=1) > other.rounding[constant]).any():
            return np.inf
        lengths = np.where(constant, 1.0, self.norms)
        factor = np.where(constant[:, None], 0.0, other.factor / lengths[:, None])
        noise = float(np.linalg.norm(np.where(constant, 0.0, other.rounding / lengths)))
        inside = self.basis.T @ factor
        outside = np.linalg.norm(factor - self.basis @ inside)
        if outside > OUTSIDE * np.linalg.norm(factor) + noise:
            return np.inf
        if not len(self.singular):
            return 0.0
        return float(np.linalg.norm(inside / self.singular[:, None], ord=2)) ** 2


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
