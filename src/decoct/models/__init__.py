"""Models: a prior and one log-likelihood value per row."""

from typing import TYPE_CHECKING

from decoct.models.base import AbstractModel
from decoct.runtime import lazy_names

if TYPE_CHECKING:
    from decoct.models.formula.model import FormulaModel, from_formula
    from decoct.models.functions import Model
    from decoct.models.gaussian import GaussianMean
    from decoct.models.linear import LinearRegression
    from decoct.models.logistic import LogisticRegression
    from decoct.models.poisson import PoissonRegression
    from decoct.models.student_t import StudentTRegression

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "FormulaModel": "formula",
        "GaussianMean": "gaussian",
        "LinearRegression": "linear",
        "LogisticRegression": "logistic",
        "Model": "functions",
        "PoissonRegression": "poisson",
        "StudentTRegression": "student_t",
        "from_formula": "formula",
    },
)
