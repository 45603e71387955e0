"""decoct: Bayesian coresets, a few weighted rows that carry the posterior of millions."""

from decoct import constructions, diagnostics, models, posteriors
from decoct.certificate import Check, check
from decoct.coreset import Coreset
from decoct.coreset_file import load
from decoct.data import rows
from decoct.diagnostics import kl_gaussian
from decoct.driver import build, path, resume
from decoct.errors import (
    CoresetFileError,
    DecoctError,
    ModelError,
    RequestError,
    RowsError,
)
from decoct.models.base import Model
from decoct.posteriors import laplace
from decoct.status import Status

__version__ = "0.1.0"

__all__ = [
    "Check",
    "Coreset",
    "CoresetFileError",
    "DecoctError",
    "Model",
    "ModelError",
    "RequestError",
    "RowsError",
    "Status",
    "build",
    "check",
    "constructions",
    "diagnostics",
    "kl_gaussian",
    "laplace",
    "load",
    "models",
    "path",
    "posteriors",
    "resume",
    "rows",
]
