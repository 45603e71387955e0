"""The hierarchical examples on their real data: the bridges' numbers, builds, a certificate."""

import numpy as np
import pytest

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp
from numpyro.infer.util import log_likelihood
from scipy.optimize import nnls
from scipy.stats import multivariate_normal

import decoct
from decoct.constructions import IteratedHilbert, Uniform
from decoct.passes.potentials import Potentials
from decoct.report import Report, Status
from decoct.samplers import NUTS, Laplace
from decoct.stats.verdict import grade_of
from examples.hierarchical import chem97, common, election88, radon

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
    method = IteratedHilbert(site=False, max_rounds=1, draws=1000, restarts=0, exchanges=2)
    coreset = decoct.build(
        bridge, bridge.rows, size=250, method=method, sampler=Laplace(judge=False)
    )
    assert coreset.size <= 250
    sampler = NUTS(chains=2, warmup=200, target_acceptance=0.9)
    draws = sampler.sample(jax.random.key(1), coreset.density, 300)
    check = decoct.check(coreset, bridge.rows, draws.z)
    assert check.ok
    assert check.kl_interval[1] < 0.5


def certified(bridge, chosen, weights, z=None):
    """The certificate of given rows and weights; an exact coreset has D = 0 at any points."""
    order = np.argsort(chosen)
    rows = bridge.rows.take(chosen[order])
    report = Report({"name": "by hand"}, 0, Status.DONE, None, None, [], 0, 0)
    n_rows = bridge.rows.n_rows
    weights = np.asarray(weights, dtype=float)[order]
    coreset = decoct.Coreset(chosen[order], weights, rows, n_rows, bridge, report)
    if z is None:
        z = 0.3 * np.random.default_rng(3).normal(size=(4, 75, coreset.dim))
    return decoct.check(coreset, bridge.rows, z)


def test_distinct_voters_with_their_counts_are_all_voters(bridges):
    """As the page says of election88: 2,185 rows are distinct, and no more are ever needed."""
    bridge, given = bridges["election88"], election88.load()
    table = np.column_stack([given["x"], *(given[name] for name in (*election88.GROUPS, "y"))])
    _, first, counts = np.unique(table, axis=0, return_index=True, return_counts=True)
    assert len(first) == 2185
    check = certified(bridge, first, counts)
    assert check.ok
    # rounding alone: potentials add up to some 1e4 nats, in float64
    assert check.kl < 1e-10
    rarer = counts < counts.max()
    assert not certified(bridge, first[rarer], counts[rarer]).ok


def test_homes_with_the_sufficient_statistics_of_radon_are_all_homes(bridges):
    """As the page says: a normal likelihood is exact at the number of its sufficient statistics.

    In a cell (county, floor, recorded or not) they are the number of homes, Σy and Σy²: three
    homes of the cell at most carry them (Carathéodory). Of the Σy only one for either floor of a
    county counts, one for all unrecorded floors, and one Σy²: the 1,404 at which the build stops.
    """
    bridge, given = bridges["radon"], radon.load()
    kinds = np.column_stack([given["county"], given["floor"], given["unknown"]])
    cells, cell = np.unique(kinds, axis=0, return_inverse=True)
    chosen, weights, spread = [], [], []
    for number in range(len(cells)):
        homes = np.flatnonzero(cell.ravel() == number)
        values, which = np.unique(given["y"][homes], return_index=True)
        moments = np.vander(values, 3, increasing=True).T
        wanted = np.vander(given["y"][homes], 3, increasing=True).sum(axis=0)
        w, _ = nnls(moments, wanted)
        chosen += homes[which[w > 0]].tolist()
        weights += w[w > 0].tolist()
        spread.append(len(values) > 1)
    floors = [np.unique(cells[np.array(spread) & (cells[:, 1] == floor), 0]) for floor in (0, 1)]
    assert len(cells) + sum(map(len, floors)) + 2 == 1404
    assert 1404 <= len(chosen) <= 3 * len(cells)
    check = certified(bridge, np.array(chosen), weights)
    assert check.ok
    assert check.kl < 1e-10


@pytest.mark.parametrize(("homes", "passes"), [(4, True), (100, False)])
def test_a_county_without_homes_has_its_prior(bridges, homes, passes):
    """As the page says; a county of many homes missed is a refusal, with all others kept.

    Given all other parameters, its a and b are standard normal under the coreset posterior, and
    D is the log-likelihood of its homes: KL = log E L − E log L, both in closed form.
    """
    bridge, given = bridges["radon"], radon.load()
    found = np.bincount(given["county"])
    county = int(np.argmin(np.abs(found - homes)))
    missed = given["county"] == county
    shared = {name: np.zeros(np.shape(value)) for name, value in bridge.start.items()}
    shared |= {"mu_alpha": 1.3, "mu_beta": -0.6, "tau_alpha": np.log(0.4), "tau_beta": np.log(0.3)}
    params = {name: np.broadcast_to(v, (2, 500, *np.shape(v))).copy() for name, v in shared.items()}
    rng = np.random.default_rng(5)
    for name in ("a", "b"):
        params[name][..., county] = rng.normal(size=(2, 500))
    z = np.concatenate([v.reshape(2, 500, -1) for v in jax.tree.leaves(params)], axis=-1)
    check = certified(bridge, np.flatnonzero(~missed), np.ones((~missed).sum()), z)
    assert grade_of(check.kl, check.khat).ok is passes  # most parameters never move
    floor, y = given["floor"][missed], given["y"][missed]
    mean, noise = 1.3 - 0.6 * floor, 1.0
    spread = 0.4**2 + 0.3**2 * np.outer(floor, floor)
    evidence = multivariate_normal(mean, spread + noise * np.eye(len(y))).logpdf(y)
    expected = -0.5 * ((y - mean) ** 2 + np.diag(spread) + np.log(2 * np.pi)).sum()
    if passes:
        assert abs(check.kl - (evidence - expected)) < 4 * check.kl_se
    else:
        assert evidence - expected > 1.0


def test_a_build_of_the_radon_model_keeps_what_is_asked(bridges):
    bridge = bridges["radon"]
    coreset = decoct.build(
        bridge, bridge.rows, size=60, method=Uniform(), sampler=Laplace(judge=False)
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
