"""From a PyMC model to a coreset, and back into PyMC's own samplers."""

from typing import Any

import jax
import numpy as np
import pytest
from arviz_stats.base import array_stats

import decoct
from decoct.bridges.pymc import from_pymc
from decoct.constructions import Uniform
from decoct.samplers import Laplace
from tests.bridges.pymc_import import pm, quiet
from tests.bridges.pymc_zoo import homes, logistic, logistic_rows, varying_intercepts

pytestmark = quiet
FAST = {"mode": "FAST_COMPILE", "on_unused_input": "ignore", "point_fn": False}
ROWS = logistic_rows(600)


@pytest.fixture(scope="module")
def bridge():
    with jax.numpy_rank_promotion("allow"):
        return from_pymc(logistic(*ROWS))


@pytest.fixture(scope="module")
def coreset(bridge):
    with jax.numpy_rank_promotion("allow"):
        return decoct.build(bridge, bridge.rows, size=30, sampler=Laplace(judge=False))


DRAWS = 2500
"""Draws per chain where two runs are compared: their means are then known to 0.017 sd."""


def run_pymc(model, seed, draws, **options):
    with model:
        return pm.sample(
            draws=draws,
            tune=400,
            chains=2,
            cores=1,
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
            **options,
        )


@pytest.fixture(scope="module")
def own_draws(coreset):
    """What users call: pm.sample() with no word about backends."""
    return run_pymc(coreset.to_pymc(), 4, DRAWS)


def moments(idata):
    """Return means, sds and the Monte Carlo errors of the means, in sd."""
    draws = idata["posterior"]["beta"].to_numpy()
    ess = array_stats.ess(draws, chain_axis=0, draw_axis=1, method="mean")
    error = 1.0 / np.sqrt(np.minimum(ess, draws.size // 3))
    return draws.mean(axis=(0, 1)), draws.std(axis=(0, 1)), error


def test_pymc_samples_the_coreset_to_the_full_posterior(own_draws, coreset, bridge):
    """Means within 0.1 sd of PyMC's run on all rows, and the certificate takes the draws.

    The Monte Carlo error of a difference of two means is below 0.025 sd, so that a shift of 0.1
    could not be one of its four-fold.
    """
    small, full = own_draws, run_pymc(bridge.model, 1, DRAWS)
    assert set(small["posterior"].data_vars) == {"beta", "odds"}
    assert small["posterior"]["beta"].dims == ("chain", "draw", "feature")
    (mean, spread, error), (full_mean, full_spread, full_error) = moments(small), moments(full)
    assert np.hypot(error, full_error).max() < 0.025
    np.testing.assert_allclose(spread / full_spread, 1.0, atol=0.1)
    assert np.abs((mean - full_mean) / full_spread).max() < 0.1
    flat = bridge.unconstrain(small)
    assert flat.shape == (2, DRAWS, 3)
    np.testing.assert_array_equal(flat, small["posterior"]["beta"])
    check = decoct.check(coreset, bridge.rows, flat)
    assert check.ok
    assert check.kl < 1e-6
    with pytest.raises(decoct.ModelError, match="lack the free variable 'beta'"):
        bridge.unconstrain({"odds": flat})


def exact_means(coreset):
    """Return E_w[beta] by importance sampling from the Laplace approximation of π_w."""
    gaussian = coreset.laplace()
    z = gaussian.sample(np.random.default_rng(0), 20_000)
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        ratios = np.asarray(jax.jit(jax.vmap(coreset.log_density))(z)) - gaussian.log_density(z)
    q = np.exp(ratios - ratios.max())
    q /= q.sum()
    assert 1.0 / (q @ q) > 15_000  # its own Monte Carlo error is below 0.01 sd
    return q @ z


def assert_samples_of(coreset, idata):
    """Means within 0.1 sd of the exact ones of π_w, three of the sampler's Monte Carlo errors."""
    mean, spread, error = moments(idata)
    assert 3.0 * error.max() < 0.1
    assert np.abs((mean - exact_means(coreset)) / spread).max() < 0.1


@pytest.mark.usefixtures("wide")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_nutpie_samples_the_coreset(coreset):
    nutpie = pytest.importorskip("nutpie")
    compiled = nutpie.compile_pymc_model(coreset.to_pymc(), backend="jax", gradient_backend="jax")
    idata = nutpie.sample(
        compiled, draws=600, tune=400, chains=2, cores=1, seed=1, progress_bar=False
    )
    assert_samples_of(coreset, idata)


def test_pymcs_default_backend_samples_the_coreset(own_draws, coreset):
    assert own_draws["posterior"]["beta"].shape == (2, DRAWS, 3)
    assert_samples_of(coreset, own_draws)


@pytest.mark.usefixtures("wide")
def test_pymcs_jax_backend_samples_the_coreset(coreset):
    assert_samples_of(coreset, run_pymc(coreset.to_pymc(), 0, 600, compile_kwargs={"mode": "JAX"}))


def test_the_weighted_model_is_the_users_with_its_names():
    """The copy: data, dims, labels, deterministics; the user's own model stays as it is."""
    model = varying_intercepts(*homes(80, n_counties=5))
    bridge = from_pymc(model)
    coreset = decoct.build(bridge, bridge.rows, size=12, method=Uniform())
    weighted = coreset.to_pymc()
    names = {"mu", "tau", "slope", "sigma", "offset"}
    assert {rv.name for rv in weighted.free_RVs} == names
    assert {rv.name for rv in weighted.observed_RVs} == {"radon"}
    assert {d.name for d in weighted.deterministics} == {"alpha", "mean"}
    assert [p.name for p in weighted.potentials] == ["coreset_weighting"]
    np.testing.assert_array_equal(weighted["coreset_weights"].get_value(), coreset.weights)
    np.testing.assert_array_equal(weighted["where"].get_value(), coreset.rows["where"])
    assert weighted.coords["home"] == tuple(1000 + coreset.indices)
    assert weighted.coords["county"] == model.coords["county"]
    assert len(model.coords["home"]) == len(model["where"].get_value()) == 80
    z = np.random.default_rng(1).normal(size=9)
    density = weighted.compile_fn(weighted.logp(), inputs=weighted.value_vars, **FAST)
    params = dict(zip(sorted(names), np.split(z, [1, 6, 7, 8]), strict=True))
    given = [params[rv.name].reshape(rv.type.ndim * (5,)) for rv in weighted.free_RVs]
    np.testing.assert_allclose(density(*given), coreset.log_density(z), rtol=1e-12)


def test_draws_have_the_models_dimensions_and_labels():
    bridge = from_pymc(varying_intercepts(*homes(80, n_counties=5)))
    coreset = decoct.build(bridge, bridge.rows, size=80, method=Uniform())
    draws = coreset.sample(draws=10, chains=1, sampler=Laplace(judge=False))["posterior"]
    assert set(draws.data_vars) == {"mu", "tau", "slope", "sigma", "offset", "alpha"}
    assert draws["alpha"].dims == ("chain", "draw", "county")
    assert list(draws["county"].to_numpy()) == [f"county {i}" for i in range(5)]


def test_data_without_dimensions_and_initial_values():
    """Trap: PyMC cannot copy a model that has initial values."""
    with pm.Model(coords={"row": range(30)}) as model:
        y = pm.Data("y", np.linspace(-1.0, 1.0, 30))
        mu = pm.Normal("mu", 0.0, 1.0, initval=0.25)
        pm.Normal("seen", mu, 1.0, observed=y, dims="row")
    bridge = from_pymc(model)
    weighted = decoct.build(bridge, bridge.rows, size=6, method=Uniform()).to_pymc()
    assert len(weighted.coords["row"]) == 6
    assert weighted.rvs_to_initial_values[weighted["mu"]] == 0.25
    assert model.rvs_to_initial_values[mu] == 0.25
    with weighted:
        drawn = pm.draw(weighted["seen"], random_seed=0, mode="FAST_COMPILE")
    assert drawn.shape == (6,)


def test_a_categorical_response_of_many_rows():
    """Trap: PyTensor's limits of a range are int8, in which JAX cannot count beyond 127 rows."""
    x = np.random.default_rng(8).normal(size=300)
    kind = np.arange(300) % 3
    with pm.Model() as model:
        covariate, response = pm.Data("x", x), pm.Data("kind", kind)
        beta = pm.Normal("beta", 0.0, 1.0, shape=2)
        eta = pm.math.stack([0 * covariate, beta[0] * covariate, beta[1] * covariate], axis=1)
        pm.Categorical("seen", logit_p=eta, observed=response)
    bridge = from_pymc(model)
    with jax.enable_x64(True):
        values = bridge.log_likelihood({"beta": np.array([0.3, -0.4])}, {"x": x, "kind": kind})
    linear = np.outer(x, [0.0, 0.3, -0.4])
    wanted = linear[np.arange(300), kind] - np.logaddexp.reduce(linear, axis=1)
    np.testing.assert_allclose(values, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("named", [False, True])
def test_bernoulli_responses_with_logits(named):
    """As PyMC's own density, also with p a deterministic variable and impossible responses."""
    x, y = np.linspace(-3.0, 3.0, 9), np.array([0, 1, 1, 0, 1, 0, 0, 1, 1])
    with pm.Model() as model:
        covariate, response = pm.Data("x", x), pm.Data("y", y)
        slope = pm.LogNormal("slope", 0.0, 1.0)
        if named:
            p = pm.Deterministic("p", pm.math.invlogit(slope * covariate))
            pm.Bernoulli("seen", p=p, observed=response)
        else:
            pm.Bernoulli("seen", logit_p=slope * covariate, observed=response)
    bridge = from_pymc(model)
    params = {"slope": np.array(0.7)}
    pointwise = model.logp(vars=model.observed_RVs, sum=False)
    theirs = model.compile_fn(pointwise, inputs=model.value_vars, **FAST)(np.array(0.7))[0]
    with jax.enable_x64(True):
        values = bridge.log_likelihood(params, {"x": x, "y": y})
        impossible = bridge.log_likelihood(params, {"x": x[:2], "y": np.array([2, -1])})
    np.testing.assert_allclose(values, theirs, rtol=1e-12)
    np.testing.assert_array_equal(impossible, -np.inf)
    with jax.enable_x64(True):
        fn = jax.jit(lambda p, rows: bridge.log_likelihood(p, rows))
        lowered: Any = fn.lower(params, {"x": x, "y": y})
    # PyMC's softplus of logits of either sign has two
    assert lowered.compile().as_text().count(" log-plus-one(") == 1


def test_save_and_load(tmp_path, coreset, bridge):
    coreset.save(tmp_path / "late.parquet")
    loaded = decoct.load(tmp_path / "late.parquet", model=bridge)
    z = np.array([0.3, -0.1, 0.2])
    assert float(loaded.log_density(z)) == float(coreset.log_density(z))
    assert len(loaded.to_pymc()["y"].get_value()) == coreset.size
    assert bridge.to_dict()["kind"] == "pymc"
