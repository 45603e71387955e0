"""The certificate against exact divergences, and the correction it allows."""

import numpy as np
import pytest
from scipy.special import logsumexp

import decoct
from decoct.data import encoded
from decoct.diagnostics import Gaussian, kl_from_log_ratios, kl_gaussian
from decoct.diagnostics.chains import smoothed_log_weights
from decoct.errors import CoresetFileError, RequestError
from decoct.posteriors import Exact, WeightedDensity
from decoct.posteriors.exact import exact_posterior

MODEL = decoct.models.GaussianMean(np.eye(2))


@pytest.fixture(scope="module")
def rows():
    return {"x": np.random.default_rng(0).normal(loc=[1.0, -1.0], size=(400, 2))}


@pytest.fixture(scope="module")
def full(rows):
    taken = encoded(decoct.rows(rows), MODEL).take(np.arange(400))
    return exact_posterior(WeightedDensity.of(MODEL, taken, np.ones(400)))


@pytest.fixture(scope="module")
def coreset(rows):
    """Deliberately rough: the weights of a good coreset, shifted."""
    good = decoct.build(MODEL, rows, size=6)
    weights = good.weights * np.linspace(0.9, 1.1, good.size)
    return type(good)(good.indices, weights, good.rows, good.n_rows, MODEL, good.report)


@pytest.fixture(scope="module")
def draws(coreset):
    return coreset.sample(draws=1000, chains=4, sampler=Exact(), seed=1)


def test_both_divergences_are_the_exact_ones(coreset, rows, draws, full):
    certificate = decoct.check(coreset, rows, draws, max_draws=4000)
    mine = exact_posterior(coreset.density)
    assert certificate.kl > 1e-3
    assert abs(certificate.kl - kl_gaussian(mine, full)) < 4 * certificate.kl_se
    assert abs(certificate.forward_kl - kl_gaussian(full, mine)) < 4 * certificate.forward_kl_se
    low, high = certificate.kl_interval
    assert low <= certificate.kl <= high


def test_standard_errors_are_calibrated():
    p, q = Gaussian(np.zeros(1), np.eye(1)), Gaussian(np.array([0.4]), 0.9 * np.eye(1))
    exact, z = kl_gaussian(p, q), []
    for seed in range(200):
        theta = p.sample(np.random.default_rng(seed), 500)
        found = kl_from_log_ratios(q.log_density(theta) - p.log_density(theta))
        z.append((found.reverse - exact) / found.reverse_se)
    assert 0.8 < np.std(z) < 1.25
    assert abs(np.mean(z)) < 0.4


def test_autocorrelation_widens_the_error():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, 2000))
    chain = np.zeros_like(noise)
    for t in range(1, 2000):
        chain[:, t] = 0.95 * chain[:, t - 1] + np.sqrt(1 - 0.95**2) * noise[:, t]
    dependent = kl_from_log_ratios(0.3 * chain)
    assert dependent.reverse_se > 2 * kl_from_log_ratios(0.3 * chain.ravel()).reverse_se


def test_psis_sign():
    """ArviZ negates its input: the largest ratio must get the largest weight."""
    log_ratios = np.random.default_rng(0).normal(size=500)
    log_weights, khat = smoothed_log_weights(log_ratios)
    assert np.argmax(log_weights) == np.argmax(log_ratios)
    assert np.corrcoef(log_weights, log_ratios)[0, 1] > 0.99
    assert np.exp(log_weights).sum() == pytest.approx(1.0)
    assert khat < 0.7


def test_identical_posteriors_have_no_divergence(rows):
    everything = decoct.build(MODEL, rows, size=400)
    certificate = decoct.check(everything, rows, everything.sample(draws=100, sampler=Exact()))
    assert certificate.kl < 1e-12
    assert certificate.ok


def test_correction_moves_means_to_the_full_posterior(coreset, rows, draws, full):
    certificate = decoct.check(coreset, rows, draws, max_draws=4000)
    corrected = certificate.correct(draws)
    mean = corrected["posterior"]["mean"].mean(("chain", "draw")).to_numpy()
    before = draws["posterior"]["mean"].mean(("chain", "draw")).to_numpy()
    error = full.sd / np.sqrt(certificate.ess)
    assert np.abs(before - full.mean).max() > 5 * error.max()
    assert (np.abs(mean - full.mean) < 4 * error).all()
    assert corrected["posterior"].sizes == draws["posterior"].sizes


def test_weights_instead_of_resampling(coreset, rows, draws, full):
    certificate = decoct.check(coreset, rows, draws, max_draws=400)
    weighted = certificate.correct(draws, resample=False)
    w = np.exp(weighted["sample_stats"]["log_weight"])
    assert float(w.sum()) == pytest.approx(1.0)
    mean = (w * weighted["posterior"]["mean"]).sum(("chain", "draw")).to_numpy()
    assert (np.abs(mean - full.mean) < 4 * full.sd / np.sqrt(certificate.ess)).all()
    assert w.sizes == {"chain": 4, "draw": 100}


def test_a_bad_coreset_is_refused_correction(rows):
    good = decoct.build(MODEL, rows, size=6)
    weights = 6.0 * good.weights  # far too sure: the ratios have no variance
    bad = type(good)(good.indices, weights, good.rows, good.n_rows, MODEL, good.report)
    draws = bad.sample(draws=250, sampler=Exact())
    certificate = decoct.check(bad, rows, draws)
    assert not certificate.ok
    assert "more rows" in certificate.verdict
    with pytest.raises(RequestError, match="k-hat"):
        certificate.correct(draws)


def test_plain_arrays_are_accepted_and_wrong_ones_refused(coreset, rows):
    z = np.random.default_rng(0).normal(size=(50, 2))
    assert decoct.check(coreset, rows, z).log_ratios.shape == (1, 50)
    with pytest.raises(RequestError, match="2 unconstrained"):
        decoct.check(coreset, rows, np.zeros((50, 3)))
    with pytest.raises(RequestError, match="not the ones"):
        decoct.check(coreset, rows, coreset.sample(draws=60, sampler=Exact())).correct(
            coreset.sample(draws=10, sampler=Exact())
        )


def test_another_table_is_refused(coreset, rows, draws):
    with pytest.raises(CoresetFileError, match="400 rows"):
        decoct.check(coreset, {"x": rows["x"][:-1]}, draws)
    changed = rows["x"].copy()
    changed[coreset.indices[0], 0] += 1e-9
    with pytest.raises(CoresetFileError, match="column 'x' differs"):
        decoct.check(coreset, {"x": changed}, draws)


def test_kl_gaussian_is_the_integral():
    p, q = Gaussian(np.array([0.3]), np.array([[0.5]])), Gaussian(np.zeros(1), np.array([[2.0]]))
    grid = np.linspace(-12, 12, 20_001)
    log_p, log_q = p.log_density(grid[:, None]), q.log_density(grid[:, None])
    assert kl_gaussian(p, q) == pytest.approx(np.trapezoid(np.exp(log_p) * (log_p - log_q), grid))
    assert kl_gaussian(p, p) == 0.0


def test_a_tail_of_next_to_nothing_is_not_judged():
    """k-hat is the shape of a tail, whatever its size: 0.8 here, for weights within a hundredth."""
    ratios = 1e-4 * np.random.default_rng(0).standard_t(1.5, size=1000).clip(-30, 30)
    assert np.ptp(ratios) < 1e-2
    assert smoothed_log_weights(100.0 * ratios)[1] > 0.5
    log_weights, khat = smoothed_log_weights(ratios)
    assert khat == -np.inf
    np.testing.assert_allclose(log_weights, ratios - logsumexp(ratios))
