"""Figures 1 and 3 of the DPGMM coresets paper, in their quick form, and what is made of runs."""

import numpy as np
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from experiments.common import read_csv
from experiments.dpgmm import figure_1, figure_3, fits, sets

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The results of quick runs."""
    output = tmp_path_factory.mktemp("results")
    figure_1.main(["--quick", "--output", str(output)])
    figure_3.main(["--quick", "--output", str(output)])
    return output


@pytest.mark.parametrize("name", ["figure_1", "quick/figure_3a", "quick/figure_3b"])
def test_every_picture_is_written(folder, name):
    assert (folder / f"{name}.png").read_bytes().startswith(PNG)


def test_figure_1_has_its_ellipses_and_errors(folder):
    table = read_csv(folder / "figure_1.csv")
    full, *others = table
    assert full["method"] == fits.FULL
    assert int(full["rows"]) == figure_1.QUICK_ROWS
    assert float(full["relative_error"]) == 0.0
    assert [(one["method"], int(one["trial"])) for one in others] == [
        (method, trial)
        for trial in range(figure_1.QUICK_TRIALS)
        for method in (fits.CORESET, fits.UNIFORM)
    ]
    for one in others:
        assert int(one["rows"]) <= figure_1.SHARE * figure_1.QUICK_ROWS
        assert 0 < int(one["groups"]) < int(full["groups"])
        assert 0.0 < float(one["relative_error"]) < 1.0
    shapes = read_csv(folder / "figure_1_ellipses.csv")
    assert {one["method"] for one in shapes} == {fits.FULL, fits.CORESET, fits.UNIFORM}
    for one in shapes:
        c00, c01, c11 = (float(one[name]) for name in ("c00", "c01", "c11"))
        assert c00 > 0.0
        assert c00 * c11 > c01**2
    for method in (fits.FULL, fits.CORESET, fits.UNIFORM):
        held = sum(float(one["rows"]) for one in shapes if one["method"] == method)
        assert held == pytest.approx(figure_1.QUICK_ROWS, rel=0.35)


@pytest.mark.parametrize(("reading", "file"), [("inverse", ""), ("printed", "_printed")])
def test_figure_3_has_every_run(folder, reading, file):
    table = read_csv(folder / "quick" / f"runs_rare{file}.csv")
    assert {float(one["covariance_prior"]) for one in table} == {fits.READINGS[reading]}
    N = round(0.8 * figure_3.QUICK_ROWS)
    sizes = [round(share * N) for share in figure_3.QUICK_SHARES]
    wanted = [(fits.FULL, N)]
    wanted += [(method, size) for size in sizes for method in (fits.CORESET, fits.UNIFORM)]
    assert [(one["run"], one["method"], int(one["M"])) for one in table] == [
        (str(run), *one) for run in range(figure_3.QUICK_TRIALS) for one in wanted
    ]
    for one in table:
        assert int(one["test_rows"]) == figure_3.QUICK_ROWS - N
        assert (one["normalised_entropy"] != "") == (one["method"] == fits.CORESET)
        assert int(one["iterations"]) <= 100
        assert float(one["seconds"]) > 0.0
    drawn = read_csv(folder / "quick" / "figure_3.csv")
    drawn = [one for one in drawn if one["reading"] == reading]
    assert [(one["method"], int(one["M"]), int(one["runs"])) for one in drawn] == [
        (method, size, 2) for method in (fits.CORESET, fits.UNIFORM) for size in sizes
    ]
    for method in (fits.CORESET, fits.UNIFORM):
        small, large = (float(one["error"]) for one in drawn if one["method"] == method)
        assert 0.0 < large < small


def test_a_finished_run_is_not_repeated_and_a_cut_one_goes_on(folder, tmp_path, monkeypatch):
    before = (folder / "quick" / "runs_rare.csv").read_text()
    lines = before.splitlines(keepends=True)
    (tmp_path / "quick").mkdir()
    printed = "runs_rare_printed.csv"
    (tmp_path / "quick" / printed).write_text((folder / "quick" / printed).read_text())
    cut = tmp_path / "quick" / "runs_rare.csv"
    cut.write_text("".join(lines[:-1]))
    figure_3.main(["--quick", "--output", str(tmp_path)])
    again = read_csv(cut)[-1]
    lost = read_csv(folder / "quick" / "runs_rare.csv")[-1]
    for column in set(lost) - {"seconds"}:
        assert again[column] == lost[column]
    monkeypatch.setattr(figure_3, "fit", None)
    figure_3.main(["--quick", "--output", str(folder)])
    assert (folder / "quick" / "runs_rare.csv").read_text() == before
    with pytest.raises(SystemExit, match=r"runs of T 20, not 19"):
        figure_3.main(["--quick", "--output", str(folder), "--components", "19"])


def run(split, method, M, log_probability, seconds, covariance_prior="10"):
    return {
        "set": "rare", "split": split, "method": method, "M": M, "N": "1000",
        "log_probability": log_probability, "seconds": seconds,
        "covariance_prior": covariance_prior,
    }  # fmt: skip


def test_errors_and_speed_ups_are_against_the_full_fit_of_the_split():
    table = [
        run("0", "full", "1000", "-100", "8"),
        run("1", "full", "1000", "50", "6"),
        run("0", "coreset", "20", "-110", "2"),
        run("1", "coreset", "20", "65", "1"),
        run("1", "coreset", "20", "60", "0.006"),
        run("2", "coreset", "20", "7", "1"),  # a split without a full fit
        run("0", "full", "1000", "-10", "9", "0.1"),
        run("0", "coreset", "20", "-15", "3", "0.1"),
    ]
    found = figure_3.relative(table)
    pairs = [(one["error"], one["speedup"]) for one in found]
    assert pairs == [(0.1, 4.0), (0.3, 6.0), (0.2, 1000.0), (0.5, 3.0)]
    row, printed = figure_3.summary(found)
    assert (row["reading"], printed["reading"]) == ("inverse", "printed")
    assert (printed["error"], printed["runs"]) == (0.5, 1)
    assert (row["M"], row["percent"], row["n_over_m"]) == (20, 2.0, 50.0)
    assert (row["runs"], row["splits"]) == (3, 2)
    assert row["error"] == pytest.approx(0.2)
    # Student's t with two degrees of freedom: 4.303 standard errors
    assert row["error_high"] - row["error"] == pytest.approx(4.30265 * 0.1 / 3**0.5, rel=1e-4)
    # a median does not ask how far off the last one is
    assert (row["speedup_low"], row["speedup"], row["speedup_high"]) == (5.0, 6.0, 503.0)


def test_hyper_parameters_are_the_paper_s():
    mixture = fits.Settings().mixture(n=5000, dim=7, seed=3)
    assert mixture.n_components == 100
    assert mixture.mean_precision_prior == 0.8
    assert mixture.degrees_of_freedom_prior == 7
    assert mixture.weight_concentration_prior == 5.0
    assert mixture.covariance_prior == 10.0
    printed = fits.Settings(covariance_prior=fits.READINGS[fits.PRINTED])
    assert printed.mixture(n=5000, dim=7, seed=3).covariance_prior == 0.1
    np.testing.assert_array_equal(mixture.mean_prior, np.zeros(7))
    assert mixture.weight_concentration_prior_type == "dirichlet_process"


def test_uniform_rows_stand_for_all_rows():
    x = np.random.default_rng(0).normal(size=(500, 2))
    settings = fits.Settings(components=3, iterations=5)
    uniform = fits.fit(fits.UNIFORM, x, 40, 1, settings)
    assert len(uniform.picked) <= 40
    counts = uniform.mixture.degrees_of_freedom_ - uniform.mixture.degrees_of_freedom_prior_
    assert counts.sum() == pytest.approx(500.0)
    coreset = fits.fit(fits.CORESET, x, 40, 1, settings)
    np.testing.assert_array_equal(coreset.picked, coreset.mixture.coreset_.indices)
    assert fits.fit(fits.FULL, x, 40, 1, settings).picked is None


def test_restaurants_have_as_many_tables_as_they_should():
    rng = np.random.default_rng(0)
    seated = [sets.chinese_restaurant(rng, 200, 3.0) for _ in range(400)]
    chance = 3.0 / (3.0 + np.arange(200))
    tables = np.array([one.max() + 1 for one in seated])
    error = np.sqrt((chance * (1 - chance)).sum() / 400)
    assert abs(tables.mean() - chance.sum()) < 4 * error
    # two guests share a table with probability 1/(1 + α), whichever they are
    together = np.mean([one[37] == one[150] for one in seated])
    assert abs(together - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 400)
    assert all(set(one) == set(range(one.max() + 1)) for one in seated)


def test_the_rare_components_are_rare_and_the_coreset_s_draws_seek_them():
    x = sets.load("rare")
    assert x.shape == (sets.RARE_ROWS, sets.RARE_DIM)
    far = np.linalg.norm(x, axis=1) > 30.0
    share = sets.RARE_GROUPS * sets.RARE_SHARE
    assert abs(far.mean() - share) < 4 * np.sqrt(share / len(x))
    squares = np.square(x - x.mean(axis=0)).sum(axis=1)
    assert 0.5 * far.mean() + 0.5 * squares[far].sum() / squares.sum() > 0.5
    train, test = sets.split(x, 4)
    assert len(test) == 10_000
    assert len(train) == 40_000
    both = np.concatenate([train, test])
    np.testing.assert_array_equal(np.sort(both[:, 0]), np.sort(x[:, 0]))
    assert not np.array_equal(sets.split(x, 5)[1], test)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("protein_homology", (145_751, 74)),
        ("fashion_mnist", (70_000, 10)),
        ("flights", (200_000, 3)),
    ],
)
def test_real_sets_are_whole_and_on_one_scale(name, shape):
    x = sets.load(name)
    assert x.shape == shape
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(x.std(axis=0), 1.0, rtol=1e-9)


def test_unknown_names_are_refused(capsys):
    with pytest.raises(SystemExit):
        figure_3.main(["--quick", "--sets", "iris"])
    assert "protein_homology" in capsys.readouterr().err
