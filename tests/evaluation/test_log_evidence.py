"""log p(data) against closed forms and quadrature, its errors over keys, and what is refused."""

import json
from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

import decoct
from decoct.certificates.mode_probe import ModeSearch, OtherMode
from decoct.constructions import IteratedHilbert
from decoct.errors import CoresetFileError, ModelError, RequestError
from decoct.evaluation import log_evidence as module
from decoct.samplers import Exact, Laplace
from tests.problems import LINEAR, LOGISTIC, MODEL, N, coreset, draws

HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)
POINTS = np.random.default_rng(0).normal(loc=[1.0, -1.0], size=(400, 2))
MEAN = decoct.models.GaussianMean(np.eye(2))
TRUTH = sum(
    multivariate_normal.logpdf(x, np.zeros(400), np.eye(400) + np.ones((400, 400)))
    for x in POINTS.T
)


@cache
def exact_coreset():
    return decoct.build(MEAN, {"x": POINTS}, size=0, method=IteratedHilbert(site=True))


@cache
def rough():
    """A coreset that is deliberately off by 0.03 nats."""
    site = exact_coreset().site
    shifted = replace(site, linear=site.linear + 3.0, precision=0.9 * site.precision)
    return replace(exact_coreset(), site=shifted)


def sampled(given, seed, n=500):
    return given.sample(draws=n, chains=2, sampler=Exact(), seed=seed)


def test_a_gaussian_mean_is_the_closed_form():
    found = decoct.log_evidence(exact_coreset(), {"x": POINTS}, sampled(exact_coreset(), 1))
    assert found.value == pytest.approx(TRUTH, abs=4.0 * found.se + 1e-8)
    assert found.se < 0.01
    assert found.correction == pytest.approx(found.value - found.coreset_value)


def test_errors_are_calibrated():
    """Over 40 keys of a rough coreset, whose error is that of the correction."""
    pulls = []
    for seed in range(40):
        found = decoct.log_evidence(rough(), {"x": POINTS}, sampled(rough(), seed), seed=seed)
        assert found.correction_se > found.coreset_se
        pulls.append((found.value - TRUTH) / found.se)
    assert abs(np.mean(pulls)) < 4.0 / np.sqrt(40)
    assert 0.7 < np.std(pulls) < 1.4


def test_errors_of_the_bridge_are_calibrated():
    """40 keys of the coreset's own part, with independent draws of a posterior that is skewed."""
    rows, truth, beta, density = two_coefficients()
    everything = replace(
        coreset(), indices=np.arange(40), weights=np.ones(40), rows=rows, n_rows=40, site=None
    )
    weights, pulls = np.exp(density - logsumexp(density)), []
    for seed in range(40):
        rng = np.random.default_rng(seed + 1000)
        z = beta[rng.choice(len(beta), 1000, p=weights)] + 0.03 * rng.uniform(-0.5, 0.5, (1000, 2))
        value, se = module.log_normaliser(everything, z.reshape(2, 500, 2), rng)
        assert 1e-3 < se < 0.03
        pulls.append((value - truth) / se)
    assert abs(np.mean(pulls)) < 4.0 / np.sqrt(40)
    assert 0.7 < np.std(pulls) < 1.4


def test_linear_regression_is_the_closed_form():
    model = decoct.models.LinearRegression(noise_scale=1.3, prior_scale=0.7)
    built = decoct.build(model, LINEAR, size=10)
    found = decoct.log_evidence(built, LINEAR, sampled(built, 1))
    cov = 1.3**2 * np.eye(N) + 0.7**2 * LINEAR["x"] @ LINEAR["x"].T
    truth = multivariate_normal.logpdf(LINEAR["y"], np.zeros(N), cov)
    assert found.value == pytest.approx(truth, abs=4.0 * found.se + 1e-8)
    assert found.se < 0.01


@pytest.mark.slow
def test_a_sample_of_a_large_tables_rows_gives_the_quadrature():
    """A covariate of 21 levels, so that counts are all that quadrature needs of 200,000 rows."""
    rng, n, levels = np.random.default_rng(0), 200_000, np.linspace(-2.0, 2.0, 21)
    at = rng.integers(21, size=n)
    y = rng.random(n) < 1.0 / (1.0 + np.exp(2.0 - levels[at]))
    rows = {"x": np.column_stack([np.ones(n), levels[at]]), "y": y.astype(int)}
    built = decoct.build(MODEL, rows, size=0)
    given = built.sample(draws=500, chains=2)
    check = decoct.check(built, rows, given)
    found = decoct.log_evidence(built, rows, given, check=check)
    assert check.sampled_rows < 20_000
    laplace = built.laplace()
    steps = 0.1 * np.arange(-80, 81)
    grid = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
    factor = np.linalg.cholesky(laplace.cov)
    beta = laplace.mean + grid @ factor.T
    density = norm.logpdf(beta).sum(axis=1)
    for level, ones, all_rows in zip(levels, np.bincount(at, y), np.bincount(at), strict=True):
        eta = beta @ [1.0, level]
        density += ones * eta - all_rows * np.logaddexp(0.0, eta)
    truth = logsumexp(density) + np.log(0.01 * np.linalg.det(factor))
    assert found.value == pytest.approx(truth, abs=4.0 * found.se)
    assert found.se < 1e-2


@cache
def two_coefficients():
    """40 rows, log p(data) of a logistic regression by quadrature, and log densities on a grid."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(40, 2))
    rows = {"x": x, "y": (rng.random(40) < 1.0 / (1.0 + np.exp(-x @ [2.0, -1.0]))).astype(int)}
    grid = np.arange(-5.0, 7.0, 0.03)
    beta = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
    signs = np.where(rows["y"] > 0, 1.0, -1.0)
    density = norm.logpdf(beta).sum(axis=1)
    for row, sign in zip(x, signs, strict=True):
        density -= np.logaddexp(0.0, -sign * (beta @ row))
    return rows, logsumexp(density) + 2.0 * np.log(0.03), beta, density


def test_logistic_regression_is_the_quadrature():
    rows, truth, *_ = two_coefficients()
    built = decoct.build(MODEL, rows, size=20)
    given = built.sample(draws=1000, chains=4, sampler=Laplace(resample=True))
    found = decoct.log_evidence(built, rows, given)
    assert found.value == pytest.approx(truth, abs=4.0 * found.se)
    assert found.se < 0.02


def groups():
    """Eight groups of 20 rows each, and log p(data) by quadrature over both scales."""
    rng, J = np.random.default_rng(0), 8
    g = np.arange(160) % J
    y = 0.5 * rng.normal(size=J)[g] + rng.normal(size=160)

    def log_likelihood(phi, rows):
        standard = (rows["y"] - phi["effect"][rows["g"]]) * jnp.exp(-phi["log_noise"])
        return -0.5 * standard**2 - phi["log_noise"] - HALF_LOG_2PI

    def log_prior(p):
        """τ ~ HalfNormal(1), log σ ~ N(0, 1), z_j ~ N(0, 1); effects are τ z_j."""
        of_tau = jnp.log(2.0) - 0.5 * jnp.exp(2.0 * p["log_tau"]) - HALF_LOG_2PI + p["log_tau"]
        rest = jnp.append(p["unit"], p["log_noise"])
        return of_tau - 0.5 * (rest**2).sum() - (J + 1) * HALF_LOG_2PI

    model = decoct.Model(
        log_likelihood,
        log_prior,
        {"log_noise": 0.0, "log_tau": 0.0, "unit": np.zeros(J)},
        likelihood_params=lambda p: {
            "effect": jnp.exp(p["log_tau"]) * p["unit"],
            "log_noise": p["log_noise"],
        },
    )
    log_tau, log_noise = np.linspace(-10.0, 4.0, 1401)[:, None], np.linspace(-1.5, 1.5, 301)
    density = np.log(2.0) + norm.logpdf(np.exp(log_tau)) + log_tau + norm.logpdf(log_noise)
    variance = np.exp(2.0 * log_noise)
    for j in range(J):
        own = y[g == j]
        ratio = len(own) * np.exp(2.0 * log_tau) / variance
        squares = (own**2).sum() - own.sum() ** 2 / len(own) * ratio / (1.0 + ratio)
        density = density - len(own) * (HALF_LOG_2PI + log_noise)
        density = density - 0.5 * np.log1p(ratio) - 0.5 * squares / variance
    return model, {"g": g, "y": y}, logsumexp(density) + np.log(0.01 * 0.01)


def test_a_multilevel_model_is_the_quadrature():
    model, rows, truth = groups()
    built = decoct.build(model, rows, size=0)
    assert built.density.has_likelihood_params
    found = decoct.log_evidence(built, rows, built.sample(draws=500, chains=4, warmup=500))
    assert found.value == pytest.approx(truth, abs=4.0 * found.se)
    assert found.se < 0.1


def test_the_constant_of_the_site_cancels():
    raised = replace(rough(), site=replace(rough().site, constant=rough().site.constant + 5.0))
    one, other = (
        decoct.log_evidence(given, {"x": POINTS}, sampled(given, 1)) for given in (rough(), raised)
    )
    assert other.coreset_value == pytest.approx(one.coreset_value + 5.0, abs=1e-8)
    assert other.correction == pytest.approx(one.correction - 5.0, abs=1e-8)
    assert other.value == pytest.approx(one.value, abs=1e-8)


def test_a_certificate_at_hand_makes_no_pass():
    check = decoct.check(coreset(), LOGISTIC, draws())
    found = decoct.log_evidence(coreset(), None, draws(), check=check)
    assert found == decoct.log_evidence(coreset(), LOGISTIC, draws())
    assert found.verdict == check.verdict
    assert json.loads(json.dumps(found.to_dict()))["value"] == found.value
    assert repr(found).startswith(f"log p(data) = {found.value:,.1f}"[:18])
    assert f"Certificate: {check.verdict}." in repr(found)


def test_doubts_are_passed_on():
    check = decoct.check(coreset(), LOGISTIC, draws())
    few = draws()["unconstrained_posterior"]["z"].to_numpy()[:1, :60]
    z = np.repeat(few, 2, axis=1)  # worth fewer than 100 independent ones
    found = decoct.log_evidence(coreset(), LOGISTIC, z)
    assert found.verdict.startswith("doubtful")
    with pytest.raises(RequestError, match="not the ones that were checked"):
        decoct.log_evidence(coreset(), None, z, check=check)


def test_a_certificate_that_refuses_is_the_end_of_it():
    site = exact_coreset().site
    far = replace(exact_coreset(), site=replace(site, linear=site.linear + 60.0))
    with pytest.raises(RequestError, match="verdict is 'do not use"):
        decoct.log_evidence(far, {"x": POINTS}, sampled(far, 1))


def test_one_mode_of_several_is_no_evidence():
    check = decoct.check(coreset(), LOGISTIC, draws())
    other = OtherMode(0.4, ("beta[0]",))
    with pytest.raises(RequestError, match="lack the mass of the other modes"):
        decoct.log_evidence(
            coreset(), None, draws(), check=replace(check, modes=ModeSearch(20, (other,)))
        )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rows": None}, "Give the rows"),
        ({"draws": np.zeros((50, 3))}, "There are 50 draws, in 1 chains of 50; at least 100"),
        ({"draws": np.zeros((200, 4))}, "3 unconstrained parameters"),
        ({"draws": np.zeros((200, 1, 3))}, "200 chains of 1; at least 100, and 4 a chain"),
        ({"draws": np.zeros((2, 100, 3))}, "one value in all draws"),
        ({"draws": np.full((2, 100, 3), np.nan)}, "A draw is NaN or infinite"),
        ({"check": "good"}, "not a str"),
        ({"seed": 0.5}, "seed must be a whole number"),
    ],
)
def test_bad_requests_are_refused(given, sentence):
    asked = {"rows": LOGISTIC, "draws": draws(), **given}
    with pytest.raises(RequestError, match=sentence):
        decoct.log_evidence(coreset(), **asked)


def test_a_prior_without_an_integral_gives_no_evidence():
    numpyro = pytest.importorskip("numpyro")
    pm = pytest.importorskip("pymc")
    dist, real = numpyro.distributions, numpyro.distributions.constraints.real
    y = np.random.default_rng(0).normal(size=60)

    def model(y):
        mu = numpyro.sample("mu", dist.ImproperUniform(real, (), ()))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    with pm.Model() as other:
        data = pm.Data("y", y)
        pm.Normal("seen", pm.Flat("mu"), pm.HalfFlat("sigma"), observed=data)
    bridges = decoct.from_numpyro(model, {"y": y}, plate="data"), decoct.from_pymc(other)
    assert [one.improper for one in bridges] == [("mu",), ("mu", "sigma")]
    for one in bridges:
        built = decoct.build(one, one.rows, size=0)
        drawn = built.sample(draws=100, chains=2, sampler=Laplace())
        with pytest.raises(RequestError, match="The prior of 'mu' has no integral"):
            decoct.log_evidence(built, one.rows, drawn)


def test_other_certificates_draws_and_tables_are_refused():
    check = decoct.check(coreset(), LOGISTIC, draws())
    small = decoct.build(MODEL, LOGISTIC, size=10)
    with pytest.raises(RequestError, match="not the ones that were checked"):
        decoct.log_evidence(small, None, draws()["unconstrained_posterior"]["z"], check=check)
    others = draws()["unconstrained_posterior"]["z"].to_numpy() + 1e-3
    others[0] *= 1.01
    with pytest.raises(RequestError, match="not the ones that were checked"):
        decoct.log_evidence(coreset(), None, others, check=check)
    with pytest.raises(RequestError, match="already corrected towards the full posterior"):
        decoct.log_evidence(coreset(), LOGISTIC, check.correct(draws()))
    shorter = {name: column[:-1] for name, column in LOGISTIC.items()}
    with pytest.raises(CoresetFileError, match="512 rows"):
        decoct.log_evidence(coreset(), shorter, draws())


def test_an_error_that_is_too_large_is_no_answer(monkeypatch):
    monkeypatch.setattr(module, "MOST_ERROR", 1e-9)
    with pytest.raises(RequestError, match="take more draws"):
        decoct.log_evidence(coreset(), LOGISTIC, draws())


def test_a_density_that_is_no_number_is_an_error():
    check = decoct.check(coreset(), LOGISTIC, draws())
    median = float(np.median(draws()["posterior"]["beta"][..., 0]))
    model = decoct.Model(
        lambda p, rows: -jnp.logaddexp(0.0, -rows["y"] * (rows["x"] @ p["beta"])),
        lambda p: jnp.where(p["beta"][0] > median, jnp.nan, 0.0),
        {"beta": np.zeros(3)},
    )
    with pytest.raises(ModelError, match="NaN at a point"):
        decoct.log_evidence(replace(coreset(), model=model), None, draws(), check=check)


def test_many_parameters_and_few_draws():
    """A covariance fitted to fewer draws than parameters is drawn to its diagonal."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2, 50, 60))
    chosen = module._proposal(z, rng.normal(size=(2, 50, 60)), ())
    assert np.linalg.eigvalsh(chosen.cov)[0] > 0.1
    exact = decoct.stats.Gaussian(np.zeros(60), np.eye(60))
    assert module._proposal(z, rng.normal(size=z.shape), (exact,)) is exact
