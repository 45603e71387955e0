"""Gaussian location: x_n ~ N(θ, Σ) with known Σ, θ ~ N(μ₀, Σ₀).

The synthetic experiment of Campbell & Beronov (2019, Section 5.1) and Campbell & Broderick (2019,
Section 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from decoct.errors import ModelError, RowsError
from decoct.models.base import EncodedColumns, Params, PerRow, RawRows, numeric
from decoct.models.conjugate import AbstractConjugate, MeanAndCov, gaussian_from_information
from decoct.stats.divergences import HALF_LOG_2PI


class GaussianMean(AbstractConjugate):
    """The mean of a Gaussian of known covariance; rows ``{"x": (N, D)}``.

    f_n(θ) = −½(x_n − θ)ᵀΣ⁻¹(x_n − θ) − ½ log|2πΣ|, with parameters ``{"mean": (D,)}``.

    Parameters
    ----------
    covariance
        Σ, (D, D); a number stands for (1, 1).
    prior_mean
        μ₀, (D,); a number for all entries alike.
    prior_covariance
        Σ₀, (D, D); a number for that multiple of the identity.

    Raises
    ------
    ModelError
        A covariance is not symmetric positive definite, or the shapes disagree.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> model = decoct.models.GaussianMean(np.eye(2), prior_covariance=10.0)
    >>> decoct.laplace(model, {"x": np.ones((100, 2))}).mean.round(2)
    array([1., 1.])
    """

    covariance: np.ndarray
    prior_mean: np.ndarray
    prior_covariance: np.ndarray

    kind: ClassVar[str] = "gaussian_mean"

    def __init__(self, covariance: Any, prior_mean: Any = 0.0, prior_covariance: Any = 1.0) -> None:
        sigma = _numbers(covariance, "covariance")
        sigma = np.atleast_2d(sigma) if sigma.ndim == 0 else sigma
        dim = len(sigma)
        self.covariance = _spd(sigma, "covariance", dim)
        mean = _numbers(prior_mean, "prior_mean")
        if mean.shape not in ((), (dim,)):
            raise ModelError(
                f"prior_mean has the shape {mean.shape}; the {dim} x {dim} covariance needs "
                f"({dim},)."
            )
        self.prior_mean = np.array(np.broadcast_to(mean, (dim,)))
        prior = _numbers(prior_covariance, "prior_covariance")
        prior = prior * np.eye(dim) if prior.ndim == 0 else prior
        self.prior_covariance = _spd(prior, "prior_covariance", dim)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("x",)

    def init(self, rows: RawRows) -> Params:
        return {"mean": np.array(self.prior_mean)}

    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> PerRow:
        """Return log N(x_n | θ, Σ), in nats."""
        chol = jnp.linalg.cholesky(self.covariance)
        # rows and mean are whitened apart: under vmap over θ the rows are whitened only once
        x = solve_triangular(chol, jnp.asarray(rows["x"]).T, lower=True)
        mean = solve_triangular(chol, params["mean"], lower=True)
        return -0.5 * jnp.sum((x - mean[:, None]) ** 2, axis=0) - _log_normaliser(chol)

    def log_prior(self, params: Params) -> Float[Array, ""]:
        """Return log N(θ | μ₀, Σ₀)."""
        chol = jnp.linalg.cholesky(self.prior_covariance)
        white = solve_triangular(chol, params["mean"] - self.prior_mean, lower=True)
        return -0.5 * jnp.sum(white**2) - _log_normaliser(chol)

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        """Return ``{"x": (n, D) float64}``; (n,) is read as (n, 1).

        Raises
        ------
        RowsError
            The column is missing or not numeric, has other dimensions than Σ, or a value is not
            finite; the message names the row.
        """
        x = numeric(rows, "x", start)
        x = x[:, None] if x.ndim == 1 else x
        dim = len(self.covariance)
        if x.ndim != 2 or x.shape[1] != dim:
            raise RowsError(
                f"Column 'x' has the shape {x.shape}; the {dim} x {dim} covariance needs "
                f"{dim} numbers per row."
            )
        return {"x": x.astype(np.float64, copy=False)}

    def sufficient(self, rows: Mapping[str, Array], weights: PerRow) -> dict[str, Array]:
        """Return ``{"weight": Σ_n w_n, "total": Σ_n w_n x_n}``."""
        return {"weight": jnp.sum(weights), "total": weights @ rows["x"]}

    def exact_posterior(self, stats: dict[str, Array]) -> MeanAndCov:
        """Return mean and covariance of π_w.

        Σ_w⁻¹ = Σ₀⁻¹ + (Σ_n w_n) Σ⁻¹ and μ_w = Σ_w(Σ₀⁻¹μ₀ + Σ⁻¹ Σ_n w_n x_n)
        (Campbell & Beronov 2019, Appendix B).
        """
        eye = np.eye(len(self.covariance))
        likelihood = cho_solve((jnp.linalg.cholesky(self.covariance), True), eye)
        prior = cho_solve((jnp.linalg.cholesky(self.prior_covariance), True), eye)
        shift = prior @ self.prior_mean + likelihood @ stats["total"]
        return gaussian_from_information(prior + stats["weight"] * likelihood, shift)

    def coords(self, rows: RawRows) -> dict[str, tuple[str, list[str]]]:
        return {"mean": ("component", [f"x[{d}]" for d in range(len(self.covariance))])}

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"kind": ..., hyper-parameter: value, ...}``, ready for JSON."""
        names = ("covariance", "prior_mean", "prior_covariance")
        return {"kind": self.kind, **{name: getattr(self, name).tolist() for name in names}}


def _log_normaliser(chol: Float[Array, "d d"]) -> Float[Array, ""]:
    return jnp.sum(jnp.log(jnp.diagonal(chol))) + len(chol) * HALF_LOG_2PI


def _numbers(value: Any, name: str) -> np.ndarray:
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{name} must be numbers, not {value!r}.") from error
    if not np.isfinite(array).all():
        raise ModelError(f"{name} has a value that is not finite.")
    return array


def _spd(matrix: np.ndarray, name: str, dim: int) -> Float[np.ndarray, "d d"]:
    if matrix.shape != (dim, dim) or not dim:
        raise ModelError(f"{name} has the shape {matrix.shape}; it must be ({dim}, {dim}).")
    if np.abs(matrix - matrix.T).max() > 1e-10 * np.abs(matrix).max():
        raise ModelError(f"{name} is not symmetric.")
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError as error:
        raise ModelError(f"{name} is not positive definite.") from error
    return matrix
