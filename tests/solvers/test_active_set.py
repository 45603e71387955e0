"""Scaling of the rows that solvers work on."""

import numpy as np

from decoct.solvers.active_set import UnitVectors
from decoct.solvers.orthogonal_pursuit import orthogonal_pursuit


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
