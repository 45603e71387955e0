"""Orthogonal pursuit with non-negative weights, and its refinement by exchanges.

Pursuit: add the row with the largest correlation with the residual, re-solve non-negative least
squares on the support, drop the zeros, repeat. One run gives a solution for every size.

Exchange: swap one row of the support against one outside while the residual falls. With
H = V_A V_Aᵀ the Gram matrix of the support, r the residual (orthogonal to the support), and

    v_k = Σ_i (H⁻¹)_ik g_i / √(H⁻¹)_kk      the unit direction only row k contributes,
    a_k = w_k / √(H⁻¹)_kk                   what leaving out row k loses: ‖r₋ₖ‖² = ‖r‖² + a_k²,

bringing in row j instead regains (⟨g_j, r⟩ + a_k⟨g_j, v_k⟩)² / (ρ_j² + ⟨g_j, v_k⟩²), with ρ_j² the
squared distance of g_j to the span of the support. So all n candidates for the place of row k are
judged exactly by one n×M product (the exchange algorithm of optimal design, Fedorov 1972, applied
to least squares); a swap is kept only if NNLS on the new support has a smaller residual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from jaxtyping import Float

from decoct.solvers.active_set import ActiveSet, UnitVectors
from decoct.solvers.nnls import SparseWeights, best_row

IMPROVES = 1e-4
"""Relative fall of the squared residual below which a swap is not worth its two products."""

DEPENDENT = 1e-9
"""Squared distance to the span of the rest below which a candidate is not considered."""


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
    """
    if size < 1:
        raise ValueError(f"The size must be at least 1, not {size}.")
    problem = UnitVectors.scaled(vectors, target)
    wanted = set(sizes)
    snapshots: dict[int, ActiveSet] = {}
    path: dict[int, SparseWeights] = {}
    for active in pursuit_steps(problem, size):
        solution = SparseWeights.of(active)
        known = path.get(active.size)
        if known is None or solution.residual_norm < known.residual_norm:
            path[active.size] = solution
            if active.size in wanted:
                snapshots[active.size] = active.copy()
        if stop is not None and known is None and stop(solution):
            break
    for m, active in snapshots.items():
        refined = SparseWeights.of(exchange(active, exchanges, capacity=m))
        if refined.residual_norm < path[m].residual_norm:
            path[m] = refined
    return path


def pursuit_steps(problem: UnitVectors, size: int, active: ActiveSet | None = None):
    """Yield the active set after each pick until no row helps or ``size`` would be passed."""
    active = ActiveSet(problem) if active is None else active
    stalls = 0
    best = np.inf
    while stalls < 10:
        row = best_row(active)
        if row is None:
            return
        grown = active.copy()
        if not grown.add(row):
            active.blocked = grown.blocked
            continue
        if grown.size > size:
            return
        active = grown
        norm = float(np.linalg.norm(active.residual()))
        stalls = 0 if norm < best * (1 - 1e-12) else stalls + 1
        best = min(best, norm)
        yield active


def exchange(active: ActiveSet, sweeps: int, capacity: int | None = None) -> ActiveSet:
    """Swap rows in and out of the support while the residual falls.

    Parameters
    ----------
    active
        Where to start; not changed.
    sweeps
        Most passes over the support.
    capacity
        Support size to fill up to when a swap makes weights vanish; default the present size.
    """
    capacity = capacity or active.size
    table = _SwapTable(active.copy())
    for _ in range(sweeps):
        swapped = False
        position = 0
        while position < table.active.size:
            swapped |= table.try_swap(position)
            position += 1
        for grown in pursuit_steps(active.problem, capacity, table.active):
            swapped |= grown.size > 0
            table = _SwapTable(grown)
        if not swapped:
            break
    return table.active


class _SwapTable:
    """What each candidate row would gain in the place of a support row."""

    def __init__(self, active: ActiveSet) -> None:
        self.active = active
        self._refresh()

    def try_swap(self, position: int) -> bool:
        """Swap the row at ``position`` for the best candidate if the residual falls."""
        diagonal = self.inverse[position, position]
        along = self.products @ (self.inverse[:, position] / np.sqrt(diagonal))
        loses = self.active.weights[position] / np.sqrt(diagonal)
        room = self.distances + along**2
        gain = self.correlation + loses * along
        score = np.where((gain > 0.0) & (room > DEPENDENT), gain**2 / np.maximum(room, DEPENDENT), 0)
        score[~self.active.problem.usable] = 0.0
        score[self.active.support] = 0.0
        row = int(np.argmax(score))
        if score[row] <= loses**2 + IMPROVES * self.loss:
            return False
        return self._swap(position, row, along)

    def _swap(self, position: int, row: int, along: np.ndarray) -> bool:
        candidate = self.active.copy()
        if not candidate.replace(position, row):
            return False
        residual = candidate.residual()
        if residual @ residual >= self.loss * (1.0 - 0.1 * IMPROVES):
            return False
        same_places = candidate.size == self.active.size
        self.active = candidate
        if same_places:
            self._update(position, row, along)
        else:
            self._refresh()
        return True

    def _refresh(self) -> None:
        """Products with the support, distances to its span, and correlations, all from scratch."""
        vectors = self.active.problem.vectors
        self.products = vectors @ self.active.vectors.T
        self.distances = 1.0 - np.square(vectors @ self.active.q).sum(axis=1)
        self._correlate()

    def _update(self, position: int, row: int, along: np.ndarray) -> None:
        """What `_refresh` does, by rank-one changes, after one row of the support changed."""
        vectors = self.active.problem.vectors
        self.products[:, position] = vectors @ vectors[row]
        self._correlate()
        entered = self.products @ self.inverse[:, position]
        self.distances += along**2 - entered**2 / self.inverse[position, position]

    def _correlate(self) -> None:
        self.inverse = self.active.inverse_gram()
        residual = self.active.residual()
        self.loss = float(residual @ residual)
        self.correlation = self.active.problem.vectors @ residual
