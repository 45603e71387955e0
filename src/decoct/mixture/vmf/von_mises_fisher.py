"""The von Mises-Fisher distribution on the unit sphere S^{D−1}.

f(x; μ, τ) = C_D(τ) exp(τ x·μ) with C_D(τ) = τ^{D/2−1} / ((2π)^{D/2} I_{D/2−1}(τ)), I the modified
Bessel function of the first kind (Campbell & Broderick 2019, Eq. 7.3). A draw is
x = t μ + (1 − t²)^{½} v with v uniform on the unit sphere orthogonal to μ and t a cosine whose
density is ∝ exp(τ t)(1 − t²)^{(D−3)/2}: inverted for D = 3, by rejection for other D (Wood 1994).
All algebra is in the gap 1 − t, which keeps its digits where τ is 10⁶ and t is nearly 1.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import gammaln, ive, logsumexp

from decoct.errors import BadValueError, ModelError
from decoct.models.base import row_number
from decoct.runtime.checks import is_positive

UNIT = 1e-6
"""How far a norm may be from 1 for a vector to count as a point of the sphere."""

SMALLEST_BESSEL = 1e-290
"""Below this SciPy's scaled Bessel function is about to underflow."""


def log_normaliser(dim: int, concentration: float) -> float:
    """Return log C_D(τ) = (D/2 − 1) log τ − (D/2) log 2π − log I_{D/2−1}(τ) (Eq. 7.3).

    SciPy's exponentially scaled Bessel function where it is a normal number; where it underflows
    (τ small beside D), its power series, whose terms are all positive, in the form
    −log C_D(τ) = log|S^{D−1}| + log Σ_m (τ²/4)^m / (m! (D/2)_m); where D or τ is too large for
    both (τ ≥ 10⁹, say), the expansion for large orders (DLMF 10.41.3).

    Parameters
    ----------
    dim
        D ≥ 2.
    concentration
        τ > 0.

    Returns
    -------
    float
        log C_D(τ).

    Raises
    ------
    ModelError
        D < 2, or τ is not positive and finite.

    Examples
    --------
    >>> round(log_normaliser(3, 1e-9), 6)  # nearly uniform: −log 4π
    -2.531024
    """
    if dim < 2:
        raise ModelError(f"dim is {dim}; directions need at least 2 dimensions.")
    tau = check_concentration(concentration)
    order = 0.5 * dim - 1.0
    scaled = float(ive(order, tau))
    if np.isfinite(scaled) and scaled > SMALLEST_BESSEL:
        log_bessel = np.log(scaled) + tau
    elif np.hypot(order, tau) > 1e5:
        log_bessel = _log_bessel_asymptotic(order, tau)
    else:
        log_area = np.log(2.0) + 0.5 * dim * np.log(np.pi) - gammaln(0.5 * dim)
        peak = 0.5 * (np.hypot(order, tau) - order)
        m = np.arange(int(peak + 12.0 * np.sqrt(peak) + 60.0))
        rising = gammaln(m + order + 1.0) - gammaln(order + 1.0)
        terms = 2.0 * m * np.log(0.5 * tau) - gammaln(m + 1.0) - rising
        return float(-log_area - float(np.asarray(logsumexp(terms))))
    return float(order * np.log(tau) - 0.5 * dim * np.log(2.0 * np.pi) - log_bessel)


def _log_bessel_asymptotic(order: float, tau: float) -> float:
    """Return log I by DLMF 10.41.3, with s = (ν² + τ²)^½ so that ν = 0 is no exception."""
    s = np.hypot(order, tau)
    p2 = (order / s) ** 2
    first = (3.0 - 5.0 * p2) / (24.0 * s)
    second = (81.0 - 462.0 * p2 + 385.0 * p2**2) / (1152.0 * s**2)
    log_power = order * np.log(tau / (order + s))
    return s + log_power - 0.5 * np.log(2.0 * np.pi * s) + np.log1p(first + second)


def check_directions(x: Float[np.ndarray, "n D"], numbers: int | np.ndarray = 0) -> None:
    """Refuse rows that are no unit vectors; ``numbers`` are the rows', or the first one's."""
    norms = np.linalg.norm(x, axis=1)
    off = ~(np.abs(norms - 1.0) <= UNIT)
    if off.any():
        bad = int(np.argmax(off))
        raise BadValueError(
            f"has the norm {norms[bad]:.8g}",
            row_number(numbers, bad),
            "; directions have the norm 1, so divide every row by its norm.",
            "x",
        )


def check_concentration(concentration: Any) -> float:
    """Return τ as a number, or say what is wrong with it."""
    if not is_positive(concentration):
        raise ModelError(f"concentration must be a positive number, not {concentration!r}.")
    return float(concentration)


def sample_vmf(
    rng: np.random.Generator,
    mean_directions: Float[np.ndarray, "*batch D"],
    concentrations: float | Float[np.ndarray, "*batch"],
) -> Float[np.ndarray, "*batch D"]:
    """Return one draw from vMF(μ, τ) for every mean direction, on the host.

    Parameters
    ----------
    rng
        NumPy generator.
    mean_directions : (..., D)
        μ, unit vectors; repeat one for several draws from it.
    concentrations
        τ ≥ 0, one for all or one per mean direction; 0 is the uniform distribution.

    Returns
    -------
    ndarray
        Unit vectors, in the shape of the mean directions.

    Raises
    ------
    ModelError
        A mean direction is not a unit vector, a concentration is negative or not finite, or D < 2.

    Examples
    --------
    Ten thousand rows of six clusters, one at each pole of each axis:

    >>> rng, poles = np.random.default_rng(0), np.concatenate([np.eye(3), -np.eye(3)])
    >>> x = sample_vmf(rng, poles[rng.integers(6, size=10_000)], 50.0)
    >>> x.shape
    (10000, 3)
    """
    means = np.asarray(mean_directions, dtype=np.float64)
    if means.ndim < 1 or means.shape[-1] < 2:
        raise ModelError(
            f"mean_directions has the shape {means.shape}; it must be (..., D), D ≥ 2."
        )
    taus = np.asarray(concentrations, dtype=np.float64)
    if not (np.isfinite(taus).all() and (taus >= 0.0).all()):
        raise ModelError("A concentration is negative or not finite.")
    if taus.ndim and taus.shape != means.shape[:-1]:
        raise ModelError(
            f"concentrations has the shape {taus.shape}; the mean directions want () or "
            f"{means.shape[:-1]}."
        )
    flat = means.reshape(-1, means.shape[-1])
    if not (np.abs(np.linalg.norm(flat, axis=1) - 1.0) <= UNIT).all():
        raise ModelError("A mean direction is not a unit vector; divide it by its norm.")
    gaps = _sample_gaps(rng, flat.shape[1], np.broadcast_to(taus, means.shape[:-1]).ravel())
    return _at_gap(np, flat, gaps, rng.standard_normal(flat.shape)).reshape(means.shape)


def _sample_gaps(
    rng: np.random.Generator, dim: int, taus: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    if dim == 3:
        return _gap_on_the_sphere(np, rng.random(len(taus)), taus)
    gaps, waiting = np.empty(len(taus)), np.arange(len(taus))
    while len(waiting):
        half = 0.5 * (dim - 1)
        proposals = rng.beta(half, half, size=len(waiting))
        uniforms = rng.random(len(waiting))
        gap, accepted = _wood(np, dim, proposals, uniforms, taus[waiting])
        gaps[waiting[accepted]] = gap[accepted]
        waiting = waiting[~accepted]
    return gaps


def vmf_draws(
    key: Array, mean_directions: Float[Array, "K D"], concentrations: Float[Array, " K"]
) -> Float[Array, "K D"]:
    """Return one exact draw from vMF(μ_k, τ_k) for every k; pure JAX.

    Parameters
    ----------
    key
        A typed JAX key.
    mean_directions : (K, D)
        Unit vectors, not checked.
    concentrations : (K,)
        τ_k ≥ 0, not checked; 0 is the uniform distribution.

    Returns
    -------
    jax.Array
        Unit vectors, (K, D).

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> from decoct.mixture import vmf_draws
    >>> vmf_draws(jax.random.key(0), jnp.eye(3), jnp.array([1.0, 10.0, 100.0])).shape
    (3, 3)
    """
    gap_key, tangent_key = jax.random.split(key)
    means = mean_directions
    if means.shape[1] == 3:
        uniforms = jax.random.uniform(gap_key, concentrations.shape, means.dtype)
        gaps = _gap_on_the_sphere(jnp, uniforms, concentrations)
    else:
        gaps = _gaps_by_rejection(gap_key, means.shape[1], concentrations)
    return _at_gap(jnp, means, gaps, jax.random.normal(tangent_key, means.shape, means.dtype))


def _gaps_by_rejection(key: Array, dim: int, taus: Float[Array, " K"]) -> Float[Array, " K"]:
    def propose(carry):
        key, gaps, accepted = carry
        key, beta_key, uniform_key = jax.random.split(key, 3)
        # a coordinate of a uniform point on the sphere is 2 Beta((D−1)/2, (D−1)/2) − 1
        points = jax.random.normal(beta_key, (len(taus), dim), taus.dtype)
        proposals = 0.5 + 0.5 * points[:, 0] / jnp.linalg.norm(points, axis=1)
        uniforms = jax.random.uniform(uniform_key, taus.shape, taus.dtype)
        gap, good = _wood(jnp, dim, proposals, uniforms, taus)
        return key, jnp.where(good & ~accepted, gap, gaps), accepted | good

    none = jnp.zeros(taus.shape, dtype=bool)
    start = (key, jnp.full_like(taus, jnp.nan), none)
    return jax.lax.while_loop(lambda carry: ~carry[2].all(), propose, start)[1]


def _gap_on_the_sphere(xp: ModuleType, uniforms: Any, taus: Any) -> Any:
    """Return 1 − t for D = 3, where P(1 − t > g) = (e^{−τg} − e^{−2τ}) / (1 − e^{−2τ})."""
    tiny = taus < 1e-9  # there the cosine is uniform to the last digit
    safe = xp.where(tiny, 1.0, taus)
    inverted = -xp.log1p(uniforms * xp.expm1(-2.0 * safe)) / safe
    return xp.where(tiny, 2.0 * uniforms, inverted)


def _wood(xp: ModuleType, dim: int, betas: Any, uniforms: Any, taus: Any) -> tuple[Any, Any]:
    """Return Wood's (1994) proposals as gaps 1 − t, and which of them are accepted.

    t = (1 − (1 + b)β)/(1 − (1 − b)β) with β ~ Beta((D−1)/2, (D−1)/2), accepted where
    τ(t − t₀) + (D − 1) log((1 − t₀ t)/(1 − t₀²)) ≥ log u, t₀ = (1 − b)/(1 + b).
    """
    b = (dim - 1) / (2.0 * taus + xp.sqrt(4.0 * taus**2 + (dim - 1) ** 2))
    best_gap, best = 2.0 * b / (1.0 + b), (1.0 - b) / (1.0 + b)
    gaps = 2.0 * b * betas / (1.0 - (1.0 - b) * betas)
    bend = (best_gap + best * gaps) * (1.0 + b) ** 2 / (4.0 * b)
    # 1 − u lies in (0, 1]: its logarithm is finite
    return gaps, taus * (best_gap - gaps) + (dim - 1) * xp.log(bend) >= xp.log1p(-uniforms)


def _at_gap(xp: ModuleType, means: Any, gaps: Any, normals: Any) -> Any:
    tangents = normals - (normals * means).sum(axis=1, keepdims=True) * means
    tangents = tangents / xp.linalg.norm(tangents, axis=1, keepdims=True)
    gaps = gaps[:, None]
    points = (1.0 - gaps) * means + xp.sqrt(gaps * (2.0 - gaps)) * tangents
    return points / xp.linalg.norm(points, axis=1, keepdims=True)
