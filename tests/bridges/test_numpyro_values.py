"""The bridge's numbers are NumPyro's: per row, prior, and with weights."""

import numpy as np
import pytest

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer.util import log_likelihood, potential_energy

import decoct
from decoct.bridges.numpyro import from_numpyro
from decoct.bridges.numpyro_trace import WeightedModel
from decoct.passes.potentials import Potentials
from decoct.report import Status
from decoct.samplers.base import WeightedDensity, log_densities
from tests.bridges.numpyro_zoo import ZOO, logistic, logistic_rows, varying_intercepts

each_model = pytest.mark.parametrize("name", list(ZOO))


@pytest.fixture(scope="module")
def bridges():
    with jax.numpy_rank_promotion("allow"):
        made = {name: (model, rows()) for name, (model, rows) in ZOO.items()}
        return {name: (*pair, from_numpyro(*pair)) for name, pair in made.items()}


def points(bridge, n=4, seed=3):
    rng = np.random.default_rng(seed)
    dim = sum(np.size(value) for value in bridge.start.values())
    return 0.5 * rng.normal(size=(n, dim))


def framework_values(model, given, bridge, z):
    """NumPyro's own per-row log-likelihood, summed over sites and all axes but the rows'."""
    space = Potentials(bridge, bridge.rows).space
    n = bridge.rows.n_rows
    with jax.enable_x64(True):
        values = jax.vmap(lambda one: bridge.constrain(space.unflatten(one)))(jnp.asarray(z))
        latent = {name: values[name] for name in bridge.start}
        sites = log_likelihood(model, latent, **given)
        return sum(np.asarray(v).reshape(len(z), -1, n).sum(axis=1) for v in sites.values())


def energy_at(model, args, kwargs, space, z):
    """NumPyro's potential energy at flat points."""
    kwargs = {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    energy = jax.jit(lambda one: potential_energy(model, args, kwargs, space.unflatten(one)))
    return np.array([energy(jnp.asarray(one)) for one in z])


@each_model
def test_potentials_are_the_log_likelihood_of_numpyro(bridges, name):
    model, given, bridge = bridges[name]
    z = points(bridge)
    rows = bridge.rows.take(np.arange(bridge.rows.n_rows))
    ours = Potentials(bridge, bridge.rows).vectors(bridge.encode(rows), z)
    theirs = framework_values(model, given, bridge, z)
    assert ours.dtype == np.float64
    assert ours.shape == (bridge.rows.n_rows, len(z))
    np.testing.assert_allclose(ours, theirs.T, rtol=1e-10, atol=1e-10)


@each_model
def test_prior_and_potentials_make_numpyros_potential_energy(bridges, name):
    model, given, bridge = bridges[name]
    potentials = Potentials(bridge, bridge.rows)
    z = points(bridge)
    total = potentials.totals(z) + potentials.log_prior(z)
    with jax.enable_x64(True):
        energies = energy_at(model, (), given, potentials.space, z)
    np.testing.assert_allclose(total, -energies, rtol=1e-12)


@each_model
def test_weights_are_repetitions_of_rows(bridges, name):
    """0 is absent, 2 is twice, ones are unweighted: against NumPyro on the repeated rows."""
    model, given, bridge = bridges[name]
    inputs = {k: np.asarray(given[k]) for k in bridge.inputs}
    others = {k: v for k, v in given.items() if k not in inputs}
    n = bridge.rows.n_rows
    times = np.random.default_rng(0).integers(0, 4, size=n)
    z = points(bridge, 3)
    for weights in (times, np.ones(n, dtype=int)):
        repeated = {k: np.repeat(v, weights, axis=0) for k, v in inputs.items()}
        density = WeightedDensity.of(bridge, bridge.encode(inputs), weights.astype(float))
        weighted = WeightedModel(bridge.program, bridge.inputs, tuple(given), weights.astype(float))
        with jax.enable_x64(True):
            args = tuple(jnp.asarray(v) if k in inputs else v for k, v in given.items())
            wanted = -energy_at(model, (), {**repeated, **others}, density.space, z)
            theirs = -energy_at(weighted, args, {}, density.space, z)
        np.testing.assert_allclose(log_densities(density, z), wanted, rtol=1e-11)
        np.testing.assert_allclose(theirs, wanted, rtol=1e-11)


def test_zero_weights_are_welcome_where_handlers_scale_refuses_them(bridges):
    """Trap: numpyro.handlers.scale raises on a concrete zero."""
    _, given, bridge = bridges["logistic"]
    args, params = (given["x"], given["y"]), {"beta": jnp.array([0.3, -0.2, 0.1])}
    nothing = np.zeros(len(given["y"]))
    with pytest.raises(ValueError, match="scale"):
        potential_energy(numpyro.handlers.scale(logistic, scale=nothing), args, {}, params)
    weighted = WeightedModel(bridge.program, ("x", "y"), ("x", "y"), nothing)
    energy = potential_energy(weighted, args, {}, params)
    prior = -jax.scipy.stats.norm.logpdf(params["beta"], scale=2.0).sum()
    np.testing.assert_allclose(energy, prior, rtol=1e-6)


def test_log_likelihood_of_numpyro_ignores_the_weights(bridges):
    """Trap: numpyro.infer.log_likelihood ignores scale; per row it is that of weight 1."""
    _, given, bridge = bridges["logistic"]
    args, draws = (given["x"], given["y"]), {"beta": jnp.array([[0.3, -0.2, 0.1]])}
    weights = np.linspace(0.5, 90.0, len(given["y"]))
    weighted = WeightedModel(bridge.program, ("x", "y"), ("x", "y"), weights)
    scaled = numpyro.handlers.scale(logistic, scale=weights)
    plain = log_likelihood(logistic, draws, *args)["y"]
    for model in (weighted, scaled):
        np.testing.assert_array_equal(log_likelihood(model, draws, *args)["y"], plain)
    params = {"beta": draws["beta"][0]}
    prior = -jax.scipy.stats.norm.logpdf(params["beta"], scale=2.0).sum()
    wanted = prior - (weights * np.asarray(plain[0], np.float64)).sum()
    np.testing.assert_allclose(potential_energy(weighted, args, {}, params), wanted, rtol=1e-5)


def test_negative_weights_are_refused_where_handlers_scale_takes_traced_ones(bridges):
    """Trap: numpyro.handlers.scale refuses a concrete negative, and takes a traced one."""
    _, given, bridge = bridges["logistic"]
    args, params = (given["x"], given["y"]), {"beta": jnp.array([0.3, -0.2, 0.1])}

    def energy(weights):
        model = numpyro.handlers.scale(logistic, scale=weights)
        return potential_energy(model, args, {}, params)

    with pytest.raises(ValueError, match="scale"):
        energy(-1.0)
    assert np.isfinite(jax.jit(energy)(-1.0))
    for one in (-1.0, np.nan):
        bad = np.ones(len(given["y"]))
        bad[7] = one
        with pytest.raises(decoct.RequestError, match="negative or NaN"):
            WeightedModel(bridge.program, ("x", "y"), ("x", "y"), bad)


def test_values_are_float64_and_the_flag_stays_the_users():
    """Trap: NumPyro without its x64 flag computes in float32; the flag is the user's."""
    flag = jax.config.read("jax_enable_x64")
    given = logistic_rows(50)
    narrow = {"x": jnp.asarray(given["x"], jnp.float32), "y": given["y"]}
    bridge = from_numpyro(logistic, narrow)
    wide = from_numpyro(logistic, {"x": np.asarray(narrow["x"], np.float64), "y": given["y"]})
    z = points(bridge)
    first, second = (Potentials(b, decoct.rows(narrow)).totals(z) for b in (bridge, wide))
    assert jax.config.read("jax_enable_x64") == flag
    assert first.dtype == np.float64
    np.testing.assert_array_equal(first, second)
    x, y = np.asarray(narrow["x"], np.float64), given["y"]
    logits = z @ x.T
    exact = (y * logits - np.logaddexp(0.0, logits)).sum(axis=1)
    np.testing.assert_allclose(first, exact, rtol=1e-13)


def test_float64_constants_keep_their_digits():
    """Trap: a constant array turned into float32 on the way would shift every row."""

    def shifted(y, base, group):
        import numpyro
        import numpyro.distributions as dist

        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu + base[group], 1.0), obs=y)

    base = np.array([1.0 + 1e-12, 2.0 - 1e-12])
    rows = {"y": np.ones(10), "group": np.arange(10) % 2}
    bridge = from_numpyro(shifted, rows, base=base)
    values = Potentials(bridge, decoct.rows(rows)).vectors(rows, np.zeros((1, 1)))[:, 0]
    wanted = -0.5 * (1.0 - base[rows["group"]]) ** 2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(values, wanted, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize(
    "prior",
    [dist.HalfNormal(1.0), dist.HalfCauchy(1.0), dist.InverseGamma(1.0, 1.0)],
    ids=["mean", "infinite mean", "no mean"],
)
def test_a_build_starts_where_the_prior_says(prior):
    """Zero is a thousand prior sds away, where no quadratic helps."""

    def far(y):
        mu = numpyro.sample("mu", dist.Normal(1000.0, 1.0))
        scale = numpyro.sample("scale", prior)
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.StudentT(4.0, mu, scale), obs=y)

    y = 1000.5 + np.random.default_rng(0).standard_t(4.0, size=500)
    bridge = from_numpyro(far, {"y": y})
    assert abs(bridge.start["mu"] - 1000.0) <= 0.1
    coreset = decoct.build(bridge, bridge.rows)
    assert coreset.site is not None
    assert coreset.report.status is Status.REACHED


@pytest.mark.data
def test_radon_with_its_386_counties(data_folder):
    with np.load(data_folder / "radon_all.npz") as archive:
        given = {
            "county": archive["county_idx"] - 1,
            "floor": archive["floor_measure"],
            "y": archive["log_radon"],
            "n_counties": int(archive["J"]),
        }
    bridge = from_numpyro(varying_intercepts, given)
    z = points(bridge, 3)
    assert z.shape[1] == 390
    potentials = Potentials(bridge, bridge.rows)
    rows = bridge.encode(bridge.rows.take(np.arange(12_573)))
    theirs = framework_values(varying_intercepts, given, bridge, z)
    np.testing.assert_allclose(potentials.vectors(rows, z), theirs.T, rtol=1e-10, atol=1e-10)
    assert bridge.dims()["offset"] == bridge.dims()["alpha"] == ["county"]


@pytest.mark.parametrize("label", [2, 0.5])
def test_an_impossible_label_names_the_row(label):
    given = logistic_rows(30)
    with numpyro.validation_enabled():
        bridge = from_numpyro(logistic, given)
        _assert_row_17_is_named(bridge, given, label)


@pytest.mark.parametrize("dtype", [bool, np.int32, np.int64, np.float64])
def test_bernoulli_sites_have_no_choice_at_every_draw(bridges, dtype):
    """NumPyro's guards against infinite logits would make a pass three times as long."""
    _, given, bridge = bridges["logistic"]
    rows, params = {**given, "y": given["y"].astype(dtype)}, {"beta": np.array([0.3, -0.2, 0.1])}
    with numpyro.validation_enabled(), jax.enable_x64(True):
        lowered = jax.jit(lambda p, rows: bridge.log_likelihood(p, rows)).lower(params, rows)
        values = bridge.log_likelihood(params, rows)
    assert "is-finite" not in str(lowered.compile().as_text())
    logits = given["x"] @ params["beta"]
    np.testing.assert_allclose(values, given["y"] * logits - np.logaddexp(0.0, logits), rtol=1e-12)


def test_soft_labels_are_numpyros_affair_while_its_validation_is_off():
    given = {**logistic_rows(30), "y": np.linspace(0.0, 1.0, 30)}
    with numpyro.validation_enabled(False):
        bridge = from_numpyro(logistic, given)
        z = points(bridge)
        values = Potentials(bridge, bridge.rows).vectors(given, z)
    logits = given["x"] @ z.T
    wanted = given["y"][:, None] * logits - np.logaddexp(0.0, logits)
    np.testing.assert_allclose(values, wanted, rtol=1e-12)


def _assert_row_17_is_named(bridge, given, label):
    bad = {**given, "y": given["y"].astype(type(label))}
    bad["y"][17] = label
    with pytest.raises(decoct.ModelError, match="row 17 is -inf"):
        Potentials(bridge, decoct.rows(bad)).totals(np.zeros((1, 3)))


def exposed(at_risk, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(at_risk)):
        numpyro.sample("events", dist.Poisson(jnp.exp(beta + jnp.log(at_risk))), obs=y)


@pytest.mark.parametrize("checked", [True, False])
def test_counts_without_exposure_are_numpyros(checked):
    """No exposure is a rate of exp(−∞): a count of 0 is certain there, and no NaN."""
    given = {"at_risk": np.array([1.0, 0.0, 2.5, 0.3, 40.0]), "y": np.array([0, 0, 3, 1, 61])}
    with numpyro.validation_enabled(checked):
        bridge = from_numpyro(exposed, given)
        z = points(bridge, 3)
        ours = Potentials(bridge, bridge.rows).vectors(given, z)
        theirs = framework_values(exposed, given, bridge, z)
    np.testing.assert_allclose(ours, theirs.T, rtol=1e-13)
    np.testing.assert_array_equal(ours[1], 0.0)


@pytest.mark.parametrize(("at_risk", "count"), [(1.0, -1), (1.0, 0.5), (0.0, 2), (0.0, -1)])
def test_impossible_counts_name_the_row(at_risk, count):
    given = {"at_risk": np.ones(30), "y": np.ones(30)}
    with numpyro.validation_enabled():
        bridge = from_numpyro(exposed, given)
        given["at_risk"][17], given["y"][17] = at_risk, count
        with pytest.raises(decoct.ModelError, match="row 17 is -inf"):
            Potentials(bridge, decoct.rows(given)).totals(np.zeros((1, 1)))


def test_a_group_number_outside_its_array_names_the_row(bridges):
    """Trap: JAX clamps an index beyond the end, and drops its derivative."""
    _, given, bridge = bridges["hierarchical"]
    rows = {name: given[name].copy() for name in bridge.inputs}
    bridge.check(decoct.rows(rows))
    rows["county"][123] = rows["county"][200] = 8
    with pytest.raises(decoct.RowsError, match=r"array in row 123, .* index 8 is out of bounds"):
        decoct.build(bridge, rows, size=20)


def test_and_so_it_does_in_a_stream(bridges):
    _, given, bridge = bridges["hierarchical"]
    rows = {name: given[name].copy() for name in bridge.inputs}
    rows["county"][123] = 8
    stream = decoct.StreamingCoreset(bridge, 20)
    stream.update({name: column[:100] for name, column in rows.items()})
    with pytest.raises(decoct.RowsError, match=r"array in row 123, .* index 8 is out of bounds"):
        stream.update({name: column[100:150] for name, column in rows.items()})
    assert stream.n_rows == 100


def test_extreme_logits_stay_finite(bridges):
    _, given, bridge = bridges["logistic"]
    rows = {"x": np.full((2, 3), 1e3), "y": np.array([0, 1])}
    values = Potentials(bridge, decoct.rows(given)).vectors(rows, np.ones((1, 3)))[:, 0]
    np.testing.assert_allclose(values, [-3e3, 0.0])


def test_homes_have_a_county_axis(bridges):
    bridge = bridges["hierarchical"][2]
    assert bridge.named == ("mu", "tau", "slope", "sigma", "offset", "alpha")
    assert bridge.dims() == {"offset": ["county"], "alpha": ["county"]}
