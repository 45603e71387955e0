"""How remainders grow, against Hermite polynomials at draws and in closed form."""

from itertools import combinations_with_replacement
from math import factorial

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermeval

from decoct.stats import Gaussian
from decoct.streams.remainder import HIGHEST, LOWEST, Growth, growths, remainder_order, whitening


def random_cov(rng, d):
    root = rng.normal(size=(d, d))
    return root @ root.T + 0.3 * np.eye(d)


def hermite(x, order):
    """Every He_α(x)/√α! of this order, for x of shape (n, d): (n, C(d + p − 1, p))."""
    columns = []
    for chosen in combinations_with_replacement(range(x.shape[1]), order):
        column = np.ones(len(x))
        for i in set(chosen):
            k = chosen.count(i)
            column = column * hermeval(x[:, i], [0.0] * k + [1.0]) / np.sqrt(factorial(k))
        columns.append(column)
    return np.stack(columns, axis=1)


@pytest.mark.parametrize(("d", "order"), [(1, 3), (2, 3), (4, 3), (2, 4), (3, 5)])
@pytest.mark.parametrize("away", [0.0, 1.0, 3.0])
def test_it_is_the_mean_variance_of_all_hermite_polynomials_of_an_order(d, order, away):
    rng = np.random.default_rng(10 * d)
    start = Gaussian(rng.normal(size=d), random_cov(rng, d))
    direction = rng.normal(size=d)
    end = Gaussian(
        start.mean + away * start.sd * direction / np.linalg.norm(direction),
        0.4 * start.cov + 0.2 * random_cov(rng, d),
    )
    draws, blocks = end.sample(rng, 200_000), 40
    values = hermite((draws - start.mean) @ whitening(start), order)
    per_block = values.reshape(blocks, -1, values.shape[1]).var(axis=1).mean(axis=1)
    error = per_block.std() / np.sqrt(blocks)
    assert abs(per_block.mean() - growths(start, end, order)[-1]) < 5 * error


def test_in_one_dimension_it_is_a_polynomial_of_the_distance():
    place = Gaussian(np.zeros(1), np.full((1, 1), 4.0))
    for u in (0.0, 0.5, 3.0, 10.0):
        there = Gaussian(np.array([2.0 * u]), place.cov)
        wanted = [1, 1 + 2 * u**2, 1 + 3 * u**2 + 1.5 * u**4]
        np.testing.assert_allclose(growths(place, there, 3), wanted)


def test_coordinates_do_not_matter():
    rng = np.random.default_rng(1)
    start, end = (Gaussian(rng.normal(size=3), random_cov(rng, 3)) for _ in range(2))
    turned = np.linalg.qr(rng.normal(size=(3, 3)))[0] * [1e-3, 1.0, 50.0]
    there = (Gaussian(g.mean @ turned, turned.T @ g.cov @ turned) for g in (start, end))
    np.testing.assert_allclose(growths(*there, 4), growths(start, end, 4))


def test_what_would_become_smaller_is_not_counted_on():
    place = Gaussian(np.zeros(2), np.eye(2))
    assert Growth.of(place, Gaussian(np.zeros(2), 0.1 * np.eye(2)), 3) == (1.0, 1.0)
    np.testing.assert_allclose(Growth.of(place, place, 3), 1.0)


def test_many_parameters_and_far_places_are_numbers():
    place = Gaussian(np.zeros(200), np.eye(200))
    for u in (1.0, 1e4):
        found = growths(place, Gaussian(np.full(200, u), 0.5 * np.eye(200)), HIGHEST + 1)
        assert np.isfinite(found).all()
        assert (np.diff(found) > 0).all()


def test_the_order_is_the_first_that_has_more_polynomials_than_there_are_rows():
    # Of degree 1 to 3 there are 19 in three variables, to 4 there are 34.
    assert [remainder_order(m, 3) for m in (1, 18, 19, 33, 34)] == [3, 3, 4, 4, 5]
    assert remainder_order(100, 1) == HIGHEST
    assert remainder_order(100, 100) == LOWEST


def test_the_bound_is_of_the_order_up_to_the_next_that_grows_most():
    place = Gaussian(np.zeros(1), np.eye(1))
    narrow = Gaussian(np.full(1, 2.0), np.full((1, 1), 0.5))
    found = growths(place, narrow, 11)
    assert found.argmax() == 4  # neither the lowest order nor the highest
    np.testing.assert_allclose(Growth.of(place, narrow, 3), found[2:4])
    np.testing.assert_allclose(Growth.of(place, narrow, 10), found[[9, 4]])


def test_whitened_coordinates_are_uncorrelated_and_of_variance_one():
    cov = random_cov(np.random.default_rng(2), 4)
    w = whitening(Gaussian(np.zeros(4), cov))
    np.testing.assert_allclose(w.T @ cov @ w, np.eye(4), atol=1e-12)
