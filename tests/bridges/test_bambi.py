"""The Bambi bridge: Bambi's own numbers row by row, its names back, and what is refused."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import decoct
from decoct.bridges.bambi import from_bambi
from decoct.bridges.bambi_model import parameters_of
from decoct.constructions import Uniform
from decoct.passes.potentials import Potentials
from decoct.samplers import Laplace
from tests.bridges.pymc_import import pm, quiet

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    bmb = pytest.importorskip("bambi")

# Bambi's use of pandas
pytestmark = [*quiet, pytest.mark.filterwarnings("ignore:For backward compatibility, 'str' dtypes")]
# no C compiler: the functions are small
FAST = {"mode": "FAST_COMPILE", "on_unused_input": "ignore", "point_fn": False}


def homes(n=80, seed=0):
    rng = np.random.default_rng(seed)
    county = rng.integers(5, size=n)
    table = pd.DataFrame(
        {
            "x": rng.normal(3.0, 2.0, size=n),
            "z": rng.normal(size=n),
            "county": [f"county {i}" for i in county],
            "wall": rng.choice(["brick", "stone", "wood"], size=n),
            "trials": rng.integers(3, 9, size=n),
        }
    )
    table["y"] = 1.0 + 0.5 * table.x + rng.normal(size=5)[county] + rng.normal(size=n)
    table["high"] = (table.y > 2.5).astype(int)
    table["count"] = rng.poisson(2.0, size=n)
    table["hits"] = rng.binomial(table.trials, 0.4)
    return table


TABLE = homes()
FLAT = {
    "Intercept": bmb.Prior("Normal", mu=0.0, sigma=9.0),
    "sigma": bmb.Prior("HalfNormal", sigma=9.0),
}
MODELS = {
    "gaussian": lambda: bmb.Model("y ~ x + wall + (1|county)", TABLE),
    "bernoulli": lambda: bmb.Model(
        "high ~ scale(x) + (1 + wall|county)", TABLE, family="bernoulli"
    ),
    "poisson": lambda: bmb.Model("count ~ bs(x, df=4) + offset(z)", TABLE, family="poisson"),
    "binomial": lambda: bmb.Model("p(hits, trials) ~ 0 + x", TABLE, family="binomial"),
    "two parts": lambda: bmb.Model(
        bmb.Formula("y ~ hsgp(x, m=4, c=1.5)", "sigma ~ z"), TABLE, family="t"
    ),
    "categorical": lambda: bmb.Model("wall ~ x + z", TABLE, family="categorical"),
}
each_model = pytest.mark.parametrize("name", list(MODELS))


@pytest.fixture(scope="module")
def made():
    kept = {}

    def make(name):
        if name not in kept:
            model = MODELS[name]()
            kept[name] = model, from_bambi(model)
        return kept[name]

    return make


def theirs(model, outputs, bridge, z):
    """Bambi's PyMC model at flat points of ours: same variables, the intercepts' names apart."""
    space = Potentials(bridge, bridge.rows).space
    with jax.enable_x64(True):
        params = [space.unflatten(jnp.asarray(one)) for one in z]
    params = [{k.removesuffix("_centered"): np.asarray(v) for k, v in p.items()} for p in params]
    function = model.compile_fn(outputs, inputs=model.value_vars, **FAST)
    return [function(*(p[rv.name] for rv in model.free_RVs)) for p in params]


@each_model
def test_potentials_and_prior_are_bambis(made, name):
    """Trap: a built model's data are constants of its graph, which from_pymc refuses."""
    model, bridge = made(name)
    pymc_model = model.backend.model
    dim = sum(np.size(value) for value in bridge.start.values())
    z = 0.4 * np.random.default_rng(2).normal(size=(3, dim))
    potentials = Potentials(bridge, bridge.rows)
    ours = potentials.vectors(bridge.encode(bridge.rows.take(np.arange(len(TABLE)))), z)
    pointwise = pymc_model.logp(vars=pymc_model.observed_RVs, sum=False)
    wanted = theirs(pymc_model, [*pointwise, pymc_model.logp()], bridge, z)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, np.array([w[0] for w in wanted]).T, rtol=1e-10, atol=1e-10)
    total = ours.sum(axis=0) + potentials.log_prior(z)
    np.testing.assert_allclose(total, [w[1] for w in wanted], rtol=1e-10)


def test_a_link_that_most_parameters_do_not_allow_starts_where_the_prior_is(made):
    """1/(xᵀβ) of a gamma response is negative for some row wherever |β| is large."""
    table = homes(300, seed=3)
    table["size"] = np.random.default_rng(4).gamma(5.0, 1.0 / (0.2 + 0.02 * table.x) / 5.0)
    model = bmb.Model("size ~ x", table, family="gamma", link="inverse")
    bridge = from_bambi(model)
    potentials = Potentials(bridge, bridge.rows)
    z = potentials.space.flatten(bridge.start)
    assert np.isfinite(potentials.totals(z[None])).all()
    coreset = decoct.build(bridge, bridge.rows, size=30)
    check = decoct.check(coreset, bridge.rows)
    assert check.kl < 0.05


def test_rows_are_the_design_by_name(made):
    model, bridge = made("gaussian")
    columns = bridge.rows.take(np.arange(len(TABLE)))
    assert set(columns) == {"y_data", "common_data", "county_data"}
    walls = pd.get_dummies(TABLE.wall)[["stone", "wood"]].to_numpy(float)
    design = np.column_stack([TABLE.x, walls])
    np.testing.assert_allclose(columns["common_data"], design - design.mean(axis=0), atol=1e-12)
    np.testing.assert_array_equal(columns["y_data"], TABLE.y)
    codes = np.searchsorted([f"county {i}" for i in range(5)], TABLE.county)
    np.testing.assert_array_equal(columns["county_data"], codes)
    assert bridge.to_dict()["name"] == "y ~ x + wall + (1|county)"
    assert model.built


@pytest.fixture(scope="module")
def coreset(made):
    with jax.numpy_rank_promotion("allow"):
        bridge = made("gaussian")[1]
        return decoct.build(bridge, bridge.rows, size=0, sampler=Laplace(judge=False))


def sampled(model):
    with model:
        return pm.sample(
            draws=100,
            tune=200,
            chains=1,
            cores=1,
            random_seed=3,
            progressbar=False,
            compute_convergence_checks=False,
            compile_kwargs={"mode": "JAX"},
        )


@pytest.mark.usefixtures("wide")
def test_names_coordinates_and_intercept_are_those_of_bambis_fit(made, coreset):
    """Trap: the intercept of Bambi's PyMC model is of centred predictors, that of its fit not."""
    model, bridge = made("gaussian")
    draws = coreset.sample(draws=20, chains=1, seed=1, sampler=Laplace(judge=False))
    ours, pymc = draws["posterior"], sampled(coreset.to_pymc())["posterior"]
    reported = {"sigma", "Intercept", "x", "wall", "1|county_sigma", "1|county"}
    assert set(ours.data_vars) == reported
    assert reported < set(pymc.data_vars)
    for name in reported:
        assert ours[name].dims == pymc[name].dims
    assert ours["1|county"].dims == ("chain", "draw", "county__factor_dim")
    assert list(ours["county__factor_dim"].to_numpy()) == [f"county {i}" for i in range(5)]
    assert list(ours["wall_dim"].to_numpy()) == ["stone", "wood"]
    means = dict(zip(["x", "stone", "wood"], design_means(), strict=True))
    shift = pymc["x"] * means["x"]
    shift = shift + sum(pymc["wall"].sel(wall_dim=w) * means[w] for w in ("stone", "wood"))
    np.testing.assert_allclose(pymc["Intercept"], pymc["Intercept_centered"] - shift, atol=1e-12)
    flat = bridge.unconstrain({name: pymc[name] for name in bridge.start})
    assert decoct.check(coreset, bridge.rows, flat).kl < 0.1
    assert model.backend.model["Intercept"] in model.backend.model.free_RVs


def design_means():
    walls = pd.get_dummies(TABLE.wall)[["stone", "wood"]].to_numpy(float)
    return np.column_stack([TABLE.x, walls]).mean(axis=0)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_bambi_predicts_with_the_draws(made, coreset):
    arviz = pytest.importorskip("arviz")
    model, _ = made("gaussian")
    draws = coreset.sample(draws=20, chains=1, sampler=Laplace(judge=False))
    posterior, new = draws["posterior"], TABLE.iloc[:3]
    with jax.numpy_rank_promotion("allow"):
        if arviz.__version__.startswith("0."):  # draws are trees from ArviZ 1 on
            draws = arviz.InferenceData(posterior=posterior.to_dataset())
        predicted = model.predict(draws, data=new, inplace=False)["posterior"]["mu"]
    county = posterior["1|county"].sel(county__factor_dim=list(new.county))
    wall = posterior["wall"].reindex(wall_dim=["brick", "stone", "wood"], fill_value=0.0)
    wanted = (
        posterior["Intercept"].to_numpy()[..., None]
        + posterior["x"].to_numpy()[..., None] * new.x.to_numpy()
        + wall.sel(wall_dim=list(new.wall)).to_numpy()
        + county.to_numpy()
    )
    np.testing.assert_allclose(predicted, wanted, atol=1e-10)


def test_default_priors_are_frozen_from_all_rows():
    """Trap: default priors depend on the data: that of x on its spread, and on that of y."""
    model = bmb.Model("y ~ x", TABLE)
    bridge = from_bambi(model)
    coreset = decoct.build(bridge, bridge.rows, size=6, method=Uniform(), seed=2)
    refitted = bmb.Model("y ~ x", TABLE.iloc[coreset.indices])
    refitted.build()
    theirs, frozen = model.backend.model, coreset.to_pymc()
    names = {"x": "x", "sigma": "sigma", "Intercept": "Intercept_centered"}
    for name, ours in names.items():
        wanted, found = prior_at(theirs, {name: 0.7}), prior_at(frozen, {ours: 0.7})
        assert found == pytest.approx(wanted, rel=1e-12)
        assert abs(prior_at(refitted.backend.model, {name: 0.7}) - wanted) > 0.01


def test_transforms_are_frozen_from_all_rows(made):
    """Trap: scale(x) depends on the rows it sees."""
    _, bridge = made("bernoulli")
    coreset = decoct.build(bridge, bridge.rows, size=6, method=Uniform(), seed=2)
    refitted = bmb.Model(
        "high ~ scale(x) + (1 + wall|county)", TABLE.iloc[coreset.indices], family="bernoulli"
    )
    refitted.build()
    weighted = coreset.to_pymc()
    x = (TABLE.x - TABLE.x.mean()) / TABLE.x.std(ddof=0)
    frozen = weighted["common_data"].get_value()[:, 0]
    np.testing.assert_allclose(frozen, x.iloc[coreset.indices], atol=1e-12)
    own = np.asarray(parameters_of(refitted)["p"].common_terms["scale(x)"].data).ravel()
    assert np.abs(own - frozen).max() > 0.05


def prior_at(model, point):
    (name,) = point
    density = model.compile_fn(model.logp(vars=[model[name]]), inputs=model.value_vars, **FAST)
    values = {rv.name: np.zeros(rv.shape.eval()) for rv in model.free_RVs}
    return float(density(*(np.asarray(point.get(name, values[name])) for name in values)))


def test_levels_without_a_kept_row_keep_their_effect(made):
    """Trap: a level absent from the rows disappears from Bambi's design."""
    _, bridge = made("gaussian")
    few = np.flatnonzero(TABLE.county == "county 3")[:4]
    rows = {k: v[few] for k, v in bridge.rows.take(np.arange(len(TABLE))).items()}
    small = decoct.Coreset(
        few,
        np.ones(4),
        rows,
        len(TABLE),
        bridge,
        decoct.build(bridge, bridge.rows, size=4, method=Uniform()).report,
    )
    with jax.enable_x64(True):
        values = bridge.constrain(small.density.space.unflatten(jnp.zeros(small.dim)))
    assert values["1|county"].shape == (5,)
    assert len(small.to_pymc().coords["county__factor_dim"]) == 5
    # county 1 has no row here, so that its effect has the prior alone
    z = np.zeros(small.dim)
    moved = z.copy()
    moved[1] = 1.0
    with jax.enable_x64(True):
        params = small.density.space.unflatten(jnp.asarray(moved))
    assert float(params["1|county_offset"][1]) == 1.0
    change = float(small.log_density(moved)) - float(small.log_density(z))
    assert change == pytest.approx(-0.5, abs=1e-9)


def test_bambis_weighted_priors_are_wrong_at_weight_one():
    """Trap: the automatic prior of weighted(y, w) comes from the stacked (y, w) matrix.

    And its density per row is weighted already, the opposite of NumPyro's.
    """
    table = TABLE.assign(one=1.0)
    plain, by_hand = bmb.Model("y ~ x", table), bmb.Model("weighted(y, one) ~ x", table)
    for model in (plain, by_hand):
        model.build()
    means = [parameters_of(m)["mu"].intercept_term.prior.args["mu"] for m in (plain, by_hand)]
    assert means[0] == pytest.approx(TABLE.y.mean())
    assert means[1] == pytest.approx((TABLE.y.mean() + 1.0) / 2)
    twice = bmb.Model("weighted(y, two) ~ 1", TABLE.assign(two=2.0), priors=FLAT)
    once = bmb.Model("y ~ 1", TABLE, priors=FLAT)
    densities = []
    for model in (twice, once):
        model.build()
        pymc_model = model.backend.model
        (pointwise,) = pymc_model.logp(vars=pymc_model.observed_RVs, sum=False)
        function = pymc_model.compile_fn(pointwise, inputs=pymc_model.value_vars, **FAST)
        densities.append(function(*(np.array(0.3) for _ in pymc_model.value_vars)))
    np.testing.assert_allclose(densities[0], 2.0 * densities[1], rtol=1e-12)
    with pytest.raises(decoct.ModelError, match=r"response is weighted\(y, one\).*Leave weighted"):
        from_bambi(by_hand)


def test_densities_of_a_fixed_number_of_rows_are_refused_by_what_to_write():
    one = TABLE.assign(one=TABLE["count"] + 1, kind="none")
    for formula, family, says in (
        ("count ~ x", "hurdle_poisson", r"pm\.HurdlePoisson and the rows in pm\.Data"),
        ("count ~ x", "hurdle_negativebinomial", r"pm\.HurdleNegativeBinomial"),
        ("truncated(one, 0) ~ x", "poisson", r"pm\.Truncated"),
        ("censored(y, kind) ~ x", "gaussian", r"censored\(y, kind\) as infinite numbers"),
    ):
        with pytest.raises(decoct.ModelError, match=says):
            from_bambi(bmb.Model(formula, one, family=family))


def test_what_has_no_rows_to_cut():
    with pytest.raises(decoct.ModelError, match=r"Gaussian process for each level of by="):
        from_bambi(bmb.Model("y ~ hsgp(x, m=4, c=1.5, by=wall)", TABLE))
    holes = TABLE.assign(x=TABLE.x.where(TABLE.index != 5))
    with pytest.raises(decoct.ModelError, match=r"dropped 1 of 80 rows.*data\.dropna"):
        from_bambi(bmb.Model("y ~ x", holes, dropna=True))
    prior = {"x": bmb.Prior("Normal", mu=0.0, sigma=1.0, initval=0.3)}
    with pytest.raises(decoct.ModelError, match=r"prior of 'x' has an initial value"):
        from_bambi(bmb.Model("y ~ x", TABLE, priors=prior))
    with pytest.raises(decoct.RequestError, match=r"must be a bambi\.Model, not a str"):
        from_bambi("y ~ x")


def test_sparse_designs_are_refused(monkeypatch):
    monkeypatch.setitem(bmb.config.__dict__, "SPARSE_DOT", True)
    with pytest.raises(decoct.ModelError, match=r'bambi\.config\["SPARSE_DOT"\] = False'):
        from_bambi(bmb.Model("y ~ x + (1|county)", TABLE))


def test_save_and_load(tmp_path, coreset, made):
    _, bridge = made("gaussian")
    coreset.save(tmp_path / "homes.parquet")
    loaded = decoct.load(tmp_path / "homes.parquet", model=bridge)
    z = np.full(coreset.dim, 0.1)
    assert float(loaded.log_density(z)) == float(coreset.log_density(z))
    with pytest.raises(decoct.CoresetFileError, match=r"y ~ x \+ wall \+ \(1\|county\)"):
        decoct.load(tmp_path / "homes.parquet")
