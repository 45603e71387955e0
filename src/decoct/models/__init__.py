"""Models: a prior and one log-likelihood value per row.

`FormulaModel` and `from_formula` are loaded when first used: they import formulaic.
"""

from typing import TYPE_CHECKING, Any

from decoct.models.base import AbstractModel, Model
from decoct.models.gaussian import GaussianMean
from decoct.models.linear import LinearRegression
from decoct.models.logistic import LogisticRegression
from decoct.models.poisson import PoissonRegression
from decoct.models.student_t import StudentTRegression

if TYPE_CHECKING:
    from decoct.models.formula import FormulaModel, from_formula

__all__ = [
    "AbstractModel",
    "FormulaModel",
    "GaussianMean",
    "LinearRegression",
    "LogisticRegression",
    "Model",
    "PoissonRegression",
    "StudentTRegression",
    "from_formula",
]


def __getattr__(name: str) -> Any:
    if name not in ("FormulaModel", "from_formula"):
        raise AttributeError(f"module 'decoct.models' has no attribute '{name}'")
    from decoct.models import formula

    return getattr(formula, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
