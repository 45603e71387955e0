"""The Wasserstein distance against closed forms and SciPy."""

import sys

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment, linprog
from scipy.spatial.distance import cdist
from scipy.stats import wasserstein_distance

from decoct.errors import RequestError
from decoct.theory import wasserstein as module
from decoct.theory.wasserstein import wasserstein

pytest.importorskip("ot")

RNG = np.random.default_rng(0)
CLOUD = RNG.normal(size=(150, 3))
OTHER = 2.0 * RNG.normal(size=(150, 3)) + 1.0


def test_a_shift_costs_its_length():
    assert wasserstein(CLOUD, CLOUD + np.array([1.0, -2.0, 2.0])) == pytest.approx(3.0, rel=1e-9)
    assert wasserstein(CLOUD, CLOUD) == 0.0
    assert wasserstein(np.ones((5, 2)), np.ones((3, 2))) == 0.0


@pytest.mark.parametrize("unit", [1e-8, 1.0, 1e8])
def test_the_distance_has_the_units_of_the_draws(unit):
    expected = wasserstein(CLOUD, OTHER) * unit
    assert wasserstein(CLOUD * unit, OTHER * unit) == pytest.approx(expected, rel=1e-9)


def test_it_is_a_distance_and_blind_to_the_order_of_draws():
    value = wasserstein(CLOUD, OTHER)
    assert wasserstein(OTHER, CLOUD) == pytest.approx(value, rel=1e-9)
    shuffled = wasserstein(RNG.permutation(CLOUD), RNG.permutation(OTHER))
    assert shuffled == pytest.approx(value, rel=1e-9)
    third = RNG.exponential(size=(80, 3))
    assert value <= wasserstein(CLOUD, third) + wasserstein(third, OTHER) + 1e-9


def test_equal_sizes_are_an_assignment():
    costs = cdist(CLOUD, OTHER)
    best = costs[linear_sum_assignment(costs)].mean()
    assert wasserstein(CLOUD, OTHER) == pytest.approx(best, rel=1e-9)


def test_unequal_sizes_are_scipys_linear_programme():
    x, y = CLOUD[:7], OTHER[:11]
    n, m = len(x), len(y)
    plan = np.zeros((n + m, n * m))
    for i in range(n):
        plan[i, i * m : (i + 1) * m] = 1.0
    for j in range(m):
        plan[n + j, j::m] = 1.0
    marginals = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    best = linprog(cdist(x, y).ravel(), A_eq=plan, b_eq=marginals).fun
    assert wasserstein(x, y) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("m", [1, 90, 301])
def test_one_dimension_is_scipys(m):
    x, y = RNG.normal(size=200), RNG.exponential(size=m)
    assert wasserstein(x, y) == pytest.approx(wasserstein_distance(x, y), rel=1e-9)
    assert wasserstein(x[:, None], y[:, None]) == wasserstein(x, y)


def test_two_gaussians_of_one_shape_are_as_far_apart_as_their_means():
    """W₁ = ‖μ₁ − μ₂‖; within the distances of each sample to its own distribution, on average."""
    n, shift = 1500, np.array([3.0, 4.0])
    one, two = RNG.normal(size=(n, 2)), RNG.normal(size=(n, 2)) + shift
    own = wasserstein(RNG.normal(size=(n, 2)), one)
    value = wasserstein(one, two)
    # W₁ is at least the distance of the two means, whose error is √(2/n) along the shift
    assert value > 5.0 - 4.5 * np.sqrt(2 / n)
    assert value < 5.0 + 2 * own


def test_long_samples_are_thinned_evenly():
    x, y = RNG.normal(size=(1000, 2)), RNG.normal(size=(700, 2)) + 1.0
    thinned = wasserstein(x, y, max_draws=100)
    assert thinned == wasserstein(x[::10], y[::7])
    assert thinned == wasserstein(x[::10], y, max_draws=100)
    # 250 of 1,000 is every fourth, 300 of 1,000 leaves three or four out in turn
    assert wasserstein(x, x[::4], max_draws=250) == 0.0
    kept = module._thin(np.arange(1000.0)[:, None], 300)[:, 0]
    assert len(kept) == 300
    assert set(np.diff(kept)) == {3.0, 4.0}


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (CLOUD, CLOUD[:, :2], "3 columns and the second 2"),
        (CLOUD[:0], CLOUD, "first sample has the shape"),
        (CLOUD, CLOUD[:, :0], "second sample has the shape"),
        (CLOUD, CLOUD[None], "second sample has the shape"),
        (np.where(np.arange(150)[:, None] == 7, np.nan, CLOUD), CLOUD, "Draw 7 of the first"),
        (CLOUD, np.where(np.arange(150)[:, None] == 9, np.inf, CLOUD), "Draw 9 of the second"),
    ],
)
def test_what_is_no_pair_of_samples_is_refused(first, second, sentence):
    with pytest.raises(RequestError, match=sentence):
        wasserstein(first, second)


def test_no_draws_at_all_are_refused():
    with pytest.raises(RequestError, match="max_draws must be a whole number"):
        wasserstein(CLOUD, OTHER, max_draws=0)


@pytest.mark.filterwarnings("ignore:numItermax")
def test_a_programme_that_was_not_solved_is_an_error(monkeypatch):
    monkeypatch.setattr(module, "MAX_PIVOTS", 5)
    with pytest.raises(RequestError, match="not solved"):
        wasserstein(CLOUD, OTHER)


def test_without_pot_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot.lp", None)
    with pytest.raises(RequestError, match=r"pip install 'decoct\[ot\]'"):
        wasserstein(CLOUD, OTHER)
