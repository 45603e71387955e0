"""Accelerated iterative hard thresholding, A-IHT (Zhang et al. 2021, Algorithm II).

For min ‖b − Gᵀw‖² over w ≥ 0 with at most k positive entries, from w = z = 0:

    1. u = G(b − Gᵀz);  A = supp(z) and the k largest |u| outside it
       z ← z + μu,  μ = ‖u_A‖²/‖Gᵀu_A‖²                     exact line search along u_A
    2. w' = the k largest entries of z, negative ones set to 0
    3. u = G(b − Gᵀw') on X = supp(w'); the same step on X; negative entries set to 0   (debias)
    4. z = w' + τ(w' − w),  τ = ⟨b − Gᵀw', Gᵀ(w' − w)⟩/‖Gᵀ(w' − w)‖²      (momentum)

One product of all rows with a residual an iteration. Momentum is not monotone; the best w' met is
the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from jaxtyping import Float, Int

from decoct.errors import RequestError
from decoct.runtime import progress
from decoct.runtime.checks import checked_whole
from decoct.solvers.base import Budget, Path, Solver
from decoct.solvers.combination import line_search
from decoct.solvers.nnls import SparseWeights, UnitVectors


@dataclass(frozen=True)
class IterativeThresholding(Solver):
    """Accelerated iterative hard thresholding, run once for every size.

    Attributes
    ----------
    iterations
        Most iterations for each size; fewer where the budget says so.
    tolerance
        Relative change of the weights at which it ends.
    debias
        Take the extra step on the support (Algorithm II; without it Algorithm I).

    Raises
    ------
    RequestError
        ``iterations`` below 1, or a negative ``tolerance``.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.solvers import Budget, IterativeThresholding
    >>> from decoct.solvers.nnls import UnitVectors
    >>> problem = UnitVectors.scaled(np.eye(3), np.array([1.0, 2.0, 3.0]))
    >>> path = IterativeThresholding().solve(problem, Budget((2,)), np.random.default_rng(0))
    >>> len(path[2].indices) <= 2
    True
    """

    iterations: int = 300
    tolerance: float = 1e-5
    debias: bool = True

    def __post_init__(self) -> None:
        checked_whole("iterations", self.iterations, 1)
        if not self.tolerance >= 0.0:
            raise RequestError(f"tolerance must not be negative, not {self.tolerance}.")

    def solve(self, problem: UnitVectors, budget: Budget, rng: np.random.Generator) -> Path:
        path: Path = {}
        for m in budget.sizes:
            best: SparseWeights | None = None
            for here in islice(self.steps(problem, m), budget.iterations):
                progress.advance(1, "picks")
                if len(here.indices) and (best is None or here.residual_norm < best.residual_norm):
                    best = here
            if best is not None:
                path[m] = best
        return path

    def steps(self, problem: UnitVectors, size: int) -> Iterator[SparseWeights]:
        """Yield w' of every iteration."""
        now = ahead = _Sparse(problem, np.zeros(0, dtype=np.int64), np.zeros(0))
        for _ in range(self.iterations):
            new = _threshold(problem, _stepped(problem, ahead, size), size)
            if self.debias:
                new = _debias(new)
            yield SparseWeights(new.rows, new.weights, float(np.linalg.norm(new.residual)))
            change = new.plus(now, -1.0)
            length = float(np.linalg.norm(change.weights))
            if length <= self.tolerance * float(np.linalg.norm(new.weights)):
                return
            now, ahead = new, new.plus(change, line_search(change.sum, new.residual))


class _Sparse:
    """Weights on a few rows, in the caller's units, with Σ w_n g_n."""

    def __init__(
        self, problem: UnitVectors, rows: Int[np.ndarray, " m"], weights: Float[np.ndarray, " m"]
    ) -> None:
        self.problem, self.rows, self.weights = problem, rows, weights
        self.sum = (weights * problem.norms[rows]) @ problem.unit(rows)  # pyright: ignore

    @property
    def residual(self) -> Float[np.ndarray, " S"]:
        return self.problem.target - self.sum

    def plus(self, other: _Sparse, factor: float) -> _Sparse:
        rows = np.union1d(self.rows, other.rows)
        weights = np.zeros(len(rows))
        weights[np.searchsorted(rows, self.rows)] += self.weights
        weights[np.searchsorted(rows, other.rows)] += factor * other.weights
        return _Sparse(self.problem, rows, weights)


def _stepped(problem: UnitVectors, here: _Sparse, size: int) -> Float[np.ndarray, " n"]:
    """Return z + μu as a dense vector; u is in the caller's units, 0 for zero rows."""
    products = problem.products(here.residual)
    slope = np.where(problem.usable, products, 0.0) * problem.norms
    outside = np.abs(slope)
    outside[here.rows] = -1.0
    count = min(size, len(slope) - len(here.rows))
    top = np.argpartition(-outside, count - 1)[:count] if count > 0 else np.zeros(0, dtype=np.int64)
    active = np.union1d(here.rows, top)
    stepped = _step_length(_Sparse(problem, active, slope[active])) * slope
    stepped[here.rows] += here.weights
    return stepped


def _step_length(direction: _Sparse) -> float:
    square = float(direction.sum @ direction.sum)
    return float(direction.weights @ direction.weights) / square if square > 0.0 else 0.0


def _threshold(problem: UnitVectors, dense: np.ndarray, size: int) -> _Sparse:
    top = np.argpartition(-dense, size - 1)[:size] if size < len(dense) else np.arange(len(dense))
    rows = np.sort(top[dense[top] > 0.0])
    return _Sparse(problem, rows, dense[rows])


def _debias(here: _Sparse) -> _Sparse:
    problem, rows = here.problem, here.rows
    if not len(rows):
        return here
    slope = (problem.unit(rows) @ here.residual) * problem.norms[rows]
    weights = here.weights + _step_length(_Sparse(problem, rows, slope)) * slope
    kept = weights > 0.0
    return _Sparse(problem, rows[kept], weights[kept])
