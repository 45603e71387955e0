"""The kept rows among all rows."""

from __future__ import annotations

import numpy as np
import pytest

import decoct
import decoct.plots
from decoct.constructions import Uniform
from decoct.data import ArrayRows
from decoct.models.formula.model import from_formula

pytest.importorskip("matplotlib")

N, SIZE = 3000, 25


class CountingRows(ArrayRows):
    """Rows that remember how many were taken at once, and refuse to be walked."""

    largest = 0

    def take(self, indices, columns=None):
        self.largest = max(self.largest, len(indices))
        return super().take(indices, columns)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    temp, wind = rng.normal(15.0, 8.0, size=N), rng.gamma(2.0, 4.0, size=N)
    late = rng.random(N) < 1 / (1 + np.exp(-0.1 * (wind - 8.0)))
    port = np.array(["here", "there"], dtype=object)[rng.integers(2, size=N)]
    columns = {"temp": temp, "wind": wind, "late": late.astype(int), "port": port}
    return CountingRows({**columns, "delay": wind + rng.normal(size=N)})


@pytest.fixture(scope="module")
def coreset(table):
    model = from_formula("late ~ temp + wind + C(port)", table, "bernoulli")
    return decoct.build(model, table, size=SIZE, method=Uniform())


def discs(axes):
    """Return the background's and the kept rows' points."""
    behind, kept = [points for points in axes.collections if len(points.get_offsets()) > 0][:2]
    return behind, kept


def test_every_kept_row_is_a_disc_with_its_weight_as_area(table, coreset):
    figure = decoct.plots.kept_rows(coreset, table, sample=500)
    behind, kept = discs(figure.axes[0])
    assert len(behind.get_offsets()) == 500
    assert len(kept.get_offsets()) == coreset.size
    areas, heaviest_first = kept.get_sizes(), np.sort(coreset.weights)[::-1]
    np.testing.assert_allclose(areas / areas.max(), heaviest_first / heaviest_first[0])
    figure.draw_without_rendering()


def test_only_a_sample_of_the_table_is_taken(table, coreset):
    table.largest = 0
    decoct.plots.kept_rows(coreset, table, sample=300)
    assert table.largest == 300


def test_a_small_table_is_shown_whole(table, coreset):
    figure = decoct.plots.kept_rows(coreset, table)
    assert len(discs(figure.axes[0])[0].get_offsets()) == N
    assert "all rows" in figure.axes[0].get_title(loc="left")


def test_the_default_axes_are_the_principal_directions_of_the_design(table, coreset):
    axes = decoct.plots.kept_rows(coreset, table, label=str.upper).axes[0]
    assert axes.get_xlabel().startswith("1st principal direction (")
    assert axes.get_ylabel().startswith("2nd principal direction (")
    assert "TEMP" in axes.get_xlabel() + axes.get_ylabel()
    x = coreset.model.encode(table.take(np.arange(N)))["x"]
    centred = x - x.mean(axis=0)
    spread = np.linalg.svd(centred, compute_uv=False)
    drawn = np.asarray(discs(axes)[0].get_offsets())
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=0), spread[:2], rtol=1e-10)


def test_two_columns_can_be_the_axes(table, coreset):
    axes = decoct.plots.kept_rows(coreset, table, x="temp", y="wind", title="Mine").axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("temp", "wind")
    assert axes.get_title(loc="left") == "Mine"
    kept = np.asarray(discs(axes)[1].get_offsets())
    order = np.argsort(-coreset.weights, kind="stable")
    np.testing.assert_array_equal(kept[:, 0], table.take(coreset.indices[order])["temp"])


def test_a_response_of_few_values_has_a_colour_each(table, coreset):
    axes = decoct.plots.kept_rows(coreset, table).axes[0]
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words[:2] == ["late = 0", "late = 1"]
    assert sum(word.startswith("weight ") for word in words) == 3
    order = np.argsort(-coreset.weights, kind="stable")
    late = table.take(coreset.indices[order])["late"]
    colours = discs(axes)[1].get_facecolors()
    assert len({tuple(colour) for colour in colours[late == 1]}) == 1
    assert len({tuple(colour) for colour in colours}) == 2


def test_a_continuous_response_has_a_colour_bar(table, coreset):
    bar = decoct.plots.kept_rows(coreset, table, response="delay").axes[1]
    assert bar.get_ylabel() == "delay"


def test_arrays_and_a_response_called_y():
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(200, 3)), "y": rng.integers(2, size=200)}
    coreset = decoct.build(decoct.models.LogisticRegression(), rows, size=10, method=Uniform())
    axes = decoct.plots.kept_rows(coreset, rows).axes[0]
    assert axes.get_legend().get_texts()[0].get_text() == "y = 0"


def test_a_model_without_a_response_has_one_colour():
    rows = {"x": np.random.default_rng(0).normal(size=(200, 3))}
    model = decoct.models.GaussianMean(covariance=np.eye(3))
    coreset = decoct.build(model, rows, size=10, method=Uniform())
    axes = decoct.plots.kept_rows(coreset, rows).axes[0]
    assert len(discs(axes)[1].get_offsets()) == coreset.size


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"x": "temp"}, "Give both x= and y="),
        ({"x": "temp", "y": "port"}, "Column 'port' is not one number per row"),
        ({"x": "temp", "y": "rain"}, "no column 'rain'"),
        ({"response": "rain"}, "no column 'rain'"),
        ({"sample": 0}, "sample must be a whole number"),
    ],
)
def test_bad_input_is_told_in_a_sentence(table, coreset, options, sentence):
    with pytest.raises(decoct.DecoctError) as error:
        decoct.plots.kept_rows(coreset, table, **options)
    assert sentence in str(error.value)


def test_where_a_design_has_less_than_two_directions_others_stand_in():
    rows = {"x": np.arange(50.0)[:, None], "y": np.arange(50) % 2}
    coreset = decoct.build(decoct.models.LogisticRegression(), rows, size=5, method=Uniform())
    axes = decoct.plots.kept_rows(coreset, rows).axes[0]
    assert axes.get_xlabel().startswith("1st principal direction (100% of the variance)")
    assert axes.get_ylabel() == "y"
    drawn = np.asarray(discs(axes)[0].get_offsets())
    np.testing.assert_allclose(drawn, np.stack([np.arange(50.0) - 24.5, rows["y"]], axis=1))

    flat = {"x": np.ones((50, 1)), "y": np.arange(50) % 2}
    coreset = decoct.build(decoct.models.LogisticRegression(), flat, size=5, method=Uniform())
    axes = decoct.plots.kept_rows(coreset, flat).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("y", "number of the row")

    model = decoct.models.GaussianMean(covariance=np.eye(1))
    coreset = decoct.build(model, {"x": rows["x"]}, size=5, method=Uniform())
    axes = decoct.plots.kept_rows(coreset, {"x": rows["x"]}).axes[0]
    assert axes.get_ylabel() == "number of the row"
    kept = np.asarray(discs(axes)[1].get_offsets())
    np.testing.assert_allclose(kept[:, 0] + 24.5, kept[:, 1])


def test_another_table_is_refused(table, coreset):
    with pytest.raises(decoct.CoresetFileError, match="built from 3000 rows"):
        decoct.plots.kept_rows(coreset, {"x": np.zeros((10, 2)), "y": np.arange(10) % 2})
