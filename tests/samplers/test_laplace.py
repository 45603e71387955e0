"""Laplace: the weights contract for every model and sampler, and what has no maximum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import digamma, polygamma

import decoct
from decoct import models
from decoct.data import encoded
from decoct.errors import ModelError
from decoct.models.conjugate import AbstractConjugate
from decoct.models.formula.model import from_formula
from decoct.passes.potentials import Curvature
from decoct.samplers import Exact, Laplace, WeightedDensity
from decoct.samplers.base import log_densities
from decoct.samplers.laplace import ModeStatus, maximise

N = 40


def tables():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 2))
    real = x @ [1.0, -1.0] + rng.standard_t(4, size=N)
    return {
        "none": {"x": x},
        "real": {"x": x, "y": real},
        "binary": {"x": x, "y": (np.arange(N) % 3 == 0).astype(int)},
        "count": {"x": x, "y": rng.poisson(2.0, size=N)},
        "text": {"t": real, "u": x[:, 0], "c": np.array(["a", "b", "c"])[np.arange(N) % 3]},
    }


TABLES = tables()
CUSTOM = decoct.Model(
    lambda p, r: -0.5 * ((r["y"] - p["mu"]) / jnp.exp(p["s"])) ** 2 - p["s"],
    lambda p: -0.5 * p["mu"] ** 2 - 0.5 * p["s"] ** 2,
    {"mu": 0.0, "s": 0.0},
)
FORMULA = from_formula("t ~ u + C(c)", decoct.rows(TABLES["text"]), noise_scale=0.8)
CASES = {
    "gaussian": (models.GaussianMean(np.eye(2)), "none"),
    "linear": (models.LinearRegression(noise_scale=0.7), "real"),
    "linear, noise free": (models.LinearRegression(intercept=True), "real"),
    "logistic": (models.LogisticRegression(prior_scale=2.5, intercept=True), "binary"),
    "poisson softplus": (models.PoissonRegression(link="softplus"), "count"),
    "poisson log": (models.PoissonRegression(link="log"), "count"),
    "student": (models.StudentTRegression(), "real"),
    "student log-linear": (models.StudentTRegression(nu=4.0, scale="log-linear"), "real"),
    "formula": (FORMULA, "text"),
    "own functions": (CUSTOM, "real"),
}


def density(model, rows, weights):
    taken = encoded(decoct.rows(rows), model).take(np.arange(len(weights)))
    return WeightedDensity.of(model, taken, np.asarray(weights, dtype=float))


def select(rows, which):
    return {name: column[which] for name, column in rows.items()}


def test_every_model_of_the_package_is_tested_here():
    tested = {type(model).__name__ for model, _ in CASES.values()}
    assert tested >= {
        name for name in models.__all__ if isinstance(getattr(models, name), type)
    } - {"AbstractModel"}


@pytest.fixture(scope="module", params=CASES)
def pair(request):
    """A model, its table, weights with zeros, and the table with rows repeated so often."""
    model, kind = CASES[request.param]
    weights = np.arange(N) % 3.0
    repeated = select(TABLES[kind], np.repeat(np.arange(N), weights.astype(int)))
    return model, TABLES[kind], weights, repeated


def test_log_density_keeps_the_weights_contract(pair):
    model, rows, weights, repeated = pair
    count = int(weights.sum())
    weighted, plain = density(model, rows, weights), density(model, repeated, np.ones(count))
    z = 0.3 * np.random.default_rng(1).normal(size=(10, weighted.dim))
    np.testing.assert_allclose(log_densities(weighted, z), log_densities(plain, z), rtol=1e-12)
    # left out altogether, in another order, and against the sum written out
    kept = np.flatnonzero(weights)[::-1]
    absent = density(model, select(rows, kept), weights[kept])
    np.testing.assert_allclose(log_densities(absent, z), log_densities(weighted, z), rtol=1e-12)
    with jax.enable_x64(True):
        table = encoded(decoct.rows(rows), model).take(np.arange(N))
        space = weighted.space
        by_hand = [
            weights @ np.asarray(model.log_likelihood(space.unflatten(jnp.asarray(one)), table))
            + float(model.log_prior(space.unflatten(jnp.asarray(one))))
            for one in z
        ]
    np.testing.assert_allclose(log_densities(weighted, z), by_hand, rtol=1e-12)


def test_samplers_keep_the_weights_contract(pair):
    model, rows, weights, repeated = pair
    count, key = int(weights.sum()), jax.random.key(0)
    weighted, plain = density(model, rows, weights), density(model, repeated, np.ones(count))
    samplers = [Laplace()]
    if isinstance(model, AbstractConjugate) and model.is_conjugate:
        samplers.append(Exact())
    for sampler in samplers:
        a, b = (sampler.draw(key, one, 50).flat for one in (weighted, plain))
        np.testing.assert_allclose(a, b, atol=1e-7)


def test_laplace_of_weights_is_that_of_rows_repeated_so_often(pair):
    model, rows, weights, repeated = pair
    for given, table, apart in ((np.ones(N), rows, 1e-9), (weights, repeated, 1e-8)):
        weighted, plain = decoct.laplace(model, rows, given), decoct.laplace(model, table)
        np.testing.assert_allclose(plain.mean, weighted.mean, atol=apart)
        np.testing.assert_allclose(plain.cov, weighted.cov, atol=apart)


def test_laplace_of_no_weight_at_all_is_the_prior():
    fit = decoct.laplace(models.GaussianMean(np.eye(2)), TABLES["none"], np.zeros(N))
    np.testing.assert_allclose(fit.mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(fit.cov, np.eye(2))


def test_fractional_weights_are_scipys_maximum(pair):
    model, rows, *_ = pair
    weights = np.random.default_rng(3).exponential(size=N)
    target = density(model, rows, weights)
    found = minimize(lambda z: -log_densities(target, z[None])[0], target.start, tol=1e-12)
    fit = decoct.laplace(model, rows, weights)
    assert log_densities(target, fit.mean[None])[0] >= -found.fun - 1e-9
    # within half a nat of the top the log density is the quadratic to cubic order
    step, hessian = 1e-3 * np.linalg.cholesky(fit.cov).T, np.zeros(target.dim**2)
    for sign in (1.0, -1.0):
        corners = (step[:, None] + sign * step).reshape(-1, target.dim)
        for side in (1.0, -1.0):
            hessian += sign * log_densities(target, fit.mean + side * corners)
    expected = -np.eye(target.dim).ravel()
    np.testing.assert_allclose(hessian / 4e-6, expected, rtol=1e-3, atol=1e-3)


def test_a_row_of_weight_zero_may_have_no_potential_at_all():
    model = decoct.Model(
        lambda p, r: jnp.log(r["y"]) - p["a"] * r["y"], lambda p: -0.5 * p["a"] ** 2, {"a": 0.0}
    )
    rows = {"y": np.array([-1.0, 1.0, 2.0])}
    weights = np.array([0.0, 1.0, 1.0])
    fit = decoct.laplace(model, rows, weights)
    np.testing.assert_allclose(fit.mean, [-3.0])
    np.testing.assert_allclose(fit.cov, [[1.0]])


def prior_only(log_prior, init):
    model = decoct.Model(lambda p, r: 0.0 * r["y"] * p["a"].sum(), log_prior, {"a": init})
    return model, {"y": np.ones(3)}


SADDLES = {
    "saddle at the start": lambda p: -((p["a"][0] ** 2 - 1.0) ** 2) - p["a"][1] ** 2,
    "flat coordinate": lambda p: -(p["a"][0] ** 2),
    "flat": lambda p: 0.0 * p["a"].sum(),
    "ridge": lambda p: -(p["a"].sum() ** 2),
    "unbounded": lambda p: p["a"][0] ** 2 - p["a"][1] ** 2,
    "slope": lambda p: p["a"].sum(),
    "minimum": lambda p: (p["a"] ** 2).sum(),
    "quartic": lambda p: -(p["a"] ** 4).sum(),
}


@pytest.mark.parametrize("weights", [None, np.ones(3)])
@pytest.mark.parametrize("name", SADDLES)
def test_what_is_no_strict_maximum_is_a_sentence_and_never_nan(name, weights):
    model, rows = prior_only(SADDLES[name], np.zeros(2))
    with pytest.raises(ModelError, match="NUTS"):
        decoct.laplace(model, rows, weights)


def test_a_saddle_is_left_for_the_maximum():
    """At (0, 0); the maxima are at (±1, 0)."""
    fit = decoct.laplace(*prior_only(SADDLES["saddle at the start"], np.array([1e-3, 0.5])))
    assert abs(fit.mean[0]) == pytest.approx(1.0, abs=1e-8)
    assert (np.linalg.eigvalsh(fit.cov) > 0).all()


def test_newton_climbs_from_far_away():
    model, _ = CASES["poisson log"]
    init = {"beta": np.array([15.0, -12.0])}
    far = decoct.Model(lambda p, r: model.log_likelihood(p, r), model.log_prior, init)
    numeric = {name: column.astype(float) for name, column in TABLES["count"].items()}
    near = decoct.laplace(model, TABLES["count"])
    np.testing.assert_allclose(decoct.laplace(far, numeric).mean, near.mean, atol=1e-8)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("start", [1e8, -1e8, 30.0, 1e3])
@pytest.mark.parametrize("name", ["logistic", "poisson softplus", "poisson log", "student"])
def test_an_extreme_start_ends_at_the_mode_or_in_a_sentence(name, start, weighted):
    model, kind = CASES[name]
    rows = encoded(decoct.rows(TABLES[kind]), model).take(np.arange(N))
    init = jax.tree.map(lambda leaf: np.full(np.shape(leaf), start), model.init(rows))
    moved = decoct.Model(model.log_likelihood, model.log_prior, init)
    try:
        fit = decoct.laplace(moved, rows, np.ones(N) if weighted else None)
    except ModelError:
        return
    expected = decoct.laplace(model, TABLES[kind])
    np.testing.assert_allclose(fit.mean, expected.mean, atol=1e-6)


def test_newton_says_how_it_ended():
    asked = []

    def quadratic(z):
        asked.append(z)
        return Curvature(-0.5 * float(z @ z), -z, -np.eye(2))

    mode = maximise(quadratic, np.array([3.0, -4.0]))
    assert mode.status is ModeStatus.CONVERGED
    assert len(asked) <= 3
    asked.clear()
    np.testing.assert_allclose(mode.z, 0.0, atol=1e-15)

    def slope(z):
        asked.append(z)
        return Curvature(float(z.sum()), np.ones(2), np.zeros((2, 2)))

    mode = maximise(slope, np.zeros(2), max_evaluations=20)
    assert len(asked) <= 20
    assert not mode.status.ok


@pytest.mark.parametrize(
    "bad", [np.ones(3), np.full(N, -1.0), np.full(N, np.nan), np.full(N, np.inf)]
)
def test_bad_weights_are_refused(bad):
    with pytest.raises(ModelError, match="weights"):
        decoct.laplace(models.GaussianMean(np.eye(2)), TABLES["none"], bad)


def test_draws_have_the_moments_of_the_fit(pair):
    model, rows, weights, _ = pair
    target, fit, n = density(model, rows, weights), decoct.laplace(model, rows, weights), 4000
    drawn = Laplace().draw(jax.random.key(1), target, n)
    assert drawn.z.shape == (1, n, target.dim)
    z = np.linalg.solve(np.linalg.cholesky(fit.cov), (drawn.flat - fit.mean).T)
    assert np.abs(z.mean(axis=1)).max() < 4.5 / np.sqrt(n)
    assert np.abs(np.cov(z, ddof=0) - np.eye(target.dim)).max() < 4.5 * np.sqrt(2 / n)


def test_resampled_draws_are_nearer_to_the_posterior():
    """A gamma density in log coordinates: mean ψ(a), where Laplace's is log a."""
    shape, n = 4.0, 4000
    model = decoct.Model(
        lambda p, r: 0.0 * r["y"], lambda p: shape * p["z"] - jnp.exp(p["z"]), {"z": 0.5}
    )
    density = WeightedDensity.of(model, {"y": np.zeros(1)}, np.zeros(1))
    drawn = Laplace(resample=True).draw(jax.random.key(0), density, n)
    assert drawn.info["kl"] > 0.02
    z = drawn.flat[:, 0]
    assert len(np.unique(z)) == n
    error = 4.0 * np.sqrt(polygamma(1, shape) / n)
    assert error < 0.3 * (np.log(shape) - digamma(shape))
    assert abs(z.mean() - digamma(shape)) < error
