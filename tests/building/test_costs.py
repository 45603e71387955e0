"""What a build is said to cost, beside what it costs."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import decoct
from decoct.building import costs
from decoct.constructions import (
    Hilbert,
    IteratedHilbert,
    L1Path,
    MomentMatching,
    Sensitivity,
    SparseVI,
    Uniform,
)
from decoct.constructions.iterated_hilbert import settings
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


@pytest.mark.parametrize("site", [True, False])
def test_a_subsampled_build_costs_what_was_said(rows, site, monkeypatch):
    monkeypatch.setattr(settings, "ROWS", 2048)
    method = IteratedHilbert(site=site, draws=300, pool=400)
    cost = decoct.estimate(MODEL, rows, size=20, method=method)
    report = decoct.build(MODEL, rows, size=20, method=method).report
    assert report.rounds[0]["draws_on_all_rows"] < 300
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


def say(monkeypatch, **seconds):
    """Have the probe find these seconds."""
    for name, value in seconds.items():
        monkeypatch.setattr(costs, f"_{name}_seconds", lambda *_, value=value: value)


def test_seconds_are_the_probes_rates_times_the_counts(rows, monkeypatch):
    """The table is one block of N rows, said to take 3 s to read; a potential, 2 ns."""
    say(monkeypatch, reading=3.0, potential=2e-9)
    cost = decoct.estimate(MODEL, rows, size=20, method=Hilbert(draws=100))
    assert cost.rows_per_second == pytest.approx(N / 3.0)
    assert cost.potentials_per_second == pytest.approx(5e8)
    passes, evaluations = (
        np.sqrt(low * high) for low, high in (cost.passes, cost.likelihood_evaluations)
    )
    reading = (passes + costs.CHECKING) * 3.0
    assert cost.cpu_seconds == pytest.approx(reading + evaluations * N * 2e-9)
    assert cost.laplace_seconds is None


def test_seconds_count_drawing_and_the_products_of_the_pool(rows, monkeypatch):
    quick = {"reading": 1e-12, "potential": 1e-24, "curvature": 0.0}
    say(monkeypatch, **quick, drawing=(2.0, False), product=0.0)
    assert decoct.estimate(MODEL, rows, size=20).cpu_seconds == pytest.approx(3 * 2.0)
    say(monkeypatch, **quick, drawing=(0.0, False), product=1e-3)
    few, many = (decoct.estimate(MODEL, rows, size=size).cpu_seconds for size in (20, 200))
    # three rounds of 1.2 + 0.6, and 2.4 for the final exchanges, a row
    assert few == pytest.approx(1e-3 * 20 * 7.8)
    assert many == pytest.approx(1e-3 * 200 * 7.8)


def test_laplace_is_offered_where_it_would_do(rows, monkeypatch):
    say(monkeypatch, reading=1e-12, potential=1e-9, product=0.0, curvature=1e-8)
    cost = decoct.estimate(MODEL, rows, size=20)
    assert cost.laplace_seconds == pytest.approx(N * (10 * 1e-8 + 1000 * 1e-9))
    assert "importance weights may do" in repr(cost)
    skewed = decoct.models.LogisticRegression(prior_scale=1e6)
    separable = {"x": rows["x"][:2000], "y": (rows["x"][:2000, 0] > 0.0).astype(int)}
    cost = decoct.estimate(skewed, separable, size=20)
    assert cost.laplace_seconds is None
    assert "Laplace" not in repr(cost)


def test_the_probe_is_timed_warm(rows, monkeypatch):
    """The clock stands for reading and evaluating; the first, compiling calls are outside it."""
    calls = []
    totals = costs.Potentials.totals
    monkeypatch.setattr(
        costs.Potentials, "totals", lambda self, z: calls.append("totals") or totals(self, z)
    )
    times = iter([10.0, 10.5, 20.0, 22.0])

    def clock():
        calls.append("clock")
        return next(times)

    monkeypatch.setattr(costs.time, "process_time", clock)
    cost = decoct.estimate(MODEL, rows, size=20, method=Uniform())
    assert calls == ["clock", "clock", "totals", "clock", "totals", "clock"]
    assert cost.rows_per_second == pytest.approx(N / 0.5)
    probed = min(N, costs.chunk_rows(costs.PROBE_DRAWS))
    assert cost.potentials_per_second == pytest.approx(probed * costs.PROBE_DRAWS / 2.0)


PEAK = """
import json, re, sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
import decoct
from decoct.constructions import IteratedHilbert

D, FEW, MANY = 12, 2_000, 2_000_000
method = IteratedHilbert(draws=100, pool=200, max_rounds=1, subsample_first=False)
options = {"size": 10, "method": method, "sampler": decoct.samplers.Laplace(judge=False)}
folder, kind = sys.argv[1:]

def peak():
    with open("/proc/self/status") as file:  # ru_maxrss would start at that of the parent
        return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", file.read())[1])

def columns(n):
    rng = np.random.default_rng(0)
    made = {f"x{i}": rng.normal(size=n) for i in range(D)}
    return {**made, "y": (made["x0"] > 0.0).astype(np.int64)}

def table(n):
    if kind == "memory":
        return columns(n)
    path = f"{folder}/{n}.parquet"
    size = min(n, 20_000)
    part = pa.table(columns(size))
    with pq.ParquetWriter(path, part.schema) as file:
        for _ in range(n // size):
            file.write_table(part)
    return decoct.rows(path)

few = table(FEW)
formula = "y ~ 0 + " + " + ".join(f"x{i}" for i in range(D))
model = decoct.models.from_formula(formula, decoct.rows(few), "bernoulli")
decoct.build(model, few, **options)  # libraries and compiled programs are in memory from here on
before = peak()
many = table(MANY)
said = decoct.estimate(model, many, **options)
decoct.build(model, many, **options)
print(json.dumps([said.peak_bytes, peak() - before]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_bytes_are_those_of_a_process(tmp_path, users_environment):
    """Within a factor of 3 of what a process grows by, a table in memory or a file.

    The estimate counts arrays. The process has in addition what the allocator does not hand back
    and what readers hold; and the estimate's blocks are not all full at one time.
    """
    grown = {}
    for kind in ("memory", "file"):
        words = [sys.executable, "-c", PEAK, str(tmp_path), kind]
        done = subprocess.run(words, capture_output=True, text=True, env=users_environment)
        assert done.returncode == 0, done.stderr
        said, measured = json.loads(done.stdout.splitlines()[-1])
        assert measured / 3 < said < 3 * measured
        grown[kind] = measured
    table = 2_000_000 * 13 * 8
    assert grown["file"] + table < grown["memory"]  # which holds it twice, raw and encoded


def test_the_words_have_the_figures(rows):
    cost = decoct.estimate(MODEL, rows, size=20)
    words = repr(cost)
    assert str(cost) == words
    assert "{:,} rows: {} to {} passes".format(N, *cost.passes) in words
    assert f"about {cost.cpu_seconds:.2g} CPU s" in words
    assert cost.potentials_per_second > 1e4


def test_what_a_build_refuses_is_refused(rows):
    with pytest.raises(RequestError, match="not both"):
        decoct.estimate(MODEL, rows, size=10, kl=0.1)
    with pytest.raises(RequestError, match="ask for at most"):
        decoct.estimate(MODEL, rows, size=N + 1)
