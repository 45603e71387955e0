"""What a build is said to cost, beside what it costs."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import decoct
from decoct.constructions import (
    Hilbert,
    IteratedHilbert,
    L1Path,
    MomentMatching,
    Sensitivity,
    SparseVI,
    Uniform,
    scouting,
)
from decoct.errors import RequestError

N, D = 30_000, 3
MODEL = decoct.models.LogisticRegression()


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D))
    return {"x": x, "y": (rng.random(N) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)}


@pytest.mark.parametrize(
    "method",
    [
        IteratedHilbert(draws=200, pool=400),
        Hilbert(draws=100),
        Hilbert(draws=100, pool=500),
        MomentMatching(),
        Sensitivity(),
        Uniform(),
        SparseVI(draws=100),
        SparseVI(draws=100, subsample=500, subsample_totals=True),
        L1Path(draws=100, subsample=500),
    ],
    ids=lambda method: type(method).__name__,
)
def test_a_build_costs_what_was_said(rows, method):
    cost = decoct.estimate(MODEL, rows, size=20, method=method)
    report = decoct.build(MODEL, rows, size=20, method=method).report
    assert cost.passes[0] <= report.passes <= cost.passes[1]
    low, high = cost.likelihood_evaluations
    assert 0.9 * low <= report.evaluations / N <= 1.1 * high


def test_a_scouting_build_costs_what_was_said(rows, monkeypatch):
    monkeypatch.setattr(scouting, "ROWS", 2048)
    method = IteratedHilbert(draws=300, pool=400)
    cost = decoct.estimate(MODEL, rows, size=20, method=method)
    report = decoct.build(MODEL, rows, size=20, method=method).report
    assert report.rounds[0]["rows_seen"] == 2048
    assert cost.passes[0] <= report.passes <= cost.passes[1]
    low, high = cost.likelihood_evaluations
    assert 0.9 * low <= report.evaluations / N <= high


def test_nothing_is_walked_to_find_out(rows, monkeypatch):
    walked = []
    chunks = decoct.data.arrays.ArrayRows.chunks

    def counting(self, size=None, columns=None):
        for chunk in chunks(self, size, columns):
            walked.append(chunk.n_rows)
            yield chunk

    monkeypatch.setattr(decoct.data.arrays.ArrayRows, "chunks", counting)
    big = {name: np.concatenate([column] * 40) for name, column in rows.items()}
    cost = decoct.estimate(MODEL, big, size=20)
    assert cost.n_rows == 40 * N
    assert max(walked) <= 65_536 or walked.count(40 * N) == 1  # encoded once, in memory


def test_a_file_needs_less_memory_than_a_table_in_memory(rows, tmp_path):
    columns = {f"x{i}": rows["x"][:, i] for i in range(D)} | {"y": rows["y"]}
    many = {name: np.tile(column, 100) for name, column in columns.items()}
    pq.write_table(pa.table(many), tmp_path / "rows.parquet")
    file = decoct.rows(str(tmp_path / "rows.parquet"))
    model = decoct.models.from_formula("y ~ x0 + x1 + x2", file, "bernoulli")
    streamed = decoct.estimate(model, file, size=20)
    held = decoct.estimate(model, many, size=20)
    assert streamed.n_rows == held.n_rows == 100 * N
    assert streamed.peak_bytes < held.peak_bytes
    assert streamed.likelihood_evaluations == held.likelihood_evaluations


def test_the_words_have_the_figures(rows):
    cost = decoct.estimate(MODEL, rows, size=20)
    words = repr(cost)
    assert f"{N:,} rows: 1 to 4 passes" in words
    assert cost.seconds[0] < cost.seconds[1]
    assert cost.potentials_per_second > 1e4


def test_what_a_build_refuses_is_refused(rows):
    with pytest.raises(RequestError, match="not both"):
        decoct.estimate(MODEL, rows)
    with pytest.raises(RequestError, match="ask for at most"):
        decoct.estimate(MODEL, rows, size=N + 1)
