"""Standardised effects and effects: the map, its volume, and what it finds of a model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.models.parameters import ParameterSpace
from decoct.samplers import centring as centring_module
from decoct.samplers.arrow import Blocks, find_blocks
from decoct.samplers.centring import Centring, Information
from decoct.samplers.units import _effect_precision

G = 5
START = {"b": np.zeros(2), "s": np.zeros(()), "z": np.zeros(G)}


def made(to_likelihood, log_prior=lambda p: 0.0, start=START):
    model = decoct.Model(
        lambda p, r: jnp.zeros(len(r["y"])), log_prior, start, likelihood_params=to_likelihood
    )
    space = ParameterSpace.of(start)
    return Centring.of(model, space, space.flatten(start)), space


def standardised(p):
    return {"b": p["b"], "u": p["b"][0] + jnp.exp(p["s"]) * p["z"]}


def plain(p):
    return {"b": p["b"], "z": p["z"]}


def curved(p):
    return {"b": p["b"], "u": jnp.exp(p["s"]) * jnp.sinh(p["z"])}


def walk(p):
    return {"b": p["b"], "u": p["b"][0] + jnp.exp(p["s"]) * jnp.cumsum(p["z"])}


def mixed(p):
    return {"b": p["b"], "u": jnp.exp(p["s"]) * (p["z"] + p["z"][::-1])}


def test_standardised_effects_are_found():
    centring, _ = made(standardised)
    np.testing.assert_array_equal(centring.effects.places, 3 + np.arange(G))
    np.testing.assert_array_equal(centring.effects.entries, 2 + np.arange(G))
    np.testing.assert_array_equal(centring.selection, [0, 1, *(3 + np.arange(G))])


def test_parameters_that_the_rows_see_are_entries_as_they_are():
    centring, _ = made(plain)
    assert not len(centring.effects.places)
    np.testing.assert_array_equal(centring.selection, [0, 1, *(3 + np.arange(G))])


def test_each_step_of_a_random_walk_is_a_level():
    centring, _ = made(walk)
    places, entries, levels = centring.effects
    np.testing.assert_array_equal(entries[places - 3], 2 + np.arange(G))
    np.testing.assert_array_equal(levels.argmax(axis=0), places - 3)
    np.testing.assert_array_equal(centring.selection, [0, 1, *(3 + np.arange(G))])


def test_of_too_many_levels_the_last_alone_is_centred(monkeypatch):
    monkeypatch.setattr(centring_module, "MOST_LEVELS", G - 1)
    centring, _ = made(walk)
    np.testing.assert_array_equal(centring.effects.entries, [1 + G])
    assert centring.selection is None


def test_a_parameter_that_phi_has_twice_is_no_selection():
    centring, _ = made(lambda p: {**standardised(p), "again": p["b"][:1]})
    assert len(centring.effects.places) == G
    assert centring.selection is None


@pytest.mark.parametrize("to_likelihood", [curved, mixed])
def test_what_is_no_affine_function_of_one_parameter_is_left(to_likelihood):
    centring, _ = made(to_likelihood)
    assert centring.selection is None


def there_and_back(centring, space, known):
    """Return z, x and φ(z); the inverse, its volume and φ are checked."""
    with jax.enable_x64(True):
        z = jnp.asarray(np.random.default_rng(0).normal(size=space.dim))
        x = centring.from_parameters(z, known)
        back, volume, phi = centring.to_parameters(x, known)
        slope = jax.jit(jax.jacobian(lambda x: centring.to_parameters(x, known).z))(x)
        expected = np.asarray(centring.likelihood(z))
    np.testing.assert_allclose(phi, expected, rtol=1e-12)
    np.testing.assert_allclose(back, z, rtol=1e-12)
    np.testing.assert_allclose(volume, np.linalg.slogdet(np.asarray(slope))[1], rtol=1e-10)
    return np.asarray(z), np.asarray(x), expected


@pytest.mark.parametrize("to_likelihood", [standardised, walk])
@pytest.mark.parametrize("is_known", [False, True])
def test_there_and_back_the_volume_and_the_likelihood_parameters(is_known, to_likelihood):
    centring, space = made(to_likelihood)
    precision, linear = np.zeros(2 + G), np.zeros(2 + G)
    precision[2:], linear[2:] = [1e8, 0.0, 0.3, 5.0, 40.0], [-1e8, 0.0, 0.0, 2.0, 7.0]
    known = Information(precision, linear) if is_known else None
    z, x, expected = there_and_back(centring, space, known)
    with jax.enable_x64(True):
        shift, scale = map(np.asarray, centring.affine(jnp.asarray(z)))
    if not is_known:
        np.testing.assert_allclose(x[centring.selection], expected, rtol=1e-12)
        return
    # u given a, b and the data, N(mean, variance), in standard deviations
    variance = 1.0 / (precision + 1.0 / scale**2)
    mean = variance * (linear + shift / scale**2)
    standardised_effects = (expected - mean) / np.sqrt(variance)
    np.testing.assert_allclose(x[centring.selection][2:], standardised_effects[2:], rtol=1e-7)


def normal(values, mean, log_scale):
    return (-0.5 * jnp.exp(-2.0 * log_scale) * (values - mean) ** 2 - log_scale).sum()


def prior_of_coefficients(p):
    return -0.5 * (p["b"] ** 2).sum() - 0.5 * p["s"] ** 2


def effects_as_they_are(p):
    return prior_of_coefficients(p) + normal(p["z"], p["b"][0], p["s"])


def walk_of_effects(p):
    return prior_of_coefficients(p) + normal(p["z"], jnp.pad(p["z"][:-1], (1, 0)), p["s"])


def effects_in_pairs(p):
    return prior_of_coefficients(p) + normal(p["z"][1:], p["z"][0], p["s"]) - p["z"][0] ** 2


def long_tails(p):
    return prior_of_coefficients(p) - jnp.log1p(((p["z"] - p["b"][0]) / jnp.exp(p["s"])) ** 2).sum()


@pytest.mark.parametrize(
    ("log_prior", "found"),
    [
        (effects_as_they_are, [3, 4, 5, 6, 7]),
        (effects_in_pairs, [4, 5, 6, 7]),  # schools, given their area
        (walk_of_effects, [3, 7]),  # its ends
        (long_tails, []),
        (prior_of_coefficients, []),
    ],
)
def test_parameters_with_a_normal_prior_of_unknown_scale_are_found(log_prior, found):
    centring, _ = made(plain, log_prior)
    np.testing.assert_array_equal(centring.centred.places, found)
    np.testing.assert_array_equal(centring.selection[centring.centred.entries], found)


def bounded(p):
    size = (p["z"] - p["b"][0]) * jnp.exp(-p["s"])
    log_density = jnp.where(p["z"] > 0.5, -0.5 * size**2 - p["s"], -jnp.inf)
    return prior_of_coefficients(p) + log_density.sum()


def long_tails_far_away(p):
    size = jnp.abs(p["z"] - 300.0) * jnp.exp(-p["s"])
    return prior_of_coefficients(p) - jnp.where(size < 20.0, 0.5 * size**2, 20.0 * size).sum()


def of_a_norm(p):
    return prior_of_coefficients(p) - 0.5 * jnp.linalg.norm(p["z"] / jnp.exp(p["s"])) ** 2


@pytest.mark.parametrize("log_prior", [bounded, long_tails_far_away, of_a_norm])
def test_what_is_normal_nearby_alone_is_left(log_prior):
    """There, but not at 0, where the derivative is infinite, or that of tails."""
    start = {**START, "z": np.full(G, 300.0)}
    centring, _ = made(plain, log_prior, start)
    assert not len(centring.centred.places)


def test_standardised_effects_around_one_that_is_a_parameter():
    """Schools around their area, whose own prior has a scale."""
    start = {**START, "area": np.zeros(()), "t": np.zeros(())}

    def effects(p):
        return {"b": p["b"], "area": p["area"], "u": p["area"] + jnp.exp(p["s"]) * p["z"]}

    def log_prior(p):
        of_schools = -0.5 * (p["z"] ** 2).sum() - 0.5 * p["t"] ** 2
        return prior_of_coefficients(p) + of_schools + normal(p["area"], p["b"][0], p["t"])

    centring, space = made(effects, log_prior, start)
    assert len(centring.effects.places) == G
    assert len(centring.centred.places) == 1
    there_and_back(centring, space, Information(np.full(3 + G, 2.0), np.arange(3.0 + G)))


def test_of_a_prior_that_standardised_effects_enter_nothing_is_found():
    start = {**START, "w": np.zeros(())}

    def log_prior(p):
        return prior_of_coefficients(p) + normal(p["w"], p["z"][0], p["s"])

    centring, _ = made(lambda p: {**standardised(p), "w": p["w"]}, log_prior, start)
    assert len(centring.effects.places) == G
    assert not len(centring.centred.places)


def test_effects_that_are_parameters_there_and_back_and_their_volume():
    centring, space = made(plain, effects_as_they_are)
    precision, linear = np.zeros(2 + G), np.zeros(2 + G)
    precision[2:], linear[2:] = [1e8, 0.0, 0.3, 5.0, 40.0], [-1e8, 0.0, 0.0, 2.0, 7.0]
    z, x, _ = there_and_back(centring, space, Information(precision, linear))
    with jax.enable_x64(True):
        scales = centring.scales(jnp.asarray(z))
        untouched = centring.from_parameters(jnp.asarray(z), None)
    scale = np.exp(z[2])
    np.testing.assert_allclose(scales, np.full(G, scale), rtol=1e-12)
    np.testing.assert_array_equal(untouched, z)
    variance = 1.0 / (precision[2:] + 1.0 / scale**2)
    mean = variance * (linear[2:] + z[0] / scale**2)
    np.testing.assert_allclose(x[3:], (z[3:] - mean) / np.sqrt(variance), rtol=1e-7)


def test_nested_groups_are_centred_by_what_the_data_say_with_others_fixed_and_not():
    """Var(u | y) of 4 areas of 3 schools of 50 rows, by conditioning on all rows."""
    school = np.repeat(np.arange(12), 50)
    design = np.concatenate([np.eye(4)[school // 3], np.eye(12)[school]], axis=1)
    scale = np.concatenate([np.full(4, 0.2), np.full(12, 1.0)])
    of_rows = design @ np.diag(scale**2) @ design.T + np.eye(len(school))
    explained = np.linalg.solve(of_rows, design * scale**2)
    variance = scale**2 - np.einsum("nm,nm->m", design * scale**2, explained)
    known = design.T @ design
    blocks = Blocks.of(find_blocks(known != 0.0), 16)
    assert blocks.members.size
    found = _effect_precision(known, blocks, np.arange(16), scale[None])
    others_fixed = 1.0 / (np.append(np.full(4, 150.0), np.full(12, 50.0)) + scale**-2)
    mean = 0.5 * (variance + others_fixed)
    np.testing.assert_allclose(found, 1.0 / mean - scale**-2, rtol=1e-6)
    # alone the data say little of an area, though 150 rows see it, and 50 a school
    assert 1.0 - variance[0] / scale[0] ** 2 < 0.2
    pooling = found / (found + scale**-2)
    np.testing.assert_allclose(pooling, 1.0 - mean / scale**2, rtol=1e-6)
    assert pooling[-1] > 0.9
