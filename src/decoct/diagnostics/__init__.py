"""How far apart two posteriors are, and how far theory allows a coreset to be.

What needs a sampler or the data is loaded when first used, because it lies above this package.
"""

import importlib
from typing import TYPE_CHECKING, Any

from decoct.diagnostics.alignment import Geometry, geometry
from decoct.diagnostics.bounds import BoundsTable, bounds_report
from decoct.diagnostics.divergences import Gaussian, kl_from_log_ratios, kl_gaussian
from decoct.diagnostics.hilbert_constant import HilbertBound, hilbert_bound
from decoct.diagnostics.information_geometry import Metric, metric

if TYPE_CHECKING:
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

_LATER = {
    "best_log_likelihood": "predictive",
    "coreset_path_divergences": "path_divergence",
    "hilbert_bound_from_draws": "path_constant",
    "negative_log_likelihood": "predictive",
    "path_divergences": "path_divergence",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(f"decoct.diagnostics.{_LATER[name]}"), name)
    raise AttributeError(f"module 'decoct.diagnostics' has no attribute '{name}'")
