"""Effective sample sizes and R-hat are those of ArviZ."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from decoct.stats import convergence as module
from decoct.stats.convergence import convergence, ess_of_mean


def correlated(chains: int, draws: int, d: int, along: float) -> np.ndarray:
    z = np.random.default_rng(chains * draws).normal(size=(chains, draws, d))
    for t in range(1, draws):
        z[:, t] += along * z[:, t - 1]
    return z


CASES = {
    "independent": correlated(4, 100, 3, 0.0),
    "correlated": correlated(4, 301, 3, 0.9),
    "antithetic": correlated(3, 151, 2, -0.8),
    "a random walk": correlated(2, 40, 2, 1.0),
    "apart": correlated(4, 50, 2, 0.3) + np.arange(4.0)[:, None, None],
    "ties": np.round(correlated(4, 80, 3, 0.5)),
    "more than a block": correlated(2, 20, 2 * module.BLOCK + 1, 0.5),
    "few": correlated(2, 5, 3, 0.2),
    "fewest": correlated(5, 4, 2, 0.2),
}


@pytest.mark.parametrize("case", CASES)
def test_convergence_is_that_of_arviz(case):
    z = CASES[case]
    expected = {
        "rhat": np.max(array_stats.rhat(z, chain_axis=0, draw_axis=1)),
        "ess": np.min(array_stats.ess(z, chain_axis=0, draw_axis=1)),
    }
    assert convergence(z) == pytest.approx(expected, rel=1e-9)
    of_mean = array_stats.ess(z[..., 0], chain_axis=0, draw_axis=1, method="mean")
    assert ess_of_mean(z[..., 0]) == pytest.approx(float(of_mean), rel=1e-9)


@pytest.mark.parametrize("draws", [8, 9, 30, 101])
def test_the_halves_of_a_single_chain_count_as_two(draws):
    z = correlated(1, draws, 3, 0.6)
    half = draws // 2
    halves = np.concatenate([z[:, :half], z[:, -half:]])
    expected = {
        "rhat": np.max(array_stats.rhat(halves, chain_axis=0, draw_axis=1)),
        "ess": np.min(array_stats.ess(z, chain_axis=0, draw_axis=1)),
    }
    assert convergence(z) == pytest.approx(expected, rel=1e-9)


def test_chains_that_cannot_be_judged():
    still = np.zeros((4, 100, 2))
    assert convergence(still) == pytest.approx({"rhat": np.nan, "ess": 400.0}, nan_ok=True)
    for shape in ((4, 3, 2), (1, 7, 2)):
        found = convergence(np.random.default_rng(0).normal(size=shape))
        assert np.isnan(list(found.values())).all()
    assert np.isnan(ess_of_mean(np.zeros((4, 3))))


def test_what_is_not_a_number_is_not_hidden():
    z = correlated(4, 50, 3, 0.2)
    z[1, 7, 1] = np.nan
    assert np.isnan(list(convergence(z).values())).all()
    assert np.isnan(ess_of_mean(z[..., 1]))
    assert np.isfinite(ess_of_mean(z[..., 0]))
