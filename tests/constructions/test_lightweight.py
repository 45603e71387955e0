"""Alg. 1 against its formula, its unbiasedness, and what is reported."""

import tracemalloc

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import decoct
from decoct.constructions.sampling import lightweight
from decoct.constructions.sampling.lightweight import (
    LightweightCoreset,
    lightweight_coreset,
    theorem_3_1,
)
from decoct.constructions.sampling.weighted_sampling import row_draws
from decoct.errors import RequestError, RowsError
from decoct.models import GaussianMean
from tests.constructions.contract import SamplingContract, logistic_rows, problem_of  # noqa: F401


@pytest.fixture(scope="module")
def x():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3000, 3)) * [1.0, 2.0, 0.1] + [100.0, -3.0, 0.0]
    x[:20] += 30.0
    return x


def by_formula(x):
    squares = np.square(x - x.mean(axis=0)).sum(axis=1)
    return 0.5 / len(x) + 0.5 * squares / squares.sum()


class TestLightweightCoreset(SamplingContract):
    method = LightweightCoreset(components=5)
    home = lightweight

    def test_two_passes_and_what_the_report_says(self, logistic_rows):  # noqa: F811
        report = self.build(logistic_rows).report
        told = report.rounds[0]
        assert report.passes == 2
        assert told["epsilon"] == theorem_3_1(25, 4, 5)  # x has 3 columns, y one more
        assert 0.9 < told["normalised_entropy"] < 1.0
        assert told["near_uniform"] == (told["normalised_entropy"] >= 0.98)


def test_q_and_weights_are_algorithm_1(x):
    q = by_formula(x)
    coreset = lightweight_coreset({"x": x}, 200, seed=3)
    told = coreset.numbers
    assert told["spread"] == pytest.approx(np.square(x - x.mean(axis=0)).sum(), rel=1e-12)
    entropy = -(q * np.log(q)).sum() / np.log(3000)
    assert told["normalised_entropy"] == pytest.approx(entropy, rel=1e-12)
    draws = coreset.weights * 200 * q[coreset.indices]
    np.testing.assert_allclose(draws, np.round(draws), atol=1e-9)
    assert draws.sum() == pytest.approx(200)
    assert coreset.numbers["repeated_picks"] == 200 - coreset.size
    np.testing.assert_array_equal(coreset.rows["x"], x[coreset.indices])
    assert (np.diff(coreset.indices) > 0).all()


def test_rows_are_drawn_as_often_as_q_says(x):
    table, q = {"x": x}, by_formula(x)
    drawn = np.zeros(3000)
    for seed in range(40):
        one = lightweight_coreset(table, 3000, seed=seed)
        drawn[one.indices] += one.weights * 3000 * q[one.indices]
    expected = 40 * 3000 * q
    groups = np.array_split(np.argsort(q), 30)
    chi2 = sum((drawn[g].sum() - expected[g].sum()) ** 2 / expected[g].sum() for g in groups)
    assert chi2 < 29 + 4 * np.sqrt(2 * 29)
    assert drawn[:20].sum() > 10 * 40 * 20  # outliers come more than ten times as often


def test_totals_are_unbiased(x):
    f = np.sin(x[:, 1]) + np.square(x[:, 0] - 100.0)
    sums = []
    for seed in range(300):
        one = lightweight_coreset({"x": x}, 50, seed=seed)
        sums.append(one.weights @ f[one.indices])
    error = np.std(sums, ddof=1) / np.sqrt(len(sums))
    assert abs(np.mean(sums) - f.sum()) < 4.0 * error


def test_the_construction_draws_by_the_formula(x):
    model = GaussianMean(np.eye(3))
    built = decoct.build(model, {"x": x}, size=60, method=LightweightCoreset())
    key = jax.random.fold_in(jax.random.key(0), 1)  # of the driver's first step
    table = decoct.rows({"x": x, "q": by_formula(x)})
    draws = row_draws(key, table, lambda chunk: chunk.columns["q"], 60)
    (chosen,) = draws.selections(table, (60,))
    np.testing.assert_array_equal(built.indices, chosen.indices)
    np.testing.assert_allclose(built.weights, chosen.weights, rtol=1e-11)


def test_columns_of_a_file_side_by_side(x, tmp_path):
    columns = {"a": x[:, 0], "b": x[:, 1], "c": x[:, 2]}
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({**columns, "name": ["row"] * 3000}), path, row_group_size=500)
    whole = lightweight_coreset({"x": x}, 100)
    streamed = lightweight_coreset(path, 100, columns=["a", "b", "c"])
    np.testing.assert_array_equal(streamed.indices, whole.indices)
    np.testing.assert_allclose(streamed.weights, whole.weights, rtol=1e-11)
    assert streamed.rows["name"][0] == "row"
    with pytest.raises(RowsError, match="Column 'name' is not numeric"):
        lightweight_coreset(path, 100)


def test_equal_rows_are_drawn_uniformly():
    found = lightweight_coreset({"x": np.full((50, 2), 7.0)}, 20)
    draws = found.weights * 20 * 0.02
    np.testing.assert_allclose(draws, np.round(draws), rtol=1e-14)
    assert draws.sum() == pytest.approx(20)
    assert found.numbers["normalised_entropy"] == pytest.approx(1.0)
    one = lightweight_coreset({"x": np.ones((1, 2))}, 3)
    assert one.numbers["normalised_entropy"] == 1.0


def test_bad_requests_are_sentences(x):
    for size in (0, -1, True):
        with pytest.raises(RequestError, match="size must be a whole number, at least 1"):
            lightweight_coreset({"x": x}, size)
    with pytest.raises(RequestError, match="columns is a list of names"):
        lightweight_coreset({"x": x}, 5, columns="x")
    with pytest.raises(RequestError, match="components must be a whole number, at least 1"):
        LightweightCoreset(components=0)
    with pytest.raises(RequestError, match="delta must be between 0 and 1"):
        LightweightCoreset(delta=1.0)
    with pytest.raises(RequestError, match="columns must be a tuple of names"):
        LightweightCoreset(columns=())
    with pytest.raises(RowsError, match="no column 'z'"):
        lightweight_coreset({"x": x}, 5, columns=["z"])
    bad = x.copy()
    bad[17, 1] = np.nan
    with pytest.raises(RowsError, match="Column 'x' has NaN in row 17"):
        lightweight_coreset({"x": bad}, 5)
    for far in (1e200, 1.7e308):  # the second has no mean either
        with pytest.raises(RowsError, match="squared distances to the mean overflow"):
            lightweight_coreset({"x": np.array([[far], [far], [-far]])}, 1)


def test_memory_does_not_grow_with_the_rows():
    model, peaks = GaussianMean(np.eye(1)), []
    for N in (200_000, 1_000_000):
        table = decoct.rows({"x": np.random.default_rng(0).normal(size=(N, 1))})
        lightweight_coreset(table, 1000)
        tracemalloc.start()
        lightweight_coreset(table, 1000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        problem = problem_of(model, table, 1000)
        planned = LightweightCoreset().plan(problem).array_bytes
    assert abs(peaks[1] - peaks[0]) < 50_000  # 5 bytes in 80 rows
    assert planned / 2 < peaks[1] < planned + 2e6  # and a chunk's
