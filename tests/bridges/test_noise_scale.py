"""Units of the noise: for which likelihoods they are found, and how near a site in them is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm, t

import decoct
from decoct.bridges.noise_scale import NoiseScale, find_noise_scale
from decoct.models.parameters import ParameterSpace
from decoct.passes.expansions import Expansion, expand_chunk, predictor_shape

N, J = 64, 5
RNG = np.random.default_rng(0)
ROWS = {
    "x": RNG.normal(size=(N, 2)),
    "g": RNG.integers(J, size=N),
    "y": 3.0 + RNG.normal(size=N),
    "w": RNG.uniform(0.5, 2.0, size=N),
    "zero": np.zeros(N),
}
PHI = {"beta": np.zeros(2), "u": np.zeros(J), "v": np.array(0.3), "t": np.array(0.2)}


def location(p, r):
    return r["x"] @ p["beta"] + p["u"][r["g"]] + p["v"] * r["zero"]


def gaussian(p, r):
    return norm.logpdf(r["y"], location(p, r), jnp.exp(p["t"]))


def of_precision(p, r):
    return 0.5 * p["t"] - 0.5 * jnp.exp(p["t"]) * (r["y"] - location(p, r)) ** 2


def of_variance_and_weights(p, r):
    return r["w"] * norm.logpdf(r["y"], location(p, r), jnp.exp(0.5 * p["t"]))


def student(p, r):
    return t.logpdf(r["y"], jnp.exp(p["v"]), location({**p, "v": 0.0}, r), jnp.exp(p["t"]))


def weibull(p, r):
    z = (r["y"] - location(p, r)) * jnp.exp(-p["t"])
    return z - jnp.exp(z) - p["t"]


EVERYTHING = ("beta", "u", "v")
FOUND = {
    gaussian: NoiseScale("t", 1.0, EVERYTHING),
    of_precision: NoiseScale("t", -0.5, EVERYTHING),
    of_variance_and_weights: NoiseScale("t", 0.5, EVERYTHING),
    student: NoiseScale("t", 1.0, ("beta", "u")),
    weibull: NoiseScale("t", 1.0, EVERYTHING),
}


def columns():
    return {name: jnp.asarray(column) for name, column in ROWS.items()}


@pytest.mark.parametrize("potentials", FOUND, ids=lambda f: f.__name__)
def test_families_of_a_location_and_a_scale_have_one(potentials):
    """Arrays whose column is 0 in all rows belong to the location, too."""
    with jax.enable_x64(True):
        found = find_noise_scale(potentials, PHI, columns())
        assert found == FOUND[potentials]
        phi = {name: jnp.asarray(value) for name, value in PHI.items()}
        again = found.undo(found.standardise(phi))
    for name, value in phi.items():
        np.testing.assert_allclose(again[name], value, rtol=1e-12, atol=1e-15)


def counts(p, r):
    """Negative binomial: its dispersion is no scale."""
    eta, k = location(p, r), jnp.exp(p["t"])
    y = jnp.floor(jnp.abs(r["y"]))
    binomial = jax.scipy.special.gammaln(y + k) - jax.scipy.special.gammaln(k)
    return binomial + k * jnp.log(k) + y * eta - (y + k) * jnp.log(k + jnp.exp(eta))


def gamma(p, r):
    shape, y = jnp.exp(p["t"]), jnp.abs(r["y"])
    rate = shape * jnp.exp(-location(p, r))
    return shape * jnp.log(rate) - jax.scipy.special.gammaln(shape) - rate * y


def of_groups(p, r):
    return norm.logpdf(r["y"], r["x"] @ p["beta"], jnp.exp(p["t"] + p["u"][r["g"]]))


def shared(p, r):
    """The scale is in the location, too."""
    return norm.logpdf(r["y"], location(p, r) + p["t"], jnp.exp(p["t"]))


def shifted(p, r):
    return norm.logpdf(r["y"], location(p, r), 0.1 + jnp.exp(p["t"]))


@pytest.mark.parametrize("potentials", [counts, gamma, of_groups, shared, shifted])
def test_others_have_none(potentials):
    with jax.enable_x64(True):
        assert find_noise_scale(potentials, PHI, columns()) is None


def test_gaussian_noise_is_quadratic_in_them_but_for_the_logarithm():
    """Σ f_n = N log(1/σ) − ½ Σ (y_n/σ − η_n/σ)², far from where it is expanded, too."""
    scale = FOUND[gaussian]
    standardised = scale.standardise(PHI, np.exp)
    start = {name: np.asarray(value) for name, value in standardised.items()}
    model = decoct.Model(lambda phi, r: gaussian(scale.undo(phi), r), lambda p: 0.0, start)
    space = ParameterSpace.of(start)
    shape = predictor_shape(model, space, ROWS)
    assert shape is not None
    assert shape[:3] == (2, 4, 1)
    with jax.enable_x64(True):
        centre, rows = space.flatten(start), columns()
        at = Expansion.taylor(centre)
        value, gradient, hessian, _ = expand_chunk(model, space, at, rows, jnp.ones(N))
        delta = jnp.asarray(RNG.normal(size=space.dim)).at[2].set(0.0)
        (place,) = np.flatnonzero(centre == start["t"])
        omega = start["t"]
        delta = delta.at[place].set(0.4 * omega)
        found = model.log_likelihood(space.unflatten(centre + delta), rows).sum()
        quadratic = value + gradient @ delta + 0.5 * delta @ hessian @ delta
        cubic = N * (np.log(1.4) - 0.4 + 0.08)
    np.testing.assert_allclose(found - quadratic, cubic, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.5, 1e-4])
def test_a_site_alone_carries_a_multilevel_model_with_gaussian_noise(sigma):
    """In (α, log σ) a site lacks d/(2N) nats, here 0.01; in units of σ 1/(24 N).

    With little noise α/σ and 1/σ are all but one number, while samplers move in α and log σ.
    """
    numpyro = pytest.importorskip("numpyro")
    import numpyro.distributions as dist

    n, groups = 1500, 30
    rng = np.random.default_rng(1)
    group = rng.integers(groups, size=n)
    y = 2.0 + 0.7 * rng.normal(size=groups)[group] + sigma * rng.normal(size=n)

    def model(group, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        noise = numpyro.sample("sigma", dist.HalfNormal(1.0))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([groups]).to_event(1))
        with numpyro.plate("data", len(group)):
            numpyro.sample("y", dist.Normal((mu + tau * z)[group], noise), obs=y)

    bridge = decoct.from_numpyro(model, {"group": group, "y": y})
    coreset = decoct.build(bridge, bridge.rows, size=0)
    check = decoct.check(coreset, bridge.rows, coreset.sample(draws=500, warmup=300))
    assert check.kl_interval[0] < 1.0 / (24 * n) < check.kl_interval[1]
