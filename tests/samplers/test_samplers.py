"""Samplers of π_w: the weights contract, modes that are maxima, NUTS against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import decoct
from decoct import models
from decoct.data import encoded
from decoct.errors import ModelError
from decoct.samplers import NUTS, Automatic, Exact, Laplace, WeightedDensity
from decoct.samplers.base import log_densities
from decoct.samplers.exact import exact_posterior

N = 60


def table(kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 2))
    y = {
        "binary": (rng.random(N) < 0.5).astype(int),
        "count": rng.poisson(2.0, size=N),
        "real": x @ [1.0, -1.0] + rng.standard_t(4, size=N),
    }
    return {"x": x} if kind == "none" else {"x": x, "y": y[kind]}


MODELS = [
    (models.GaussianMean(np.eye(2)), "none"),
    (models.LinearRegression(noise_scale=0.7), "real"),
    (models.LinearRegression(intercept=True), "real"),
    (models.LogisticRegression(), "binary"),
    (models.PoissonRegression(link="softplus"), "count"),
    (models.PoissonRegression(link="log"), "count"),
    (models.StudentTRegression(), "real"),
    (models.StudentTRegression(nu=4.0, scale="log-linear"), "real"),
]


def density(model, rows, weights):
    n = len(rows["x"])
    return WeightedDensity.of(model, encoded(decoct.rows(rows), model).take(np.arange(n)), weights)


def picked(rows, which):
    return {name: column[which] for name, column in rows.items()}


@pytest.mark.parametrize(("model", "kind"), MODELS)
def test_weight_zero_is_absent_and_two_is_twice(model, kind):
    rows = table(kind)
    weights = np.arange(N) % 3.0
    repeated = picked(rows, np.repeat(np.arange(N), weights.astype(int)))
    ones = np.ones(len(repeated["x"]))
    weighted, plain = density(model, rows, weights), density(model, repeated, ones)
    z = 0.3 * np.random.default_rng(1).normal(size=(20, weighted.dim))
    np.testing.assert_allclose(log_densities(weighted, z), log_densities(plain, z), rtol=1e-12)
    a = decoct.laplace(model, rows, weights)
    b = decoct.laplace(model, repeated)
    np.testing.assert_allclose(a.mean, b.mean, atol=1e-8)
    np.testing.assert_allclose(a.cov, b.cov, atol=1e-8)


def numerical_hessian(target, fit):
    """Central differences, a hundredth of a posterior sd apart."""
    step, d = 0.01 * np.diag(fit.sd), len(fit.mean)
    hessian = np.empty((d, d))
    for i in range(d):
        for j in range(d):
            corners = [(1, 1), (-1, -1), (1, -1), (-1, 1)]
            z = np.array([fit.mean + a * step[i] + b * step[j] for a, b in corners])
            pp, mm, pm, mp = log_densities(target, z)
            hessian[i, j] = (pp + mm - pm - mp) / (4 * step[i, i] * step[j, j])
    return hessian


@pytest.mark.parametrize(("model", "kind"), MODELS)
def test_the_mode_is_scipys(model, kind):
    rows = table(kind)
    target = density(model, rows, np.ones(N))
    start = np.asarray(target.start)
    found = minimize(lambda z: -log_densities(target, z[None])[0], start, tol=1e-12)
    fit = decoct.laplace(model, rows)
    assert log_densities(target, fit.mean[None])[0] >= -found.fun - 1e-9
    np.testing.assert_allclose(fit.mean, found.x, atol=1e-4)
    np.testing.assert_allclose(
        np.linalg.inv(fit.cov), -numerical_hessian(target, fit), rtol=1e-3, atol=1e-2
    )


@pytest.mark.parametrize(("model", "kind"), MODELS[:2])
def test_laplace_of_a_conjugate_model_is_exact(model, kind):
    rows = table(kind)
    exact, fit = exact_posterior(density(model, rows, np.ones(N))), decoct.laplace(model, rows)
    assert decoct.kl_gaussian(exact, fit) < 1e-20


def on_its_own(log_prior, init):
    model = decoct.Model(lambda p, r: 0.0 * r["y"] * p["a"].sum(), log_prior, {"a": init})
    return model, {"y": np.ones(3)}


def test_a_saddle_is_left_for_the_maximum():
    # Stationary but not a maximum at the start; maxima at (±1, 0).
    def double_well(p):
        return -((p["a"][0] ** 2 - 1.0) ** 2) - p["a"][1] ** 2

    fit = decoct.laplace(*on_its_own(double_well, np.array([1e-3, 0.5])))
    assert abs(fit.mean[0]) == pytest.approx(1.0, abs=1e-8)
    assert (np.linalg.eigvalsh(fit.cov) > 0).all()


@pytest.mark.parametrize(
    "log_prior",
    [
        lambda p: -(p["a"][0] ** 2),  # flat along the second coordinate
        lambda p: p["a"][0] ** 2 - p["a"][1] ** 2,  # unbounded
        lambda p: p["a"].sum(),  # no maximum at all
    ],
)
def test_what_has_no_strict_maximum_is_a_sentence(log_prior):
    with pytest.raises(ModelError, match="NUTS"):
        decoct.laplace(*on_its_own(log_prior, np.zeros(2)))


def test_newton_climbs_from_far_away():
    model, rows = models.PoissonRegression(link="log"), table("count")
    far = decoct.Model(
        lambda p, r: model.log_likelihood(p, r), model.log_prior, {"beta": np.array([15.0, -12.0])}
    )
    numeric = {"x": rows["x"], "y": rows["y"].astype(float)}
    np.testing.assert_allclose(
        decoct.laplace(far, numeric).mean, decoct.laplace(model, rows).mean, atol=1e-8
    )


@pytest.mark.parametrize("weights", [np.ones(3), -np.ones(N), np.full(N, np.nan)])
def test_bad_weights_are_refused(weights):
    with pytest.raises(ModelError, match="weights"):
        decoct.laplace(models.GaussianMean(np.eye(2)), table("none"), weights)


def test_no_weight_at_all_is_the_prior():
    fit = decoct.laplace(models.GaussianMean(np.eye(2)), table("none"), np.zeros(N))
    np.testing.assert_allclose(fit.mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(fit.cov, np.eye(2))


@pytest.fixture(scope="module")
def linear():
    model, rows = models.LinearRegression(noise_scale=0.7), table("real")
    return density(model, rows, np.arange(N) % 3.0)


@pytest.mark.parametrize("dense", [True, False])
def test_nuts_draws_from_the_closed_form(linear, dense):
    exact = exact_posterior(linear)
    drawn = NUTS(warmup=300, dense_mass=dense).sample(jax.random.key(0), linear, 500)
    assert drawn.z.shape == (4, 500, 2)
    error = exact.sd / np.sqrt(drawn.info["ess"])
    assert (np.abs(drawn.flat.mean(0) - exact.mean) < 4 * error).all()
    ratio = drawn.flat.std(0) / exact.sd
    assert (np.abs(ratio - 1) < 4 / np.sqrt(drawn.info["ess"])).all()
    assert drawn.info["rhat"] < 1.02
    assert drawn.info["diverging"].shape == (4, 500)


def test_nuts_repeats_itself_and_ignores_padding(linear):
    sampler, key = NUTS(warmup=50, chains=2), jax.random.key(1)
    first = sampler.sample(key, linear, 20)
    np.testing.assert_array_equal(first.z, sampler.sample(key, linear, 20).z)
    rows, weights = table("real"), np.arange(N) % 3.0
    longer = {name: np.concatenate([column, column, column]) for name, column in rows.items()}
    padded = density(linear.model, longer, np.concatenate([weights, np.zeros(2 * N)]))
    np.testing.assert_allclose(sampler.sample(key, padded, 20).z, first.z, rtol=1e-8)


def test_exact_draws_and_refusal(linear):
    drawn = Exact().draw(jax.random.key(0), linear, 4000).flat
    exact = exact_posterior(linear)
    assert (np.abs(drawn.mean(0) - exact.mean) < 4 * exact.sd / np.sqrt(4000)).all()
    with pytest.raises(ModelError, match="closed-form"):
        Exact().draw(
            jax.random.key(0),
            density(models.LogisticRegression(), table("binary"), np.ones(N)),
            10,
        )


def test_automatic_takes_what_fits(linear):
    key = jax.random.key(0)
    assert Automatic().draw(key, linear, 10).sampler == "exact"
    logistic = density(models.LogisticRegression(), table("binary"), np.ones(N))
    assert Automatic().draw(key, logistic, 400).sampler == "laplace"
    # A Cauchy-tailed posterior: Laplace's k-hat is hopeless.
    model, rows = on_its_own(lambda p: -jnp.log1p(p["a"] ** 2).sum(), np.zeros(2))
    heavy = WeightedDensity.of(model, rows, np.ones(3))
    drawn = Automatic(NUTS(warmup=100)).draw(key, heavy, 1000)
    assert drawn.sampler == "nuts"
    assert Laplace().draw(key, heavy, 1000).info["khat"] > 0.7


def test_automatic_takes_nuts_where_draws_of_laplace_lie_outside_the_posterior():
    """A steep wall beside the mode of two normal parameters: k-hat alone sees nothing of it."""
    key = jax.random.key(0)
    model, rows = on_its_own(
        lambda p: -0.5 * (p["a"] ** 2).sum() - jnp.exp(30.0 * (p["a"][0] - 0.5)), np.zeros(2)
    )
    walled = WeightedDensity.of(model, rows, np.ones(3))
    info = Laplace().draw(key, walled, 1000).info
    assert info["khat"] < 0.7
    assert info["kl"] > 1e3
    assert Automatic(NUTS(warmup=100)).draw(key, walled, 1000).sampler == "nuts"
