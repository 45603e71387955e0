"""Builds on a real cluster of worker processes: the coreset of one process, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("distributed")

import dask.array as da
import dask.config
import dask.dataframe as dd
from dask.delayed import delayed
from distributed import Client

import decoct
import decoct.building.checkpoint
from decoct.certificates import row_estimate
from decoct.cli import main
from decoct.cli.output import write_posterior
from decoct.constructions import (
    Hilbert,
    IteratedHilbert,
    L1Path,
    LightweightCoreset,
    MomentMatching,
    Sensitivity,
    SparseVI,
    Uniform,
    lightweight_coreset,
)
from decoct.constructions.iterated_hilbert import settings
from decoct.constructions.sampling.weighted_sampling import DRAWN_AT_ONCE
from decoct.data.dask_rows import DaskRows
from decoct.data.encoded import encoded
from decoct.formats.site import site_to_dict
from decoct.models import GaussianMean, LogisticRegression, from_formula
from decoct.models.base import AbstractModel
from decoct.passes.potentials import Potentials, chunk_rows
from decoct.samplers import Laplace
from tests.dask_cluster import local_client
from tests.faults.conftest import SLOW_COMMAND, rounds_done, started, wait_for  # noqa: F401

N, D = 9000, 4
MODEL = LogisticRegression(intercept=True)
LAYOUTS = {
    1: (4100, 4900),
    2: (5000, 0, 3999, 1),
    4: (2048, 1, 2047, 500, 0, 3000, 404, 1000),
}
"""Lengths of the partitions, by partitions per worker."""


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    with local_client() as client:
        yield client


def _data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D))
    return {"x": x, "y": (rng.random(N) < 1.0 / (1.0 + np.exp(-x[:, 0]))).astype(np.int64)}


DATA = _data()


def spread(lengths: tuple[int, ...], data: dict[str, np.ndarray] = DATA) -> dict[str, da.Array]:
    return {k: da.from_array(v, chunks=(lengths, *v.shape[1:])) for k, v in data.items()}


def flights() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"temp": rng.normal(15.0, 9.0, N), "origin": rng.choice(["E", "J", "L"], N)}
    )
    eta = 0.1 * (frame["temp"] - 15.0) + (frame["origin"] == "J")
    return frame.assign(late=(rng.random(N) < 1.0 / (1.0 + np.exp(-eta))).astype(np.int64))


def in_partitions(frame: pd.DataFrame, lengths: tuple[int, ...]) -> dd.DataFrame:
    ends = np.cumsum(lengths)
    parts = [frame[end - n : end] for end, n in zip(ends, lengths, strict=True)]
    return dd.from_delayed([delayed(one) for one in parts], meta=frame, verify_meta=False)


def assert_same(got: decoct.Coreset, want: decoct.Coreset) -> None:
    np.testing.assert_array_equal(got.indices, want.indices)
    np.testing.assert_array_equal(got.weights, want.weights)
    assert got.report.predicted_kl == want.report.predicted_kl
    assert (got.report.passes, got.report.evaluations) == (
        want.report.passes,
        want.report.evaluations,
    )
    for name, values in want.rows.items():
        np.testing.assert_array_equal(got.rows[name], values)
    assert (got.site is None) == (want.site is None)
    if want.site is not None:
        assert got.site is not None
        assert site_to_dict(got.site) == site_to_dict(want.site)


ALONE = IteratedHilbert(site=False)


@pytest.fixture(scope="module", params=[IteratedHilbert(), ALONE], ids=["site", "rows alone"])
def method(request) -> IteratedHilbert:
    return request.param


@pytest.fixture(scope="module")
def reference(method) -> decoct.Coreset:
    return decoct.build(MODEL, DATA, size=20, seed=3, method=method)


@pytest.mark.parametrize("per_worker", LAYOUTS)
def test_the_coreset_is_the_one_of_a_single_process(reference, method, per_worker):
    table = decoct.rows(spread(LAYOUTS[per_worker]))
    assert_same(decoct.build(MODEL, table, size=20, seed=3, method=method), reference)
    assert (reference.site is not None) == method.site
    assert table.traffic.passes >= reference.report.passes
    assert table.traffic.rows_moved > 0


def test_a_certificate_from_a_sample_of_rows_has_the_same_bits(reference, monkeypatch):
    monkeypatch.setattr(row_estimate, "SAMPLE", 300)
    draws = reference.sample(draws=250, sampler=Laplace())
    monkeypatch.setattr(row_estimate, "TOLERANCE", 10.0)
    table = decoct.rows(spread(LAYOUTS[4]))
    mine, other = (decoct.check(reference, rows, draws) for rows in (DATA, table))
    assert not mine.is_exact
    np.testing.assert_array_equal(mine.log_ratios, other.log_ratios)
    assert mine.to_dict() == other.to_dict()


@pytest.mark.parametrize(
    ("method", "size"),
    [
        (Uniform(), 5),
        (Sensitivity(), 5),
        (LightweightCoreset(columns=("x",)), 5),
        (Hilbert(draws=60), 5),
        (SparseVI(draws=60, subsample=200), 1),
        (L1Path(draws=60, subsample=200, searches=2), 2),
        (MomentMatching(), 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_construction_runs_on_the_cluster(method, size):
    want = decoct.build(MODEL, DATA, size=size, seed=1, method=method)
    assert_same(decoct.build(MODEL, spread(LAYOUTS[4]), size=size, seed=1, method=method), want)


@pytest.mark.parametrize(
    ("request_", "method"),
    [
        ({"size": 20}, IteratedHilbert(site=False, pool=200, pilot=400)),
        ({"size": 20}, IteratedHilbert(site=True, pool=100, pilot=400)),
        ({"kl": 0.05}, IteratedHilbert(site=False, subsample_first=False)),
        ({"kl": 1e-5}, IteratedHilbert(site=True, subsample_first=False)),
    ],
    ids=["subsampled", "sampled by remainder", "kl of rows alone", "kl"],
)
def test_subsampled_and_kl_builds_are_the_ones_of_a_single_process(request_, method, monkeypatch):
    monkeypatch.setattr(settings, "ROWS", 512)
    how = {**request_, "seed": 3, "method": method}
    want = decoct.build(MODEL, DATA, **how)
    got = decoct.build(MODEL, spread(LAYOUTS[4]), **how)
    assert_same(got, want)
    seen = [{**one, "seconds": 0.0} for one in got.report.rounds]
    assert seen == [{**one, "seconds": 0.0} for one in want.report.rounds]
    if "size" in request_ and not method.site:
        assert [one["rows_seen"] for one in seen] == [800, 800, N]
    elif "size" in request_:
        assert seen[-1]["draws_on_all_rows"] < seen[-1]["draws"]  # from rows drawn by remainder
        assert "totals_error" in seen[-1]
    else:
        assert len(seen) >= 2
        assert got.report.status is decoct.Status.REACHED


def draws_near(coreset: decoct.Coreset, n: int) -> np.ndarray:
    fitted = decoct.laplace(coreset.model, coreset.rows, coreset.weights)
    return fitted.sample(np.random.default_rng(0), n)


def test_the_certificate_is_the_same(reference):
    draws = draws_near(reference, 200)
    want = decoct.check(reference, DATA, draws)
    got = decoct.check(reference, spread(LAYOUTS[2]), draws)
    np.testing.assert_array_equal(got.log_ratios, want.log_ratios)
    assert got.to_dict() == want.to_dict()


def totals(model: AbstractModel, table: Any, theta: np.ndarray) -> np.ndarray:
    return Potentials(model, encoded(decoct.rows(table), model)).totals(theta)


def test_the_certificate_refuses_another_table_that_workers_hold(reference):
    """Kept rows are compared where they are; the error travels back and names the column."""
    draws = draws_near(reference, 50)
    other = {name: values.copy() for name, values in DATA.items()}
    other["x"][reference.indices[-1], 2] += 1e-9
    with pytest.raises(decoct.CoresetFileError, match="column 'x' differs in the kept rows"):
        decoct.check(reference, decoct.rows(spread(LAYOUTS[2], other)), draws)
    fewer = {name: values[:-1] for name, values in DATA.items()}
    with pytest.raises(decoct.CoresetFileError, match="this table has 8999"):
        decoct.check(reference, decoct.rows(spread((5000, 3999), fewer)), draws)


@pytest.mark.parametrize("method", [Sensitivity(), LightweightCoreset(columns=("x",))])
def test_draws_by_scores_are_those_of_a_single_process_over_many_blocks(method):
    rng = np.random.default_rng(5)
    n = 2 * DRAWN_AT_ONCE + 3000
    data = {"x": rng.normal(size=(n, 2)), "y": rng.integers(2, size=n)}
    lengths = (DRAWN_AT_ONCE - 1, 700, DRAWN_AT_ONCE - 2500, 4801)
    got = decoct.build(MODEL, decoct.rows(spread(lengths, data)), size=30, method=method)
    assert_same(got, decoct.build(MODEL, data, size=30, method=method))
    assert len(np.unique(got.indices // DRAWN_AT_ONCE)) == 3


def test_a_mixture_is_fitted_to_the_same_rows_with_the_same_priors():
    pytest.importorskip("sklearn")
    from decoct.mixture import DPGaussianMixture

    mixture = DPGaussianMixture(n_components=2, max_iter=500)
    x = {"x": DATA["x"]}
    got = decoct.mixture.build(mixture, decoct.rows(spread(LAYOUTS[4], x)), size=200)
    want = decoct.mixture.build(mixture, x, size=200)
    assert_same(got, want)
    assert got.report.passes == want.report.passes == 3
    np.testing.assert_array_equal(got.model.means_, want.model.means_)
    np.testing.assert_array_equal(got.model.covariance_prior_, want.model.covariance_prior_)


def test_a_formula_learns_the_same_design():
    frame, formula = flights(), "late ~ center(temp) * C(origin)"
    table = decoct.rows(in_partitions(frame, LAYOUTS[4]))
    want, got = (from_formula(formula, t, "bernoulli") for t in (decoct.rows(frame), table))
    assert got.to_dict() == want.to_dict()
    assert got.design.names[-1] == "center(temp):C(origin)[T.L]"
    theta = np.random.default_rng(0).normal(size=(40, 6))
    np.testing.assert_array_equal(totals(got, table, theta), totals(want, frame, theta))


def test_a_model_of_lambdas_travels():
    model = decoct.Model(
        lambda params, rows: -0.5 * (rows["y"] - params["mu"]) ** 2,
        lambda params: -0.5 * jnp.square(params["mu"]),
        {"mu": 0.0},
    )
    data = {"y": DATA["x"][:, 0]}
    theta = np.random.default_rng(0).normal(size=(40, 1))
    got = totals(model, spread(LAYOUTS[2], data), theta)
    np.testing.assert_array_equal(got, totals(model, data, theta))


def test_a_bad_row_is_named_as_in_memory():
    bad = {"x": DATA["x"], "y": DATA["y"].astype(np.float64)}
    bad["y"][[5003, 8999]] = np.nan
    said = []
    for table in (bad, spread(LAYOUTS[2], bad)):
        with pytest.raises(decoct.RowsError, match="row 5003") as caught:
            decoct.build(MODEL, table, size=5)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert caught.value.__cause__ is None


def test_a_killed_worker_costs_a_retry_and_no_bit(client, reference, method, monkeypatch):
    """SIGKILL to a worker process as soon as the first chunks of the long pass are in."""
    told, killed = [], []

    def advance(bar, n_rows, unit="rows"):
        told.append(n_rows)
        if bar._label.startswith("round") and not killed:
            killed.extend(client.run(os.getpid).values())
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr("decoct.runtime.progress.ProgressBar.advance", advance)
    table = spread(LAYOUTS[4])
    assert_same(decoct.build(MODEL, table, size=20, seed=3, method=method), reference)
    assert killed
    client.wait_for_workers(2, timeout=180)
    assert killed[0] not in client.run(os.getpid).values()


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """The flights in two Parquet files of small row groups."""
    folder = tmp_path_factory.mktemp("files")
    table = pa.Table.from_pandas(flights(), preserve_index=False)
    for name, begin, end in (("a", 0, 4100), ("b", 4100, N)):
        path = folder / f"{name}.parquet"
        pq.write_table(table.slice(begin, end - begin), path, row_group_size=1000)
    return folder


def words_for(files: Path, folder: Path, address: str | None = None) -> list[str]:
    words = ["build", str(files), "--formula", "late ~ temp + C(origin)", "--family", "bernoulli"]
    words += ["--kl", "1e-5", "--seed", "3", "-o", str(folder / "c.parquet"), "--quiet"]
    words += ["--checkpoint", str(folder / "saved")]
    return words if address is None else [*words, "--dask", address]


@pytest.fixture(scope="module")
def undisturbed(files, tmp_path_factory) -> decoct.Coreset:
    """What the command line builds from the files in this process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert main(words_for(files, folder)) == 0
    return decoct.load(folder / "c.parquet")


def assert_resumed(
    folder: Path, words: list[str], done: list[dict[str, Any]], whole: decoct.Coreset
) -> None:
    """The same command goes on behind the rounds done, to the coreset it would have been."""
    assert sorted(os.listdir(folder)) == ["saved"]
    assert 1 <= len(done) < len(whole.report.rounds)
    assert main(words) == 0
    resumed = decoct.load(folder / "c.parquet")
    assert_same(resumed, whole)
    assert resumed.report.rounds[: len(done)] == done  # seconds and all
    assert os.listdir(folder) == ["c.parquet"]


def test_ctrl_c_leaves_a_checkpoint_to_go_on_from(client, files, undisturbed, tmp_path, started):  # noqa: F811
    words = words_for(files, tmp_path, client.scheduler.address)
    process = started(*SLOW_COMMAND, *words)
    wait_for(process, lambda: rounds_done(tmp_path / "saved"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    done = rounds_done(tmp_path / "saved")
    after = "1 round" if len(done) == 1 else f"{len(done)} rounds"
    assert f"decoct: interrupted after {after}; the same command resumes" in err
    until = time.monotonic() + 120
    while client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
        assert time.monotonic() < until  # nothing of the interrupted build is left there
        time.sleep(0.05)
    assert_resumed(tmp_path, words, done, undisturbed)


def test_a_worker_killed_while_it_reads_costs_a_retry_and_no_bit(
    client, files, undisturbed, monkeypatch, tmp_path
):
    """SIGKILL out of the middle of a Parquet file, when the first rows of a pass are done."""
    monkeypatch.setattr("decoct.data.dask_sources.FEWEST_ROWS", 1000)  # nine partitions
    armed, died = [], tmp_path / "died"

    def one_dies_at_the_next_batch(died=str(died)):
        from decoct.data.arrow_parts import ParquetPart

        batches = ParquetPart.read_batches

        def dying(*args):
            for batch in batches(*args):
                try:
                    with open(died, "x") as file:
                        file.write(str(os.getpid()))
                except FileExistsError:  # another worker has
                    yield batch
                else:
                    os.kill(os.getpid(), signal.SIGKILL)

        dying.usual = batches
        ParquetPart.read_batches = dying

    def none_dies():
        from decoct.data.arrow_parts import ParquetPart

        read = ParquetPart.read_batches
        ParquetPart.read_batches = getattr(read, "usual", read)

    def advance(bar, n_rows, unit="rows"):
        if bar._label.startswith("round") and not armed:
            armed.append(True)
            client.run(one_dies_at_the_next_batch, on_error="ignore")  # it may die unanswered

    monkeypatch.setattr("decoct.runtime.progress.ProgressBar.advance", advance)
    assert main(words_for(files, tmp_path, client.scheduler.address)) == 0
    assert_same(decoct.load(tmp_path / "c.parquet"), undisturbed)
    client.wait_for_workers(2, timeout=180)
    client.run(none_dies)
    assert int(died.read_text()) not in client.run(os.getpid).values()


@pytest.fixture
def without_stealing(client) -> Iterator[None]:
    """Dask moves no partition from a busy worker to an idle one (docs/clusters.md)."""

    async def stop(dask_scheduler):
        await dask_scheduler.extensions["stealing"].stop()

    async def start(dask_scheduler):
        await dask_scheduler.extensions["stealing"].start()

    client.run_on_scheduler(stop)
    yield
    client.run_on_scheduler(start)


def test_draws_sums_and_pools_travel_and_rows_stay(client, without_stealing):
    n, S, model = 400_000, 150, GaussianMean(covariance=np.eye(D))
    x = da.random.default_rng(2).normal(size=(n, D), chunks=(n // 2, D))
    table = decoct.rows(client.persist(x))
    potentials = Potentials(model, encoded(table, model))

    def arrived(dask_worker):
        return sum(entry["total"] for entry in dask_worker.transfer_incoming_log)

    theta = np.random.default_rng(3).normal(size=(S, D))
    potentials.totals(theta)  # compiles
    between = []
    for _ in range(5):
        before, then = sum(client.run(arrived).values()), dataclasses.replace(table.traffic)
        potentials.totals(theta)
        now = table.traffic
        between.append(sum(client.run(arrived).values()) - before)
        # the smaller side of the one border
        assert 0 < now.rows_moved - then.rows_moved <= chunk_rows(S) // 2 < n // 20
        assert now.received - then.received < 10_000
        assert theta.nbytes < now.sent - then.sent < 50_000
    # a worker that is busy longer is passed over, and then the larger side moves
    moved = now.rows_moved - then.rows_moved
    assert min(between) <= moved * D * 8 + 50_000


def test_draws_by_scores_bring_no_number_a_row(client):
    n = 400_000
    x = np.random.default_rng(2).standard_t(4, size=(n, 1))
    table = decoct.rows(client.persist(da.from_array(x, chunks=((90_000, 310_000), 1))))
    want, got = lightweight_coreset({"x": x}, 200), lightweight_coreset(table, 200)
    np.testing.assert_array_equal(got.indices, want.indices)
    np.testing.assert_array_equal(got.weights, want.weights)
    assert got.numbers == want.numbers
    # the last block, whose scores come here since it is short, and the candidates
    assert table.traffic.received < 8 * DRAWN_AT_ONCE + 20_000 < 8 * n / 20


def assert_told_what_travelled(text: str) -> None:
    told = re.search(r"^Cluster: (\S+) MB sent, (\S+) MB received, [\d,]+ rows moved ", text, re.M)
    assert told, text
    assert all(float(one) > 0.0 for one in told.groups())


def test_the_command_line(client, tmp_path, capsys):
    table = pa.Table.from_pandas(flights(), preserve_index=False)
    for name, begin, end in (("a", 0, 4100), ("b", 4100, 4100), ("c", 4100, N)):
        path = tmp_path / "table" / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table.slice(begin, end - begin), path, row_group_size=1500)
    words = [tmp_path / "table", "--formula", "late ~ temp + C(origin)", "--family", "bernoulli"]
    words = ["build", *map(str, words), "--size", "300", "--method", "sensitivity", "-o"]
    address = client.scheduler.address
    here, there = tmp_path / "here.parquet", tmp_path / "there.parquet"
    assert main([*words, str(here)]) == 0
    capsys.readouterr()
    assert main([*words, str(there), "--dask", address]) == 0
    assert_told_what_travelled(capsys.readouterr().out)
    assert_same(decoct.load(there), decoct.load(here))
    assert decoct.load(there).report.traffic["passes"] > 0
    coreset, posterior = decoct.load(here), tmp_path / "posterior.nc"
    words = ["check", str(there), str(tmp_path / "table"), "--posterior", str(posterior), "--json"]
    codes, said = [], []
    # xarray asks the current client, which the command line has not, for locks around its files
    with dask.config.set(scheduler="synchronous"):
        write_posterior(coreset.sample(draws=50, sampler=Laplace()), posterior)
        for extra in ([], ["--dask", address]):
            codes.append(main([*words, *extra]))
            said.append(json.loads(capsys.readouterr().out))
        assert main([*words[:-1], "--dask", address]) == codes[1]
        assert_told_what_travelled(capsys.readouterr().out)
        main(words[:-1])
        assert "Cluster" not in capsys.readouterr().out
    assert codes[0] == codes[1] < 2
    here, there = (one.pop("traffic") for one in said)
    assert here is None
    assert there["sent"] > 0 < there["received"]
    assert said[0] == said[1]


def test_compare_on_the_command_line(client, tmp_path, capsys):
    pq.write_table(pa.Table.from_pandas(flights()[:1500]), tmp_path / "t.parquet")
    words = ["compare", str(tmp_path / "t.parquet"), "--formula", "late ~ temp"]
    words += ["--family", "bernoulli", "--sizes", "5", "--draws", "50"]
    assert main([*words, "--json"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert here["traffic"] is None
    folder = tmp_path / "there"
    assert main([*words, "--dask", client.scheduler.address, "-o", str(folder)]) == 0
    assert_told_what_travelled(capsys.readouterr().out)
    lines = pd.DataFrame(here["lines"])
    there = pd.read_csv(folder / "compared.csv", engine="pyarrow")
    there = there.replace([np.inf, -np.inf], np.nan)  # JSON has null for all three
    pd.testing.assert_frame_equal(
        lines.drop(columns=["seconds", "note"]),
        there.drop(columns=["seconds", "note"]),
        check_dtype=False,
        check_exact=True,
    )
    assert (lines["kl"] >= 0.0).all()


def test_pictures_and_pages_on_the_command_line(client, tmp_path, capsys, monkeypatch):
    table, kept = str(tmp_path / "t.parquet"), str(tmp_path / "c.parquet")
    pq.write_table(pa.Table.from_pandas(flights()[:1500]), table)
    words = ["build", table, "--formula", "late ~ temp", "--family", "bernoulli", "--size", "8"]
    assert main([*words, "-o", kept]) == 0
    evaluated = []
    usual = DaskRows.map_reduce
    monkeypatch.setattr(
        DaskRows,
        "map_reduce",
        lambda self, *args, **how: evaluated.append(1) or usual(self, *args, **how),
    )
    address = ["--dask", client.scheduler.address]
    pictures, verdicts = [], []
    for name, extra in (("here", []), ("there", address)):
        before = len(evaluated)
        folder, page = tmp_path / name, tmp_path / f"{name}.html"
        assert main(["plot", kept, table, "-o", str(folder), *extra]) == 0
        pictures.append({path.name: path.read_bytes() for path in folder.iterdir()})
        capsys.readouterr()
        assert main(["report", kept, table, "-o", str(page), *extra]) == 0
        verdicts.append(capsys.readouterr().out.partition(": ")[2])
        assert (len(evaluated) > before) == bool(extra)
        assert "certificate" in page.read_text().lower()
    assert pictures[0] == pictures[1]
    assert len(pictures[0]) == 3
    assert verdicts[0] == verdicts[1] != "not certified"
    assert main(["report", kept, "-o", str(tmp_path / "no.html"), *address]) == 2
    assert "give the table too" in capsys.readouterr().err
    assert not (tmp_path / "no.html").exists()


def test_a_bad_row_is_named_with_the_file_that_workers_read(client, tmp_path):
    good = flights()[:1000]
    bad = good.assign(late=good["late"].astype(float))
    bad.loc[700, "late"] = 7.0
    for name, frame in (("a", good.astype({"late": float})), ("b", bad)):
        pq.write_table(pa.Table.from_pandas(frame), tmp_path / f"{name}.parquet")
    sentences = []
    for address in (None, client.scheduler.address):
        rows = decoct.rows(tmp_path, dask=address)
        with pytest.raises(decoct.errors.DecoctError, match=r"row 700 of .*b\.parquet") as e:
            decoct.build(from_formula("late ~ temp", rows, "bernoulli"), rows, size=5)
        sentences.append(str(e.value))
    assert sentences[0] == sentences[1]


SCHEDULER = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]


@pytest.fixture
def lonely_scheduler(tmp_path) -> Iterator[tuple[subprocess.Popen, str]]:
    """A scheduler without workers, so that its work never ends."""
    file = tmp_path / "scheduler.json"
    with subprocess.Popen(
        [*SCHEDULER, "--port", "0", "--no-dashboard", "--scheduler-file", str(file)],
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process, _address(file)
        finally:
            process.kill()


def _address(file: Path) -> str:
    for _ in range(600):
        try:
            return json.loads(file.read_text())["address"]
        except (OSError, ValueError):
            time.sleep(0.1)
    raise TimeoutError("the scheduler did not start")


@pytest.fixture
def small_cluster(lonely_scheduler) -> Iterator[tuple[subprocess.Popen, str]]:
    """A scheduler, which a test may kill, and a worker."""
    process, address = lonely_scheduler
    words = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1"]
    with subprocess.Popen([*words, "--no-nanny", "--no-dashboard"], stderr=subprocess.DEVNULL) as w:
        try:
            yield process, address
        finally:
            w.kill()


def test_a_build_goes_on_elsewhere_after_its_scheduler_died(
    client, files, undisturbed, small_cluster, tmp_path, capsys, monkeypatch
):
    scheduler, address = small_cluster
    folder = tmp_path / "build"
    folder.mkdir()
    write = decoct.building.checkpoint.write_checkpoint

    def write_and_kill(path, content):
        write(path, content)
        if content["infos"]:
            scheduler.kill()
            scheduler.wait()

    with monkeypatch.context() as patch:
        patch.setattr("decoct.data.dask_cluster.PATIENCE", 5)
        patch.setattr("decoct.building.checkpoint.write_checkpoint", write_and_kill)
        assert main(words_for(files, folder, address)) == 2
    assert "decoct: The Dask scheduler stopped during the work" in capsys.readouterr().err
    done = rounds_done(folder / "saved")
    words = words_for(files, folder, client.scheduler.address)
    assert_resumed(folder, words, done, undisturbed)


def test_a_scheduler_that_dies_is_one_sentence(lonely_scheduler, capsys, monkeypatch, tmp_path):
    process, address = lonely_scheduler
    monkeypatch.setattr("decoct.data.dask_cluster.Cluster.n_threads", 1)
    pq.write_table(pa.table({"y": [0, 1], "x": [1.0, 2.0]}), tmp_path / "t.parquet")
    start = decoct.data.dask_cluster.Cluster.start

    def start_and_kill(cluster, tasks):
        futures = start(cluster, tasks)
        process.kill()
        return futures

    monkeypatch.setattr("decoct.data.dask_cluster.Cluster.start", start_and_kill)
    words = [str(tmp_path / "t.parquet"), "--formula", "y ~ x", "--size", "1", "--dask", address]
    assert main(["build", *words, "-o", str(tmp_path / "c")]) == 2
    assert capsys.readouterr().err.startswith("decoct: The Dask scheduler stopped")
    assert not (tmp_path / "c").exists()
