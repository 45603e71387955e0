"""Sparse non-negative least squares on plain arrays, one algorithm per file."""

from typing import TYPE_CHECKING

from decoct.runtime import lazy_names
from decoct.solvers.base import Budget, Path, Solver
from decoct.solvers.nnls import SparseWeights, nnls
from decoct.solvers.orthogonal_pursuit import OrthogonalPursuit, orthogonal_pursuit

if TYPE_CHECKING:
    from decoct.solvers.frank_wolfe import FrankWolfe
    from decoct.solvers.giga import GIGA
    from decoct.solvers.importance_sampling import ImportanceSampling
    from decoct.solvers.iterative_thresholding import IterativeThresholding

__all__ = [
    "GIGA",
    "Budget",
    "FrankWolfe",
    "ImportanceSampling",
    "IterativeThresholding",
    "OrthogonalPursuit",
    "Path",
    "Solver",
    "SparseWeights",
    "nnls",
    "orthogonal_pursuit",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "FrankWolfe": "frank_wolfe",
        "GIGA": "giga",
        "ImportanceSampling": "importance_sampling",
        "IterativeThresholding": "iterative_thresholding",
    },
)
