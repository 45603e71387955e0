"""decoct: Bayesian coresets, a few weighted rows that carry the posterior of millions.

Names are loaded when first used, so that ``decoct --help`` does not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decoct import constructions, diagnostics, mixture, models, posteriors, solvers, weighting
    from decoct.bridges.bambi import from_bambi
    from decoct.bridges.numpyro import from_numpyro
    from decoct.bridges.pymc import from_pymc
    from decoct.certificate import Check, check
    from decoct.comparison import Comparison, compare
    from decoct.constructions.merge import merge
    from decoct.coreset import Coreset
    from decoct.coreset_file import load
    from decoct.costs import Estimate, estimate
    from decoct.data import rows
    from decoct.diagnostics import kl_gaussian
    from decoct.driver import build, path, resume
    from decoct.errors import (
        CoresetFileError,
        DecoctError,
        ModelError,
        RequestError,
        RowsError,
        ShortBuildWarning,
    )
    from decoct.models.base import Model
    from decoct.plots.report_file import write_report
    from decoct.posteriors import laplace
    from decoct.status import Status
    from decoct.streams import StreamingCoreset
    from decoct.theory import hilbert_bounds

__version__ = "0.1.0"

__all__ = [
    "Check",
    "Comparison",
    "Coreset",
    "CoresetFileError",
    "DecoctError",
    "Estimate",
    "Model",
    "ModelError",
    "RequestError",
    "RowsError",
    "ShortBuildWarning",
    "Status",
    "StreamingCoreset",
    "build",
    "check",
    "compare",
    "constructions",
    "diagnostics",
    "estimate",
    "from_bambi",
    "from_numpyro",
    "from_pymc",
    "hilbert_bounds",
    "kl_gaussian",
    "laplace",
    "load",
    "merge",
    "mixture",
    "models",
    "path",
    "posteriors",
    "resume",
    "rows",
    "solvers",
    "weighting",
    "write_report",
]

_PACKAGES = (
    "constructions",
    "diagnostics",
    "mixture",
    "models",
    "plots",
    "posteriors",
    "solvers",
    "weighting",
)
_HOME = {
    "from_bambi": "bridges.bambi",
    "from_numpyro": "bridges.numpyro",
    "from_pymc": "bridges.pymc",
    "Check": "certificate",
    "check": "certificate",
    "Comparison": "comparison",
    "compare": "comparison",
    "Coreset": "coreset",
    "merge": "constructions.merge",
    "load": "coreset_file",
    "Estimate": "costs",
    "estimate": "costs",
    "rows": "data",
    "kl_gaussian": "diagnostics",
    "build": "driver",
    "path": "driver",
    "resume": "driver",
    "CoresetFileError": "errors",
    "DecoctError": "errors",
    "ModelError": "errors",
    "RequestError": "errors",
    "RowsError": "errors",
    "ShortBuildWarning": "errors",
    "hilbert_bounds": "theory",
    "Model": "models.base",
    "write_report": "plots.report_file",
    "laplace": "posteriors",
    "Status": "status",
    "StreamingCoreset": "streams",
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"decoct.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"decoct.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'decoct' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
