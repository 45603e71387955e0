"""IteratedHilbert: a Hilbert coreset whose tangent space is re-centred at the coreset posterior.

∇_w KL(π_w‖π) = −Cov_w[f, (1 − w)ᵀf], and with S draws of π_w frozen, minimising the quadratic
model over w ≥ 0 is the non-negative least-squares problem

    min_{w ≥ 0, ‖w‖₀ ≤ M} ‖b − Σ w_n g_n‖²     (g_n centred potentials, b = Σ_n g_n).

Each round draws from the posterior of the *reference* (a uniform pilot at first, then the best
weighted rows so far), makes one pass over the data for b and a pool of candidate rows, solves the
problem on the pool by orthogonal pursuit with exchanges, and judges every size by the residual at
held-out draws, ½Var(b − Σ w_n g_n) ≈ KL in nats. The pass also measures KL(π_ref‖π) at no extra
cost; once that is small the draws are as good as draws from π and the rounds end.

On large tables the first rounds use a subsample with second-order control variates in place of the
pass (`subsampled_pass`). The rounds that fill the sizes pass over all rows at a few draws, which
fill the pool and measure how far the estimated totals are off. Where that is more than 1e-5 nats,
and where a ``kl`` build certifies itself, a round passes over all rows at all draws.

The reference may keep more rows than requested: below about d(d+3)/2 rows the draws of π_w miss π,
while a longer part of the same path is nearly exact.

Sources: Campbell & Broderick (2019), Hilbert coresets; Campbell & Beronov (2019), Eq. 4, 9-11.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import numpy as np
import psutil
from jaxtyping import Float

from decoct.constructions.base import (
    Plan,
    Problem,
    Selection,
    SizedSelection,
    StepInfo,
    uniform_selection,
)
from decoct.constructions.iterated_hilbert.expansion import (
    ExpandedTable,
    NoExpansionError,
    expand_table,
    expanded_at,
    site_alone,
)
from decoct.constructions.iterated_hilbert.plan import (
    FEWEST,
    ROWS,
    pilot_of,
    plan,
    subsample_size,
)
from decoct.constructions.iterated_hilbert.tangent_problem import (
    MAX_RHAT,
    PathFit,
    SplitTangent,
    best_of_restarts,
    checked_at_its_draws,
    quadratic_size,
    smallest,
)
from decoct.constructions.registry import register
from decoct.errors import RequestError
from decoct.passes.chunk_sums import NORM_DRAWS
from decoct.passes.pools import merge_pools
from decoct.passes.potentials import PassResult
from decoct.runtime.randomness import host_rng
from decoct.solvers.nnls import SparseWeights
from decoct.stats.divergences import kl_from_log_ratios
from decoct.status import Status

KL_CONVERGED, KL_A_PARAMETER = 0.02, 5e-4
"""KL(π_ref‖π) in nats, and nats a parameter, below which the draws count as draws from π."""

KL_STOP_SUBSAMPLING = 1.0
"""Estimated KL(π_ref‖π) in nats of the last draws below which rounds on the subsample end."""

FEWEST_DRAWS, LARGE = 1000, 1_000_000
"""Least default S, and the number of rows from which half of it is enough: KL falls as 1/N, and the
cost of a draw grows as N."""

TOLERABLE, TOLERABLE_A_PARAMETER = 1e-5, 2e-6
"""½Var in nats of totals from a sample of rows above which all rows are evaluated; nats a parameter
for multilevel models, where each row that is kept corrects about one effect."""

ROWS_A_PARAMETER = 32
"""Rows a parameter that stand for those of a large table in multilevel models."""

CERTIFYING_DRAWS = 500
"""Draws of a coreset with a site at which its KL is measured."""

FITTED_A_PARAMETER, CHEAP = 64, 100_000_000
"""Fewest draws a parameter with a site, up to 2,000: remainders have more directions than that. So
many draws in any case as make this many potentials, up to 2,000."""

SITE_MATRICES = 10
"""Matrices of d × d numbers in memory at once while a table is expanded."""

DRAWS_A_PARAMETER = 20
"""Draws a parameter from which on their covariance says over what Gaussian to smooth."""

SITE_TOO_FAR = "with one the coreset is predicted to lie far from the posterior"

GOOD_REFERENCE = 0.005
"""Predicted KL in nats at which the path is long enough to be the next reference."""


class IteratedHilbertState(NamedTuple):
    """What the next round needs.

    Attributes
    ----------
    round
        Rounds done.
    reference
        Weighted rows whose posterior supplies the next draws.
    reference_kl
        KL(π_ref‖π) of the *last* round's reference, from its pass.
    chosen
        One per requested size, from the last round.
    effort
        Factor on draws and pool, doubled when they limit a ``kl`` build.
    outcome
        `Status` by name.
    subsample
        What the next round estimates totals from; None once rounds pass over all rows at all draws.
    subsampled_rounds
        Rounds done with it alone.
    is_checked
        Whether the next round passes over all rows too, at a few draws.
    expanded
        The expansion that the site carries; None before it is known, and without a site.
    rows_only
        Why there is no site; empty where there is one.
    with_site
        Coresets with a site whose predicted KL was too large.
    """

    round: int
    reference: Selection
    reference_kl: float
    chosen: tuple[SizedSelection, ...]
    effort: float
    outcome: str
    subsample: Selection | None = None
    subsampled_rounds: int = 0
    is_checked: bool = False
    expanded: ExpandedTable | None = None
    rows_only: str = ""
    with_site: tuple[SizedSelection, ...] = ()


@dataclass(frozen=True)
class IteratedHilbert:
    """The default construction.

    Attributes
    ----------
    site
        Let a Gaussian site carry the second-order part of all rows that are not kept (default).
        False: the weighted rows stand alone.
    max_rounds
        Most rounds over all rows. A ``kl`` build may take twice as many. Before them come at most
        max_rounds − 2 on a subsample.
    subsample_first
        If the table is large, the first rounds use a subsample, and those that fill the size also
        all rows at a few draws. False: every round evaluates all rows at all draws.
    draws
        S, draws per round (four fifths to fit, one fifth to predict the KL); default
        min(2000, max(1000, 6 M)), and 500 in place of 1000 from a million rows on; with rows
        beside a site, at least min(2000, max(64 d, 10⁸/N)).
    pool
        P, candidate rows per round; default max(2000, 10 M).
    pilot
        Rows in the uniform pilot; default min(N, max(1000, 20 d)).
    exchanges
        Most sweeps of swaps that refine each requested size.
    restarts
        Further local optima compared where the size is too small for the quadratic model.
    restart_above
        Restarts run only above this predicted KL, in nats. Beyond the default ½Var no longer
        ranks solutions as KL does; below it restarts gain up to a factor of two, for as many more
        pursuits.
    max_size
        Largest size a ``kl`` build may use; default min(N, 1000).

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> method = decoct.constructions.IteratedHilbert(max_rounds=2)
    >>> decoct.build(model, rows, size=10, method=method).size <= 10
    True
    """

    site: bool = True
    max_rounds: int = 4
    subsample_first: bool = True
    draws: int | None = None
    pool: int | None = None
    pilot: int | None = None
    exchanges: int = 40
    restarts: int = 6
    restart_above: float = 0.3
    max_size: int | None = None

    def init(self, key: jax.Array, problem: Problem) -> IteratedHilbertState:
        if self.site:
            require_memory_for_site(problem.likelihood_dim)
        size, n_seen, seen = self.pilot_size(problem), self.subsample_size_for(problem), None
        if n_seen is None:
            pilot = uniform_selection(key, problem, size)
        else:
            seen = uniform_selection(key, problem, n_seen)
            pilot = pilot_of(problem, seen, size)
        reason = "" if self.site else "site=False"
        return IteratedHilbertState(
            0, pilot, np.inf, (), 1.0, Status.RUNNING.name, seen, rows_only=reason
        )

    def step(
        self, key: jax.Array, problem: Problem, state: IteratedHilbertState
    ) -> tuple[IteratedHilbertState, StepInfo]:
        state = self._expanded(key, problem, state)
        state, tangent, result, sampler = self._collect(key, problem, state)
        n_seen = problem.n_rows
        if result.exact_draws == 0 and state.subsample is not None and state.expanded is None:
            n_seen = state.subsample.size
            after, last = self._fit_reference(problem, state, tangent, result.is_corrected)
        else:
            if result.exact_draws == len(tangent.draws):
                state = state._replace(subsample=None, is_checked=False)
            if problem.kl is None:
                after = self._fit_sizes(jax.random.fold_in(key, 3), problem, state, tangent)
            else:
                after = self._fit_kl(problem, state, tangent, problem.kl)
            last = (after.chosen or after.with_site)[-1]
        numbers = {
            "rows_seen": n_seen,
            "sampler": sampler,
            "draws": len(tangent.draws),
            "draws_on_all_rows": result.exact_draws,
            "pool": len(tangent.pool.indices),
            "reference_rows": state.reference.size,
            "reference_kl": after.reference_kl,
            "rows": last.selection.size,
            "predicted_kl": last.predicted_kl,
        }
        if self.site and state.rows_only and last.selection.site is None:
            numbers["no_site"] = state.rows_only
        if state.subsample is not None and (result.exact_draws or state.expanded is not None):
            numbers["totals_error"] = result.error
        kl = last.predicted_kl
        message = f"{last.selection.size} rows" + (
            "" if kl is None else f", predicted KL {kl:.2g} nats"
        )
        return after, StepInfo(message, numbers)

    def status(self, problem: Problem, state: IteratedHilbertState) -> Status:
        return Status[state.outcome]

    def path(self, state: IteratedHilbertState) -> tuple[SizedSelection, ...]:
        return state.chosen

    def steps(self, problem: Problem) -> int:
        first = 0 if self.subsample_size_for(problem) is None else self.max_rounds - 2
        return first + self.most_rounds(problem)

    def most_rounds(self, problem: Problem) -> int:
        """Return most rounds over all rows."""
        return self.max_rounds if problem.kl is None else 2 * self.max_rounds

    def subsample_size_for(self, problem: Problem) -> int | None:
        """Return the size of the subsample, or None where no round uses one."""
        if not self.subsample_first or self.max_rounds <= 2:
            return None
        size = subsample_size(problem, *self.effort_for(problem, None), self.site)
        return None if size is None or size < self.pilot_size(problem) else size

    def pilot_size(self, problem: Problem) -> int:
        return min(problem.n_rows, self.pilot or max(1000, 20 * problem.dim))

    def plan(self, problem: Problem) -> Plan:
        """Return what a build costs; see `iterated_hilbert.plan`."""
        return plan(self, problem)

    @property
    def certifying_draws(self) -> int:
        """Draws of each coreset with a site at which its KL is measured."""
        return CERTIFYING_DRAWS

    def planned_size(self, problem: Problem) -> int:
        """Return the size that a build is likely to end with."""
        return problem.size if problem.kl is None else _likely_size(problem, None)

    @staticmethod
    def longest_path(size: int, fitted_draws: int) -> int:
        """Return the most rows of a path that is cut at ``size``."""
        return max(size, min(2 * size + 200, fitted_draws // 3))

    def effort_for(self, problem: Problem, state: IteratedHilbertState | None) -> tuple[int, int]:
        """Return S and P of the next round."""
        size = problem.size if problem.kl is None else _likely_size(problem, state)
        effort = 1.0 if state is None else state.effort
        least = FEWEST_DRAWS if problem.n_rows < LARGE else FEWEST_DRAWS // 2
        if self.site and size:
            least = max(least, FITTED_A_PARAMETER * problem.dim, CHEAP // problem.n_rows)
        S = int(effort * (self.draws or min(2000, max(least, 6 * size))))
        return S, int(effort * (self.pool or max(2000, 10 * size)))

    def _collect(
        self, key: jax.Array, problem: Problem, state: IteratedHilbertState
    ) -> tuple[IteratedHilbertState, SplitTangent, PassResult, str]:
        """Draw from the reference posterior and make the one pass of this round."""
        draw_key, pass_key, split_key = jax.random.split(key, 3)
        S, P = self.effort_for(problem, state)
        near = None if state.expanded is None else state.expanded.draws
        draws = problem.draw(draw_key, state.reference, S, near=near)
        if state.expanded is not None and draws.sampler == "nuts":
            state = self._expanded_again(pass_key, problem, state, state.expanded, draws.flat[:S])
        # Chains come one after the other; mixed up, both parts see all of them.
        order = host_rng(split_key).permutation(S)
        z = draws.flat[:S][order]
        result, subsample = None, state.subsample
        if state.expanded is not None and subsample is None:
            result = problem.potentials.one_pass(z, P, pass_key, state.expanded.at)
        elif state.expanded is not None:
            result = self._sampled_pass(pass_key, problem, state.expanded, z, P)
            if result.error > _tolerable(problem):
                result = problem.potentials.one_pass(z, P, pass_key, state.expanded.at)
        elif subsample is not None:
            result = self._subsampled(pass_key, problem, state, subsample, z, P)
        if result is None:
            result = problem.potentials.one_pass(z, P, pass_key)
        pools = (result.pool, state.reference.pool, *(one.selection.pool for one in state.chosen))
        rhat = float(draws.info.get("rhat", np.nan))
        error = result.error if result.exact_draws and state.expanded is None else 0.0
        tangent = SplitTangent.of(
            problem,
            z,
            result.totals,
            merge_pools(*pools),
            state.reference,
            error,
            rhat,
            state.expanded,
        )
        return state, tangent, result, draws.sampler

    def _subsampled(
        self,
        key: jax.Array,
        problem: Problem,
        state: IteratedHilbertState,
        subsample: Selection,
        z: Float[np.ndarray, "S d"],
        P: int,
    ) -> PassResult | None:
        """Return what a subsample says without a site; None where all rows are needed."""
        from decoct.constructions.iterated_hilbert import subsampled_pass  # for rows alone

        if not state.is_checked:
            return subsampled_pass.subsample_pass(key, problem, subsample, z, P)
        if len(z) < FEWEST or (problem.kl is not None and state.chosen):
            return None
        tolerable = subsampled_pass.MAX_TOTALS_ERROR
        if problem.kl is not None:
            tolerable = min(tolerable, 0.1 * problem.kl)
        return subsampled_pass.checked_pass(key, problem, subsample, z, P, tolerable)

    def _sampled_pass(
        self,
        key: jax.Array,
        problem: Problem,
        expanded: ExpandedTable,
        z: Float[np.ndarray, "S d"],
        P: int,
    ) -> PassResult:
        """Return totals and a pool from rows drawn by remainder."""
        assert expanded.sample is not None
        totals, error = expanded.totals(problem.potentials, z)
        sampled = expanded.sample.pool
        few = problem.potentials.restricted(sampled)
        pool = few.one_pass(z[:NORM_DRAWS], P, key, expanded.at).pool
        return PassResult(totals, sampled.some(pool.indices), error)

    def _expanded(
        self, key: jax.Array, problem: Problem, state: IteratedHilbertState
    ) -> IteratedHilbertState:
        """Expand the table before the first round; its site alone is the first reference."""
        if state.expanded is not None or state.rows_only:
            return state
        sampled = self.sampled_rows(problem)
        try:
            key = jax.random.fold_in(key, 4)
            if problem.potentials.has_likelihood_params:
                from decoct.constructions.iterated_hilbert.multilevel import expand_by_draws

                expanded = expand_by_draws(problem, state.subsample, key, sampled)
            else:
                expanded = expand_table(problem, state.reference, state.subsample, key, sampled)
        except NoExpansionError as error:
            return state._replace(rows_only=str(error))
        return state._replace(expanded=expanded, reference=site_alone(problem, expanded))

    def sampled_rows(self, problem: Problem) -> int:
        """Return how many rows of a large table stand for the remainders of all, twice."""
        rows = max(ROWS // 2, 4 * self.effort_for(problem, None)[1])
        if problem.potentials.has_likelihood_params:
            return max(rows, ROWS_A_PARAMETER * problem.likelihood_dim)
        return rows

    def _expanded_again(
        self,
        key: jax.Array,
        problem: Problem,
        state: IteratedHilbertState,
        expanded: ExpandedTable,
        draws: Float[np.ndarray, "S d"],
    ) -> IteratedHilbertState:
        """Expand over the moments of draws that no Gaussian fits, if there are enough for them."""
        is_settled = problem.potentials.has_likelihood_params or (state.round and not problem.size)
        if is_settled or len(draws) < DRAWS_A_PARAMETER * problem.dim:
            return state
        at = expanded.at.moved(draws.mean(axis=0), np.atleast_2d(np.cov(draws, rowvar=False)))
        try:
            again = expanded_at(problem, at, state.subsample, key, self.sampled_rows(problem))
            return state._replace(expanded=again)
        except NoExpansionError:
            return state

    def _fit_reference(
        self,
        problem: Problem,
        state: IteratedHilbertState,
        tangent: SplitTangent,
        is_corrected: bool,
    ) -> tuple[IteratedHilbertState, SizedSelection]:
        """Fit the next reference to the subsample's totals, and say what the next round uses."""
        best = self._extend_path(problem, tangent, (problem.size,), False).best(problem)
        done = state.subsampled_rounds + 1
        is_nearer = (
            tangent.reference_kl > KL_STOP_SUBSAMPLING
            and tangent.reference_kl < 0.5 * state.reference_kl
        )
        again = is_corrected and is_nearer and done < self.max_rounds - 2
        after = state._replace(
            round=state.round + 1,
            reference=best.selection,
            reference_kl=tangent.reference_kl,
            # where control variates do not help, a checked pass would not either
            subsample=state.subsample if is_corrected else None,
            subsampled_rounds=done,
            is_checked=not again,
        )
        return after, best

    def _extend_path(
        self, problem: Problem, tangent: SplitTangent, sizes: tuple[int, ...], final: bool
    ) -> PathFit:
        """Pursue until the path is long enough to be a reference and the size asked for."""
        least = problem.size if problem.kl is None else 1
        longest = self.longest_path(problem.size, tangent.fitted_draws)

        def long_enough(solution: SparseWeights) -> bool:
            return len(solution.indices) >= least and tangent.judge(solution) <= GOOD_REFERENCE

        exchanges = self.exchanges if final else min(1, self.exchanges)
        return tangent.pursue(longest, sizes=sizes, stop=long_enough, exchanges=exchanges)

    def _fit_sizes(
        self, key: jax.Array, problem: Problem, state: IteratedHilbertState, tangent: SplitTangent
    ) -> IteratedHilbertState:
        """Fill every requested size, and extend the path until it can be a reference."""
        rounds = state.round + 1
        outcome = Status.RUNNING
        if not tangent.is_informative:
            outcome = Status.UNKNOWN
        elif tangent.reference_kl <= max(KL_CONVERGED, KL_A_PARAMETER * problem.dim):
            outcome = Status.DONE
        elif rounds - state.subsampled_rounds >= self.max_rounds:
            outcome = Status.MAX_ROUNDS_REACHED
        final = outcome is not Status.RUNNING
        if problem.size == 0 and tangent.expanded is not None and state.reference.site is not None:
            return self._without_rows(problem, state, tangent, tangent.expanded)
        # Earlier rounds only have to supply the next reference.
        fits = self._extend_path(
            problem, tangent, problem.sizes if final else (problem.size,), final
        )
        chosen = tuple(fits.best(problem, size) for size in problem.sizes)
        if final and tangent.expanded is not None and problem.size >= quadratic_size(problem):
            chosen = self._best_of_both(problem, tangent, chosen)
        reference = state.reference if final else fits.best(problem).selection
        if final:
            chosen = tuple(
                self._judged(key, problem, state, tangent, one, size, outcome)
                for one, size in zip(chosen, problem.sizes, strict=True)
            )
            is_above = max(map(_nats, chosen)) > self.restart_above
            multilevel = problem.potentials.has_likelihood_params
            if state.expanded is not None and is_above and problem.size and not multilevel:
                again = replace(self, site=False).init(jax.random.fold_in(key, 5), problem)
                return again._replace(
                    rows_only=SITE_TOO_FAR, with_site=chosen, reference_kl=tangent.reference_kl
                )
            if state.with_site and outcome is not Status.UNKNOWN:
                both = zip(problem.sizes, state.with_site, chosen, strict=True)
                chosen = tuple(min(two[: 1 + size], key=_nats) for size, *two in both)
            if any(one.predicted_kl is None for one in chosen):
                outcome = Status.UNKNOWN
        return state._replace(
            round=rounds,
            reference=reference,
            reference_kl=tangent.reference_kl,
            chosen=chosen,
            outcome=outcome.name,
        )

    def _without_rows(
        self,
        problem: Problem,
        state: IteratedHilbertState,
        tangent: SplitTangent,
        expanded: ExpandedTable,
    ) -> IteratedHilbertState:
        """Take the reference, whose KL its own draws give, if its expansion is the last one."""
        reference, outcome = site_alone(problem, expanded), Status.RUNNING
        assert state.reference.site is not None
        assert reference.site is not None
        kl = tangent.reference_kl if tangent.is_informative else None
        if np.array_equal(reference.site.centre, state.reference.site.centre):
            reference = state.reference
            outcome = Status.UNKNOWN if kl is None else Status.DONE
        return state._replace(
            round=state.round + 1,
            reference=reference,
            reference_kl=tangent.reference_kl,
            chosen=(SizedSelection(reference, kl),),
            outcome=outcome.name,
        )

    def _best_of_both(
        self, problem: Problem, tangent: SplitTangent, chosen: tuple[SizedSelection, ...]
    ) -> tuple[SizedSelection, ...]:
        """Take rows alone at the sizes where they are predicted to be nearer than with a site."""
        fits = self._extend_path(problem, tangent.rows_only(), problem.sizes, True)
        alone = [fits.best(problem, size) for size in problem.sizes]
        return tuple(min(two, key=_nats) for two in zip(chosen, alone, strict=True))

    def _judged(
        self,
        key: jax.Array,
        problem: Problem,
        state: IteratedHilbertState,
        tangent: SplitTangent,
        found: SizedSelection,
        size: int,
        outcome: Status,
    ) -> SizedSelection:
        """Return the coreset of one size with the KL that is known of it."""
        if outcome is Status.UNKNOWN or found.predicted_kl is None:
            return SizedSelection(found.selection, None)
        if found.predicted_kl > self.restart_above and found.selection.site is None:
            found = best_of_restarts(problem, tangent, found, size, self.restarts, self.exchanges)
        predicted = found.predicted_kl
        if state.expanded is not None:
            predicted = self._certified(key, problem, state, tangent, found.selection)
        elif predicted is not None and predicted <= self.restart_above:
            predicted = checked_at_its_draws(key, problem, tangent, found, state.reference)
        if predicted is not None and outcome is Status.MAX_ROUNDS_REACHED:
            predicted += tangent.reference_kl
        fits = state.expanded is not None and state.round and state.reference.size <= size
        if fits and (predicted is None or tangent.reference_kl < predicted):
            # its KL is known from the pass at its draws
            return SizedSelection(state.reference, tangent.reference_kl)
        return SizedSelection(found.selection, predicted)

    def _certified(
        self,
        key: jax.Array,
        problem: Problem,
        state: IteratedHilbertState,
        tangent: SplitTangent,
        selection: Selection,
    ) -> float | None:
        """Return KL(π_w‖π) at draws of π_w; None where chains disagree."""
        most = len(tangent.draws)
        evaluated = min(CERTIFYING_DRAWS, most)
        # chains of scales are slow to mix
        n = most if problem.potentials.has_likelihood_params else evaluated
        padded_as = max(problem.size, state.reference.size)
        start = tangent.draws.mean(axis=0)
        drawn = problem.draw(key, selection, n, start, padded_as, tangent.draws)
        if drawn.info.get("rhat", 1.0) > MAX_RHAT:
            return None
        z = drawn.flat[:n][:: n // evaluated]
        assert state.expanded is not None
        totals, error = state.expanded.totals(problem.potentials, z)
        if error > _tolerable(problem):
            totals = problem.potentials.totals(z)
        return kl_from_log_ratios(totals - problem.log_likelihood(selection, z)).reverse

    def _smallest_for(
        self, problem: Problem, tangent: SplitTangent, goal: float
    ) -> tuple[SizedSelection, bool]:
        """Return the smallest selection predicted to reach a KL, or the nearest, and which."""
        fits = tangent.pursue(problem.size, stop=lambda solution: tangent.judge(solution) <= goal)
        best = fits.best(problem)
        if tangent.expanded is not None:
            alone = fits.alone(problem)
            if alone.predicted_kl is not None and alone.predicted_kl <= goal:
                return alone, True
        reached = best.predicted_kl is not None and best.predicted_kl <= goal
        if reached:
            best = smallest(problem, tangent, goal, best, self.exchanges)
        return best, reached

    def _fit_kl(
        self, problem: Problem, state: IteratedHilbertState, tangent: SplitTangent, kl: float
    ) -> IteratedHilbertState:
        """Certify the last round's selection, or find the smallest one predicted to reach kl."""
        rounds = state.round + 1
        is_coreset = state.chosen or state.reference.site is not None
        if is_coreset and tangent.is_informative and tangent.reference_kl_upper <= kl:
            certified = SizedSelection(state.reference, tangent.reference_kl_upper)
            return state._replace(
                round=rounds,
                reference_kl=tangent.reference_kl,
                chosen=(certified,),
                outcome=Status.REACHED.name,
            )
        goal = kl * 0.5 ** max(1, rounds - state.subsampled_rounds - 1)
        best, reached = self._smallest_for(problem, tangent, goal)
        if tangent.expanded is not None and not (
            reached and best.selection.size < quadratic_size(problem)
        ):
            alone, alone_reached = self._smallest_for(problem, tangent.rows_only(), goal)
            if alone_reached and (not reached or alone.selection.size < best.selection.size):
                best, reached = alone, True
        effort, outcome = state.effort, Status.RUNNING
        limited = not reached and tangent.reference_kl <= max(KL_CONVERGED, kl)
        if not tangent.is_informative:
            outcome, best = Status.UNKNOWN, SizedSelection(best.selection, None)
        elif limited and effort >= 4.0:
            outcome = Status.SHORT_SIZE
        elif limited:
            effort *= 2.0
        if outcome is Status.RUNNING and rounds - state.subsampled_rounds >= 2 * self.max_rounds:
            outcome = Status.SHORT_ROUNDS
        return state._replace(
            round=rounds,
            reference=best.selection,
            reference_kl=tangent.reference_kl,
            chosen=(best,),
            effort=effort,
            outcome=outcome.name,
        )


def require_memory_for_site(dim: int) -> None:
    """Refuse more parameters than this machine can hold matrices of."""
    matrix, have = 8e-9 * dim**2, psutil.virtual_memory().total * 1e-9
    if SITE_MATRICES * matrix > have:
        raise RequestError(
            f"A site of {dim:,} parameters is a matrix of {matrix:.2g} GB, and finding it takes "
            f"{SITE_MATRICES} of them, more than the {have:.2g} GB of this machine. Use a model "
            "with fewer parameters, or rows alone: IteratedHilbert(site=False), --no-site."
        )


def _tolerable(problem: Problem) -> float:
    potentials = problem.potentials
    if not potentials.has_likelihood_params:
        return TOLERABLE
    return max(TOLERABLE, TOLERABLE_A_PARAMETER * potentials.likelihood_dim)


def _nats(one: SizedSelection) -> float:
    return np.inf if one.predicted_kl is None else one.predicted_kl


def _likely_size(problem: Problem, state: IteratedHilbertState | None) -> int:
    """Return the size a ``kl`` build is likely to need: the last one, or a quadratic's count."""
    if state is not None and state.chosen:
        return max(50, state.chosen[-1].selection.size)
    return min(problem.size, max(50, quadratic_size(problem)))


register("iterated-hilbert", IteratedHilbert, compared_as="IteratedHilbert")
