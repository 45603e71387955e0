"""The one pass over the data: totals, norms, pools, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

import decoct
from decoct.data import ArrayRows, encoded
from decoct.errors import ModelError
from decoct.passes import potentials as module
from decoct.passes.potentials import Potentials

N, D, S = 700, 3, 40


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D))
    return {"x": x, "y": (rng.random(N) < 0.5).astype(int)}


@pytest.fixture(scope="module")
def draws():
    return np.random.default_rng(1).normal(size=(S, D))


def potentials(rows):
    model = decoct.models.LogisticRegression()
    return Potentials(model, encoded(decoct.rows(rows), model))


def brute(table, draws):
    sign = 2.0 * table["y"] - 1.0
    return -np.logaddexp(0.0, -sign[:, None] * (table["x"] @ draws.T))


def parquet(tmp_path, table):
    columns = {
        "x": pa.FixedSizeListArray.from_arrays(pa.array(table["x"].ravel()), D),
        "y": pa.array(table["y"]),
    }
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=97)
    return path


def test_totals_vectors_and_curvature_are_the_sums(table, draws):
    ours, values = potentials(table), brute(table, draws)
    np.testing.assert_allclose(ours.totals(draws), values.sum(axis=0), rtol=1e-12)
    few = {name: column[:5] for name, column in ours.rows.take(np.arange(N)).items()}
    np.testing.assert_allclose(ours.vectors(few, draws), values[:5], rtol=1e-12)
    found = ours.curvature(draws[0])
    p = 1.0 / (1.0 + np.exp(-table["x"] @ draws[0]))
    np.testing.assert_allclose(found.value, values[:, 0].sum(), rtol=1e-12)
    np.testing.assert_allclose(found.gradient, table["x"].T @ (table["y"] - p), atol=1e-10)
    hessian = -(table["x"].T * (p * (1 - p))) @ table["x"]
    np.testing.assert_allclose(found.hessian, hessian, rtol=1e-10)


def test_passes_and_evaluations_are_counted(table, draws):
    ours = potentials(table)
    ours.totals(draws)
    ours.one_pass(draws, 50, jax.random.key(0))
    assert ours.counts.passes == 2
    assert ours.counts.evaluations == 2 * N * S


def test_the_same_pool_whatever_the_chunks_or_the_engine(table, draws, tmp_path, monkeypatch):
    key = jax.random.key(3)
    whole = potentials(table).one_pass(draws, 60, key)
    monkeypatch.setattr(module, "chunk_rows", lambda _: 61)
    for rows in (table, parquet(tmp_path, table)):
        other = potentials(rows).one_pass(draws, 60, key)
        np.testing.assert_allclose(other.totals, whole.totals, rtol=1e-12)
        np.testing.assert_array_equal(other.pool.indices, whole.pool.indices)
        np.testing.assert_array_equal(other.pool.rows["x"], whole.pool.rows["x"])


def test_the_pool_has_no_repeats_and_holds_the_rows_it_names(table, draws):
    pool = potentials(table).one_pass(draws, 60, jax.random.key(0)).pool
    assert len(np.unique(pool.indices)) == len(pool.indices) <= 60
    assert (np.diff(pool.indices) > 0).all()
    np.testing.assert_array_equal(pool.rows["x"], table["x"][pool.indices])


def test_a_pool_as_large_as_the_table_is_the_table(table, draws):
    pool = potentials(table).one_pass(draws, N, jax.random.key(0)).pool
    np.testing.assert_array_equal(pool.indices, np.arange(N))


def test_half_of_the_pool_is_uniform_and_half_follows_squared_norms(draws):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, D)) * np.repeat([1.0, 6.0], 20)[:, None]
    table = {"x": x, "y": np.tile([0, 1], 20)}
    ours = potentials(table)
    squares = np.square(brute(table, draws) - brute(table, draws).mean(1, keepdims=True)).sum(1)
    repeats, counts = 600, np.zeros(40)
    for seed in range(repeats):
        counts[ours.one_pass(draws, 2, jax.random.key(seed)).pool.indices] += 1
    # One place each: P(in) = 1 − (1 − 1/40)(1 − q_n), q ∝ ‖g‖².
    expected = 1 - (1 - 1 / 40) * (1 - squares / squares.sum())
    z = (counts - repeats * expected) / np.sqrt(repeats * expected * (1 - expected))
    assert np.abs(z).max() < stats.norm.isf(1e-4 / 40)
    assert np.square(z).sum() < stats.chi2.isf(1e-4, 40)


def test_a_nan_potential_names_its_row_and_draw():
    def log_likelihood(params, rows):
        return jnp.where(rows["y"] > 4.0, jnp.nan, params["mu"] * rows["y"])

    model = decoct.Model(log_likelihood, lambda p: -(p["mu"] ** 2), {"mu": 0.0})
    y = np.zeros(1000)
    y[777] = 5.0
    ours = Potentials(model, encoded(ArrayRows({"y": y}), model))
    for walk in (ours.totals, lambda z: ours.one_pass(z, 10, jax.random.key(0))):
        with pytest.raises(ModelError, match=r"row 777 is nan at draw 0"):
            walk(np.zeros((2, 1)))


def test_points_after_the_draws_may_be_impossible():
    model = decoct.Model(
        lambda p, r: jnp.where(p["mu"] > 4.0, -jnp.inf, p["mu"] * r["y"]),
        lambda p: -(p["mu"] ** 2),
        {"mu": 0.0},
    )
    ours = Potentials(model, encoded(ArrayRows({"y": np.ones(100)}), model))
    at = np.array([[1.0], [2.0], [5.0], [3.0]])
    totals = ours.totals(at, finite=2)
    np.testing.assert_allclose(totals[[0, 1, 3]], [100.0, 200.0, 300.0])
    assert not np.isfinite(totals[2])
    with pytest.raises(ModelError, match="row 0 is -inf at draw 2"):
        ours.totals(at, finite=3)


@pytest.mark.parametrize("size", [1e308, 1e200])
def test_potentials_too_large_to_be_added_up_or_squared(size):
    model = decoct.Model(
        lambda params, rows: size * params["mu"] * rows["y"],
        lambda p: -(p["mu"] ** 2),
        {"mu": 0.0},
    )
    ours = Potentials(model, encoded(ArrayRows({"y": np.ones(1000)}), model))
    with pytest.raises(ModelError, match="finite, but too large to be added up or squared"):
        ours.one_pass(np.array([[-1.0], [0.5], [1.0]]), 10, jax.random.key(0))


@pytest.mark.parametrize(
    ("log_likelihood", "log_prior", "message"),
    [
        (lambda p, r: p["a"] * r["y"].sum(), lambda p: -(p["a"] ** 2), "one value per row"),
        (lambda p, r: p["a"] * r["y"][:, None], lambda p: -(p["a"] ** 2), "one value per row"),
        (lambda p, r: p["a"] * r["y"], lambda p: -jnp.inf * (1.0 + p["a"]), "log prior is -inf"),
        (lambda p, r: p["a"] * r["y"], lambda p: p["a"] * jnp.ones(2), "scalar"),
    ],
)
def test_wrong_models_are_refused_before_any_pass(log_likelihood, log_prior, message):
    model = decoct.Model(log_likelihood, log_prior, {"a": 0.0})
    with pytest.raises(ModelError, match=message):
        Potentials(model, encoded(ArrayRows({"y": np.ones(5)}), model))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_vectors_of_all_rows_and_their_sum(table, draws, tmp_path, monkeypatch, dtype):
    values = brute(table, draws)
    expected = (values - values.mean(axis=1, keepdims=True)) / np.sqrt(S - 1)
    monkeypatch.setattr(module, "chunk_rows", lambda _: 61)
    for rows in (table, parquet(tmp_path, table)):
        ours = potentials(rows)
        vectors, total = ours.all_vectors(draws, dtype)
        assert vectors.dtype == dtype
        rtol = 1e-10 if dtype is np.float64 else 1e-6
        np.testing.assert_allclose(vectors, expected, rtol=rtol, atol=rtol)
        np.testing.assert_allclose(total, expected.sum(axis=0), rtol=1e-10, atol=1e-10)
        assert (ours.counts.passes, ours.counts.evaluations) == (1, N * S)


def test_a_column_of_no_width():
    model = decoct.Model(
        lambda p, r: -((r["y"] - p["m"]) ** 2) + 0.0 * r["none"].sum(axis=1),
        lambda p: -(p["m"] ** 2),
        {"m": 0.0},
    )
    y = np.arange(9000.0)
    ours = Potentials(model, encoded(decoct.rows({"y": y, "none": np.zeros((9000, 0))}), model))
    z = np.array([[0.5], [2.0]])
    np.testing.assert_allclose(ours.totals(z), [-((y - m) ** 2).sum() for m in z[:, 0]])
