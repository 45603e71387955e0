"""How far apart two posteriors are."""

from decoct.diagnostics.divergences import Gaussian, kl_from_log_ratios, kl_gaussian

__all__ = ["Gaussian", "kl_from_log_ratios", "kl_gaussian"]
