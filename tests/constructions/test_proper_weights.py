"""Weights that leave the site a precision without negative eigenvalues."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import decoct
from decoct.constructions import IteratedHilbert
from decoct.constructions.base import Selection, uniform_selection
from decoct.constructions.iterated_hilbert.expansion import expand_table
from decoct.constructions.iterated_hilbert.proper_weights import (
    INSIDE,
    ROOM,
    WholeCurvature,
    proper_weights,
)
from decoct.constructions.iterated_hilbert.tangent_problem import SplitTangent
from decoct.formats.site import site_from_dict, site_to_dict
from decoct.models import LogisticRegression, PoissonRegression
from decoct.passes.potentials import Curvature
from tests.constructions.contract import problem_of

SIZES = [1, 2, 5, 10]
N, D = 500, 12


@pytest.fixture(scope="module")
def rows():
    """Rare indicators: the rows of one level take more curvature than all of them have."""
    rng = np.random.default_rng(0)
    x = (rng.random((N, D)) < 0.03).astype(float)
    x[:, 0] = 1.0
    return {"x": x, "y": (rng.random(N) < 1.0 / (1.0 + np.exp(2.0 * x[:, 0]))).astype(int)}


@pytest.fixture(scope="module")
def tangent_problem(rows):
    return round_with_a_site(LogisticRegression(prior_scale=3.0), rows, SIZES)


def round_with_a_site(model, rows, sizes):
    """The problem of a round whose draws are of the site alone."""
    problem = problem_of(model, rows, *sizes)
    everything = uniform_selection(jax.random.key(0), problem, problem.n_rows)
    expanded = expand_table(problem, everything, None, jax.random.key(0))
    expanded = expanded._replace(has_third_order=False)  # rows have to do it all
    nothing = everything.pool.some(slice(0, 0))
    d = problem.dim
    site = expanded.site(Curvature(0.0, np.zeros(d), np.zeros((d, d))))
    alone = Selection(nothing.indices, np.zeros(0), nothing.rows, site)
    z = problem.draw(jax.random.key(1), alone, 800).flat[:800]
    totals = problem.potentials.totals(z)
    tangent = SplitTangent.of(problem, z, totals, everything.pool, alone, expanded=expanded)
    return problem, expanded, tangent


def least_eigenvalue(problem, expanded, selection):
    """Of H − Σ w_m H_m, in units of the posterior's precision."""
    rows = problem.potentials.expand_rows(selection.rows, selection.weights, expanded.at)
    factor = np.linalg.inv(np.linalg.cholesky(expanded.precision)).T
    return np.linalg.eigvalsh(factor.T @ (rows.hessian - expanded.sums.hessian) @ factor)[0]


def test_plain_least_squares_takes_more_curvature_than_there_is(tangent_problem):
    problem, expanded, tangent = tangent_problem
    path = tangent.pursue(max(SIZES), sizes=tuple(SIZES), exchanges=5).path
    worst = {}
    for m in SIZES:
        kept = tangent.pool.some(path[m].indices)
        plain = Selection(kept.indices, path[m].weights, kept.rows)
        worst[m] = least_eigenvalue(problem, expanded, plain)
    assert min(worst.values()) < -0.02


def test_the_weights_of_a_coreset_do_not(tangent_problem):
    problem, expanded, tangent = tangent_problem
    fits = tangent.pursue(max(SIZES), sizes=tuple(SIZES), exchanges=5)
    for m in SIZES:
        found = fits.with_site(fits.path[m]).selection
        assert 1 <= found.size <= m
        assert (found.weights > 0.0).all()
        assert least_eigenvalue(problem, expanded, found) > -1e-6
        values = np.linalg.eigvalsh(found.site.precision)
        assert values[0] >= -1e-12 * values[-1]


@pytest.mark.parametrize("seed", range(3))
def test_exchanges_find_rows_for_the_constraints(seed):
    """Ten rows carry three parameters to 1e-8 nats; new weights for them lose most of that."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(N, 2)), np.ones(N)])
    rate = np.log1p(np.exp(x @ np.array([0.5, -0.3, 3.0])))
    _, _, tangent = round_with_a_site(PoissonRegression(), {"x": x, "y": rng.poisson(rate)}, [10])
    fits = tangent.pursue(10, sizes=(10,), exchanges=20)
    weighed_again = replace(fits, exchanges=0).with_site(fits.path[10]).predicted_kl
    assert weighed_again > 10 * tangent.predict_kl(fits.path[10])
    assert fits.with_site(fits.path[10]).predicted_kl < weighed_again / 5


def test_the_site_of_a_build_is_a_gaussian_at_every_size(rows):
    path = decoct.path(
        LogisticRegression(prior_scale=3.0), rows, SIZES, method=IteratedHilbert(site=True)
    )
    for coreset, size in zip(path, SIZES, strict=True):
        assert coreset.size <= size
        values = np.linalg.eigvalsh(coreset.site.precision)
        assert values[0] >= -1e-12 * values[-1]
        site_from_dict(site_to_dict(coreset.site))  # refuses what is no Gaussian


def one_dimension(curvatures, whole, vectors, target):
    """Weights and the precision that they leave, where all curvatures are numbers."""
    curvatures = np.asarray(curvatures, dtype=float)
    free = np.linalg.lstsq(np.asarray(vectors).T, np.asarray(target), rcond=None)[0]

    def curvature_of(weights):
        return np.array([[weights @ curvatures]])

    def along(directions):
        return curvatures[:, None] * directions[:, 0] ** 2

    of_all = WholeCurvature(np.array([[whole]]), np.eye(1))
    weights = proper_weights(vectors, target, free, curvature_of, along, of_all)
    return free, weights, whole - curvature_of(weights)[0, 0]


def test_weights_that_leave_enough_are_those_of_least_squares():
    free, weights, left = one_dimension([1.0, 1.0], 10.0, np.eye(2, 4), np.array([2.0, 3.0, 0, 0]))
    assert left == pytest.approx(5.0)
    np.testing.assert_array_equal(weights, free)


def test_weights_that_leave_too_little_are_the_nearest_that_do():
    """min (w₁ − 2)² + (w₂ − 3)² with w₁ + w₂ ≤ (1 − ε) 4: both less by the same amount."""
    _, weights, left = one_dimension([1.0, 1.0], 4.0, np.eye(2, 4), np.array([2.0, 3.0, 0, 0]))
    most = (1.0 - INSIDE) * 4.0
    excess = 0.5 * (5.0 - most)
    np.testing.assert_allclose(weights, [2.0 - excess, 3.0 - excess], rtol=1e-5)
    assert left == pytest.approx(INSIDE * 4.0, rel=1e-3)


def test_rows_that_bend_the_other_way_are_no_hindrance():
    """The second row gives curvature back; no cut is needed where it has the weight it wants."""
    free, weights, left = one_dimension([1.0, -1.0], 1.0, np.eye(2, 4), np.array([3.0, 2.5, 0, 0]))
    assert left == pytest.approx(0.5)
    np.testing.assert_array_equal(weights, free)


def test_no_cut_is_made_where_all_rows_together_bend_the_other_way():
    """Not log-concave there: no weights leave a positive precision, and those given stay."""
    free, weights, _ = one_dimension([1.0, 1.0], -4.0, np.eye(2, 4), np.array([2.0, 3.0, 0, 0]))
    np.testing.assert_array_equal(weights, free)


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_few_parameters_are_limited_in_those_alone(seed):
    """As many directions as there are negative eigenvalues; in a flat one of H there is none."""
    rng = np.random.default_rng(seed)
    d, few = 40, 8
    root = rng.normal(size=(d, 2 * d))
    root[-1] = 0.0
    whole = root @ root.T
    row = rng.normal(size=(few, few))
    places = rng.choice(d - 1, few, replace=False)
    of_rows = np.zeros((d, d))
    of_rows[np.ix_(places, places)] = 20.0 * row @ row.T
    curvature = WholeCurvature(whole, whole + np.eye(d))
    directions = curvature.improper_directions(of_rows)
    negative = np.linalg.eigvalsh(whole - of_rows)
    assert 0 < len(directions) == (negative < -1e-6).sum()
    values = np.linalg.eigvalsh(directions @ (whole - of_rows) @ directions.T)
    assert (values < 0.0).all()
    assert len(curvature.improper_directions(of_rows / 20.0 / d)) == 0
    share = curvature.largest_factor(of_rows)
    least = np.linalg.eigvalsh(whole - (1.0 - 2.0 * INSIDE) * share * of_rows)[0]
    assert least > -1e-9 > np.linalg.eigvalsh(whole - (1.0 + 2.0 * INSIDE) * share * of_rows)[0]


def test_where_all_rows_bend_the_other_way_some_may_take_a_little():
    """Not log-concave there: no weights leave a positive precision, and the site lacks as much."""
    turned = np.array([[0.6, -0.8], [0.8, 0.6]])
    precision = np.diag([2.0, 0.5])
    half = np.sqrt(precision) @ turned
    curvature = WholeCurvature.of(half @ np.diag([3.0, -1.0]) @ half.T, precision)
    np.testing.assert_allclose(curvature.hessian, half @ np.diag([3.0, ROOM]) @ half.T, atol=1e-12)
    of_rows = half @ np.diag([2.0, 0.9 * ROOM]) @ half.T
    assert len(curvature.improper_directions(of_rows)) == 0
    assert len(curvature.improper_directions(1.2 * of_rows)) == 1
    assert curvature.largest_factor(1.2 * of_rows) == 1.0


def test_no_row_takes_too_much():
    curvature = WholeCurvature(np.eye(8), np.eye(8))
    assert len(curvature.improper_directions(np.zeros((8, 8)))) == 0
    assert curvature.largest_factor(np.zeros((8, 8))) == 1.0


def test_an_inverse_that_is_rounding_is_not_used():
    """The covariate is constant in each group: the prior alone tells slope and groups apart."""
    rng = np.random.default_rng(0)
    group = rng.integers(8, size=200)
    x = np.column_stack([np.ones(200), rng.normal(size=8)[group], np.eye(8)[group]])
    whole = x.T @ x
    assert WholeCurvature(whole, whole + np.eye(10) / 300.0**2)._inverse is None
    assert WholeCurvature(whole, whole + np.eye(10))._inverse is not None
