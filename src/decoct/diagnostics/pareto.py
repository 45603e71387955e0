"""Pareto-smoothed importance sampling (Vehtari et al. 2024), as ArviZ computes it.

``arviz_stats`` treats its input as a log *likelihood* and negates it; log ratios are therefore
handed over with the sign turned (a named test guards this).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def smoothed_log_weights(
    log_ratios: Float[np.ndarray, " S"],
) -> tuple[Float[np.ndarray, " S"], float]:
    """Return normalised, Pareto-smoothed log weights and k-hat of importance log ratios.

    Constant ratios (identical distributions) have equal weights and k-hat −inf.
    """
    from arviz_stats.base import array_stats

    log_ratios = np.asarray(log_ratios, dtype=np.float64)
    spread = float(np.ptp(log_ratios)) if len(log_ratios) else 0.0
    if spread <= 1e-12 * (1.0 + float(np.abs(log_ratios).max(initial=0.0))):
        return np.full(len(log_ratios), -np.log(max(1, len(log_ratios)))), -np.inf
    log_weights, khat = array_stats.psislw(-(log_ratios - log_ratios.max()))
    return np.asarray(log_weights), float(khat)


def pareto_khat(log_ratios: Float[np.ndarray, " S"]) -> float:
    """Return k-hat of importance log ratios: below 0.5 good, below 0.7 usable."""
    return smoothed_log_weights(log_ratios)[1]
