"""Pareto-smoothed importance sampling on a plain array of log ratios.

Vehtari, Simpson, Gelman, Yao & Gabry (2024): the M = ⌊min(S/5, 3√S)⌋ largest of S ratios are taken
to exceed their threshold by a generalised Pareto distribution,

    p(x | k, σ) = (1/σ) (1 + k x/σ)^(−1/k − 1),

and are replaced by the expected order statistics of the fit. k-hat, the fitted k, says how many
moments the ratios have.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

PRIOR_K, PRIOR_ROWS = 0.5, 10
"""The weak prior on k of Vehtari et al. (2024, Appendix G): that many observations of that k."""

FEWEST_EXCEEDANCES = 5
"""Exceedances below which no tail is fitted."""


def smooth_log_weights(
    log_ratios: Float[np.ndarray, " S"],
) -> tuple[Float[np.ndarray, " S"], float]:
    """Return normalised, Pareto-smoothed log weights and k-hat.

    k-hat is infinite, and the weights are unsmoothed, where the tail has fewer than five different
    exceedances.
    """
    x = log_ratios - np.max(log_ratios)
    M = int(min(len(x) / 5, 3.0 * np.sqrt(len(x))))
    order = np.argsort(x, kind="stable")
    threshold = max(x[order[-M - 1]], np.log(np.finfo(np.float64).tiny))
    tail = order[x[order] > threshold]
    if len(tail) < FEWEST_EXCEEDANCES:
        return x - logsumexp(x), np.inf
    exceedances = np.exp(x[tail]) - np.exp(threshold)
    k, sigma = fit_pareto(exceedances)
    if np.isfinite(k):
        p = (np.arange(len(tail)) + 0.5) / len(tail)
        quantiles = sigma * np.expm1(-k * np.log1p(-p)) / k if k else -sigma * np.log1p(-p)
        x = x.copy()
        # no weight may be larger than the largest ratio
        x[tail] = np.minimum(np.log(np.exp(threshold) + quantiles), 0.0)
    return x - logsumexp(x), k


def fit_pareto(x: Float[np.ndarray, " M"]) -> tuple[float, float]:
    """Return k and σ of a generalised Pareto distribution, by Zhang & Stephens (2009).

    The posterior mean of b = −k/σ on a grid of 30 + ⌊√M⌋ points under their prior, Eq. 5 to 7;
    given b, k = mean log(1 − b x). Then k is drawn towards ½ by `PRIOR_ROWS` observations.

    Parameters
    ----------
    x : (M,)
        Exceedances, ascending.
    """
    M = len(x)
    grid = 30 + int(np.sqrt(M))
    quartile = x[int(M / 4 + 0.5) - 1]
    b = 1.0 / x[-1] + (1.0 - np.sqrt(grid / (np.arange(grid) + 0.5))) / (3.0 * quartile)
    k = np.log1p(-b[:, None] * x).mean(axis=1)
    log_likelihoods = M * (np.log(-b / k) - k - 1.0)
    weights = np.exp(log_likelihoods - logsumexp(log_likelihoods))
    keep = weights >= 10.0 * np.finfo(np.float64).eps
    mean_b = float(weights[keep] @ b[keep] / weights[keep].sum())
    mean_k = float(np.log1p(-mean_b * x).mean())
    sigma = -mean_k / mean_b
    return (M * mean_k + PRIOR_ROWS * PRIOR_K) / (M + PRIOR_ROWS), sigma
