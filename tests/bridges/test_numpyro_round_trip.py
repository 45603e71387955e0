"""From a NumPyro model to a coreset, and back into NumPyro's own samplers."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numpyro")

import arviz_base
import jax
import numpyro
from arviz_stats.base import array_stats
from numpyro import infer
from numpyro.infer import Predictive

import decoct
from decoct.bridges.numpyro import from_numpyro
from decoct.constructions import Uniform
from decoct.samplers import NUTS, Laplace
from tests.bridges.numpyro_zoo import homes, logistic, logistic_rows, varying_intercepts

ROWS = homes(600, n_counties=6)
NEW = {"county": np.array([0, 5, 2]), "floor": np.array([0, 1, 1])}


@pytest.fixture(scope="module")
def bridge():
    with jax.numpy_rank_promotion("allow"):
        return from_numpyro(varying_intercepts, ROWS)


@pytest.fixture(scope="module")
def coresets(bridge):
    """A site alone, and one with rows."""
    with jax.numpy_rank_promotion("allow"):
        return decoct.path(bridge, bridge.rows, [0, 40])


@pytest.fixture(scope="module")
def coreset(coresets):
    return coresets[1]


@pytest.fixture(scope="module")
def draws(coreset):
    with jax.numpy_rank_promotion("allow"):
        sampler = NUTS(warmup=300, target_acceptance=0.99)
        return coreset.sample(draws=500, chains=2, sampler=sampler)


DRAWS = 3000
"""NumPyro's draws per chain: means are then known to 0.017 sd, and two of them can be compared."""


def run_nuts(model, *args, seed=0, **kwargs):
    kernel = infer.NUTS(model)
    options = {"num_chains": 2, "chain_method": "vectorized", "progress_bar": False}
    mcmc = infer.MCMC(kernel, num_warmup=300, num_samples=DRAWS, **options)
    mcmc.run(jax.random.key(seed), *args, **kwargs)
    return mcmc


@pytest.fixture(scope="module")
def own_draws(coreset):
    with jax.numpy_rank_promotion("allow"):
        model, args = coreset.to_numpyro()
        return run_nuts(model, *args)


def test_build_and_certificate(coreset, bridge, draws):
    assert coreset.size <= 40
    check = decoct.check(coreset, bridge.rows, draws)
    assert check.ok


def test_the_cubic_part_of_the_noise_is_all_that_a_quadratic_lacks(bridge, coresets):
    """In units of the noise, where N log(1/σ) is no quadratic."""
    built, _ = coresets
    with jax.numpy_rank_promotion("allow"):
        quadratic = replace(built, site=built.site.quadratic())
        sampler = NUTS(warmup=300, target_acceptance=0.99)
        draws = quadratic.sample(draws=500, chains=2, sampler=sampler)
    check = decoct.check(quadratic, bridge.rows, draws)
    assert check.kl_interval[0] < 1.0 / (24 * built.n_rows) < check.kl_interval[1]


def test_draws_have_numpyros_names_shapes_and_axes(draws):
    posterior = draws["posterior"]
    assert set(posterior.data_vars) == {"mu", "tau", "slope", "sigma", "offset", "alpha"}
    assert posterior["alpha"].dims == posterior["offset"].dims == ("chain", "draw", "county")
    np.testing.assert_array_equal(posterior["county"], np.arange(6))
    assert posterior["tau"].dtype == np.float64
    assert (posterior["tau"] > 0).all()
    mu, tau, offset = (posterior[name] for name in ("mu", "tau", "offset"))
    np.testing.assert_allclose(posterior["alpha"], mu + tau * offset, rtol=1e-12)
    assert {"diverging", "n_steps"} <= set(draws["sample_stats"].data_vars)


@pytest.fixture(scope="module")
def full_draws():
    """NumPyro's run of the user's own model on all rows."""
    with jax.numpy_rank_promotion("allow"):
        kwargs = {k: v for k, v in ROWS.items() if k != "n_counties"}
        return run_nuts(varying_intercepts, **kwargs, n_counties=6, seed=1)


def sizes(values):
    """Return the effective sample size of the mean of every scalar of a (chains, S, ...) array."""
    ess = array_stats.ess(values, chain_axis=0, draw_axis=1, method="mean")
    return np.minimum(ess, np.prod(values.shape[:2]))


def test_numpyro_samples_the_coreset_to_the_full_posterior(own_draws, full_draws):
    """Means within 0.1 sd of NumPyro's run on all rows, spread within a tenth.

    The Monte Carlo error of a difference of two means is √(1/ESS + 1/ESS'): below 0.025 sd, so that
    a shift of 0.1 could not be one of its four-fold.
    """
    small, full = (one.get_samples(group_by_chain=True) for one in (own_draws, full_draws))
    for name in ("slope", "sigma", "alpha"):
        ours, theirs = (np.asarray(one[name], dtype=np.float64) for one in (small, full))
        error = np.sqrt(1.0 / sizes(ours) + 1.0 / sizes(theirs))
        assert error.max() < 0.025
        spread = theirs.std(axis=(0, 1))
        shift = np.abs(ours.mean(axis=(0, 1)) - theirs.mean(axis=(0, 1))) / spread
        assert shift.max() < 0.1
        np.testing.assert_allclose(ours.std(axis=(0, 1)) / spread, 1.0, atol=0.1)


def test_every_mean_is_that_of_the_full_posterior(full_draws, coreset):
    """All latent sites, the slowly mixing ones too, on one common set of draws.

    With θ_t ~ π and q ∝ π_w/π of mean 1, both by NumPyro's own log densities, E_w[θ] = mean of q θ.
    Its difference from the mean of the same θ_t is the mean of (q − 1)(θ − E θ), with the error
    sd((q − 1)(θ − E θ))/√T for independent draws; ten times that, for draws of which one in a
    hundred counts, is below 0.1 sd.
    """
    names = ("mu", "tau", "slope", "sigma", "offset")
    draws = {k: np.float64(v) for k, v in full_draws.get_samples().items() if k in names}
    with jax.enable_x64(True):
        weighted, args = coreset.to_numpyro()
        rows = {k: jax.numpy.asarray(v) for k, v in ROWS.items() if k != "n_counties"}
        kwargs = {**rows, "n_counties": 6}

        def difference(values):
            small, _ = infer.util.log_density(weighted, args, {}, values)
            full, _ = infer.util.log_density(varying_intercepts, (), kwargs, values)
            return small - full

        ratios = np.asarray(jax.jit(jax.vmap(difference))(draws))
    q = np.exp(ratios - ratios.max())
    q /= q.mean()
    assert q.std() < 0.1  # π_w is π: the certificate's KL is below 1e-6
    for values in draws.values():
        aligned = q.reshape(-1, *[1] * (values.ndim - 1))
        away = (values - values.mean(axis=0)) / values.std(axis=0)
        shift = (aligned * away).mean(axis=0)  # the mean of away itself is 0
        error = ((aligned - 1.0) * away).std(axis=0) / np.sqrt(len(q))
        assert 10.0 * np.max(error) < 0.1
        assert np.abs(shift).max() < 0.1


def test_the_certificate_takes_numpyros_draws(own_draws, coreset, bridge):
    samples = dict(own_draws.get_samples(group_by_chain=True))
    flat = bridge.unconstrain(samples)
    assert flat.shape == (2, DRAWS, 10)
    assert decoct.check(coreset, bridge.rows, flat).ok
    del samples["offset"]
    with pytest.raises(decoct.ModelError, match="lack the latent site 'offset'"):
        bridge.unconstrain(samples)


def test_arviz_reads_the_weighted_run(own_draws):
    tree = arviz_base.from_numpyro(own_draws)
    assert tree["posterior"]["alpha"].dims == ("chain", "draw", "county")
    assert tree["posterior"]["offset"].dims == ("chain", "draw", "county")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_arvizs_own_log_likelihood_is_of_the_kept_rows_without_their_weights(own_draws, coreset):
    """Trap: ArviZ 0.x adds it unless told not to, and its LOO takes it for that of the data.

    It also compares traces of the model, so that a second call would fail if scales differed.
    """
    arviz = pytest.importorskip("arviz")
    assert "log_likelihood" not in arviz_base.from_numpyro(own_draws).children
    if int(arviz.__version__.split(".")[0]) > 0:
        assert "log_likelihood" not in arviz.from_numpyro(own_draws).children
        return
    added = arviz.from_numpyro(own_draws).log_likelihood["y"]
    assert added.shape == (2, DRAWS, coreset.size)
    model, kept = varying_intercepts, {k: coreset.rows[k] for k in ("county", "floor", "y")}
    unweighted = infer.log_likelihood(model, own_draws.get_samples(), **kept, n_counties=6)["y"]
    np.testing.assert_allclose(
        added.to_numpy().reshape(2 * DRAWS, -1), unweighted, rtol=1e-4, atol=1e-4
    )
    without = arviz.from_numpyro(own_draws, log_likelihood=False)
    assert "log_likelihood" not in without.groups()
    with pytest.raises(TypeError, match="log likelihood not found"):
        arviz.loo(without)


def test_predictions_for_new_rows(own_draws, draws, coreset):
    """The user's own model with either draws, and the weighted model while nothing is observed."""
    model, _ = coreset.to_numpyro()
    kwargs = {**NEW, "n_counties": 6}
    predictions = [
        Predictive(one, own_draws.get_samples())(jax.random.key(0), **kwargs)
        for one in (varying_intercepts, model)
    ]
    np.testing.assert_array_equal(predictions[0]["y"], predictions[1]["y"])
    assert predictions[0]["mean"].shape == (2 * DRAWS, 3)
    posterior = {name: values.to_numpy() for name, values in draws["posterior"].items()}
    ours = Predictive(varying_intercepts, posterior, batch_ndims=2)(jax.random.key(0), **kwargs)
    assert ours["y"].shape == (2, 500, 3)
    wanted = posterior["alpha"][..., NEW["county"]] + posterior["slope"][..., None] * NEW["floor"]
    np.testing.assert_allclose(ours["mean"], wanted, rtol=1e-5)


def test_weights_refuse_rows_that_are_not_theirs(coreset):
    model, args = coreset.to_numpyro()
    more = [np.tile(arg, 3) if np.ndim(arg) else arg for arg in args]
    n = coreset.size
    with pytest.raises(decoct.RequestError, match=f"has {n} weights and was given {3 * n}"):
        model(*more)


def test_arguments_come_in_the_order_of_the_model(coreset):
    model, args = coreset.to_numpyro()
    assert [np.size(arg) for arg in args] == [coreset.size] * 3 + [1]
    np.testing.assert_array_equal(args[0], coreset.rows["county"])
    assert args[3] == 6
    assert model.__name__ == "varying_intercepts"


def test_save_and_load(tmp_path, coreset, bridge):
    path = tmp_path / "homes.parquet"
    coreset.save(path)
    loaded = decoct.load(path, model=bridge)
    z = np.random.default_rng(0).normal(size=10)
    assert float(loaded.log_density(z)) == float(coreset.log_density(z))
    assert bridge.to_dict() == {
        "kind": "numpyro",
        "name": "varying_intercepts",
        "parameters": {"mu": [], "offset": [6], "sigma": [], "slope": [], "tau": []},
        "plate": "data",
        "constants": {"n_counties": 6},
    }
    with pytest.raises(decoct.CoresetFileError, match=r"pass it: decoct\.load"):
        decoct.load(path)


def test_a_bridge_travels_without_its_data():
    rows = logistic_rows(5000)
    bridge = from_numpyro(logistic, rows)
    sent = pickle.dumps(bridge)
    assert len(sent) < 5000
    received = pickle.loads(sent)
    params = {"beta": np.array([0.1, 0.2, 0.3])}
    few = {name: column[:7] for name, column in rows.items()}
    with jax.enable_x64(True):
        first, second = (b.log_likelihood(params, few) for b in (bridge, received))
    np.testing.assert_array_equal(first, second)
    with pytest.raises(decoct.RequestError, match="no longer has its rows"):
        _ = received.rows


def test_the_plate_of_a_fixed_size_samples_in_numpyro_too():
    """Trap: NumPyro would scale the plate of N by N/M on top of the weights."""

    def model(y, N):
        mu = numpyro.sample("mu", numpyro.distributions.Normal(0.0, 1.0))
        with numpyro.plate("data", N):
            numpyro.sample("y", numpyro.distributions.Normal(mu, 1.0), obs=y)

    y = np.random.default_rng(3).normal(size=3000)
    bridge = from_numpyro(model, {"y": y, "N": 3000})
    coreset = decoct.build(bridge, bridge.rows, size=5, progress=False)
    weighted, args = coreset.to_numpyro()
    for mu in (0.0, 0.3):
        with jax.enable_x64(True):
            params = {"mu": np.float64(mu)}
            energy = numpyro.infer.util.potential_energy(weighted, args, {}, params)
        np.testing.assert_allclose(-energy, coreset.log_density(np.array([mu])), rtol=1e-6)


def test_a_site_called_z_keeps_its_own_axes():
    """Trap: the flat draws are called z as well."""

    def model(y):
        with numpyro.plate("parameter", 2):
            z = numpyro.sample("z", numpyro.distributions.Normal(0.0, 1.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", numpyro.distributions.Normal(z.sum(), 1.0), obs=y)

    bridge = from_numpyro(model, {"y": np.random.default_rng(3).normal(size=300)})
    coreset = decoct.build(bridge, bridge.rows, size=5, method=Uniform())
    tree = coreset.sample(draws=100, chains=1, sampler=Laplace())
    assert tree["posterior"]["z"].dims == ("chain", "draw", "parameter")
    assert tree["posterior"]["z"].shape == (1, 100, 2)
    flat = tree["unconstrained_posterior"]["z"]
    assert flat.dims == ("chain", "draw", "parameter")
    np.testing.assert_array_equal(flat, tree["posterior"]["z"])


def test_constants_tell_files_apart():
    def model(y, base):
        mu = numpyro.sample("mu", numpyro.distributions.Normal(0.0, 1.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", numpyro.distributions.Normal(mu + base.sum(), 1.0), obs=y)

    one, same, other = (
        from_numpyro(model, {"y": np.ones(9)}, base=base).to_dict()["constants"]["base"]
        for base in (np.zeros(2), np.zeros(2), np.ones(2))
    )
    assert one == same != other
    assert one["shape"] == [2]


def test_a_file_names_the_model_it_cannot_hold(tmp_path):
    bridge = decoct.from_numpyro(logistic, logistic_rows(200))
    coreset = decoct.build(bridge, bridge.rows, size=10)
    coreset.save(tmp_path / "one.parquet")
    with pytest.raises(decoct.CoresetFileError, match=r"pass it: decoct.load\(path, model="):
        decoct.load(tmp_path / "one.parquet")
    again = decoct.load(tmp_path / "one.parquet", model=bridge)
    np.testing.assert_array_equal(again.weights, coreset.weights)
    assert len(again.to_numpyro()[1]) == len(coreset.to_numpyro()[1])
