"""Campbell & Beronov (2019), Figure 4: logistic and Poisson regression, KL against size.

    python -m experiments.sparse_vi.figure_4 [--quick] [--trials T] [--seed SEED] [--output FOLDER]

KL(π_w‖π)/KL(π₀‖π) between Laplace fits, median over trials with quartiles as a band; against the
picks, as in the paper (figure_4_picks), and against the rows that were kept (figure_4_rows), which
are what a sampler pays for. Runs that regression_runs.csv lacks are done first; what is compared
is in `experiments.sparse_vi.regression_runs`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from decoct.plots.style import COLOURS, GREY, figure, style_axes
from experiments import common
from experiments.sparse_vi.regression_methods import METHODS, PUBLISHED
from experiments.sparse_vi.regression_problems import SETS
from experiments.sparse_vi.regression_runs import asked, parser

FLOOR = 1e-13
"""Fractions below which KLs are not distinguished: they come from differences of numbers near 1."""

RATIO = r"KL($\pi_w$ ‖ $\pi$) / KL($\pi_0$ ‖ $\pi$)"

STYLES = {
    "sparse_vi": (COLOURS[0], "-", 2.6),
    PUBLISHED: (COLOURS[5], "-", 2.6),
    "iterated_hilbert": (COLOURS[2], "-", 2.6),
    "giga_optimal": (COLOURS[4], "--", 1.8),
    "giga_realistic": (COLOURS[1], "--", 1.8),
    "uniform": (GREY, ":", 2.2),
}
"""Colour, line and width of the methods, in the order of the legend."""

Table = list[dict[str, Any]]


def summary(results: Sequence[Mapping[str, str]]) -> Table:
    """Return medians and quartiles over trials, a row per set, method and M."""
    groups: dict[tuple[str, str, int], list[Mapping[str, str]]] = defaultdict(list)
    for one in results:
        groups[one["set"], one["method"], int(one["M"])].append(one)
    table = []
    for (name, method, M), trials in groups.items():
        row = {"set": name, "method": method, "M": M, "trials": len(trials)}
        for column in ("rows", "kl_fraction", "cpu_s"):
            low, middle, high = common.quartiles(float(one[column]) for one in trials)
            row |= {f"{column}_low": low, column: middle, f"{column}_high": high}
        table.append(row)
    sets, methods = list(SETS), list(METHODS)
    return sorted(
        table, key=lambda row: (sets.index(row["set"]), methods.index(row["method"]), row["M"])
    )


def draw(table: Table, x: str) -> Any:
    """Draw the KL against ``x``, "M" or "rows"; a panel for each set."""
    label = {
        "M": "picks M (IteratedHilbert, uniform: rows asked for)",
        "rows": "rows kept, median over trials",
    }[x]

    def band(axes: Any, own: Table, colour: str) -> None:
        low, high = floored(own, "kl_fraction_low"), floored(own, "kl_fraction_high")
        axes.fill_between(column(own, x), low, high, color=colour, alpha=0.18, linewidth=0)

    return panels(table, x, label, band)


def panels(table: Table, x: str, label: str, spread: Callable[[Any, Table, str], None]) -> Any:
    """Draw a panel for each set and a line for each method, with its spread behind it."""
    present = list(dict.fromkeys(row["set"] for row in table))
    across = min(3, len(present))
    down = -(-len(present) // across)
    picture = figure(4.9 * across, 1.1 + 4.0 * down)
    all_axes = picture.subplots(down, across, squeeze=False)
    for place, (axes, name) in enumerate(zip(all_axes.flat, present, strict=False)):
        for method, (colour, line, width) in STYLES.items():
            own = [row for row in table if (row["set"], row["method"]) == (name, method)]
            if own:
                spread(axes, own, colour)
                axes.plot(
                    column(own, x), floored(own, "kl_fraction"), line, color=colour,
                    linewidth=width, marker="o", markersize=3.5,
                )  # fmt: skip
        axes.set_yscale("log")
        last, first = place + across >= len(present), place % across == 0
        style_axes(axes, SETS[name], label if last else "", RATIO if first else "")
        _finish(axes)
    for axes in list(all_axes.flat)[len(present) :]:
        axes.set_visible(False)
    _legend(picture, table)
    return picture


def _finish(axes: Any) -> None:
    """Mark the prior and the floor, and keep the ticks apart."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axes.get_ylim()
    axes.axhline(1.0, color=GREY, linewidth=0.9, zorder=1)
    if low <= FLOOR:
        axes.set_ylim(FLOOR / 30.0, high)
        axes.axhline(FLOOR, color=GREY, linewidth=0.9, zorder=1)
        axes.annotate(
            f"what is below {FLOOR:g} is drawn here".replace("-", "−"), (0.99, FLOOR),
            xycoords=("axes fraction", "data"), xytext=(0, -5), textcoords="offset points",
            ha="right", va="top", fontsize=9, color=GREY,
        )  # fmt: skip
    axes.yaxis.set_major_locator(LogLocator(numticks=9))
    axes.yaxis.set_minor_locator(NullLocator())


def _legend(picture: Any, table: Table) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for method, (colour, line, width) in STYLES.items():
        trials = {row["trials"] for row in table if row["method"] == method}
        if trials:
            counted = f"{max(trials)} trial{'s' if max(trials) > 1 else ''}"
            style = {"color": colour, "linestyle": line, "linewidth": width}
            handles.append(Line2D([], [], label=f"{METHODS[method]} ({counted})", **style))
    picture.legend(
        handles=handles, loc="outside lower center", ncols=min(6, len(STYLES) // 2), fontsize=11,
        frameon=False, title="medians and quartiles over trials; the grey line at 1 is the prior",
    )  # fmt: skip


def column(rows: Table, name: str) -> Float[np.ndarray, " n"]:
    """Return a column of a table."""
    return np.array([float(row[name]) for row in rows])


def floored(rows: Table, name: str) -> Float[np.ndarray, " n"]:
    """Return a column for a logarithmic axis."""
    return np.maximum(column(rows, name), FLOOR)


def main(arguments: Sequence[str] | None = None) -> None:
    folder, results = asked(parser(__doc__).parse_args(arguments))
    table = summary(results)
    common.write_csv(folder / "figure_4.csv", table)
    common.save(draw(table, "M"), folder / "figure_4_picks.png")
    common.save(draw(table, "rows"), folder / "figure_4_rows.png")


if __name__ == "__main__":
    main()
