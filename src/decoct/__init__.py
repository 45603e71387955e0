"""decoct: Bayesian coresets, a few weighted rows that carry the posterior of millions.

Names are loaded when first used, so that ``decoct --help`` does not wait for JAX.
"""

from typing import TYPE_CHECKING

from decoct.runtime import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from decoct import constructions, mixture, models, plots, samplers, solvers, stats, theory
    from decoct.bridges.bambi import from_bambi
    from decoct.bridges.numpyro import from_numpyro
    from decoct.bridges.pymc import from_pymc
    from decoct.building.comparison import Comparison, compare
    from decoct.building.costs import Estimate, estimate
    from decoct.building.driver import build, path, resume
    from decoct.certificates.certificate import Certificate, check
    from decoct.constructions.hilbert import weighting
    from decoct.coreset import Coreset
    from decoct.data import rows
    from decoct.errors import (
        CoresetFileError,
        DecoctError,
        ModelError,
        RequestError,
        RowsError,
        ShortBuildWarning,
    )
    from decoct.evaluation.log_evidence import Evidence, log_evidence
    from decoct.evaluation.loo import loo
    from decoct.evaluation.prior_sensitivity import PriorSensitivity, prior_sensitivity
    from decoct.loading import load
    from decoct.models.functions import Model
    from decoct.plots.page import write_report
    from decoct.report import Status
    from decoct.samplers import laplace
    from decoct.stats import kl_gaussian
    from decoct.streams import StreamingCoreset
    from decoct.streams.merge import merge
    from decoct.theory import hilbert_bounds

__all__ = [
    "Certificate",
    "Comparison",
    "Coreset",
    "CoresetFileError",
    "DecoctError",
    "Estimate",
    "Evidence",
    "Model",
    "ModelError",
    "PriorSensitivity",
    "RequestError",
    "RowsError",
    "ShortBuildWarning",
    "Status",
    "StreamingCoreset",
    "__version__",
    "build",
    "check",
    "compare",
    "constructions",
    "estimate",
    "from_bambi",
    "from_numpyro",
    "from_pymc",
    "hilbert_bounds",
    "kl_gaussian",
    "laplace",
    "load",
    "log_evidence",
    "loo",
    "merge",
    "mixture",
    "models",
    "path",
    "plots",
    "prior_sensitivity",
    "resume",
    "rows",
    "samplers",
    "solvers",
    "stats",
    "theory",
    "weighting",
    "write_report",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Certificate": "certificates.certificate",
        "Comparison": "building.comparison",
        "Coreset": "coreset",
        "CoresetFileError": "errors",
        "DecoctError": "errors",
        "Estimate": "building.costs",
        "Evidence": "evaluation.log_evidence",
        "Model": "models.functions",
        "ModelError": "errors",
        "PriorSensitivity": "evaluation.prior_sensitivity",
        "RequestError": "errors",
        "RowsError": "errors",
        "ShortBuildWarning": "errors",
        "Status": "report",
        "StreamingCoreset": "streams",
        "build": "building.driver",
        "check": "certificates.certificate",
        "compare": "building.comparison",
        "constructions": "",
        "estimate": "building.costs",
        "from_bambi": "bridges.bambi",
        "from_numpyro": "bridges.numpyro",
        "from_pymc": "bridges.pymc",
        "hilbert_bounds": "theory",
        "kl_gaussian": "stats",
        "laplace": "samplers",
        "load": "loading",
        "log_evidence": "evaluation.log_evidence",
        "loo": "evaluation.loo",
        "merge": "streams.merge",
        "mixture": "",
        "models": "",
        "path": "building.driver",
        "plots": "",
        "prior_sensitivity": "evaluation.prior_sensitivity",
        "resume": "building.driver",
        "rows": "data",
        "samplers": "",
        "solvers": "",
        "stats": "",
        "theory": "",
        "weighting": "constructions.hilbert",
        "write_report": "plots.page",
    },
)
