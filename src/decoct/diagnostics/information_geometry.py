"""The information geometry of coresets (Campbell & Beronov 2019, Section 4 and Appendix A, B).

The coreset posteriors π_w are an exponential family in w ≥ 0, and a manifold with the Fisher metric

    G(w) = ∇² log Z(w) = Cov_w[f]                                                     (Eq. 14)

over the N rows. The tangent of the path from w straight to v is v − w, with ⟨u, v⟩_w = uᵀG(w)v:

    J_ŵ(w) = Var_ŵ[Σ(1 − w_n)f_n] = ‖1 − w‖²_ŵ, the objective of Hilbert coresets      (Eq. 3, 16)
    min over t > 0 of ‖(1 − w) − t 1_n‖²_w = ‖1 − w‖²_w (1 − max(0, Corr_n)²)          (Eq. 17, 44)
    Corr_n = Corr_w[f_n, (1 − w)ᵀf], the cosine of the angle of 1_n and 1 − w          (Eq. 10, 46)

so the row most correlated with the residual is the one whose path leads closest to π. And

    KL(π_w‖π) + KL(π‖π_w) ≤ C J_ŵ(w),
    C = E λ_max(G(ŵ)^(−½) G((1 − U)w + U 1) G(ŵ)^(−½)),  U ~ Unif[0, 1]                (Prop. 2)

G has N rows, but a rank r that is often far smaller (D + 1 for `GaussianMean`), so that G(ŵ) has no
inverse. λ_max is therefore the largest vᵀG(γ(U))v/vᵀG(ŵ)v over the v with vᵀG(ŵ)v > 0. Where some
v has vᵀG(ŵ)v = 0 < vᵀG(γ(U))v, no multiple of J bounds anything, and C is infinite. For two members
of the family this cannot be: π_ŵ and π_γ are positive where the prior is, so that a combination of
potentials which is constant under one is constant under the other.

G is a factor A with G = AAᵀ here, never an N × N matrix: potentials at draws, centred, or in closed
form with ν_n, β_n of the equations (Q Qᵀ = Σ, L Lᵀ = Σ_w)

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
from decoct.diagnostics.divergences import Gaussian
from decoct.errors import ModelError, RequestError
from decoct.models.base import AbstractModel
from decoct.models.conjugate import AbstractConjugate
from decoct.models.gaussian import GaussianMean
from decoct.models.linear import LinearRegression
from decoct.precision import float64

EPS = float(np.finfo(np.float64).eps)

ROUNDING = 16.0 * EPS
"""Error of a computed potential, relative to its size."""

OUTSIDE = 1e-8
"""Share of a metric that may lie outside the range of another one by rounding alone."""


@dataclass(frozen=True, eq=False)
class Metric:
    """The Fisher metric G(w) = AAᵀ at one point of the manifold (Eq. 14), over n rows.

    Tangent vectors are (n,): a change of the rows' weights. G is in nats².

    Attributes
    ----------
    factor : (n, k)
        A.
    rounding : (n,)
        Length of the part of each row of A that may be nothing but rounding.
    draws
        How many draws G was estimated from; None in closed form.
    """

    factor: Float[np.ndarray, "n k"]
    rounding: Float[np.ndarray, " n"]
    draws: int | None = None

    @property
    def n_rows(self) -> int:
        return len(self.factor)

    @property
    def matrix(self) -> Float[np.ndarray, "n n"]:
        """G itself; n² numbers."""
        return self.factor @ self.factor.T

    def inner(self, u: np.ndarray, v: np.ndarray) -> float:
        """Return ⟨u, v⟩_w = uᵀG(w)v for tangent vectors (n,)."""
        return float(self._image(u) @ self._image(v))

    def norm(self, u: np.ndarray) -> float:
        """Return ‖u‖_w = √(uᵀG(w)u), the standard deviation of Σ u_n f_n under π_w."""
        return float(np.linalg.norm(self._image(u)))

    def cosine(self, u: np.ndarray, v: np.ndarray) -> float:
        """Return the cosine of the angle of u and v: Corr_w[uᵀf, vᵀf] (Eq. 46).

        Raises
        ------
        RequestError
            A vector has length 0 and so no direction, or does not fit the metric.
        """
        return float(self._direction(u) @ self._direction(v))

    def angle(self, u: np.ndarray, v: np.ndarray) -> float:
        """Return the angle of u and v, in radians; small angles are exact. Errors as `cosine`."""
        a, b = self._direction(u), self._direction(v)
        return float(2.0 * np.arctan2(np.linalg.norm(a - b), np.linalg.norm(a + b)))

    def _image(self, u: np.ndarray) -> Float[np.ndarray, " k"]:
        """Return Aᵀu, whose plain length is ‖u‖_w."""
        return per_row("The tangent vector", u, self.n_rows) @ self.factor

    def _direction(self, u: np.ndarray) -> Float[np.ndarray, " k"]:
        image = self._image(u)
        length = np.linalg.norm(image)
        if length == 0.0:
            raise RequestError(
                "A tangent vector has length 0 under this metric, so it has no direction; the "
                "combination of potentials it stands for is constant."
            )
        return image / length


def metric(vectors: Float[np.ndarray, "..."]) -> Metric:
    """Estimate G(w) = Cov_w[f] from the potentials of some rows at draws of π_w (Eq. 14).

    Unbiased for independent draws: centred over the draws, divided by S − 1.

    Parameters
    ----------
    vectors : (n, S)
        f_n(θ_s) at S draws θ_s of π_w, as `Potentials.vectors` returns them.

    Raises
    ------
    RequestError
        Not an (n, S) array with at least one row and two draws, or a value is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.diagnostics.information_geometry import metric
    >>> g = metric(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 3.0]]))
    >>> g.matrix
    array([[1. , 1.5],
           [1.5, 3. ]])
    >>> round(g.cosine(np.array([1.0, 0.0]), np.array([0.0, 1.0])), 3)
    0.866
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    if vectors.ndim != 2 or not len(vectors) or vectors.shape[1] < 2:
        raise RequestError(
            f"The potentials have the shape {vectors.shape}; (n, S) is wanted, with at least one "
            "row and two draws."
        )
    if not np.isfinite(vectors).all():
        row, draw = np.argwhere(~np.isfinite(vectors))[0]
        raise RequestError(f"The potential of row {row} at draw {draw} is {vectors[row, draw]}.")
    n_draws = vectors.shape[1]
    # From the first draw, so that a constant potential is exactly 0.
    centred = vectors - vectors[:, :1]
    centred -= centred.mean(axis=1, keepdims=True)
    largest = np.abs(vectors).max(axis=1)
    return Metric(centred / np.sqrt(n_draws - 1), ROUNDING * largest, n_draws)


@float64
def exact_metric(model: AbstractModel, rows: Rows | object, at: np.ndarray | Gaussian) -> Metric:
    """Return G in closed form: `GaussianMean` (Eq. 21) and `LinearRegression` (Eq. 24).

    The factor has D + 1 columns for the mean of a Gaussian, D + D(D + 1)/2 for a regression.

    Parameters
    ----------
    model
        `GaussianMean`, or `LinearRegression` with known noise.
    rows
        The rows G is over, held in memory: anything `decoct.rows` accepts.
    at : (n,)
        w ≥ 0, the point of the manifold; or the distribution of θ itself, as a `Gaussian`.

    Raises
    ------
    ModelError
        The model has no closed form.
    RequestError
        The weights or the Gaussian do not fit.
    RowsError
        The rows cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> import decoct
    >>> from decoct.diagnostics.information_geometry import exact_metric
    >>> model = decoct.models.GaussianMean(covariance=1.0)
    >>> g = exact_metric(model, {"x": np.array([0.0, 1.0])}, np.zeros(2))  # π_0 is N(0, 1)
    >>> bool(np.allclose(g.matrix, [[0.5, 0.5], [0.5, 1.5]]))
    True
    """
    family = _Family.of(model, rows)
    return family.metric(family.at(at))


def residual_correlations(at: Metric, weights: np.ndarray) -> Float[np.ndarray, " n"]:
    """Return Corr_w[f_n, (1 − w)ᵀf] of every row, the cosine of 1_n and 1 − w (Eq. 10, 46).

    Greedy selection takes the largest, by modulus among the rows with w_n > 0. A row whose
    potential is constant under π_w gets 0: no weight on it moves π_w.

    Parameters
    ----------
    at
        G(w) over *all* rows: the residual is a sum over all of them.
    weights : (n,)
        w.

    Raises
    ------
    RequestError
        The weights do not fit, or the residual is constant under π_w: π is reached already.
    """
    residual = at._direction(1.0 - per_row("The vector of weights", weights, at.n_rows))
    norms = np.linalg.norm(at.factor, axis=1)
    return (at.factor @ residual) / np.where(norms > 0.0, norms, 1.0)


def hilbert_objective(reference: Metric, weights: np.ndarray) -> float:
    """Return J_ŵ(w) = Var_ŵ[Σ(1 − w_n)f_n] = ‖1 − w‖²_ŵ, in nats² (Eq. 3, 16).

    Parameters
    ----------
    reference
        G(ŵ) over all rows.
    weights : (n,)
        w.
    """
    weights = per_row("The vector of weights", weights, reference.n_rows)
    return reference.norm(1.0 - weights) ** 2


def largest_ratio(of: Metric, reference: Metric) -> float:
    """Return λ_max(Ĝ^(−½) G Ĝ^(−½)) on the range of Ĝ, or infinity if G has more range than Ĝ.

    It does not change when potentials are scaled. Between metrics from S draws and a rank r it is
    too large by about ((1 + √(r/S))/(1 − √(r/S)))², so S should be many times the rank.

    Parameters
    ----------
    of, reference
        G and Ĝ, over the same rows.

    Raises
    ------
    RequestError
        The metrics are over different numbers of rows, or the reference was estimated from too few
        draws to see its range.
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
    model, rows
        As for `exact_metric`; all N rows.
    weights : (N,)
        w ≥ 0, the coreset's weights, 0 for the rows left out.
    reference : (N,)
        ŵ ≥ 0, or π̂ itself as a `Gaussian`.

    Raises
    ------
    ModelError
        The model has no closed form; use `hilbert_bound_from_draws`.
    RequestError
        Weights that do not fit, or a quadrature that did not converge.
    RowsError
        The rows cannot be used.

    Examples
    --------
    >>> import numpy as np
    >>> import decoct
    >>> from decoct.diagnostics.information_geometry import hilbert_bound
    >>> model = decoct.models.GaussianMean(covariance=1.0)
    >>> x, one_row = {"x": np.array([-1.0, 0.0, 1.0])}, np.array([0.0, 3.0, 0.0])
    >>> hilbert_bound(model, x, one_row, reference=np.ones(3)).bound < 1e-9  # the same posterior
    True
    """
    family = _Family.of(model, rows)
    weights = nonnegative_weights(weights, family.n_rows)
    at_reference = family.metric(family.at(reference))
    seen, path = MetricRange.of(at_reference), family.path(weights)

    def ratio(t: float) -> float:
        return seen.largest_ratio(family.metric(path(t)))

    objective = hilbert_objective(at_reference, weights)
    if not np.isfinite(ratio(0.5)):
        return HilbertBound(np.inf, 0.0, objective, True)
    constant, error, *rest = quad(ratio, 0.0, 1.0, epsrel=1e-6, limit=200, full_output=1)
    if len(rest) > 1:
        raise RequestError(
            f"The quadrature over the path from w to 1 did not converge ({rest[1]}); the reference "
            "is too far from the path."
        )
    return HilbertBound(float(constant), float(error), objective, True)


def per_row(what: str, values: np.ndarray, n_rows: int) -> Float[np.ndarray, " n"]:
    """Return one finite number per row.

    Raises
    ------
    RequestError
        The shape is another, or a number is not finite; the message names it.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (n_rows,):
        raise RequestError(
            f"{what} has the shape {values.shape}; there are {n_rows} rows, so ({n_rows},) is "
            "wanted, with 0 for the rows left out."
        )
    if not np.isfinite(values).all():
        bad = int(np.argmin(np.isfinite(values)))
        raise RequestError(f"{what} has the entry {values[bad]} at row {bad}.")
    return values


def nonnegative_weights(weights: np.ndarray, n_rows: int) -> Float[np.ndarray, " n"]:
    """Return weights w ≥ 0, one per row."""
    weights = per_row("The vector of weights", weights, n_rows)
    if (weights < 0.0).any():
        bad = int(np.argmax(weights < 0.0))
        raise RequestError(f"The weight of row {bad} is {weights[bad]}; weights are not negative.")
    return weights


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
class _Family:
    """The posteriors π_w of a conjugate model over rows in memory, and their metric."""

    model: AbstractConjugate
    columns: Columns
    n_rows: int
    factor: Callable[[Any, Columns, Gaussian], np.ndarray]

    @classmethod
    def of(cls, model: AbstractModel, rows: Rows | object) -> _Family:
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
                    f"The Gaussian has {np.size(point.mean)} dimensions, the model has {dim}."
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


@eqx.filter_jit
def _sufficient(model: AbstractConjugate, columns, weights):
    return model.sufficient(columns, weights)


@eqx.filter_jit
def _posterior(model: AbstractConjugate, statistics):
    return model.exact_posterior(statistics)


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
