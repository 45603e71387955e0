"""Hilbert solvers: frozen configurations that fill the requested sizes.

All of them search for few weights w ≥ 0 with Σ w_n g_n near a target b (Campbell & Broderick 2019,
Eq. 3.2), on plain arrays. In the paper M counts *iterations*, each of which brings in at most one
row, so that the coreset has at most M rows; that is the default here too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from decoct.errors import RequestError
from decoct.runtime import progress
from decoct.runtime.checks import checked_whole
from decoct.solvers.nnls import SparseWeights, UnitVectors

STALLED = 1e-15
"""Residual, relative to the target, below which there is nothing left to fit."""

Path = dict[int, SparseWeights]
"""Requested size M -> the best weights with at most M rows."""


@dataclass(frozen=True)
class Budget:
    """Sizes and iterations of a solver.

    Attributes
    ----------
    sizes
        Sizes M to fill, ascending.
    iterations
        Most iterations; None for as many as the largest size, the paper's M.

    Raises
    ------
    RequestError
        There is no size, or a number is below 1.

    Examples
    --------
    >>> from decoct.solvers import Budget
    >>> Budget(sizes=(10, 20)).iterations is None
    True
    """

    sizes: tuple[int, ...]
    iterations: int | None = None

    def __post_init__(self) -> None:
        if not self.sizes:
            raise RequestError("sizes is empty; give at least one size.")
        for size in self.sizes:
            checked_whole("size", size, 1)
        if self.iterations is not None:
            checked_whole("iterations", self.iterations, 1)


@runtime_checkable
class Solver(Protocol):
    """A way to solve min_{w ≥ 0, ‖w‖₀ ≤ M} ‖b − Σ w_n g_n‖²; hyper-parameters only.

    Examples
    --------
    >>> from decoct import solvers
    >>> isinstance(solvers.GIGA(), solvers.Solver)
    True
    """

    def solve(self, problem: UnitVectors, budget: Budget, rng: np.random.Generator) -> Path:
        """Return weights for every size of the budget that can be filled.

        An empty path means that no row has a positive product with the target: the best weights
        are zero.
        """
        ...


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
