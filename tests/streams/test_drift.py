"""How far a posterior lies from a place, in its sd."""

import jax
import numpy as np
import pytest

from decoct.coreset import Coreset
from decoct.models import GaussianMean
from decoct.report import Report, Status
from decoct.samplers.base import Draws
from decoct.stats import Gaussian
from decoct.streams.drift import MOST_DRAWS, distance, moments, with_drift


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


def test_many_parameters_do_not_ask_for_many_draws():
    class Counting:
        def draw(self, key, density, n):
            self.n = n
            return Draws(np.random.default_rng(0).normal(size=(1, n, density.dim)), "counting")

    model, sampler = GaussianMean(np.eye(500)), Counting()
    report = Report({"name": "rows"}, 0, Status.DONE, None, None, [{}], 1, 0, {}, 0.0)
    one = Coreset(np.zeros(1, np.int64), np.ones(1), {"x": np.zeros((1, 500))}, 1, model, report)
    both = with_drift(jax.random.key(0), [one, one], one, sampler)
    assert both.report.rounds[-1]["drift"] < 1.0
    assert sampler.n == MOST_DRAWS
