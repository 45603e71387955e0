"""Refine a support by exchanges: swap one row against one outside while the residual falls.

With H = V_A V_Aᵀ the Gram matrix of the support, r the residual (orthogonal to the support), and

    v_k = Σ_i (H⁻¹)_ik g_i / √(H⁻¹)_kk      the unit direction only row k contributes,
    a_k = w_k / √(H⁻¹)_kk                   what leaving out row k loses: ‖r₋ₖ‖² = ‖r‖² + a_k²,

bringing in row j instead regains (⟨g_j, r⟩ + a_k⟨g_j, v_k⟩)² / (ρ_j² + ⟨g_j, v_k⟩²), with ρ_j² the
squared distance of g_j to the span of the support. So all n candidates for the place of row k are
judged exactly by one n×M product: the exchange algorithm of optimal design (Fedorov 1972), applied
to non-negative least squares. A swap costs one product with all vectors; the rest are rank-one
changes of H⁻¹, ⟨g_j, ·⟩ and ρ_j², made again at every sweep.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from decoct.solvers.nnls import ActiveSet, UnitVectors, fill

IMPROVES = 3e-4
"""Relative fall of the squared residual below which a swap is not worth its product."""

DEPENDENT = 1e-9
"""Squared distance to the span of the rest below which a candidate is not considered."""

PLACES_AT_ONCE = 64
"""Places evaluated at once in the search for swaps."""


def exchange(problem: UnitVectors, support: Sequence[int], sweeps: int) -> ActiveSet:
    """Return a support of at most the same size whose residual is no larger.

    ``sweeps`` is how many passes over the support there are at most.
    """
    best = ActiveSet.spanned_by(problem, support)
    floor = 1e-18 * float(problem.target @ problem.target)  # rank-one changes are round-off below
    for _ in range(sweeps):
        loss = _square(best.residual())
        if loss <= floor or not best.size:
            break
        table = _SwapTable(best)
        for place in table.prospects():
            table.try_swap(place)
        # places that rows with a vanished weight have left are used
        attempt = fill(ActiveSet.spanned_by(problem, table.support), size=len(support))
        if _square(attempt.residual()) >= loss:
            break
        best = attempt
        if _square(best.residual()) >= (1.0 - 0.005) * loss:  # another is not worth it
            break
    return best


def _square(residual: Float[np.ndarray, " S"]) -> float:
    return float(residual @ residual)


class _SwapTable:
    """What each candidate row would gain in the place of a support row.

    Places are fixed during a sweep; a place whose weight has vanished is empty (row −1).
    """

    def __init__(self, active: ActiveSet) -> None:
        self.problem = active.problem
        vectors = self.problem.vectors
        self.places = np.array(active.support)
        self.products = np.asfortranarray(vectors @ self.problem.unit(active.support).T)
        self.with_target = vectors @ self.problem.target
        self.inverse = active.inverse_gram()
        self.distances = 1.0 - np.square(vectors @ active.q).sum(axis=1)
        self.weights = active.weights.copy()
        self._correlate()

    @property
    def support(self) -> list[int]:
        return [int(row) for row in self.places if row >= 0]

    def try_swap(self, place: int) -> None:
        """Swap the row at ``place`` for the best candidate if the residual falls."""
        if self.places[place] < 0 or not self.inverse[place, place] > 0.0:
            return  # emptied by an earlier swap, or round-off has destroyed the pivot
        along, loses = self._direction(place)
        score = self._scores(along[:, None], np.array([loses]))[:, 0]
        row = int(np.argmax(score))
        if score[row] - loses**2 <= IMPROVES * self.loss:
            return
        before = self.places, self.inverse, self.distances, self.weights.copy()
        self._empty(place, along)
        solved = self._occupy(place, row) and self._solve()
        if solved and _square(self._residual()) < self.loss * (1.0 - 0.1 * IMPROVES):
            self._correlate()
            return
        changed = np.flatnonzero(self.places != before[0])
        self.places, self.inverse, self.distances, self.weights = before
        vectors = self.problem.vectors
        for one in changed:
            self.products[:, one] = vectors @ vectors[self.places[one]]

    def prospects(self) -> list[int]:
        """Return the places where a swap would lower the residual now, the best first."""
        scale = np.sqrt(np.diag(self.inverse))
        loses = self.weights / scale
        falls = np.empty(len(self.places))
        for begin in range(0, len(self.places), PLACES_AT_ONCE):
            block = slice(begin, begin + PLACES_AT_ONCE)
            along = self.products @ (self.inverse[:, block] / scale[block])
            falls[block] = self._scores(along, loses[block]).max(axis=0) - loses[block] ** 2
        order = np.argsort(-falls)
        return [int(place) for place in order if falls[place] > IMPROVES * self.loss]

    def _scores(
        self, along: Float[np.ndarray, "n k"], loses: Float[np.ndarray, " k"]
    ) -> Float[np.ndarray, "n k"]:
        """Return what each candidate regains in each of k places; 0 where it may not enter."""
        room = self.distances[:, None] + along**2
        gain = self.correlation[:, None] + loses * along
        allowed = (gain > 0.0) & (room > DEPENDENT) & self.problem.usable[:, None]
        score = np.where(allowed, gain**2 / np.where(allowed, room, 1.0), 0.0)
        score[self.support] = 0.0
        return score

    def _direction(self, place: int) -> tuple[Float[np.ndarray, " n"], float]:
        """Return ⟨g_j, v_k⟩ for all candidates j, and a_k."""
        scale = np.sqrt(self.inverse[place, place])
        along = self.products @ (self.inverse[:, place] / scale)
        return along, float(self.weights[place] / scale)

    def _empty(self, place: int, along: np.ndarray) -> None:
        """Take the row at ``place`` out of the span; its line of H⁻¹ becomes zero."""
        column = self.inverse[:, place].copy()
        self.inverse = self.inverse - np.outer(column, column / column[place])
        self.inverse[:, place] = self.inverse[place, :] = 0.0
        self.distances = self.distances + along**2
        self.places = self.places.copy()
        self.places[place] = -1
        self.weights[place] = 0.0

    def _occupy(self, place: int, row: int) -> bool:
        """Bring ``row`` into the span at an empty place; False if round-off puts it there."""
        against = np.where(self.places >= 0, self.products[row], 0.0)
        solved = self.inverse @ against
        room = float(1.0 - against @ solved)
        if room <= DEPENDENT:
            return False
        solved[place] = -1.0
        self.inverse = self.inverse + np.outer(solved, solved / room)
        self.products[:, place] = self.problem.vectors @ self.problem.vectors[row]
        self.places = self.places.copy()
        self.places[place] = row
        self.distances = self.distances - self._direction(place)[0] ** 2
        return True

    def _solve(self) -> bool:
        """Non-negative least squares on the places: vanishing weights empty theirs."""
        while True:
            taken = self.places >= 0
            products = np.where(taken, self.with_target[self.places], 0.0)
            solution = self.inverse @ products
            falling = taken & (solution <= 0.0)
            if not falling.any():
                self.weights = solution
                return True
            current = self.weights
            ratio = current[falling] / (current[falling] - solution[falling])
            step = float(ratio.min())
            self.weights = np.where(taken, current + step * (solution - current), 0.0)
            for place in np.flatnonzero(falling)[ratio <= step]:
                if not self.inverse[place, place] > 0.0:
                    return False
                self._empty(int(place), self._direction(int(place))[0])

    def _residual(self) -> Float[np.ndarray, " S"]:
        taken = self.places >= 0
        return self.problem.target - self.weights[taken] @ self.problem.vectors[self.places[taken]]

    def _correlate(self) -> None:
        residual = self._residual()
        self.loss = _square(residual)
        self.correlation = self.problem.vectors @ residual
