"""Figures 2 and 3 of Campbell & Beronov (2019), in their quick form."""

import numpy as np
import pytest

from experiments.common import read_csv
from experiments.sparse_vi import figure_2, figure_3, gaussian_runs, map_regression
from experiments.sparse_vi.results_file import ResultsFile

PNG = b"\x89PNG\r\n\x1a\n"
QUARTILES = [f"{way}_{name}" for way in ("reverse", "forward") for name in ("q25", "median", "q75")]


@pytest.fixture(scope="module")
def gaussian(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figure_2")
    figure_2.main(["--quick", "--output", str(folder)])
    return folder


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figure_3")
    figure_3.main(["--quick", "--output", str(folder)])
    return folder


@pytest.fixture(scope="module")
def regression():
    """Prices that nobody paid, at few places."""
    rng = np.random.default_rng(0)
    places = rng.uniform([50.0, -3.0], [54.0, 1.0], size=(40, 2))[rng.integers(40, size=300)]
    y = 5.0 + 0.1 * (places[:, 0] - 52.0) + 0.3 * rng.standard_normal(300)
    data = map_regression.Table("here", "Here", "log10 of the price", places, y)
    return data, map_regression.Regression.of(data, seed=1, number=0, n=200, each=3)


def medians(table):
    return {(row["method"], int(row["M"])): float(row["reverse_median"]) for row in table}


def test_figure_2_has_every_method_and_what_it_cost(gaussian):
    for name in ("figure_2_a", "figure_2_b"):
        assert (gaussian / f"{name}.png").read_bytes().startswith(PNG)
    table = read_csv(gaussian / "figure_2_a.csv")
    methods = {method.name: method for method in figure_2.quick(figure_2.METHODS)}
    expected = {
        (name, m) for name, method in methods.items() for m in method.sizes(figure_2.QUICK_SIZES)
    }
    assert set(medians(table)) == expected | {("prior", 0)}
    for row in table:
        assert int(float(row["rows"])) <= int(row["M"])
        for low, middle, high in (QUARTILES[:3], QUARTILES[3:]):
            assert 0.0 <= float(row[low]) <= float(row[middle]) <= float(row[high])
        if row["method"] != "prior":
            most = methods[row["method"]].trials or figure_2.QUICK_TRIALS
            assert int(row["trials"]) == min(most, figure_2.QUICK_TRIALS)
            assert float(row["path_cpu_s"]) >= 0.0


def test_sparse_vi_goes_on_where_a_fixed_tangent_plane_ends(gaussian):
    found = medians(read_csv(gaussian / "figure_2_a.csv"))
    exact, giga = "SparseVI, exact", "GIGA, optimal π̂"
    assert found[exact, 20] < 1e-3 * found[giga, 20]
    # d + 1 = 21 rows can carry the posterior exactly
    assert found[exact, 30] < 1e-10
    assert found[exact, 30] < 1e-6 * found["SparseVI, exact, published steps", 30]
    assert found["SparseVI, 100 draws", 20] < 1e-2 * found[giga, 20]
    for practical in ("GIGA, realistic π̂", "uniform"):
        assert found[practical, 30] > found[giga, 30]


def test_exchanges_fill_the_size_better(gaussian):
    table = read_csv(gaussian / "figure_2_a.csv")
    name = "SparseVI, exact, 2M picks"
    rows = {int(row["M"]): float(row["rows"]) for row in table if row["method"] == name}
    assert set(rows) == set(figure_2.QUICK_SIZES) & set(gaussian_runs.EXCHANGED)
    assert all(kept <= m for m, kept in rows.items())
    found = medians(table)
    assert found[name, 20] < found["SparseVI, exact", 20]


def test_plain_steps_never_come_back_from_the_first(gaussian):
    found = medians(read_csv(gaussian / "figure_2_a.csv"))
    stuck = "SparseVI, exact, steps as in print"
    assert found[stuck, 20] > 0.9 * found[stuck, 1]
    assert found["SparseVI, exact, published steps", 20] < 1e-3 * found[stuck, 20]


def test_panels_show_the_posteriors_and_the_rows(gaussian):
    table = read_csv(gaussian / "figure_2_b.csv")
    trial = figure_2.trial_of(0, 0, figure_2.QUICK_N, figure_2.QUICK_DIM)
    for m in figure_2.QUICK_SHOWN:
        rows = [one for one in table if one["M"] == str(m) and one["what"] == "row"]
        (circle,) = (one for one in table if one["M"] == str(m) and one["what"] == "posterior")
        assert len(rows) <= m
        total = sum(float(one["size"]) for one in rows)
        assert float(circle["size"]) == pytest.approx(1.0 / np.sqrt(1.0 + total), rel=1e-4)
        x0 = sum(float(one["size"]) * float(one["x0"]) for one in rows) / (1.0 + total)
        assert float(circle["x0"]) == pytest.approx(x0, rel=1e-3, abs=1e-4)
        for one in rows:
            assert np.abs(trial.rows["x"][:, 0] - float(one["x0"])).min() < 1e-4


def test_runs_that_are_started_again_do_what_is_missing(tmp_path):
    trials = [figure_2.trial_of(0, number, 40, 3) for number in range(2)]
    file = ResultsFile(tmp_path / "runs.csv", 0)
    first = gaussian_runs.measured("here", [gaussian_runs.OURS], trials[:1], (1, 3), file)
    assert [one["M"] for one in file.rows()] == ["1", "3"]
    both = gaussian_runs.measured("here", [gaussian_runs.OURS], trials, (1, 3), file)
    assert [(one["trial"], one["M"]) for one in file.rows()] == [
        ("0", "1"), ("0", "3"), ("1", "1"), ("1", "3")
    ]  # fmt: skip
    known = gaussian_runs.OURS._replace(construction=None)
    again = gaussian_runs.measured("here", [known], trials, (1, 3), file)
    assert [one["trials"] for one in both] == [2, 2, 2]
    for mine, theirs in zip(again, both, strict=True):
        assert mine["reverse_median"] == pytest.approx(theirs["reverse_median"], rel=1e-5)
    assert first[1]["reverse_median"] != both[1]["reverse_median"]
    with pytest.raises(SystemExit, match="with seed 0, not 5"):
        gaussian_runs.measured("here", [known], trials, (1, 3), ResultsFile(file.path, 5))


def test_rows_are_those_of_the_papers_generator():
    trial = figure_2.trial_of(0, 7, 60, 5)
    expected = np.random.RandomState(7).multivariate_normal(np.ones(5), np.eye(5), 60)
    np.testing.assert_array_equal(trial.rows["x"], expected)


def test_kl_of_the_prior_is_that_of_eq_20():
    trial = figure_2.trial_of(3, 1, 50, 4)
    mean, precision = trial.rows["x"].sum(axis=0) / 51.0, 51.0
    reverse = 0.5 * (4 * (precision - 1.0 - np.log(precision)) + precision * mean @ mean)
    forward = 0.5 * (4 * (1.0 / precision - 1.0 + np.log(precision)) + mean @ mean)
    np.testing.assert_allclose(trial.kl(trial.prior), (reverse, forward), rtol=1e-10)


def test_the_realistic_weighting_has_the_noise_of_the_paper():
    trial = figure_2.trial_of(0, 0, 30, 10)
    rng = np.random.default_rng(0)
    drawn = [gaussian_runs.noisy(trial, rng) for _ in range(2000)]
    # m = Uμ with E U² = 1/3, and noise of 0.75‖m‖ in each of ten coordinates
    squares = np.array([np.square(one.mean).sum() for one in drawn])
    expected = (1.0 + 10 * 0.75**2) / 3.0 * np.square(trial.full.mean).sum()
    assert squares.mean() == pytest.approx(expected, abs=5.0 * squares.std() / np.sqrt(2000))
    # Σ̂ = exp(−1.5|ζ|)(U/31 + 1 − U) I: its logarithm is a sum of two independent terms
    logs = np.log([one.cov[0, 0] for one in drawn])
    mixture = np.log(1.0 - rng.random(100_000) * (1.0 - 1.0 / 31.0)).mean()
    expected = -1.5 * np.sqrt(2.0 / np.pi) + mixture
    assert logs.mean() == pytest.approx(expected, abs=5.0 * logs.std() / np.sqrt(2000))
    assert all(np.array_equal(one.cov, one.cov[0, 0] * np.eye(10)) for one in drawn[:5])


def test_noise_is_relative_to_the_mean_of_the_papers_parameters():
    here = figure_2.trial_of(0, 0, 30, 10)
    far = gaussian_runs.Trial(here.model, here.rows, np.full(10, 100.0), here.seed)
    rng = np.random.default_rng(0)
    means = np.array([gaussian_runs.noisy(far, rng).mean for _ in range(500)])
    assert np.abs(means.mean(axis=0)).max() < 5.0 * 240.0 / np.sqrt(500)
    assert means.std() == pytest.approx(0.75 * 100.0 * np.sqrt(10.0), rel=0.05)


def test_regression_has_the_posterior_of_eq_23(regression):
    data, one = regression
    x = one.bases.at(one.places)
    y = one.trial.rows["y"] + data.y.mean() * x.sum(axis=1)
    noise, spread = data.y.var(), np.mean(data.y**2)
    precision = np.eye(19) / spread + x.T @ x / noise
    alpha = np.linalg.solve(precision, data.y.mean() / spread + x.T @ y / noise)
    np.testing.assert_allclose(one.trial.full.mean + data.y.mean(), alpha, rtol=1e-6)
    np.testing.assert_allclose(one.trial.full.cov @ precision, np.eye(19), atol=1e-6)
    surface = one.surface(one.trial.full.mean, one.places)
    np.testing.assert_allclose(surface, x @ alpha, rtol=1e-8)
    assert np.square(y - surface).mean() < noise


def test_bases_are_at_rows_and_the_last_is_nearly_constant(regression):
    data, one = regression
    scales, centres = one.bases.scales, one.bases.centres
    np.testing.assert_array_equal(np.unique(scales), [0.2, 0.4, 0.8, 1.2, 1.6, 2.0, 100.0])
    assert all((data.places == centre).all(axis=1).any() for centre in centres[:-1])
    np.testing.assert_allclose(np.diag(one.bases.at(centres)), 1.0)
    x = one.bases.at(one.places)
    assert x[:, -1].min() > 0.999
    k = 7
    distance = np.linalg.norm(one.places - centres[k], axis=1)
    np.testing.assert_allclose(x[:, k], np.exp(-0.5 * (distance / scales[k]) ** 2))


def test_maps_are_coloured_near_rows_only(regression):
    places = regression[1].places
    grid = map_regression.Grid.over(places, 0.25)
    assert len(grid.places) == len(grid.lat) * len(grid.lon)
    nearest = np.linalg.norm(grid.places[:, None] - places[None], axis=2).min(axis=1)
    np.testing.assert_array_equal(grid.near, nearest <= map_regression.NEAR)
    assert 0 < grid.near.sum() < len(grid.near)


def test_areas_are_in_proportion_to_weights():
    np.testing.assert_allclose(gaussian_runs.areas(np.array([1.0, 3.0]), 100.0), [25.0, 75.0])


@pytest.mark.data
def test_figure_3_has_its_maps_and_its_numbers(houses):
    assert (houses / "figure_3_a.png").read_bytes().startswith(PNG)
    assert (houses / "figure_3_ukprices_2018.png").stat().st_size > 50_000
    found = medians(read_csv(houses / "figure_3_a.csv"))
    largest = figure_3.QUICK_SIZES[-1]
    ours = found["SparseVI, exact", largest]
    for other in ("GIGA, optimal π̂", "GIGA, realistic π̂", "uniform"):
        assert ours < 0.5 * found[other, largest]
    rows = read_csv(houses / "figure_3_rows.csv")
    for m in figure_3.QUICK_SIZES:
        assert 0 < sum(one["M"] == str(m) for one in rows) <= m
    assert {one["set"] for one in rows} == set(figure_3.QUICK_SETS)


@pytest.mark.data
@pytest.mark.parametrize("name", figure_3.SETS)
def test_tables_are_log_prices_on_a_map(name):
    data = map_regression.read(name)
    assert data.places.shape == (len(data.y), 2)
    assert 30.0 < data.places[:, 0].min() < data.places[:, 0].max() < 62.0
    assert 4.9 < np.median(data.y) < 5.6
