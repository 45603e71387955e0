"""KL against coreset size, and the picture of `decoct.compare`: every figure has a mark."""

from __future__ import annotations

import numpy as np
import pytest

import decoct
import decoct.plots
from decoct.building.comparison import Comparison, Line

pytest.importorskip("matplotlib")

CURVES = {"coreset": ([100, 30, 200], [1e-2, 1.0, 1e-4]), "uniform": ([30, 100], [9e4, 3e4])}


def curve(axes, name):
    (line,) = [line for line in axes.lines if line.get_label() == name]
    return line


def test_axes_are_logarithmic_named_and_in_nats():
    figure = decoct.plots.kl_against_size(CURVES)
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "rows kept"
    assert "nats" in axes.get_ylabel()
    assert axes.get_title(loc="left")
    figure.draw_without_rendering()


def test_every_point_is_drawn_in_order_of_size():
    (axes,) = decoct.plots.kl_against_size(CURVES).axes
    np.testing.assert_array_equal(curve(axes, "coreset").get_xdata(), [30, 100, 200])
    np.testing.assert_array_equal(curve(axes, "coreset").get_ydata(), [1.0, 1e-2, 1e-4])
    assert len(curve(axes, "uniform").get_xdata()) == 2


@pytest.mark.parametrize("target", [0.01, None])
def test_the_reference_line_is_at_the_target(target):
    (axes,) = decoct.plots.kl_against_size(CURVES, target=target).axes
    level = [line.get_ydata() for line in axes.lines if line.get_linestyle() == "--"]
    assert [list(y) for y in level] == ([] if target is None else [[target, target]])


def test_certified_estimates_have_bars_and_are_in_the_legend():
    certified = {"certificate": (200, 1.2e-4, 0.9e-4, 1.5e-4)}
    (axes,) = decoct.plots.kl_against_size(CURVES, certified=certified).axes
    (bars,) = axes.containers
    np.testing.assert_allclose(bars[2][0].get_segments()[0], [[200, 0.9e-4], [200, 1.5e-4]])
    assert "certificate" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_lower_bound_has_an_arrow_and_no_upper_end():
    certified = {"certificate": (200, 7.0, 5.0, np.inf)}
    (axes,) = decoct.plots.kl_against_size(CURVES, certified=certified).axes
    (bars,) = axes.containers
    assert bars[0].get_xydata().tolist() == [[200.0, 5.0]]
    assert bars[2][0].get_segments()[0].tolist() == [[200.0, 5.0], [200.0, 10.0]]
    assert axes.get_ylim()[1] < 1e9


@pytest.mark.parametrize(
    ("curves", "sentence"),
    [
        ({}, "There is no curve to draw"),
        ({"a": ([1, 2], [0.1])}, "sizes of shape (2,) and KLs of shape (1,)"),
        ({"a": ([], [])}, "The curve 'a'"),
        ({"a": ([1, 2], [0.1, 0.0])}, "Point 1 of the curve 'a' is (2, 0)"),
        ({"a": ([1], [np.inf])}, "Point 0 of the curve 'a'"),
    ],
)
def test_bad_input_is_told_in_a_sentence(curves, sentence):
    with pytest.raises(decoct.RequestError) as error:
        decoct.plots.kl_against_size(curves)
    assert sentence in str(error.value)


def test_a_bad_target_is_told_in_a_sentence():
    with pytest.raises(decoct.RequestError, match="target must be a positive number of nats"):
        decoct.plots.kl_against_size(CURVES, target=-1.0)


def line(method, rows, kl, khat=0.1):
    seconds = 1.0 if rows is None else rows / 10
    return Line(method, rows, rows, kl, 0.1, khat, 90.0, seconds, 3.0, kl_low=0.8 * kl)


def marks(axes):
    """Points drawn with a marker, as (x, y)."""
    drawn = [one for one in axes.lines if one.get_marker() != "None" and len(one.get_xdata())]
    return sorted((float(one.get_xdata()[0]), float(one.get_ydata()[0])) for one in drawn)


def drawn(lines):
    return decoct.plots.comparison(Comparison(lines, 1000))


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_a_kl_of_zero_is_drawn_below_the_others_and_labelled():
    lines = (line("A", 10, 1e-3), line("A", 20, 0.0), line("B", 10, 2.0), line("B", 20, -1e-17))
    picture = drawn((*lines, line("Laplace + PSIS", None, 0.0)))
    left, right = picture.axes
    wanted = [(10, 1e-3), (10, 2.0), (20, 1e-4), (20, 1e-4)]
    np.testing.assert_allclose(marks(left), wanted, rtol=1e-12)
    assert len(marks(right)) == 5
    for axes in (left, right):
        assert texts(axes) == ["0 (rounding)"]
        assert axes.get_ylim()[0] <= 1e-4
    assert [text.get_text() for text in picture.legends[0].texts] == ["A", "B", "Laplace + PSIS"]
    # the curve goes on to the size without a KL, and Laplace has its line across
    heights = [one.get_ydata() for one in left.lines]
    assert any(np.allclose(y, [1e-3, 1e-4], rtol=1e-12) for y in heights)


def test_nothing_but_zeros():
    picture = drawn((line("A", 10, 0.0), line("A", 20, 0.0)))
    assert marks(picture.axes[0]) == [(10, 1e-16), (20, 1e-16)]
    assert texts(picture.axes[1]) == ["0 (rounding)"]


def test_nothing_is_marked_without_a_kl_of_zero():
    left, right = drawn((line("A", 10, 1e-3), line("A", 20, 1e-4))).axes
    assert texts(left) == texts(right) == []
    assert marks(left) == [(10, 1e-3), (20, 1e-4)]


def test_open_markers_are_lower_bounds():
    left = drawn((line("A", 10, 1e-3), line("A", 20, 1.0, khat=0.9))).axes[0]
    fills = [one.get_markerfacecolor() for one in left.lines if one.get_marker() != "None"]
    assert [fill == "none" for fill in fills] == [False, True]
    assert marks(left) == [(10, 1e-3), (20, 0.8)]
