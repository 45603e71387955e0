"""Matrices with a diagonal block, and units that use them, against dense ones."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import decoct
from decoct.models.parameters import ParameterSpace
from decoct.models.site import GaussianSite, ThirdOrder
from decoct.samplers import centred_density
from decoct.samplers.arrow import Arrow, ArrowSite, Blocks, Coupling, factor_of, find_blocks
from decoct.samplers.base import WeightedDensity
from decoct.samplers.centring import Centring
from decoct.samplers.nuts import NUTS
from decoct.samplers.units import start_of, units_at

D, MEMBERS = 8, np.array([[1, 2, 5], [4, 6, 8]])


@pytest.fixture
def matrix():
    """A precision with two blocks of two, one of one, and three others."""
    root = np.random.default_rng(0).normal(size=(D, D))
    matrix = root @ root.T + D * np.eye(D)
    block = np.full(D, -1)
    for number, members in enumerate(MEMBERS.T):
        block[members[members < D]] = number
    apart = (block[:, None] != block[None]) & (block[:, None] >= 0) & (block[None] >= 0)
    return np.where(apart, 0.0, matrix)


def test_product_and_factor_are_those_of_the_matrix(matrix):
    arrow = Arrow.of(matrix, Blocks.of(MEMBERS, D))
    x = np.random.default_rng(1).normal(size=(3, D))
    with jax.enable_x64(True):
        factor = arrow.factor()
        v = factor.solve(x)
        np.testing.assert_allclose((v**2).sum(1), ((x @ matrix) * x).sum(1), rtol=1e-12)
        np.testing.assert_allclose(jax.vmap(factor.product)(jnp.asarray(v)), x, rtol=1e-12)
    variances = np.diag(np.linalg.inv(matrix))
    np.testing.assert_allclose(arrow.inverse_diagonal(), variances, rtol=1e-12)


def test_a_direction_of_no_precision_is_given_a_little():
    flat = np.ones((2, 2))
    root = factor_of(flat)
    assert np.isfinite(root).all()
    assert np.linalg.eigvalsh(np.linalg.inv(root @ root.T))[0] == pytest.approx(1e-3, rel=1e-6)


ALONE = ThirdOrder(np.arange(3, 6), np.ones(3), np.ones(3))
PAIRS = replace(ALONE, partners=np.arange(3), factors=np.array([0.5, -1.0, 0.0]))


@pytest.mark.parametrize("third", [None, ALONE, PAIRS])
def test_a_site_has_the_value_and_derivatives_of_the_dense_one(matrix, third):
    rng = np.random.default_rng(2)
    dense = GaussianSite(rng.normal(size=D), rng.normal(size=D), matrix, 0.3, third)
    quick = ArrowSite.of(dense, Blocks.of(MEMBERS, D))
    with jax.enable_x64(True):
        z = jnp.asarray(rng.normal(size=D))
        for derivative in (lambda f: f, jax.grad, jax.hessian):
            found, expected = (
                jax.jit(derivative(lambda z, one=one: one.log_density(z)))(z)
                for one in (quick, dense)
            )
            np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_blocks_are_apart():
    adjacent = np.random.default_rng(3).random((40, 40)) < 0.04
    adjacent |= adjacent.T
    np.fill_diagonal(adjacent, True)
    members = find_blocks(adjacent)
    inside = [block[block < 40] for block in members.T]
    assert len(np.unique(np.concatenate(inside))) == sum(map(len, inside))
    for i, block in enumerate(inside):
        for other in inside[:i]:
            assert not adjacent[np.ix_(block, other)].any()


def test_slopes_and_intercepts_of_a_county_are_a_block():
    """Intercepts 0 to 4, slopes 5 to 9, and two coordinates that all rows see."""
    adjacent = np.eye(12, dtype=bool) | np.eye(12, k=5, dtype=bool) | np.eye(12, k=-5, dtype=bool)
    adjacent[10:] = adjacent[:, 10:] = True
    adjacent[5:10, 10] = adjacent[10, 5:10] = True
    members = find_blocks(adjacent)
    np.testing.assert_array_equal(
        members[:, np.argsort(members[0])], [np.arange(5), np.arange(5, 10)]
    )


def test_a_coupling_with_few_entries_in_most_columns():
    rng = np.random.default_rng(6)
    matrix = np.concatenate([rng.normal(size=(60, 2)), np.zeros((60, 30))], axis=1)
    matrix[np.arange(60), 2 + np.arange(60) % 29] = rng.normal(size=60)
    coupling = Coupling.of(matrix)
    assert (coupling.dense.shape, coupling.values.shape) == ((60, 2), (60,))
    np.testing.assert_array_equal(coupling.to_array(), matrix)
    x, v = rng.normal(size=32), rng.normal(size=60)
    with jax.enable_x64(True):
        np.testing.assert_allclose(coupling.product(jnp.asarray(x)), matrix @ x, rtol=1e-12)
        np.testing.assert_allclose(
            coupling.transposed_product(jnp.asarray(v)), matrix.T @ v, rtol=1e-12, atol=1e-14
        )


G, N = 6, 200


@cache
def of_noise():
    """Effects a + exp(s) z of few rows each, and noise of unknown scale."""
    rng = np.random.default_rng(4)
    group = np.arange(N) % (4 * G)
    columns = {"group": group, "y": rng.normal(size=4 * G)[group] + rng.normal(size=N)}

    def model(group, y):
        a, s = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "as")
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        with numpyro.plate("groups", 4 * G):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", N):
            numpyro.sample("y", dist.Normal(a + jnp.exp(s) * z[group], sigma), obs=y)

    bridge = decoct.from_numpyro(model, columns, plate="rows")
    return bridge, density_of(bridge, bridge.rows)


@cache
def multilevel(is_correlated):
    rng = np.random.default_rng(4)
    rows = {"g": rng.integers(G, size=N), "y": (rng.random(N) < 0.3).astype(float)}
    rows["x"] = rng.normal(size=N)
    of_coefficients = np.linalg.inv(0.05 * np.array([[1.0, 0.95], [0.95, 1.0]]))

    def log_likelihood(p, r):
        eta = p["a"][0] + p["a"][1] * r["x"] + p["u"][r["g"]]
        return r["y"] * eta - jnp.logaddexp(0.0, eta)

    def log_prior(p):
        steps = jnp.diff(p["u"]) if is_correlated else p["u"]
        of_effects = -0.5 * (steps**2).sum() * jnp.exp(-2.0 * p["s"]) - G * p["s"]
        of_others = p["a"] @ of_coefficients @ p["a"] + p["s"] ** 2 + p["u"][0] ** 2
        return of_effects - 0.5 * of_others

    start = {"a": np.zeros(2), "s": np.zeros(()), "u": np.zeros(G)}
    model = decoct.Model(
        log_likelihood, log_prior, start, likelihood_params=lambda p: {"a": p["a"], "u": p["u"]}
    )
    return model, density_of(model, rows)


def density_of(model, rows):
    method = decoct.constructions.IteratedHilbert()
    coreset = decoct.build(model, rows, size=0, method=method)
    return WeightedDensity.of(model, coreset.rows, coreset.weights, site=coreset.site)


def test_nuts_aims_higher_with_likelihood_parameters():
    """Transitions are accepted nine times in ten, not eight; asked for otherwise, as asked."""
    _, density = multilevel(False)
    rates = {}
    density = replace(density, site=density.site.quadratic())
    for name, sampler in {
        "default": NUTS(chains=2, warmup=200),
        "asked": NUTS(chains=2, warmup=200, target_acceptance=0.5),
    }.items():
        drawn = sampler.sample(jax.random.key(0), density, 500)
        rates[name] = drawn.info["acceptance_rate"].mean()
    assert rates["default"] > 0.87
    assert rates["asked"] < 0.82


@pytest.mark.parametrize("most", [0, 100])
@pytest.mark.parametrize("kind", ["alone", "correlated", "of noise"])
def test_units_make_the_mean_precision_one(kind, most, monkeypatch):
    """With the site's part of the precision apart, and not."""
    monkeypatch.setattr(centred_density, "FEW_PRODUCTS", most)
    with jax.numpy_rank_promotion("allow"):  # NumPyro's distributions promote
        model, density = of_noise() if kind == "of noise" else multilevel(kind == "correlated")
        assert density.site is not None
        density = replace(density, site=density.site.quadratic())
        space = ParameterSpace.of(model.init({}))
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        centring = Centring.of(model, space, density.start)
        start = start_of(density, centring) if kind == "of noise" else density.start
        z = start + 0.3 * np.random.default_rng(5).normal(size=(3, space.dim))
        units, v = units_at(density, centring, z)
        # effects whose prior binds them to each other are not alone
        n_alone = {"alone": G, "correlated": 0, "of noise": 4 * G}[kind]
        assert units.factor.blocks.members.size == n_alone
        if kind == "of noise":  # effects in between those of the model and those of the data
            precision = units.density.known.precision[centring.standardised]
            scale = np.exp(np.log(jax.vmap(centring.scales)(jnp.asarray(z))).mean(axis=0))
            share = precision / (precision + scale**-2.0)
            assert ((share > 0.05) & (share < 0.95)).all()
        np.testing.assert_allclose(units.parameters_of(v), z, rtol=1e-9)
        differences = []
        for one, there in zip(jnp.asarray(v), jnp.asarray(z), strict=True):
            x = units.centre + units.factor.product(one)
            volume = centring.to_parameters(x, units.density.known).volume
            differences.append(units.log_density(one) - density.log_density(there) - volume)
        assert np.ptp(differences) < 1e-9
        hessians = jax.jit(jax.vmap(jax.hessian(units.log_density)))(jnp.asarray(v))
    np.testing.assert_allclose(-np.asarray(hessians).mean(0), np.eye(space.dim), atol=1e-7)
