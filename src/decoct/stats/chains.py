"""Effective sample size, R-hat and k-hat on plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from decoct.stats import psis

GOOD_KHAT, USABLE_KHAT = 0.5, 0.7
"""k-hat below which importance weights are good, and usable at all (Vehtari et al. 2024)."""

MIXED_RHAT = 1.05
"""R-hat up to which chains are taken to have mixed."""

NEGLIGIBLE = 1e-2
"""Spread of log ratios, in nats, over which weights are as good as equal; k-hat has no scale and
would judge the shape of their rounding."""

FEWEST = 25
"""Ratios below which there is no tail of five to fit."""


def _stats() -> Any:
    from arviz_stats.base import array_stats  # pyright: ignore[reportPrivateImportUsage]

    return array_stats


def ess_of_mean(values: Float[np.ndarray, "chains S"]) -> float:
    """Return the effective sample size for the mean of a scalar along chains."""
    return float(np.asarray(_stats().ess(values, chain_axis=0, draw_axis=1, method="mean")))


def convergence(z: Float[np.ndarray, "chains draws d"]) -> dict[str, float]:
    """Return the worst rank-normalised R-hat and the smallest bulk ESS over the coordinates.

    A single chain is compared with itself: its halves are two chains. NaN for chains of fewer than
    4 draws, and R-hat for coordinates that never moved.
    """
    if z.shape[1] < 4:
        return {"rhat": np.nan, "ess": np.nan}
    half = z.shape[1] // 2
    chains = z if len(z) > 1 else np.concatenate([z[:, :half], z[:, -half:]])
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat = _stats().rhat(chains, chain_axis=0, draw_axis=1) if chains.shape[1] > 3 else np.nan
        ess = _stats().ess(z, chain_axis=0, draw_axis=1)
    return {"rhat": float(np.max(rhat)), "ess": float(np.min(ess))}


def smoothed_log_weights(
    log_ratios: Float[np.ndarray, " S"],
) -> tuple[Float[np.ndarray, " S"], float]:
    """Return normalised, Pareto-smoothed log weights and k-hat of importance log ratios.

    Vehtari et al. (2024), see `decoct.stats.psis`. Ratios that differ by less than a hundredth of a
    nat (all but identical distributions) need no smoothing and have k-hat −inf; where no Pareto
    tail can be fitted (fewer than 25 ratios, ties) the weights stay unsmoothed and k-hat is +inf.
    """
    log_ratios = np.asarray(log_ratios, dtype=np.float64)
    if float(np.ptp(log_ratios)) <= NEGLIGIBLE:
        return log_ratios - logsumexp(log_ratios), -np.inf
    unsmoothed = log_ratios - logsumexp(log_ratios), np.inf
    if len(log_ratios) < FEWEST:
        return unsmoothed
    with np.errstate(divide="ignore", invalid="ignore"):  # ties in the tail: checked below
        log_weights, khat = psis.smooth_log_weights(log_ratios)
    if not np.isfinite(log_weights).all():  # no Pareto distribution fits the tail
        return unsmoothed
    return log_weights, khat if khat == khat else np.inf


def pareto_khat(log_ratios: Float[np.ndarray, " S"]) -> float:
    """Return k-hat of importance log ratios: good below `GOOD_KHAT`, usable below `USABLE_KHAT`."""
    return smoothed_log_weights(log_ratios)[1]
