"""The picture of `decoct.compare`: every figure has a mark, also a KL of 0."""

import numpy as np
import pytest

import decoct.plots
from decoct.building.comparison import Comparison, Line

pytest.importorskip("matplotlib")


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
