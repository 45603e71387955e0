"""Normal-Wishart posteriors of the mean and the precision of Gaussian components.

q(μ_t, Λ_t) = N(μ_t; m_t, (β_t Λ_t)⁻¹) Wishart(Λ_t; W_t, ν_t), and the same with index 0 for the
prior. W_t⁻¹ = L_t L_tᵀ is what is kept, so no matrix is ever inverted: ln|W_t| = −2Σ ln diag L_t,
and with U_t = √ν_t L_t⁻¹ the quadratic form ν_t (x−m_t)ᵀW_t(x−m_t) is ‖U_t(x−m_t)‖². For counts
N_t, means x̄_t and scatters S_t = Σ_n γ_n r_nt (x_n−x̄_t)(x_n−x̄_t)ᵀ of the rows of component t,

    β_t = β₀ + N_t,   ν_t = ν₀ + N_t,   m_t = m₀ + (N_t/β_t)(x̄_t − m₀),                        (N1)
    W_t⁻¹ = W₀⁻¹ + S_t + (β₀N_t/β_t)(x̄_t − m₀)(x̄_t − m₀)ᵀ,                                    (N2)
    E ln|Λ_t| = Σ_{d=1..D} ψ((ν_t + 1 − d)/2) + D ln 2 + ln|W_t|,                               (N3)
    E ln N(x; μ_t, Λ_t⁻¹) = ½E ln|Λ_t| − (D/2) ln 2π − D/(2β_t) − ½‖U_t(x − m_t)‖²,             (N4)
    KL_t = ½[D ln(β_t/β₀) + Dβ₀/β_t − D + β₀‖U_t(m_t − m₀)‖²]
           + ln B_t − ln B₀ + ½(ν_t − ν₀)E ln|Λ_t| − ½ν_t D + ½ν_t tr(W₀⁻¹W_t),                 (N5)
    ln B = −½ν ln|W| − ½νD ln 2 − ¼D(D−1) ln π − Σ_d lnΓ((ν + 1 − d)/2).                        (N6)

The predictive density of a component is Student's t with ν_t + 1 − D degrees of freedom,

    E p(x) = St(x; m_t, (ν_t + 1 − D)β_t/(1 + β_t) W_t, ν_t + 1 − D).                           (N7)

Equations: Bishop (2006), §10.2 and Appendix B; Borsos, Bachem & Krause (2017), Alg. 2, where (N3)
lacks D ln 2 and (N4) the half of E ln|Λ_t|.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import get_lapack_funcs
from scipy.special import digamma, gammaln

from decoct.errors import ModelError

BROKEN_DOWN = (
    "Fitting the mixture model failed because some components have ill-defined empirical "
    "covariance (for instance caused by singleton or collapsed samples). Try to decrease the "
    "number of components, increase covariance_prior, or scale the input data."
)
"""scikit-learn's sentence, with our parameter."""


class NormalWishart(NamedTuple):
    """Posteriors of T components; a prior has no axis T.

    Attributes
    ----------
    mean : (T, D)
        m.
    mean_precision : (T,)
        β > 0.
    chol : (T, D, D)
        L, lower triangular with positive diagonal; LLᵀ = W⁻¹.
    dof : (T,)
        ν > D − 1.
    """

    mean: Float[np.ndarray, "*T D"]
    mean_precision: Float[np.ndarray, " *T"]
    chol: Float[np.ndarray, "*T D D"]
    dof: Float[np.ndarray, " *T"]


class Statistics(NamedTuple):
    """What the rows tell the components.

    Attributes
    ----------
    counts : (T,)
        N_t = Σ_n γ_n r_nt.
    means : (T, D)
        x̄_t, anything where N_t = 0.
    scatters : (T, D, D)
        S_t, about x̄_t.
    """

    counts: Float[np.ndarray, " T"]
    means: Float[np.ndarray, "T D"]
    scatters: Float[np.ndarray, "T D D"]


class Expected(NamedTuple):
    """What (N4) needs.

    Attributes
    ----------
    mean : (T, D)
        m.
    whiten : (T, D, D)
        U, lower triangular; UᵀU = νW.
    log_det : (T,)
        E ln|Λ|.
    offset : (T,)
        (N4) at x = m.
    """

    mean: Float[np.ndarray, "T D"]
    whiten: Float[np.ndarray, "T D D"]
    log_det: Float[np.ndarray, " T"]
    offset: Float[np.ndarray, " T"]


def updated(prior: NormalWishart, statistics: Statistics) -> NormalWishart:
    """Return the posteriors given the rows' statistics (N1, N2).

    Raises
    ------
    ModelError
        A W_t⁻¹ is not positive definite in float64.
    """
    counts, means, scatters = statistics
    beta = prior.mean_precision + counts
    away = means - prior.mean[None, :]
    pull = (prior.mean_precision * counts / beta)[:, None, None]
    inverse = (prior.chol @ prior.chol.T)[None] + scatters
    inverse += pull * (away[:, :, None] * away[:, None, :])
    try:
        chol = np.linalg.cholesky(inverse)
    except np.linalg.LinAlgError as error:
        raise ModelError(BROKEN_DOWN) from error
    mean = prior.mean[None, :] + (counts / beta)[:, None] * away
    return NormalWishart(mean, beta, chol, prior.dof + counts)


def expected(posterior: NormalWishart) -> Expected:
    """Return the expectations of (N3) and (N4)."""
    D = posterior.mean.shape[-1]
    (invert,) = get_lapack_funcs(("trtri",), (posterior.chol,))
    inverse = np.stack([invert(one, lower=1)[0] for one in posterior.chol])
    log_det = digamma(_halves(posterior.dof, D)).sum(axis=-1) + D * np.log(2.0)
    log_det = log_det - 2.0 * _half_log_det(posterior.chol)
    offset = 0.5 * (log_det - D * np.log(2.0 * np.pi) - D / posterior.mean_precision)
    whiten = np.sqrt(posterior.dof)[:, None, None] * inverse
    return Expected(posterior.mean, whiten, log_det, offset)


def expected_log_likelihood(
    components: Expected, statistics: Statistics
) -> Float[np.ndarray, " T"]:
    """Return Σ_n γ_n r_nt E ln N(x_n; μ_t, Λ_t⁻¹) of every component."""
    spread = (components.whiten @ statistics.scatters * components.whiten).sum(axis=(1, 2))
    away = np.einsum("tij,tj->ti", components.whiten, statistics.means - components.mean)
    squares = spread + statistics.counts * np.square(away).sum(axis=1)
    return statistics.counts * components.offset - 0.5 * squares


def divergence(
    prior: NormalWishart, posterior: NormalWishart, components: Expected
) -> Float[np.ndarray, " T"]:
    """Return KL(q(μ_t, Λ_t)‖p(μ_t, Λ_t)) of every component (N5)."""
    D = posterior.mean.shape[-1]
    beta, dof = posterior.mean_precision, posterior.dof
    away = np.einsum("tij,tj->ti", components.whiten, posterior.mean - prior.mean[None, :])
    ratio = prior.mean_precision / beta
    normal = 0.5 * (
        D * (ratio - 1.0 - np.log(ratio)) + prior.mean_precision * np.square(away).sum(axis=1)
    )
    # ν tr(W₀⁻¹W) = ‖U L₀‖²
    trace = np.square(components.whiten @ prior.chol).sum(axis=(1, 2))
    wishart = (
        _log_normaliser(posterior)
        - _log_normaliser(prior)
        + 0.5 * ((dof - prior.dof) * components.log_det - dof * D + trace)
    )
    return normal + wishart


def predictive(
    posterior: NormalWishart,
) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"], Float[np.ndarray, " T"]]:
    """Return (at, shrink, power): E p(x) of (N7) is e^at (1 + shrink·‖U(x − m)‖²)^−power."""
    D = posterior.mean.shape[-1]
    beta, nu = posterior.mean_precision, posterior.dof
    dof = nu + 1.0 - D
    at = gammaln(0.5 * (dof + D)) - gammaln(0.5 * dof) - 0.5 * D * np.log(np.pi)
    at = at + 0.5 * D * np.log(beta / (1.0 + beta)) - _half_log_det(posterior.chol)
    return at, beta / ((1.0 + beta) * nu), 0.5 * (dof + D)


def _halves(dof: Float[np.ndarray, " *T"], D: int) -> Float[np.ndarray, "*T D"]:
    """Return (ν + 1 − d)/2 for d = 1..D."""
    return 0.5 * (np.asarray(dof)[..., None] - np.arange(D))


def _half_log_det(chol: Float[np.ndarray, "*T D D"]) -> Float[np.ndarray, " *T"]:
    """Return Σ ln diag L = −½ ln|W|."""
    return np.log(np.diagonal(chol, axis1=-2, axis2=-1)).sum(axis=-1)


def _log_normaliser(q: NormalWishart) -> Float[np.ndarray, " *T"]:
    """Return ln B (N6)."""
    D = q.mean.shape[-1]
    return (
        q.dof * _half_log_det(q.chol)
        - 0.5 * q.dof * D * np.log(2.0)
        - 0.25 * D * (D - 1) * np.log(np.pi)
        - gammaln(_halves(q.dof, D)).sum(axis=-1)
    )
