"""IteratedHilbert: a Hilbert coreset whose tangent space is re-centred at the coreset posterior.

∇_w KL(π_w‖π) = −Cov_w[f, (1 − w)ᵀf], and with S draws of π_w frozen, minimising the quadratic
model over w ≥ 0 is the non-negative least-squares problem

    min_{w ≥ 0, ‖w‖₀ ≤ M} ‖b − Σ w_n g_n‖²     (g_n centred potentials, b = Σ_n g_n).

Each round draws from the posterior of the *reference* (a uniform pilot at first, then the best
weighted rows so far), makes one pass over the data for b and a pool of candidate rows, solves the
problem on the pool by orthogonal pursuit with exchanges, and judges every size by the residual at
held-out draws, ½Var(b − Σ w_n g_n) ≈ KL in nats. The pass also measures KL(π_ref‖π) at no extra
cost; once that is small the draws are as good as draws from π and the rounds end. With a site a
round fits the draws of earlier rounds too, ½Var(b − Σ w_n g_n) summed over the rounds: draws of a
good reference do not reach the tails that only the rows of another keep light.

On large tables the first rounds use a subsample with second-order control variates in place of the
pass (`subsampled_pass`). The rounds that fill the sizes pass over all rows at a few draws, which
fill the pool and measure how far the estimated totals are off. Where that is more than 1e-5 nats,
and where a ``kl`` build certifies itself, a round passes over all rows at all draws.

The reference may have more rows than requested: with fewer than about d(d+3)/2 rows π_w is far from
π, and with more rows of the same path it is near.

Sources: Campbell & Broderick (2019), Hilbert coresets; Campbell & Beronov (2019), Eq. 4, 9-11.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
import psutil
from jaxtyping import Float

from decoct.constructions.base import (
    Problem,
    SizedSelection,
    StepInfo,
    equal_weight_rows,
    register,
    uniform_selection,
)
from decoct.constructions.iterated_hilbert.expansion import (
    ExpandedTable,
    NoExpansionError,
    expand_at,
    expand_table,
    site_alone,
)
from decoct.constructions.iterated_hilbert.fits import (
    ROWS_ARE_NEARER,
    Fits,
    IteratedHilbertState,
    tolerable_error,
)
from decoct.constructions.iterated_hilbert.settings import (
    CERTIFYING_DRAWS,
    FEWEST_CHECKED,
    Settings,
)
from decoct.constructions.iterated_hilbert.tangent_problem import EvaluatedDraws, SplitTangent
from decoct.errors import RequestError
from decoct.passes.chunk_sums import NORM_DRAWS
from decoct.passes.pools import merge_pools
from decoct.passes.potentials import PassResult
from decoct.report import Status
from decoct.runtime.randomness import host_rng

SITE_MATRICES = 10
"""Matrices of d × d numbers in memory at once while a table is expanded."""

DRAWS_A_PARAMETER = 20
"""Draws a parameter from which on their covariance says over what Gaussian to smooth."""


@dataclass(frozen=True)
class IteratedHilbert(Settings):
    """The default construction.

    Attributes
    ----------
    site
        Let a Gaussian site stand for all rows that are not kept, to second order (default).
        False: the weighted rows stand alone.
    max_rounds
        Most rounds over all rows; twice as many for a ``kl`` build. At most max_rounds − 2 rounds
        on a subsample come before them.
    subsample_first
        On a large table use only a subsample in the first rounds, and evaluate all rows at a few
        draws in the later ones. False: evaluate all rows at all draws in every round.
    draws
        S, draws per round (four fifths to fit, one fifth to predict the KL); default
        min(2000, max(1000, 6 M)), and 500 in place of 1000 from a million rows on; with a
        site, at least min(2000, max(64 d, 10⁸/N)), and, but for multilevel models,
        min(3000, 30 M, 400 d) for a size.
    pool
        P, candidate rows per round; default max(2000, 10 M).
    pilot
        Rows in the uniform pilot; default min(N, max(1000, 20 d)).
    exchanges
        Most sweeps of swaps that refine each requested size.
    restarts
        How many more solutions to compare, each fitted to a random half of the draws, where the
        rows alone have a predicted KL above ``restart_above``.
    restart_above
        Restarts run only above this predicted KL, in nats. Above the default ½Var no longer ranks
        solutions as KL does. A lower value can halve the KL; every solution takes one more pursuit.
    max_size
        Largest size a ``kl`` build may use; default min(N, 1000), and 3,000 for a multilevel
        model of some hundred groups or more, which get up to eight rows each.

    Raises
    ------
    RequestError
        A count is too small.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> method = decoct.constructions.IteratedHilbert(max_rounds=2)
    >>> decoct.build(model, rows, size=10, method=method).size <= 10
    True
    """

    def init(self, key: jax.Array, problem: Problem) -> IteratedHilbertState:
        if self.site:
            require_memory_for_site(problem.likelihood_dim)
        size, n_seen, seen = self.pilot_size(problem), self.subsample_size_for(problem), None
        if n_seen is None:
            pilot = uniform_selection(key, problem, size)
        else:
            seen = uniform_selection(key, problem, n_seen)
            pilot = equal_weight_rows(problem, seen.pool, size)
        running, reason = Status.RUNNING.name, "" if self.site else "site=False"
        return IteratedHilbertState(0, pilot, np.inf, (), 1.0, running, seen, rows_only=reason)

    def step(
        self, key: jax.Array, problem: Problem, state: IteratedHilbertState
    ) -> tuple[IteratedHilbertState, StepInfo]:
        multilevel = problem.potentials.has_likelihood_params
        if state.expanded is None and not state.rows_only:
            given = state.subsample, jax.random.fold_in(key, 4), self.sampled_rows(problem)
            try:
                if multilevel:
                    from decoct.constructions.iterated_hilbert.multilevel import expand_by_draws

                    expanded = expand_by_draws(problem, *given)
                else:
                    expanded = expand_table(problem, state.reference, *given)
            except NoExpansionError as error:
                state = state._replace(rows_only=error.reason(problem.potentials))
            else:  # its site alone is the first reference
                state = state._replace(expanded=expanded, reference=site_alone(problem, expanded))
        # the site alone may be enough, and chains or a pass over all rows take long
        is_first = state.expanded is not None and not state.round
        is_estimated = state.subsample is not None and problem.kl is not None
        few = is_first and (multilevel or is_estimated)
        collected, fresh = self._collect(key, problem, state, few), None
        if few and not Fits(self, *collected[:2]).is_reference_enough:
            _, tangent, *_ = collected
            if problem.size or not tangent.is_informative:
                if tangent.is_informative:
                    fresh = EvaluatedDraws(tangent.draws, tangent.totals)
                # of multilevel models both sets of draws are used
                again = jax.random.fold_in(key, 6) if multilevel else key
                collected = self._collect(again, problem, state)
        state, tangent, result, sampler = collected
        if result.exact_draws == len(tangent.draws):
            state = state._replace(subsample=None, is_checked=False)
        n_seen, fits = problem.n_rows, Fits(self, state, tangent, fresh)
        if result.exact_draws == 0 and state.subsample is not None and state.expanded is None:
            n_seen = state.subsample.size
            after, last = fits.reference(result.is_corrected)
            chosen = (last,)
        else:
            kl, fit_key = problem.kl, jax.random.fold_in(key, 3)
            after = fits.sizes(fit_key) if kl is None else fits.kl(fit_key, kl)
            chosen = after.chosen or after.with_site
            last = chosen[-1]
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
        if self.site and any(one.selection.site is None for one in chosen):
            numbers["no_site"] = state.rows_only or ROWS_ARE_NEARER
        if state.subsample is not None and (result.exact_draws or state.expanded is not None):
            numbers["totals_error"] = result.error
        message = f"{last.selection.size} rows"
        if last.predicted_kl is not None:
            message += f", predicted KL {last.predicted_kl:.2g} nats"
        return after, StepInfo(message, numbers)

    def status(self, problem: Problem, state: IteratedHilbertState) -> Status:
        return Status[state.outcome]

    def path(self, state: IteratedHilbertState) -> tuple[SizedSelection, ...]:
        return state.chosen

    def _collect(
        self, key: jax.Array, problem: Problem, state: IteratedHilbertState, few: bool = False
    ) -> tuple[IteratedHilbertState, SplitTangent, PassResult, str]:
        """Draw from the reference posterior and make the one pass of this round.

        ``few``: no more draws than say how good the reference is, and no rows to choose from.
        """
        draw_key, pass_key, split_key = jax.random.split(key, 3)
        so_far = state.chosen[-1].selection.size if state.chosen else None
        S, P = self.effort_for(problem, so_far, state.effort)
        if few:
            S = min(S, CERTIFYING_DRAWS)
        near = None if state.expanded is None else state.expanded.draws
        draws = problem.draw(draw_key, state.reference, S, near=near)
        if state.expanded is not None and draws.sampler == "nuts":
            state = self._expand_again(pass_key, problem, state, state.expanded, draws.flat[:S])
        # Chains come one after the other; mixed up, both parts see all of them.
        order = host_rng(split_key).permutation(S)
        z, expanded = draws.flat[:S][order], state.expanded
        if few or (expanded is not None and not problem.size):
            z, P = z[:CERTIFYING_DRAWS], 1  # there are no rows to choose
        result = self._estimate_pass(pass_key, problem, state, z, P)
        if result is None:
            at = None if expanded is None else expanded.at
            result = problem.potentials.one_pass(z, P, pass_key, at)
        pools = (result.pool, state.reference.pool, *(one.selection.pool for one in state.chosen))
        pool, rhat = merge_pools(*pools), float(draws.info.get("rhat", np.nan))
        error = result.error if result.exact_draws and expanded is None else 0.0
        earlier = state.earlier if state.effort == 1.0 else ()  # more draws need none of before
        tangent = SplitTangent.of(
            problem, z, result.totals, pool, state.reference, error, rhat, expanded, earlier
        )
        return state, tangent, result, draws.sampler

    def _estimate_pass(
        self,
        key: jax.Array,
        problem: Problem,
        state: IteratedHilbertState,
        z: Float[np.ndarray, "S d"],
        P: int,
    ) -> PassResult | None:
        """Return totals and a pool from some of the rows; None where all rows are needed."""
        expanded, subsample = state.expanded, state.subsample
        if subsample is None:
            return None
        if expanded is not None:
            assert expanded.sample is not None
            sampled, is_alone = expanded.sample.pool, P == 1
            totals, error = expanded.totals(problem.potentials, z)
            if error > tolerable_error(problem, is_alone):
                if problem.size:
                    return None
                totals = problem.potentials.totals(z)
                return PassResult(totals, sampled.some(np.arange(P)), exact_draws=len(z))
            if is_alone:
                return PassResult(totals, sampled.some(np.arange(P)), error)
            few = problem.potentials.restrict(sampled)
            pool = few.one_pass(z[:NORM_DRAWS], P, key, expanded.at).pool
            return PassResult(totals, sampled.some(pool.indices), error)

        from decoct.constructions.iterated_hilbert import subsampled_pass  # for rows alone

        if not state.is_checked:
            return subsampled_pass.subsample_pass(key, problem, subsample, z, P)
        if len(z) < FEWEST_CHECKED or (problem.kl is not None and state.chosen):
            return None
        tolerable = subsampled_pass.MAX_TOTALS_ERROR
        if problem.kl is not None:
            tolerable = min(tolerable, 0.1 * problem.kl)
        return subsampled_pass.check_pass(key, problem, subsample, z, P, tolerable)

    def _expand_again(
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
            again = expand_at(problem, at, state.subsample, key, self.sampled_rows(problem))
            return state._replace(expanded=again)
        except NoExpansionError:
            return state


def require_memory_for_site(dim: int) -> None:
    """Refuse more parameters than this machine can hold matrices of."""
    matrix, have = 8e-9 * dim**2, psutil.virtual_memory().total * 1e-9
    if SITE_MATRICES * matrix > have:
        raise RequestError(
            f"A site of {dim:,} parameters is a matrix of {matrix:.2g} GB, and finding it takes "
            f"{SITE_MATRICES} of them, more than the {have:.2g} GB of this machine. Use a model "
            "with fewer parameters, or rows alone: IteratedHilbert(site=False), --no-site."
        )


register("iterated-hilbert", IteratedHilbert, compared_as="IteratedHilbert")
