"""Constructions side by side: KL against size, and against what the build cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from decoct.plots.canvas import dress, figure, styles
from decoct.plots.kl_curve import plain_sizes

if TYPE_CHECKING:
    from decoct.comparison import Comparison, Line

UNSURE = 0.7
"""k-hat above which a KL is drawn as an open marker: no more than an order of magnitude."""


def compared(comparison: Comparison) -> Any:
    """Draw what `decoct.compare` returned.

    Parameters
    ----------
    comparison
        Methods at several sizes. A method without figures is left out.

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
    for line in comparison.lines:
        if line.kl is not None and line.kl > 0.0:
            by_method.setdefault(line.method, []).append(line)
    named = styles(name for name, lines in by_method.items() if lines[0].rows is not None)
    for name, lines in by_method.items():
        colour, marker = named.get(name, ("#000000", "*"))
        sized = [line for line in lines if line.rows is not None]
        kls = [line.kl for line in lines]
        if sized:
            left.plot([line.rows for line in sized], kls, color=colour, linewidth=1.8)
        for line in lines:
            fill = colour if line.khat is not None and line.khat < UNSURE else "none"
            shape = {"marker": marker, "color": colour, "markerfacecolor": fill, "markersize": 8}
            if line.rows is not None:
                left.plot([line.rows], [line.kl], **shape)
            right.plot([line.seconds], [line.kl], **shape, linestyle="none")
        if not sized:
            left.axhline(lines[0].kl, color=colour, linestyle="--", linewidth=1.5)
        right.plot([], [], color=colour, marker=marker, linestyle="none", label=name)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
    plain_sizes(left, np.array([one.rows for one in comparison.lines if one.rows is not None]))
    dress(left, f"Of {comparison.n_rows:,} rows", "rows kept", "KL(coreset ‖ full), nats")
    dress(
        right, "What the build cost (open: k-hat above 0.7, a rough KL)", "seconds of the build", ""
    )
    picture.legend(
        *right.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    return picture
