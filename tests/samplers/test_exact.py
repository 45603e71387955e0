"""Closed-form posteriors against the textbook, and draws from them."""

import jax
import numpy as np
import pytest
from scipy import stats

import decoct
from decoct.data import encoded
from decoct.errors import ModelError
from decoct.models import GaussianMean, LinearRegression, LogisticRegression
from decoct.models.formula.model import from_formula
from decoct.samplers import Exact, WeightedDensity
from decoct.samplers.exact import exact_posterior

N = 30


def density(model, rows, weights):
    taken = encoded(decoct.rows(rows), model).take(np.arange(N))
    return WeightedDensity.of(model, taken, weights)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    return {"x": x, "y": x @ [1.0, -1.0, 0.5] + rng.normal(size=N)}


@pytest.fixture(scope="module")
def weights():
    weights = np.random.default_rng(1).exponential(size=N)
    weights[::4] = 0.0
    return weights


def test_gaussian_mean_is_the_textbook_posterior(rows, weights):
    noise = np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 0.5]])
    prior, centre = np.diag([1.0, 2.0, 3.0]), np.array([1.0, 0.0, -1.0])
    model = GaussianMean(noise, prior_mean=centre, prior_covariance=prior)
    found = exact_posterior(density(model, {"x": rows["x"]}, weights))
    cov = np.linalg.inv(np.linalg.inv(prior) + weights.sum() * np.linalg.inv(noise))
    mean = cov @ (np.linalg.solve(prior, centre) + np.linalg.solve(noise, weights @ rows["x"]))
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(found.cov, cov, rtol=1e-12, atol=1e-15)


def test_linear_regression_is_ridge_regression(rows, weights):
    scale, noise = np.array([1.0, 2.0, 0.5, 3.0]), 0.7
    model = LinearRegression(noise_scale=noise, prior_scale=scale, intercept=True)
    found = exact_posterior(density(model, rows, weights))
    x = np.column_stack([rows["x"], np.ones(N)])
    cov = np.linalg.inv(np.diag(scale**-2.0) + (x.T * weights) @ x / noise**2)
    np.testing.assert_allclose(found.cov, cov, rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(found.mean, cov @ x.T @ (weights * rows["y"]) / noise**2, rtol=1e-11)


def test_a_formula_of_known_noise_is_exact_too(rows, weights):
    table = {"t": rows["y"], "u": rows["x"][:, 0]}
    model = from_formula("t ~ u", decoct.rows(table), noise_scale=0.5)
    found = exact_posterior(density(model, table, weights))
    u = (table["u"] - table["u"].mean()) / table["u"].std()
    x = np.column_stack([np.ones(N), u])
    cov = np.linalg.inv(np.eye(2) + (x.T * weights) @ x / 0.25)
    np.testing.assert_allclose(found.cov, cov, rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(found.mean, cov @ x.T @ (weights * table["t"]) / 0.25, rtol=1e-10)


@pytest.mark.parametrize("model", [GaussianMean(np.eye(3)), LinearRegression(noise_scale=0.7)])
def test_laplace_is_exact_too(rows, model):
    exact = exact_posterior(density(model, rows, np.ones(N)))
    assert decoct.kl_gaussian(exact, decoct.laplace(model, rows)) < 1e-20


def test_no_weight_at_all_is_the_prior(rows):
    model = LinearRegression(noise_scale=1.0, prior_scale=2.0)
    found = exact_posterior(density(model, rows, np.zeros(N)))
    np.testing.assert_allclose(found.mean, 0.0, atol=1e-15)
    np.testing.assert_allclose(found.cov, 4.0 * np.eye(3))


def test_draws_are_those_of_the_posterior(rows, weights):
    target = density(LinearRegression(noise_scale=1.0), rows, weights)
    exact, n = exact_posterior(target), 5000
    drawn = Exact().draw(jax.random.key(0), target, n)
    assert drawn.z.shape == (1, n, 3)
    white = np.linalg.solve(np.linalg.cholesky(exact.cov), (drawn.flat - exact.mean).T)
    for one in white:
        assert stats.kstest(one, "norm").pvalue > 1e-4
    assert stats.kstest(np.square(white).sum(axis=0), stats.chi2(3).cdf).pvalue > 1e-4


def test_a_key_decides_the_draws(rows, weights):
    target = density(LinearRegression(noise_scale=1.0), rows, weights)
    first, again, other = (Exact().draw(jax.random.key(seed), target, 5).flat for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.isclose(first, other).any()


@pytest.mark.parametrize("model", [LinearRegression(), LogisticRegression()])
def test_a_model_without_closed_form_is_refused(rows, model):
    table = {"x": rows["x"], "y": np.arange(N) % 2}
    with pytest.raises(ModelError, match="no closed-form posterior"):
        Exact().draw(jax.random.key(0), density(model, table, np.ones(N)), 5)
