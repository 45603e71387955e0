"""Steps to the minimiser of Eq. 95, see `l1_path` (Campbell & Beronov 2019, Appendix D.3).

    w ← prox_{γ_t λ}(w − γ_t ∇KL(π_w‖π)),  prox_λ(x)_n = max(x_n − λ f̃_n, 0)            (Eq. 96)

In place of the steps of Eq. 96, `by_expansions` minimises a quadratic expansion. Around w,
KL(π_v‖π) ≈ ½‖b − Gᵀv‖² with vectors whose inner products are Cov_w, for all candidate rows. That
plus the penalty is, in u_n = f̃_n w_n, non-negative least squares with one more coordinate, ε for
every u_n and −λ/ε for b:

    ½(−λ/ε − ε Σu)² = λ Σu + ½ε²(Σu)² + constant

whose minimiser is exactly that of the penalty λ + ε²Σu: the package's active set gives it exactly,
with one of several equal rows where gradient steps would keep them all. Far from the posterior,
where KL curves more than Cov_w says, the curvature is multiplied by a c ≥ 1 that makes the
penalised KL fall.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from decoct.constructions.base import Selection
from decoct.constructions.sparse_vi.gradient_update import slope_of
from decoct.constructions.sparse_vi.manifold.base import Manifold, some_rows
from decoct.constructions.sparse_vi.weight_updates import TRUSTED, try_step
from decoct.passes.pools import Pool
from decoct.solvers.nnls import ActiveSet, SparseWeights, UnitVectors, fill
from decoct.stats.divergences import Tangent

MIN_GAIN = 1e-2
"""Gain of a step, relative to the penalty λ Σu, below which the steps end."""

Dense = Float[np.ndarray, " C"]
"""A number for every candidate row."""


@dataclass(frozen=True)
class CandidateSet:
    """The rows among which to choose, and dense weights of theirs."""

    manifold: Manifold
    pool: Pool  # the rows, ascending
    scales: Dense  # f̃_n, the lengths of their vectors under the prior; 0 for constant potentials

    def selection(self, weights: Dense, which: np.ndarray | None = None) -> Selection:
        """Return the candidates that have weight, or those of a mask; one, if that is none."""
        return some_rows(self.pool, weights, weights > 0.0 if which is None else which)

    def places(self, selection: Selection) -> Int[np.ndarray, " m"]:
        return np.searchsorted(self.pool.indices, selection.indices)

    def dense(self, selection: Selection) -> Dense:
        weights = np.zeros(len(self.scales))
        weights[self.places(selection)] = selection.weights
        return weights

    def sum_of_scaled(self, selection: Selection) -> float:
        """Return Σ f̃_n w_n."""
        return float(self.scales @ self.dense(selection))

    def spanning(self, view: Any, which: np.ndarray) -> Any:
        """Return the view at the same weights with the candidates of a mask for its support."""
        return view.with_support(self.selection(self.dense(view.selection), which))


class Step(NamedTuple):
    """Result of a step: the new view, its c, and the gain predicted by its expansion, in nats."""

    view: Any
    stiffness: float
    gain: float


class End(NamedTuple):
    """Result of the last step."""

    view: Any
    crowded: Dense | None  # weights that were too many, if they ever were, after those of the view
    stiffness: float  # c for the next step


def by_expansions(
    key: jax.Array,
    every: CandidateSet,
    view: Any,
    penalty: float,
    limit: float,
    iterations: int,
    stiffness: float,
) -> End:
    """Minimise penalised expansions until the weights no longer change.

    ``penalty`` is λ and ``stiffness`` the c of the first step. With more rows than ``limit`` the
    steps end early.
    """
    for t in range(iterations):
        place = jax.random.fold_in(key, t)
        step = _expansion_step(place, every, view, penalty, stiffness, limit)
        if not isinstance(step, Step):
            return End(view, step, stiffness)
        view, stiffness = step.view, max(1.0, step.stiffness / 2.0)
        if step.gain <= MIN_GAIN * penalty * every.sum_of_scaled(view.selection):
            break
    return End(view, None, stiffness)


def by_gradients(
    key: jax.Array,
    every: CandidateSet,
    view: Any,
    penalty: float,
    limit: float,
    iterations: int,
    rate: float,
) -> End:
    """Take the proximal gradient steps of Eq. 96 with γ_t = rate/(1 + t), t = 0, 1, …"""
    for t in range(iterations):
        weights, gamma = every.dense(view.selection), rate / (1.0 + t)
        slope = slope_of(view.full_tangent(), weights)
        moved = proximal(weights - gamma * slope, gamma * penalty * every.scales)
        moved[every.scales <= 0.0] = 0.0
        if np.count_nonzero(moved) > limit:
            return End(view, moved, 1.0)
        wide = every.spanning(view, (weights > 0.0) | (moved > 0.0))
        there = moved[every.places(wide.selection)]
        view = every.manifold.moved(jax.random.fold_in(key, t), wide, there)
        view = every.manifold.prune(view)
    return End(view, None, 1.0)


def proximal(x: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return argmin_{w ≥ 0} ½‖w − x‖² + thresholdsᵀw (Eq. 96 where w ≥ 0)."""
    return np.maximum(x - thresholds, 0.0)


def minimiser(
    tangent: Tangent,
    scales: Dense,
    penalty: float,
    here: Dense,
    stiffness: float = 1.0,
    limit: float = np.inf,
) -> Dense:
    """Return argmin_{v ≥ 0} (v − w)ᵀD + ½c‖Gᵀ(v − w)‖² + λ Σ f̃_n v_n, D = −G(b − Gᵀw).

    Divided by c ≥ 1, that is the penalty λ/c with Gᵀw + (b − Gᵀw)/c for b; with c = 1 w matters
    only as a start. A row without f̃_n takes no weight. A solution on its way to more rows than
    ``limit`` is returned as it is.
    """
    now = here @ tangent.vectors
    target = now + (tangent.target - now) / stiffness
    length = float(np.linalg.norm(target))
    if length == 0.0:
        return np.zeros(len(scales))
    penalty = penalty / stiffness
    # the penalty minimised is within (ε‖b‖/λ)²‖r‖/‖b‖, relative to itself, of the one asked
    epsilon = 2e-2 * penalty / length
    units = np.where(scales > 0.0, scales, 1.0)
    scaled = np.column_stack([tangent.vectors / units[:, None], np.full(len(scales), epsilon)])
    scaled[scales <= 0.0] = 0.0
    unit = UnitVectors.scaled(scaled, np.append(target, -penalty / epsilon), overwrite=True)
    begin = np.flatnonzero((here > 0.0) & unit.usable)
    active = ActiveSet.spanned_by(unit, begin.tolist())
    return SparseWeights.of(fill(active, size=np.floor(limit) + 1.0)).dense(len(scales)) / units


def _expansion_step(
    key: jax.Array, every: CandidateSet, view: Any, penalty: float, stiffness: float, limit: float
) -> Step | Dense | None:
    """Minimise the penalised expansion with curvature c, 4c, … until the penalised KL falls.

    None if it never does; the minimiser itself if it has more rows than ``limit`` and those of
    shorter steps have too.
    """
    tangent, here = view.full_tangent(), every.dense(view.selection)
    costs, crowded = penalty * every.scales, 0
    for trial in range(16):
        goal = minimiser(tangent, every.scales, penalty, here, stiffness, limit)
        if np.count_nonzero(goal) > limit:
            crowded += 1
            if crowded > 3:  # shorter steps have as many
                return goal
        else:
            there = _try(jax.random.fold_in(key, trial), every, view, here, goal, costs)
            if there is not None:
                along = (goal - here) @ tangent.vectors
                falls = along @ (tangent.target - here @ tangent.vectors)
                gain = falls - 0.5 * stiffness * along @ along - costs @ (goal - here)
                return Step(there, stiffness, float(gain))
        stiffness *= 4.0
    return None


def _try(
    key: jax.Array, every: CandidateSet, view: Any, here: Dense, goal: Dense, costs: Dense
) -> Any | None:
    """Return the view at ``goal`` if the penalised KL is estimated to be lower there."""
    wide = every.spanning(view, (here > 0.0) | (goal > 0.0))
    places = every.places(wide.selection)
    here, goal, costs = here[places], goal[places], costs[places]
    before, after = wide.local_kl(here), wide.local_kl(goal)
    if after.share >= TRUSTED * before.share:
        if after.kl + costs @ goal >= before.kl + costs @ here:
            return None
        return every.manifold.prune(every.manifold.moved(key, wide, goal))
    seen = try_step(key, every.manifold, wide, goal, goal - here, float(costs @ (goal - here)))
    return None if seen is None else every.manifold.prune(seen)
