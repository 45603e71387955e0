"""Hilbert coresets by importance sampling (Campbell & Broderick 2019, Algorithm 1).

    σ_n = ‖g_n‖,  σ = Σ σ_n,   (M_1..M_N) ~ Multi(M, σ_n/σ),   w_n = (σ/σ_n)(M_n/M)

E[Σ w_n g_n] = Σ g_n, and the squared error has the expectation σ²η²/M with η² = 1 − ‖b‖²/σ²
(Eq. 4.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from decoct.solvers.base import Budget, Path, Solver
from decoct.solvers.nnls import SparseWeights, UnitVectors


@dataclass(frozen=True)
class ImportanceSampling(Solver):
    """M independent draws with probability ∝ ‖g_n‖, weights σ M_n/(σ_n M).

    The draws of a smaller size are the first of a larger one's. Needs every row in the pool.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.solvers import Budget, ImportanceSampling
    >>> from decoct.solvers.nnls import UnitVectors
    >>> problem = UnitVectors.scaled(np.eye(3), np.array([1.0, 2.0, 3.0]))
    >>> path = ImportanceSampling().solve(problem, Budget((2,)), np.random.default_rng(0))
    >>> len(path[2].indices) <= 2
    True
    """

    def solve(self, problem: UnitVectors, budget: Budget, rng: np.random.Generator) -> Path:
        usable = np.flatnonzero(problem.usable)
        if not len(usable):
            return {}
        total, largest = problem.sum_of_norms, budget.sizes[-1]
        odds = problem.norms[usable] / total
        picks = usable[rng.choice(len(usable), size=largest, p=odds)]
        path: Path = {}
        for m in budget.sizes:
            rows, counts = np.unique(picks[:m], return_counts=True)
            alpha = total * counts / m
            residual = float(np.linalg.norm(problem.target - alpha @ problem.unit(rows)))
            path[m] = SparseWeights(rows, alpha / problem.norms[rows], residual)
        return path
