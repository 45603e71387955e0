"""Gradient steps in one compiled loop: the steps of the sampler, one by one, at a fraction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.constructions import SparseVI
from decoct.constructions.sparse_vi.gradient_update import FreshDraws, OptimizerState, stepped
from decoct.constructions.sparse_vi.manifold import resampled_gradient as fresh_draws
from decoct.constructions.sparse_vi.manifold.sampled import SampledManifold
from decoct.constructions.sparse_vi.weight_updates import Gradient
from decoct.errors import ModelError
from decoct.models import GaussianMean, LogisticRegression, PoissonRegression
from decoct.runtime.randomness import host_rng
from decoct.samplers import NUTS, Automatic, Exact, Laplace
from tests.constructions.contract import problem_of

RNG = np.random.default_rng(0)
X = RNG.normal(size=(150, 3))
LOGISTIC = {"x": X, "y": RNG.random(150) < 1.0 / (1.0 + np.exp(-X[:, 0]))}
COUNTS = {"x": X, "y": RNG.poisson(np.logaddexp(0.0, 2.0 * X[:, 0] + 1.0))}
MEAN = {"x": X + 1.0}

ADAM = Gradient(steps=40, rate=0.5, optimizer="adam")


def built(model, rows, update, size=4, sampler=None, **options):
    method = SparseVI(update, draws=30, reuse=False, exact=False, **options)
    sampler = sampler or Laplace()
    return decoct.build(model, rows, size=size, method=method, sampler=sampler, seed=5)


def one_by_one(monkeypatch, *arguments, **options):
    with monkeypatch.context() as patch:
        patch.setattr(FreshDraws, "of", lambda *_: None)
        return built(*arguments, **options)


def assert_alike(mine, theirs, rtol=1e-7):
    np.testing.assert_array_equal(mine.indices, theirs.indices)
    np.testing.assert_allclose(mine.weights, theirs.weights, rtol=rtol)
    assert mine.report.predicted_kl == pytest.approx(theirs.report.predicted_kl, rel=1e-5)
    assert mine.report.passes == theirs.report.passes
    assert mine.report.evaluations == theirs.report.evaluations


@pytest.mark.parametrize(
    ("model", "rows", "update", "sampler"),
    [
        (LogisticRegression(), LOGISTIC, ADAM, Laplace()),
        (PoissonRegression(), COUNTS, Gradient(steps=40, rate=1e-3), Laplace(judge=False)),
        (GaussianMean(np.eye(3)), MEAN, Gradient(steps=40, rate=1e-3, single=True), Automatic()),
    ],
)
def test_the_loop_has_the_steps_of_the_sampler(monkeypatch, model, rows, update, sampler):
    mine = built(model, rows, update, sampler=sampler)
    theirs = one_by_one(monkeypatch, model, rows, update, sampler=sampler)
    assert_alike(mine, theirs)


def test_steps_whose_draws_the_loop_does_not_find_are_the_samplers(monkeypatch):
    found, at = [], FreshDraws.at

    def failing(self, weights, start, normals):
        seen = at(self, weights, start, normals)
        seen = seen._replace(found=seen.found & (jnp.floor(4.0 * weights.sum()) % 2.0 == 0.0))
        jax.debug.callback(lambda one: found.append(bool(one)), seen.found)
        return seen

    rows = {name: column[:149] for name, column in LOGISTIC.items()}  # compiled for this test
    monkeypatch.setattr(FreshDraws, "at", failing)
    mine = built(LogisticRegression(), rows, ADAM, size=2)
    theirs = one_by_one(monkeypatch, LogisticRegression(), rows, ADAM, size=2)
    jax.effects_barrier()
    assert 10 < sum(found) < len(found) - 10
    assert_alike(mine, theirs)


def test_what_goes_wrong_is_said_as_it_is_one_by_one(monkeypatch):
    model, messages = PoissonRegression(link="log"), []
    rows = {"x": 30.0 * X, "y": COUNTS["y"]}
    for way in (built, lambda *a: one_by_one(monkeypatch, *a)):
        with np.errstate(over="ignore"), pytest.raises(ModelError) as error:
            way(model, rows, ADAM)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def manifold_of(sampler, **options):
    problem = problem_of(LogisticRegression(), LOGISTIC, 4, sampler=sampler)
    settings = {"subsample": None, "subsample_totals": False, "reuse": False, **options}
    return SampledManifold(problem, 30, **settings)


class Shifted(Laplace):
    """A sampler of its own."""


@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (NUTS(), {}),
        (Shifted(), {}),
        (Exact(), {}),  # the model is not conjugate
        (Laplace(), {"reuse": True}),
        (Laplace(), {"subsample": 50}),
        (Laplace(), {"candidates": np.arange(40), "subsample_totals": True}),
    ],
)
def test_other_draws_are_left_to_the_sampler(sampler, options):
    assert FreshDraws.of(manifold_of(sampler, **options), None) is None


def test_a_table_of_many_chunks_is_walked_by_passes(monkeypatch):
    monkeypatch.setattr(fresh_draws, "chunk_rows", lambda _: 100)
    assert FreshDraws.of(manifold_of(Laplace()), None) is None


def test_random_numbers_are_those_of_the_sampler():
    key = jax.random.key(3)
    mine = fresh_draws.normals_of(key, 5, 8, (4, 6, 2))
    for place in range(3):
        step = jax.random.fold_in(jax.random.fold_in(key, 5 + place), 0)
        theirs = host_rng(step).standard_normal((6, 2))
        np.testing.assert_array_equal(mine[place], theirs)
    assert not mine[3].any()


@pytest.mark.parametrize(("m", "padded"), [(1, 32), (32, 32), (33, 64), (65, 128)])
def test_supports_are_padded_to_powers_of_two(m, padded):
    assert fresh_draws.padded_size(m) == padded


def test_adam_is_what_its_paper_says():
    rng, place = np.random.default_rng(0), np.full(3, 2.0)
    first, second, m, v, theta = np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(3), place
    for t in range(5):
        slope = rng.normal(size=3)
        place, first, second = stepped(
            OptimizerState(t, place, first, second, slope), 0.3, True, np
        )
        m, v = 0.9 * m + 0.1 * slope, 0.999 * v + 0.001 * slope**2
        corrected = m / (1.0 - 0.9 ** (t + 1)), v / (1.0 - 0.999 ** (t + 1))
        theta = np.maximum(theta - 0.3 / (1 + t) * corrected[0] / (np.sqrt(corrected[1]) + 1e-8), 0)
        np.testing.assert_allclose(place, theta, rtol=1e-12)
