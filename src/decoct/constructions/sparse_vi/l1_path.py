"""Coresets by an ℓ1 penalty in place of a count of rows (Campbell & Beronov 2019, Appendix D.3).

    w* = argmin_{w ≥ 0} KL(π_w‖π) + λ Σ_n f̃_n w_n                                     (Eq. 95)

A stage solves that for one λ (`l1_steps`: Eq. 96 itself, or penalised quadratic expansions), a
search over λ finds the number of rows asked for (`l1_search`), and an update without the penalty,
which shrinks weights and spreads them over more rows than are needed, ends it.

Scales. The paper prints f̃_n = Var_0 f_n; its argument, that only f_n/√Var_0 f_n should matter,
holds for f̃_n = √Var_0 f_n, which is what is used here: with u_n = f̃_n w_n the penalty is λ Σ u_n
and rescaled potentials, with weights rescaled against them, have the same support. With Var_0 f_n a
potential that is c times as large, and needs 1/c of the weight, would pay c times as much.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from decoct.constructions.base import (
    NotSaved,
    Plan,
    Problem,
    Selection,
    SizedSelection,
    StepInfo,
    equal_weight_rows,
)
from decoct.constructions.sparse_vi.l1_search import DESCENT, Bounds, Stage
from decoct.constructions.sparse_vi.l1_steps import CandidateSet, by_expansions, by_gradients
from decoct.constructions.sparse_vi.manifold.base import LocalView, prune, require_room
from decoct.constructions.sparse_vi.options import ManifoldConstruction
from decoct.constructions.sparse_vi.weight_updates import Quadratic, WeightUpdate
from decoct.errors import RequestError
from decoct.passes.pools import Pool
from decoct.report import Status
from decoct.runtime.checks import check_whole, is_finite, is_positive
from decoct.runtime.randomness import uniform_sample
from decoct.solvers.nnls import row_norms


class L1PathState(NamedTuple):
    """What the next stage needs."""

    candidates: Int[np.ndarray, " C"]  # rows to choose from; empty before the first stage
    scales: Float[np.ndarray, " C"]  # their f̃_n
    stages: tuple[Stage, ...]  # done, for any size; the first is the prior, w = 0 at λ_max
    searched: int  # stages spent on the size in turn, the largest that is not in ``chosen``
    chosen: tuple[SizedSelection, ...]  # what was found for the larger sizes, the largest first
    outcome: str  # `Status` by name
    last: NotSaved[tuple[CandidateSet, Stage, Any]]  # the stage to start from, its view at the end


@dataclass(frozen=True)
class L1Path(ManifoldConstruction):
    """Sparse variational inference with an ℓ1 penalty whose weight λ is searched for.

    Use it where M exceeds the d(d + 3)/2 dimensions of quadratic potentials. For smaller M there
    may be no λ near the posterior with so few rows; solutions then have little weight and a large
    predicted KL. A larger ``early`` lets the search pass through more rows; `SparseVI` and
    `IteratedHilbert` are better there.

    Attributes
    ----------
    update
        Moves the weights once their support is found, without the penalty, which shrinks them and
        spreads them over more rows than are needed; None leaves them as Eq. 95 has them.
    searches
        Most stages, each of one λ, for every size asked for; the largest size comes first.
    tolerance
        The search ends with (1 − tolerance) M ≤ ‖w‖₀ ≤ M.
    iterations
        Most steps in a stage.
    early
        A stage ends as soon as ‖w‖₀ > early·M, the paper's 2; None for never.
    scheme
        "expansion" minimises the penalised quadratic expansion; "plain" is Eq. 96 with
        γ_t = rate/(1 + t), which the rate has to fit: at the prior the gradient is of the order of
        N Var_0 f_n. From w = 0 it at first gives weight to all rows with a slope above λ, so that
        ``early`` rejects nearly every λ; set it to None.
    rate
        See ``scheme``; "expansion" has none.
    draws
        S; default max(500, 5 M).
    subsample
        Rows among which to choose, drawn once; None for all, as in closed form.
    subsample_totals, control_variates, reuse, exact
        As in `SparseVI`.

    Raises
    ------
    RequestError
        The same as `SparseVI`, or the scheme, ``tolerance``, ``early`` or rate is out of range.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> method = decoct.constructions.L1Path(searches=3)
    >>> decoct.build(model, rows, size=10, method=method).size <= 10
    True
    """

    update: WeightUpdate | None = field(default_factory=Quadratic)
    searches: int = 20
    tolerance: float = 0.05
    iterations: int = 30
    early: float | None = 2.0
    scheme: str = "expansion"
    rate: float = 1.0
    draws: int | None = None
    subsample: int | None = None
    subsample_totals: bool = False
    control_variates: bool = True
    reuse: bool = True
    exact: bool = True

    def __post_init__(self) -> None:
        self.check_options(", or None,")
        check_whole(self, searches=1, iterations=1)
        if self.scheme not in ("expansion", "plain"):
            raise RequestError(f"scheme must be one of expansion, plain, not {self.scheme!r}.")
        if not (is_finite(self.tolerance) and 0.0 <= self.tolerance < 1.0):
            raise RequestError(f"tolerance must be in [0, 1), not {self.tolerance!r}.")
        if self.early is not None and not (is_finite(self.early) and self.early > 1.0):
            raise RequestError(
                f"early must be above 1, or None, not {self.early!r}: what it rejects must have "
                "too many rows."
            )
        if not is_positive(self.rate):
            raise RequestError(f"The rate γ must be positive, not {self.rate!r}.")

    def init(self, key: jax.Array, problem: Problem) -> L1PathState:
        self.require_start(problem)
        nothing = np.zeros(0, dtype=np.int64)
        return L1PathState(nothing, np.zeros(0), (), 0, (), Status.RUNNING.name, None)

    def step(
        self, key: jax.Array, problem: Problem, state: L1PathState
    ) -> tuple[L1PathState, StepInfo]:
        if not state.stages:
            return self._open(key, problem, state)
        # the largest first: its stages are of use to the smaller ones
        size = problem.sizes[-1 - len(state.chosen)]
        bounds = Bounds.of(state.stages, size)
        start, penalty = bounds.start, bounds.middle(state.searched)
        every, view = self._start(key, problem, state, start)
        stage, end = self._stage(jax.random.fold_in(key, 1), every, view, start, penalty, size)
        state = state._replace(stages=(*state.stages, stage), searched=state.searched + 1)
        bounds = Bounds.of(state.stages, size)
        ahead = bounds.start is stage
        state = state._replace(last=(every, stage, end) if ahead else (every, start, view))
        message = f"λ = {penalty:.3g}: {stage.rows} rows" + ("" if stage.complete else ", too many")
        if state.searched >= self.searches or bounds.settled(size, self.tolerance):
            state = self._decide(jax.random.fold_in(key, 2), problem, state)
            message += f"; {state.chosen[-1].selection.size} kept"
        return state, StepInfo(message, _numbers(stage, size, state.chosen))

    def path(self, state: L1PathState) -> tuple[SizedSelection, ...]:
        return state.chosen[::-1]

    def steps(self, problem: Problem) -> int:
        """Return the most steps there can be."""
        return 1 + self.searches * len(problem.sizes)

    def plan(self, problem: Problem) -> Plan:
        """One set of draws at least; at most one for every step of every stage and its polish."""
        polish = 0 if self.update is None else 2 * self.update.steps
        most = len(problem.sizes) * (self.searches * (1 + self.iterations) + 1 + polish)
        return self.plan_sets(problem, most)

    def count_draws(self, problem: Problem) -> int:
        return self.draws or max(500, 5 * problem.size)

    def _open(
        self, key: jax.Array, problem: Problem, state: L1PathState
    ) -> tuple[L1PathState, StepInfo]:
        """Evaluate f̃ and λ_max at the prior."""
        candidates = np.arange(problem.n_rows)
        if self.subsample is not None and not self.has_closed_form(problem):
            candidates = uniform_sample(jax.random.fold_in(key, 1), len(candidates), self.subsample)
        nothing = np.zeros(len(candidates))
        state = state._replace(candidates=candidates, scales=nothing)
        every = self._find_candidates(problem, state)
        view = every.manifold.at(jax.random.fold_in(key, 0), every.selection(nothing))
        vectors, target = view.full_tangent()
        scales = row_norms(vectors)
        varies = scales > np.finfo(float).tiny
        largest = float(np.abs((vectors[varies] @ target) / scales[varies]).max(initial=0.0))
        prior = Stage(largest, 0.0, 0, True, True, view.selection, 1.0, view.origin)
        last = replace(every, scales=scales), prior, view
        state = state._replace(scales=scales, stages=(prior,), last=last)
        if largest == 0.0:  # no potential varies
            state = self._decide(jax.random.fold_in(key, 2), problem, state)
        info = StepInfo(f"w = 0 from λ = {largest:.3g}", _numbers(prior, problem.size, ()))
        return state, info

    def _find_candidates(self, problem: Problem, state: L1PathState) -> CandidateSet:
        """Return the rows to choose from: those of the last stage, or a new set."""
        if state.last is not None:
            return state.last[0]
        candidates = state.candidates
        few = candidates if len(candidates) < problem.n_rows else None
        manifold = self.make_manifold(problem, None, few)
        if self.has_closed_form(problem):
            require_room(
                4 * problem.n_rows * problem.dim * (problem.dim + 3),
                f"The closed form of {problem.n_rows} rows in {problem.dim} dimensions",
                "take draws instead: exact=False",
            )
        pool = Pool(candidates, problem.potentials.rows.take(candidates))
        return CandidateSet(manifold, pool, state.scales)

    def _start(
        self, key: jax.Array, problem: Problem, state: L1PathState, start: Stage
    ) -> tuple[CandidateSet, LocalView]:
        """Return the view a stage starts from: in memory, made again, or of fresh draws."""
        every = self._find_candidates(problem, state)
        every = replace(every, manifold=every.manifold.warm_started(start.origin))
        if not self.reuse:
            return every, every.manifold.at(jax.random.fold_in(key, 0), start.selection)
        if state.last is not None and state.last[1] is start:
            return every, state.last[2]
        if start.origin is not None:
            return every, every.manifold.restored(start.origin, start.selection)
        return every, every.manifold.at(key, start.selection)

    def _stage(
        self,
        key: jax.Array,
        every: CandidateSet,
        view: LocalView,
        start: Stage,
        penalty: float,
        size: int,
    ) -> tuple[Stage, LocalView]:
        """Minimise Eq. 95 at one λ."""
        limit = np.inf if self.early is None else self.early * size
        steps, pace = by_gradients, self.rate
        if self.scheme == "expansion":
            steps, pace = by_expansions, start.stiffness
        end = steps(key, every, view, penalty, limit, self.iterations, pace)
        view = end.view
        if end.crowded is None:
            view = every.manifold.prune(view)
            selection, origin = view.selection, view.origin
        else:
            selection, origin = every.selection(end.crowded), None
        stage = Stage(
            penalty,
            cost=penalty * every.sum_of_scaled(selection),
            rows=int(np.count_nonzero(selection.weights)),
            complete=end.crowded is None,
            near=start.penalty <= 1.01 * DESCENT * penalty,
            selection=selection,
            stiffness=end.stiffness,
            origin=origin,
        )
        return stage, view

    def _decide(self, key: jax.Array, problem: Problem, state: L1PathState) -> L1PathState:
        """Finish every size whose search has ended, with weights that are not shrunk."""
        assert state.last is not None
        every, chosen = state.last[0], list(state.chosen)
        while len(chosen) < len(problem.sizes):
            size = problem.sizes[-1 - len(chosen)]
            settled = Bounds.of(state.stages, size).settled(size, self.tolerance)
            if len(chosen) > len(state.chosen) and not settled:
                break
            place = jax.random.fold_in(key, len(chosen))
            chosen.append(self._finished(place, problem, every, state.stages, size))
        outcome = Status.DONE if len(chosen) == len(problem.sizes) else Status.RUNNING
        return state._replace(chosen=tuple(chosen), searched=0, outcome=outcome.name)

    def _finished(
        self,
        key: jax.Array,
        problem: Problem,
        every: CandidateSet,
        stages: tuple[Stage, ...],
        size: int,
    ) -> SizedSelection:
        """Move the weights of the best support, and of larger ones while that leaves out rows.

        The penalty spreads weight over rows that often need none without it.
        """
        best = Bounds.of(stages, size).best
        first = best.selection if best.rows else _without_search(problem, every, stages, size)
        kept = self._polish(jax.random.fold_in(key, 0), every, first)
        larger = [
            one
            for one in sorted(stages, key=lambda one: -one.penalty)
            if one.complete and one.penalty < best.penalty and size < one.rows <= 2 * size
        ]
        for place, stage in enumerate(larger if self.update is not None else []):
            if kept.selection.size >= (1.0 - self.tolerance) * size:
                break
            other = self._polish(jax.random.fold_in(key, 1 + place), every, stage.selection)
            if other.selection.size > size:
                break
            kept = min(kept, other, key=lambda one: one.predicted_kl)
        return kept

    def _polish(self, key: jax.Array, every: CandidateSet, selection: Selection) -> SizedSelection:
        manifold = every.manifold
        if self.update is not None and every.scales.any():
            view = manifold.at(jax.random.fold_in(key, 0), selection)
            view = self.update.run(jax.random.fold_in(key, 1), manifold, view, 0)
            manifold = manifold.warm_started(view.origin)
            if view.selection.weights.any():
                selection = prune(view.selection)
        fresh = manifold.at(jax.random.fold_in(key, 2), selection)
        return SizedSelection(selection, fresh.predicted_kl())


def _without_search(
    problem: Problem, every: CandidateSet, stages: tuple[Stage, ...], size: int
) -> Selection:
    """Return the largest u_n where every λ had too many rows; evenly spaced rows if none had."""
    crowded = [stage for stage in stages if stage.rows]
    if not crowded:
        return equal_weight_rows(problem, every.pool, size)
    weights = every.dense(min(crowded, key=lambda stage: stage.rows).selection)
    weights[np.argsort(-weights * every.scales, kind="stable")[size:]] = 0.0
    return every.selection(weights)


def _numbers(stage: Stage, size: int, chosen: tuple[SizedSelection, ...]) -> dict[str, Any]:
    return {
        "size": size,
        "penalty": stage.penalty,
        "rows": stage.rows,
        "complete": stage.complete,
        "predicted_kl": chosen[-1].predicted_kl if chosen else None,
    }
