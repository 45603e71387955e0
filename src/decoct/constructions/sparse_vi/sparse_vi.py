"""SparseVI, Riemannian coresets (Campbell & Beronov 2019, Algorithm 1).

From w = 0, the prior:

    1. choose the row whose potential correlates most with the residual fᵀ(1 − w) under π_w, in
       absolute value among rows that have a weight already          (Eq. 10-11, lines 3-9)
    2. move the weights of the support towards min KL(π_w‖π)           (Eq. 12, lines 10-15)

and again, M times. The tangent space moves with w, so that no weighting distribution is needed.
The paper pays T·S potentials of all N rows per pick for stochastic gradients; here the default
update is a damped Gauss–Newton step (`weight_updates.Quadratic`), and draws are reused under
importance weights while they last (`manifold.sampled`). Conjugate models need no draws at all
(`manifold.gaussian`, `manifold.linear`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from decoct.constructions.base import (
    NotSaved,
    Plan,
    Problem,
    Selection,
    SizedSelection,
    StepInfo,
    equal_weight_rows,
    no_weight,
    register,
)
from decoct.constructions.sparse_vi.manifold.base import (
    LocalView,
    Manifold,
    Origin,
    has_row,
    prune,
)
from decoct.constructions.sparse_vi.options import ManifoldConstruction
from decoct.constructions.sparse_vi.weight_updates import Quadratic, WeightUpdate, least_missed
from decoct.passes.pools import Pool
from decoct.report import Status
from decoct.runtime.checks import check_whole


class SparseVIState(NamedTuple):
    """What the next pick needs."""

    picks: int
    selection: Selection  # rows with a positive weight
    # not to be picked until another row moves the weights: all rows with weight once one of them,
    # or a row that did not help, was picked, and such rows
    blocked: Int[np.ndarray, " k"]
    chosen: dict[int, SizedSelection]  # the last that each size allows; absent if not reached yet
    outcome: str  # `Status` by name
    origin: Origin | None  # of the last draws, which are remade when a build resumes
    stale: bool  # whether the next pick needs draws of its own
    view: NotSaved[Any]  # the manifold and, unless stale, the draws themselves


@dataclass(frozen=True)
class SparseVI(ManifoldConstruction):
    """Greedy sparse variational inference.

    Attributes
    ----------
    update
        How weights move after a pick: `Quadratic` or `Gradient` of
        `decoct.constructions.sparse_vi.weight_updates`.
    draws
        S; default max(100, 8 M). The paper's is 100.
    picks
        Most picks; None for as many as rows are asked for, the paper's M. Rows can be picked twice
        or lose their weight, so that more picks fill the size better; once it is full, a pick takes
        the place of the row that is missed least.
    subsample
        Rows among which to choose besides the support (U of §3.2); None for all. Closed forms
        choose among all rows whatever it says.
    subsample_totals
        Estimate Σ_n f_n from those rows as well (§3.3). False evaluates all rows at all draws
        whenever new draws are made.
    control_variates
        Correct that estimate by a quadratic that is summed over all rows, wherever the draws are
        close enough together for it to help; each costs a pass of 1 + 2 d potentials a row. False
        is the paper's estimate, noisy by about ½ d N/subsample nats.
    reuse
        Reweight draws while their effective number is at least S/2. False draws again for every
        gradient, as Algorithm 1 does.
    exact
        Covariances in closed form where the model has them: `GaussianMean` (Eq. 20-21) and
        `LinearRegression` with known noise (Eq. 23-24).

    Raises
    ------
    RequestError
        The update is unknown, a count is too small, or options do not fit each other.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> method = decoct.constructions.SparseVI()
    >>> decoct.build(model, rows, size=10, method=method).size <= 10
    True
    """

    update: WeightUpdate = field(default_factory=Quadratic)
    draws: int | None = None
    picks: int | None = None
    subsample: int | None = None
    subsample_totals: bool = False
    control_variates: bool = True
    reuse: bool = True
    exact: bool = True

    def __post_init__(self) -> None:
        self.check_options()
        check_whole(self, picks=1)

    def init(self, key: jax.Array, problem: Problem) -> SparseVIState:
        self.require_start(problem)
        prior = no_weight(problem.potentials)
        nothing = np.zeros(0, dtype=np.int64)
        return SparseVIState(0, prior, nothing, {}, Status.RUNNING.name, None, True, None)

    def step(
        self, key: jax.Array, problem: Problem, state: SparseVIState
    ) -> tuple[SparseVIState, StepInfo]:
        manifold, view = self._start(key, problem, state)
        row = view.best_row(state.blocked)
        if row is None and state.picks:  # these draws are fitted as well as can be
            view = manifold.at(jax.random.fold_in(key, 4), state.selection)
            row = view.best_row(state.blocked)
        if row is None:
            return self._finished(key, problem, manifold, state)
        view = manifold.with_row(view, row)
        picked = int(np.searchsorted(view.selection.indices, row))
        view = self.update.run(jax.random.fold_in(key, 1), manifold, view, picked)
        if _rows(view.selection) > problem.size:
            view = self._make_room(key, manifold, view)
        manifold, view = manifold.warm_started(view.origin), manifold.prune(view)
        selection = view.selection
        moved = not (_same(state.selection, selection) or has_row(state.selection, row))
        blocked = np.zeros(0, dtype=np.int64)
        if not moved:
            active = selection.indices[selection.weights > 0.0]
            blocked = np.union1d(np.append(state.blocked, row), active)
        state = state._replace(
            picks=state.picks + 1,
            selection=selection,
            blocked=blocked,
            origin=view.origin,
            stale=not (self.reuse and moved),
            view=(manifold, view if self.reuse and moved else None),
        )
        state = state._replace(chosen=self._record(problem, state, view.predicted_kl()))
        if state.picks >= self.steps(problem):
            return self._finished(key, problem, manifold, state)
        return state, _info(problem, selection, {"row": row})

    def path(self, state: SparseVIState) -> tuple[SizedSelection, ...]:
        return tuple(state.chosen[size] for size in sorted(state.chosen))

    def steps(self, problem: Problem) -> int:
        """Return the most steps there can be."""
        return self.picks or problem.size

    def plan(self, problem: Problem) -> Plan:
        """One set of draws at least; at most one a pick and two for every step of its update."""
        most = (self.steps(problem) + len(problem.sizes)) * (1 + 2 * self.update.steps)
        return self.plan_sets(problem, most)

    def count_draws(self, problem: Problem) -> int:
        return self.draws or max(100, 8 * problem.size)

    def _start(
        self, key: jax.Array, problem: Problem, state: SparseVIState
    ) -> tuple[Manifold, LocalView]:
        """Return the manifold, and the last pick's view (remade after a resume) or a new one."""
        if state.view is None:
            manifold = self.make_manifold(problem, self.subsample, None).warm_started(state.origin)
        else:
            manifold, view = state.view
            if not state.stale:
                return manifold, view
        if not state.stale and state.origin is not None:
            return manifold, manifold.restored(state.origin, state.selection)
        return manifold, manifold.at(jax.random.fold_in(key, 0), state.selection)

    def _make_room(self, key: jax.Array, manifold: Manifold, view: LocalView) -> LocalView:
        """Leave out the row that is missed least, and move the other weights again."""
        weights = view.selection.weights.copy()
        weights[least_missed(view.tangent(), weights)] = 0.0
        view = manifold.prune(manifold.moved(jax.random.fold_in(key, 2), view, weights))
        return self.update.run(jax.random.fold_in(key, 3), manifold, view, 0)

    def _record(
        self, problem: Problem, state: SparseVIState, predicted_kl: float
    ) -> dict[int, SizedSelection]:
        """Keep the selection for every size that allows it and has nothing better yet."""
        rows, chosen = _rows(state.selection), dict(state.chosen)
        for m in problem.sizes if rows else ():
            if rows > m or (self.picks is None and state.picks > m):
                continue
            known = chosen.get(m)
            worse = (
                known is not None
                and known.predicted_kl is not None
                and rows <= known.selection.size
                and predicted_kl > known.predicted_kl
            )
            if not worse:
                chosen[m] = SizedSelection(state.selection, predicted_kl)
        return chosen

    def _finished(
        self, key: jax.Array, problem: Problem, manifold: Manifold, state: SparseVIState
    ) -> tuple[SparseVIState, StepInfo]:
        """Fill the sizes that were not reached, and predict KL for all from draws of their own."""
        chosen = {m: one.selection for m, one in state.chosen.items()}
        for m in problem.sizes:
            if 0 < _rows(state.selection) <= m:
                chosen.setdefault(m, state.selection)
        if not chosen:
            few = np.arange(min(problem.n_rows, 10 * problem.size))
            pool = Pool(few, problem.potentials.rows.take(few))
            chosen[problem.size] = equal_weight_rows(problem, pool, problem.size)
        smallest, judged = chosen[min(chosen)], {}
        for place, m in enumerate(problem.sizes):
            selection = chosen.get(m, smallest)
            view = manifold.at(jax.random.fold_in(key, 1000 + place), selection)
            judged[m] = SizedSelection(selection, view.predicted_kl())
        last = judged[problem.size]
        state = state._replace(chosen=judged, outcome=Status.DONE.name, view=None)
        return state, _info(problem, last.selection, {"predicted_kl": last.predicted_kl})


def _info(problem: Problem, selection: Selection, numbers: dict[str, Any]) -> StepInfo:
    """Return a step's progress message and figures; warn of weights that diverge."""
    rows, share = _rows(selection), float(selection.weights.sum()) / problem.n_rows
    message, numbers = f"{rows} rows", {**numbers, "rows": rows}
    if share > 4.0:  # `Quadratic` allows 2
        numbers["warning"] = (
            f"The weights add up to {share:.3g} times the number of rows: they have diverged to a "
            "posterior that is too narrow to return from. Plain gradient steps have "
            "no scale: use Quadratic(), Gradient(optimizer='adam') or a smaller rate."
        )
        message += f", with weights of {share:.3g} N: the steps are too long"
    return StepInfo(message, numbers)


def _rows(selection: Selection) -> int:
    return int(np.count_nonzero(selection.weights))


def _same(before: Selection, after: Selection) -> bool:
    """Whether a pick changed no weight by more than 10⁻⁶ of the largest."""
    if not (before.weights.any() or after.weights.any()):
        return True  # each has some row, for the shapes
    mine, theirs = prune(before), prune(after)
    return np.array_equal(mine.indices, theirs.indices) and bool(
        np.abs(mine.weights - theirs.weights).max() <= 1e-6 * theirs.weights.max()
    )


register("sparse-vi", lambda: SparseVI(subsample=2000), compared_as="SparseVI")
