"""Hilbert solvers: frozen configurations that fill the requested sizes.

All of them search for few weights w ≥ 0 with Σ w_n g_n near a target b (Campbell & Broderick 2019,
Eq. 3.2), on plain arrays. In the paper M counts *iterations*, each of which brings in at most one
row, so that the coreset has at most M rows; that is the default here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from decoct.errors import RequestError
from decoct.runtime.checks import checked_whole
from decoct.solvers.nnls import SparseWeights, UnitVectors

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
