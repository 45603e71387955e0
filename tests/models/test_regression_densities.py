"""Potentials and priors against SciPy, their derivatives against differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import special, stats

from decoct.models import (
    GaussianMean,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    StudentTRegression,
)
from decoct.runtime.precision import float64

rng = np.random.default_rng(20)
X = rng.normal(size=(40, 3))
BETA = np.array([0.7, -1.3, 0.4])
GAMMA = np.array([-0.5, 0.2, 0.9])
REAL = rng.normal(size=40) * 3.0
LABELS = rng.integers(0, 2, size=40)
COUNTS = rng.poisson(2.0, size=40)
ETA = X @ BETA
SIGMA = np.array([[2.0, 0.6, 0.1], [0.6, 1.0, -0.3], [0.1, -0.3, 0.5]])

CASES = {
    "gaussian": (
        GaussianMean(SIGMA),
        {"mean": BETA},
        {"x": X},
        stats.multivariate_normal(BETA, SIGMA).logpdf(X),
    ),
    "gaussian, one dimension": (
        GaussianMean(4.0),
        {"mean": np.array([0.5])},
        {"x": REAL},
        stats.norm(0.5, 2.0).logpdf(REAL),
    ),
    "linear, known noise": (
        LinearRegression(noise_scale=0.3),
        {"beta": BETA},
        {"x": X, "y": REAL},
        stats.norm(ETA, 0.3).logpdf(REAL),
    ),
    "linear": (
        LinearRegression(),
        {"beta": BETA, "log_noise": np.array(-0.8)},
        {"x": X, "y": REAL},
        stats.norm(ETA, np.exp(-0.8)).logpdf(REAL),
    ),
    "logistic, 0 and 1": (
        LogisticRegression(),
        {"beta": BETA},
        {"x": X, "y": LABELS},
        stats.bernoulli(special.expit(ETA)).logpmf(LABELS),
    ),
    "logistic, -1 and 1": (
        LogisticRegression(),
        {"beta": BETA},
        {"x": X, "y": 2.0 * LABELS - 1.0},
        stats.bernoulli(special.expit(ETA)).logpmf(LABELS),
    ),
    "logistic, intercept": (
        LogisticRegression(intercept=True),
        {"beta": np.array([*BETA, 2.0])},
        {"x": X, "y": LABELS.astype(bool)},
        stats.bernoulli(special.expit(ETA + 2.0)).logpmf(LABELS),
    ),
    "poisson": (
        PoissonRegression(),
        {"beta": BETA},
        {"x": X, "y": COUNTS},
        stats.poisson(np.log1p(np.exp(ETA))).logpmf(COUNTS),
    ),
    "poisson, log link": (
        PoissonRegression(link="log"),
        {"beta": BETA},
        {"x": X, "y": COUNTS},
        stats.poisson(np.exp(ETA)).logpmf(COUNTS),
    ),
    "student": (
        StudentTRegression(nu=3.5),
        {"beta": BETA, "log_scale": np.array(0.4)},
        {"x": X, "y": REAL},
        stats.t(3.5, ETA, np.exp(0.4)).logpdf(REAL),
    ),
    "student, free nu": (
        StudentTRegression(),
        {"beta": BETA, "log_nu": np.array(2.9), "log_scale": np.array(0.4)},
        {"x": X, "y": REAL},
        stats.t(np.exp(2.9), ETA, np.exp(0.4)).logpdf(REAL),
    ),
    "student, log-linear, free nu": (
        StudentTRegression(scale="log-linear"),
        {"beta": BETA, "gamma": GAMMA, "log_nu": np.array(0.3)},
        {"x": X, "y": REAL},
        stats.t(np.exp(0.3), ETA, np.exp(X @ GAMMA)).logpdf(REAL),
    ),
}

each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())

# one case of each potential, for the tests that compile a lot
LIKELIHOODS = ["gaussian", "linear", "logistic, intercept", "poisson", "poisson, log link"]
LIKELIHOODS += ["student, free nu", "student, log-linear, free nu"]
each_likelihood = pytest.mark.parametrize(
    "case", [CASES[name] for name in LIKELIHOODS], ids=LIKELIHOODS
)


def as_jax(tree):
    return jax.tree.map(jnp.asarray, tree)


@each_case
@float64
def test_potentials_match_scipy(case):
    model, params, raw, expected = case
    potentials = eqx.filter_jit(model.log_likelihood)(as_jax(params), as_jax(model.encode(raw)))
    assert potentials.dtype == jnp.float64
    assert potentials.shape == expected.shape
    np.testing.assert_allclose(potentials, expected, rtol=1e-12, atol=1e-13)


@each_case
@float64
def test_init_has_the_structure_of_the_parameters(case):
    model, params, raw, _ = case
    init = model.init(model.encode(raw))
    assert jax.tree.structure(init) == jax.tree.structure(params)
    assert jax.tree.map(np.shape, init) == jax.tree.map(np.shape, params)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(init))
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(init))


@each_likelihood
@float64
def test_many_draws_at_once_are_one_draw_at_a_time(case):
    model, params, raw, _ = case
    rows = as_jax(model.encode(raw))
    draws = jax.tree.map(lambda leaf: jnp.stack([leaf, 0.5 * leaf, -leaf]), as_jax(params))
    together = jax.jit(jax.vmap(model.log_likelihood, (0, None)))(draws, rows)
    single = jax.jit(lambda params: model.log_likelihood(params, rows))
    for s in range(3):
        one = single(jax.tree.map(lambda leaf: leaf[s], draws))  # noqa: B023
        np.testing.assert_allclose(together[s], one, rtol=1e-12, atol=1e-13)


@each_likelihood
@float64
def test_derivatives_match_differences(case):
    model, params, raw, _ = case
    rows = as_jax(model.encode({name: values[:7] for name, values in raw.items()}))
    flat, unravel = ravel_pytree(as_jax(params))

    def density(z):
        return model.log_likelihood(unravel(z), rows).sum() + model.log_prior(unravel(z))

    @jax.jit
    def at(z):
        return density(z), jax.grad(density)(z), jax.hessian(density)(z)

    ups, downs = zip(*((at(flat + h), at(flat - h)) for h in 1e-5 * np.eye(len(flat))), strict=True)
    for order in (0, 1):
        slopes = [(up[order] - down[order]) / 2e-5 for up, down in zip(ups, downs, strict=True)]
        np.testing.assert_allclose(at(flat)[order + 1], slopes, rtol=1e-6, atol=1e-6)


def log_prior(model, params):
    return float(eqx.filter_jit(model.log_prior)(as_jax(params)))


@float64
def test_coefficients_are_normal():
    beta = {"beta": BETA}
    for model in (LogisticRegression, PoissonRegression):
        assert log_prior(model(), beta) == pytest.approx(stats.norm.logpdf(BETA).sum(), rel=1e-13)
    wide = LogisticRegression(prior_scale=2.5)
    assert log_prior(wide, beta) == pytest.approx(stats.norm(0, 2.5).logpdf(BETA).sum(), rel=1e-13)
    scales = np.array([0.1, 3.0, 10.0])
    each = LinearRegression(noise_scale=1.0, prior_scale=scales)
    assert log_prior(each, beta) == pytest.approx(
        stats.norm(0, scales).logpdf(BETA).sum(), rel=1e-13
    )


@float64
def test_gaussian_prior():
    params = {"mean": BETA}
    expected = stats.multivariate_normal(GAMMA, SIGMA).logpdf(BETA)
    model = GaussianMean(np.eye(3), prior_mean=GAMMA, prior_covariance=SIGMA)
    assert log_prior(model, params) == pytest.approx(expected, rel=1e-13)
    default = stats.norm.logpdf(BETA).sum()
    assert log_prior(GaussianMean(SIGMA), params) == pytest.approx(default, rel=1e-13)
    scaled = stats.norm(2.0, 3.0).logpdf(BETA).sum()
    model = GaussianMean(SIGMA, prior_mean=2.0, prior_covariance=9.0)
    assert log_prior(model, params) == pytest.approx(scaled, rel=1e-13)


@float64
def test_priors_of_noise_scale_and_degrees_of_freedom():
    beta = stats.norm(0, 2).logpdf(BETA).sum()
    linear = LinearRegression(prior_scale=2.0)
    params = {"beta": BETA, "log_noise": np.array(-0.8)}
    assert log_prior(linear, params) == pytest.approx(beta + stats.norm.logpdf(-0.8), rel=1e-13)
    student = StudentTRegression(prior_scale=2.0)
    params = {"beta": BETA, "log_nu": np.array(2.9), "log_scale": np.array(0.4)}
    nu = stats.gamma(2, scale=10).logpdf(np.exp(2.9)) + 2.9
    expected = beta + stats.norm.logpdf(0.4) + nu
    assert log_prior(student, params) == pytest.approx(expected, rel=1e-13)
    both = StudentTRegression(nu=4.0, scale="log-linear", prior_scale=2.0)
    expected = beta + stats.norm(0, 2).logpdf(GAMMA).sum()
    assert log_prior(both, {"beta": BETA, "gamma": GAMMA}) == pytest.approx(expected, rel=1e-13)


@float64
def test_the_prior_of_free_nu_integrates_to_one():
    model = StudentTRegression(nu=None)
    log_nu = jnp.linspace(-30.0, 12.0, 4201)
    rest = log_prior(StudentTRegression(nu=1.0), {"beta": BETA, "log_scale": np.array(0.0)})
    params = {"beta": jnp.asarray(BETA), "log_scale": jnp.zeros(())}
    prior = jax.vmap(lambda v: model.log_prior({**params, "log_nu": v}))(log_nu)
    assert np.trapezoid(np.exp(prior - rest), log_nu) == pytest.approx(1.0, abs=1e-6)


@float64
def test_a_person_reads_natural_scales():
    def named(model, params):
        values = model.constrain(as_jax(params))
        return {name: np.asarray(value).tolist() for name, value in values.items()}

    beta = {"beta": BETA}
    assert named(LogisticRegression(), beta) == {"beta": BETA.tolist()}
    assert named(GaussianMean(np.eye(3)), {"mean": BETA}) == {"mean": BETA.tolist()}
    assert named(LinearRegression(noise_scale=2.0), beta) == {"beta": BETA.tolist()}
    noise = named(LinearRegression(), {**beta, "log_noise": np.log(3.0)})
    assert noise == {"beta": BETA.tolist(), "noise_scale": pytest.approx(3.0)}
    free = {**beta, "log_nu": np.log(5.0), "log_scale": np.log(0.2)}
    assert named(StudentTRegression(), free) == {
        "beta": BETA.tolist(),
        "scale": pytest.approx(0.2),
        "nu": pytest.approx(5.0),
    }
    linear = StudentTRegression(nu=4.0, scale="log-linear")
    assert named(linear, {**beta, "gamma": GAMMA}) == {
        "beta": BETA.tolist(),
        "gamma": GAMMA.tolist(),
    }


@float64
def test_numeric_hyper_parameters_do_not_recompile():
    traces = []

    @eqx.filter_jit
    def density(model, params):
        traces.append(model)
        return model.log_prior(params)

    beta = {"beta": jnp.asarray(BETA)}
    values = [float(density(LogisticRegression(prior_scale=s), beta)) for s in (1.0, 2.0, 3.0)]
    assert len(set(values)) == 3
    assert len(traces) == 1
