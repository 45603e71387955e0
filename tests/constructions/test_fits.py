"""What a round of IteratedHilbert fits, and what it ends with."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from decoct.building.packing import pack_state, unpack_state
from decoct.constructions import IteratedHilbert
from decoct.constructions.base import (
    Selection,
    SizedSelection,
    uniform_selection,
)
from decoct.constructions.iterated_hilbert.expansion import expand_table, site_alone
from decoct.constructions.iterated_hilbert.fits import Fits, IteratedHilbertState
from decoct.constructions.iterated_hilbert.tangent_problem import EvaluatedDraws, SplitTangent
from decoct.models import LogisticRegression
from decoct.models.site import ThirdOrder
from decoct.report import Status
from decoct.stats.divergences import kl_from_log_ratios
from tests.constructions.contract import problem_of

N, D, S = 300, 6, 200


@pytest.fixture(scope="module")
def given():
    """A small table, its expansion, its site alone, and draws of that."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(N), rng.normal(size=(N, D - 1))])
    rows = {"x": x, "y": (rng.random(N) < 1.0 / (1.0 + np.exp(2.0 - x[:, 1]))).astype(int)}
    problem = problem_of(LogisticRegression(prior_scale=3.0), rows, 1, 2, 5, 10)
    everything = uniform_selection(jax.random.key(0), problem, N)
    expanded = expand_table(problem, everything, None, jax.random.key(0))
    alone = site_alone(problem, expanded)
    rounds = [problem.draw(jax.random.key(k), alone, S).flat[:S] for k in (1, 2)]
    return problem, everything.pool, expanded, alone, rounds


def test_a_fit_adds_up_half_the_variances_of_all_rounds(given):
    problem, pool, expanded, alone, (now, before) = given
    totals = problem.potentials.totals
    expanded = expanded._replace(has_third_order=False)
    earlier = (EvaluatedDraws(before, totals(before) + 1e3),)  # up to a constant
    tangent = SplitTangent.of(
        problem, now, totals(now), pool, alone, expanded=expanded, earlier=earlier
    )
    weights = np.random.default_rng(1).exponential(size=N)

    def half_variance(draws):
        rows = problem.potentials.vectors(pool.rows, draws)
        rows -= problem.potentials.quadratics(pool.rows, expanded.at, draws)
        return 0.5 * np.var((1.0 - weights) @ rows, ddof=1)

    fitted = tangent.fit.predicted_kl(np.arange(N), weights)
    of_rounds = half_variance(now[: 4 * S // 5]), half_variance(before)
    assert fitted == pytest.approx(sum(of_rounds), rel=1e-6)
    judged = tangent.held_out.predicted_kl(np.arange(N), weights)
    assert judged == pytest.approx(half_variance(now[4 * S // 5 :]), rel=1e-6)


def test_a_better_coreset_that_an_earlier_round_measured_is_kept(given):
    problem, pool, expanded, alone, (now, _) = given
    totals = problem.potentials.totals(now)
    tangent = SplitTangent.of(problem, now, totals, pool, alone, expanded=expanded)
    kept = pool.some([3, 50, 70])
    known = Selection(kept.indices, np.ones(3), kept.rows, alone.site)
    state = IteratedHilbertState(
        1,
        known,
        np.inf,
        (),
        1.0,
        Status.RUNNING.name,
        expanded=expanded,
        measured=(SizedSelection(known, 1e-12),),
    )
    after = Fits(IteratedHilbert(max_rounds=2), state, tangent).sizes(jax.random.key(3))
    assert Status[after.outcome] is not Status.RUNNING
    is_known = [one.selection is known for one in after.chosen]
    assert is_known == [False, False, True, True]
    assert after.chosen[-1].predicted_kl == 1e-12
    method, pair = IteratedHilbert(), (np.array([0]), np.full(1, 0.5))
    third = ThirdOrder(np.array([1]), np.ones(1), np.full(1, 0.1), *pair)
    skewed = known._replace(site=replace(alone.site, third_order=third))
    paired = after.expanded._replace(pair_offsets=(-1,))
    after_pairs = after._replace(reference=skewed, expanded=paired)
    saved = unpack_state(method, pack_state(method, after_pairs))
    assert saved.reference.site.third_order.sizes == [0.1]
    assert saved.reference.site.third_order.factors == [0.5]
    assert saved.expanded.pair_offsets == (-1,)
    assert saved.expanded.sums.thirds.shape == expanded.sums.thirds.shape
    assert (saved.earlier[-1].draws == now).all()
    assert saved.measured[-1].predicted_kl == after.measured[-1].predicted_kl


@pytest.mark.parametrize(("before", "outcome"), [(0.6, Status.SHORT_SIZE), (2.0, Status.RUNNING)])
def test_a_kl_build_ends_where_its_rows_come_no_nearer(given, before, outcome):
    problem, pool, expanded, alone, (now, _) = given
    problem = replace(problem, kl=1e-9, sizes=(5,))
    totals = problem.potentials.totals(now)
    tangent = SplitTangent.of(problem, now, totals, pool, alone, expanded=expanded)
    tangent = replace(tangent, reference_kl=0.5, reference_kl_upper=0.6)
    kept = pool.some([3, 50, 70])
    known = SizedSelection(Selection(kept.indices, np.ones(3), kept.rows, alone.site), before)
    state = IteratedHilbertState(
        2,
        known.selection,
        before,
        (known,),
        1.0,
        Status.RUNNING.name,
        expanded=expanded,
        measured=(known,),
    )
    after = Fits(IteratedHilbert(), state, tangent).kl(jax.random.key(3), 1e-9)
    assert Status[after.outcome] is outcome
    (found,) = after.chosen
    assert found.selection.size <= 5
    if outcome is Status.SHORT_SIZE:
        assert 1e-9 < found.predicted_kl <= 0.5  # this round's measured it at most


def test_weighted_draws_of_the_reference_give_the_kl_of_other_rows(given):
    """Against draws of their own, to four Monte Carlo errors, and not without the weights."""
    problem, pool, expanded, alone, _ = given
    draws = problem.draw(jax.random.key(4), alone, 20_000).flat
    fresh = EvaluatedDraws(draws, problem.potentials.totals(draws))
    tangent = SplitTangent.of(problem, *fresh, pool, alone, expanded=expanded)
    state = IteratedHilbertState(1, alone, np.inf, (), 1.0, Status.RUNNING.name)
    fits, kept = Fits(IteratedHilbert(), state, tangent, fresh), pool.some([3, 50, 70])

    def of_weight(weight):
        return Selection(kept.indices, np.full(3, weight), kept.rows, alone.site)

    def kl_at(draws):
        left = problem.potentials.totals(draws) - problem.log_likelihood(of_weight(8.0), draws)
        return kl_from_log_ratios(left)

    own, unweighted = (
        kl_at(problem.draw(jax.random.key(5), of_weight(8.0), 20_000).flat),
        kl_at(draws),
    )
    error = own.reverse_se * np.sqrt(1.0 + 2.0)  # as many draws, of unequal weights
    assert fits._kl_by_weights(of_weight(8.0)) == pytest.approx(own.reverse, abs=4.0 * error)
    assert abs(unweighted.reverse - own.reverse) > 4.0 * error
    assert fits._kl_by_weights(of_weight(1e3)) is None
