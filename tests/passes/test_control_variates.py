"""Totals from a subsample: exact for quadratic potentials, near a posterior nearly so."""

import numpy as np
import pytest

import decoct
from decoct.data.encoded import encoded
from decoct.models import GaussianMean, LogisticRegression
from decoct.passes.control_variates import subsampled_totals
from decoct.passes.pools import Pool
from decoct.passes.potentials import Potentials


def potentials_of(model, rows):
    return Potentials(model, encoded(decoct.rows(rows), model))


def subsample(potentials, draws, u, seed=0):
    chosen = np.sort(np.random.default_rng(seed).choice(potentials.n_rows, u, replace=False))
    rows = potentials.rows.take(chosen)
    return Pool(chosen, rows), potentials.vectors(rows, draws)


def centred(values):
    return values - values.mean()


def logistic(n=4000, dim=3):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, dim))
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-x @ np.ones(dim)))).astype(float)
    return LogisticRegression(), {"x": x, "y": y}


def test_quadratic_potentials_leave_nothing_to_estimate():
    rng = np.random.default_rng(0)
    potentials = potentials_of(GaussianMean(np.eye(2)), {"x": rng.normal(size=(500, 2))})
    draws = rng.normal(size=(50, 2))
    rows, values = subsample(potentials, draws, 20)
    found = subsampled_totals(potentials, draws, rows, values)
    assert found.is_corrected
    np.testing.assert_allclose(found.totals, centred(potentials.totals(draws)), atol=1e-8)


def test_near_the_posterior_the_error_is_orders_below_the_plain_one():
    model, rows = logistic()
    potentials = potentials_of(model, rows)
    draws = decoct.laplace(model, rows).sample(np.random.default_rng(2), 200)
    truth = centred(potentials.totals(draws))
    few, values = subsample(potentials, draws, 200)
    plain = subsampled_totals(potentials, draws, few, values, control_variates=False)
    found = subsampled_totals(potentials, draws, few, values)
    assert found.is_corrected
    assert not plain.is_corrected
    assert np.std(found.totals - truth) < 0.05 * np.std(plain.totals - truth)
    assert np.std(found.totals - truth) < 0.2  # nats


def test_far_apart_draws_keep_the_plain_estimate_and_its_single_cost():
    model, rows = logistic()
    potentials = potentials_of(model, rows)
    draws = 20.0 * np.random.default_rng(3).normal(size=(200, 3))
    few, values = subsample(potentials, draws, 200)
    before = potentials.counts.passes
    found = subsampled_totals(potentials, draws, few, values)
    assert not found.is_corrected
    assert potentials.counts.passes == before
    expected = (potentials.n_rows / len(values)) * values.sum(axis=0)
    np.testing.assert_allclose(found.totals, centred(expected))


@pytest.mark.parametrize("control_variates", [False, True])
def test_both_estimates_are_unbiased(control_variates):
    model, rows = logistic(n=400)
    potentials = potentials_of(model, rows)
    draws = decoct.laplace(model, rows).sample(np.random.default_rng(4), 6)
    truth = centred(potentials.totals(draws))
    estimates = []
    for seed in range(200):
        few, values = subsample(potentials, draws, 50, seed)
        estimates.append(subsampled_totals(potentials, draws, few, values, control_variates).totals)
    error = np.mean(estimates, axis=0) - truth
    assert (np.abs(error) <= 4.0 * np.std(estimates, axis=0) / np.sqrt(len(estimates))).all()
