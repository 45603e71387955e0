"""Sparse non-negative least squares on plain arrays, one algorithm a file."""

from decoct.solvers.base import Budget, Path, Solver
from decoct.solvers.frank_wolfe import FrankWolfe
from decoct.solvers.giga import GIGA
from decoct.solvers.importance_sampling import ImportanceSampling
from decoct.solvers.iterative_thresholding import IterativeThresholding
from decoct.solvers.nnls import SparseWeights, nnls
from decoct.solvers.orthogonal_pursuit import OrthogonalPursuit, orthogonal_pursuit

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
