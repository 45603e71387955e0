"""Sums that do not depend on the order of their terms."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoct.stats.summation import IN_CACHE, Associative, Sum


def tree(terms: list[Sum]) -> Sum:
    while len(terms) > 1:
        pairs = [terms[i : i + 2] for i in range(0, len(terms), 2)]
        terms = [functools.reduce(Associative(), pair) for pair in pairs]
    return terms[0]


def test_a_fold_a_tree_and_any_permutation_agree_with_exact_arithmetic():
    rng = np.random.default_rng(0)
    terms = rng.normal(size=(700, 40)) * 10.0 ** rng.uniform(-9, 9, size=(700, 1))
    exact = np.array([math.fsum(column) for column in terms.T])
    for order in (np.arange(700), np.arange(700)[::-1], rng.permutation(700)):
        sums = [Sum.of(term) for term in terms[order]]
        np.testing.assert_array_equal(functools.reduce(Associative(), sums).rounded(), exact)
        np.testing.assert_array_equal(tree(sums).rounded(), exact)
    assert (terms.sum(axis=0) != exact).any()  # plain addition would not do


def test_a_large_array_adds_as_its_numbers_do():
    rng = np.random.default_rng(1)
    terms = rng.normal(size=(5, 2 * IN_CACHE + 3, 3)) * 10.0 ** rng.uniform(-9, 9, size=(5, 1, 1))
    total = functools.reduce(Associative(), [Sum.of(term) for term in terms])
    for row in (0, IN_CACHE // 3, IN_CACHE, 2 * IN_CACHE + 2):
        alone = functools.reduce(Associative(), [Sum.of(term[row]) for term in terms])
        np.testing.assert_array_equal(total.high[row], alone.high)
        np.testing.assert_array_equal(total.low[row], alone.low)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1e100, 1e100, allow_subnormal=False), min_size=1, max_size=40))
def test_the_error_is_that_of_106_bits(values):
    total = functools.reduce(Associative(), [Sum.of(value) for value in values])
    got = Fraction(float(total.high)) + Fraction(float(total.low))
    error = abs(got - sum(map(Fraction, values)))
    scale = sum(abs(Fraction(value)) for value in values)
    underflow = Fraction(len(values), 2**1022)
    assert error <= scale * Fraction(len(values), 2**103) + underflow


def test_cancellation_leaves_what_was_small():
    total = Sum.of(1e17) + Sum.of(1.0) + Sum.of(-1e17) + Sum.of(2.0**-30)
    assert total.rounded() == 1.0 + 2.0**-30


@pytest.mark.parametrize(
    ("terms", "total"),
    [((np.inf, 1.0), np.inf), ((1.0, -np.inf), -np.inf), ((np.inf, -np.inf), np.nan)],
)
def test_what_is_not_finite_stays_so_and_spoils_nothing_else(terms, total):
    with np.errstate(invalid="ignore"):
        found = functools.reduce(Associative(), [Sum.of(np.array([t, 0.1])) for t in terms])
        found = found + Sum.of(np.array([1.0, 0.2]))
    np.testing.assert_array_equal(found.rounded(), [total, math.fsum([0.1, 0.1, 0.2])])
