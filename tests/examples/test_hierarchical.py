"""The hierarchical examples on their real data: the bridges' numbers, builds, a certificate."""

import numpy as np
import pytest

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp
from examples.hierarchical import chem97, common, election88, radon
from numpyro.infer.util import log_likelihood
from scipy.stats import multivariate_normal

import decoct
from decoct.constructions import IteratedHilbert, Uniform
from decoct.posteriors import NUTS, Laplace
from decoct.potentials import Potentials

pytestmark = pytest.mark.data

MODELS = {
    "radon": (radon.model, radon.load, 12_573, 386 * 2 + 7),
    "election88": (election88.model, election88.load, 11_566, 80 + 5 + 5),
    "chem97 schools": (chem97.schools, chem97.load, 2_410, 131 + 7),
    "chem97 pupils": (chem97.pupils, chem97.load_pupils, 31_022, 2_410 + 131 + 7),
}


@pytest.fixture(scope="module")
def bridges():
    with jax.numpy_rank_promotion("allow"):
        return {
            name: decoct.from_numpyro(model, load()) for name, (model, load, _, _) in MODELS.items()
        }


def at(bridge, seed=0):
    """Two points in unconstrained space, and the constrained values there."""
    potentials = Potentials(bridge, bridge.rows)
    z = 0.5 * np.random.default_rng(seed).normal(size=(2, potentials.dim))
    with jax.enable_x64(True):
        values = jax.vmap(lambda one: bridge.constrain(potentials.space.unflatten(one)))(
            jnp.asarray(z)
        )
    return potentials, z, values


@pytest.mark.parametrize("name", list(MODELS))
def test_every_rows_potential_is_numpyros_log_likelihood(bridges, name):
    model, load, n_rows, dim = MODELS[name]
    bridge = bridges[name]
    potentials, z, values = at(bridge)
    assert (bridge.rows.n_rows, potentials.dim) == (n_rows, dim)
    ours = potentials.vectors(bridge.encode(bridge.rows.take(np.arange(n_rows))), z)
    latent = {site: values[site] for site in bridge.start}
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        given = {k: jnp.asarray(v) if np.ndim(v) else v for k, v in load().items()}
        theirs = np.asarray(log_likelihood(model, latent, **given)["y"]).T
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


def test_a_schools_likelihood_is_that_of_its_pupils_integrated_over_its_effect(bridges):
    bridge, pupils = bridges["chem97 schools"], chem97.load_pupils()
    potentials, z, values = at(bridge)
    some = np.array([0, 5, 17, 1000, 2409])
    ours = potentials.vectors(bridge.encode(bridge.rows.take(some)), z)
    shared = {site: np.asarray(v) for site, v in values.items()}
    for s in range(len(z)):
        for place, school in enumerate(some):
            of = pupils["school"] == school
            mean = pupils["x"][of] @ shared["beta"][s] + shared["effect_lea"][s][pupils["lea"][of]]
            cov = shared["tau_school"][s] ** 2 + shared["sigma"][s] ** 2 * np.eye(of.sum())
            exact = multivariate_normal(mean, cov).logpdf(pupils["y"][of])
            np.testing.assert_allclose(ours[place, s], exact, rtol=1e-9)


def test_the_rows_are_the_published_ones():
    given = radon.load()
    assert len(given["y"]) == 12_573
    assert len(given["uranium"]) == len(np.unique(given["county"])) == 386
    assert given["unknown"].sum() == 284
    assert set(np.unique(given["floor"])) == {0.0, 1.0}
    assert chem97.load()["count"].sum() == 31_022


def test_compared_measures_shifts_and_ratios():
    rng = np.random.default_rng(0)
    full = {"a": rng.normal(size=(2, 4000)), "b": rng.normal(size=(2, 4000, 2))}
    small = {"a": 2.0 * full["a"][:, ::-1] + 0.5, "b": full["b"]}
    lines = {line["parameter"]: line for line in common.compared(small, full, ("a", "b"))}
    assert set(lines) == {"a", "b[0]", "b[1]"}
    assert lines["a"]["ratio"] == pytest.approx(2.0)
    assert lines["a"]["shift"] == pytest.approx(0.5, abs=0.05)
    assert lines["a"]["its error"] == pytest.approx(np.sqrt(2 / 8000), rel=0.2)
    assert lines["b[1]"]["shift"] == 0.0


def test_250_schools_carry_the_posterior_of_all_2410(bridges):
    """At few draws and little effort; the example's own build has 0.07 nats at 200."""
    bridge = bridges["chem97 schools"]
    method = IteratedHilbert(max_rounds=1, draws=1000, restarts=0, exchanges=2)
    coreset = decoct.build(
        bridge, bridge.rows, size=250, method=method, posterior=Laplace(judge=False)
    )
    assert coreset.size <= 250
    sampler = NUTS(chains=2, warmup=200, target_acceptance=0.9)
    draws = sampler.sample(jax.random.key(1), coreset.density, 150)
    check = decoct.check(coreset, bridge.rows, draws.z)
    assert check.ok
    assert check.kl_interval[1] < 0.5


def test_a_build_of_the_radon_model_keeps_what_is_asked(bridges):
    bridge = bridges["radon"]
    coreset = decoct.build(
        bridge, bridge.rows, size=60, method=Uniform(), posterior=Laplace(judge=False)
    )
    assert coreset.size == 60
    assert coreset.dim == 779


def test_a_full_mass_matrix_is_adapted_only_where_the_warm_up_can_see_it():
    """With fewer draws than parameters it is singular: 959 leapfrog steps a draw, not 132."""
    assert NUTS(warmup=300)._is_dense(30)
    assert not NUTS(warmup=300)._is_dense(31)
    assert not NUTS(warmup=300)._is_dense(90)
    assert NUTS(warmup=300, dense_mass=True)._is_dense(90)
    assert not NUTS(warmup=300, dense_mass=False)._is_dense(2)
