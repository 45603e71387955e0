"""What a round of `IteratedHilbert` fits to its draws: the sizes asked for, or a KL.

Every fit is judged by ½Var(b − Σ w_n g_n) ≈ KL in nats at held-out draws. What is reported is
checked at draws of the coreset itself: with a site KL(π_w‖π) is measured there, and rows alone are
compared with the reference. Multilevel models, whose draws take long, have draws of the reference
that no fit has seen weighted in place of new ones, where they cover π_w. Many groups are fitted one
by one where one fit of all rows does not reach a KL, and beside it where they are nested and a size
is asked for (`by_group`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
import scipy
from jaxtyping import Int

from decoct.constructions.base import Problem, Selection, SizedSelection
from decoct.constructions.iterated_hilbert.expansion import ExpandedTable, site_alone
from decoct.constructions.iterated_hilbert.settings import (
    CERTIFYING_DRAWS,
    EARLIER_ROUNDS,
    Settings,
)
from decoct.constructions.iterated_hilbert.tangent_problem import (
    EvaluatedDraws,
    PathFit,
    SplitTangent,
    best_of_restarts,
    check_at_its_draws,
    nats,
    quadratic_size,
    smallest,
)
from decoct.report import Status
from decoct.solvers.nnls import SparseWeights
from decoct.stats.chains import GOOD_KHAT, USABLE_RHAT, smoothed_log_weights
from decoct.stats.divergences import kl_from_log_ratios

if TYPE_CHECKING:
    from decoct.constructions.iterated_hilbert.by_group import FitByGroup

KL_CONVERGED, KL_A_PARAMETER = 0.02, 5e-4
"""KL(π_ref‖π) in nats, and nats a parameter, below which the draws count as draws from π."""

KL_STOP_SUBSAMPLING = 1.0
"""Estimated KL(π_ref‖π) in nats of the last draws below which rounds on the subsample end."""

TOLERABLE, TOLERABLE_A_PARAMETER, TOLERABLE_OF_GOAL = 1e-5, 2e-6, 0.25
"""½Var in nats of totals from a sample of rows above which all rows are evaluated; nats a parameter
for multilevel models, where each row that is kept corrects about one effect; and for a site alone a
part of the KL asked for."""

LARGEST_BY_GROUP = 3000
"""Most rows a ``kl`` build keeps of many groups unless ``max_size`` says otherwise."""

OUT_OF_REACH = 10.0
"""Multiples of the KL asked for at which a build of a multilevel model ends short: a row corrects
about one group, and neither more draws nor another round makes up for that. Where each group has a
fit of its own, a build ends short at any KL above its goal."""

DRAWS_A_ROW = 8
"""Fitted draws a row that one fit of many groups needs; see `by_group`."""

NEGLIGIBLE = 1e-5
"""KL in nats of a multilevel model's site at which rows are not worth their draws."""

INACCURATE_SITE = "the predicted KL of the coreset with a site is too large"

ROWS_ARE_NEARER = "rows alone are predicted to be nearer, or to need fewer rows"

GOOD_REFERENCE = 0.005
"""Predicted KL in nats at which the path is long enough to be the next reference."""


class IteratedHilbertState(NamedTuple):
    """What the next round needs."""

    round: int  # rounds done
    reference: Selection  # weighted rows whose posterior supplies the next draws
    reference_kl: float  # KL(π_ref‖π) of the *last* round's reference, from its pass
    chosen: tuple[SizedSelection, ...]  # one per requested size, known after the last round
    effort: float  # factor on draws and pool, doubled when they limit a ``kl`` build
    outcome: str  # `Status` by name
    subsample: Selection | None = None  # to estimate totals from; None once all rows give them
    subsampled_rounds: int = 0  # done with it alone
    is_checked: bool = False  # whether the next round passes over all rows too, at a few draws
    expanded: ExpandedTable | None = None  # what the site carries, once that is known
    rows_only: str = ""  # why there is no site; empty where there is one
    with_site: tuple[SizedSelection, ...] = ()  # those with a site, of too large a predicted KL
    measured: tuple[SizedSelection, ...] = ()  # references so far, their KL from a round's draws
    earlier: tuple[EvaluatedDraws, ...] = ()  # of the last of them with rows, fitted next too


@dataclass(frozen=True)
class Fits:
    """The fits of one round, each of which ends in the next state.

    ``fresh`` are draws of the reference beside those of the tangent, if there are any.
    """

    method: Settings
    state: IteratedHilbertState
    tangent: SplitTangent
    fresh: EvaluatedDraws | None = None

    @property
    def problem(self) -> Problem:
        return self.tangent.problem

    def reference(self, is_corrected: bool) -> tuple[IteratedHilbertState, SizedSelection]:
        """Fit the next reference to the subsample's totals, and say what the next round uses."""
        state, kl = self.state, self.tangent.reference_kl
        best = self._extend_path(self.tangent, (self.problem.size,), False).best()
        done = state.subsampled_rounds + 1
        is_nearer = kl > KL_STOP_SUBSAMPLING and kl < 0.5 * state.reference_kl
        again = is_corrected and is_nearer and done < self.method.max_rounds - 2
        after = state._replace(
            round=state.round + 1,
            reference=best.selection,
            reference_kl=kl,
            # where control variates do not help, a checked pass would not either
            subsample=state.subsample if is_corrected else None,
            subsampled_rounds=done,
            is_checked=not again,
        )
        return after, best

    @property
    def measured(self) -> tuple[SizedSelection, ...]:
        """References so far, this round's among them, and their KL."""
        state, tangent = self.state, self.tangent
        if state.expanded is None or not tangent.is_informative:
            return state.measured
        return (*state.measured, SizedSelection(state.reference, tangent.reference_kl))

    def sizes(self, key: jax.Array) -> IteratedHilbertState:
        """Fill every requested size, and extend the path until it can be a reference."""
        problem, state, tangent = self.problem, self.state, self.tangent
        outcome = Status.RUNNING
        if not tangent.is_informative:
            outcome = Status.UNKNOWN
        elif self._is_converged:
            outcome = Status.DONE
        elif self._rounds_on_all_rows >= self.method.max_rounds:
            outcome = Status.MAX_ROUNDS_REACHED
        final = outcome is not Status.RUNNING
        multilevel = problem.potentials.has_likelihood_params
        is_alone = state.reference.site is not None and not state.reference.size
        is_enough = not problem.size or (multilevel and self.is_reference_enough)
        if tangent.expanded is not None and is_alone and is_enough:
            return self._without_rows(tangent.expanded)
        # Earlier rounds only have to supply the next reference.
        sizes = problem.sizes if final else (problem.size,)
        fits = self._extend_path(tangent, sizes, final)
        chosen = tuple(fits.best(size) for size in problem.sizes)
        if not final:
            return self._after(fits.best().selection, chosen, outcome)
        if problem.size and (to_second := tangent.to_second_order()) is not None:
            chosen = self._best_of_both(chosen, to_second)
        if tangent.expanded is not None and problem.size >= quadratic_size(problem):
            chosen = self._best_of_both(chosen, tangent.rows_only())
        found = [(one,) for one in chosen]
        is_by_group = tangent.expanded is not None and outcome is not Status.UNKNOWN
        if is_by_group and problem.size and self._has_many_nested_groups:
            grouped = map(self._fit_by_group().best, problem.sizes)
            # what one fit of all rows leaves seems smaller than it is
            found = [
                (one,) if nats(one) <= nats(joint) else (joint, one)
                for joint, one in zip(chosen, grouped, strict=True)
            ]
        chosen = tuple(
            min((self._measure(key, one, size, outcome) for one in some), key=nats)
            for some, size in zip(found, problem.sizes, strict=True)
        )
        is_above = max(map(nats, chosen)) > self.method.restart_above
        if state.expanded is not None and is_above and problem.size and not multilevel:
            alone = replace(self.method, site=False).init(jax.random.fold_in(key, 5), problem)
            kl = tangent.reference_kl
            return alone._replace(rows_only=INACCURATE_SITE, with_site=chosen, reference_kl=kl)
        if state.with_site and outcome is not Status.UNKNOWN:
            both = zip(problem.sizes, state.with_site, chosen, strict=True)
            chosen = tuple(min(two[: 1 + size], key=nats) for size, *two in both)
        if any(one.predicted_kl is None for one in chosen):
            outcome = Status.UNKNOWN
        return self._after(state.reference, chosen, outcome)

    def kl(self, key: jax.Array, kl: float) -> IteratedHilbertState:
        """Certify the last round's selection, or find the smallest one predicted to reach kl."""
        state, tangent, effort = self.state, self.tangent, self.state.effort
        is_coreset = state.chosen or state.reference.site is not None
        if is_coreset and self.is_reference_enough:
            certified = SizedSelection(state.reference, tangent.reference_kl_upper)
            return self._after(state.reference, (certified,), Status.REACHED)
        goal = kl * 0.5 ** max(1, self._rounds_on_all_rows - 1)
        best, reached = self._smallest_for(tangent, goal)
        if best.selection.size and (to_second := tangent.to_second_order()) is not None:
            other, other_reached = self._smallest_for(to_second, goal)
            if other_reached and (not reached or other.selection.size < best.selection.size):
                best, reached = other, True
        if tangent.expanded is not None and not (
            reached and best.selection.size < quadratic_size(self.problem)
        ):
            alone, alone_reached = self._smallest_for(tangent.rows_only(), goal)
            if alone_reached and (not reached or alone.selection.size < best.selection.size):
                best, reached = alone, True
        outcome = Status.RUNNING
        limited = not reached and tangent.reference_kl <= max(KL_CONVERGED, kl)
        stalled = not reached and effort == 1.0 and not limited and self._has_stalled
        multilevel = self.problem.potentials.has_likelihood_params
        far = goal if self._has_many_groups else OUT_OF_REACH * kl
        is_beyond = multilevel and self._is_converged and nats(best) > far
        if not tangent.is_informative:
            outcome, best = Status.UNKNOWN, SizedSelection(best.selection, None)
        elif stalled or is_beyond or (limited and effort >= 4.0):
            outcome = Status.SHORT_SIZE
        elif limited:
            effort *= 2.0
        is_last = self._rounds_on_all_rows >= 2 * self.method.max_rounds
        if outcome is Status.RUNNING and is_last:
            outcome = Status.SHORT_ROUNDS
        is_short = outcome in (Status.SHORT_SIZE, Status.SHORT_ROUNDS)
        if is_short and tangent.expanded is not None:
            best = self._measure(key, best, self.problem.size, outcome)
            is_new = all(best.selection is not one.selection for one in self.measured)
            if best.predicted_kl is None:
                outcome = Status.UNKNOWN
            elif outcome is Status.SHORT_SIZE and best.predicted_kl <= kl and is_new:
                # the next round certifies it
                outcome = Status.SHORT_ROUNDS if is_last else Status.RUNNING
        return self._after(best.selection, (best,), outcome)._replace(effort=effort)

    @property
    def is_reference_enough(self) -> bool:
        """Whether the reference has the KL asked for, or one that is not worth more rows."""
        tangent, kl = self.tangent, self.problem.kl
        if kl is None:
            return tangent.is_informative and bool(tangent.reference_kl <= NEGLIGIBLE)
        return tangent.is_informative and bool(tangent.reference_kl_upper <= kl)

    @property
    def _is_converged(self) -> bool:
        """Whether the draws count as draws from π."""
        nearby = max(KL_CONVERGED, KL_A_PARAMETER * self.problem.dim)
        return bool(self.tangent.reference_kl <= nearby)

    @property
    def _tellable(self) -> int:
        """How many rows of different groups one fit can tell apart."""
        return max(1, self.tangent.fitted_draws // DRAWS_A_ROW)

    @property
    def _picks(self) -> Int[np.ndarray, "P K"]:
        """The groups of each row of the pool, none but in multilevel models."""
        potentials = self.problem.potentials
        shape = potentials.predictors if potentials.has_likelihood_params else None
        if shape is None or not shape.picked:
            return np.zeros((0, 0), dtype=np.int64)
        return potentials.picks(self.tangent.pool.rows)

    @property
    def _has_many_groups(self) -> bool:
        """Whether rows have more groups than one fit tells apart."""
        return any(len(np.unique(slot)) > self._tellable for slot in self._picks.T)

    @property
    def _has_many_nested_groups(self) -> bool:
        return self._has_many_groups and are_nested(self._picks)

    @property
    def _has_stalled(self) -> bool:
        """Whether the reference's rows are not half as far as those of an earlier round."""
        before = [nats(one) for one in self.state.measured if one.selection.size]
        return bool(before) and self.tangent.reference_kl > 0.5 * min(before)

    @property
    def _rounds_on_all_rows(self) -> int:
        """Rounds that passed over all rows, this one included."""
        return self.state.round + 1 - self.state.subsampled_rounds

    def _after(
        self, reference: Selection, chosen: tuple[SizedSelection, ...], outcome: Status
    ) -> IteratedHilbertState:
        state, tangent, earlier = self.state, self.tangent, self.state.earlier
        # draws of a site alone may be anywhere
        if state.expanded is not None and state.reference.size and state.effort == 1.0:
            evaluated = EvaluatedDraws(tangent.draws, tangent.totals)
            earlier = (*earlier, evaluated)[-EARLIER_ROUNDS:]
        return state._replace(
            round=state.round + 1,
            reference=reference,
            reference_kl=tangent.reference_kl,
            chosen=chosen,
            outcome=outcome.name,
            measured=self.measured,
            earlier=earlier,
        )

    def _extend_path(self, tangent: SplitTangent, sizes: tuple[int, ...], final: bool) -> PathFit:
        """Pursue until the path is long enough to be a reference and the size asked for."""
        problem, exchanges = self.problem, self.method.exchanges
        least = problem.size if problem.kl is None else 1
        longest = self.method.longest_path(problem.size, tangent.fitted_draws)

        def long_enough(solution: SparseWeights) -> bool:
            return len(solution.indices) >= least and tangent.predict_kl(solution) <= GOOD_REFERENCE

        exchanges = exchanges if final else min(1, exchanges)
        fits = tangent.pursue(longest, sizes=sizes, stop=long_enough, exchanges=exchanges)
        return fits if final else replace(fits, exchanges=0)

    def _fit_by_group(self) -> FitByGroup:
        from decoct.constructions.iterated_hilbert.by_group import FitByGroup  # few builds need it

        return FitByGroup.of(self.tangent)

    def _without_rows(self, expanded: ExpandedTable) -> IteratedHilbertState:
        """Take the reference, whose KL its own draws give, if its expansion is the last one."""
        before, reference = self.state.reference, site_alone(self.problem, expanded)
        outcome = Status.RUNNING
        assert before.site is not None
        assert reference.site is not None
        kl = self.tangent.reference_kl if self.tangent.is_informative else None
        if np.array_equal(reference.site.centre, before.site.centre):
            reference = before
            outcome = Status.UNKNOWN if kl is None else Status.DONE
        chosen = (SizedSelection(reference, kl),) * len(self.problem.sizes)
        return self._after(reference, chosen, outcome)

    def _best_of_both(
        self, chosen: tuple[SizedSelection, ...], other: SplitTangent
    ) -> tuple[SizedSelection, ...]:
        """Take fits of another problem at the sizes where their predicted KL is lower."""
        sizes = self.problem.sizes
        fits = self._extend_path(other, sizes, True)
        others = [fits.best(size) for size in sizes]
        return tuple(min(two, key=nats) for two in zip(chosen, others, strict=True))

    def _measure(
        self, key: jax.Array, found: SizedSelection, size: int, outcome: Status
    ) -> SizedSelection:
        """Return the coreset of one size with the KL that is known of it."""
        state, tangent, method = self.state, self.tangent, self.method
        most = size if self.problem.kl is None else np.inf
        fits = [one for one in self.measured if state.round and one.selection.size <= most]
        if outcome is Status.UNKNOWN:
            return SizedSelection(found.selection, None)
        if found.predicted_kl is None:
            return min((found, *fits), key=nats)
        if found.predicted_kl > method.restart_above and found.selection.site is None:
            restarts, exchanges = method.restarts, method.exchanges
            found = best_of_restarts(tangent, found, size, restarts, exchanges)
        predicted = found.predicted_kl
        if state.expanded is not None:
            certified = self._certify(key, state.expanded, found.selection)
            return min((SizedSelection(found.selection, certified), *fits), key=nats)
        if predicted is not None and predicted <= method.restart_above:
            predicted = check_at_its_draws(key, tangent, found, state.reference)
        if predicted is not None and outcome is Status.MAX_ROUNDS_REACHED:
            predicted += tangent.reference_kl
        return SizedSelection(found.selection, predicted)

    def _certify(
        self, key: jax.Array, expanded: ExpandedTable, selection: Selection
    ) -> float | None:
        """Return KL(π_w‖π) at draws of π_w, or at weighted ones; None where chains disagree."""
        problem, draws = self.problem, self.tangent.draws
        evaluated = min(CERTIFYING_DRAWS, len(draws))
        n = evaluated
        if problem.potentials.has_likelihood_params:
            # chains of scales are slow to mix
            n, kl = len(draws), self._kl_by_weights(selection)
            if kl is not None:
                return kl
        padded_as = max(problem.size, self.state.reference.size)
        drawn = problem.draw(key, selection, n, draws.mean(axis=0), padded_as, draws)
        if drawn.info.get("rhat", 1.0) > USABLE_RHAT:
            return None
        z = drawn.flat[:n][:: n // evaluated]
        totals, error = expanded.totals(problem.potentials, z)
        if error > tolerable_error(problem):
            totals = problem.potentials.totals(z)
        return kl_from_log_ratios(totals - problem.log_likelihood(selection, z)).reverse

    def _kl_by_weights(self, selection: Selection) -> float | None:
        """Return KL(π_w‖π) at fresh draws of the reference, with importance weights.

        With v_s ∝ π_w(θ_s)/π_ref(θ_s), Σ v_s = 1, and D = log π − log π_w up to a constant, it is
        log Σ v_s e^D_s − Σ v_s D_s. None without such draws, or where π_ref does not cover π_w.
        """
        if self.fresh is None:
            return None
        problem, (z, totals) = self.problem, self.fresh
        of_selection = problem.log_likelihood(selection, z)
        of_reference = problem.log_likelihood(self.state.reference, z)
        log_weights, khat = smoothed_log_weights(of_selection - of_reference)
        if khat > GOOD_KHAT:
            return None
        left = totals - of_selection
        left -= left.mean()
        kl = float(scipy.special.logsumexp(log_weights + left) - np.exp(log_weights) @ left)
        return max(0.0, kl)  # only rounding takes it below

    def _smallest_for(self, tangent: SplitTangent, goal: float) -> tuple[SizedSelection, bool]:
        """Return the smallest selection predicted to reach a KL, or the nearest and False."""
        longest, grouped = self.problem.size, False
        if tangent.expanded is not None and self._has_many_groups:
            longest, grouped = min(longest, self._tellable), True
        fits = tangent.pursue(longest, stop=lambda solution: tangent.predict_kl(solution) <= goal)
        best = fits.best()
        if tangent.expanded is not None:
            alone = fits.alone()
            if nats(alone) <= goal:
                return alone, True
        if nats(best) > goal >= min(fits.predicted_kl.values(), default=np.inf):
            # the site's precision is in the way, to which exchanges adapt the rows
            best = replace(fits, exchanges=self.method.exchanges).best()
        if nats(best) <= goal:
            return smallest(fits, goal, best, self.method.exchanges), True
        if grouped:
            most = self.method.max_size or LARGEST_BY_GROUP
            best = min(best, self._fit_by_group().smallest(goal, most), key=nats)
        return best, nats(best) <= goal


def are_nested(picks: Int[np.ndarray, "P K"]) -> bool:
    """Return whether the finest group of a row says of which others it is."""
    return len(np.unique(picks, axis=0)) == max(len(np.unique(slot)) for slot in picks.T)


def tolerable_error(problem: Problem, is_alone: bool = False) -> float:
    """Return the ½Var in nats that totals from a sample of rows may have.

    It adds to the KL: where it is asked only whether a site alone is enough, a part of the goal may
    be error.
    """
    potentials = problem.potentials
    if potentials.has_likelihood_params:
        return max(TOLERABLE, TOLERABLE_A_PARAMETER * potentials.likelihood_dim)
    return max(TOLERABLE, TOLERABLE_OF_GOAL * (problem.kl or 0.0)) if is_alone else TOLERABLE
