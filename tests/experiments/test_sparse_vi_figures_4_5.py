"""Figures 4 and 5 of the sparse variational inference paper, and the runs behind them."""

import numpy as np
import pytest
import scipy.stats

import decoct
from decoct.constructions import SparseVI
from decoct.samplers import Laplace
from decoct.solvers import GIGA
from decoct.solvers.base import Budget
from decoct.solvers.nnls import UnitVectors
from decoct.stats import Gaussian
from experiments import common
from experiments.sparse_vi import (
    figure_4,
    figure_5,
    regression_methods,
    regression_problems,
    regression_runs,
)
from experiments.sparse_vi.regression_problems import Regression, Weights

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def regression():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(80, 1)), np.ones(80)])
    rows = {"x": x, "y": (rng.random(80) < 1.0 / (1.0 + np.exp(-x[:, 0]))).astype(float)}
    model = decoct.models.LogisticRegression()
    full = decoct.laplace(model, rows)
    return Regression(model, rows, full, decoct.kl_gaussian(Gaussian(np.zeros(2), np.eye(2)), full))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The results of a quick run."""
    output = tmp_path_factory.mktemp("results")
    regression_runs.main(["--quick", "--output", str(output)])
    return output


@pytest.fixture
def table(folder):
    return common.read_csv(folder / "quick" / "regression_runs.csv")


def run(trial, rows, fraction, cpu, M=10):
    return {
        "set": "ds1", "method": "uniform", "trial": str(trial), "M": str(M), "rows": str(rows),
        "kl_fraction": str(fraction), "cpu_s": str(cpu),
    }  # fmt: skip


def test_summary_has_medians_and_quartiles():
    trials = [(9, 0.1, 4.0), (7, 0.5, 1.0), (8, 0.2, 2.0), (8, 0.3, 3.0), (8, 0.4, 5.0)]
    results = [run(i, *one) for i, one in enumerate(trials)]
    (first, second) = figure_4.summary([run(0, 20, 0.01, 9.0, M=20), *results])
    assert (first["M"], first["trials"], second["M"], second["trials"]) == (10, 5, 20, 1)
    assert (first["rows_low"], first["rows"], first["rows_high"]) == (8, 8, 8)
    found = (first["kl_fraction_low"], first["kl_fraction"], first["kl_fraction_high"])
    assert found == (0.2, 0.3, 0.4)
    assert (first["cpu_s_low"], first["cpu_s"], first["cpu_s_high"]) == (2.0, 3.0, 4.0)


def test_a_realistic_guess_is_between_prior_and_posterior_and_noisy():
    """Of this π the first variance is the prior's and the second ends at 0: U can be read off."""
    full, rng = Gaussian(np.array([3.0, -4.0]), np.diag([1.0, 0.0])), np.random.default_rng(0)
    guesses = [regression_problems.realistic(full, rng) for _ in range(2000)]
    scales = np.array([one.cov[0, 0] for one in guesses])
    shares = 1.0 - np.array([one.cov[1, 1] for one in guesses]) / scales
    means = np.stack([one.mean for one in guesses])
    noise = (means - shares[:, None] * full.mean) / (0.75 * 5.0 * shares[:, None])
    assert scipy.stats.kstest(shares, "uniform").pvalue > 1e-3
    assert scipy.stats.kstest(-np.log(scales) / 1.5, "halfnorm").pvalue > 1e-3
    assert scipy.stats.kstest(noise.ravel(), "norm").pvalue > 1e-3


def test_kl_is_that_of_the_prior_without_rows_and_zero_with_all(regression):
    everything = Weights(np.arange(80), np.ones(80))
    nothing = Weights(np.zeros(1, dtype=np.int64), np.zeros(1))
    assert regression.kl(everything) == pytest.approx(0.0, abs=1e-12)
    assert regression.kl(nothing) == regression.prior_kl
    doubled = Weights(np.arange(80), np.where(np.arange(80) < 40, 2.0, 0.0))
    assert 0.0 < regression.kl(doubled) < regression.prior_kl


def test_one_watched_build_has_the_weights_of_a_build_for_each_m(regression):
    built = regression_methods.build(regression, "sparse_vi", (2, 5, 14), seed=3, steps=1)
    method = SparseVI(draws=regression_methods.DRAWS)
    for one in built:
        alone = decoct.build(
            regression.model, regression.rows, size=one.M, method=method, sampler=Laplace(),
            seed=3,
        )  # fmt: skip
        np.testing.assert_array_equal(one.selected.indices, alone.indices)
        np.testing.assert_allclose(one.selected.weights, alone.weights, rtol=1e-9)
    assert 0.0 < built[0].cpu < built[1].cpu < built[2].cpu


def test_a_build_that_ends_early_takes_the_seconds_of_its_last_iteration(monkeypatch):
    clock = iter(range(1, 1000))
    monkeypatch.setattr(regression_methods.time, "process_time", lambda: float(next(clock)))
    watch = regression_methods.IterationWatch(GIGA())
    # two rows give the target exactly, so that there are two iterations
    problem = UnitVectors.scaled(np.eye(2), np.array([2.0, 1.0]))
    watch.solve(problem, Budget((1, 2, 9)), np.random.default_rng(0))
    assert [watch.after(M) for M in (1, 2, 9)] == [1.0, 2.0, 3.0]


def test_the_published_algorithm_has_fewer_trials_and_picks():
    settings = regression_runs.Settings(3, 1, sizes=(10, 50, 100), published_picks=60)
    assert [settings.trials_of(one) for one in ("uniform", "published")] == [3, 1]
    assert settings.sizes_of("uniform") == (10, 50, 100)
    assert settings.sizes_of("published") == (10, 50)


@pytest.mark.data
def test_every_method_has_its_rows(table):
    quick = regression_runs.QUICK
    expected = {
        (name, method, trial, M)
        for name in regression_problems.QUICK_SETS
        for method in regression_methods.METHODS
        for trial in range(quick.trials_of(method))
        for M in quick.sizes_of(method)
    }
    keys = [regression_runs._key(one) for one in table]
    assert len(keys) == len(expected)
    assert set(keys) == expected
    for one in table:
        assert 0 <= int(one["rows"]) <= int(one["M"])
        assert float(one["kl"]) > 0.0
        assert float(one["cpu_s"]) > 0.0
        prior_kl = regression_problems.load(one["set"]).prior_kl
        assert float(one["kl_fraction"]) == pytest.approx(float(one["kl"]) / prior_kl, rel=1e-5)


@pytest.mark.data
def test_the_weaker_methods_are_where_the_paper_has_them(table):
    found = {
        (row["set"], row["method"]): row["kl_fraction"]
        for row in figure_4.summary(table)
        if row["M"] == 10
    }
    for name in regression_problems.QUICK_SETS:
        assert found[name, "sparse_vi"] < 0.1 * found[name, "giga_optimal"]
        assert found[name, "giga_optimal"] < found[name, "giga_realistic"]
        assert found[name, "giga_optimal"] < 0.1 * found[name, "uniform"]


@pytest.mark.data
def test_a_run_that_is_started_again_does_what_is_missing(folder, table, tmp_path):
    quick = tmp_path / "quick"
    kept = [one for one in table if (one["method"], one["trial"]) != ("giga_realistic", "1")]
    common.write_csv(quick / "regression_runs.csv", kept)
    regression_runs.main(["--quick", "--output", str(tmp_path)])
    again = common.read_csv(quick / "regression_runs.csv")
    assert again[: len(kept)] == kept

    def without_times(rows):
        return sorted(tuple(v for k, v in one.items() if k != "cpu_s") for one in rows)

    assert without_times(again) == without_times(table)


@pytest.mark.data
def test_runs_of_other_seeds_do_not_mix(folder, table):
    with pytest.raises(SystemExit, match="with seed 0, not 1"):
        regression_runs.main(["--quick", "--output", str(folder), "--seed", "1"])


@pytest.mark.data
def test_figures_draw_the_runs_without_repeating_them(folder, table, monkeypatch):
    monkeypatch.setattr(regression_runs, "build", None)
    for module in (figure_4, figure_5):
        module.main(["--quick", "--output", str(folder)])
    quick = folder / "quick"
    for name in ("figure_4_picks", "figure_4_rows", "figure_5"):
        assert (quick / f"{name}.png").read_bytes().startswith(PNG)
    drawn = common.read_csv(quick / "figure_4.csv")
    assert {one["method"] for one in drawn} == set(regression_methods.METHODS)
    for one in drawn:
        for column in ("rows", "kl_fraction", "cpu_s"):
            low, middle, high = (float(one[f"{column}{end}"]) for end in ("_low", "", "_high"))
            assert 0.0 <= low <= middle <= high


def test_unknown_names_are_refused(capsys):
    with pytest.raises(SystemExit):
        regression_runs.main(["--quick", "--methods", "iris"])
    assert "known are uniform" in capsys.readouterr().err
