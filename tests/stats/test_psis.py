"""PSIS against ArviZ, and the generalised Pareto fit against its own draws."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from decoct.stats.chains import fit_pareto, smoothed_log_weights


@pytest.mark.parametrize("n", [25, 100, 1000, 4000])
@pytest.mark.parametrize(("freedom", "scale"), [(2, 1.0), (3, 5.0), (10, 0.1), (100, 1.0)])
def test_weights_and_khat_are_those_of_arviz(n, freedom, scale):
    log_ratios = scale * np.random.default_rng(n + freedom).standard_t(freedom, n)
    expected, khat = array_stats.psislw(-(log_ratios - log_ratios.max()))
    found = smoothed_log_weights(log_ratios)
    np.testing.assert_allclose(found[0], expected, atol=1e-10)
    assert found[1] == pytest.approx(float(khat), abs=1e-10)
    assert np.exp(found[0]).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("k", [-0.3, 0.2, 0.7, 1.5])
def test_a_pareto_tail_is_recovered(k):
    rng = np.random.default_rng(0)
    estimates = []
    for _ in range(200):
        u = rng.random(2000)
        estimates.append(fit_pareto(np.sort(np.expm1(-k * np.log1p(-u)) / k)))
    means, errors = np.mean(estimates, axis=0), np.std(estimates, axis=0) / np.sqrt(200)
    prior = 10 * (0.5 - k) / 2010  # what the weak prior on k adds
    assert abs(means[0] - k - prior) < 4.0 * errors[0] + 2e-3
    assert abs(means[1] - 1.0) < 4.0 * errors[1] + 2e-3


def test_a_tail_without_exceedances_is_not_fitted():
    log_ratios = np.concatenate([np.zeros(996), np.full(4, 50.0)])
    weights, khat = smoothed_log_weights(log_ratios)
    assert khat == np.inf
    assert np.isfinite(weights).all()
