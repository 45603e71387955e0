"""Rows alone: early rounds on a subsample, later ones beside a thin pass, as good for less."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.building.checkpoint import read_checkpoint
from decoct.building.driver import Request, resume
from decoct.constructions import IteratedHilbert
from decoct.constructions.base import Problem, uniform_selection
from decoct.constructions.iterated_hilbert import settings, subsampled_pass
from decoct.data.encoded import encoded
from decoct.errors import ModelError
from decoct.passes.control_variates import totals_from_halves
from decoct.passes.pools import Pool
from decoct.passes.potentials import Potentials
from decoct.samplers import Laplace
from tests.constructions import contract

N, DIM, SIZE, SEEN = 21_000, 4, 40, 2048
METHOD = IteratedHilbert(site=False, pool=500)


def logistic(n=N, shift=0.0):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, DIM))
    x[:, 0] = 1.0
    y = rng.random(n) < 1.0 / (1.0 + np.exp(-x @ [shift, 1.0, -0.5, 0.2]))
    return {"x": x, "y": y.astype(float)}


MODEL = decoct.models.LogisticRegression()


@pytest.fixture(autouse=True)
def small_subsample(monkeypatch):
    monkeypatch.setattr(settings, "ROWS", SEEN)


@pytest.fixture(scope="module")
def rows():
    return logistic()


@pytest.fixture(scope="module")
def full(rows):
    return decoct.laplace(MODEL, rows)


def kl(coreset, full):
    return decoct.kl_gaussian(decoct.laplace(MODEL, coreset.rows, coreset.weights), full)


def test_one_round_sees_every_row_and_the_coreset_is_as_good(rows, full):
    subsampled_build = decoct.build(MODEL, rows, size=SIZE, method=METHOD)
    plain = decoct.build(
        MODEL, rows, size=SIZE, method=dataclasses.replace(METHOD, subsample_first=False)
    )
    seen = [one["rows_seen"] for one in subsampled_build.report.rounds]
    assert seen == [SEEN, SEEN, N]
    assert {one["rows_seen"] for one in plain.report.rounds} == {N}
    assert subsampled_build.report.evaluations < 0.7 * plain.report.evaluations
    assert kl(subsampled_build, full) < max(3.0 * kl(plain, full), 1e-4)


def test_small_tables_are_not_subsampled():
    few = logistic(settings.MIN_RATIO * SEEN - 1)
    coreset = decoct.build(MODEL, few, size=SIZE, method=METHOD)
    assert {one["rows_seen"] for one in coreset.report.rounds} == {len(few["y"])}


def test_rare_events_end_with_rounds_over_all_rows():
    rare = logistic(shift=-6.0)  # about 100 events, 10 of them in the subsample
    assert 50 < rare["y"].sum() < 500
    coreset = decoct.build(MODEL, rare, size=SIZE, method=METHOD)
    assert coreset.report.rounds[-1]["rows_seen"] == N
    assert coreset.report.status.ok
    assert kl(coreset, decoct.laplace(MODEL, rare)) < 0.02


def test_a_kl_build_subsamples_and_certifies_on_all_rows(rows, full):
    coreset = decoct.build(MODEL, rows, kl=0.01, method=METHOD)
    seen = [one["rows_seen"] for one in coreset.report.rounds]
    assert seen[0] == SEEN
    assert seen[-1] == N
    assert coreset.report.status is decoct.Status.REACHED
    assert kl(coreset, full) < 0.01


def test_a_subsampled_build_resumes_to_the_same_coreset(rows, tmp_path, monkeypatch):
    saved = tmp_path / "c.npz"
    whole = decoct.build(MODEL, rows, size=SIZE, seed=3, method=METHOD)
    step, done = IteratedHilbert.step, []

    def stopping(self, key, problem, state):
        if done:
            raise KeyboardInterrupt
        done.append(1)
        return step(self, key, problem, state)

    monkeypatch.setattr(IteratedHilbert, "step", stopping)
    with pytest.raises(KeyboardInterrupt):
        decoct.build(MODEL, rows, size=SIZE, seed=3, method=METHOD, checkpoint=saved)
    kept = read_checkpoint(saved)["infos"]
    assert len(kept) == 1
    taken = []

    def counting(self, key, problem, state):
        taken.append(1)
        return step(self, key, problem, state)

    monkeypatch.setattr(IteratedHilbert, "step", counting)
    again = resume(saved, MODEL, rows, method=METHOD)
    assert len(taken) == len(whole.report.rounds) - 1
    assert again.report.rounds[:1] == kept
    np.testing.assert_array_equal(again.indices, whole.indices)
    np.testing.assert_array_equal(again.weights, whole.weights)


def test_the_switch_belongs_to_the_request():
    with_it, without = METHOD, dataclasses.replace(METHOD, subsample_first=False)
    one = Request.checked(size=1, kl=None, method=with_it, sampler=None, seed=0)
    other = dataclasses.replace(one, method=without)
    rows = encoded(decoct.rows(logistic(10)), MODEL)
    assert one.checkpoint_key(MODEL, rows) != other.checkpoint_key(MODEL, rows)


def test_large_tables_need_fewer_draws():
    """A draw costs N potentials, and KL falls as 1/N."""

    potentials = contract.potentials_of(MODEL, logistic(10))

    def draws(n_rows, size, method=METHOD):
        of_so_many = type("OfSoManyRows", (Problem,), {"n_rows": n_rows})
        problem = of_so_many(potentials, Laplace(), (size,))
        least = dataclasses.replace(method, subsample_first=False).plan(problem).evaluations[0]
        return round(least / (n_rows + 2 * (500 + 2 * size)))

    assert [draws(10**6 - 1, size) for size in (20, 100, 500)] == [1000, 1000, 2000]
    assert [draws(10**6, size) for size in (20, 100, 500)] == [500, 600, 2000]
    assert draws(10**6, 20, dataclasses.replace(METHOD, draws=700)) == 700


def problem_of(rows, size=SIZE):
    return contract.problem_of(MODEL, rows, size)


def subsample(problem):
    return uniform_selection(jax.random.key(1), problem, SEEN)


def exact_error(problem, rows, z, totals):
    """½Var of what is wrong with the totals, by every row at every draw."""
    margin = (rows["x"] @ z.T) * np.where(rows["y"] > 0, 1.0, -1.0)[:, None]
    exact = -np.logaddexp(0.0, -margin).sum(axis=0)
    return 0.5 * np.var(exact - totals, ddof=1)


def posterior_draws(rows, n=500):
    fit = decoct.laplace(MODEL, rows)
    return np.random.default_rng(1).multivariate_normal(fit.mean, fit.cov, size=n)


def test_the_rounds_that_fill_the_size_see_all_rows_at_a_few_draws(rows):
    coreset = decoct.build(MODEL, rows, size=SIZE, method=METHOD)
    whole = [one["draws_on_all_rows"] for one in coreset.report.rounds]
    assert whole == [0, 0, settings.CHECK_DRAWS]
    assert 0.0 < coreset.report.rounds[-1]["totals_error"] < coreset.report.predicted_kl
    draws = coreset.report.rounds[-1]["draws"]
    assert coreset.report.evaluations < 0.6 * N * draws


def test_a_checked_pass_says_how_far_its_totals_are_off(rows):
    problem, z = problem_of(rows), posterior_draws(rows)
    seen = subsample(problem)
    found = subsampled_pass.check_pass(jax.random.key(0), problem, seen, z, 500)
    off = exact_error(problem, rows, z, found.totals)
    assert 0.7 * off < found.error < 3.0 * off + 1e-15
    assert found.error < 1e-6
    assert found.pool.indices.max() > 0.9 * N  # of the whole table, not of the subsample
    assert len(np.intersect1d(found.pool.indices, seen.indices)) < 0.5 * len(found.pool.indices)


def one_sided(few=10):
    """Ten rows alone inform a coefficient, and far from quadratically; no subsample has them."""
    table = logistic()
    table["x"][:, 3] = 0.0
    seen = subsample(problem_of(table))
    lacked = np.setdiff1d(np.arange(N), seen.indices)[:few]
    table["x"][lacked, 3], table["y"][lacked] = 3.0, 1.0
    return table, seen


def test_rows_that_the_subsample_lacks_are_noticed():
    table, seen = one_sided()
    problem, z = problem_of(table), posterior_draws(table)
    seen = seen._replace(rows=problem.potentials.rows.take(seen.indices))
    halves = [
        (half, problem.potentials.restrict(half).totals(z))
        for half in subsampled_pass._halves(jax.random.key(0), seen)
    ]
    estimate = totals_from_halves(problem.potentials, z, halves)
    assert estimate.error < subsampled_pass.MAX_TOTALS_ERROR  # U by itself sees nothing
    assert exact_error(problem, table, z, estimate.totals) > 100 * subsampled_pass.MAX_TOTALS_ERROR
    assert subsampled_pass.check_pass(jax.random.key(0), problem, seen, z, 500) is None


def test_where_a_checked_pass_will_not_do_all_rows_are_seen_at_all_draws():
    table, _ = one_sided()
    method = dataclasses.replace(METHOD, max_rounds=8)
    coreset = decoct.build(MODEL, table, size=SIZE, method=method)
    last = coreset.report.rounds[-1]
    assert last["draws_on_all_rows"] == last["draws"]
    assert coreset.report.status.ok


def test_a_kl_build_is_certified_at_all_draws(rows):
    coreset = decoct.build(MODEL, rows, kl=0.01, method=METHOD)
    whole = [one["draws_on_all_rows"] for one in coreset.report.rounds]
    draws = coreset.report.rounds[-1]["draws"]
    assert whole[-2:] == [settings.CHECK_DRAWS, draws]


def test_a_small_goal_is_not_missed_for_estimated_totals(rows):
    """With a goal below what totals may be off, the rounds that fit see all rows at all draws."""
    coreset = decoct.build(MODEL, rows, kl=1e-9, method=dataclasses.replace(METHOD, max_rounds=3))
    thinned = [one for one in coreset.report.rounds if "totals_error" in one]
    assert all(one["totals_error"] <= 1e-10 for one in thinned)


def test_few_draws_are_evaluated_on_all_rows(rows):
    method = dataclasses.replace(METHOD, draws=64)
    coreset = decoct.build(MODEL, rows, size=10, method=method)
    whole = [one["draws_on_all_rows"] for one in coreset.report.rounds]
    assert set(whole) <= {0, 64}
    assert not any("totals_error" in one for one in coreset.report.rounds)


def test_a_table_sorted_by_outcome_has_halves_that_are_random(rows):
    order = np.argsort(rows["y"], kind="stable")
    table = {name: values[order] for name, values in rows.items()}
    problem = problem_of(table)
    seen = subsample(problem)
    counts = [half.rows["y"].sum() for half in subsampled_pass._halves(jax.random.key(3), seen)]
    # every other row of the sorted subsample would differ by at most one
    assert 2 < abs(counts[0] - counts[1]) < 5.0 * np.sqrt(SEEN) / 2.0


def test_a_bad_potential_in_the_subsample_is_named_by_its_row(rows):
    """NaN at one row of the subsample, which is shuffled and cut in halves."""
    seen = subsample(problem_of(rows))
    row = int(seen.indices[777])
    marked = {**rows, "number": np.arange(N)}

    def log_likelihood(params, rows):
        bad = (rows["number"] == row) & (params["b"] > 0.5)
        return jnp.where(bad, jnp.nan, -0.5 * (rows["y"] - params["b"]) ** 2)

    model = decoct.Model(log_likelihood, lambda p: -0.5 * p["b"] ** 2, {"b": 0.0})
    draws = np.linspace(0.0, 1.0, 20)[:, None]
    for numbers, named in ((None, row), (7 * np.arange(N), 7 * row)):
        whole = Potentials(model, decoct.rows(marked), numbers=numbers)
        problem = Problem(whole, Laplace(), (SIZE,))
        seen = seen._replace(rows=whole.rows.take(seen.indices))
        words = f"log-likelihood of row {named} is nan at draw"
        for estimate in (subsampled_pass.subsample_pass, subsampled_pass.check_pass):
            with pytest.raises(ModelError, match=words):
                estimate(jax.random.key(0), problem, seen, draws, 500)
        with pytest.raises(ModelError, match=words):
            whole.curvature_of(Pool(seen.indices, seen.rows), np.ones(1))
