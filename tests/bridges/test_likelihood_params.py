"""Likelihood parameters: what of a model's parameters its rows depend on, read from its program.

The oracle is the model itself: its potentials from θ are those from φ(θ). Names and shapes are
those that a person would write down.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("numpyro")

import numpyro
import numpyro.distributions as dist
from numpyro import infer
from numpyro.infer.util import potential_energy

import decoct
from decoct.bridges.likelihood_params import find_likelihood_params
from decoct.bridges.numpyro import from_numpyro
from decoct.errors import BadValueError
from tests.bridges.phi import LEVEL, YES, G, H, J, K, N, X, Y, Z, at, by_hand, check, density, few


def normal(name, *shape) -> Any:
    prior = dist.Normal(0.0, 1.0)
    return numpyro.sample(name, prior.expand(shape).to_event(len(shape)) if shape else prior)


def scale(name, *shape) -> Any:
    prior = dist.HalfNormal(1.0)
    return numpyro.sample(name, prior.expand(shape).to_event(len(shape)) if shape else prior)


def columns(x):
    return jnp.stack([jnp.ones_like(x), x], axis=1)


def observe(distribution, y, n):
    with numpyro.plate("data", n):
        numpyro.sample("y", distribution, obs=y)


def varying_intercepts(g, x, y=None, *, centred=False):
    mu, tau, slope, sigma = normal("mu"), scale("tau"), normal("slope"), scale("sigma")
    u: Any
    with numpyro.plate("groups", J):
        if centred:
            u = numpyro.sample("u", dist.Normal(mu, tau))
        else:
            u = numpyro.deterministic("u", mu + tau * numpyro.sample("z", dist.Normal(0.0, 1.0)))
    observe(dist.Normal(u[g] + slope * x, sigma), y, len(x))


INTERCEPTS = {"sigma": (), "slope": (), "u": (J,)}


@pytest.mark.parametrize("centred", [False, True])
def test_group_effects(centred):
    """Of u = μ + τ z the rows see u, in units of σ, and 1/σ."""
    bridge = from_numpyro(varying_intercepts, {"g": G, "x": X, "y": Y}, centred=centred)
    phi = check(bridge, INTERCEPTS)
    with jax.enable_x64(True):
        values = bridge.constrain(at(bridge, 2))
        precision = 1.0 / values["sigma"]
        np.testing.assert_allclose(phi["sigma"], precision, rtol=1e-12)
        np.testing.assert_allclose(phi["u"], values["u"] * precision, rtol=1e-12)


def test_it_is_finite_where_a_scale_is_all_but_zero():
    bridge = from_numpyro(varying_intercepts, {"g": G, "x": X, "y": Y})
    with jax.enable_x64(True):
        params = at(bridge) | {"tau": jnp.asarray(-800.0)}
        phi = bridge.to_likelihood_params(params)
        values, slopes = jax.jvp(
            lambda z: bridge.potentials({**params, "z": z}, few(bridge, 9)),
            (params["z"],),
            (jnp.ones(J),),
        )
        from_phi = bridge.log_likelihood(phi, few(bridge, 9))
    np.testing.assert_allclose(phi["u"], params["mu"] * phi["sigma"], rtol=1e-12)
    assert np.isfinite(values).all()
    assert np.isfinite(slopes).all()
    np.testing.assert_allclose(from_phi, values, rtol=1e-10)


def test_numpy_arrays_are_taken_in_float64_whatever_the_flag():
    bridge = from_numpyro(varying_intercepts, {"g": G, "x": X, "y": Y})
    with jax.enable_x64(False):
        phi = bridge.to_likelihood_params(bridge.start)
    assert {str(value.dtype) for value in phi.values()} == {"float64"}


def test_a_table_of_them():
    bridge = from_numpyro(varying_intercepts, {"g": G, "x": X, "y": Y})
    assert repr(bridge.likelihood_params).splitlines() == [
        "Likelihood parameters: what the rows depend on.",
        "name                shape   size",
        "1 / exp(sigma)      scalar     1",
        "slope / exp(sigma)  scalar     1",
        "u / exp(sigma)      (6,)       6",
        "all                            8",
    ]


def test_student_t():
    def model(g, y=None):
        effect = scale("tau") * normal("z", J)
        freedom = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
        observe(dist.StudentT(freedom, effect[g], scale("sigma")), y, len(g))

    check(from_numpyro(model, {"g": G, "y": Y}), {"f(tau, z)": (J,), "nu": (), "sigma": ()})


@pytest.mark.parametrize("order", [1, -1])
def test_an_effect_that_is_scaled_after_it_is_picked(order):
    """As people write it: mu + tau * z[g]."""

    def model(g, x, y=None):
        first, second = (scale("tau"), normal("z", J)[g])[::order]
        eta = normal("mu") + first * second + x * normal("slope")
        observe(dist.Bernoulli(logits=eta), y, len(g))

    bridge = from_numpyro(model, {"g": G, "x": X, "y": YES})
    check(bridge, {"f(tau, z)": (J,), "mu": (), "slope": ()})


def test_correlated_effects_of_groups():
    """NumPyro's correlation matrices index beyond an array on purpose."""

    def model(g, x, y=None):
        tau, root = scale("tau", 2), numpyro.sample("root", dist.LKJCholesky(2, 2.0))
        u = normal("z", J, 2) @ (tau[:, None] * root).T
        observe(dist.Bernoulli(logits=normal("mu") + u[g, 0] + u[g, 1] * x), y, len(g))

    bridge = from_numpyro(model, {"g": G, "x": X, "y": YES})
    check(bridge, {"f(root, tau, z)": (J, 2), "mu": ()})
    bridge.check(bridge.rows)
    beyond = decoct.rows({"g": G + 1, "x": X, "y": YES})
    with pytest.raises(BadValueError, match="outside an array"):
        bridge.check(beyond)


def test_crossed_effects():
    def model(g, h, y=None):
        first, second = scale("s") * normal("a", J), scale("t") * normal("b", K)
        observe(dist.Bernoulli(logits=normal("mu") + first[g] + second[h]), y, len(g))

    bridge = from_numpyro(model, {"g": G, "h": H, "y": YES})
    check(bridge, {"f(a, s)": (J,), "f(b, t)": (K,), "mu": ()})


@pytest.mark.parametrize("apart", [False, True])
def test_correlated_slopes(apart):
    """One array, also where its columns are used one by one."""

    def model(g, x, y=None):
        mean, sd = normal("m", 2), scale("sd", 2)
        chol = numpyro.sample("L", dist.LKJCholesky(2, 1.0))
        u: Any = numpyro.deterministic("u", mean + normal("z", J, 2) @ (sd[:, None] * chol).T)
        of_row = (u[:, 0][g], u[:, 1][g]) if apart else (u[g, 0], u[g, 1])
        observe(dist.Normal(of_row[0] + of_row[1] * x, 1.0), y, len(g))

    check(from_numpyro(model, {"g": G, "x": X, "y": Y}), {"u": (J, 2)})


def test_a_plain_regression_stays_as_it_is():
    def model(x, y=None):
        observe(dist.Normal(normal("a") + x @ normal("b", 3), scale("sigma")), y, len(x))

    bridge = from_numpyro(model, {"x": Z, "y": Y})
    check(bridge, {"a": (), "b": (3,), "sigma": ()})
    assert bridge.likelihood_params.is_identity
    params = at(bridge)
    assert bridge.to_likelihood_params(params) is params


def test_coefficients_behind_many_scales():
    """The horseshoe: three arrays of which the rows see their product."""

    def model(x, y=None):
        beta = normal("z", 3) * scale("local", 3) * scale("tau")
        observe(dist.Bernoulli(logits=x @ beta), y, len(x))

    check(from_numpyro(model, {"x": Z, "y": YES}), {"f(local, tau, z)": (3,)})


def test_ordered_cut_points():
    """Unbounded numbers stand for them: at cut points out of order there is no likelihood."""

    def model(x, y=None):
        ordered = dist.transforms.OrderedTransform()
        base = dist.Normal(0.0, 1.0).expand([3]).to_event(1)
        cuts = numpyro.sample("cuts", dist.TransformedDistribution(base, ordered))
        observe(dist.OrderedLogistic(x @ (scale("tau") * normal("b", 3)), cuts), y, len(x))

    check(from_numpyro(model, {"x": Z, "y": LEVEL}), {"cuts": (3,), "f(b, tau)": (3,)})


def test_a_reference_level_is_no_parameter():
    def model(x, y=None):
        free = scale("tau") * normal("w", 3, 2)
        weights = jnp.concatenate([jnp.zeros((3, 1)), free], axis=1)
        observe(dist.Categorical(logits=x @ weights), y, len(x))

    check(from_numpyro(model, {"x": Z, "y": LEVEL % 3}), {"f(tau, w)": (3, 2)})


def test_effects_of_all_levels_from_those_that_are_free():
    """A sum-to-zero effect has one number less than levels."""

    def model(g, y=None):
        effect: Any = numpyro.sample("u", dist.ZeroSumNormal(1.0, (J,)))
        observe(dist.Normal(effect[g], 1.0), y, len(g))

    check(from_numpyro(model, {"g": G, "y": Y}), {"u": (J - 1,)})


def test_a_basis_gives_way_to_its_coefficients():
    """60 values of a curve at given places are 3 numbers."""
    basis = np.random.default_rng(1).normal(size=(60, 3))

    def model(place, y=None):
        curve = jnp.asarray(basis) @ (scale("tau") * normal("w", 3))
        observe(dist.Normal(curve[place], 1.0), y, len(place))

    place = np.random.default_rng(2).integers(60, size=N)
    check(from_numpyro(model, {"place": place, "y": Y}), {"f(tau, w)": (3,)})


def test_a_product_of_two_arrays_stays_two_arrays():
    """J K cells of a rank-one table are J + K numbers."""

    def model(g, h, y=None):
        table = normal("a", J)[:, None] * normal("b", K)[None, :]
        observe(dist.Normal(table[g, h], scale("sigma")), y, len(g))

    bridge = from_numpyro(model, {"g": G, "h": H, "y": Y})
    check(bridge, {"a": (J,), "b": (K,), "sigma": ()})
    assert bridge.likelihood_params.is_identity


def test_a_scale_of_the_effects_that_is_the_rows_scale_too():
    def model(g, y=None):
        sigma = scale("sigma")
        observe(dist.Normal((sigma * normal("z", J))[g], sigma), y, len(g))

    check(from_numpyro(model, {"g": G, "y": Y}), {"f(sigma, z)": (J,), "sigma": ()})


def test_parts_of_one_array():
    def model(x, y=None):
        t = normal("t", 5)
        observe(dist.Normal(t[0] + t[2:4] @ x.T, jnp.exp(t[4])), y, len(x))

    phi = check(
        from_numpyro(model, {"x": Z[:, :2], "y": Y}), {"t[0]": (1,), "t[2:4]": (2,), "t[4]": (1,)}
    )
    assert list(phi) == ["t[0]", "t[2:4]", "t[4]"]


def test_scan_hides_what_is_inside_and_nothing_else():
    """The random walk is one operation; its steps' scale stays with the prior."""

    def model(g, y=None):
        steps = scale("tau") * normal("z", J)
        _, walk = jax.lax.scan(lambda level, step: (level + step, level + step), 0.0, steps)
        observe(dist.Normal(walk[g], 1.0), y, len(g))

    check(from_numpyro(model, {"g": G, "y": Y}), {"f(tau, z)": (J,)})


def test_a_model_with_other_operations_on_other_numbers_of_rows_keeps_its_parameters():
    def model(x, y=None):
        a, tau = normal("a"), scale("tau")
        slope = a * tau if len(x) < 4 else jnp.exp(jnp.log(tau) + 0.0) * a * 1.0
        observe(dist.Normal(slope * x, 1.0), y, len(x))

    bridge = from_numpyro(model, {"x": X, "y": Y})
    found = bridge.likelihood_params
    assert found.is_identity
    assert found.names == ("a", "tau")
    says = "; the model's operations on parameters differ between 3 and 5 rows"
    assert says in repr(found)
    with jax.enable_x64(True):
        params, rows = at(bridge), few(bridge, 7)
        from_phi = bridge.log_likelihood(bridge.to_likelihood_params(params), rows)
        np.testing.assert_array_equal(from_phi, bridge.potentials(params, rows))


def test_a_model_with_a_loop_over_rows_keeps_its_parameters_and_says_so():
    def model(g, y=None):
        tau, z = scale("tau"), normal("z", J)
        observe(dist.Normal(jax.lax.map(lambda one: tau * z[one], g), 1.0), y, len(g))

    found = from_numpyro(model, {"g": G, "y": Y}).likelihood_params
    assert found.is_identity
    assert "themselves; decoct does not read loops over rows, such as jax.lax.map" in repr(found)


@pytest.mark.parametrize(
    "effect",
    [
        lambda tau, z, g, x: tau[g % 2] * z[0, g],
        lambda tau, z, g, x: tau[0] * (z[0][g] + z[1][g] * x),
        lambda tau, z, g, x: jnp.einsum("nk,kl,ln->n", columns(x), tau * jnp.eye(2), z[:, g]),
    ],
)
def test_scales_that_stay_in_the_rows_are_named(effect):
    def model(g, x, y=None):
        tau, z = scale("tau", 2), normal("z", 2, J)
        observe(dist.Normal(effect(tau, z, g, x), 1.0), y, len(g))

    found = from_numpyro(model, {"g": G, "x": X, "y": Y}).likelihood_params
    assert "z" in found.names
    assert "multiply before the index, as in (tau * z)[group]" in repr(found)


def test_a_model_whose_rows_depend_on_no_parameter_keeps_its_parameters():
    rows = {"y": jnp.zeros(5)}
    start = {"a": np.zeros(())}
    with jax.enable_x64(True):
        found = find_likelihood_params(lambda p, r: r["y"] ** 2, start, rows, lambda p: {})
    assert found.is_identity
    assert found.reason == "the log-likelihood of the rows depends on no parameter"


def test_a_model_that_computes_otherwise_than_when_it_was_read_is_refused():
    option = {"power": 1}

    def model(g, y=None):
        tau = scale("tau")
        for _ in range(option["power"]):
            tau = tau * 0.5
        observe(dist.Normal((tau * normal("z", J))[g], 1.0), y, len(g))

    bridge = from_numpyro(model, {"g": G, "y": Y})
    option["power"] = 2
    # in single precision, for which it is traced once more
    params = {name: jnp.asarray(value, jnp.float32) for name, value in at(bridge).items()}
    with pytest.raises(decoct.ModelError, match="no longer computes"):
        bridge.to_likelihood_params(params)


def test_group_numbers_out_of_range_are_refused():
    def model(g, y=None):
        observe(dist.Normal((scale("tau") * normal("z", J))[g], 1.0), y, len(g))

    wrong = np.where(np.arange(N) == 23, J, G)
    bridge = from_numpyro(model, {"g": wrong, "y": Y})
    with pytest.raises(decoct.RowsError, match="outside an array in row 23, "):
        bridge.check(bridge.rows)


def test_group_numbers_below_0_that_a_model_computes_are_meant():
    """As those of the group before, or of none where that is masked."""

    def model(g, y=None):
        a, own = normal("a", J), jnp.where(g < 0, 0, g)
        observe(dist.Normal(jnp.where(g < 0, 0.0, a[own] - a[own - 1]), 1.0), y, len(g))

    bridge = from_numpyro(model, {"g": np.where(np.arange(N) == 23, -1, G), "y": Y})
    bridge.check(bridge.rows)


def test_a_latent_per_row_is_refused():
    def model(g, y=None):
        observe(dist.Normal((scale("tau") * normal("z", N))[g], 1.0), y, len(g))

    with pytest.raises(decoct.ModelError, match="'z' has a latent value for every one of the 60"):
        from_numpyro(model, {"g": np.arange(N), "y": Y})


# coresets whose site is a quadratic in φ


def numpyro_energy(coreset, params):
    model, args = coreset.to_numpyro()
    return -float(potential_energy(model, args, {}, params))


@pytest.mark.parametrize("size", [0, 5])
@pytest.mark.parametrize("centred", [False, True])
def test_numpyro_takes_the_site(size, centred):
    bridge = from_numpyro(varying_intercepts, {"g": G, "x": X, "y": Y}, centred=centred)
    coreset = by_hand(bridge, size)
    shift = []
    for seed in range(4):
        params = at(bridge, seed)
        with jax.enable_x64(True):
            params = {name: jnp.asarray(np.asarray(v, np.float64)) for name, v in params.items()}
            shift.append(numpyro_energy(coreset, params) - density(coreset, params))
    np.testing.assert_allclose(shift, shift[0], atol=1e-9)


def test_numpyro_takes_the_site_in_its_own_precision():
    bridge = from_numpyro(varying_intercepts, {"g": G, "x": X, "y": Y})
    coreset = by_hand(bridge, 5)
    params = [{k: np.asarray(v, np.float32) for k, v in at(bridge, s).items()} for s in range(3)]
    with jax.enable_x64(False):
        theirs = [numpyro_energy(coreset, p) for p in params]
    shift = np.array(theirs) - [density(coreset, p) for p in params]
    np.testing.assert_allclose(shift, shift[0], atol=2e-3)


def test_numpyro_samples_with_the_site():
    bridge = from_numpyro(varying_intercepts, {"g": G, "x": X, "y": Y})
    model, args = by_hand(bridge, 5).to_numpyro()
    mcmc = infer.MCMC(infer.NUTS(model), num_warmup=5, num_samples=5, progress_bar=False)
    mcmc.run(jax.random.key(0), *args)
    assert set(mcmc.get_samples()) == {"mu", "tau", "slope", "sigma", "z", "u"}
