"""Second-order expansions: derivatives, closed forms, and what they keep exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.data import encoded
from decoct.passes import traced_predictors
from decoct.passes.expansions import DIRECTIONS, Expansion, antithetic, to_second_order
from decoct.passes.potentials import Potentials

N, D = 300, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D))
LOGISTIC = {"x": X, "y": (RNG.random(N) < 0.5).astype(int)}
COUNTS = {"x": X, "y": RNG.poisson(np.exp(0.3 * X[:, 0]))}
CENTRE = np.array([0.3, -0.2, 0.1])
FACTOR = np.array([[0.5, 0.0, 0.0], [0.2, 0.4, 0.0], [-0.1, 0.1, 0.3]])
NO_DIRECTION = np.zeros((1, D))


def potentials_of(model, rows):
    return Potentials(model, encoded(decoct.rows(rows), model))


def own_logistic():
    """The logistic regression as functions of the user's: without a linear predictor."""

    def log_likelihood(params, rows):
        eta = rows["x"] @ params["beta"]
        return jnp.where(rows["y"] > 0, -jnp.logaddexp(0.0, -eta), -jnp.logaddexp(0.0, eta))

    def log_prior(params):
        return -0.5 * jnp.sum(params["beta"] ** 2)

    return decoct.Model(log_likelihood, log_prior, {"beta": np.zeros(D)})


@pytest.mark.parametrize("model", [decoct.models.LogisticRegression(), own_logistic()])
def test_without_a_spread_it_is_taylor_s(model):
    ours = potentials_of(model, LOGISTIC)
    found = ours.expand(Expansion.over(CENTRE, np.zeros((D, D)), NO_DIRECTION))
    sign = 2.0 * LOGISTIC["y"] - 1.0

    def total(z):
        return -jnp.logaddexp(0.0, -sign * (X @ z)).sum()

    with jax.enable_x64(True):
        z = jnp.asarray(CENTRE)
        expected = total(z), jax.grad(total)(z), jax.hessian(total)(z)
    for mine, autodiff in zip(found[:3], expected, strict=True):
        np.testing.assert_allclose(mine, np.asarray(autodiff), rtol=1e-10, atol=1e-10)


def test_smoothed_counts_have_a_closed_form():
    """E e^η = exp(m + s²/2) for η ~ N(m, s²), and so for both derivatives."""
    found = potentials_of(decoct.models.PoissonRegression(link="log"), COUNTS).expand(
        Expansion.over(CENTRE, FACTOR, NO_DIRECTION)
    )
    rate = np.exp(X @ CENTRE + 0.5 * np.square(X @ FACTOR).sum(axis=1))
    np.testing.assert_allclose(found.gradient, X.T @ (COUNTS["y"] - rate), rtol=1e-4)
    np.testing.assert_allclose(found.hessian, -(X.T * rate) @ X, rtol=1e-4)


def test_smoothed_logistic_is_the_integral():
    """As far as nine nodes go, for standard deviations of the predictor up to 2."""
    found = potentials_of(decoct.models.LogisticRegression(), LOGISTIC).expand(
        Expansion.over(CENTRE, FACTOR, NO_DIRECTION)
    )
    node = np.linspace(-9.0, 9.0, 2001)
    weights = np.exp(-0.5 * node**2) / np.exp(-0.5 * node**2).sum()
    spread = np.sqrt(np.square(X @ FACTOR).sum(axis=1))
    eta = (X @ CENTRE)[:, None] + spread[:, None] * node
    p = 1.0 / (1.0 + np.exp(-eta))
    sign = 2.0 * LOGISTIC["y"][:, None] - 1.0
    slope, bend = (LOGISTIC["y"][:, None] - p) @ weights, -(p * (1.0 - p)) @ weights
    value = (-np.logaddexp(0.0, -sign * eta)) @ weights - 0.5 * bend * spread**2
    np.testing.assert_allclose(found.gradient, X.T @ slope, rtol=1e-3)
    np.testing.assert_allclose(found.hessian, (X.T * bend) @ X, rtol=1e-3, atol=1e-2)
    np.testing.assert_allclose(found.value, value.sum(), rtol=1e-3)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_third_derivatives_are_summed_by_parameter(sign):
    """Of counts, whose smoothed derivatives are all e^(m + s²/2), in intercepts and slopes."""
    groups = 5
    rows = {"x": X[:, 0], "g": RNG.integers(groups, size=N), "y": COUNTS["y"].astype(float)}

    def log_likelihood(p, rows):
        eta = sign * p["u"][rows["g"]] + p["slope"][rows["g"]] * rows["x"]
        return rows["y"] * eta - jnp.exp(eta)

    start = {"slope": np.zeros(groups), "u": np.zeros(groups)}
    potentials = potentials_of(decoct.Model(log_likelihood, lambda p: 0.0, start), rows)
    d = 2 * groups
    factor = np.diag(np.random.default_rng(1).uniform(0.1, 0.4, d))
    at = Expansion.over(0.1 * np.arange(d), factor, np.zeros((1, d)))
    slope, intercept = rows["g"], rows["g"] + groups
    spread = factor.diagonal()[intercept] ** 2 + (factor.diagonal()[slope] * X[:, 0]) ** 2
    eta = sign * at.centre[intercept] + at.centre[slope] * X[:, 0]
    rate = np.exp(eta + 0.5 * spread)
    of_rows = np.zeros((N, 3 * d))  # and those of both together, at the place of the intercept
    of_rows[np.arange(N), intercept] = -sign * rate
    of_rows[np.arange(N), slope] = -(X[:, 0] ** 3) * rate
    of_rows[np.arange(N), d + intercept] = -X[:, 0] * rate
    of_rows[np.arange(N), 2 * d + intercept] = -sign * X[:, 0] ** 2 * rate
    assert potentials.pair_offsets == (-groups,)
    np.testing.assert_allclose(potentials.expand(at).thirds, of_rows.sum(axis=0), rtol=1e-4)
    weights, encoded_rows = RNG.uniform(size=N), potentials.rows.take(np.arange(N))
    some = potentials.expand_rows(encoded_rows, weights, at).thirds
    np.testing.assert_allclose(some, weights @ of_rows, rtol=1e-4)
    of_parameters = RNG.normal(size=(3, 3 * d))
    z = RNG.normal(size=(3, d))
    rows_alone = potentials.quadratics(encoded_rows, at, z, of_parameters)
    rows_alone -= potentials.quadratics(encoded_rows, at, z)
    np.testing.assert_allclose(rows_alone, of_rows @ of_parameters.T, rtol=1e-3, atol=1e-3)


def test_third_derivatives_of_a_regression():
    """Those of the smoothed sum, −Σ exp(xᵀβ + ½ xᵀCx), by finite differences."""
    counts = potentials_of(decoct.models.PoissonRegression(link="log"), COUNTS)
    d = counts.dim
    at = Expansion.over(np.full(d, 0.1), 0.2 * np.eye(d), np.zeros((1, d)))
    x = np.asarray(counts.model.design_matrix(counts.rows.take(np.arange(N))))
    f = lambda beta: -np.exp(x @ beta + 0.02 * (x**2).sum(axis=1)).sum()  # noqa: E731
    h = 1e-3
    for j in range(d):
        away = [f(at.centre + k * h * np.eye(d)[j]) for k in (-2, -1, 1, 2)]
        expected = (away[3] - 2.0 * away[2] + 2.0 * away[1] - away[0]) / (2.0 * h**3)
        assert counts.expand(at).thirds[j] == pytest.approx(expected, rel=1e-3)


def test_a_parameter_in_two_predictors_has_mixed_third_derivatives():
    """−e^u cosh 2u = −½ (e^(3u) + e^(−u))."""
    rows = {"g": RNG.integers(3, size=N), "h": np.ones(N)}

    def log_likelihood(p, rows):
        u = p["u"][rows["g"]]
        return -jnp.exp(u * rows["h"]) * jnp.cosh(2.0 * u)

    model = decoct.Model(log_likelihood, lambda p: 0.0, {"u": np.zeros(3)})
    potentials, s = potentials_of(model, rows), 0.2
    at = Expansion.over(np.array([0.1, -0.2, 0.3]), s * np.eye(3), np.zeros((1, 3)))
    u, counts = at.centre, np.bincount(rows["g"])
    expected = -0.5 * (27.0 * np.exp(3.0 * u + 4.5 * s**2) - np.exp(-u + 0.5 * s**2)) * counts
    np.testing.assert_allclose(potentials.expand(at).thirds, expected, rtol=2e-2)


def test_third_derivatives_of_two_predictors_are_apart():
    """Of −e^u cosh v, an average of e^(u + v) and e^(u − v), with u and v correlated."""
    groups = 3
    rows = {name: RNG.integers(groups, size=N) for name in ("g", "h")}

    def log_likelihood(p, rows):
        return -jnp.exp(p["u"][rows["g"]]) * jnp.cosh(p["v"][rows["h"]])

    start = {"u": np.zeros(groups), "v": np.zeros(groups)}
    potentials = potentials_of(decoct.Model(log_likelihood, lambda p: 0.0, start), rows)
    assert potentials.predictors.predictors == 2
    d, rng = 2 * groups, np.random.default_rng(2)
    factor = np.tril(0.1 * rng.normal(size=(d, d))) + 0.2 * np.eye(d)
    at = Expansion.over(0.3 * rng.normal(size=d), factor, np.zeros((1, d)))
    u, v = rows["g"], rows["h"] + groups
    expected = np.zeros((2, d))
    for sign in (1.0, -1.0):
        spread = np.square(factor[u] + sign * factor[v]).sum(axis=1)
        each = -0.5 * np.exp(at.centre[u] + sign * at.centre[v] + 0.5 * spread)
        expected[0] += np.bincount(u, weights=each, minlength=d)
        expected[1] += np.bincount(v, weights=sign * each, minlength=d)
    np.testing.assert_allclose(potentials.expand(at).thirds, expected.sum(axis=0), rtol=1e-2)


def test_a_laplace_fit_of_two_sets_of_effects_is_at_the_mode():
    rows = {name: RNG.integers(3, size=N) for name in ("g", "h")}
    rows["y"] = RNG.poisson(2.0, size=N).astype(float)

    def log_likelihood(p, rows):
        eta = p["u"][rows["g"]] + p["v"][rows["h"]]
        return rows["y"] * eta - jnp.exp(eta)

    start = {"u": np.zeros(3), "v": np.zeros(3)}
    log_prior = lambda p: -0.5 * ((p["u"] ** 2).sum() + (p["v"] ** 2).sum())  # noqa: E731
    fit = decoct.laplace(decoct.Model(log_likelihood, log_prior, start), rows)
    rate = np.exp(fit.mean[rows["g"]] + fit.mean[3:][rows["h"]])
    both = np.eye(6)[rows["g"]] + np.eye(6)[rows["h"] + 3]
    np.testing.assert_allclose(both.T @ (rows["y"] - rate), fit.mean, atol=1e-5)
    precision = (both.T * rate) @ both + np.eye(6)
    np.testing.assert_allclose(np.linalg.inv(fit.cov), precision, rtol=1e-6, atol=1e-6)


def test_quadratic_potentials_are_their_own_expansion():
    """A Gaussian mean, and a linear model with known noise, wherever they are expanded."""
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(20, D))
    directions = antithetic(rng, 8, D)
    linear = {"x": X, "y": X @ CENTRE + rng.normal(size=N)}
    for model, rows in (
        (decoct.models.GaussianMean(np.eye(D)), {"x": X}),
        (decoct.models.LinearRegression(noise_scale=1.0), linear),
    ):
        ours = potentials_of(model, rows)
        at = Expansion.over(5.0 * CENTRE, FACTOR, directions)
        found = ours.expand(at).at(draws - at.centre)
        np.testing.assert_allclose(found, ours.totals(draws), rtol=1e-10)


def test_a_linear_predictor_and_averaged_points_agree(monkeypatch):
    """Within four Monte Carlo errors, from sixteen independent averages."""
    monkeypatch.setattr(traced_predictors, "MOST_PREDICTORS", 0)
    rng, found = np.random.default_rng(2), []
    for _ in range(16):
        at = Expansion.over(CENTRE, FACTOR, antithetic(rng, 96, D))
        sums = potentials_of(own_logistic(), LOGISTIC).expand(at)
        found.append(np.concatenate([sums.gradient, sums.hessian.ravel()]))
    exact = potentials_of(decoct.models.LogisticRegression(), LOGISTIC).expand(at)
    exact = np.concatenate([exact.gradient, exact.hessian.ravel()])
    error = np.std(found, axis=0, ddof=1) / 4.0
    # points on a sphere have no fourth moments of a Gaussian: off by a few per cent of the change
    taylor = potentials_of(decoct.models.LogisticRegression(), LOGISTIC).expand(
        Expansion.over(CENTRE, np.zeros((D, D)), NO_DIRECTION)
    )
    change = np.abs(exact - np.concatenate([taylor.gradient, taylor.hessian.ravel()]))
    assert (np.abs(np.mean(found, axis=0) - exact) < 4.0 * error + 0.15 * change.max()).all()


def test_antithetic_points_integrate_quadratics():
    directions = antithetic(np.random.default_rng(0), 2 * D, D)
    np.testing.assert_allclose(directions.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(directions.T @ directions / (2 * D), np.eye(D), atol=1e-12)


@pytest.mark.parametrize("kind", ["regression", "traced", "averaged"])
def test_expansions_of_rows_add_up_to_those_of_the_table(kind, monkeypatch):
    if kind == "averaged":
        monkeypatch.setattr(traced_predictors, "MOST_PREDICTORS", 0)
    model = decoct.models.LogisticRegression() if kind == "regression" else own_logistic()
    ours = potentials_of(model, LOGISTIC)
    at = Expansion.over(CENTRE, FACTOR, antithetic(np.random.default_rng(3), 4, D))
    rows, weights = ours.rows.take(np.arange(N)), np.ones(N)
    whole, few = ours.expand(at), ours.expand_rows(rows, weights, at)
    for mine, other in zip(whole, few, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12)
    draws = np.random.default_rng(4).normal(size=(5, D))
    values = ours.quadratics(rows, at, draws).sum(axis=0)
    np.testing.assert_allclose(values, whole.at(draws - at.centre) - whole.value, rtol=1e-10)
    bends = ours.bends(rows, at, np.eye(D)).sum(axis=0)
    np.testing.assert_allclose(bends, np.diag(whole.hessian), rtol=1e-10)


@pytest.mark.parametrize("d", [3, DIRECTIONS, DIRECTIONS + 1, 2 * DIRECTIONS])
def test_second_derivatives_of_many_parameters(d):
    def function(z):
        return jnp.sin(z).sum() * jnp.exp(z[0]) + z[1] * z[-1] ** 3

    with jax.enable_x64(True):
        z = jnp.asarray(np.random.default_rng(d).normal(size=d))
        value, gradient, hessian = to_second_order(function, z)
        expected = function(z), jax.grad(function)(z), jax.hessian(function)(z)
    for found, wanted in zip((value, gradient, hessian), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
