"""Samplers, and the error of those that fail, once each for `make test`."""

import jax
import numpy as np
import pytest

import decoct
from decoct.errors import SamplerError
from decoct.mixture import Gibbs, VonMisesFisherMixture, sample_vmf
from decoct.models import GaussianMean, LogisticRegression
from decoct.samplers import Draws, Pathfinder, WeightedDensity
from decoct.samplers.exact import exact_posterior

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
ROWS = {"x": RNG.normal(size=(40, 2)) + 3.0}


def test_pathfinder_has_the_mean_of_a_gaussian_posterior():
    density = WeightedDensity.of(GaussianMean(np.eye(2)), ROWS, np.ones(40))
    drawn, exact = Pathfinder(max_iterations=30).draw(KEY, density, 1000), exact_posterior(density)
    error = np.sqrt(np.diag(exact.cov) / 1000)
    assert (np.abs(drawn.flat.mean(axis=0) - exact.mean) < 4.5 * error).all()


def test_gibbs_finds_the_direction_of_one_cluster():
    x = sample_vmf(RNG, np.repeat(np.eye(3)[:1], 50, axis=0), 10.0)
    density = WeightedDensity.of(VonMisesFisherMixture(1, 3, 10.0), {"x": x}, np.ones(50))
    drawn = Gibbs(warmup=0, steps=500, thin=1).sample(KEY, density)
    modes, total = drawn.info["modes"][:, :, 0], x.sum(axis=0)
    assert np.arccos(modes @ (total / np.linalg.norm(total))).max() < 0.5


class Broken:
    def draw(self, key, density, n):
        return Draws(np.full((1, n, density.dim), np.nan), "broken")


def test_draws_that_are_not_finite_are_refused():
    rows = {"x": ROWS["x"], "y": RNG.choice([-1.0, 1.0], 40)}
    method = decoct.constructions.SparseVI(draws=50)
    with pytest.raises(SamplerError, match="Draw 0 of the sampler 'broken' is not finite"):
        decoct.build(LogisticRegression(), rows, size=3, method=method, sampler=Broken())
