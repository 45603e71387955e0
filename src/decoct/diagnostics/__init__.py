"""How far apart two posteriors are, and how far theory allows a coreset to be."""

from decoct.diagnostics.alignment import Geometry, geometry
from decoct.diagnostics.bounds import BoundsTable, bounds_report
from decoct.diagnostics.divergences import Gaussian, kl_from_log_ratios, kl_gaussian

__all__ = [
    "BoundsTable",
    "Gaussian",
    "Geometry",
    "bounds_report",
    "geometry",
    "kl_from_log_ratios",
    "kl_gaussian",
]
