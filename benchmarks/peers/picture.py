"""The picture of the comparison: error of means against evaluations, one panel a posterior."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.lines import Cell, frontier, read_cells
from decoct.plots.style import figure

STYLES = {
    "numpyro_nuts": ("#999999", "o", "-"),
    "nutpie": ("#999999", "s", "--"),
    "hmcecs": ("#56B4E9", "D", "-"),
    "sgld_cv": ("#56B4E9", "v", "--"),
    "sghmc_cv": ("#56B4E9", "^", ":"),
    "laplace": ("#E69F00", "o", "-"),
    "pathfinder": ("#E69F00", "s", "--"),
    "pass_glm": ("#E69F00", "D", ":"),
    "advi": ("#009E73", "o", "-"),
    "advi_full": ("#009E73", "s", "--"),
    "dais": ("#009E73", "D", ":"),
    "uniform": ("#CC79A7", "o", ":"),
    "quasi_newton": ("#CC79A7", "s", "-"),
    "coreset_mcmc": ("#CC79A7", "D", "--"),
    "decoct": ("#000000", "o", "-"),
    "decoct_rows": ("#000000", "X", "--"),
}
"""Method -> colour of its family, marker, line."""


def draw(table: Path, path: Path) -> None:
    """Draw the table to a file."""
    cells = read_cells(table)
    names = list(dict.fromkeys(cell.posterior for cell in cells))
    picture = figure(15.0, 2.0 + 3.6 * -(-len(names) // 3))
    panels = picture.subplots(-(-len(names) // 3), 3, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        _panel(axes, [cell for cell in cells if cell.posterior == name])
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    handles: dict[str, Any] = {}
    for axes in panels:
        handles |= dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    legend = {"loc": "outside lower center", "ncols": 4, "frameon": False, "fontsize": 10}
    picture.legend(handles.values(), handles.keys(), **legend)
    picture.savefig(path)


def _panel(axes: Any, cells: Sequence[Cell]) -> None:
    done = [cell for cell in cells if not cell.failed]
    for method, (colour, marker, line) in STYLES.items():
        best = frontier([cell for cell in done if cell.method == method])
        if best:
            x, y = [one.evaluations for one in best], [one["mean_rms"] for one in best]
            style = {"color": colour, "marker": marker, "linestyle": line, "markersize": 5}
            axes.plot(x, y, label=best[0].title, **style)
    first = done[0]
    axes.axhspan(1e-7, first.floor("mean_rms"), color="#e3e3e3", zorder=0)
    axes.axhline(0.05, color="#6e6e6e", linewidth=0.7)
    lowest = min(max(one["mean_rms"], first.floor("mean_rms")) for one in done)
    axes.set(xscale="log", yscale="log", ylim=(0.5 * lowest, 30.0))
    axes.set_title(f"{first.heading}\nN = {first.n_rows:,}, d = {first.dim}", fontsize=11)
    axes.set_xlabel("evaluations of a row")
    axes.set_ylabel("error of means, rms, in sd")
