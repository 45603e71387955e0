"""Coresets as Stan data: what is written, and what a weighted Stan program makes of it."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.constructions import IteratedHilbert, Uniform
from decoct.models.site import ThirdOrder

stanli = pytest.importorskip("stanli")

LOGISTIC = """
data {
  int<lower=0> N;
  int<lower=1> D;
  array[N] vector[D] x;
  array[N] int<lower=0, upper=1> y;
  vector<lower=0>[N] w;
  real<lower=0> prior_scale;
}
parameters { vector[D] beta; }
model {
  target += normal_lpdf(beta | 0, prior_scale);
  for (n in 1:N) target += w[n] * bernoulli_logit_lpmf(y[n] | dot_product(x[n], beta));
}
"""

VARYING = """
data {
  int<lower=0> N;
  int<lower=1> J;
  array[N] int<lower=1, upper=J> county;
  vector[N] log_radon;
  vector<lower=0>[N] w;
}
parameters {
  real mu;
  real<lower=0> tau;
  vector[J] eta;
}
model {
  mu ~ normal(0, 5);
  tau ~ normal(0, 1);
  eta ~ normal(0, 1);
  for (n in 1:N) target += w[n] * normal_lpdf(log_radon[n] | mu + tau * eta[county[n]], 0.8);
}
"""


def logistic_coreset(size=40, n=400, seed=0, site=False):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    y = rng.random(n) < 1 / (1 + np.exp(-x @ np.array([1.0, -0.5, 0.0])))
    model = decoct.models.LogisticRegression(prior_scale=2.0)
    method = IteratedHilbert(site=site)
    return decoct.build(model, {"x": x, "y": y}, size=size, method=method)


@pytest.fixture(scope="module")
def coreset():
    return logistic_coreset()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "rows.json"


def program(code, file):
    return stanli.Model(stan_code=code, data=str(file))


def test_the_weighted_program_has_the_coresets_density(coreset, file):
    """Up to a constant, and with the same gradient."""
    coreset.to_stan(file, constants={"D": 3, "prior_scale": 2.0})
    model = program(LOGISTIC, file)
    with jax.enable_x64(True):
        ours = jax.value_and_grad(lambda z: coreset.log_density(z))
        points = np.random.default_rng(1).normal(size=(6, 3))
        at_points = [(ours(jnp.asarray(z)), model.log_prob_grad(z)) for z in points]
    shift = [theirs[0] - float(mine[0]) for mine, theirs in at_points]
    np.testing.assert_allclose(shift, shift[0], atol=1e-9)
    for mine, theirs in at_points:
        np.testing.assert_allclose(theirs[1], mine[1], atol=1e-9)


def test_stan_samples_the_coreset_posterior(coreset, file):
    """Means of Stan's NUTS and of decoct's agree, and the certificate takes Stan's draws."""
    coreset.to_stan(file, constants={"D": 3, "prior_scale": 2.0})
    fit = program(LOGISTIC, file).sample(
        chains=4, seed=1, warmup=500, samples=1000, parallel_chains=1, refresh=0
    )
    theirs = np.stack([fit.draws(f"beta[{i}]") for i in (1, 2, 3)], axis=-1)
    ours = coreset.sample(draws=1000, chains=4, seed=2, warmup=500)["posterior"]["beta"]
    ours, flat = ours.to_numpy().reshape(-1, 3), theirs.reshape(-1, 3)
    # two means of at least 2,000 effective draws each
    assert np.abs((flat.mean(0) - ours.mean(0)) / ours.std(0)).max() < 4 * np.sqrt(2 / 2000)
    np.testing.assert_allclose(flat.std(0) / ours.std(0), 1.0, atol=0.1)
    x, y = coreset.rows["x"], coreset.rows["y"]
    assert x.shape == (coreset.size, 3)
    assert len(y) == coreset.size


def test_group_numbers_count_from_one(file):
    """Trap: Stan counts from 1, and the coreset's rows from 0."""
    rng = np.random.default_rng(3)
    county = rng.integers(5, size=200)
    rows = {"county": county, "y": rng.normal(size=5)[county] + rng.normal(size=200)}

    def log_likelihood(params, rows):
        mean = params["mu"] + jnp.exp(params["log_tau"]) * params["offset"][rows["county"]]
        return -0.5 * ((rows["y"] - mean) / 0.8) ** 2

    def log_prior(params):
        normal = -0.5 * ((params["mu"] / 5) ** 2 + (params["offset"] ** 2).sum())
        return normal - 0.5 * jnp.exp(2 * params["log_tau"]) + params["log_tau"]

    start = {"mu": 0.0, "log_tau": 0.0, "offset": np.zeros(5)}
    model = decoct.Model(log_likelihood, log_prior, start)
    coreset = decoct.build(model, rows, size=25, method=Uniform())
    columns = {"county": "county", "y": "log_radon"}
    coreset.to_stan(file, columns=columns, constants={"J": 5}, count_from_one=["county"])
    written = json.loads(file.read_text())
    np.testing.assert_array_equal(written["county"], coreset.rows["county"] + 1)
    stan = program(VARYING, file)
    shift = []
    for _ in range(4):
        mu, log_tau, offset = rng.normal(), rng.normal(), rng.normal(size=5)
        # decoct's flat parameters are in the order of the names
        ours = float(coreset.log_density(np.r_[log_tau, mu, offset]))
        shift.append(stan.log_prob_grad(np.r_[mu, log_tau, offset])[0] - ours)
    np.testing.assert_allclose(shift, shift[0], atol=1e-9)


def test_a_weight_is_a_repetition(file, tmp_path):
    """Weight 2 is the row twice, in Stan as in decoct."""
    coreset = logistic_coreset(size=10, n=60)
    times = np.arange(1, coreset.size + 1)
    kept = np.repeat(np.arange(coreset.size), times)
    repeated = decoct.Coreset(
        np.arange(len(kept)),
        np.ones(len(kept)),
        {k: v[kept] for k, v in coreset.rows.items()},
        len(kept),
        coreset.model,
        coreset.report,
    )
    whole = decoct.Coreset(
        coreset.indices, times.astype(float), coreset.rows, 60, coreset.model, coreset.report
    )
    constants = {"D": 3, "prior_scale": 2.0}
    whole.to_stan(file, constants=constants)
    repeated.to_stan(tmp_path / "repeated.json", constants=constants)
    z = np.array([0.4, -0.2, 0.1])
    first = program(LOGISTIC, file).log_prob_grad(z)[0]
    second = program(LOGISTIC, tmp_path / "repeated.json").log_prob_grad(z)[0]
    assert first == pytest.approx(second, rel=1e-12)


def test_what_is_written(coreset, file):
    """Numbers to the last bit, booleans as 0 and 1, whole numbers whole."""
    coreset.to_stan(file, columns={"x": "covariates", "y": "late"}, constants={"J": 3})
    written = json.loads(file.read_text())
    assert list(written) == ["N", "w", "covariates", "late", "J"]
    assert written["N"] == coreset.size
    assert written["J"] == 3
    np.testing.assert_array_equal(written["w"], coreset.weights)
    np.testing.assert_array_equal(written["covariates"], coreset.rows["x"])
    assert written["late"] == [int(value) for value in coreset.rows["y"]]
    assert [p.name for p in file.parent.iterdir()] == ["rows.json"]


SITE_DATA = """
  int<lower=1> d;
  vector[d] site_centre;
  vector[d] site_linear;
  matrix[d, d] site_precision;
  int<lower=0> site_terms;
  array[site_terms] int<lower=1> site_effects;
  vector[site_terms] site_scales;
  vector[site_terms] site_sizes;
  array[site_terms] int<lower=1> site_partners;
  vector[site_terms] site_factors;
}
parameters"""

SITE_TARGET = """
  vector[d] site_bent = site_precision * (beta - site_centre);
  vector[site_terms] site_z = (site_bent[site_effects]
                               + site_factors .* site_bent[site_partners]) ./ site_scales;
  target += dot_product(site_linear, beta - site_centre)
            - 0.5 * quad_form(site_precision, beta - site_centre)
            + dot_product(site_sizes, site_z .* (0.19258643921647325 * square(site_z)
                                                 ./ (1 + square(site_z) / 64)
                                                 - 0.5369641243218337));
}
"""
WITH_SITE = LOGISTIC.replace("\n}\nparameters", SITE_DATA)[:-2] + SITE_TARGET


@pytest.mark.parametrize("size", [0, 5])
@pytest.mark.parametrize("terms", [0, 2])
def test_a_site_is_two_more_statements(size, terms, file):
    """Rows and site together have the coreset's density, up to a constant, and its gradient."""
    built = logistic_coreset(size=size, site=True)
    assert built.site is not None
    third = ThirdOrder(np.array([2, 0]), np.array([3.0, 2.0]), np.array([0.2, -0.1]))
    if size:
        third = replace(third, partners=np.array([1, 2]), factors=np.array([0.3, -0.5]))
    site = replace(built.site, third_order=third if terms else None)
    coreset = replace(built, site=site)
    assert coreset.size <= size
    coreset.to_stan(file, constants={"D": 3, "prior_scale": 2.0})
    written = json.loads(file.read_text())
    assert written["N"] == coreset.size == len(written["w"])
    assert written["d"] == 3
    assert written["site_terms"] == terms
    np.testing.assert_array_equal(written["site_precision"], site.precision)
    model = program(WITH_SITE, file)
    shift = []
    with jax.enable_x64(True):
        ours = jax.value_and_grad(lambda z: coreset.log_density(z))
        for z in np.random.default_rng(1).normal(size=(6, 3)):
            value, gradient = ours(jnp.asarray(z))
            theirs = model.log_prob_grad(z)
            shift.append(theirs[0] - float(value))
            np.testing.assert_allclose(theirs[1], gradient, atol=1e-9)
    np.testing.assert_allclose(shift, shift[0], atol=1e-9)


def table_coreset(**columns):
    rows = {"y": np.linspace(-1.0, 1.0, 8), **columns}
    model = decoct.Model(
        lambda p, rows: -0.5 * (rows["y"] - p["m"]) ** 2, lambda p: -0.5 * p["m"] ** 2, {"m": 0.0}
    )
    kept = np.arange(8)
    report = decoct.build(model, {"y": rows["y"]}, size=3, method=Uniform()).report
    return decoct.Coreset(kept, np.ones(8), rows, 8, model, report)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"who": np.array(list("abcdefgh"))}, {}, r"Column 'who' has .*numbers of its levels"),
        (
            {"x": np.r_[np.inf, np.ones(7)]},
            {},
            r"Column 'x' is not finite in .* 0",
        ),
        ({"w": np.ones(8)}, {}, r"Two entries would have the name 'w'.*columns=\{'w': 'w_1'\}"),
        ({"wind speed": np.ones(8)}, {}, r"'wind speed' is not a valid name in Stan"),
        ({"x__": np.ones(8)}, {}, r"'x__' is not a valid name in Stan"),
        ({}, {"columns": ["x"]}, r"no column 'x'; it has y"),
        ({}, {"columns": "y"}, r"give a list of names"),
        ({}, {"constants": {"y": 1}}, r"Two entries would have the name 'y'"),
        ({}, {"constants": {"J": "many"}}, r"Constant 'J' has the type"),
        ({}, {"constants": {"s": np.nan}}, r"Constant 's' is not finite"),
        ({}, {"count_from_one": ["g"]}, r"count_from_one has 'g'"),
        ({}, {"count_from_one": ["y"]}, r"values are not whole numbers from 0"),
    ],
)
def test_what_stan_cannot_hold(columns, options, message, file):
    with pytest.raises(decoct.RequestError, match=message):
        table_coreset(**columns).to_stan(file, **options)
    assert not file.exists()


def test_a_folder_that_is_not_there(coreset, tmp_path):
    with pytest.raises(decoct.RequestError, match="there is no folder"):
        coreset.to_stan(tmp_path / "nowhere" / "rows.json")
