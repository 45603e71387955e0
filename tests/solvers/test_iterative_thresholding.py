"""A-IHT against a dense reference written from the published steps alone."""

import itertools

import numpy as np
import pytest

from decoct.solvers import Budget, IterativeThresholding
from decoct.solvers.nnls import UnitVectors
from tests.picks import Picks
from tests.solvers.contract import ByTargetContract, SinglePrecisionContract, rows_of


class TestIterativeThresholdingContract(ByTargetContract, SinglePrecisionContract):
    solver = IterativeThresholding()

    @pytest.mark.parametrize("limits", [(300, 5), (4, None), (5, 3)])
    def test_the_smaller_limit_of_iterations_holds_for_each_size(self, limits):
        own, budget = limits
        picks = Picks()
        problem = UnitVectors.scaled(vectors := rows_of("plain", 50, 20, 4), vectors.sum(axis=0))
        solver = IterativeThresholding(iterations=own, tolerance=0.0)
        with picks:
            path = solver.solve(problem, Budget((3, 8), budget), np.random.default_rng(0))
        count = min(own, budget or own)
        assert picks.done == [1] * (2 * count)
        for m, one in path.items():
            tried = [w for w, _ in zip(solver.steps(problem, m), range(count), strict=False)]
            assert one.residual_norm == min(w.residual_norm for w in tried if len(w.indices))


class TestWithoutDebiasContract(ByTargetContract, SinglePrecisionContract):
    solver = IterativeThresholding(debias=False)


def largest(values, k):
    """0/1 mask of the k largest."""
    mask = np.zeros(len(values), dtype=bool)
    mask[np.argsort(-values, kind="stable")[:k]] = True
    return mask


def momentum(A, b, w, before):
    """z = w + τ(w − w_before), τ by exact line search."""
    moved = A @ (w - before)
    return w + (b - A @ w) @ moved / (moved @ moved) * (w - before)


def step(A, b, z, k, debias):
    """One iteration of Algorithm II (I without ``debias``) on columns A (S, n), all dense."""
    u = A.T @ (b - A @ z)
    active = (z != 0.0) | largest(np.where(z != 0.0, -1.0, np.abs(u)), k)
    on = np.where(active, u, 0.0)
    stepped = z + (on @ on) / np.square(A @ on).sum() * u
    w = np.where(largest(stepped, k), np.maximum(stepped, 0.0), 0.0)
    if debias:
        on = np.where(w > 0.0, A.T @ (b - A @ w), 0.0)
        w = np.maximum(w + (on @ on) / np.square(A @ on).sum() * on, 0.0)
    return w


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("kind", ["plain", "scales", "logistic"])
@pytest.mark.parametrize("k", [3, 10, 60])
@pytest.mark.parametrize("seed", range(2))
def test_every_iterate_is_that_of_the_definition(debias, kind, k, seed):
    vectors = rows_of(kind, 60, 25, seed)
    target, A = vectors.sum(axis=0), vectors.T
    solver = IterativeThresholding(iterations=40, tolerance=0.0, debias=debias)
    ours = [one.dense(60) for one in solver.steps(UnitVectors.scaled(vectors, target), k)]
    assert len(ours) == 40 or (ours[-1] == ours[-2]).all()
    # From its own last two iterates: momentum blows rounding up over many steps.
    before = now = np.zeros(60)
    for number, after in enumerate(ours):
        z = momentum(A, target, now, before) if number else now
        w = step(A, target, z, k, debias)
        np.testing.assert_allclose(after, w, rtol=1e-10, atol=1e-10 * w.max())
        before, now = now, after


@pytest.mark.parametrize("debias", [True, False])
def test_the_first_iterates_follow_the_definition_from_the_start(debias):
    vectors = rows_of("logistic", 60, 25, 0)
    target, A = vectors.sum(axis=0), vectors.T
    solver = IterativeThresholding(iterations=15, tolerance=0.0, debias=debias)
    before = z = np.zeros(60)
    for one in solver.steps(UnitVectors.scaled(vectors, target), 10):
        w = step(A, target, z, 10, debias)
        np.testing.assert_allclose(one.dense(60), w, rtol=1e-10, atol=1e-10 * w.max())
        before, z = w, momentum(A, target, w, before)


def test_it_ends_where_the_weights_stand_still():
    vectors = rows_of("plain", 60, 25, 0)
    problem = UnitVectors.scaled(vectors, vectors.sum(axis=0))
    ours = [one.dense(60) for one in IterativeThresholding().steps(problem, 8)]
    assert 2 < len(ours) < 300
    change = [np.linalg.norm(b - a) / np.linalg.norm(b) for a, b in itertools.pairwise(ours)]
    assert change[-1] <= 1e-5 < min(change[:-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"iterations": 0}, "iterations must be a whole number, at least 1, not 0"),
        ({"tolerance": -1.0}, "tolerance must not be negative"),
        ({"tolerance": np.nan}, "tolerance must not be negative"),
    ],
)
def test_wrong_options_are_sentences(options, message):
    with pytest.raises(ValueError, match=message):
        IterativeThresholding(**options)
