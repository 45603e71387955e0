"""Models: a prior and one log-likelihood value per row."""

from decoct.models.base import AbstractModel, Model
from decoct.models.gaussian import GaussianMean
from decoct.models.linear import LinearRegression
from decoct.models.logistic import LogisticRegression
from decoct.models.poisson import PoissonRegression
from decoct.models.student_t import StudentTRegression

__all__ = [
    "AbstractModel",
    "GaussianMean",
    "LinearRegression",
    "LogisticRegression",
    "Model",
    "PoissonRegression",
    "StudentTRegression",
]
