"""Non-negative least squares: SciPy's objective, optimality, degenerate and bad problems."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import nnls as scipy_nnls

from decoct.solvers.nnls import UnitVectors, nnls
from decoct.solvers.orthogonal_pursuit import orthogonal_pursuit
from tests.solvers.contract import KINDS, rows_of


def assert_optimal(vectors, target):
    """Same objective as SciPy, to 1e-10 of it or to round-off of the target."""
    ours = nnls(vectors, target)
    vectors, target = np.asarray(vectors, dtype=float), np.asarray(target, dtype=float)
    _, theirs = scipy_nnls(vectors.T, target)
    scale = np.linalg.norm(target)
    assert ours.residual_norm == pytest.approx(theirs, rel=1e-10, abs=1e-12 * scale)
    recomputed = np.linalg.norm(target - ours.dense(len(vectors)) @ vectors)
    assert ours.residual_norm == pytest.approx(recomputed, rel=1e-9, abs=1e-11 * scale)
    assert (ours.weights > 0).all()
    assert (np.diff(ours.indices) > 0).all()
    assert len(ours.indices) <= min(np.shape(vectors))
    return ours


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n", "S", "rank"), [(30, 50, 30), (50, 30, 30), (50, 30, 4), (6, 6, 2)])
def test_the_objective_is_scipys(n, S, rank, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, rank)) @ rng.normal(size=(rank, S))
    assert_optimal(vectors, rng.normal(size=S) + vectors[:3].sum(axis=0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "S"), [(20, 40), (40, 20), (1, 5), (60, 60)])
def test_the_objective_is_scipys_for_every_kind_of_rows(n, S, kind):
    vectors = rows_of(kind, n, S, 0)
    target = vectors[: n // 2].sum(axis=0) + np.random.default_rng(1).normal(size=S)
    assert_optimal(vectors, target)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 25), st.integers(1, 25), st.integers(0, 10_000), st.sampled_from(KINDS))
def test_the_kkt_conditions_hold(n, S, seed, kind):
    vectors = rows_of(kind, n, S, seed)
    target = vectors[: n // 2].sum(axis=0) + np.random.default_rng(seed).normal(size=S)
    solution = nnls(vectors, target)
    norms = np.linalg.norm(vectors, axis=1)
    gradient = vectors @ (target - solution.dense(n) @ vectors) / np.where(norms > 0, norms, 1.0)
    scale = np.linalg.norm(target)
    assert gradient.max() <= 1e-8 * scale
    assert np.abs(gradient[solution.indices]).max(initial=0.0) <= 1e-8 * scale


# Small whole numbers: ties, duplicates, opposite, zero and dependent vectors, all exact.
SMALL = st.tuples(st.integers(1, 9), st.integers(1, 7)).flatmap(
    lambda shape: st.tuples(
        hnp.arrays(np.float64, shape, elements=st.integers(-2, 2).map(float)),
        hnp.arrays(np.float64, shape[1:], elements=st.integers(-3, 3).map(float)),
    )
)


@settings(deadline=None, max_examples=300)
@given(SMALL)
def test_degenerate_problems_have_scipys_objective(problem):
    assert_optimal(*problem)


@settings(deadline=None, max_examples=60)
@given(SMALL, st.integers(0, 2**32 - 1))
def test_order_and_units_of_the_vectors_do_not_matter(problem, seed):
    vectors, target = problem
    rng = np.random.default_rng(seed)
    order, units = rng.permutation(len(vectors)), 10.0 ** rng.uniform(-3, 3, len(vectors))
    usual, other = nnls(vectors, target), nnls((vectors * units[:, None])[order], target)
    scale = np.linalg.norm(target)
    assert other.residual_norm == pytest.approx(usual.residual_norm, abs=1e-10 * scale)


def test_a_target_in_the_cone_is_met_and_one_opposite_to_it_gets_nothing():
    vectors = np.abs(np.random.default_rng(0).normal(size=(12, 20)))
    inside = assert_optimal(vectors, np.arange(12.0) @ vectors)
    assert inside.residual_norm < 1e-12 * np.linalg.norm(np.arange(12.0) @ vectors)
    np.testing.assert_allclose(inside.dense(12), np.arange(12.0), atol=1e-9)
    opposite = nnls(vectors, -np.ones(20))
    assert opposite.indices.size == 0
    assert opposite.residual_norm == pytest.approx(np.sqrt(20.0))


@pytest.mark.parametrize(
    ("vectors", "target"),
    [
        (np.zeros((4, 3)), np.ones(3)),
        (np.ones((4, 3)), np.zeros(3)),
        (np.ones((1, 1)), np.ones(1)),
        (np.ones((50, 1)), np.ones(1)),
        (np.ones((5, 3), dtype=int), [1, 2, 3]),
        (np.ones((5, 3), dtype=np.float32), np.ones(3, dtype=np.float32)),
    ],
)
def test_smallest_problems_and_other_types(vectors, target):
    assert_optimal(vectors, target)


def test_the_kkt_conditions_hold_where_the_solution_is_not_unique():
    rng = np.random.default_rng(0)
    vectors = np.repeat(rng.normal(size=(10, 8)), 3, axis=0)
    target = vectors[::3][:4].sum(axis=0) + 0.5 * rng.normal(size=8)
    solution = assert_optimal(vectors, target)
    gradient = vectors @ (target - solution.dense(30) @ vectors)
    assert gradient.max() < 1e-10
    assert np.abs(gradient[solution.indices]).max() < 1e-10


def test_nearly_collinear_vectors():
    rng = np.random.default_rng(0)
    for spread in (1e-3, 1e-6, 1e-9):
        vectors = rng.normal(size=20) + spread * rng.normal(size=(15, 20))
        assert_optimal(vectors, vectors[:7].sum(axis=0) + rng.normal(size=20))
    vectors = rng.normal(size=40) + 1e-7 * rng.normal(size=(60, 40))
    inside = vectors[:20].sum(axis=0)
    assert nnls(vectors, inside).residual_norm <= 1e-9 * np.linalg.norm(inside)


def test_the_number_of_iterations_is_a_budget():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 40))
    target = vectors.sum(axis=0)
    budget = nnls(vectors, target, max_iterations=3)
    assert len(budget.indices) <= 3
    assert budget.residual_norm > nnls(vectors, target).residual_norm


@pytest.mark.parametrize(
    ("vectors", "target", "message"),
    [
        (np.ones(3), np.ones(3), r"must be \(n, S\)"),
        (np.ones((2, 3, 4)), np.ones(3), r"must be \(n, S\)"),
        (np.ones((2, 3)), np.ones((3, 1)), r"must be \(n, S\)"),
        (np.ones((2, 3)), np.ones(2), r"must be \(n, S\)"),
        (np.array([[1.0, 1.0], [1.0, np.nan]]), np.ones(2), "Vector 1"),
        (np.array([[1.0, 1.0], [-np.inf, 1.0]]), np.ones(2), "Vector 1"),
        (np.ones((2, 2)), np.array([1.0, np.nan]), "target"),
    ],
)
def test_bad_input_names_what_is_bad(vectors, target, message):
    with pytest.raises(ValueError, match=message):
        nnls(vectors, target)


def test_rows_below_the_rounding_of_the_target_are_not_used():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(6, 40))
    vectors[4] *= 1e-150
    vectors[5] = 0.0
    target = vectors[0] + 1e151 * vectors[4]
    problem = UnitVectors.scaled(vectors, target)
    np.testing.assert_array_equal(problem.usable, [True] * 4 + [False] * 2)
    path = orthogonal_pursuit(vectors, target, 4)
    assert all(solution.weights.max() < 1e15 for solution in path.values())
