"""Greedy iterative geodesic ascent, GIGA (Campbell & Broderick 2018).

Frank–Wolfe fixes Σ σ_n w_n and so the scale of Σ w_n g_n; GIGA compares directions only and scales
at the end. With unit rows a_n = g_n/‖g_n‖, the unit target b̂ = b/‖b‖ and y the unit vector along
the current sum (0 at the start):

    c = (b̂ − ⟨b̂, y⟩y)/κ,  κ = ‖b̂ − ⟨b̂, y⟩y‖             the geodesic from y to b̂
    n = argmax ⟨a_n, c⟩/√(1 − ⟨a_n, y⟩²)                  the geodesic most aligned with it
    p = ⟨b̂, a⟩ − ⟨b̂, y⟩⟨y, a⟩,  q = ⟨b̂, y⟩ − ⟨b̂, a⟩⟨y, a⟩
    y ← (q y + p a)/‖q y + p a‖                            the nearest point to b̂ on it

and the weights are scaled by ‖b‖⟨b̂, y⟩. One product of all rows with c an iteration: ⟨a_n, y⟩ comes
for free from b̂ = ⟨b̂, y⟩y + κc, as (⟨a_n, b̂⟩ − κ⟨a_n, c⟩)/⟨b̂, y⟩.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from decoct.solvers.base import Budget, Path, Solver
from decoct.solvers.combination import STALLED, Combination, collect
from decoct.solvers.nnls import SparseWeights, UnitVectors


@dataclass(frozen=True)
class GIGA(Solver):
    """Greedy iterative geodesic ascent: directions on the sphere, the scale at the end.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.solvers import GIGA, Budget
    >>> from decoct.solvers.nnls import UnitVectors
    >>> problem = UnitVectors.scaled(np.eye(3), np.array([1.0, 2.0, 3.0]))
    >>> path = GIGA().solve(problem, Budget((2,)), np.random.default_rng(0))
    >>> len(path[2].indices) <= 2
    True
    """

    def solve(self, problem: UnitVectors, budget: Budget, rng: np.random.Generator) -> Path:
        return collect(self.steps(problem), budget)

    def steps(self, problem: UnitVectors) -> Iterator[Geodesic]:
        """Yield the iterates, the row most aligned with b first."""
        length = float(np.linalg.norm(problem.target))
        if length == 0.0 or not problem.usable.any():
            return
        target = problem.target / length
        along_target = problem.products(target)
        row = int(np.argmax(along_target))
        if along_target[row] <= 0.0:
            return
        here = Geodesic(problem, target, length)
        here.add(row, 1.0)
        here.normalise()
        yield here
        while True:
            kappa, direction = here.geodesic()
            if kappa <= STALLED:
                return
            forward = problem.products(direction)
            if here.cosine < 0.1:  # too small to divide by
                sideways = problem.products(here.sum)
            else:
                with np.errstate(invalid="ignore"):  # −∞ + ∞ for zero rows, never usable
                    sideways = (along_target - kappa * forward) / here.cosine
            row = int(np.argmax(_scores(forward, sideways)))
            if not here.step_towards(row):
                return
            yield here


def _scores(forward: np.ndarray, sideways: np.ndarray) -> np.ndarray:
    """Return ⟨a_n, c⟩/√(1 − ⟨a_n, y⟩²), −∞ where the geodesic has no direction or the row is zero.

    In place: more passes over n numbers would cost as much as the product with short rows.
    """
    left = np.square(sideways)
    np.subtract(1.0, left, out=left)
    directionless = ~(left > 1e-14)  # zero rows, whose products are −∞ or NaN, among them
    left[directionless] = np.inf
    np.sqrt(left, out=left)
    with np.errstate(invalid="ignore"):
        np.divide(forward, left, out=left)
    left[directionless] = -np.inf
    return left


class Geodesic(Combination):
    """A unit vector y = Σ α_n a_n, α > 0, on its way to the unit target."""

    def __init__(self, problem: UnitVectors, target: np.ndarray, length: float) -> None:
        super().__init__(problem)
        self.target, self.length = target, length

    @property
    def cosine(self) -> float:
        """⟨b̂, y⟩."""
        return float(self.target @ self.sum)

    @property
    def loss(self) -> float:
        """‖b‖ κ: the distance from b to the line through y."""
        return self.length * self.geodesic()[0]

    def geodesic(self) -> tuple[float, Float[np.ndarray, " S"]]:
        """Return κ and the unit tangent c at y towards the target."""
        y = self.sum
        offset = self.target - (self.target @ y) * y
        offset -= (offset @ y) * y  # twice, for the digits of κ
        kappa = float(np.linalg.norm(offset))
        return kappa, offset / kappa if kappa > 0.0 else offset

    def step_towards(self, row: int) -> bool:
        """Go to the point nearest to the target on the geodesic to a row; False if it is here."""
        unit, y = self.problem.unit(row), self.sum
        a_b, y_b, a_y = float(unit @ self.target), self.cosine, float(unit @ y)
        kappa, direction = self.geodesic()
        gain = kappa * float(unit @ direction)  # = ⟨b̂, a⟩ − ⟨b̂, y⟩⟨y, a⟩, without cancellation
        keep = y_b - a_b * a_y
        if gain <= 0.0 or keep < 0.0:
            return False
        self.scale(keep / (keep + gain))
        self.add(row, gain / (keep + gain))
        self.normalise()
        return self.geodesic()[0] < kappa

    def normalise(self) -> None:
        self.scale(1.0 / float(np.linalg.norm(self.sum)))

    def result(self) -> SparseWeights:
        direction = super().result()
        scale = self.length * self.cosine
        return SparseWeights(direction.indices, scale * direction.weights, direction.residual_norm)
