"""The von Mises-Fisher density and its draws against closed forms, exact series and SciPy."""

from decimal import Decimal, localcontext
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import ive

from decoct.errors import ModelError
from decoct.mixture import log_normaliser, sample_vmf, vmf_draws
from decoct.runtime.precision import float64

PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
N = 20_000
CASES = [(2, 0.0), (2, 3.0), (2, 5e5), (3, 0.0), (3, 1e-7), (3, 50.0), (3, 5e5)]
CASES += [(5, 0.0), (5, 7.0), (5, 5e5), (60, 1.0), (60, 100.0)]


def exact_log_normaliser(dim, tau):
    """−log|S^{D−1}| − log Σ_m (τ²/4)^m / (m! (D/2)_m), in 40 digits."""
    with localcontext() as context:
        context.prec = 40
        half, gamma = Decimal(dim) / 2, Decimal(1)
        a = half
        while a > 1:
            a -= 1
            gamma *= a
        gamma *= PI.sqrt() if dim % 2 else 1
        x, m, term, total = Decimal(tau) ** 2 / 4, 0, Decimal(1), Decimal(1)
        while term > total * Decimal("1e-30"):
            m += 1
            term *= x / (m * (half + m - 1))
            total += term
        return float(-(Decimal(2).ln() + half * PI.ln() - gamma.ln() + total.ln()))


@pytest.mark.parametrize("dim", [2, 3, 10, 100, 500, 1000])
def test_normaliser_has_thirteen_digits(dim):
    for tau in (1e-6, 1e-2, 1.0, 50.0, 150.0, 700.0, 1e4):
        exact = exact_log_normaliser(dim, tau)
        assert abs(log_normaliser(dim, tau) - exact) < 1e-13 * max(1.0, abs(exact)), tau


@pytest.mark.parametrize("tau", [1e-3, 20.0, 1e6, 9e8, 2e9, 1e12])
def test_normaliser_on_the_ordinary_sphere(tau):
    log_sinh = tau + np.log(-np.expm1(-2 * tau) / 2)
    closed = np.log(tau) - np.log(4 * np.pi) - log_sinh
    assert log_normaliser(3, tau) == pytest.approx(closed, rel=1e-14)


def test_normaliser_of_a_huge_dimension_joins_the_series_smoothly():
    # beyond |(ν, τ)| = 10⁵ the uniform expansion takes over from the power series
    for tau in (20.0, 3e3):
        slopes = np.diff([log_normaliser(dim, tau) for dim in range(199_986, 200_016, 2)])
        assert np.ptp(np.diff(slopes)) < 2e-8 * abs(slopes[0])


@pytest.mark.parametrize(
    ("dim", "tau"), [(1, 1.0), (3, 0.0), (3, -1.0), (3, np.nan), (3, np.inf), (3, "wide")]
)
def test_hopeless_parameters_are_refused(dim, tau):
    with pytest.raises(ModelError, match="dimensions" if dim == 1 else "concentration"):
        log_normaliser(dim, tau)


def host(means, taus, seed):
    return sample_vmf(np.random.default_rng(seed), means, taus)


@float64
def compiled(means, taus, seed):
    drawn = jax.jit(vmf_draws)(jax.random.key(seed), jnp.asarray(means), jnp.asarray(taus))
    return np.asarray(drawn)


each_sampler = pytest.mark.parametrize("sampler", [host, compiled])


def cosine_gaps(sampler, dim, tau, seed=0):
    mean = np.random.default_rng(3).normal(size=dim)
    mean /= np.linalg.norm(mean)
    drawn = sampler(np.tile(mean, (N, 1)), np.full(N, tau), seed)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1.0, rtol=1e-14)
    # ½‖x − μ‖² = 1 − x·μ, without the cancellation
    return drawn, mean, 0.5 * np.square(drawn - mean).sum(axis=1)


@each_sampler
@pytest.mark.parametrize(("dim", "tau"), CASES)
def test_moments(sampler, dim, tau):
    drawn, mean, gaps = cosine_gaps(sampler, dim, tau)
    if tau < 1e-3:
        resultant, variance = tau / dim, 1 / dim
        expected = 1.0 - resultant
    elif tau > 1e4:  # 2τ(1 − t) is nearly chi² with D − 1 degrees of freedom
        expected, variance = (dim - 1) / (2 * tau), (dim - 1) / (2 * tau**2)
    else:
        resultant = ive(dim / 2, tau) / ive(dim / 2 - 1, tau)
        expected, variance = 1.0 - resultant, 1 - resultant**2 - (dim - 1) * resultant / tau
    assert abs(gaps.mean() - expected) < 4.5 * np.sqrt(variance / N)
    assert gaps.var() == pytest.approx(variance, rel=0.08)
    across = drawn - (1.0 - gaps[:, None]) * mean
    spread = np.square(across).sum(axis=1).mean() / (dim - 1)
    covariance = across.T @ across / N / spread
    # isotropic around the mean direction: the projector onto its complement
    assert np.abs(covariance - np.eye(dim) + np.outer(mean, mean)).max() < 6 * np.sqrt(2 / N)
    assert np.abs(across.mean(axis=0)).max() < 4.5 * np.sqrt(spread / N)


@each_sampler
@pytest.mark.parametrize("tau", [1e-10, 1e-3, 2.0, 50.0, 5e5])
def test_cosines_on_the_ordinary_sphere_follow_their_closed_form(sampler, tau):
    gaps = cosine_gaps(sampler, 3, tau, seed=1)[2]

    def cdf(gap):
        return np.expm1(-tau * gap) / np.expm1(-2 * tau) if tau > 1e-8 else gap / 2

    assert stats.kstest(gaps, cdf).pvalue > 1e-3


@each_sampler
def test_angles_on_the_circle_follow_von_mises(sampler):
    drawn = sampler(np.tile([0.0, 1.0], (N, 1)), np.full(N, 2.5), 4)
    angles = np.arctan2(-drawn[:, 0], drawn[:, 1])
    assert stats.kstest(angles, stats.vonmises(2.5).cdf).pvalue > 1e-3


@each_sampler
def test_cosines_in_seven_dimensions_follow_their_density(sampler):
    dim, tau = 7, 12.0
    gaps = cosine_gaps(sampler, dim, tau, seed=5)[2]

    def density(gap):
        return np.exp(-tau * gap) * (gap * (2 - gap)) ** ((dim - 3) / 2)

    edges = np.append(np.linspace(0.0, 1.2, 25), 2.0)
    mass = np.array([quad(density, a, b)[0] for a, b in pairwise(edges)])
    counts = np.histogram(gaps, edges)[0]
    assert stats.chisquare(counts, N * mass / mass.sum()).pvalue > 1e-3


@each_sampler
def test_every_mean_direction_has_its_own_concentration(sampler):
    poles = np.concatenate([np.eye(4), -np.eye(4)])
    taus = np.array([1e6, 1e4, 100.0, 400.0, 1e3, 1e5, 3e3, 300.0])
    means, each = np.repeat(poles, 2000, axis=0), np.repeat(taus, 2000)
    scaled = (each * (1.0 - (sampler(means, each, 0) * means).sum(axis=1))).reshape(8, -1)
    expected = taus * (1.0 - ive(2.0, taus) / ive(1.0, taus))
    assert np.abs(scaled.mean(axis=1) - expected).max() < 4.5 * np.sqrt(1.5 / 2000)


def test_batches_keep_their_shape_and_one_concentration_serves_all():
    means = np.broadcast_to(np.eye(3), (5, 3, 3))
    drawn = sample_vmf(np.random.default_rng(0), means, 1e6)
    assert drawn.shape == (5, 3, 3)
    assert np.abs(drawn - means).max() < 0.01
    assert sample_vmf(np.random.default_rng(0), np.eye(2)[0], 1.0).shape == (2,)


@pytest.mark.parametrize(
    ("means", "taus", "match"),
    [
        (np.ones((4, 3)), 1.0, "unit vector"),
        (np.full((4, 3), np.nan), 1.0, "unit vector"),
        (np.eye(3), -1.0, "negative"),
        (np.eye(3), np.nan, "not finite"),
        (np.eye(3), np.ones(2), "shape"),
        (np.ones((4, 1)), 1.0, "shape"),
    ],
)
def test_impossible_requests_are_refused(means, taus, match):
    with pytest.raises(ModelError, match=match):
        sample_vmf(np.random.default_rng(0), means, taus)
