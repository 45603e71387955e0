"""Hilbert coresets by Frank–Wolfe (Campbell & Broderick 2019, Algorithm 2) and its variants.

The cardinality constraint is replaced by the polytope {w ≥ 0, Σ σ_n w_n = σ} with σ_n = ‖g_n‖ and
σ = Σ σ_n (Eq. 4.6), whose vertices hold one row each. In unit rows a_n = g_n/σ_n and with
x = Σ w_n g_n the vertices are σ a_n. From the vertex most aligned with b (Eq. 4.7):

    f = argmax_n ⟨b − x, a_n⟩                                   (Eq. 4.8)
    γ = ⟨d, b − x⟩/⟨d, d⟩,   d = σ a_f − x                      (Eq. 4.9; or γ_t = 2/(3t + 4))
    x ← x + γ d

The conclusion's variants (Lacoste-Julien & Jaggi 2015), all on the same polytope, with v the active
row least aligned with b − x and λ_v = σ_v w_v/σ:

    away-step           d = σ a_f − x or x − σ a_v, whichever promises more, γ ≤ λ_v/(1 − λ_v)
    pairwise            d = σ(a_f − a_v), γ ≤ λ_v
    fully corrective    x = the point of the convex hull of the chosen vertices nearest to b

The last one is non-negative least squares. With p_i = σ a_i − b, minimising ‖Σ λ_i p_i‖
over Σ λ_i = 1, λ ≥ 0 has the same solution, up to scale, as min_{μ ≥ 0} ‖e − Σ μ_i (σ, p_i)‖ with
e = (1, 0, …, 0): Wolfe's nearest-point algorithm (1976). Each iteration costs one product of all
rows with b − x.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from decoct.errors import RequestError
from decoct.solvers.base import Budget, Path, Solver
from decoct.solvers.combination import STALLED, Combination, collect, line_search
from decoct.solvers.nnls import ActiveSet, SparseWeights, UnitVectors, fill

Variant = Literal["vanilla", "away", "pairwise", "fully_corrective"]
VARIANTS = get_args(Variant)


@dataclass(frozen=True)
class FrankWolfe(Solver):
    """Frank–Wolfe on the polytope {w ≥ 0, Σ σ_n w_n = σ}.

    Attributes
    ----------
    variant
        "vanilla" (Algorithm 2), "away", "pairwise" or "fully_corrective".
    step
        "exact" line search (Eq. 4.9), or "fixed" γ_t = 2/(3t + 4); the latter for "vanilla" only.

    Raises
    ------
    RequestError
        The variant or step is unknown, or the fixed step is not for the vanilla variant.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.solvers import Budget, FrankWolfe
    >>> from decoct.solvers.nnls import UnitVectors
    >>> problem = UnitVectors.scaled(np.eye(3), np.array([1.0, 2.0, 3.0]))
    >>> path = FrankWolfe().solve(problem, Budget((2,)), np.random.default_rng(0))
    >>> len(path[2].indices) <= 2
    True
    """

    variant: Variant = "vanilla"
    step: Literal["exact", "fixed"] = "exact"

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise RequestError(
                f"variant must be one of {', '.join(VARIANTS)}, not {self.variant!r}."
            )
        if self.step not in ("exact", "fixed"):
            raise RequestError(f"step must be one of exact, fixed, not {self.step!r}.")
        if self.step == "fixed" and self.variant != "vanilla":
            raise RequestError(f"The fixed step is for the vanilla variant, not {self.variant!r}.")

    def solve(self, problem: UnitVectors, budget: Budget, rng: np.random.Generator) -> Path:
        return collect(self.steps(problem), budget)

    def steps(self, problem: UnitVectors) -> Iterator[Combination | _Hull]:
        """Yield the iterates, the initial vertex first; none if no row points towards b."""
        if not (problem.products(problem.target) > 0.0).any():
            return iter(())
        if self.variant == "fully_corrective":
            return _fully_corrective(problem)
        if self.variant == "vanilla":
            return _vanilla(problem, self.step == "fixed")
        return _with_away_vertex(problem, pairwise=self.variant == "pairwise")


def _first_vertex(problem: UnitVectors) -> Combination:
    here = Combination(problem)
    here.add(int(np.argmax(problem.products(problem.target))), problem.sum_of_norms)
    return here


def _vanilla(problem: UnitVectors, fixed: bool) -> Iterator[Combination]:
    sigma, here, t = problem.sum_of_norms, _first_vertex(problem), 0
    yield here
    while not _done(here):
        row = int(np.argmax(problem.products(here.residual)))
        towards = sigma * problem.unit(row) - here.sum
        step = 2.0 / (3.0 * t + 4.0) if fixed else line_search(towards, here.residual)
        if step <= 0.0:
            return
        here.scale(1.0 - min(step, 1.0))
        here.add(row, min(step, 1.0) * sigma)
        t += 1
        yield here


def _with_away_vertex(problem: UnitVectors, pairwise: bool) -> Iterator[Combination]:
    sigma, here = problem.sum_of_norms, _first_vertex(problem)
    yield here
    while not _done(here):
        residual = here.residual
        products = problem.products(residual)
        enters = int(np.argmax(products))
        leaves = _away_vertex(here, products, residual)
        share = here.alpha(leaves) / sigma
        towards = sigma * problem.unit(enters) - here.sum
        backwards = here.sum - sigma * problem.unit(leaves)
        if pairwise:
            direction, most = sigma * (problem.unit(enters) - problem.unit(leaves)), share
        elif here.size == 1 or towards @ residual >= backwards @ residual:
            direction, most, leaves = towards, 1.0, None
        else:
            direction, most, enters = backwards, share / (1.0 - share), None
        step = min(line_search(direction, residual), most)
        if step <= 0.0:
            return
        if not pairwise:
            here.scale(1.0 - step if leaves is None else 1.0 + step)
        if leaves is not None:  # all of it where the step ends at the boundary
            alpha = here.alpha(leaves)
            here.add(leaves, -alpha if step >= most else -min(step * sigma, alpha))
        if enters is not None:
            here.add(enters, step * sigma)
        yield here


def _away_vertex(here: Combination, products: np.ndarray, residual: np.ndarray) -> int:
    """Return the active row least aligned with b − x; the heaviest of those that tie.

    Ties are the rule, not the exception: a pairwise step that ends inside leaves its two rows
    equally aligned, and rounding must not choose between them.
    """
    active = here.rows
    aligned = products[active]
    rounding = np.finfo(products.dtype).eps * float(np.linalg.norm(residual))
    rounding += np.finfo(np.float64).eps * here.problem.sum_of_norms
    tied = active[aligned <= aligned.min() + 64 * rounding]
    return int(tied[np.argmax([here.alpha(int(row)) for row in tied])])


def _done(here: Combination | _Hull) -> bool:
    return here.loss <= STALLED * float(np.linalg.norm(here.problem.target))


class _Hull:
    """The point nearest to b in the convex hull of chosen vertices σ a_i."""

    def __init__(self, problem: UnitVectors) -> None:
        self.problem, self.sigma = problem, problem.sum_of_norms
        self.rows: list[int] = []
        e = np.zeros(len(problem.target) + 1)
        e[0] = 1.0
        lifted = UnitVectors(np.zeros((0, len(e))), np.zeros(0), e, np.zeros(0, dtype=bool), 0.0)
        self.active = ActiveSet(lifted)

    @property
    def size(self) -> int:
        return self.active.size

    @property
    def shares(self) -> np.ndarray:
        """λ of the active rows, Σ λ = 1."""
        lengths = self.active.problem.norms[self.active.support]
        mu = self.active.weights / lengths
        return mu / mu.sum()

    @property
    def residual(self) -> np.ndarray:
        chosen = [self.rows[i] for i in self.active.support]
        return self.problem.target - self.sigma * (self.shares @ self.problem.unit(chosen))

    @property
    def loss(self) -> float:
        return float(np.linalg.norm(self.residual))

    def add(self, row: int) -> bool:
        """Bring in a vertex and find the nearest point again; False if that changes nothing."""
        lifted = self.active.problem
        p = np.append(self.sigma, self.sigma * self.problem.unit(row) - self.problem.target)
        length = float(np.linalg.norm(p))
        self.rows.append(row)
        self.active.problem = UnitVectors(
            np.vstack([lifted.vectors, p / length]),
            np.append(lifted.norms, length),
            lifted.target,
            np.append(lifted.usable, True),
            lifted.sum_of_norms + length,
        )
        if not self.active.add(len(self.rows) - 1):
            return False
        # vertices that were dropped on the way may come in again: the hull is that of all chosen
        fill(self.active)
        return True

    def result(self) -> SparseWeights:
        chosen = np.array([self.rows[i] for i in self.active.support], dtype=np.int64)
        order = np.argsort(chosen)
        weights = self.sigma * self.shares / self.problem.norms[chosen]
        return SparseWeights(chosen[order], weights[order], self.loss)


def _fully_corrective(problem: UnitVectors) -> Iterator[_Hull]:
    hull = _Hull(problem)
    row = int(np.argmax(problem.products(problem.target)))
    best = np.inf
    while hull.add(row):
        loss = hull.loss
        if loss >= best * (1.0 - 1e-12):
            return
        best = loss
        yield hull
        if _done(hull):
            return
        row = int(np.argmax(problem.products(hull.residual)))
