"""Rows chosen group by group: many small groups with counts, which one fit of all rows mixes up."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.constructions.base import Problem
from decoct.constructions.iterated_hilbert import by_group, fits
from decoct.passes.row_samples import RowSample, SampledRows
from decoct.solvers import nnls

N, G, GOAL = 2400, 60, 1e-4


def log_likelihood(p, r):
    eta = p["a"] + p["u"][r["g"]]
    return r["y"] * eta - jnp.exp(eta)


def log_prior(p):
    scale = jnp.exp(p["s"])
    of_effects = -0.5 * ((p["u"] / scale) ** 2).sum() - G * p["s"]
    return of_effects - 0.5 * p["a"] ** 2 - 0.5 * scale**2 + p["s"]


@pytest.fixture(scope="module")
def made():
    rng = np.random.default_rng(0)
    group = rng.integers(G, size=N)
    rate = np.exp(-1.0 + 0.5 * rng.normal(size=G))
    rows = {"g": group, "y": rng.poisson(rate[group]).astype(float)}
    model = decoct.Model(
        log_likelihood,
        log_prior,
        {"a": np.zeros(()), "s": np.zeros(()), "u": np.zeros(G)},
        likelihood_params=lambda p: {"a": p["a"], "u": p["u"]},
    )
    found, of = [], by_group.FitByGroup.of
    patch = pytest.MonkeyPatch()
    patch.setattr(fits, "DRAWS_A_ROW", 100)  # one fit of all rows has at most 16
    patch.setattr(by_group.FitByGroup, "of", lambda split: found.append(of(split)) or found[-1])
    coreset = decoct.build(model, rows, kl=GOAL, seed=0)
    patch.undo()
    return rows, coreset, found[0]


def test_a_kl_is_certified_with_about_a_row_a_group(made):
    rows, coreset, _ = made
    assert coreset.report.status is decoct.Status.REACHED
    assert coreset.size <= 2 * G
    draws = coreset.sample(draws=500, chains=4, seed=1)
    assert decoct.check(coreset, rows, draws).kl <= GOAL


def test_totals_of_the_groups_add_up_to_those_of_the_table(made):
    fit = made[2]
    split, n = fit.tangent, fit.totals.shape[1]
    phi = split.problem.potentials.to_likelihood(split.draws[:n])
    left = split.totals[:n] - split.expanded.quadratic(phi)
    left -= split.expanded.basis(phi) @ split.expanded.sums.thirds
    expected = (left - left.mean()) / np.sqrt(n - 1)
    np.testing.assert_allclose(fit.totals.sum(axis=0), expected, atol=1e-9)


def test_each_group_is_its_own_least_squares(made):
    fit = made[2]
    whole = fit.solution(len(fit.steps))
    for group in np.unique(fit.groups[whole.indices])[:20]:
        own = fit.groups[whole.indices] == group
        rows = np.flatnonzero(fit.groups == group)
        found = nnls(fit.vectors[rows], fit.totals[group])
        left = fit.totals[group] - whole.weights[own] @ fit.vectors[whole.indices[own]]
        assert np.linalg.norm(left) <= found.residual_norm * (1 + 1e-6) + 1e-9
    vectors, _ = fit.equations(whole)
    own, groups = fit.vectors[whole.indices], fit.groups[whole.indices]
    apart = np.where(groups[:, None] == groups, own @ own.T, 0.0)
    np.testing.assert_allclose(vectors @ vectors.T, apart, atol=1e-12)


def curvature_taken(fit, solution):
    """The part of every group's curvature that a solution's rows have."""
    potentials, expanded = fit.tangent.problem.potentials, fit.tangent.expanded
    rows = fit.tangent.pool.some(solution.indices).rows
    of_rows = potentials.expand_rows(rows, solution.weights, expanded.at).hessian
    return np.diag(of_rows) / np.diag(expanded.sums.hessian)


def test_rows_of_a_bounded_fit_leave_curvature_to_the_site(made):
    """One row with the weight of all has all curvature of a group whose rows are alike."""
    fit, bounded = made[2], made[2].bounded
    whole, other = fit.solution(len(fit.steps)), bounded.solution(len(bounded.steps))
    taken = [curvature_taken(one, found) for one, found in ((fit, whole), (bounded, other))]
    groups = np.unique(fit.groups[whole.indices])
    np.testing.assert_allclose(taken[0][groups], 1.0, rtol=1e-6)
    np.testing.assert_allclose(taken[1][groups], by_group.MOST_CURVATURE, atol=0.1)
    assert whole.residual_norm < other.residual_norm < 0.5 * np.linalg.norm(fit.totals)
    left = fit.totals.copy()
    np.add.at(left, fit.groups[other.indices], -other.weights[:, None] * fit.vectors[other.indices])
    assert np.linalg.norm(left) == pytest.approx(other.residual_norm)


def test_the_bounded_fit_is_tried_where_the_site_costs_much(made, monkeypatch):
    fit = replace(made[2])
    free, bounded, with_site = fit.best(), fit.bounded.best(), type(fit).with_site
    assert free.predicted_kl < bounded.predicted_kl

    def costly(self, solution):
        found = with_site(self, solution)
        return found if self.is_bounded else found._replace(predicted_kl=100.0)

    monkeypatch.setattr(type(fit), "with_site", costly)
    assert fit.best().predicted_kl == bounded.predicted_kl
    goal = 1.01 * bounded.predicted_kl
    assert fit.smallest(goal, N).predicted_kl <= goal


def test_groups_with_the_most_to_gain_come_first(made):
    fit = made[2]
    left = [fit.solution(n).residual_norm for n in range(1, len(fit.steps) + 1)]
    sizes = [step.size for step in fit.steps]
    assert (np.diff(left) < 0.0).all()
    assert (np.diff(sizes) > 0).all()
    rates = -np.diff(np.square(left)) / np.diff(sizes)
    assert (np.diff(rates) <= 1e-12).all()


def test_a_fit_of_all_rows_to_as_many_draws_is_farther_away(made):
    fit = made[2]
    n = next(i for i, step in enumerate(fit.steps) if step.size >= G // 2)
    chosen = fit.solution(n + 1)
    together = fit.tangent.pursue(len(chosen.indices), draws=slice(0, by_group.DRAWS))
    apart = fit.tangent.predict_kl(chosen)
    assert apart < min(together.predicted_kl.values())


def test_a_sample_of_rows_stands_for_the_table(made):
    rows, _, fit = made
    halves = []
    for first in (0, 1):
        some = slice(first, None, 2)
        kept = {name: np.asarray(column)[some] for name, column in rows.items()}
        numbers = np.arange(N)[some]
        halves.append(SampledRows(numbers, kept, np.full(len(numbers), 2.0)))
    expanded = fit.tangent.expanded._replace(sample=RowSample(*halves))
    again = by_group.FitByGroup.of(replace(fit.tangent, expanded=expanded))
    np.testing.assert_allclose(again.totals, fit.totals, atol=1e-9)


def test_a_build_with_a_size_keeps_the_better_of_both_fits(made, monkeypatch):
    rows, coreset, _ = made
    found = {}
    monkeypatch.setattr(Problem, "has_third_order", False)  # which leaves little to either
    for draws_a_row in (1, 100):  # with 1, one fit of all rows is all
        monkeypatch.setattr(fits, "DRAWS_A_ROW", draws_a_row)
        built = decoct.build(coreset.model, rows, size=24, seed=0)
        found[draws_a_row] = built.report.predicted_kl
    assert found[100] < found[1]


def test_groups_are_nested_or_crossed():
    first, second = np.divmod(np.arange(40), 10)
    assert fits.are_nested(np.column_stack([first, 4 + second + 10 * first]))
    assert not fits.are_nested(np.column_stack([first, 4 + second]))
