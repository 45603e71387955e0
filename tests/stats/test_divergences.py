"""Divergences against closed forms, integrals and replicates."""

import numpy as np
import pytest

from decoct.stats import Gaussian, kl_from_log_ratios, kl_gaussian
from decoct.stats.chains import smoothed_log_weights
from decoct.stats.convergence import ess_of_mean


def gaussian(seed, d):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(d, d + 2))
    return Gaussian(rng.normal(size=d), factor @ factor.T / d)


@pytest.mark.parametrize("d", [1, 3, 12])
def test_kl_gaussian_is_the_closed_form(d):
    p, q = gaussian(0, d), gaussian(1, d)
    shift, inverse = q.mean - p.mean, np.linalg.inv(q.cov)
    expected = 0.5 * (
        np.trace(inverse @ p.cov)
        - d
        + np.linalg.slogdet(q.cov)[1]
        - np.linalg.slogdet(p.cov)[1]
        + shift @ inverse @ shift
    )
    assert kl_gaussian(p, q) == pytest.approx(expected, rel=1e-9)


def test_kl_gaussian_is_the_mean_log_ratio():
    p, q, n = gaussian(0, 3), gaussian(1, 3), 40_000
    z = p.sample(np.random.default_rng(0), n)
    ratio = p.log_density(z) - q.log_density(z)
    assert abs(ratio.mean() - kl_gaussian(p, q)) < 4 * ratio.std() / np.sqrt(n)


def test_kl_gaussian_of_near_twins_keeps_its_digits():
    p = gaussian(0, 4)
    for eps in (1e-3, 1e-5, 1e-7):
        wider = Gaussian(p.mean, p.cov * (1 + eps))
        excess = 1 / (1 + eps) - 1
        assert kl_gaussian(p, wider) == pytest.approx(
            2 * (excess - np.log1p(excess)), rel=1e-6, abs=1e-28
        )
    assert 0.0 <= kl_gaussian(p, p) < 1e-28


def test_kl_gaussian_is_invariant_under_linear_maps_and_not_symmetric():
    p, q = gaussian(0, 3), gaussian(1, 3)
    a = np.random.default_rng(5).normal(size=(3, 3))
    mapped = [Gaussian(a @ one.mean, a @ one.cov @ a.T) for one in (p, q)]
    assert kl_gaussian(*mapped) == pytest.approx(kl_gaussian(p, q), rel=1e-8)
    assert abs(kl_gaussian(p, q) - kl_gaussian(q, p)) > 0.1


def test_kl_gaussian_refuses_what_is_no_covariance():
    with pytest.raises(np.linalg.LinAlgError):
        kl_gaussian(gaussian(0, 2), Gaussian(np.zeros(2), -np.eye(2)))


P = Gaussian(np.zeros(2), np.eye(2))
NEAR = {
    "shifted": Gaussian(np.array([0.3, 0.0]), np.eye(2)),
    "narrower": Gaussian(np.zeros(2), 0.8 * np.eye(2)),
    "both": Gaussian(np.array([0.2, -0.2]), np.array([[0.9, 0.1], [0.1, 1.1]])),
}


def z_scores(q, chains, repeats):
    """Errors of both estimates over their standard errors."""
    result = []
    for seed in range(repeats):
        theta = chains(np.random.default_rng(seed))
        flat = theta.reshape(-1, 2)
        ratios = (q.log_density(flat) - P.log_density(flat)).reshape(theta.shape[:-1])
        found = kl_from_log_ratios(ratios)
        result.append(
            (
                (found.reverse - kl_gaussian(P, q)) / found.reverse_se,
                (found.forward - kl_gaussian(q, P)) / found.forward_se,
            )
        )
    return np.array(result)


@pytest.mark.parametrize("name", NEAR)
def test_standard_errors_are_calibrated_for_independent_draws(name):
    z = z_scores(NEAR[name], lambda rng: P.sample(rng, 800), 200)
    # an sd from 200 scores is known to 5 %; the estimates are a little skewed
    assert (np.abs(np.log(z.std(axis=0))) < 0.25).all()
    assert (np.abs(z.mean(axis=0)) < 0.4).all()
    assert (np.mean(np.abs(z) < 1.96, axis=0) > 0.87).all()


def autoregressive(rng):
    """Four chains of 800 draws of P with lag-one correlation 0.8."""
    noise = rng.normal(size=(4, 800, 2))
    for t in range(1, 800):
        noise[:, t] = 0.8 * noise[:, t - 1] + 0.6 * noise[:, t]
    return noise


def test_standard_errors_are_calibrated_for_markov_chains():
    z = z_scores(NEAR["both"], autoregressive, 80)
    assert (np.abs(np.log(z.std(axis=0))) < 0.4).all()
    assert (np.abs(z.mean(axis=0)) < 0.6).all()


def test_a_constant_added_to_the_ratios_changes_nothing():
    ratios = np.random.default_rng(0).normal(size=300)
    usual, moved = kl_from_log_ratios(ratios), kl_from_log_ratios(ratios - 1e6)
    np.testing.assert_allclose(moved, usual, rtol=1e-7)


def test_huge_ratios_do_not_overflow():
    found = kl_from_log_ratios(np.array([0.0, 1e4, -1e4, 5.0]))
    assert np.isfinite(found).all()
    assert found.reverse > 1e3


def test_small_ratios_have_half_their_variance():
    ratios = 1e-3 * np.random.default_rng(0).normal(size=5000)
    found = kl_from_log_ratios(ratios)
    assert found.half_variance == pytest.approx(0.5 * ratios.var(ddof=1))
    assert found.reverse == pytest.approx(found.half_variance, rel=1e-2)
    assert found.forward == pytest.approx(found.half_variance, rel=1e-2)


def test_one_draw_is_no_evidence():
    assert kl_from_log_ratios(np.array([3.0])).reverse_se == np.inf


def test_effective_size_knows_autocorrelation():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, 4000))
    assert ess_of_mean(noise) == pytest.approx(16_000, rel=0.15)
    for t in range(1, 4000):
        noise[:, t] = 0.8 * noise[:, t - 1] + 0.6 * noise[:, t]
    assert ess_of_mean(noise) == pytest.approx(16_000 * (1 - 0.8) / (1 + 0.8), rel=0.2)


def test_psis_sign():
    """Heavy ratios (a proposal too narrow) are caught, light ones pass; never the reverse."""
    narrow, wide = Gaussian(np.zeros(1), 0.3 * np.eye(1)), Gaussian(np.zeros(1), np.eye(1))
    rng = np.random.default_rng(0)
    z = narrow.sample(rng, 4000)
    heavy = wide.log_density(z) - narrow.log_density(z)
    assert smoothed_log_weights(heavy)[1] > 0.5
    assert smoothed_log_weights(-heavy)[1] < 0.3
    log_weights, _ = smoothed_log_weights(heavy)
    assert np.argmax(log_weights) == np.argmax(heavy)
    # and the weights turn draws of the one into draws of the other
    z = wide.sample(rng, 20_000)
    light = narrow.log_density(z) - wide.log_density(z)
    log_weights, khat = smoothed_log_weights(light)
    second = np.exp(log_weights) @ np.square(z[:, 0])
    assert khat < 0.5
    assert second == pytest.approx(0.3, rel=0.05)
    assert np.exp(log_weights).sum() == pytest.approx(1.0)


def test_constant_ratios_have_equal_weights():
    log_weights, khat = smoothed_log_weights(np.full(100, 7.0))
    np.testing.assert_allclose(log_weights, -np.log(100))
    assert khat == -np.inf


def test_ratios_that_hardly_differ_have_no_tail():
    from decoct.stats.chains import smoothed_log_weights

    heavy = np.random.default_rng(0).pareto(1.2, size=2000)
    ratios = 5e-4 * heavy / heavy.max() - 30.0
    log_weights, khat = smoothed_log_weights(ratios)
    assert khat == -np.inf
    np.testing.assert_allclose(log_weights, -np.log(2000), atol=1e-3)
    assert np.exp(log_weights).sum() == pytest.approx(1.0)
    assert smoothed_log_weights(1e4 * ratios)[1] > 0.5  # the same shape, where it matters
