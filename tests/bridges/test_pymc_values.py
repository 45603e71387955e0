"""The bridge's numbers are PyMC's: per row, prior, and with weights."""

import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.bridges.pymc import from_pymc
from decoct.bridges.pymc_site import WEIGHTS, weighted_model
from decoct.passes.potentials import Potentials
from decoct.samplers.base import WeightedDensity, log_densities
from tests.bridges.pymc_import import pm, quiet
from tests.bridges.pymc_zoo import homes, logistic, logistic_rows, varying_intercepts

pytestmark = quiet
MODELS = {
    "logistic": lambda: logistic(*logistic_rows(60)),
    "hierarchical": lambda: varying_intercepts(*homes(60)),
}
each_model = pytest.mark.parametrize("name", list(MODELS))
# no C compiler: the functions are small
FAST = {"mode": "FAST_COMPILE", "on_unused_input": "ignore", "point_fn": False}


@pytest.fixture(scope="module")
def bridges():
    with jax.numpy_rank_promotion("allow"):
        made = {name: make() for name, make in MODELS.items()}
        return {name: (model, from_pymc(model)) for name, model in made.items()}


def points(bridge, n=4, seed=3):
    dim = sum(np.size(value) for value in bridge.start.values())
    return 0.5 * np.random.default_rng(seed).normal(size=(n, dim))


def at_points(model, bridge, outputs, z):
    """PyMC's own function of the unconstrained parameters, at flat points."""
    function = model.compile_fn(outputs, inputs=model.value_vars, **FAST)
    space = Potentials(bridge, bridge.rows).space
    with jax.enable_x64(True):
        params = [space.unflatten(jnp.asarray(one)) for one in z]
        return [function(*(np.asarray(p[rv.name]) for rv in model.free_RVs)) for p in params]


def all_rows(bridge):
    return bridge.rows.take(np.arange(bridge.rows.n_rows))


@each_model
def test_potentials_are_pymcs_pointwise_logp(bridges, name):
    model, bridge = bridges[name]
    z = points(bridge)
    ours = Potentials(bridge, bridge.rows).vectors(bridge.encode(all_rows(bridge)), z)
    theirs = at_points(model, bridge, model.logp(vars=model.observed_RVs, sum=False), z)
    assert ours.dtype == np.float64
    assert ours.shape == (60, 4)
    np.testing.assert_allclose(ours, np.array([one[0] for one in theirs]).T, rtol=1e-10)


@each_model
def test_prior_and_potentials_make_pymcs_logp(bridges, name):
    """Trap: get_jaxified_logp(negative_logp=False) has the other sign; with Jacobians."""
    model, bridge = bridges[name]
    z = points(bridge)
    potentials = Potentials(bridge, bridge.rows)
    total = potentials.totals(z) + potentials.log_prior(z)
    np.testing.assert_allclose(total, at_points(model, bridge, model.logp(), z), rtol=1e-12)


@each_model
def test_weights_are_repetitions_of_rows(bridges, name):
    """0 is absent, 2 is twice, ones are unweighted: against the weighted model and decoct's."""
    model, bridge = bridges[name]
    rows, n = all_rows(bridge), bridge.rows.n_rows
    times = np.random.default_rng(0).integers(0, 4, size=n)
    z = points(bridge, 3)
    for weights in (times, np.ones(n, dtype=int)):
        kept = np.repeat(np.arange(n), weights)
        taken = {k: v[kept] for k, v in rows.items()}
        repeated = weighted_model(model, taken, kept, np.ones(len(kept)), n, None)
        weighted = weighted_model(model, rows, np.arange(n), weights, n, None)
        density = WeightedDensity.of(bridge, bridge.encode(rows), weights.astype(float))
        wanted = at_points(repeated, bridge, repeated.logp(), z)
        theirs = at_points(weighted, bridge, weighted.logp(), z)
        np.testing.assert_allclose(log_densities(density, z), wanted, rtol=1e-11)
        np.testing.assert_allclose(theirs, wanted, rtol=1e-11)
    np.testing.assert_allclose(wanted, at_points(model, bridge, model.logp(), z), rtol=1e-11)


def exposed(exposure, counts, **how):
    with pm.Model() as model:
        at_risk, y = pm.Data("at_risk", exposure), pm.Data("y", counts)
        beta = pm.Normal("beta", 0.0, 1.0)
        pm.Poisson("events", mu=pm.math.exp(beta + pm.math.log(at_risk)), observed=y, **how)
    return model


def test_counts_without_exposure_are_pymcs():
    """No exposure is a rate of exp(−∞): a count of 0 is certain there, and no NaN."""
    exposure, counts = np.array([1.0, 0.0, 2.5, 0.3, 40.0]), np.array([0, 0, 3, 1, 61])
    model = exposed(exposure, counts)
    bridge = from_pymc(model)
    z = np.array([[-1.0], [0.0], [2.0]])
    with np.errstate(divide="ignore"):
        ours = Potentials(bridge, bridge.rows).vectors(bridge.encode(all_rows(bridge)), z)
        theirs = at_points(model, bridge, model.logp(vars=model.observed_RVs, sum=False), z)
    np.testing.assert_allclose(ours, np.array([one[0] for one in theirs]).T, rtol=1e-13)
    np.testing.assert_array_equal(ours[1], 0.0)


def test_impossible_counts_name_the_row():
    for exposure, count in ((1.0, -1), (0.0, 2), (0.0, -1)):
        given, counts = np.ones(30), np.ones(30, dtype=int)
        bridge = from_pymc(exposed(given, counts))
        given[17], counts[17] = exposure, count
        bad = decoct.rows({"at_risk": given, "y": counts})
        with pytest.raises(decoct.ModelError, match="row 17 is -inf"):
            Potentials(bridge, bad).totals(np.zeros((1, 1)))


def test_an_impossible_row_of_small_weight_is_no_nan():
    """Trap: −∞ of the row and (w − 1)·(−∞) of the potential would make a NaN."""
    with pm.Model() as model:
        y = pm.Data("y", np.array([0.5, 1.0, 3.0, 2.0]))
        top = pm.Normal("top", 0.0, 5.0)
        pm.Uniform("seen", 0.0, top, observed=y)
    rows, weights = {"y": np.array([0.5, 3.0])}, [0.25, 2.0]
    weighted = weighted_model(model, rows, np.array([0, 2]), weights, 4, None)
    density = weighted.compile_fn(weighted.logp(), inputs=weighted.value_vars, **FAST)
    assert density(np.array(2.0)) == -np.inf
    wanted = -0.5 * (4 / 5) ** 2 - np.log(5 * np.sqrt(2 * np.pi)) - 2.25 * np.log(4)
    # PyMC takes the logarithm of the prior's scale in float32
    np.testing.assert_allclose(density(np.array(4.0)), wanted, rtol=1e-7)


def test_values_are_float64_and_the_flag_and_environment_stay_the_users():
    """Trap: PyTensor's JAX backend sets jax_enable_x64, and pymc.sampling.jax sets XLA_FLAGS."""
    script = (
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "import jax, pymc, numpy as np\n"
        "from decoct.bridges.pymc import from_pymc\n"
        "flags = os.environ.get('XLA_FLAGS')\n"
        "with pymc.Model() as model:\n"
        "    y, mu = pymc.Data('y', np.ones(9)), pymc.Normal('mu', 0.0, 1.0)\n"
        "    _ = pymc.Normal('seen', mu, 1.0, observed=y)\n"
        "bridge = from_pymc(model)\n"
        "with jax.enable_x64(True):\n"
        "    values = bridge.log_likelihood({'mu': np.array(1e-9)}, {'y': np.zeros(2)})\n"
        "assert values.dtype == np.float64\n"
        "assert not jax.config.read('jax_enable_x64')\n"
        "assert os.environ.get('XLA_FLAGS') == flags\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_ENABLE_X64")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_build_starts_where_the_prior_says():
    with pm.Model() as model:
        y = pm.Data("y", np.full(20, 1000.5))
        pm.StudentT("seen", 4.0, pm.Normal("mu", 1000.0, 1.0), sigma=1.0, observed=y)
    assert abs(decoct.from_pymc(model).start["mu"] - 1000.0) <= 0.1


def test_data_are_arguments_and_not_frozen(bridges):
    """Trap: what is still shared when a graph is translated is a constant in it."""
    _, bridge = bridges["logistic"]
    x, y = logistic_rows(7, seed=9)
    z = points(bridge, 2)
    values = Potentials(bridge, bridge.rows).vectors({"x": x, "y": y}, z)
    logits = x @ z.T
    exact = y[:, None] * logits - np.logaddexp(0.0, logits)
    np.testing.assert_allclose(values, exact, rtol=1e-10)


def test_extreme_logits_stay_finite(bridges):
    _, bridge = bridges["logistic"]
    rows = {"x": np.full((2, 3), 1e3), "y": np.array([0, 1])}
    values = Potentials(bridge, bridge.rows).vectors(rows, np.ones((1, 3)))[:, 0]
    np.testing.assert_allclose(values, [-3e3, 0.0])


def test_several_responses_events_and_potentials():
    """Summed per row; potentials and other pm.Data belong to the prior."""
    rng = np.random.default_rng(4)
    y, counts = rng.normal(size=(20, 2)), rng.poisson(2.0, size=20)
    with pm.Model() as model:
        pairs, others = pm.Data("y", y), pm.Data("z", y[::-1].copy())
        numbers = pm.Data("counts", counts)
        centre = pm.Data("centre", np.array([0.5, -0.5]))
        mu = pm.Normal("mu", 0.0, 1.0, shape=2)
        rate = pm.Gamma("rate", 2.0, 1.0)
        pm.Normal("pairs", mu + centre, 1.0, observed=pairs)
        pm.MvNormal("again", mu, cov=np.eye(2), observed=others)
        pm.Poisson("numbers", rate, observed=numbers)
        pm.Potential("pull", -3.0 * (mu**2).sum())
    bridge = from_pymc(model)
    assert bridge.inputs == ("y", "z", "counts")
    assert list(bridge.to_dict()["constants"]) == ["centre"]
    z = points(bridge, 3)
    pointwise = at_points(model, bridge, model.logp(vars=model.observed_RVs, sum=False), z)
    wanted = [a.sum(axis=1) + b + c for a, b, c in pointwise]
    potentials = Potentials(bridge, bridge.rows)
    ours = potentials.vectors(bridge.encode(all_rows(bridge)), z)
    np.testing.assert_allclose(ours, np.array(wanted).T, rtol=1e-10)
    total = potentials.totals(z) + potentials.log_prior(z)
    np.testing.assert_allclose(total, at_points(model, bridge, model.logp(), z), rtol=1e-12)


def test_constrained_variables_of_every_kind_and_back():
    with pm.Model() as model:
        y = pm.Data("y", np.random.default_rng(5).normal(size=20))
        group = pm.Data("group", np.arange(20) % 3)
        low = pm.Normal("low", -3.0, 1.0)
        width = pm.Uniform("width", low, 5.0)
        share = pm.Dirichlet("share", np.ones(3))
        pm.Normal("seen", width * share[group], pm.Exponential("sd", 1.0), observed=y)
    bridge = from_pymc(model)
    z = points(bridge, 6).reshape(2, 3, 5)
    space = Potentials(bridge, bridge.rows).space
    with jax.enable_x64(True):
        named = jax.vmap(jax.vmap(lambda one: bridge.constrain(space.unflatten(one))))(z)
    assert named["share"].shape == (2, 3, 3)
    np.testing.assert_allclose(bridge.unconstrain(named), z, atol=1e-9)
    potentials = Potentials(bridge, bridge.rows)
    total = potentials.totals(z[0]) + potentials.log_prior(z[0])
    np.testing.assert_allclose(total, at_points(model, bridge, model.logp(), z[0]), rtol=1e-12)


def test_a_constant_as_long_as_the_table_has_a_dimension_of_its_own():
    with pm.Model(coords={"row": range(8), "knot": range(8)}) as model:
        y = pm.Data("y", np.linspace(-1.0, 1.0, 8), dims="row")
        knots = pm.Data("knots", np.linspace(0.0, 1.0, 8), dims="knot")
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Normal("seen", mu * knots.sum(), 1.0, observed=y, dims="row")
    assert from_pymc(model).inputs == ("y",)


@pytest.mark.parametrize("number", [8, -1])
def test_a_group_number_outside_its_array_names_the_row(bridges, number):
    """Trap: JAX clamps an index beyond the end, and drops its derivative."""
    _, bridge = bridges["hierarchical"]
    bridge.check(bridge.rows)
    rows = {name: np.array(values) for name, values in all_rows(bridge).items()}
    rows["where"][23] = number
    with pytest.raises(decoct.RowsError, match=r"outside an array in row 23, "):
        bridge.check(decoct.rows(rows))


def test_whole_numbers_stay_whole(bridges):
    model, bridge = bridges["hierarchical"]
    rows = {name: np.array(values) for name, values in all_rows(bridge).items()}
    rows["where"] = rows["where"].astype(float)
    assert bridge.encode(rows)["where"].dtype == model["where"].dtype
    rows["where"][2] = 0.5
    with pytest.raises(decoct.RowsError, match=r"Column 'where' has the value 0\.5 in row 102"):
        bridge.encode(rows, 100)


def test_a_bridge_travels_without_its_data():
    bridge = from_pymc(logistic(*logistic_rows(50_000)))
    sent = pickle.dumps(bridge)
    assert len(sent) < 1_000_000 < 50_000 * 4 * 8
    received = pickle.loads(sent)
    assert jax.tree.structure(received) == jax.tree.structure(bridge)
    few, params = bridge.rows.take(np.arange(7)), {"beta": np.array([0.1, 0.2, 0.3])}
    with jax.enable_x64(True):
        first, second = (b.log_likelihood(params, few) for b in (bridge, received))
        again = pickle.loads(sent)
        compiled = jax.jit(lambda p, rows: again.log_likelihood(p, rows))(params, few)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, compiled, rtol=1e-14)
    for lost in ("rows", "model"):
        with pytest.raises(decoct.RequestError, match="no longer has its"):
            getattr(received, lost)


@pytest.mark.data
def test_radon_in_minnesota(data_folder):
    with np.load(data_folder / "radon_mn.npz") as archive:
        county, floor = archive["county_idx"] - 1, archive["floor_measure"]
        model = varying_intercepts(county, floor, archive["log_radon"], int(archive["J"]))
    bridge = from_pymc(model)
    z = points(bridge, 3)
    ours = Potentials(bridge, bridge.rows).vectors(bridge.encode(all_rows(bridge)), z)
    theirs = at_points(model, bridge, model.logp(vars=model.observed_RVs, sum=False), z)
    assert ours.shape == (919, 3)
    np.testing.assert_allclose(ours, np.array([one[0] for one in theirs]).T, rtol=1e-10)
    assert bridge.dims()["alpha"] == ["county"]
    assert len(bridge.coords({})["alpha"][1]) == 85


def test_to_pymc_needs_a_coreset_of_a_pymc_model():
    rows = {"x": np.ones((9, 1)), "y": np.arange(9) % 2}
    model = decoct.models.LogisticRegression()
    coreset = decoct.build(model, rows, size=3, method=decoct.constructions.Uniform())
    with pytest.raises(decoct.RequestError, match="built for a LogisticRegression"):
        coreset.to_pymc()
    assert WEIGHTS == "coreset_weights"
