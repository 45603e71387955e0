"""KL against coreset size."""

from __future__ import annotations

import numpy as np
import pytest

import decoct
import decoct.plots

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
        ({"a": ([1], ["much"])}, "not a number"),
    ],
)
def test_bad_input_is_told_in_a_sentence(curves, sentence):
    with pytest.raises(decoct.RequestError) as error:
        decoct.plots.kl_against_size(curves)
    assert sentence in str(error.value)


def test_a_bad_target_is_told_in_a_sentence():
    with pytest.raises(decoct.RequestError, match="target must be a positive number of nats"):
        decoct.plots.kl_against_size(CURVES, target=-1.0)
