"""Campbell & Broderick (2019), Figure 6: both errors and the time against the size M.

    python -m experiments.hilbert.figure_6 [--quick] [--trials T] [--seed SEED] [--output FOLDER]

Frank-Wolfe (blue), importance sampling (red) and uniformly random subsampling (black, dashed), over
all models and data sets: thin lines are one set each, thick ones the median of all runs, bands go
from quartile to quartile. Everything is divided by the median of uniformly random subsets of the
same data set and the same M. Runs that runs.csv lacks are done first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from decoct.plots.style import COLOURS, figure, style_axes
from experiments import common
from experiments.hilbert import pictures, runs, sets

METHODS = {"FW-F": (COLOURS[0], "-"), "IS-F": (COLOURS[1], "-"), "Rand": ("black", "--")}

ALL = "all"
"""Stands for all data sets together."""


def over_all_sets(found: Sequence[pictures.Run]) -> list[dict[str, Any]]:
    """Return medians and quartiles over the runs of all sets, a row per method and M."""
    table = []
    for method in METHODS:
        own = [one for one in found if one["method"] == method]
        for M in sorted({one["M"] for one in own}):
            same = [one for one in own if one["M"] == M]
            row = {"set": ALL, "method": method, "M": M, "trials": len(same)}
            for key in pictures.METRICS:
                low, middle, high = common.quartiles(one[key] for one in same)
                row |= {f"{key}_low": low, key: middle, f"{key}_high": high}
            table.append(row)
    return table


def draw(table: Sequence[Mapping[str, Any]]) -> Any:
    """Draw a panel for each metric."""
    picture = figure(15.0, 5.2)
    all_axes = picture.subplots(1, 3)
    for axes, metric in zip(all_axes, pictures.METRICS, strict=True):
        for method, style in METHODS.items():
            own = [row for row in table if row["method"] == method]
            _draw_method(axes, own, metric, method, *style)
        pictures.logarithmic(axes)
        style_axes(axes, pictures.heading(metric), "M (iterations)", "relative to random rows")
    handles, labels = all_axes[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=11)
    return picture


def _draw_method(
    axes: Any, own: Sequence[Mapping[str, Any]], metric: str, method: str, colour: str, line: str
) -> None:
    for name in dict.fromkeys(row["set"] for row in own):
        rows = [row for row in own if row["set"] == name]
        M, middle = [row["M"] for row in rows], [row[metric] for row in rows]
        if name != ALL:
            axes.plot(M, middle, line, color=colour, linewidth=0.8, alpha=0.45)
            continue
        low, high = ([row[f"{metric}_{end}"] for row in rows] for end in ("low", "high"))
        axes.fill_between(M, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(M, middle, line, color=colour, marker="o", linewidth=2.4, label=method, zorder=5)


def main(arguments: Sequence[str] | None = None) -> None:
    options = runs.parser(__doc__).parse_args(arguments)
    names = runs.QUICK_SETS if options.quick else sets.NAMES
    found = pictures.relative_to_random(pictures.results(options, names, list(METHODS)))
    table = [*over_all_sets(found), *pictures.summary(found)]
    pictures.finish(options, 6, draw(table), table)


if __name__ == "__main__":
    main()
