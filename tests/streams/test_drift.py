"""How far a posterior lies from a place, in its sd."""

import jax
import numpy as np

from decoct.coreset import Coreset
from decoct.models import GaussianMean
from decoct.report import Report, Status
from decoct.samplers.base import Draws
from decoct.streams.drift import MOST_DRAWS, with_drift


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
