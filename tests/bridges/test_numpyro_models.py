"""Models as people write them: handlers, factors, further axes, constants, tables on disk."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import potential_energy

import decoct
from decoct.bridges.numpyro import from_numpyro
from decoct.passes.potentials import Potentials
from decoct.samplers.base import WeightedDensity, log_densities
from tests.bridges.numpyro_zoo import homes, logistic, logistic_rows, varying_intercepts

rng = np.random.default_rng(11)
N = 24
Y = rng.normal(size=N)
X = rng.normal(size=(N, 2))
GROUP = np.arange(N) % 4


def assert_numpyros_density(bridge, model, given, n_points=2):
    """Prior and all rows together are NumPyro's potential energy, anywhere."""
    rows = bridge.rows.take(np.arange(bridge.rows.n_rows))
    density = WeightedDensity.of(bridge, bridge.encode(rows), np.ones(bridge.rows.n_rows))
    z = 0.5 * rng.normal(size=(n_points, density.dim))
    with jax.enable_x64(True):
        given = {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in given.items()}
        energy = jax.jit(
            lambda one: potential_energy(model, (), given, density.space.unflatten(one))
        )
        wanted = [-float(energy(jnp.asarray(one))) for one in z]
    np.testing.assert_allclose(log_densities(density, z), wanted, rtol=1e-10)
    return density


def centred(group, y):
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("group", 4):
        theta = numpyro.sample("theta", dist.Normal(0.5, tau))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)


def test_reparam_handlers():
    model = numpyro.handlers.reparam(centred, config={"theta": LocScaleReparam(0.0)})
    given = {"group": GROUP, "y": Y}
    bridge = from_numpyro(model, given)
    assert sorted(bridge.start) == ["tau", "theta_decentered"]
    assert set(bridge.named) == {"tau", "theta_decentered", "theta"}
    assert bridge.dims()["theta"] == ["group"]
    assert bridge.to_dict()["name"] == "centred"
    assert_numpyros_density(bridge, model, given)


def test_a_fixed_plate_size_follows_the_rows():
    """Trap: numpyro.plate("data", N) with N a constant; on n rows NumPyro would scale by N/n."""

    def model(x, y, N):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("data", N) as row:
            numpyro.sample("y", dist.Normal((x @ beta)[row], 1.0), obs=y[row])

    given = {"x": X, "y": Y, "N": N}
    bridge = from_numpyro(model, given)
    assert bridge.columns == ("x", "y")
    assert_numpyros_density(bridge, model, given)
    z = rng.normal(size=(3, 2))
    few = {"x": X[:5], "y": Y[:5]}
    values = Potentials(bridge, bridge.rows).vectors(few, z)
    exact = -0.5 * (Y[:5, None] - X[:5] @ z.T) ** 2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(values, exact, rtol=1e-12)


def test_factors_inside_count_per_row_and_outside_as_prior():
    def model(y, strength):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.factor("outside", -strength * mu**2)
        with numpyro.plate("data", len(y)):
            numpyro.factor("inside", -((y - mu) ** 4))
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    given = {"y": Y, "strength": 0.7}
    bridge = from_numpyro(model, given)
    assert_numpyros_density(bridge, model, given)
    potentials = Potentials(bridge, bridge.rows)
    values = potentials.vectors({"y": Y}, np.array([[0.3]]))[:, 0]
    exact = -((Y - 0.3) ** 4) - 0.5 * (Y - 0.3) ** 2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(values, exact, rtol=1e-12)
    prior = -0.5 * 0.09 - 0.5 * np.log(2 * np.pi) - 0.7 * 0.09
    np.testing.assert_allclose(potentials.log_prior(np.array([[0.3]])), prior, rtol=1e-12)


def test_event_axes_and_a_fixed_plate_inside_are_summed():
    def model(y, z):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("output", 2, dim=-2), numpyro.plate("data", len(y), dim=-1):
            numpyro.sample("z", dist.Normal(mu[:, None], 1.0), obs=z.T)
        with numpyro.plate("data", len(y), dim=-1):
            numpyro.sample("y", dist.MultivariateNormal(mu, jnp.eye(2)), obs=y)

    given = {"y": X, "z": X[::-1].copy()}
    bridge = from_numpyro(model, given)
    assert_numpyros_density(bridge, model, given)
    assert_numpyros_density(from_numpyro(model, given), model, given)


def test_a_users_own_scale_and_mask_stay():
    def model(y, known, strength):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        scaled, masked = numpyro.handlers.scale(scale=strength), numpyro.handlers.mask(mask=known)
        with numpyro.plate("data", len(y)), scaled, masked:
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    given = {"y": Y, "known": Y > -0.5, "strength": 0.25}
    assert_numpyros_density(from_numpyro(model, given), model, given)


def test_constrained_sites_of_every_kind():
    def model(group, y):
        low = numpyro.sample("low", dist.Normal(-3.0, 1.0))
        width = numpyro.sample("width", dist.Uniform(low, 5.0))
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(4)))
        steps = numpyro.sample("steps", dist.TruncatedNormal(0.0, 1.0, low=0.0).expand([2]))
        flat = numpyro.sample("flat", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("data", len(y)):
            mean = width * share[group] + steps.sum() + flat
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    given = {"group": GROUP, "y": Y}
    bridge = from_numpyro(model, given)
    density = assert_numpyros_density(bridge, model, given)
    assert density.dim == 1 + 1 + 3 + 2 + 1
    z = rng.normal(size=(2, 3, density.dim))
    with jax.enable_x64(True):
        named = jax.vmap(jax.vmap(lambda one: bridge.constrain(density.space.unflatten(one))))(z)
    np.testing.assert_allclose(bridge.unconstrain(named), z, atol=1e-9)


def test_latent_sites_inside_a_scan():
    """A random walk over weeks, the week of a row as data."""

    def model(week, y):
        def step(level, _):
            level = numpyro.sample("level", dist.Normal(level, 0.5))
            spread = numpyro.sample("spread", dist.HalfNormal(1.0))
            return level, (level, spread)

        _, (levels, spreads) = scan(step, 0.0, None, length=4)
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(levels[week], spreads[week]), obs=y)

    given = {"week": GROUP, "y": Y}
    bridge = from_numpyro(model, given)
    assert bridge.start["level"].shape == bridge.start["spread"].shape == (4,)
    assert_numpyros_density(bridge, model, given)
    draws = {"level": np.ones((1, 2, 4)), "spread": np.full((1, 2, 4), np.e)}
    np.testing.assert_allclose(bridge.unconstrain(draws), np.ones((1, 2, 8)))


def test_deterministic_sites_per_row_are_left_out():
    bridge = from_numpyro(varying_intercepts, homes(40))
    assert "mean" not in bridge.named
    assert "alpha" in bridge.named


def test_a_constant_as_long_as_the_table():
    """An argument with N entries that is no row: named as a constant it is not cut."""

    def model(y, knots):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu * knots.sum(), 1.0), obs=y)

    knots = np.linspace(0.0, 1.0, N)
    bridge = from_numpyro(model, {"y": Y}, knots=knots)
    assert bridge.columns == ("y",)
    assert_numpyros_density(bridge, model, {"y": Y, "knots": knots})
    with pytest.raises(decoct.ModelError, match="changes with the other rows"):
        from_numpyro(model, {"y": Y, "knots": knots})


@pytest.mark.parametrize("size", [np.int64(4), np.asarray(4)])
def test_numpys_numbers_are_sizes(size):
    """As of ``group.max() + 1``."""

    def model(group, y, groups):
        with numpyro.plate("group", groups):
            theta = numpyro.sample("theta", dist.Normal(0.5, 1.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(theta[group], 1.0), obs=y)

    rows = {"group": GROUP, "y": Y}
    among_rows = from_numpyro(model, {**rows, "groups": size})
    for bridge in (among_rows, from_numpyro(model, rows, groups=size)):
        assert bridge.likelihood_params.shapes == ((4,),)


def test_tables_and_files(tmp_path):
    """Columns named as arguments are the rows; nothing is read that is not needed."""
    given = homes(200)
    frame = pd.DataFrame({k: given[k] for k in ("county", "floor", "y")} | {"note": "text"})
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "homes.parquet")
    constants = {"n_counties": given["n_counties"]}
    bridges = [
        from_numpyro(varying_intercepts, given),
        from_numpyro(varying_intercepts, frame, **constants),
        from_numpyro(varying_intercepts, tmp_path / "homes.parquet", **constants),
    ]
    z = rng.normal(size=(2, 12))
    totals = []
    for bridge in bridges:
        assert bridge.columns == ("county", "floor", "y")
        bridge.check(bridge.rows)
        totals.append(Potentials(bridge, decoct.rows(frame[list(bridge.columns)])).totals(z))
    np.testing.assert_array_equal(totals[0], totals[1])
    np.testing.assert_array_equal(totals[0], totals[2])


def test_group_counts_from_a_file_are_refused_as_well(tmp_path):
    def model(county, y):
        with numpyro.plate("county", int(county.max()) + 1):
            mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu[county], 1.0), obs=y)

    given = homes(200)
    table = pa.table({"county": np.sort(given["county"]), "y": given["y"]})
    pq.write_table(table, tmp_path / "homes.parquet")
    with pytest.raises(decoct.ModelError, match="Pass sizes and flags as constants"):
        from_numpyro(model, tmp_path / "homes.parquet")


def test_compiled_functions_are_shared_and_hold_no_data():
    given = logistic_rows(64)
    first, second = from_numpyro(logistic, given), from_numpyro(logistic, given)
    structure = jax.tree.structure(first)
    assert structure == jax.tree.structure(second)
    assert hash(structure) == hash(jax.tree.structure(second))
    rebuilt = jax.tree.unflatten(structure, jax.tree.leaves(first))
    with pytest.raises(decoct.RequestError, match="pass the table itself"):
        _ = rebuilt.rows
    assert sum(np.size(leaf) for leaf in jax.tree.leaves(first)) < 20


def test_a_narrow_process_gets_the_same_numbers_from_any_array_type():
    given = logistic_rows(64)
    lists = {"x": given["x"].tolist(), "y": given["y"].tolist()}
    bridge = from_numpyro(logistic, {k: np.asarray(v) for k, v in lists.items()})
    series = from_numpyro(logistic, {"x": given["x"], "y": pd.Series(given["y"])})
    z = rng.normal(size=(2, 3))
    first, second = (Potentials(b, b.rows).totals(z) for b in (bridge, series))
    np.testing.assert_array_equal(first, second)
