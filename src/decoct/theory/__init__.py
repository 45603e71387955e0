"""Bounds, constants and metrics of the papers' theorems."""

from typing import TYPE_CHECKING

from decoct.runtime import lazy_names

if TYPE_CHECKING:
    from decoct.theory.alignment import Geometry, geometry
    from decoct.theory.bounds import BoundsTable, bounds_report
    from decoct.theory.bounds_for_rows import hilbert_bounds
    from decoct.theory.hilbert_constant import (
        HilbertBound,
        hilbert_bound,
        hilbert_bound_from_draws,
    )
    from decoct.theory.information_geometry import Metric, metric
    from decoct.theory.path_divergence import coreset_path_divergences, path_divergences
    from decoct.theory.predictive import best_log_likelihood, negative_log_likelihood

__all__ = [
    "BoundsTable",
    "Geometry",
    "HilbertBound",
    "Metric",
    "best_log_likelihood",
    "bounds_report",
    "coreset_path_divergences",
    "geometry",
    "hilbert_bound",
    "hilbert_bound_from_draws",
    "hilbert_bounds",
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
        "hilbert_bound_from_draws": "hilbert_constant",
        "hilbert_bounds": "bounds_for_rows",
        "metric": "information_geometry",
        "negative_log_likelihood": "predictive",
        "path_divergences": "path_divergence",
    },
)
