"""Coresets by an ℓ1 penalty in place of a count of rows (Campbell & Beronov 2019, Appendix D.3).

    w* = argmin_{w ≥ 0} KL(π_w‖π) + λ Σ_n f̃_n w_n                                     (Eq. 95)
    w ← prox_{γ_t λ}(w − γ_t ∇KL(π_w‖π)),  prox_λ(x)_n = max(x_n − λ f̃_n, 0)            (Eq. 96)

Scales. The paper prints f̃_n = Var_0 f_n; its argument, that only f_n/√Var_0 f_n should matter,
holds for f̃_n = √Var_0 f_n, which is what is used here: with u_n = f̃_n w_n the penalty is λ Σ u_n
and rescaled potentials, with weights rescaled against them, have the same support. With Var_0 f_n a
potential that is c times as large, and needs 1/c of the weight, would pay c times as much.

Search. At w = 0 the gradient is −Cov_0[f_n, fᵀ1], so that w = 0 is stationary from
λ_max = max_n |Cov_0[f_n, fᵀ1]|/f̃_n upwards. Between 0 and λ_max a λ with ‖w‖₀ just below M is
sought, in the logarithm of λ: between the prior and the posterior the curvature of KL, and with it
the λ of interest, falls by orders of magnitude. A stage (one λ) starts where a larger λ ended, and
returns early once ‖w‖₀ > 2M. Two things differ from what the paper takes for granted. At λ → 0 not
all rows have weight: a minimiser has no more rows than the potentials have dimensions. And ‖w‖₀
falls with λ only where π_w is near π; the search goes on to smaller λ until it is (`Bounds`).

Steps. Around w, KL(π_v‖π) ≈ ½‖b − Gᵀv‖² with vectors whose inner products are Cov_w, for all
candidate rows. That plus the penalty is non-negative least squares with one more coordinate, ε for
every u_n and −λ/ε for b:

    ½(−λ/ε − ε Σu)² = λ Σu + ½ε²(Σu)² + constant

whose minimiser is exactly that of the penalty λ + ε²Σu: the package's active set gives it exactly,
with one of several equal rows where gradient steps would keep them all. A stage repeats that until
it stays where it is; far from the posterior, where KL curves more than Cov_w says, the curvature is
multiplied by a c ≥ 1 that makes the penalised KL fall. The steps of Eq. 96 itself remain, in the
units of w ("plain") or of u ("scaled").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from decoct.constructions.base import (
    Chosen,
    Problem,
    Selection,
    StepInfo,
    evenly,
    pack_chosen,
    unpack_chosen,
)
from decoct.constructions.manifold import (
    GaussianManifold,
    LinearManifold,
    LocalView,
    Manifold,
    Origin,
    SampledManifold,
)
from decoct.constructions.manifold.base import pruned
from decoct.constructions.manifold.gaussian import GaussianView
from decoct.constructions.manifold.linear import LinearView
from decoct.constructions.manifold.sampled import WHOLE_BYTES, SampledView
from decoct.constructions.sparse_vi import _require_proper_prior
from decoct.constructions.weight_updates import Quadratic, WeightUpdate
from decoct.data.base import Columns
from decoct.errors import ModelError, RequestError
from decoct.models.gaussian import GaussianMean
from decoct.models.linear import LinearRegression
from decoct.pools import Pool
from decoct.randomness import uniform_sample
from decoct.solvers.active_set import ActiveSet, UnitVectors, row_norms
from decoct.solvers.nnls import best_row
from decoct.status import Status
from decoct.tangent import Tangent

SCHEMES = ("expansion", "scaled", "plain")

DESCENT = 4.0
"""λ is divided by this, then by its square, fourth power, … as long as there are too few rows."""

STEEPEST = 5
"""λ is never divided by more than DESCENT to the power 2 to this."""

EXTRA = 2e-2
"""ε‖b‖/λ; the penalty minimised is within EXTRA²‖r‖/‖b‖, relative to itself, of the one asked."""

TRUSTED = 0.25
"""Effective share of the draws that must stand behind the weights a step goes to."""

OVERSHOT = 0.1
"""Correlation of a step with the penalised slope at its end above which it went too far."""

STIFFER = 4.0
"""Factor of c after a step that did not lower the penalised KL."""

EASED = 2.0
"""c is divided by this after a step that did."""

PATIENCE = 3
"""How often c is raised because a step has too many rows."""

TRIALS = 16
"""Most c that are tried."""

SETTLED = 1e-2
"""Gain of a step, relative to the penalty λ Σu, below which a stage ends."""

NEGLIGIBLE = 1e-12
"""Penalty λ Σu in nats below which no more rows can lower the KL by anything that counts."""

FAR = 1.0
"""Penalty λ Σu in nats above which π_w is far from π."""

CROWDED = 2
"""Supports of up to this many times M are tried for whether the update brings them to M."""

CLOSED = 1e-2
"""log λ_u/λ_l below which there is nothing left to search."""


class Stage(NamedTuple):
    """What one λ led to.

    Attributes
    ----------
    penalty
        λ.
    cost
        λ Σu at its end, in nats.
    rows
        ‖w‖₀ at its end.
    complete
        False if it returned early.
    near
        Whether it started from a λ not much larger. Early returns of others prove nothing: far from
        its minimum the expansion can have many more rows than the minimum has.
    selection
        The rows; one of weight 0, for the shapes, where w = 0.
    stiffness
        c of its last step.
    origin
        Where its draws came from; None in closed form.
    """

    penalty: float
    cost: float
    rows: int
    complete: bool
    near: bool
    selection: Selection
    stiffness: float
    origin: Origin | None


class L1PathState(NamedTuple):
    """What the next stage needs.

    Attributes
    ----------
    candidates : (C,)
        Rows among which to choose; empty before the prior was looked at.
    scales : (C,)
        f̃_n.
    stages
        Those done, whatever size they were for; the first is the prior, w = 0 at λ_max.
    searched
        Stages spent on the size in turn, the largest without an entry in ``chosen``.
    chosen
        What was found for the larger sizes, the largest first.
    outcome
        `Status` by name.
    last
        `Ground`, the stage to start from, and the view at its end; never packed.
    """

    candidates: Int[np.ndarray, " C"]
    scales: Float[np.ndarray, " C"]
    stages: tuple[Stage, ...]
    searched: int
    chosen: tuple[Chosen, ...]
    outcome: str
    last: tuple[Ground, Stage, Any] | None


@dataclass(frozen=True)
class L1Path:
    """Sparse variational inference with an ℓ1 penalty whose weight λ is searched for.

    Good where M exceeds the d(d + 3)/2 dimensions of quadratic potentials. With fewer rows no λ
    near the posterior may have a support that small, and what has is of little weight and near the
    prior; its predicted KL says so. A larger ``early`` lets the search pass through more rows on
    its way, and `SparseVI` or `IteratedHilbert` do better there.

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
        "expansion" minimises the penalised quadratic expansion; "scaled" is Eq. 96 in u_n = f̃_n w_n
        with γ_t = rate/((1 + t) L), L the largest curvature where it stands; "plain" is Eq. 96 with
        γ_t = rate/(1 + t) in the units of w, which the rate has to fit: at the prior the gradient
        is of the order of N Var_0 f_n. From w = 0 both at first give weight to all rows with a
        slope above λ, so that ``early`` turns away nearly every λ; set it to None.
    rate
        See ``scheme``; "expansion" has none.
    warm
        Start a stage where a larger λ ended; False starts every one from the prior.
    draws
        S; default max(500, 5 M).
    subsample
        Rows among which to choose, drawn once; None for all, as in closed form.
    subsample_totals
        Estimate Σ_n f_n from those rows as well: cheap, and noisy by about ½ d N/subsample nats.
    reuse
        Reweight draws while their effective number is at least S/2. False draws anew for every
        gradient.
    exact
        Covariances in closed form where the model has them, as in `SparseVI`.
    """

    update: WeightUpdate | None = field(default_factory=Quadratic)
    searches: int = 20
    tolerance: float = 0.05
    iterations: int = 30
    early: float | None = 2.0
    scheme: str = "expansion"
    rate: float = 1.0
    warm: bool = True
    draws: int | None = None
    subsample: int | None = None
    subsample_totals: bool = False
    reuse: bool = True
    exact: bool = True

    def __post_init__(self) -> None:
        if self.update is not None and not hasattr(self.update, "run"):
            raise RequestError(
                "update must be Quadratic() or Gradient() of weight_updates, or None, "
                f"not {self.update!r}."
            )
        for name, least in (("searches", 1), ("iterations", 1), ("draws", 2), ("subsample", 1)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise RequestError(f"{name} must be at least {least}, not {value}.")
        if not 0.0 <= self.tolerance < 1.0:
            raise RequestError(f"tolerance must be in [0, 1), not {self.tolerance}.")
        if self.early is not None and not self.early > 1.0:
            raise RequestError(
                f"early must be above 1, or None, not {self.early}: what it turns away must have "
                "too many rows."
            )
        if self.scheme not in SCHEMES:
            raise RequestError(f"scheme must be one of {', '.join(SCHEMES)}, not {self.scheme!r}.")
        if not (np.isfinite(self.rate) and self.rate > 0.0):
            raise RequestError(f"The rate γ must be positive, not {self.rate}.")
        if self.subsample_totals and self.subsample is None:
            raise RequestError("subsample_totals=True needs subsample=, the rows to estimate from.")

    def init(self, key: jax.Array, problem: Problem) -> L1PathState:
        _require_proper_prior(problem.potentials)
        nothing = np.zeros(0, dtype=np.int64)
        return L1PathState(nothing, np.zeros(0), (), 0, (), Status.RUNNING.name, None)

    def step(
        self, key: jax.Array, problem: Problem, state: L1PathState
    ) -> tuple[L1PathState, StepInfo]:
        if not state.stages:
            return self._opened(key, problem, state)
        size = _next_size(problem, state.chosen)
        bounds = Bounds.of(state.stages, size)
        penalty = bounds.middle(state.searched)
        ground, start, view = self._start(key, problem, state, bounds)
        stage, end = self._stage(jax.random.fold_in(key, 1), ground, view, start, penalty, size)
        state = state._replace(stages=(*state.stages, stage), searched=state.searched + 1)
        bounds = Bounds.of(state.stages, size)
        onwards = self.warm and bounds.start is stage
        state = state._replace(last=(ground, stage, end) if onwards else (ground, start, view))
        message = f"λ = {penalty:.3g}: {stage.rows} rows" + ("" if stage.complete else ", too many")
        if state.searched >= self.searches or bounds.settled(size, self.tolerance):
            state = self._decided(jax.random.fold_in(key, 2), problem, state)
            message += f"; {state.chosen[-1].selection.size} kept"
        return state, StepInfo(message, _numbers(stage, size, state.chosen))

    def status(self, problem: Problem, state: L1PathState) -> Status:
        return Status[state.outcome]

    def path(self, state: L1PathState) -> tuple[Chosen, ...]:
        return state.chosen[::-1]

    def steps(self, problem: Problem) -> int:
        return 1 + self.searches * len(problem.sizes)

    def pack(self, state: L1PathState) -> dict[str, Any]:
        return {
            "candidates": state.candidates,
            "scales": state.scales,
            "stages": {str(i): _packed(stage) for i, stage in enumerate(state.stages)},
            "searched": state.searched,
            "chosen": pack_chosen(state.chosen),
            "outcome": state.outcome,
        }

    def unpack(self, packed: dict[str, Any]) -> L1PathState:
        stages = packed["stages"]
        return L1PathState(
            np.asarray(packed["candidates"], dtype=np.int64),
            np.asarray(packed["scales"]),
            tuple(_unpacked(stages[str(i)]) for i in range(len(stages))),
            int(packed["searched"]),
            unpack_chosen(packed["chosen"]),
            str(packed["outcome"]),
            None,
        )

    def _opened(
        self, key: jax.Array, problem: Problem, state: L1PathState
    ) -> tuple[L1PathState, StepInfo]:
        """Look at the prior: f̃ and λ_max."""
        candidates = np.arange(problem.n_rows)
        if self.subsample is not None and not self._closed(problem):
            candidates = uniform_sample(jax.random.fold_in(key, 1), len(candidates), self.subsample)
        ground = self._ground(problem, candidates, np.zeros(len(candidates)))
        view = ground.manifold.at(jax.random.fold_in(key, 0), ground.nothing())
        vectors, target = ground.tangent(view)
        scales = row_norms(vectors)
        varies = scales > np.finfo(float).tiny
        largest = float(np.abs((vectors[varies] @ target) / scales[varies]).max(initial=0.0))
        prior = Stage(largest, 0.0, 0, True, True, view.selection, 1.0, view.origin)
        state = state._replace(
            candidates=candidates,
            scales=scales,
            stages=(prior,),
            last=(replace(ground, scales=scales), prior, view),
        )
        if largest == 0.0:  # no potential varies
            state = self._decided(jax.random.fold_in(key, 2), problem, state)
        info = StepInfo(f"w = 0 from λ = {largest:.3g}", _numbers(prior, problem.size, ()))
        return state, info

    def _closed(self, problem: Problem) -> bool:
        model = problem.potentials.model
        linear = isinstance(model, LinearRegression) and model.is_conjugate
        return self.exact and (linear or isinstance(model, GaussianMean))

    def _ground(self, problem: Problem, candidates: np.ndarray, scales: np.ndarray) -> Ground:
        if not self._closed(problem):
            draws = self.draws or max(500, 5 * problem.size)
            manifold: Manifold = Among(problem, draws, candidates, self)
        elif isinstance(problem.potentials.model, GaussianMean):
            manifold = GaussianManifold(problem)
        else:
            _require_room(problem)
            manifold = LinearManifold(problem)
        return Ground(manifold, candidates, problem.potentials.rows.take(candidates), scales)

    def _start(
        self, key: jax.Array, problem: Problem, state: L1PathState, bounds: Bounds
    ) -> tuple[Ground, Stage, LocalView]:
        """Return where a stage starts; the view is in memory, made again, or of fresh draws."""
        start = bounds.start if self.warm else state.stages[0]
        ground = state.last[0] if state.last else None
        if ground is None:
            ground = self._ground(problem, state.candidates, state.scales)
        if not self.reuse:
            view = ground.manifold.at(jax.random.fold_in(key, 0), start.selection)
        elif state.last is not None and state.last[1] is start:
            view = state.last[2]
        elif start.origin is not None:
            view = ground.manifold.restored(start.origin, start.selection)
        else:
            view = ground.manifold.at(key, start.selection)
        ground.rewind(view)
        return ground, start, view

    def _stage(
        self,
        key: jax.Array,
        ground: Ground,
        view: LocalView,
        start: Stage,
        penalty: float,
        size: int,
    ) -> tuple[Stage, LocalView]:
        """Minimise Eq. 95 at one λ."""
        limit = np.inf if self.early is None else self.early * size
        march = self._expansions if self.scheme == "expansion" else self._gradients
        view, weights, stiffness = march(key, ground, view, penalty, limit, start.stiffness)
        complete = weights is None
        if complete:
            view = ground.manifold.pruned(view)
            selection = view.selection
        else:
            selection = ground.selection(weights)
        cost = penalty * float(ground.scales @ ground.dense(selection))
        origin = view.origin if complete else None
        near = start.penalty <= 1.01 * DESCENT * penalty
        rows = _rows(selection)
        return Stage(penalty, cost, rows, complete, near, selection, stiffness, origin), view

    def _expansions(
        self,
        key: jax.Array,
        ground: Ground,
        view: LocalView,
        penalty: float,
        limit: float,
        stiffness: float,
    ) -> tuple[LocalView, Float[np.ndarray, " C"] | None, float]:
        """Go to the minimiser of the penalised expansion until that is where it stands.

        The second value is None, or the weights that were too many.
        """
        for t in range(self.iterations):
            step = _stepped(jax.random.fold_in(key, t), ground, view, penalty, stiffness, limit)
            if isinstance(step, np.ndarray):
                return view, step, stiffness
            if step is None:
                break
            view, stiffness = step.view, max(1.0, step.stiffness / EASED)
            cost = penalty * float(ground.scales @ ground.dense(view.selection))
            if step.gain <= SETTLED * cost:
                break
        return view, None, stiffness

    def _gradients(
        self,
        key: jax.Array,
        ground: Ground,
        view: LocalView,
        penalty: float,
        limit: float,
        stiffness: float,
    ) -> tuple[LocalView, Float[np.ndarray, " C"] | None, float]:
        """Take the proximal gradient steps of Eq. 96."""
        varies = ground.scales > 0.0
        units = ground.scales if self.scheme == "scaled" else np.ones(len(ground.scales))
        for t in range(self.iterations):
            tangent = ground.tangent(view)
            weights = ground.dense(view.selection)
            gamma = self.rate / (1.0 + t)
            if self.scheme == "scaled":
                gamma /= _curvature(tangent.vectors[varies] / units[varies, None])
            slope = -tangent.vectors @ (tangent.target - weights @ tangent.vectors)
            moved = np.zeros(len(weights))
            moved[varies] = proximal(
                weights[varies] - gamma * slope[varies] / units[varies] ** 2,
                gamma * penalty * ground.scales[varies] / units[varies] ** 2,
            )
            if np.count_nonzero(moved) > limit:
                return view, moved, stiffness
            wide = ground.spanning(view, (weights > 0.0) | (moved > 0.0))
            support = ground.places(wide.selection)
            view = ground.manifold.pruned(
                ground.manifold.moved(jax.random.fold_in(key, t), wide, moved[support])
            )
        return view, None, stiffness

    def _decided(self, key: jax.Array, problem: Problem, state: L1PathState) -> L1PathState:
        """Give every size whose search is over its rows, with weights that are not shrunk."""
        assert state.last is not None
        ground, chosen = state.last[0], list(state.chosen)
        while len(chosen) < len(problem.sizes):
            size = _next_size(problem, chosen)
            bounds = Bounds.of(state.stages, size)
            over = len(chosen) == len(state.chosen) or bounds.settled(size, self.tolerance)
            if not over:
                break
            place = jax.random.fold_in(key, len(chosen))
            chosen.append(self._finished(place, problem, ground, state.stages, size))
        outcome = Status.DONE if len(chosen) == len(problem.sizes) else Status.RUNNING
        return state._replace(chosen=tuple(chosen), searched=0, outcome=outcome.name)

    def _finished(
        self,
        key: jax.Array,
        problem: Problem,
        ground: Ground,
        stages: tuple[Stage, ...],
        size: int,
    ) -> Chosen:
        """Move the weights of the best support, and of larger ones while that leaves out rows.

        What needs weight under the penalty, which spreads it, often needs none without.
        """
        best = Bounds.of(stages, size).best
        first = best.selection if best.rows else _without_search(problem, ground, stages, size)
        kept = self._polished(jax.random.fold_in(key, 0), ground, first)
        larger = [one for one in stages if one.complete and size < one.rows <= CROWDED * size]
        larger = [one for one in larger if one.penalty < best.penalty]
        larger.sort(key=lambda one: -one.penalty)
        for place, stage in enumerate(larger if self.update is not None else []):
            if kept.selection.size >= (1.0 - self.tolerance) * size:
                break
            other = self._polished(jax.random.fold_in(key, 1 + place), ground, stage.selection)
            if other.selection.size > size:
                break
            kept = min(kept, other, key=lambda one: one.predicted_kl)
        return kept

    def _polished(self, key: jax.Array, ground: Ground, selection: Selection) -> Chosen:
        manifold = ground.manifold
        if self.update is not None and ground.scales.any():
            view = manifold.at(jax.random.fold_in(key, 0), selection)
            view = self.update.run(jax.random.fold_in(key, 1), manifold, view, 0)
            if _rows(view.selection):
                selection = pruned(view.selection)
        fresh = manifold.at(jax.random.fold_in(key, 2), selection)
        return Chosen(selection, fresh.predicted_kl())


def _without_search(
    problem: Problem, ground: Ground, stages: tuple[Stage, ...], size: int
) -> Selection:
    """Return the largest u_n where every λ had too many rows; evenly spaced rows if none had."""
    crowded = [stage for stage in stages if stage.rows]
    if not crowded:
        return evenly(problem, Pool(ground.candidates, ground.rows), size)
    return ground.largest(min(crowded, key=lambda stage: stage.rows).selection, size)


class Bounds(NamedTuple):
    """What the stages so far say about the λ of one size.

    ‖w‖₀ falls with λ only near the posterior. While λ Σu is above `FAR` nats, π_w is far from π,
    and a smaller λ may need fewer rows.

    Attributes
    ----------
    best
        The stage of the smallest λ that has few enough rows.
    start
        Where the next stage starts, λ_u: ``best``, or one of smaller λ that has too many rows, far
        from the posterior.
    lower
        The largest λ below λ_u that has too many rows: λ_l; 0 before there is one.
    doubtful
        The same, with the λ that were left early after a start from far away; 0 if there is none.
    refuted
        Whether such a λ could be passed after all, once it was reached from nearby.
    """

    best: Stage
    start: Stage
    lower: float
    doubtful: float
    refuted: bool

    @classmethod
    def of(cls, stages: tuple[Stage, ...], size: int) -> Bounds:
        whole = [stage for stage in stages if stage.complete]
        best = min((one for one in whole if one.rows <= size), key=lambda one: one.penalty)
        front = min(whole, key=lambda one: one.penalty)
        left = [stage for stage in stages if not stage.complete and stage.rows > size]
        stuck = any(one.near and one.penalty < front.penalty for one in left)
        start = front if front.cost > FAR and not stuck else best
        over = [one for one in whole if one.rows > size and one.penalty < start.penalty]
        below = [one for one in left if one.penalty < start.penalty]
        sure = [one.penalty for one in (*over, *below) if one.complete or one.near]
        doubtful = [one.penalty for one in (*over, *below)]
        refuted = any(not one.near for one in left if one.penalty >= start.penalty)
        return cls(best, start, max(sure, default=0.0), max(doubtful, default=0.0), refuted)

    def middle(self, searched: int) -> float:
        """Return the next λ."""
        upper, below = self.start.penalty, max(self.lower, self.doubtful)
        if below == 0.0:
            return upper / DESCENT ** (2 ** min(searched, 1 if self.refuted else STEEPEST))
        if self.lower < below and upper <= below * DESCENT**2:
            return max(upper / DESCENT, float(np.sqrt(self.lower) * np.sqrt(upper)))
        return float(np.sqrt(below) * np.sqrt(upper))

    def settled(self, size: int, tolerance: float) -> bool:
        """Whether another λ is not worth its draws."""
        if self.start is not self.best or not self.best.rows:
            return False
        near = self.best.rows >= (1.0 - tolerance) * size
        if near and (self.lower > 0.0 or self.best.cost <= FAR):
            return True
        closed = self.lower > 0.0 and np.log(self.best.penalty / self.lower) < CLOSED
        return bool(closed or self.best.cost < NEGLIGIBLE)


class Among(SampledManifold):
    """Views from draws, with the same candidates everywhere."""

    def __init__(
        self, problem: Problem, draws: int, candidates: Int[np.ndarray, " C"], options: L1Path
    ) -> None:
        subsample = None if options.subsample is None else len(candidates)
        super().__init__(problem, draws, subsample, options.subsample_totals, options.reuse)
        self.fixed = candidates

    def _subset(self, origin: Origin) -> Int[np.ndarray, " u"]:
        return self.fixed


@dataclass(frozen=True)
class Ground:
    """All candidates at once, at any view.

    Attributes
    ----------
    manifold
        Supplies the views.
    candidates : (C,)
        Global row numbers, ascending.
    rows
        Their columns.
    scales : (C,)
        f̃_n.
    """

    manifold: Manifold
    candidates: Int[np.ndarray, " C"]
    rows: Columns
    scales: Float[np.ndarray, " C"]

    def nothing(self) -> Selection:
        """Return w = 0; one row gives it its shapes."""
        return Selection(self.candidates[:1], np.zeros(1), self._take(np.zeros(1, dtype=np.int64)))

    def selection(self, weights: Float[np.ndarray, " C"]) -> Selection:
        """Return the candidates that have weight."""
        used = np.flatnonzero(weights)
        if not len(used):
            return self.nothing()
        return Selection(self.candidates[used], weights[used], self._take(used))

    def places(self, selection: Selection) -> Int[np.ndarray, " m"]:
        """Return where a selection's rows are among the candidates."""
        return np.searchsorted(self.candidates, selection.indices)

    def dense(self, selection: Selection) -> Float[np.ndarray, " C"]:
        """Return the weights of all candidates."""
        weights = np.zeros(len(self.candidates))
        weights[self.places(selection)] = selection.weights
        return weights

    def largest(self, selection: Selection, size: int) -> Selection:
        """Return the rows with the largest u_n."""
        weights = self.dense(selection)
        order = np.argsort(-weights * self.scales, kind="stable")
        weights[order[size:]] = 0.0
        return self.selection(weights)

    def tangent(self, view: Any) -> Tangent:
        """Return the vectors of every candidate; inner products are Cov_w."""
        if isinstance(view, SampledView):
            _, potentials = view.manifold.candidates(view.cloud, view.selection)
            r, root = np.exp(view.log_weights), np.exp(0.5 * view.log_weights)
            vectors = (potentials - (potentials @ r)[:, None]) * root
            return Tangent(vectors, (view.cloud.total - r @ view.cloud.total) * root)
        if isinstance(view, GaussianView):
            return Tangent(view.vectors(self.rows["x"]), view.target)
        return _linear_tangent(view, self.rows)

    def spanning(self, view: Any, which: np.ndarray) -> Any:
        """Return the view at the same weights with these candidates for its support."""
        used = np.flatnonzero(which)
        if not len(used):
            used = np.zeros(1, dtype=np.int64)
        weights = self.dense(view.selection)[used]
        selection = Selection(self.candidates[used], weights, self._take(used))
        if not isinstance(view, SampledView):
            return replace(view, selection=selection)
        _, potentials = view.manifold.candidates(view.cloud, view.selection)
        return replace(view, selection=selection, support=potentials[used])

    def rewind(self, view: Any) -> None:
        """Let samplers begin where this view's draws lie, as they do after a checkpoint."""
        if isinstance(view, SampledView):
            view.manifold.start = view.cloud.z.mean(axis=0)

    def _take(self, places: np.ndarray) -> Columns:
        return {name: column[places] for name, column in self.rows.items()}


def proximal(
    x: Float[np.ndarray, " n"], thresholds: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return argmin_{w ≥ 0} ½‖w − x‖² + thresholdsᵀw (Eq. 96 where w ≥ 0)."""
    return np.maximum(x - thresholds, 0.0)


def minimiser(
    tangent: Tangent,
    scales: Float[np.ndarray, " C"],
    penalty: float,
    here: Float[np.ndarray, " C"],
    stiffness: float = 1.0,
    limit: float = np.inf,
) -> Float[np.ndarray, " C"]:
    """Return argmin_{v ≥ 0} (v − w)ᵀD + ½c‖Gᵀ(v − w)‖² + λ Σ f̃_n v_n, D = −G(b − Gᵀw).

    Divided by c, that is the penalty λ/c with Gᵀw + (b − Gᵀw)/c for b.

    Parameters
    ----------
    tangent
        G and b.
    scales : (C,)
        f̃_n; a row without one takes no weight.
    penalty
        λ > 0.
    here : (C,)
        w; its support is tried first.
    stiffness
        c ≥ 1. With 1, w does not matter.
    limit
        A solution on its way to more rows than this is returned as it is.
    """
    now = here @ tangent.vectors
    target = now + (tangent.target - now) / stiffness
    length = float(np.linalg.norm(target))
    if length == 0.0:
        return np.zeros(len(scales))
    penalty = penalty / stiffness
    epsilon = EXTRA * penalty / length
    units = np.where(scales > 0.0, scales, 1.0)
    scaled = np.column_stack([tangent.vectors / units[:, None], np.full(len(scales), epsilon)])
    scaled[scales <= 0.0] = 0.0
    unit = UnitVectors.scaled(scaled, np.append(target, -penalty / epsilon), overwrite=True)
    begin = np.flatnonzero((here > 0.0) & unit.usable)
    active = ActiveSet.spanned_by(unit, begin.tolist()) if len(begin) else ActiveSet(unit)
    for _ in range(3 * len(scales)):
        row = best_row(active)
        if row is None or active.size > limit:
            break
        active.add(row)
    places, weights = active.result()
    dense = np.zeros(len(scales))
    dense[places] = weights / units[places]
    return dense


class Step(NamedTuple):
    """Where a step led, the c it took, and the gain that its expansion promised, in nats."""

    view: Any
    stiffness: float
    gain: float


def _stepped(
    key: jax.Array, ground: Ground, view: Any, penalty: float, stiffness: float, limit: float
) -> Step | Float[np.ndarray, " C"] | None:
    """Minimise the penalised expansion with curvature c, 4c, … until the penalised KL falls.

    None if it never does; the minimiser itself if it has more rows than ``limit`` and shorter steps
    have too.
    """
    tangent, here = ground.tangent(view), ground.dense(view.selection)
    costs, crowded = penalty * ground.scales, 0
    for trial in range(TRIALS):
        goal = minimiser(tangent, ground.scales, penalty, here, stiffness, limit)
        there = None
        if np.count_nonzero(goal) > limit:
            crowded += 1
            if crowded > PATIENCE:
                return goal
        else:
            there = _tried(jax.random.fold_in(key, trial), ground, view, here, goal, costs)
        if there is not None:
            return Step(there, stiffness, _promise(tangent, here, goal, costs, stiffness))
        stiffness *= STIFFER
    return None


def _tried(
    key: jax.Array,
    ground: Ground,
    view: Any,
    here: Float[np.ndarray, " C"],
    goal: Float[np.ndarray, " C"],
    costs: Float[np.ndarray, " C"],
) -> Any | None:
    """Return the view at ``goal`` if the penalised KL is lower there, as far as can be told."""
    wide = ground.spanning(view, (here > 0.0) | (goal > 0.0))
    places = ground.places(wide.selection)
    here, goal, costs = here[places], goal[places], costs[places]
    before, after = wide.height(here), wide.height(goal)
    if after.share >= TRUSTED * before.share:
        if after.kl + costs @ goal >= before.kl + costs @ here:
            return None
        return ground.manifold.pruned(ground.manifold.moved(key, wide, goal))
    try:
        seen = ground.manifold.at(key, wide.selection._replace(weights=goal))
    except ModelError:  # no posterior the sampler can draw from: a step too far
        return None
    far = _correlation(seen, goal - here, costs) > OVERSHOT
    return None if far else ground.manifold.pruned(seen)


def _correlation(
    view: LocalView, direction: Float[np.ndarray, " m"], costs: Float[np.ndarray, " m"]
) -> float:
    """Return the penalised slope along a direction, in units of ‖Gᵀd‖‖b − Gᵀw‖."""
    tangent = view.tangent()
    along = direction @ tangent.vectors
    residual = tangent.target - view.selection.weights @ tangent.vectors
    scale = float(np.linalg.norm(along) * np.linalg.norm(residual))
    return float(costs @ direction - along @ residual) / scale if scale > 0.0 else 0.0


def _promise(
    tangent: Tangent,
    here: Float[np.ndarray, " C"],
    goal: Float[np.ndarray, " C"],
    costs: Float[np.ndarray, " C"],
    stiffness: float,
) -> float:
    """Return by how much the penalised expansion with curvature c falls."""
    along = (goal - here) @ tangent.vectors
    residual = tangent.target - here @ tangent.vectors
    return float(along @ residual - 0.5 * stiffness * along @ along - costs @ (goal - here))


def _curvature(vectors: Float[np.ndarray, "C k"]) -> float:
    """Return L, the largest eigenvalue of the Gram matrix."""
    return float(np.linalg.norm(vectors, ord=2)) ** 2


def _linear_tangent(view: LinearView, rows: Columns) -> Tangent:
    """Return the (ν β, ββᵀ/√2) of every row, with inner products of Eq. 24, and their sum."""
    manifold = view.manifold
    beta, nu = rows["x"] @ view.root, rows["y"] - rows["x"] @ view.mean
    first, second = np.triu_indices(beta.shape[1])
    twice = np.where(first == second, np.sqrt(0.5), 1.0)  # off the diagonal a product counts twice
    vectors = np.hstack([nu[:, None] * beta, twice * beta[:, first] * beta[:, second]])
    p = (manifold.moment - manifold.gram @ view.mean) @ view.root
    R = view.root.T @ manifold.gram @ view.root
    target = np.append(p, twice * R[first, second])
    return Tangent(manifold.precision * vectors, manifold.precision * target)


def _require_room(problem: Problem) -> None:
    size = 4 * problem.n_rows * problem.dim * (problem.dim + 3)
    if size > WHOLE_BYTES:
        raise RequestError(
            f"The closed form of {problem.n_rows} rows in {problem.dim} dimensions would take "
            f"{size / 2**30:.1f} GB; take draws instead: exact=False."
        )


def _next_size(problem: Problem, chosen: Sequence[Chosen]) -> int:
    """Return the largest size without an answer: its stages are of use to the smaller ones."""
    return problem.sizes[-1 - len(chosen)]


def _rows(selection: Selection) -> int:
    return int(np.count_nonzero(selection.weights))


def _numbers(stage: Stage, size: int, chosen: tuple[Chosen, ...]) -> dict[str, Any]:
    return {
        "size": size,
        "penalty": stage.penalty,
        "rows": stage.rows,
        "complete": stage.complete,
        "predicted_kl": chosen[-1].predicted_kl if chosen else None,
    }


def _packed(stage: Stage) -> dict[str, Any]:
    packed = {**stage._asdict(), "selection": stage.selection._asdict()}
    origin = packed.pop("origin")
    if origin is not None:
        packed["origin"] = {**origin._asdict(), "selection": origin.selection._asdict()}
    return packed


def _unpacked(packed: dict[str, Any]) -> Stage:
    origin = packed.get("origin")
    if origin is not None:
        origin = Origin(
            np.asarray(origin["key_data"]),
            Selection(**origin["selection"]),
            np.asarray(origin["start"]),
        )
    return Stage(
        float(packed["penalty"]),
        float(packed["cost"]),
        int(packed["rows"]),
        bool(packed["complete"]),
        bool(packed["near"]),
        Selection(**packed["selection"]),
        float(packed["stiffness"]),
        origin,
    )
