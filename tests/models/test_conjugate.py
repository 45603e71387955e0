"""Exact posteriors against other algebra, and the weights contract."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from decoct.errors import ModelError
from decoct.models import GaussianMean, LinearRegression
from decoct.models.conjugate import AbstractConjugate
from decoct.runtime.precision import float64

rng = np.random.default_rng(11)
X = rng.normal(size=(25, 3)) + 2.0
ROWS = {"x": X, "y": X @ [1.0, -2.0, 0.5] + rng.normal(size=25)}
WEIGHTS = rng.gamma(2.0, size=25) * (rng.uniform(size=25) > 0.3)
SIGMA = np.array([[2.0, 0.6, 0.1], [0.6, 1.0, -0.3], [0.1, -0.3, 0.5]])
PRIOR = np.array([[1.0, 0.2, 0.0], [0.2, 3.0, 0.4], [0.0, 0.4, 0.7]])

MODELS = [
    GaussianMean(SIGMA, prior_mean=[1.0, 0.0, -1.0], prior_covariance=PRIOR),
    LinearRegression(noise_scale=0.7, prior_scale=[0.5, 1.0, 4.0, 10.0], intercept=True),
]
each_model = pytest.mark.parametrize("model", MODELS, ids=["gaussian", "linear"])


def statistics(model, weights, take=slice(None)):
    encoded = model.encode({name: values[take] for name, values in ROWS.items()})
    return eqx.filter_jit(model.sufficient)(
        jax.tree.map(jnp.asarray, encoded), jnp.asarray(weights)
    )


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), ours, theirs)


@float64
def test_gaussian_mean_by_conditioning():
    model = MODELS[0]
    mean, cov = eqx.filter_jit(model.exact_posterior)(statistics(model, WEIGHTS))
    total = WEIGHTS.sum()
    gain = PRIOR @ np.linalg.inv(PRIOR + SIGMA / total)
    average = WEIGHTS @ X / total
    np.testing.assert_allclose(
        mean, model.prior_mean + gain @ (average - model.prior_mean), rtol=1e-12
    )
    np.testing.assert_allclose(cov, PRIOR - gain @ PRIOR, rtol=1e-11)


@float64
def test_linear_regression_by_least_squares():
    model = MODELS[1]
    mean, cov = eqx.filter_jit(model.exact_posterior)(statistics(model, WEIGHTS))
    root = np.sqrt(WEIGHTS) / 0.7
    design = np.hstack([X, np.ones((25, 1))]) * root[:, None]
    design = np.vstack([design, np.diag(1 / model.prior_scale)])
    target = np.concatenate([ROWS["y"] * root, np.zeros(4)])
    np.testing.assert_allclose(mean, np.linalg.lstsq(design, target)[0], rtol=1e-10)
    inverse = np.linalg.pinv(design)
    np.testing.assert_allclose(cov, inverse @ inverse.T, rtol=1e-9)


@each_model
@float64
def test_the_posterior_is_that_of_the_weighted_potentials(model):
    encoded = model.encode(ROWS)
    rows = jax.tree.map(jnp.asarray, encoded)
    _, unravel = ravel_pytree(jax.tree.map(jnp.asarray, model.init(encoded)))

    @jax.jit
    def density(z):
        params = unravel(z)
        return jnp.dot(WEIGHTS, model.log_likelihood(params, rows)) + model.log_prior(params)

    mean, cov = eqx.filter_jit(model.exact_posterior)(statistics(model, WEIGHTS))
    assert mean.dtype == cov.dtype == jnp.float64
    np.testing.assert_allclose(jax.jit(jax.grad(density))(mean), 0.0, atol=1e-10)
    np.testing.assert_allclose(
        -jax.jit(jax.hessian(density))(mean) @ cov, np.eye(len(mean)), atol=1e-10
    )
    np.testing.assert_array_equal(cov, cov.T)


@each_model
@float64
def test_without_rows_the_posterior_is_the_prior(model):
    mean, cov = model.exact_posterior(statistics(model, np.zeros(25)))
    if isinstance(model, GaussianMean):
        np.testing.assert_allclose(mean, model.prior_mean, atol=1e-14)
        np.testing.assert_allclose(cov, PRIOR, atol=1e-14)
    else:
        np.testing.assert_array_equal(mean, np.zeros(4))
        np.testing.assert_allclose(cov, np.diag(model.prior_scale**2), rtol=1e-14)


@each_model
@float64
def test_weights_contract(model):
    absent = np.where(np.arange(25) % 3 == 0, 0.0, 1.0)
    kept = np.flatnonzero(absent)
    assert_same(statistics(model, absent), statistics(model, np.ones(len(kept)), kept))
    twice = np.where(np.arange(25) % 4 == 0, 2.0, 1.0)
    copies = np.repeat(np.arange(25), twice.astype(int))
    assert_same(statistics(model, twice), statistics(model, np.ones(len(copies)), copies))


@each_model
@float64
def test_statistics_add_up(model):
    halves = [statistics(model, WEIGHTS[at], at) for at in (slice(0, 9), slice(9, 25))]
    assert_same(jax.tree.map(jnp.add, *halves), statistics(model, WEIGHTS))


@float64
def test_unknown_noise_is_not_conjugate():
    model = LinearRegression()
    assert isinstance(model, AbstractConjugate)
    assert not model.is_conjugate
    assert all(known.is_conjugate for known in MODELS)
    rows = jax.tree.map(jnp.asarray, model.encode(ROWS))
    with pytest.raises(ModelError, match="set noise_scale"):
        model.sufficient(rows, jnp.ones(25))
    with pytest.raises(ModelError, match="set noise_scale"):
        model.exact_posterior({"gram": jnp.eye(3), "moment": jnp.ones(3)})
