"""Statistics on plain arrays: sums, divergences, chains, tangent vectors. No model, no rows."""

from decoct.stats.divergences import Gaussian, kl_from_log_ratios, kl_gaussian

__all__ = ["Gaussian", "kl_from_log_ratios", "kl_gaussian"]
