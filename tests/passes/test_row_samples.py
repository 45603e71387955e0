"""Samples of rows with known probabilities: no bias, and an error that is the true one."""

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import decoct
from decoct.data import encoded
from decoct.passes import traced_predictors
from decoct.passes.expansions import Expansion
from decoct.passes.potentials import Potentials
from decoct.passes.row_samples import sample_rows
from decoct.passes.third_order import Skewness

N, D, S, SIZE, KEYS = 500, 3, 24, 40, 300
MODEL = decoct.models.LogisticRegression()


@pytest.fixture(scope="module")
def table():
    """Logistic rows, ten of them with covariates ten times as large."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D))
    x[::50] *= 10.0
    return {"x": x, "y": (rng.random(N) < 0.5).astype(int)}


@pytest.fixture(scope="module")
def ours(table):
    return Potentials(MODEL, encoded(decoct.rows(table), MODEL))


@pytest.fixture(scope="module")
def draws():
    return 0.3 * np.random.default_rng(1).normal(size=(S, D))


@pytest.fixture(scope="module")
def at(draws):
    factor = np.linalg.cholesky(np.cov(draws.T))
    return Expansion.over(draws.mean(axis=0), factor, np.zeros((1, D)))


@pytest.fixture(scope="module")
def exact(ours, at, draws):
    """Σ (f_n − q_n) at the draws, centred over them."""
    values = ours.totals(draws) - ours.expand(at).at(draws - at.centre)
    return values - values.mean()


@pytest.fixture(scope="module")
def found(ours, at, draws):
    """Estimates, their errors, and Σ 1/π_n of the first half, by many keys."""
    few = ours.rows.take(np.arange(0, N, 7))
    estimates, errors, counts = [], [], []
    for seed in range(KEYS):
        sums, sample, _ = sample_rows(ours, at, SIZE, few, jax.random.key(seed), draws[:0])
        basis = Skewness.of(at, sums).basis(draws)
        total, error = sample.remainders(ours, at, draws, basis)
        total += basis @ sums.thirds
        estimates.append(total - total.mean())
        errors.append(error)
        counts.append(sample.first.weights.sum())
    return np.array(estimates), np.array(errors), np.array(counts)


def test_the_estimate_has_no_bias(found, exact):
    estimates, _, counts = found
    error = estimates.std(axis=0, ddof=1) / np.sqrt(KEYS)
    assert (np.abs(estimates.mean(axis=0) - exact) < 4.0 * error).all()
    # the same for the number of rows, a sum that the odds know nothing of
    assert abs(counts.mean() - N) < 4.0 * counts.std(ddof=1) / np.sqrt(KEYS)


def test_the_error_is_the_true_one(found, exact):
    estimates, errors, _ = found
    true = 0.5 * np.var(estimates - exact, axis=1, ddof=1)
    apart = np.hypot(true.std(ddof=1), errors.std(ddof=1)) / np.sqrt(KEYS)
    assert abs(errors.mean() - true.mean()) < 4.0 * apart
    assert true.mean() < 0.05 * 0.5 * exact.var()


def test_a_table_of_no_more_rows_is_taken_whole(ours, at, draws, exact):
    for size in (N, 2 * N):
        few = ours.rows.take(np.arange(N))
        _, sample, _ = sample_rows(ours, at, size, few, jax.random.key(0), draws[:0])
        total, error = sample.remainders(ours, at, draws, np.zeros(draws.shape))
        for half in sample:
            np.testing.assert_array_equal(np.sort(half.indices), np.arange(N))
            np.testing.assert_array_equal(half.weights, 1.0)
        np.testing.assert_allclose(total - total.mean(), exact, atol=1e-10)
        assert error < 1e-20


@pytest.mark.parametrize("count", [0, 5])
def test_one_pass_brings_the_expansion_and_exact_totals_too(ours, at, draws, count):
    few, before = ours.rows.take(np.arange(N)), ours.counts.passes
    sums, _, totals = sample_rows(ours, at, SIZE, few, jax.random.key(0), draws[:count])
    assert ours.counts.passes == before + 1
    np.testing.assert_allclose(totals, ours.totals(draws)[:count], rtol=1e-14)
    for mine, other in zip(sums, ours.expand(at), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12)


def own_logistic():
    """The same model as functions of the user's, without a linear predictor."""

    def log_likelihood(params, rows):
        margin = rows["y"] * (rows["x"] @ params["beta"])
        return -jnp.logaddexp(0.0, -margin)

    def log_prior(params):
        return -0.5 * jnp.sum(params["beta"] ** 2)

    return decoct.Model(log_likelihood, log_prior, {"beta": np.zeros(D)})


def test_the_deviation_of_a_remainder_is_the_integral(ours, at, table):
    node = np.linspace(-9.0, 9.0, 4001)
    weights = np.exp(-0.5 * node**2) / np.exp(-0.5 * node**2).sum()
    sign = np.where(table["y"] > 0, 1.0, -1.0)[:, None]
    spread = np.sqrt(np.square(table["x"] @ at.factor).sum(axis=1))
    moved = spread[:, None] * node
    eta = (table["x"] @ at.centre)[:, None] + moved
    p = 1.0 / (1.0 + np.exp(sign * eta))
    slope, bend = (sign * p) @ weights, -(p * (1.0 - p)) @ weights
    quadratic = moved * (slope[:, None] + 0.5 * bend[:, None] * moved)
    left = -np.logaddexp(0.0, -sign * eta) - quadratic
    expected = np.sqrt(np.square(left - (left @ weights)[:, None]) @ weights)
    few = ours.rows.take(np.arange(N))
    found = ours.remainder_deviations(few, at, np.zeros((0, D)))
    narrow = spread < 0.5
    np.testing.assert_allclose(found[narrow], expected[narrow], rtol=1e-3)
    # nine nodes are too few for a predictor that is spread wider; the odds stay near those wanted
    assert (np.abs(np.log(found / expected)) < np.log(4.0)).all()


def test_without_a_predictor_deviations_are_those_of_the_draws(table, draws, monkeypatch):
    monkeypatch.setattr(traced_predictors, "MOST_PREDICTORS", 0)
    rows = {"x": table["x"], "y": 2.0 * table["y"] - 1.0}
    own = Potentials(own_logistic(), decoct.rows(rows))
    taylor = Expansion.over(draws.mean(axis=0), np.zeros((D, D)), np.zeros((1, D)))
    expected = own.vectors(rows, draws) - own.quadratics(rows, taylor, draws)
    found = own.remainder_deviations(rows, taylor, draws)
    np.testing.assert_allclose(found, expected.std(axis=1), rtol=1e-8)


def test_rows_of_influence_are_always_there(ours, at, draws):
    """The ten large rows have most of the remainders."""
    few = ours.rows.take(np.arange(N))
    for seed in range(20):
        _, sample, _ = sample_rows(ours, at, SIZE, few, jax.random.key(seed), draws[:0])
        heaviest = np.setdiff1d(np.arange(0, N, 50), sample.pool.indices)
        assert len(heaviest) <= 2


def test_every_engine_draws_the_same_rows(table, ours, at, draws, tmp_path):
    columns = {
        "x": pa.FixedSizeListArray.from_arrays(pa.array(table["x"].ravel()), D),
        "y": pa.array(table["y"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=97)
    on_disk = decoct.rows(tmp_path / "rows.parquet")
    streamed = Potentials(MODEL, encoded(on_disk, MODEL))
    key = jax.random.key(5)
    few = ours.rows.take(np.arange(N))
    _, mine, my_totals = sample_rows(ours, at, SIZE, few, key, draws)
    sums, other, totals = sample_rows(streamed, at, SIZE, few, key, draws)
    np.testing.assert_array_equal(my_totals, totals)
    np.testing.assert_allclose(sums.hessian, ours.expand(at).hessian, rtol=1e-12)
    for one, two in zip(mine, other, strict=True):
        np.testing.assert_array_equal(one.indices, two.indices)
        np.testing.assert_array_equal(one.weights, two.weights)
        np.testing.assert_array_equal(one.rows["x"], two.rows["x"])
