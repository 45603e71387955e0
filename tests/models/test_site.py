"""Sites: what their terms of third order are, and that they stay out of sums."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from decoct.formats.site import site_from_dict, site_to_dict
from decoct.models.site import GaussianSite, ThirdOrder, bounded_cubic

EFFECTS, SCALES, SIZES = np.array([0, 2]), np.array([1.5, 0.7]), np.array([0.2, -0.1])


@pytest.fixture
def site():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    third = ThirdOrder(EFFECTS, SCALES, SIZES)
    return GaussianSite(rng.normal(size=3), rng.normal(size=3), root @ root.T, 0.5, third)


def test_the_bounded_cubic_has_the_hermite_coefficients_of_the_cubic():
    """Those of (z³ − 3z)/6: 0 on z and on quadratics, and 1 on z³ − 3z."""

    def mean(f):
        return quad(lambda z: f(z) * norm.pdf(z), -np.inf, np.inf, epsabs=1e-12)[0]

    assert mean(lambda z: bounded_cubic(z) * z) == pytest.approx(0.0, abs=1e-12)
    assert mean(lambda z: bounded_cubic(z) * (z**3 - 3.0 * z)) == pytest.approx(1.0, rel=1e-10)
    z = np.linspace(-3.0, 3.0, 13)
    np.testing.assert_array_equal(bounded_cubic(-z), -bounded_cubic(z))
    np.testing.assert_allclose(bounded_cubic(z), (z**3 - 3.0 * z) / 6.0, atol=0.1)


def test_terms_of_third_order_are_of_the_product_with_the_precision(site):
    z = np.random.default_rng(1).normal(size=(5, 3))
    moved = (z - site.centre) @ site.precision
    expected = sum(
        size * bounded_cubic(moved[:, effect] / scale)
        for effect, scale, size in zip(EFFECTS, SCALES, SIZES, strict=True)
    )
    of_third_order = site.log_density(z) - site.quadratic().log_density(z)
    np.testing.assert_allclose(of_third_order, expected, rtol=1e-12)


def test_terms_of_pairs_are_of_two_products(site):
    pairs = replace(site.third_order, partners=np.array([1, 1]), factors=np.array([0.4, -2.0]))
    z = np.random.default_rng(1).normal(size=(5, 3))
    moved = (z - site.centre) @ site.precision
    first, second = bounded_cubic((moved[:, EFFECTS] + moved[:, [1]] * [0.4, -2.0]) / SCALES).T
    found = replace(site, third_order=pairs).log_density(z) - site.quadratic().log_density(z)
    np.testing.assert_allclose(found, SIZES[0] * first + SIZES[1] * second, rtol=1e-12)


def test_sums_of_sites_are_of_their_quadratics(site):
    z = np.random.default_rng(2).normal(size=(5, 3))
    both = site + site.move_to(np.ones(3))
    np.testing.assert_allclose(both.log_density(z), 2.0 * site.quadratic().log_density(z))


@pytest.mark.parametrize("effects", [EFFECTS, None])
def test_a_site_comes_back_from_its_description(site, effects):
    site = site if effects is not None else site.quadratic()
    z = np.random.default_rng(3).normal(size=(5, 3))
    again = site_from_dict(site_to_dict(site))
    np.testing.assert_array_equal(again.log_density(z), site.log_density(z))
