"""Posterior intervals side by side."""

from __future__ import annotations

import numpy as np
import pytest

import decoct
import decoct.plots

pytest.importorskip("matplotlib")

NAMES = ["slope", "other slope", "intercept"]
FULL = (NAMES, [1.0, 0.0, -2.0], [0.1, 0.2, 0.1])
NEAR = (NAMES, [1.01, 0.0, -2.0], [0.1, 0.19, 0.1])
FAR = (NAMES, [9.0, 0.1, -30.0], [3.0, 0.2, 0.1])


def points(axes, marker):
    """Return how many points the axes have with this marker."""
    return sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() == marker)


def test_axes_are_named_and_every_coefficient_has_its_line():
    figure = decoct.plots.intervals({"all": FULL, "coreset": NEAR, "uniform": FAR}, unit="log odds")
    left, right = figure.axes
    assert left.get_xlabel() == "log odds"
    assert "posterior sd" in right.get_xlabel()
    assert "all" in right.get_title(loc="left")
    assert [label.get_text() for label in left.get_yticklabels()] == NAMES
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "all",
        "coreset",
        "uniform",
    ]
    figure.draw_without_rendering()


def test_both_panels_have_the_right_number_of_points():
    left, right = decoct.plots.intervals({"all": FULL, "coreset": NEAR, "uniform": FAR}).axes
    assert [points(left, marker) for marker in ("o", "s", "^")] == [3, 3, 3]
    # two of the uniform means are off the panel, one to either side; both become an arrow
    assert [points(right, marker) for marker in ("o", "s", "^")] == [3, 3, 1]
    assert [points(right, marker) for marker in ("<", ">")] == [1, 1]


def test_nothing_is_drawn_outside_the_clipped_panel():
    right = decoct.plots.intervals({"all": FULL, "uniform": FAR}, clip=5.0).axes[1]
    assert right.get_xlim()[1] < 6.0
    ends = [path.vertices[:, 0] for lines in right.collections for path in lines.get_paths()]
    assert np.abs(np.concatenate(ends)).max() <= 5.0


def test_the_reference_sets_the_scale():
    picture = decoct.plots.intervals({"coreset": NEAR, "all": FULL}, reference="all")
    (means,) = [line for line in picture.axes[1].lines if line.get_marker() == "s"]
    np.testing.assert_allclose(means.get_xdata(), [0.1, 0.0, 0.0], atol=1e-12)


def test_draws_are_taken_as_they_come():
    rows = {"x": np.random.default_rng(0).normal(size=(50, 2)), "y": np.arange(50) % 2}
    coreset = decoct.build(
        decoct.models.LogisticRegression(), rows, size=20, method=decoct.constructions.Uniform()
    )
    draws = coreset.sample(draws=50, chains=2, sampler=decoct.samplers.Laplace())
    left = decoct.plots.intervals({"coreset": draws}).axes[0]
    assert len(left.get_yticklabels()) == 2
    assert points(left, "o") == 2


@pytest.mark.parametrize(
    ("posteriors", "options", "sentence"),
    [
        ({}, {}, "There is no posterior to draw"),
        ({"all": FULL, "b": (["slope"], [1.0], [1.0])}, {}, "different coefficients"),
        ({"all": (NAMES, [1.0, 2.0], [1.0, 1.0, 1.0])}, {}, "means of shape (2,)"),
        ({"all": (NAMES, [1.0, 2.0, 3.0], [1.0, 0.0, 1.0])}, {}, "sd 0 for 'other slope'"),
        ({"all": (NAMES, [1.0, 2.0, np.nan], [1.0, 1.0, 1.0])}, {}, "mean nan"),
        ({"all": 3.0}, {}, "must be (names, means, sds)"),
        ({"all": FULL}, {"reference": "full"}, "none of the posteriors: all"),
        ({"all": FULL}, {"clip": 0.0}, "clip must be a positive number"),
    ],
)
def test_bad_input_is_told_in_a_sentence(posteriors, options, sentence):
    with pytest.raises(decoct.RequestError) as error:
        decoct.plots.intervals(posteriors, **options)
    assert sentence in str(error.value)
