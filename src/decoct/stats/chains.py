"""Errors of means along chains, and Pareto-smoothed importance sampling on plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy
from jaxtyping import Float

GOOD_KHAT, USABLE_KHAT = 0.5, 0.7
"""k-hat below which importance weights are good, and usable at all (Vehtari et al. 2024)."""

MIXED_RHAT, USABLE_RHAT = 1.05, 1.1
"""R-hat up to which chains are taken to have mixed, and to be usable in a build at all."""

NEGLIGIBLE = 1e-2
"""Spread of log ratios, in nats, below which weights count as equal: k-hat, which has no scale,
would be that of rounding errors."""

FEWEST_RATIOS = 25
"""Ratios below which there is no tail of five to fit."""


def independent_draws(values: Float[np.ndarray, "chains S"]) -> float:
    """Return min(S, ESS of the mean of a scalar); S for chains of fewer than 8 draws."""
    from decoct.stats.convergence import ess_of_mean  # a build with Laplace draws does without

    estimate = ess_of_mean(values) if values.shape[1] >= 8 else np.inf
    return min(estimate, values.size) if np.isfinite(estimate) else float(values.size)


def error_of_mean(values: Float[np.ndarray, "chains S"]) -> float:
    """Return the standard error of the mean of a scalar along chains."""
    return float(values.std(ddof=1) / np.sqrt(independent_draws(values)))


def smoothed_log_weights(
    log_ratios: Float[np.ndarray, " S"],
) -> tuple[Float[np.ndarray, " S"], float]:
    """Return normalised, Pareto-smoothed log weights and k-hat of importance log ratios.

    Vehtari, Simpson, Gelman, Yao & Gabry (2024): the M = ⌊min(S/5, 3√S)⌋ largest of S ratios are
    taken to exceed their threshold by a generalised Pareto distribution,

        p(x | k, σ) = (1/σ) (1 + k x/σ)^(−1/k − 1),

    and are replaced by the expected order statistics of the fit. k-hat, the fitted k, says how many
    moments the ratios have.

    Ratios that differ by less than a hundredth of a nat (all but identical distributions) need no
    smoothing and have k-hat −inf; where no Pareto tail can be fitted (fewer than 25 ratios or five
    different exceedances) the weights stay unsmoothed and k-hat is +inf.
    """
    log_ratios = np.asarray(log_ratios, dtype=np.float64)
    unsmoothed = log_ratios - scipy.special.logsumexp(log_ratios)
    if float(np.ptp(log_ratios)) <= NEGLIGIBLE:
        return unsmoothed, -np.inf
    if len(log_ratios) < FEWEST_RATIOS:
        return unsmoothed, np.inf
    with np.errstate(divide="ignore", invalid="ignore"):  # ties in the tail: checked below
        x = log_ratios - np.max(log_ratios)
        M = int(min(len(x) / 5, 3.0 * np.sqrt(len(x))))
        order = np.argsort(x, kind="stable")
        threshold = max(x[order[-M - 1]], np.log(np.finfo(np.float64).tiny))
        tail = order[x[order] > threshold]
        if len(tail) < 5:
            return x - scipy.special.logsumexp(x), np.inf
        k, sigma = fit_pareto(np.exp(x[tail]) - np.exp(threshold))
        if np.isfinite(k):
            quantiles = pareto_quantiles(k, sigma, len(tail))
            # no weight may be larger than the largest ratio
            x[tail] = np.minimum(np.log(np.exp(threshold) + quantiles), 0.0)
        smoothed = x - scipy.special.logsumexp(x)
    if not np.isfinite(smoothed).all():  # no Pareto distribution fits the tail
        return unsmoothed, np.inf
    return smoothed, np.inf if np.isnan(k) else float(k)


def fit_pareto(x: Float[Any, "*rows M"]) -> tuple[Float[Any, "*rows"], Float[Any, "*rows"]]:
    """Return k and σ of generalised Pareto distributions, by Zhang & Stephens (2009).

    The posterior mean of b = −k/σ on a grid of 30 + ⌊√M⌋ points under their prior, Eq. 5 to 7;
    given b, k = mean log(1 − b x). Then k is drawn towards ½ as by ten observations of it, the weak
    prior of Vehtari et al. (2024, Appendix G).

    The exceedances x are ascending, and NumPy's or, traced or not, JAX's.
    """
    xp = x.__array_namespace__()
    M = x.shape[-1]
    grid = 30 + int(np.sqrt(M))
    quartile = x[..., int(M / 4 + 0.5) - 1, None]
    steps = 1.0 - np.sqrt(grid / (np.arange(grid) + 0.5))
    b = 1.0 / x[..., -1:] + steps.reshape((1,) * (x.ndim - 1) + (grid,)) / (3.0 * quartile)
    k = xp.log1p(-b[..., None] * x[..., None, :]).mean(axis=-1)
    log_likelihoods = M * (xp.log(-b / k) - k - 1.0)
    weights = xp.exp(log_likelihoods - log_likelihoods.max(axis=-1, keepdims=True))
    least = 10.0 * np.finfo(np.float64).eps * weights.sum(axis=-1, keepdims=True)
    weights = xp.where(weights < least, 0.0, weights)
    mean_b = (weights * b).sum(axis=-1) / weights.sum(axis=-1)
    mean_k = xp.log1p(-mean_b[..., None] * x).mean(axis=-1)
    return (M * mean_k + 10 * 0.5) / (M + 10), -mean_k / mean_b


def pareto_quantiles(
    k: Float[Any, "*rows"], sigma: Float[Any, "*rows"], M: int
) -> Float[Any, "*rows M"]:
    """Return the (j − ½)/M quantiles of generalised Pareto distributions, j = 1..M."""
    k, sigma = k[..., None], sigma[..., None]
    log_above = np.log1p(-(np.arange(M) + 0.5) / M).reshape((1,) * (k.ndim - 1) + (M,))
    xp = k.__array_namespace__()
    return xp.where(k == 0.0, -sigma * log_above, sigma * xp.expm1(-k * log_above) / k)
