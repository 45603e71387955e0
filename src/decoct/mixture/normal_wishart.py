"""Normal-Wishart posteriors of the mean and the precision of Gaussian components.

q(μ_t, Λ_t) = N(μ_t; m_t, (β_t Λ_t)⁻¹) Wishart(Λ_t; W_t, ν_t), and the same with index 0 for the
prior. The factor L_t of W_t⁻¹ = L_t L_tᵀ is stored, and no matrix is inverted: with
ln|W_t| = −2Σ ln diag L_t and U_t = √ν_t L_t⁻¹ the quadratic form ν_t (x−m_t)ᵀW_t(x−m_t) is
‖U_t(x−m_t)‖². For counts N_t, means x̄_t and scatters S_t = Σ_n γ_n r_nt (x_n−x̄_t)(x_n−x̄_t)ᵀ of the
rows of component t,

    β_t = β₀ + N_t,   ν_t = ν₀ + N_t,   m_t = m₀ + (N_t/β_t)(x̄_t − m₀),                        (N1)
    W_t⁻¹ = W₀⁻¹ + S_t + (β₀N_t/β_t)(x̄_t − m₀)(x̄_t − m₀)ᵀ,                                    (N2)
    E ln|Λ_t| = Σ_{d=1..D} ψ((ν_t + 1 − d)/2) + D ln 2 + ln|W_t|,                               (N3)
    E ln N(x; μ_t, Λ_t⁻¹) = ½E ln|Λ_t| − (D/2) ln 2π − D/(2β_t) − ½‖U_t(x − m_t)‖²,             (N4)
    ln B = −½ν ln|W| − ½νD ln 2 − ¼D(D−1) ln π − Σ_d lnΓ((ν + 1 − d)/2),                        (N5)
    Σ_n γ_n r_nt E ln N(x_n; μ_t, Λ_t⁻¹) − KL_t
      = ½D ln(β₀/β_t) + ln B₀ − ln B_t − ½(ν_t − ν₀)D ln 2π   at (N1, N2).                      (N6)

with KL_t = KL(q(μ_t, Λ_t)‖p(μ_t, Λ_t)). The predictive density of a component is Student's t with
ν_t + 1 − D degrees of freedom,

    E p(x) = St(x; m_t, (ν_t + 1 − D)β_t/(1 + β_t) W_t, ν_t + 1 − D).                           (N7)

Equations: Bishop (2006), §10.2 and Appendix B; Borsos, Bachem & Krause (2017), Alg. 2, where (N3)
lacks D ln 2 and (N4) the half of E ln|Λ_t|. Pure JAX, for float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln
from jaxtyping import Array, Float


class NormalWishart(NamedTuple):
    """Posteriors of T components; a prior has no axis T."""

    mean: Float[Any, "*T D"]  # m
    mean_precision: Float[Any, " *T"]  # β > 0
    chol: Float[Any, "*T D D"]  # L, lower triangular with positive diagonal; LLᵀ = W⁻¹
    dof: Float[Any, " *T"]  # ν > D − 1


class Statistics(NamedTuple):
    """The sums (4) over the rows."""

    counts: Float[Any, " T"]  # N_t
    means: Float[Any, "T D"]  # x̄_t, anything where N_t = 0
    scatters: Float[Any, "T D D"]  # S_t


class Expected(NamedTuple):
    """What (N4) needs."""

    mean: Float[Any, "T D"]  # m
    whiten: Float[Any, "T D D"]  # U, lower triangular; UᵀU = νW
    offset: Float[Any, " T"]  # (N4) at x = m


def update_components(prior: NormalWishart, statistics: Statistics) -> NormalWishart:
    """Return the posteriors given the rows' statistics (N1, N2).

    L_t is NaN where W_t⁻¹ is not positive definite in float64.
    """
    counts, means, scatters = statistics
    beta = prior.mean_precision + counts
    away = means - prior.mean[None, :]
    pull = (prior.mean_precision * counts / beta)[:, None, None]
    inverse = (prior.chol @ prior.chol.T)[None] + scatters
    inverse = inverse + pull * (away[:, :, None] * away[:, None, :])
    chol = jax.lax.linalg.cholesky(inverse, symmetrize_input=False)
    mean = prior.mean[None, :] + (counts / beta)[:, None] * away
    return NormalWishart(mean, beta, chol, prior.dof + counts)


def compute_expected(posterior: NormalWishart) -> Expected:
    """Return the expectations of (N3) and (N4)."""
    T, D = posterior.mean.shape
    identity = jnp.broadcast_to(jnp.eye(D), (T, D, D))
    inverse = jax.lax.linalg.triangular_solve(
        jnp.asarray(posterior.chol), identity, left_side=True, lower=True
    )
    log_det = digamma(_compute_halves(posterior.dof, D)).sum(axis=-1) + D * np.log(2.0)
    log_det = log_det - 2.0 * _half_log_det(posterior.chol)
    offset = 0.5 * (log_det - D * np.log(2.0 * np.pi) - D / posterior.mean_precision)
    whiten = jnp.sqrt(posterior.dof)[:, None, None] * inverse
    return Expected(posterior.mean, whiten, offset)


def expected_log_likelihood(components: Expected, statistics: Statistics) -> Float[Array, " T"]:
    """Return Σ_n γ_n r_nt E ln N(x_n; μ_t, Λ_t⁻¹) of every component."""
    spread = (components.whiten @ statistics.scatters * components.whiten).sum(axis=(1, 2))
    away = jnp.einsum("tij,tj->ti", components.whiten, statistics.means - components.mean)
    squares = spread + statistics.counts * jnp.square(away).sum(axis=1)
    return statistics.counts * components.offset - 0.5 * squares


def log_evidence(prior: NormalWishart, posterior: NormalWishart) -> Float[Array, " T"]:
    """Return what a component adds to the bound when its posterior is the best one (N6)."""
    D = posterior.mean.shape[-1]
    normal = jnp.log(prior.mean_precision / posterior.mean_precision)
    normal = normal - (posterior.dof - prior.dof) * np.log(2.0 * np.pi)
    return 0.5 * D * normal + _log_normaliser(prior) - _log_normaliser(posterior)


def compute_predictive(
    posterior: NormalWishart,
) -> tuple[Float[Array, " T"], Float[Array, " T"], Float[Array, " T"]]:
    """Return (at, shrink, power): E p(x) of (N7) is e^at (1 + shrink·‖U(x − m)‖²)^−power."""
    D = posterior.mean.shape[-1]
    beta, nu = posterior.mean_precision, posterior.dof
    dof = nu + 1.0 - D
    at = _log_rising(0.5 * dof, D) - 0.5 * D * np.log(np.pi)
    at = at + 0.5 * D * jnp.log(beta / (1.0 + beta)) - _half_log_det(posterior.chol)
    # β/((1 + β)ν) with no product of large numbers
    return at, 1.0 / ((1.0 + 1.0 / beta) * nu), 0.5 * (dof + D)


def _compute_halves(dof: Float[Array, " *T"], D: int) -> Float[Array, "*T D"]:
    """Return (ν + 1 − d)/2 for d = 1..D."""
    dof = jnp.asarray(dof)
    return 0.5 * (dof[..., None] - jnp.arange(D).reshape((1,) * dof.ndim + (D,)))


def _log_rising(a: Float[Array, " T"], D: int) -> Float[Array, " T"]:
    """Return ln Γ(a + D/2) − ln Γ(a), to the last digits however large a is."""
    whole = D // 2
    steps = jnp.log(a[:, None] + jnp.arange(whole)[None, :]).sum(axis=1)
    if D % 2 == 0:
        return steps
    a = a + whole
    # the half step that is left, by Stirling's series where ln Γ has too many digits
    series = 0.5 * jnp.log(a) - 0.125 / a + 1.0 / (192.0 * a) / a / a
    return steps + jnp.where(a < 1e4, gammaln(a + 0.5) - gammaln(a), series)


def _half_log_det(chol: Float[Array, "*T D D"]) -> Float[Array, " *T"]:
    """Return Σ ln diag L = −½ ln|W|."""
    return jnp.log(jnp.diagonal(chol, axis1=-2, axis2=-1)).sum(axis=-1)


def _log_normaliser(q: NormalWishart) -> Float[Array, " *T"]:
    """Return ln B (N5)."""
    D = q.mean.shape[-1]
    return (
        q.dof * _half_log_det(q.chol)
        - 0.5 * q.dof * D * np.log(2.0)
        - 0.25 * D * (D - 1) * np.log(np.pi)
        - gammaln(_compute_halves(q.dof, D)).sum(axis=-1)
    )
