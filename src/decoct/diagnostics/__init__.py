"""How far apart two posteriors are, and how far theory allows a coreset to be."""

from typing import TYPE_CHECKING

from decoct._lazy import lazy_names
from decoct.diagnostics.divergences import Gaussian, kl_from_log_ratios, kl_gaussian

if TYPE_CHECKING:
    from decoct.diagnostics.alignment import Geometry, geometry
    from decoct.diagnostics.bounds import BoundsTable, bounds_report
    from decoct.diagnostics.hilbert_constant import HilbertBound, hilbert_bound
    from decoct.diagnostics.information_geometry import Metric, metric
    from decoct.diagnostics.path_constant import hilbert_bound_from_draws
    from decoct.diagnostics.path_divergence import coreset_path_divergences, path_divergences
    from decoct.diagnostics.predictive import best_log_likelihood, negative_log_likelihood

__all__ = [
    "BoundsTable",
    "Gaussian",
    "Geometry",
    "HilbertBound",
    "Metric",
    "best_log_likelihood",
    "bounds_report",
    "coreset_path_divergences",
    "geometry",
    "hilbert_bound",
    "hilbert_bound_from_draws",
    "kl_from_log_ratios",
    "kl_gaussian",
    "metric",
    "negative_log_likelihood",
    "path_divergences",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BoundsTable": "bounds",
        "Geometry": "alignment",
        "HilbertBound": "hilbert_constant",
        "Metric": "information_geometry",
        "best_log_likelihood": "predictive",
        "bounds_report": "bounds",
        "coreset_path_divergences": "path_divergence",
        "geometry": "alignment",
        "hilbert_bound": "hilbert_constant",
        "hilbert_bound_from_draws": "path_constant",
        "metric": "information_geometry",
        "negative_log_likelihood": "predictive",
        "path_divergences": "path_divergence",
    },
)
