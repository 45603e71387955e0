"""How far a mean is from a Gaussian, in its sd."""

import numpy as np
import pytest

from decoct.stats import Gaussian
from decoct.stats.distances import distance, moments


def test_distance_is_the_most_of_coordinates_and_principal_axes():
    place = Gaussian(np.zeros(2), np.array([[4.0, 2.0 * 0.98], [2.0 * 0.98, 1.0]]))
    assert distance(place, np.array([2.0, 1.0])) == pytest.approx(np.sqrt(2.0 / 1.98))
    assert distance(place, np.array([2.0, -1.0])) == pytest.approx(np.sqrt(2.0 / 0.02))
    assert distance(place, np.array([4.0, 0.0])) >= 2.0


def test_without_spread_a_place_is_infinitely_far():
    stuck = Gaussian(np.zeros(2), np.diag([1.0, 0.0]))
    assert distance(stuck, np.zeros(2)) == np.inf
    assert distance(Gaussian(np.zeros(2), np.eye(2)), np.array([0.0, np.nan])) == np.inf
    assert distance(Gaussian(np.zeros(2), np.full((2, 2), np.nan)), np.zeros(2)) == np.inf


@pytest.mark.parametrize("n", [5, 12, 100])
def test_few_draws_say_nothing_of_correlations(n):
    draws = np.random.default_rng(0).normal(size=(n, 10))
    place = moments(draws)
    np.testing.assert_allclose(place.cov, np.diag(draws.var(axis=0)))
    assert distance(place, place.mean + 1.0) < 3.0
