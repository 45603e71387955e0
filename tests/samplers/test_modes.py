"""The search for modes without draws, on densities whose modes are known."""

import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.samplers import WeightedDensity
from decoct.samplers.modes import STARTS, find_modes

FAR = 40.0
"""Distance of the two modes, in standard deviations of the draws."""


def density(log_prior, dim=2):
    """A posterior that is its prior: one row without any weight."""
    model = decoct.Model(lambda z, rows: 0.0 * rows["y"] * z.sum(), log_prior, np.zeros(dim))
    return WeightedDensity.of(model, {"y": np.zeros(1)}, np.zeros(1))


def two_modes(z):
    """Two normals as high as each other; the second is a third as wide along the first axis."""
    first = -0.5 * jnp.sum(z**2)
    second = -0.5 * (3.0 * (z[0] - FAR)) ** 2 - 0.5 * z[1] ** 2
    return jnp.logaddexp(first, second)


@pytest.fixture(scope="module")
def two():
    return density(two_modes)


def draws_of(centre, seed=0):
    return np.array([centre, 0.0]) + np.random.default_rng(seed).normal(size=(400, 2))


def test_a_far_mode_is_found_and_has_its_laplace_mass(two):
    found = find_modes(two, draws_of(0.0), np.random.default_rng(0))
    assert found is not None
    np.testing.assert_allclose(found.z, [[0.0, 0.0], [FAR, 0.0]], atol=1e-6)
    assert found.draws.tolist() == [400, 0]
    assert 0 < found.searches <= STARTS
    np.testing.assert_allclose(found.shares(np.zeros(2)), [0.75, 0.25], rtol=1e-6)
    # what is impossible has no mass, and nothing has any if all is
    np.testing.assert_allclose(found.shares(np.array([5.0, -np.inf])), [1.0, 0.0])
    np.testing.assert_allclose(found.shares(np.array([np.nan, 2.0])), [0.0, 1.0])
    np.testing.assert_array_equal(found.shares(np.full(2, -np.inf)), [0.0, 0.0])


def test_draws_belong_to_the_nearest_mode(two):
    both = np.concatenate([draws_of(0.0), draws_of(FAR)[:7]])
    found = find_modes(two, both, np.random.default_rng(0))
    assert found is not None
    assert sorted(found.draws.tolist()) == [7, 400]


def test_the_starts_are_the_generators(two):
    once, again = (find_modes(two, draws_of(0.0), np.random.default_rng(3)) for _ in range(2))
    assert once is not None
    assert again is not None
    np.testing.assert_array_equal(once.z, again.z)
    assert once.searches == again.searches


def test_a_flat_density_has_no_maximum():
    flat = density(lambda z: 0.0 * jnp.sum(z))
    assert find_modes(flat, draws_of(0.0), np.random.default_rng(0)) is None
