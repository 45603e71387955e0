"""PSIS against ArviZ, and the generalised Pareto fit against its own draws."""

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_base import from_dict
from arviz_stats.base import array_stats
from scipy.special import logsumexp

from decoct.runtime.precision import float64
from decoct.stats.chains import fit_pareto, smoothed_log_weights
from decoct.stats.psis import leave_one_out, log_ratios, relative_efficiency, tail_length


@pytest.mark.parametrize("n", [30, 100, 1000, 4000])
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


def rows_of(draws, n=60):
    """Potentials of rows whose ratios have tails from none to heavy."""
    rng = np.random.default_rng(draws)
    freedom = rng.choice([1.5, 2, 4, 100], n)[:, None]
    scale = rng.choice([1e-3, 0.3, 2.0], n)[:, None]
    return -scale * rng.standard_t(np.broadcast_to(freedom, (n, draws))) - 5.0


@float64
def left_out(potentials, shift, tail):
    found = jax.tree.map(np.asarray, log_ratios(jnp.asarray(potentials.T), jnp.asarray(shift)))
    return leave_one_out(found, shift, tail)


@pytest.mark.parametrize("efficiency", [0.3, 1.0, 1.4])
@pytest.mark.parametrize("draws", [30, 200, 1000])
def test_leaving_out_many_rows_is_what_arviz_does_to_each(draws, efficiency):
    potentials = rows_of(draws)
    tail = tail_length(draws, efficiency)
    assert tail == array_stats._get_ps_tails(draws, efficiency, "right")
    elpd, khat = left_out(potentials, np.zeros(draws), tail)
    wanted = [array_stats._loo(row[None], r_eff=efficiency)[:2] for row in potentials]
    np.testing.assert_allclose(elpd, [one[0] for one in wanted], rtol=1e-12)
    np.testing.assert_allclose(khat, [one[1] for one in wanted], rtol=0, atol=1e-9)


def test_draws_of_another_distribution_are_weighed():
    draws = 400
    potentials = rows_of(draws)
    shift = np.random.default_rng(1).normal(size=draws)
    shift -= shift.max()
    elpd, khat = left_out(potentials, shift, tail_length(draws, 1.0))
    for i, row in enumerate(potentials):
        log_weights, wanted = smoothed_log_weights(shift - row)
        assert khat[i] == pytest.approx(wanted, abs=1e-9)
        assert elpd[i] == pytest.approx(logsumexp(log_weights + row), rel=1e-12)


def test_rows_without_a_tail():
    """Constant, and a tail of ties: the ratios stay as they are, and k-hat says so."""
    constant = np.full(100, -3.0)
    ties = np.where(np.arange(100) < 30, -2.0, -1.0)
    far = np.where(np.arange(100) == 0, -2000.0, -1.0)  # exp underflows in all ratios but one
    elpd, khat = left_out(np.stack([constant, ties, far]), np.zeros(100), 20)
    assert list(khat) == [-np.inf, np.inf, np.inf]
    mean_inverse = [np.exp(3.0), 0.3 * np.exp(2.0) + 0.7 * np.exp(1.0)]
    np.testing.assert_allclose(elpd[:2], -np.log(mean_inverse), rtol=1e-12)
    assert elpd[2] == pytest.approx(-2000.0 + np.log(100))


def test_the_efficiency_of_draws_is_arviz_s():
    rng = np.random.default_rng(0)
    chains = {"a": rng.normal(size=(4, 50)), "b": np.cumsum(rng.normal(size=(4, 50, 3)), axis=1)}
    ess = arviz_stats.ess(from_dict({"posterior": chains}), method="mean")
    wanted = np.concatenate([one.to_numpy().ravel() for one in ess.data_vars.values()]).mean() / 200
    assert relative_efficiency(chains.values()) == pytest.approx(wanted, rel=1e-12)
    assert relative_efficiency([chains["a"][:1]]) == 1.0
