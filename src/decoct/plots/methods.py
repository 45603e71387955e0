"""Constructions side by side: KL against size, and against what the build cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decoct.plots.kl_curve import scale_sizes
from decoct.plots.style import GREY, assign_styles, figure, style_axes

if TYPE_CHECKING:
    from decoct.building.comparison import Comparison, Line

ROUNDING = 1e-16
"""Where KLs of 0 are drawn if there are no others, in nats: what float64 cannot tell from 0."""


def comparison(result: Comparison) -> Any:
    """Draw what `decoct.compare` returned.

    Parameters
    ----------
    result
        Methods at several sizes. A method without figures is left out. A KL of 0, which has no
        place on a logarithmic axis, is drawn on a dotted line below the others, with a label. Where
        only a lower bound is known (k-hat of 0.7 and more) it is drawn, as an open marker.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    RequestError
        matplotlib is missing.
    """
    picture = figure(11.0, 5.2)
    left, right = picture.subplots(1, 2, sharey=True)
    by_method: dict[str, list[Line]] = {}
    for line in result.lines:
        if line.kl is not None:
            by_method.setdefault(line.method, []).append(line)
    floor = _find_floor(result)
    named = assign_styles(name for name, lines in by_method.items() if lines[0].rows is not None)
    for name, lines in by_method.items():
        colour, marker = named.get(name, ("#000000", "*"))
        sized = [line for line in lines if line.rows is not None]
        kls = [_compute_height(line, floor) for line in lines]
        if sized:
            left.plot([line.rows for line in sized], kls, color=colour, linewidth=1.8)
        for line, kl in zip(lines, kls, strict=True):
            fill = colour if line.kl_is_known else "none"
            shape = {"marker": marker, "color": colour, "markerfacecolor": fill, "markersize": 8}
            if line.rows is not None:
                left.plot([line.rows], [kl], **shape)
            right.plot([line.seconds], [kl], **shape, linestyle="none")
        if not sized:
            left.axhline(kls[0], color=colour, linestyle="--", linewidth=1.5)
        right.plot([], [], color=colour, marker=marker, linestyle="none", label=name)
    right.set_xscale("log")
    for axes in (left, right):
        axes.set_yscale("log")
        if floor is not None:
            _mark_zero(axes, floor)
    scale_sizes(left, np.array([one.rows for one in result.lines if one.rows is not None]))
    style_axes(left, f"Of {result.n_rows:,} rows", "rows kept", "KL(coreset ‖ full), nats")
    style_axes(right, "What the build cost (open: lower bounds of KL)", "seconds of the build", "")
    picture.legend(
        *right.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    return picture


def _find_floor(comparison: Comparison) -> float | None:
    """Return where to draw KLs of 0, a decade below the others; None if there is none."""
    kls = [_get_kl(line) for line in comparison.lines if line.kl is not None]
    if all(kl > 0.0 for kl in kls):
        return None
    return min((0.1 * kl for kl in kls if kl > 0.0), default=ROUNDING)


def _compute_height(line: Line, floor: float | None) -> float:
    kl = _get_kl(line)
    return kl if floor is None or kl > 0.0 else floor


def _get_kl(line: Line) -> float:
    """Return the KL of a line with figures, or its lower bound where that is all that is known."""
    kl = line.kl if line.kl_is_known else line.kl_low
    assert kl is not None
    return kl


def _mark_zero(axes: Any, floor: float) -> None:
    axes.axhline(floor, color=GREY, linestyle=":", linewidth=1.3)
    axes.annotate(
        "0 (rounding)", (1.0, floor), xycoords=("axes fraction", "data"),
        xytext=(-4, 4), textcoords="offset points", ha="right", color=GREY, fontsize=11,
    )  # fmt: skip
