"""Divergences in nats: between Gaussians in closed form, and between π_w and π from draws.

A `Tangent` has rows as vectors in which the second is, to second order, half a squared distance.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float

from decoct.stats.chains import independent_draws

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Gaussian(NamedTuple):
    """A normal distribution.

    Attributes
    ----------
    mean : (d,)
    cov : (d, d)

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.stats import Gaussian
    >>> normal = Gaussian(np.zeros(2), np.diag([1.0, 4.0]))
    >>> normal.dim, normal.sd
    (2, array([1., 2.]))
    """

    mean: Float[np.ndarray, " d"]
    cov: Float[np.ndarray, "d d"]

    @property
    def dim(self) -> int:
        """d, the number of coordinates."""
        return len(self.mean)

    @property
    def sd(self) -> Float[np.ndarray, " d"]:
        """Standard deviation of each coordinate."""
        return np.sqrt(np.diag(self.cov))

    def sample(self, rng: np.random.Generator, n: int) -> Float[np.ndarray, "n d"]:
        """Return n independent draws."""
        factor = scipy.linalg.cholesky(self.cov, lower=True)
        return self.mean + rng.standard_normal((n, self.dim)) @ factor.T

    def log_density(self, z: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Return the log density at each row of z."""
        factor = scipy.linalg.cholesky(self.cov, lower=True)
        scaled = scipy.linalg.solve_triangular(factor, (z - self.mean).T, lower=True)
        log_det = np.log(np.diag(factor)).sum()
        return -0.5 * np.square(scaled).sum(axis=0) - log_det - 0.5 * self.dim * np.log(2 * np.pi)


def kl_gaussian(p: Gaussian, q: Gaussian) -> float:
    """Return KL(p‖q) between two Gaussians, in nats.

    KL = ½[tr(Σ_q⁻¹Σ_p) − d − ln det(Σ_q⁻¹Σ_p) + (μ_q − μ_p)ᵀΣ_q⁻¹(μ_q − μ_p)].

    Parameters
    ----------
    p, q
        `Gaussian`s, or anything with ``mean`` (d,) and ``cov`` (d, d).

    Returns
    -------
    float
        The divergence, in nats.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.stats import Gaussian, kl_gaussian
    >>> kl_gaussian(Gaussian(np.zeros(2), np.eye(2)), Gaussian(np.array([1.0, 0.0]), np.eye(2)))
    0.5
    """
    factor = scipy.linalg.cho_factor(np.asarray(q.cov), lower=True)
    p_factor = scipy.linalg.cholesky(np.asarray(p.cov), lower=True)
    scaled = scipy.linalg.solve_triangular(factor[0], p_factor, lower=True)
    # Singular values of L_q⁻¹L_p: each adds ½(s² − 1 − ln s²) ≥ 0, without cancellation.
    excess = np.square(np.linalg.svd(scaled, compute_uv=False)) - 1.0
    shift = np.asarray(q.mean) - np.asarray(p.mean)
    spread = 0.5 * float((excess - np.log1p(excess)).sum())
    return spread + 0.5 * float(shift @ scipy.linalg.cho_solve(factor, shift))


class EstimatedKL(NamedTuple):
    """Both divergences from log ratios at draws of π_w, in nats, with Monte Carlo errors.

    Attributes
    ----------
    reverse, reverse_se
        KL(π_w‖π) and its standard error.
    forward, forward_se
        KL(π‖π_w) and its standard error.
    half_variance
        ½Var(D), the leading term of both.
    reverse_low, reverse_high
        A 95 % interval of KL(π_w‖π).

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.stats.divergences import kl_from_log_ratios
    >>> found = kl_from_log_ratios(0.1 * np.random.default_rng(0).normal(size=1000))
    >>> found.reverse_low < found.reverse < found.reverse_high
    True
    """

    reverse: float
    reverse_se: float
    forward: float
    forward_se: float
    half_variance: float
    reverse_low: float
    reverse_high: float


def kl_from_log_ratios(log_ratios: Float[np.ndarray, "*chains S"]) -> EstimatedKL:
    """Estimate KL(π_w‖π) and KL(π‖π_w) from log ratios D_s = ℓ(θ_s) − ℓ_w(θ_s), θ_s ~ π_w.

    KL(π_w‖π) = log mean e^D − mean D and KL(π‖π_w) = Σ r D − log mean e^D with r = softmax(D).
    Standard errors come from the influence functions e^D/mean(e^D) − 1 − (D − mean D) and
    r S (D − KL_f − log mean e^D) − (e^D/mean(e^D) − 1); with chains on the first axis their
    effective sample size n takes the place of S.

    The first of them is skewed: the draws that add most to KL(π_w‖π) are rare, and a sample that
    lacks them has too small an estimate and too small an error. With γ its skewness, σ its standard
    deviation and u = 1.96/√n, the 95 % interval is

        [KL − σu,  KL + σ (3/γ) (1 − (1 − γ(u + γ/6n))^⅓)],

    the upper end by the transformation of Hall (1992) that takes the skewness away, the lower end
    left where it is. Both are never below 0.

    Parameters
    ----------
    log_ratios : (S,) or (chains, S)
        Independent draws, or one row per Markov chain.

    Returns
    -------
    EstimatedKL
        Both divergences in nats, with their standard errors.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.stats import kl_from_log_ratios
    >>> found = kl_from_log_ratios(np.random.default_rng(0).normal(scale=0.1, size=10_000))
    >>> round(found.reverse, 3), round(found.half_variance, 3)
    (0.005, 0.005)
    """
    chains = np.atleast_2d(np.asarray(log_ratios, dtype=np.float64))
    centred = chains - chains.mean()
    log_mean = float(scipy.special.logsumexp(centred) - np.log(centred.size))
    relative = np.exp(centred - log_mean)  # r S
    forward = float((relative * centred).mean()) - log_mean
    reverse_influence = relative - 1.0 - centred
    forward_influence = relative * (centred - forward - log_mean) - (relative - 1.0)
    dependent = np.ndim(log_ratios) == 2
    # Divergences of empirical distributions: only rounding takes them below 0.
    reverse, forward = np.maximum(0.0, [log_mean, forward]).tolist()
    reverse_se, above = _errors(reverse_influence, dependent)
    return EstimatedKL(
        reverse,
        reverse_se,
        forward,
        _errors(forward_influence, dependent)[0],
        0.5 * float(centred.var(ddof=1)) if centred.size > 1 else 0.0,
        float(np.maximum(0.0, reverse - 1.96 * reverse_se)),
        reverse + above,
    )


def _errors(influence: Float[np.ndarray, "chains S"], dependent: bool) -> tuple[float, float]:
    """Return the standard error of a mean, and how far above it its 95 % interval reaches."""
    if influence.size < 2:
        return np.inf, np.inf
    spread = float(influence.std(ddof=1))
    if not spread > 0.0:
        return spread, spread
    n = independent_draws(influence) if dependent else float(influence.size)
    skewness = float((((influence - influence.mean()) / spread) ** 3).mean())
    u = 1.96 / np.sqrt(n)
    if skewness == 0.0:
        return spread / np.sqrt(n), spread * u
    cubic = np.cbrt(1.0 - skewness * (u + skewness / (6.0 * n)))
    return spread / np.sqrt(n), float(spread * 3.0 / skewness * (1.0 - cubic))


class Tangent(NamedTuple):
    """Rows as centred vectors at draws: the tangent space at a weighting distribution.

    With g_n the centred potentials of row n at S draws of π̂ and b = Σ_n g_n over all N rows,

        ½ ‖(b − Σ w_n g_n)/√S‖² ≈ ½ Var_π̂[Σ (1 − w_n) f_n] ≈ KL(π_w‖π)

    when π̂ is near π_w (Campbell & Beronov 2019, §4: the local metric of KL; Hilbert coresets,
    Eq. 4).
    """

    vectors: Float[np.ndarray, "P S"]  # g_n/√S of a pool of rows
    target: Float[np.ndarray, " S"]  # b/√S

    def predicted_kl(self, positions: np.ndarray, weights: Float[np.ndarray, " m"]) -> float:
        """Return ½‖target − Σ w_n vectors_n‖² in nats."""
        residual = self.target - weights @ self.vectors[positions]
        return 0.5 * float(residual @ residual)


def tangent(potentials: Float[np.ndarray, "P S"], totals: Float[np.ndarray, " S"]) -> Tangent:
    """Centre potentials and totals over the draws and scale them to nats."""
    scale = 1.0 / np.sqrt(max(1, potentials.shape[1] - 1))
    vectors = (potentials - potentials.mean(axis=1, keepdims=True)) * scale
    return Tangent(vectors, (totals - totals.mean()) * scale)
