"""Iterates of the solvers that move along line segments, Frank-Wolfe and GIGA."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from decoct.runtime import progress
from decoct.solvers.base import Budget, Path
from decoct.solvers.nnls import SparseWeights, UnitVectors

STALLED = 1e-15
"""Residual, relative to the target, below which there is nothing left to fit."""


def collect(steps: Iterable[Any], budget: Budget) -> Path:
    """Run the iterations and keep, for every size M, the best iterate that M allows.

    Without ``iterations``, M allows M iterations; with it, all iterations whose iterate has at most
    M rows. A solver that converges early leaves its last iterate to the remaining sizes.
    """
    kept: dict[int, tuple[float, Any]] = {}
    last = budget.iterations or budget.sizes[-1]
    for number, iterate in enumerate(islice(steps, last), start=1):
        progress.advance(1, "picks")
        size, loss = iterate.size, iterate.loss
        allowed = [m for m in budget.sizes if size <= m and (budget.iterations or number <= m)]
        better = [m for m in allowed if m not in kept or loss < kept[m][0]]
        result = iterate.result() if better else None
        kept.update(dict.fromkeys(better, (loss, result)))
    return {m: result for m, (_, result) in kept.items()}


def line_search(direction: np.ndarray, residual: np.ndarray) -> float:
    """Return argmin_γ ‖residual − γ direction‖ (Campbell & Broderick 2019, Eq. 4.9)."""
    square = float(direction @ direction)
    return float(direction @ residual) / square if square > 0.0 else 0.0


class Combination:
    """x = Σ α_n a_n over unit rows a_n, α_n = w_n‖g_n‖ ≥ 0, kept with its sum."""

    def __init__(self, problem: UnitVectors) -> None:
        self.problem = problem
        self.sum = np.zeros(len(problem.target))
        self._alpha = np.zeros(len(problem.vectors))

    @property
    def rows(self) -> Int[np.ndarray, " m"]:
        """Rows with α > 0, ascending."""
        return np.flatnonzero(self._alpha > 0.0)

    @property
    def size(self) -> int:
        return int(np.count_nonzero(self._alpha > 0.0))

    @property
    def residual(self) -> Float[np.ndarray, " S"]:
        return self.problem.target - self.sum

    @property
    def loss(self) -> float:
        return float(np.linalg.norm(self.residual))

    def alpha(self, row: int) -> float:
        return float(self._alpha[row])

    def result(self) -> SparseWeights:
        rows = self.rows
        return SparseWeights(rows, self._alpha[rows] / self.problem.norms[rows], self.loss)

    def scale(self, factor: float) -> None:
        self._alpha *= factor
        self.sum = factor * self.sum

    def add(self, row: int, amount: float) -> None:
        """Add ``amount`` of a unit row."""
        self._alpha[row] += amount
        self.sum = self.sum + amount * self.problem.unit(row)
