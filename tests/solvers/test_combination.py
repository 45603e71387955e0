"""Iterates of Frank-Wolfe and GIGA, and which of them each size gets."""

from dataclasses import dataclass

import numpy as np

from decoct.solvers import Budget, SparseWeights
from decoct.solvers.combination import Combination, collect
from decoct.solvers.nnls import UnitVectors
from tests.picks import Picks
from tests.solvers.contract import rows_of


@dataclass
class Fake:
    """An iterate with a given size and loss."""

    size: int
    loss: float

    def result(self) -> SparseWeights:
        return SparseWeights(np.arange(self.size), np.ones(self.size), self.loss)


SEEN = [Fake(1, 9.0), Fake(2, 5.0), Fake(2, 6.0), Fake(3, 4.0), Fake(2, 3.0), Fake(4, 1.0)]


def losses(path):
    return {m: one.residual_norm for m, one in path.items()}


def test_a_size_allows_as_many_iterations():
    path = collect(SEEN, Budget((1, 2, 3, 4, 5, 6)))
    assert losses(path) == {1: 9.0, 2: 5.0, 3: 5.0, 4: 4.0, 5: 3.0, 6: 1.0}


def test_with_iterations_only_the_rows_count():
    assert losses(collect(SEEN, Budget((1, 2, 3, 9), 6))) == {1: 9.0, 2: 3.0, 3: 3.0, 9: 1.0}
    assert losses(collect(SEEN, Budget((1, 2, 3, 9), 4))) == {1: 9.0, 2: 5.0, 3: 4.0, 9: 4.0}


def test_an_early_end_serves_the_larger_sizes():
    assert losses(collect(SEEN[:2], Budget((1, 5, 100)))) == {1: 9.0, 5: 5.0, 100: 5.0}


def test_sizes_no_iterate_fits_into_are_absent():
    assert losses(collect([Fake(3, 1.0)], Budget((1, 2, 4), 10))) == {4: 1.0}
    assert collect([], Budget((1, 2))) == {}


def test_no_iteration_is_run_beyond_the_last_one_allowed():
    def steps():
        yield from SEEN[:3]
        raise AssertionError("a fourth iteration was asked for")

    picks = Picks()
    with picks:
        collect(steps(), Budget((1, 3)))
        collect(steps(), Budget((9,), 3))
    assert picks.done == [1] * 6


def test_a_combination_is_the_sum_it_says():
    vectors = rows_of("scales", 50, 8, 0)
    problem, rng = UnitVectors.scaled(vectors, vectors.sum(axis=0)), np.random.default_rng(0)
    here, alpha = Combination(problem), np.zeros(50)
    for row in rng.permutation(50)[:30]:
        amount, factor = rng.uniform(0.5, 2.0), rng.uniform(0.5, 1.5)
        here.add(int(row), amount)
        here.scale(factor)
        alpha[row] += amount
        alpha *= factor
    for row in here.rows[:7].tolist():
        here.add(row, -here.alpha(row))
        alpha[row] = 0.0
    assert here.size == 23
    solution = here.result()
    np.testing.assert_array_equal(solution.indices, np.flatnonzero(alpha))
    np.testing.assert_allclose(solution.dense(50) * problem.norms, alpha, rtol=1e-13)
    np.testing.assert_allclose(here.sum, alpha @ problem.vectors, rtol=1e-12, atol=1e-13)
    assert here.alpha(int(np.flatnonzero(alpha == 0.0)[0])) == 0.0
