"""Pathfinder against closed forms and the Laplace fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import decoct
from decoct.errors import ModelError, RequestError
from decoct.models import GaussianMean, LogisticRegression
from decoct.samplers import WeightedDensity
from decoct.samplers.exact import exact_posterior
from decoct.samplers.laplace import find_mode, gaussian_at
from decoct.samplers.pathfinder import Pathfinder
from decoct.stats import Gaussian, kl_gaussian

SAMPLER = Pathfinder(max_iterations=30)
KEY = jax.random.key(0)
DRAWS = 4000


@pytest.fixture(scope="module")
def gaussian():
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(3, 3))
    model = GaussianMean(factor @ factor.T, prior_covariance=25.0)
    rows = {"x": rng.normal(size=(40, 3)) @ factor.T + 3.0}
    return WeightedDensity.of(model, rows, np.arange(40) % 3.0)


@pytest.fixture(scope="module")
def drawn(gaussian):
    return SAMPLER.draw(KEY, gaussian, DRAWS)


def prior_only(log_prior, init):
    model = decoct.Model(lambda p, r: 0.0 * r["y"], lambda p: log_prior(p["a"]), {"a": init})
    return WeightedDensity.of(model, {"y": np.ones(3)}, np.ones(3))


def family(a, row):
    """One function, compiled once, for the densities on a line below."""
    inside = row["slope"] * a - row["fall"] * jnp.exp(a) - 0.5 * row["curvature"] * a**2
    return jnp.where(a > row["edge"], jnp.nan, inside)


LINE = decoct.Model(lambda p, r: family(p["a"], r), lambda p: 0.0 * p["a"], {"a": 0.0})


def on_a_line(slope=0.0, fall=0.0, curvature=0.0, edge=np.inf):
    row = {"slope": slope, "fall": fall, "curvature": curvature, "edge": edge}
    return WeightedDensity.of(LINE, {k: np.array([v]) for k, v in row.items()}, np.ones(1))


def effective(draws):
    """With n independent draws out of ten times as many, moments vary as with n (1 + 1/10)."""
    return draws / 1.1


def test_a_gaussian_posterior_is_met_within_monte_carlo_error(gaussian, drawn):
    exact, n = exact_posterior(gaussian), effective(DRAWS)
    white = np.linalg.solve(np.linalg.cholesky(exact.cov), (drawn.flat - exact.mean).T)
    assert np.abs(white.mean(axis=1)).max() < 4.5 / np.sqrt(n)
    assert np.abs(np.cov(white) - np.eye(3)).max() < 4.5 * np.sqrt(2 / n)
    assert drawn.info["khat"] < 0.5


def test_the_evidence_bound_of_a_gaussian_is_its_evidence(gaussian, drawn):
    exact = exact_posterior(gaussian)
    with jax.enable_x64(True):
        at_mean = float(gaussian.log_density(jnp.asarray(exact.mean)))
    evidence = at_mean - float(exact.log_density(exact.mean[None])[0])
    assert evidence - 0.3 < drawn.info["elbo"] < evidence + 1e-2


def test_logistic_regression_is_near_the_laplace_fit():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 4))
    rows = {"x": x, "y": np.where(x.sum(axis=1) > rng.logistic(size=400), 1.0, -1.0)}
    target = WeightedDensity.of(LogisticRegression(), rows, np.full(400, 5.0))
    drawn = SAMPLER.draw(KEY, target, DRAWS)
    fit = gaussian_at(find_mode(target))
    z = drawn.flat
    assert drawn.info["khat"] < 0.7
    assert kl_gaussian(Gaussian(z.mean(axis=0), np.cov(z.T)), fit) < 0.05


def test_resampling_follows_what_is_not_gaussian():
    """A skewed target, against numerical integration."""
    target = on_a_line(slope=3.0, fall=2.0)
    drawn = SAMPLER.draw(KEY, target, 10_000)
    # below −4 the Gaussian has nothing left; the mass there is under 1e-4
    z, n = drawn.flat[:, 0], effective(10_000) / 2
    total, first, second = (
        quad(lambda a, k=k: a**k * np.exp(3 * a - 2 * np.exp(a)), -12.0, 5.0)[0] for k in range(3)
    )
    mean, sd = first / total, np.sqrt(second / total - (first / total) ** 2)
    assert z.mean() == pytest.approx(mean, abs=4 * sd / np.sqrt(n))
    assert z.std() == pytest.approx(sd, abs=4 * sd / np.sqrt(n))


def test_two_modes_found_by_several_paths_are_both_kept():
    def log_prior(a):
        left, right = ((a + 6.0) ** 2).sum(), ((a - 6.0) ** 2).sum()
        return jnp.logaddexp(jnp.log(0.3) - 0.5 * left, jnp.log(0.7) - 0.5 * right)

    target = prior_only(log_prior, np.zeros(2))
    z = Pathfinder(paths=8, max_iterations=30).draw(KEY, target, DRAWS).flat
    n = effective(DRAWS)
    assert (z[:, 0] < 0.0).mean() == pytest.approx(0.3, abs=4 * np.sqrt(0.21 / n))


def test_more_coordinates_than_the_history_holds():
    rng = np.random.default_rng(2)
    scales = np.exp(rng.uniform(-2.0, 2.0, size=20))
    target = prior_only(lambda a: -0.5 * jnp.sum((a / scales) ** 2), np.zeros(20))
    drawn = Pathfinder(max_iterations=80, history=6).draw(KEY, target, DRAWS)
    assert drawn.info["khat"] < 0.7
    np.testing.assert_allclose(drawn.flat.std(axis=0), scales, rtol=0.15)


def test_the_same_key_gives_the_same_draws(gaussian, drawn):
    again = SAMPLER.draw(KEY, gaussian, DRAWS)
    np.testing.assert_array_equal(again.z, drawn.z)
    other = SAMPLER.draw(jax.random.key(1), gaussian, DRAWS)
    assert not (other.z == drawn.z).all(axis=-1).any()


@pytest.mark.parametrize("n", [1, 7, 500])
def test_as_many_draws_as_asked_for(gaussian, n):
    drawn = SAMPLER.draw(KEY, gaussian, n)
    assert drawn.z.shape == (1, n, 3)
    assert drawn.sampler == "pathfinder"
    assert drawn.info["paths"] == 4


def test_few_draws_are_repeated(drawn):
    distinct = len(np.unique(drawn.flat, axis=0))
    assert distinct == pytest.approx(0.95 * DRAWS, rel=0.02)


def test_no_gaussian_anywhere_is_an_error():
    with pytest.raises(ModelError, match="None of Pathfinder's paths"):
        SAMPLER.draw(KEY, on_a_line(edge=-np.inf), 10)


def test_a_nan_at_the_candidates_is_an_error():
    hole = on_a_line(curvature=1.0, edge=2.5)
    with pytest.raises(ModelError, match=r"NaN or \+inf at \d+ of"):
        SAMPLER.draw(KEY, hole, 1000)


@pytest.mark.parametrize(
    "wrong", ["paths", "max_iterations", "history", "elbo_draws", "oversampling"]
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(RequestError, match=wrong):
        Pathfinder(**{wrong: 0})
