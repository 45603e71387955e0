"""Divergences in nats: between Gaussians in closed form, and between π_w and π from draws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.special import logsumexp


class Gaussian(NamedTuple):
    """A normal distribution.

    Attributes
    ----------
    mean : (d,)
    cov : (d, d)
    """

    mean: Float[np.ndarray, " d"]
    cov: Float[np.ndarray, "d d"]

    @property
    def dim(self) -> int:
        return len(self.mean)

    @property
    def sd(self) -> Float[np.ndarray, " d"]:
        """Standard deviation of each coordinate."""
        return np.sqrt(np.diag(self.cov))

    def sample(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, "n d"]:
        """Return n independent draws."""
        factor = cholesky(self.cov, lower=True)
        return self.mean + rng.standard_normal((n, self.dim)) @ factor.T

    def log_density(self, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Return the log density at each row of z."""
        factor = cholesky(self.cov, lower=True)
        scaled = solve_triangular(factor, (z - self.mean).T, lower=True)
        log_det = np.log(np.diag(factor)).sum()
        return -0.5 * np.square(scaled).sum(axis=0) - log_det - 0.5 * self.dim * np.log(2 * np.pi)


def kl_gaussian(p: Gaussian, q: Gaussian) -> float:
    """Return KL(p‖q) between two Gaussians, in nats.

    KL = ½[tr(Σ_q⁻¹Σ_p) − d − ln det(Σ_q⁻¹Σ_p) + (μ_q − μ_p)ᵀΣ_q⁻¹(μ_q − μ_p)].

    Parameters
    ----------
    p, q
        `Gaussian`s, or anything with ``mean`` (d,) and ``cov`` (d, d).

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.diagnostics import Gaussian, kl_gaussian
    >>> kl_gaussian(Gaussian(np.zeros(2), np.eye(2)), Gaussian(np.array([1.0, 0.0]), np.eye(2)))
    0.5
    """
    factor = cho_factor(np.asarray(q.cov), lower=True)
    p_factor = cholesky(np.asarray(p.cov), lower=True)
    scaled = solve_triangular(factor[0], p_factor, lower=True)
    # Singular values of L_q⁻¹L_p: each adds ½(s² − 1 − ln s²) ≥ 0, without cancellation.
    excess = np.square(np.linalg.svd(scaled, compute_uv=False)) - 1.0
    shift = np.asarray(q.mean) - np.asarray(p.mean)
    spread = 0.5 * float((excess - np.log1p(excess)).sum())
    return spread + 0.5 * float(shift @ cho_solve(factor, shift))


class PathKL(NamedTuple):
    """Both divergences from log ratios D_s = log π(θ_s) − log π_w(θ_s) + const, θ_s ~ π_w."""

    reverse: float
    forward: float
    half_variance: float


def kl_from_log_ratios(log_ratios: Float[np.ndarray, " S"]) -> PathKL:
    """Return KL(π_w‖π), KL(π‖π_w) and ½Var(D) from unnormalised log ratios at draws of π_w.

    KL(π_w‖π) = log mean e^D − mean D and KL(π‖π_w) = Σ r D − log mean e^D with r = softmax(D);
    both are ½Var(D) to leading order.
    """
    centred = log_ratios - log_ratios.mean()
    log_mean = float(logsumexp(centred) - np.log(len(centred)))
    ratios = np.exp(centred - logsumexp(centred))
    forward = float(ratios @ centred) - log_mean
    half_variance = 0.5 * float(centred.var(ddof=1)) if len(centred) > 1 else 0.0
    return PathKL(max(log_mean, 0.0), max(forward, 0.0), half_variance)
