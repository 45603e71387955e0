"""Style of all pictures: matplotlib on demand, no global state, distinguishable colours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from decoct.errors import RequestError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255")
"""Okabe & Ito's palette and a wine red, which colour-blind people can distinguish."""

MARKERS = ("s", "^", "D", "v", "P", "X", "o")

GREY = "#6e6e6e"

DPI = 120
"""Ten inches make 1200 pixels."""


def figure(width: float = 10.0, height: float = 6.0) -> Any:
    """Return an empty matplotlib Figure of so many inches, without a window and outside pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RequestError("Pictures need matplotlib; pip install 'decoct[plots]'.") from None
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")


def style_axes(axes: Any, title: str, x: str, y: str) -> None:
    """Set the title, the labels of both axes and a light grid."""
    axes.set_title(title, fontsize=13, loc="left")
    axes.set_xlabel(x, fontsize=12)
    axes.set_ylabel(y, fontsize=12)
    axes.tick_params(labelsize=11)
    axes.grid(visible=True, color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def assign_styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a marker for each name, in order."""
    return {
        name: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(names)
    }


def mark_level(axes: Any, level: float, text: str, linestyle: str) -> None:
    """Draw a grey line at a height, with a label at its right end."""
    axes.axhline(level, color=GREY, linestyle=linestyle, linewidth=1.3)
    axes.annotate(
        text, (1.0, level), xycoords=("axes fraction", "data"),
        xytext=(-4, 4), textcoords="offset points", ha="right", color=GREY, fontsize=11,
    )  # fmt: skip
