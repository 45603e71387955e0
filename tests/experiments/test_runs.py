"""The runs behind Figures 3 to 9 of Campbell & Broderick (2019), and what is made of them."""

import csv
import importlib

import numpy as np
import pytest

from decoct.mixture import VonMisesFisherMixture
from decoct.solvers.base import Budget
from decoct.solvers.nnls import UnitVectors
from experiments import common
from experiments.hilbert import figure_5, methods, pictures, runs, sets

NUMBERS = ("rows", "build_seconds", "sample_seconds", "nll", "wasserstein")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The results of a quick run."""
    output = tmp_path_factory.mktemp("results")
    runs.main(["--quick", "--output", str(output)])
    return output


@pytest.fixture
def table(folder):
    return runs.read(folder / "quick")


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, runs.FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def row(method, trial: int | str = 0, M=0, **values):
    return {"set": "synth_lr", "method": method, "trial": str(trial), "M": str(M), **values}


def run(method, trial, M, build, sample, nll, distance):
    return row(
        method, trial, M, build_seconds=build, sample_seconds=sample, nll=nll, wasserstein=distance
    )


BY_HAND = [
    row("best", nll="0.1"),
    row("full", 0, 9000, sample_seconds="10", nll="0.28"),
    row("full", 1, 9000, sample_seconds="20", nll="0.30"),
    row("full", 2, 9000, sample_seconds="30", nll="0.40"),
    row("pair", "0-1", wasserstein="2"),
    row("pair", "0-2", wasserstein="3"),
    row("pair", "1-2", wasserstein="7"),
    run("Rand", 0, 10, "0", "1", "1.1", "30"),
    run("Rand", 1, 10, "0", "3", "2.1", "60"),
    run("Rand", 2, 10, "0", "2", "1.6", "90"),
    run("FW-F", 0, 10, "3", "7", "0.5", "6"),
    run("FW-F", 1, 10, "4", "1", "0.2", "12"),
]


def test_errors_and_times_are_one_for_the_full_posterior():
    found = pictures.relative_to_full(BY_HAND)
    first = next(one for one in found if one["method"] == "FW-F" and one["trial"] == 0)
    # (0.5 − 0.1)/(0.3 − 0.1), 6/3, (3 + 7)/20
    assert first["nll"] == pytest.approx(2.0)
    assert first["wasserstein"] == pytest.approx(2.0)
    assert first["seconds"] == pytest.approx(0.5)
    assert {one["method"] for one in found} == {"Rand", "FW-F"}


def test_everything_is_relative_to_random_rows_in_figure_6():
    found = pictures.relative_to_random(BY_HAND)
    first = next(one for one in found if one["method"] == "FW-F" and one["trial"] == 0)
    # (0.5 − 0.1)/(1.6 − 0.1), 6/60, (3 + 7)/2
    assert first["nll"] == pytest.approx(0.4 / 1.5)
    assert first["wasserstein"] == pytest.approx(0.1)
    assert first["seconds"] == pytest.approx(5.0)


def test_summary_has_medians_and_quartiles():
    rand, frank_wolfe = pictures.summary(pictures.relative_to_full(BY_HAND))
    assert (rand["method"], rand["M"], rand["trials"]) == ("Rand", 10, 3)
    assert (rand["wasserstein_low"], rand["wasserstein"], rand["wasserstein_high"]) == (15, 20, 25)
    assert frank_wolfe["seconds"] == pytest.approx((0.5 + 0.25) / 2)


def test_labels_of_clusters_make_no_difference():
    data, rng = sets.load("synth_vmf"), np.random.default_rng(0)
    assert isinstance(data.model, VonMisesFisherMixture)
    modes = rng.normal(size=(20, 6, 3))
    modes /= np.linalg.norm(modes, axis=2, keepdims=True)
    weights = rng.dirichlet(np.ones(6), size=20)
    z = data.model.to_unconstrained(modes, weights, rng)
    np.testing.assert_allclose(sets.mixtures(z)[0], modes, atol=1e-12)
    np.testing.assert_allclose(sets.mixtures(z)[1], weights, atol=1e-12)
    order = rng.permutation(6)
    swapped = data.model.to_unconstrained(modes[:, order], weights[:, order], rng)
    same, other = data.comparable(z), data.comparable(swapped)
    np.testing.assert_allclose(same, other, atol=1e-12)
    # matched with the poles, the sum of cosines is at least that of any one order
    cosines = np.einsum("skd,kd->s", same[:, :18].reshape(20, 6, 3), sets.POLES)
    assert (cosines >= np.einsum("skd,kd->s", modes, sets.POLES) - 1e-12).all()


def test_test_rows_are_whitened_like_training_rows():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal([5.0, -1.0], [2.0, 0.1], size=(400, 2)), np.ones(400)])
    whiten = sets.whitening(x)
    white = whiten(x)
    np.testing.assert_allclose(white.mean(axis=0), [0.0, 0.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(np.cov(white[:, :-1], rowvar=False), np.eye(2), atol=1e-12)
    np.testing.assert_allclose(whiten(x[:7]), white[:7], atol=1e-12)


def test_a_smaller_build_takes_the_seconds_up_to_its_last_iteration(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr(methods.time, "perf_counter", lambda: float(next(clock)))
    watch = methods.Stopwatch(methods.SOLVERS["FW-F"][0])
    vectors = np.random.default_rng(0).normal(size=(50, 8)) + 1.0
    problem = UnitVectors.scaled(vectors, vectors.sum(axis=0))
    watch.solve(problem, Budget((3, 10)), np.random.default_rng(0))
    # the clock ticks once at the start, after each of ten iterations, and at the end
    assert watch.seconds == [float(i) for i in range(1, 11)]
    assert [watch.after(M) for M in (3, 10, 11)] == [8.0, 1.0, 0.0]


def test_poles_are_far_from_the_edges_of_the_map():
    east, north = figure_5.map_of(sets.POLES)
    np.testing.assert_allclose(np.abs(np.degrees(north)), 35.264, atol=1e-3)
    np.testing.assert_allclose(np.diff(np.sort(np.degrees(east))), 60.0, atol=1e-9)
    assert np.abs(np.degrees(east)).max() == pytest.approx(150.0)


@pytest.mark.data
def test_every_method_has_its_rows(table):
    keys = [runs._key(one) for one in table]
    assert len(keys) == len(set(keys))
    for name in runs.QUICK_SETS:
        own = [one for one in table if one["set"] == name]
        assert sum(one["method"] == "full" for one in own) == 2
        assert [one["trial"] for one in own if one["method"] == "pair"] == ["0-1"]
        (best,) = (float(one["nll"]) for one in own if one["method"] == "best")
        for method in methods.NAMES:
            done = [one for one in own if one["method"] == method]
            suits = methods.suits(method, sets.family_of(name))
            assert [int(one["M"]) for one in done] == ([10, 50] if suits else [])
            for one in done:
                assert all(np.isfinite(float(one[column])) for column in NUMBERS)
                assert int(one["rows"]) <= int(one["M"])
                assert float(one["nll"]) > best
                assert float(one["wasserstein"]) > 0.0


@pytest.mark.data
def test_a_run_that_is_started_again_does_what_is_missing(folder, table, tmp_path):
    lost = [one for one in table if (one["set"], one["method"]) == ("synth_lr", "FW-2")]
    quick = tmp_path / "quick"
    quick.mkdir()
    write(quick / "runs.csv", [one for one in table if one not in lost])
    (quick / "runs_full").symlink_to(folder / "quick" / "runs_full")
    runs.main(["--quick", "--output", str(tmp_path), "--workers", "1"])
    again = runs.read(quick)
    assert len(again) == len(table)
    assert again[: -len(lost)] == [one for one in table if one not in lost]
    for before, after in zip(lost, again[-len(lost) :], strict=True):
        for column in ("set", "method", "trial", "M", "rows", "nll", "wasserstein"):
            assert after[column] == before[column]


@pytest.mark.data
def test_a_finished_run_is_not_repeated(folder, table, monkeypatch):
    monkeypatch.setattr(runs, "_sample", None)
    runs.main(["--quick", "--output", str(folder)])
    assert runs.read(folder / "quick") == table


@pytest.mark.data
def test_runs_of_other_lengths_do_not_mix(folder):
    with pytest.raises(SystemExit, match="steps 2000, not 4000"):
        runs.main(["--quick", "--output", str(folder), "--steps", "4000"])


@pytest.mark.data
@pytest.mark.parametrize("number", [3, 4, 5, 6, 7, 8, 9])
def test_figures(folder, number):
    figure = importlib.import_module(f"experiments.hilbert.figure_{number}")
    one_size = ["--sizes", "10"] if number == 5 else []  # a set that is not run yet
    figure.main(["--quick", "--output", str(folder), *one_size])
    assert (folder / "quick" / f"figure_{number}.png").stat().st_size > 20_000
    drawn = common.read_csv(folder / "quick" / f"figure_{number}.csv")
    expected = {"FW-F", "Rand"} if number in (3, 4, 5) else set(figure.METHODS)
    assert {one["method"] for one in drawn} == expected
    for metric in pictures.METRICS:
        for one in drawn:
            low, middle, high = (float(one[f"{metric}{end}"]) for end in ("_low", "", "_high"))
            assert 0.0 < low <= middle <= high


def test_unknown_names_are_refused(capsys):
    with pytest.raises(SystemExit):
        runs.main(["--quick", "--sets", "iris"])
    assert "known are synth_lr" in capsys.readouterr().err
