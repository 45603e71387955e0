"""Importance sampling: the weights given the picks, and the moments of Eq. 4.1."""

import numpy as np
import pytest

from decoct.solvers import Budget, ImportanceSampling
from decoct.solvers.nnls import UnitVectors
from tests.solvers.contract import SinglePrecisionContract, rows_of

REPEATS = 4000


class TestImportanceSamplingContract(SinglePrecisionContract):
    solver = ImportanceSampling()

    @pytest.mark.parametrize("kind", ["plain", "scales", "duplicates", "logistic", "zeros"])
    @pytest.mark.parametrize("seed", range(3))
    def test_weights_are_those_of_the_counts(self, kind, seed):
        vectors = rows_of(kind, 40, 12, seed)
        norms = np.linalg.norm(vectors, axis=1)
        sizes, before = (1, 7, 200), np.zeros(40)
        for m, one in self.solve(vectors, sizes=sizes).items():
            # w_n = (σ/σ_n)(M_n/M), hence M_n = M w_n σ_n/σ
            counts = m * one.dense(40) * norms / norms.sum()
            np.testing.assert_allclose(counts, np.round(counts), rtol=0, atol=1e-10)
            assert np.round(counts).sum() == m
            assert (np.round(counts) >= before).all()  # a smaller size's draws are the first
            before = np.round(counts)


@pytest.fixture(scope="module", params=["plain", "logistic"])
def repeated(request):
    """Vectors, M, and dense weights of many independent runs."""
    vectors, M = rows_of(request.param, 12, 6, 0), 5
    problem, rng = UnitVectors.scaled(vectors, vectors.sum(axis=0)), np.random.default_rng(1)
    solver, budget = ImportanceSampling(), Budget((M,))
    weights = [solver.solve(problem, budget, rng)[M].dense(12) for _ in range(REPEATS)]
    return vectors, M, np.array(weights)


def test_the_weights_are_unbiased(repeated):
    vectors, M, weights = repeated
    share = np.linalg.norm(vectors, axis=1)
    share = share / share.sum()
    # w_n = M_n/(M p_n) with M_n ~ Binomial(M, p_n)
    deviation = np.sqrt((1.0 - share) / (M * share) / REPEATS)
    assert (np.abs(weights.mean(axis=0) - 1.0) < 4.5 * deviation).all()
    np.testing.assert_allclose(weights.var(axis=0), (1.0 - share) / (M * share), rtol=0.25)


def test_the_squared_error_has_its_expectation(repeated):
    """E‖Σ w_n g_n − Σ g_n‖² = σ²η²/M, η² = 1 − ‖b‖²/σ²."""
    vectors, M, weights = repeated
    target, sigma = vectors.sum(axis=0), np.linalg.norm(vectors, axis=1).sum()
    squares = np.square(weights @ vectors - target).sum(axis=1)
    expected = sigma**2 * (1.0 - (target @ target) / sigma**2) / M
    assert abs(squares.mean() - expected) < 4.5 * squares.std() / np.sqrt(REPEATS)


def test_the_generator_is_used():
    vectors = rows_of("plain", 40, 12, 0)
    problem = UnitVectors.scaled(vectors, vectors.sum(axis=0))
    first, other = (
        ImportanceSampling().solve(problem, Budget((10,)), np.random.default_rng(seed))[10]
        for seed in (0, 1)
    )
    assert first.indices.tolist() != other.indices.tolist()
