"""Campbell & Beronov (2019), Figure 3: house prices over a map, 301 radial bases.

    DECOCT_DATA=FOLDER python -m experiments.sparse_vi.figure_3 [--quick] [--sets NAME ...]
        [--trials T] [--seed SEED] [--output FOLDER]

N = 10,000 rows of the UK sales and of the Californian block groups; model and bases are those of
`map_regression`, the methods those of `gaussian_runs`, with covariances in closed form (Eq. 23-24).

(a) exact KL against the number of picks M; (b) for each set a map of posterior means after 0 to 300
picks of SparseVI, with the kept rows. Every trial has its own rows and bases. The published steps
have fewer picks, as they cost much. Every result is a row of figure_3_runs.csv, written as soon as
its trial is done; a command that is started again goes on where it ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from decoct.coreset import Coreset
from decoct.plots.style import figure
from decoct.stats import Gaussian
from experiments import common
from experiments.sparse_vi.gaussian_runs import (
    HILBERT,
    OURS,
    PUBLISHED_EXACT,
    Method,
    areas,
    draw_curves,
    measured,
)
from experiments.sparse_vi.map_regression import Grid, Regression, Table, read
from experiments.sparse_vi.results_file import ResultsFile

SETS = ("ukprices_2018", "california_housing")
QUICK_SETS = SETS[:1]
N, QUICK_N = 10_000, 500
BASES, QUICK_BASES = 50, 4
"""Radial bases at each of the six scales."""

TRIALS, QUICK_TRIALS = 10, 2
SIZES = (1, 2, 5, 10, 20, 30, 50, 75, 100, 125, 150, 175, 200, 225, 250, 275, 300)
QUICK_SIZES = (1, 2, 3, 5, 10, 15, 20, 40)
SHOWN = (0, 5, 20, 50, 100, 150, 200, 250, 300)
"""Picks of the nine coresets on a map."""

QUICK_SHOWN = (0, *QUICK_SIZES)

METHODS: tuple[Method, ...] = (
    OURS,
    PUBLISHED_EXACT._replace(largest=50),
    *HILBERT,
)
QUICK_LARGEST = 5
"""Most picks of the published steps in a quick run."""

STEP, QUICK_STEP = 0.05, 0.2
"""Between points of the maps, degrees."""

LEVELS = 15
KEPT_AREA = 700.0
"""Area in square points of a row with all the weight."""


Shown = dict[int, tuple[Gaussian, Coreset | None]]
"""Picks -> π_w and the coreset; π under −1, the prior under 0."""


def posteriors(one: Regression, coresets: Mapping[int, Coreset], shown: Sequence[int]) -> Shown:
    """Return what the maps show."""
    found: Shown = {-1: (one.trial.full, None), 0: (one.trial.prior, None)}
    return found | {m: (one.trial.posterior(coresets[m]), coresets[m]) for m in shown if m}


def kept_rows(name: str, one: Regression, found: Shown) -> list[dict[str, Any]]:
    """Return where the kept rows are, and their weights."""
    return [
        {"set": name, "M": m, "lat": lat, "lon": lon, "weight": weight}
        for m, (_, coreset) in found.items()
        if coreset is not None
        for (lat, lon), weight in zip(one.places[coreset.indices], coreset.weights, strict=True)
    ]


def draw_maps(data: Table, one: Regression, found: Shown, step: float) -> Any:
    """Draw (b): the posterior and the largest coreset above, the smaller ones below."""
    grid = Grid.over(one.places, step)
    *small, largest = [m for m in sorted(found) if m >= 0]
    shown: dict[Any, int] = {"full": -1, "last": largest, **{m: m for m in small}}
    exact = one.surface(found[-1][0].mean, grid.places)[grid.near]
    lowest, highest = np.quantile(exact, [0.01, 0.99])
    levels = np.linspace(lowest, highest, LEVELS)
    tall = np.ptp(grid.lat) / np.ptp(grid.lon) / np.cos(np.radians(grid.lat.mean()))
    picture = figure(10.5, 8.8 * tall + 2.6)
    names = [["full"] * 2 + ["last"] * 2, *np.reshape(small, (2, 4)).tolist()]
    panels = picture.subplot_mosaic(names, height_ratios=[2.0, 1.0, 1.0])
    whole = f"{data.title}: posterior, N = {len(one.places):,}"
    filled = None
    for name, axes in panels.items():
        m = shown[name]
        filled = _draw_map(axes, one, grid, found[m], levels)
        axes.set_title(whole if m == -1 else _title(m, found[m]), fontsize=11, loc="left")
    bar = picture.colorbar(
        filled, ax=list(panels.values()), location="bottom", shrink=0.7, aspect=45, format="%.2f"
    )
    bar.set_label(f"posterior mean of {data.price}; kept rows black, area ∝ weight", fontsize=11)
    for name in ("full", "last", *small[4:]):
        panels[name].set_xlabel("longitude (degrees)", fontsize=10)
    for name in ("full", small[0], small[4]):
        panels[name].set_ylabel("latitude (degrees)", fontsize=10)
    return picture


def _title(m: int, here: tuple[Gaussian, Coreset | None]) -> str:
    if here[1] is None:
        return "0 picks: prior"
    rows = here[1].size
    return f"{m} {'pick' if m == 1 else 'picks'}, {rows} {'row' if rows == 1 else 'rows'}"


def _draw_map(
    axes: Any,
    one: Regression,
    grid: Grid,
    here: tuple[Gaussian, Coreset | None],
    levels: Float[np.ndarray, " L"],
) -> Any:
    from matplotlib.ticker import MaxNLocator

    posterior, coreset = here
    surface = np.where(grid.near, one.surface(posterior.mean, grid.places), np.nan)
    filled = axes.contourf(
        grid.lon, grid.lat, surface.reshape(len(grid.lat), len(grid.lon)), levels, extend="both",
        cmap="viridis",
    )  # fmt: skip
    if coreset is not None:
        lat, lon = one.places[coreset.indices].T
        axes.scatter(
            lon, lat, s=areas(coreset.weights, KEPT_AREA), facecolor=(0.0, 0.0, 0.0, 0.55),
            edgecolor="white", linewidth=0.4, zorder=3,
        )  # fmt: skip
    axes.set_aspect(1.0 / np.cos(np.radians(grid.lat.mean())))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.tick_params(labelsize=10)
    return filled


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, Path(__file__).parent)
    parser.add_argument("--sets", nargs="+", choices=SETS, help="some of the data sets only")
    options = parser.parse_args(arguments)
    folder, brief = options.output, options.quick
    count = options.trials or (QUICK_TRIALS if brief else TRIALS)
    n, each = (QUICK_N, QUICK_BASES) if brief else (N, BASES)
    names = options.sets or (QUICK_SETS if brief else SETS)
    methods = [
        method._replace(largest=QUICK_LARGEST) if brief and method.largest else method
        for method in METHODS
    ]
    shown = QUICK_SHOWN if brief else SHOWN
    # a quick run neither knows nor leaves single results
    file = None if brief else ResultsFile(folder / "figure_3_runs.csv", options.seed)
    results: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    picture = figure(2.0 + 5.5 * len(names), 6.4)
    all_axes = picture.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(all_axes, names, strict=True):
        data = read(name)
        regressions = [
            Regression.of(data, options.seed, number, n, each) for number in range(count)
        ]
        trials = [one.trial for one in regressions]
        table = measured(name, methods, trials, QUICK_SIZES if brief else SIZES, file)
        results += [{"set": name, **row} for row in table]
        draw_curves(axes, methods, table, data.title)
        found = posteriors(regressions[0], OURS.coresets(trials[0], shown[1:]), shown)
        kept += kept_rows(name, regressions[0], found)
        common.save(
            draw_maps(data, regressions[0], found, QUICK_STEP if brief else STEP),
            folder / f"figure_3_{name}.png",
        )
    common.write_csv(folder / "figure_3_a.csv", results)
    common.write_csv(folder / "figure_3_rows.csv", kept)
    handles, labels = all_axes[0].get_legend_handles_labels()
    picture.legend(
        handles, labels, loc="outside lower center", ncols=3, fontsize=11, frameon=False,
        title=f"N = {n:,}, {6 * each + 1} bases; median and quartiles of {count} trials",
    )  # fmt: skip
    common.save(picture, folder / "figure_3_a.png")


if __name__ == "__main__":
    main()
