"""Orthogonal pursuit with non-negative weights.

Add the row with the largest correlation with the residual, re-solve non-negative least squares on
the support, drop the zeros, repeat. One run gives a solution for every size; those of the sizes
asked for can be refined by exchanges (`decoct.solvers.exchange`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from decoct.errors import RequestError
from decoct.runtime import progress
from decoct.runtime.resources import few_threads
from decoct.solvers.base import Budget, Path, Solver
from decoct.solvers.exchange import exchange
from decoct.solvers.nnls import ActiveSet, SparseWeights, UnitVectors, best_row


@dataclass(frozen=True)
class OrthogonalPursuit(Solver):
    """Greedy choice of rows, all weights solved again after each.

    Attributes
    ----------
    exchanges
        Most sweeps of swaps that refine each requested size; needs rows in double precision.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.solvers import Budget, OrthogonalPursuit
    >>> from decoct.solvers.nnls import UnitVectors
    >>> problem = UnitVectors.scaled(np.eye(3), np.array([1.0, 2.0, 3.0]))
    >>> path = OrthogonalPursuit().solve(problem, Budget((2,)), np.random.default_rng(0))
    >>> len(path[2].indices) <= 2
    True
    """

    exchanges: int = 0

    def solve(self, problem: UnitVectors, budget: Budget, rng: np.random.Generator) -> Path:
        found = pursue(problem, budget.sizes[-1], sizes=budget.sizes, exchanges=self.exchanges)
        path: Path = {}
        for m in budget.sizes:
            if allowed := [one for size, one in found.items() if size <= m]:
                path[m] = min(allowed, key=lambda one: one.residual_norm)
        return path


def orthogonal_pursuit(
    vectors: Float[np.ndarray, "n S"],
    target: Float[np.ndarray, " S"],
    size: int,
    *,
    sizes: Iterable[int] = (),
    stop: Callable[[SparseWeights], bool] | None = None,
    exchanges: int = 0,
) -> dict[int, SparseWeights]:
    """Return the pursuit's solution at every size from 1 to ``size``.

    Parameters
    ----------
    vectors : (n, S)
        One vector per row.
    target : (S,)
        What the weighted rows should add up to.
    size
        Largest support.
    sizes
        Sizes whose solution is refined by exchanges afterwards (default: none).
    stop
        Called with each new size's solution; True ends the pursuit there.
    exchanges
        Most sweeps over the support in each refinement.

    Returns
    -------
    dict
        Size -> best solution met with that many rows. Sizes that could not be reached (the
        residual is zero, or no row improves it) are absent.

    Raises
    ------
    ValueError
        Shapes do not fit, a number is not finite, or ``size`` < 1.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.solvers import orthogonal_pursuit
    >>> vectors = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> orthogonal_pursuit(vectors, np.array([2.0, 2.0]), size=2)[1].indices
    array([2])
    """
    if size < 1:
        raise RequestError(f"The size must be at least 1, not {size}.")
    problem = UnitVectors.scaled(vectors, target)
    return pursue(problem, size, sizes=sizes, stop=stop, exchanges=exchanges)


def pursue(
    problem: UnitVectors,
    size: int,
    *,
    sizes: Iterable[int] = (),
    stop: Callable[[SparseWeights], bool] | None = None,
    exchanges: int = 0,
) -> dict[int, SparseWeights]:
    """Run `orthogonal_pursuit` on rows that are scaled already."""
    wanted = set(sizes)
    snapshots: dict[int, list[int]] = {}
    path: dict[int, SparseWeights] = {}
    active, stalls, best = ActiveSet(problem), 0, np.inf
    with few_threads(problem.vectors.nbytes):
        while active.size < size and stalls < 10:  # picks in a row without a fall
            row = best_row(active)
            if row is None:
                break
            if not active.add(row):
                continue
            solution = SparseWeights.of(active)
            norm = solution.residual_norm
            stalls = 0 if norm < best * (1 - 1e-12) else stalls + 1
            best = min(best, norm)
            known = path.get(active.size)
            if known is None or norm < known.residual_norm:
                path[active.size] = solution
                if active.size in wanted:
                    snapshots[active.size] = list(active.support)
            if known is None:
                progress.advance(1, "picks")
                if stop is not None and stop(solution):
                    break
        for m, support in snapshots.items() if exchanges else ():
            refined = SparseWeights.of(exchange(problem, support, exchanges))
            if refined.residual_norm < path[m].residual_norm:
                path[m] = refined
    return path


def refine(
    vectors: Float[np.ndarray, "n S"],
    target: Float[np.ndarray, " S"],
    solution: SparseWeights,
    exchanges: int,
) -> SparseWeights:
    """Refine one solution of `orthogonal_pursuit` by at most so many sweeps of exchanges."""
    problem = UnitVectors.scaled(vectors, target)
    with few_threads(vectors.nbytes):
        refined = SparseWeights.of(exchange(problem, solution.indices.tolist(), exchanges))
    return min(solution, refined, key=lambda one: one.residual_norm)
