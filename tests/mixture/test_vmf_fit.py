"""EM against brute force, the weights contract, and the conditionals built on it."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import ive, logsumexp

from decoct.errors import ModelError, RowsError
from decoct.mixture import independent_conditionals, log_normaliser, sample_vmf, vmf_em

POLES = np.concatenate([np.eye(3), -np.eye(3)])
rng = np.random.default_rng(0)
X = sample_vmf(rng, POLES[rng.integers(6, size=600)], 20.0)
WEIGHTS = rng.integers(0, 4, size=600).astype(float)


def fit(x=X, weights=None, K=6, tau=20.0, **options):
    return vmf_em(x, weights, n_components=K, concentration=tau, **options)


def log_likelihood(x, w, modes, weights, tau):
    density = log_normaliser(x.shape[1], tau) + tau * x @ modes.T
    return float(w @ logsumexp(density, axis=1, b=weights))


def test_clusters_at_the_poles_are_found():
    found = fit()
    order = (POLES @ found.modes.T).argmax(axis=1)
    assert sorted(order) == list(range(6))
    assert (POLES * found.modes[order]).sum(axis=1).min() > 0.995
    assert found.converged
    np.testing.assert_allclose(found.weights, 1 / 6, atol=0.08)
    np.testing.assert_allclose(found.responsibilities.sum(axis=1), 1.0)
    assert found.log_likelihood == pytest.approx(
        log_likelihood(X, np.ones(600), found.modes, found.weights, 20.0), rel=1e-13
    )


def test_likelihood_never_falls():
    values = [
        fit(weights=WEIGHTS, tau=3.0, restarts=1, seed=4, tolerance=-1.0, max_iterations=steps)
        for steps in range(1, 60)
    ]
    gains = np.diff([one.log_likelihood for one in values])
    assert gains.min() > -1e-9
    assert gains[0] > 1.0
    assert [one.iterations for one in values] == list(range(1, 60))
    assert not any(one.converged for one in values)


def test_small_problem_reaches_the_global_maximum():
    angles = np.array([0.1, 0.5, 1.9, 2.2, -2.0])
    x, w, tau = np.stack([np.cos(angles), np.sin(angles)], axis=1), np.array([1, 2, 1, 0.5, 3]), 4.0

    def loss(p):
        modes = np.stack([np.cos(p[:2]), np.sin(p[:2])], axis=1)
        share = 1 / (1 + np.exp(-p[2]))
        return -log_likelihood(x, w, modes, np.array([share, 1 - share]), tau)

    grid = np.linspace(-3, 3, 7)
    best = min(minimize(loss, (a, b, 0.0)).fun for a in grid for b in grid if a < b)
    found = fit(x, w, K=2, tau=tau, tolerance=1e-13)
    assert found.log_likelihood == pytest.approx(-best, abs=1e-8)


def test_a_weight_is_a_number_of_copies():
    weighted = fit(weights=WEIGHTS, tolerance=1e-13)
    copied = fit(np.repeat(X, WEIGHTS.astype(int), axis=0), tolerance=1e-13)
    assert weighted.log_likelihood == pytest.approx(copied.log_likelihood, rel=1e-10)
    near = (weighted.modes @ copied.modes.T).argmax(axis=1)
    np.testing.assert_allclose(weighted.modes, copied.modes[near], atol=1e-5)
    np.testing.assert_allclose(weighted.weights, copied.weights[near], atol=1e-5)


def test_rows_of_weight_zero_are_absent():
    there, kept = fit(weights=WEIGHTS, seed=2), WEIGHTS > 0
    without = fit(X[kept], WEIGHTS[kept], seed=2)
    np.testing.assert_array_equal(there.modes, without.modes)
    assert there.responsibilities.shape == (600, 6)
    assert there.log_likelihood == without.log_likelihood


def test_more_clusters_than_distinct_rows_give_no_nan():
    x = np.repeat(np.eye(3)[:2], 4, axis=0)
    found = fit(x, K=5, tau=30.0)
    assert np.isfinite(found.modes).all()
    assert np.isfinite(found.log_likelihood)
    assert found.weights.sum() == pytest.approx(1.0)
    assert found.log_likelihood == pytest.approx(
        8 * (log_normaliser(3, 30.0) + 30.0 + np.log(0.5)), rel=1e-9
    )


def test_an_empty_cluster_moves_to_the_rows_that_need_it():
    from decoct.mixture.vmf.vmf_fit import _Problem, _reseed

    tau = 500.0
    problem = _Problem(X[:50], np.ones(50), tau, log_normaliser(3, tau))
    modes, weights = np.stack([X[0], X[1], X[2]]), np.array([0.5, 0.5, 0.0])
    moved, shared = _reseed(problem, modes, weights)
    before, after = (problem.assign(*one)[1].sum() for one in ((modes, weights), (moved, shared)))
    assert after > before + 10.0
    assert shared[2] == pytest.approx(1 / 50)
    assert shared.sum() == pytest.approx(1.0)


def test_opposite_rows_have_no_mean_direction_and_no_nan():
    x = np.concatenate([np.eye(3)[:1], -np.eye(3)[:1]])
    found = fit(x, K=1, tau=1.0)
    assert np.linalg.norm(found.modes) == pytest.approx(1.0)
    assert found.log_likelihood == pytest.approx(2 * log_normaliser(3, 1.0))


def test_same_seed_same_answer():
    np.testing.assert_array_equal(fit(seed=3).modes, fit(seed=3).modes)


@pytest.mark.parametrize(
    ("x", "weights", "match"),
    [
        (X[:5], None, "5 rows have a positive weight, fewer than the 6"),
        (X, np.eye(1, 600)[0], "1 rows have a positive weight"),
        (X[:, 0], None, "shape"),
        (2.0 * X, None, "'x' has the norm 2 in row 0"),
        (np.full((9, 3), np.nan), None, "norm nan"),
        (X, np.ones(5), "shape"),
        (X, -np.ones(600), r"weights\[0\] is -1"),
        (X, np.where(np.arange(600) == 3, np.nan, 1.0), r"weights\[3\] is nan"),
    ],
)
def test_bad_rows_and_weights_are_refused(x, weights, match):
    with pytest.raises(RowsError, match=match):
        fit(x, weights)


@pytest.mark.parametrize("options", [{"K": 0}, {"restarts": 0}, {"tau": -1.0}])
def test_bad_options_are_refused(options):
    with pytest.raises(ModelError, match=r"at least 1|positive"):
        fit(**options)


def test_conditionals_have_their_closed_form_moments():
    z = np.random.default_rng(1).dirichlet([1.0, 0.3], size=600)
    n, tau = 20_000, 0.05
    modes, weights = independent_conditionals(np.random.default_rng(2), X, z, tau, n, WEIGHTS)
    assert modes.shape == (n, 2, 3)
    sums, mass = (WEIGHTS[:, None] * z).T @ X, (WEIGHTS[:, None] * z).sum(axis=0)
    lengths = np.linalg.norm(sums, axis=1)
    resultants = ive(1.5, tau * lengths) / ive(0.5, tau * lengths)
    expected = resultants[:, None] * sums / lengths[:, None]
    assert np.abs(modes.mean(axis=0) - expected).max() < 4.5 * np.sqrt(1 / 3 / n)
    shares = (1 + mass) / (2 + mass.sum())
    sd = np.sqrt(shares * (1 - shares) / (3 + mass.sum()) / n)
    assert (np.abs(weights.mean(axis=0) - shares) < 4.5 * sd).all()
    # weights are copies
    whole = WEIGHTS.astype(int)
    again, _ = independent_conditionals(
        np.random.default_rng(2), np.repeat(X, whole, axis=0), np.repeat(z, whole, axis=0), tau, n
    )
    np.testing.assert_allclose(again, modes, atol=1e-10)


def test_conditionals_without_rows_are_the_prior():
    modes, weights = independent_conditionals(
        np.random.default_rng(0), X[:2], np.zeros((2, 3)), 50.0, 5000
    )
    assert np.abs(modes.mean(axis=0)).max() < 4.5 * np.sqrt(1 / 3 / 5000)
    assert np.abs(weights.mean(axis=0) - 1 / 3).max() < 4.5 * np.sqrt(1 / 18 / 5000)


def test_responsibilities_that_do_not_fit_are_refused():
    with pytest.raises(RowsError, match="600 rows"):
        independent_conditionals(np.random.default_rng(0), X, np.ones((5, 2)), 1.0, 3)
