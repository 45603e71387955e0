"""Campbell & Beronov (2019), Figure 2: the mean of a Gaussian in 200 dimensions.

    python -m experiments.sparse_vi.figure_2 [--quick] [--trials T] [--seed SEED] [--output FOLDER]

    θ ~ N(0, I),  x_n ~ N(θ, I),  n = 1..1000, rows drawn at θ = (1, …, 1)               (Eq. 19)

Rows come from the generator of the paper's code, seeded by the number of the trial.

(a) Exact KL against M, rows asked for and, but for exchanges, the number of picks:

    SparseVI, exact            covariances in closed form (Eq. 20-21), our damped quadratic updates
    … 2M picks                 the same with exchanges of rows, one build for every M
    … published steps          the same with the paper's 100 gradient steps
    … steps as in print        the same with Algorithm 1's plain steps: the first goes to a weight
                               of 3e5, where every later gradient is nearly zero
    SparseVI, 100 draws        Monte Carlo: draws reused, quadratic updates
    … published steps          Monte Carlo: 100 draws for each of the 100 gradient steps of a pick
    GIGA, uniform              see `gaussian_runs`; 100 draws see half of the 200 dimensions
    … exact norm               inner products under π in closed form

Methods that cost much have fewer picks than the others, and the one that gets nowhere one trial.
Every result is a row of figure_2_runs.csv, written as soon as its trial is done; a command that is
started again goes on where it ended.

(b) SparseVI after 0 to 100 picks, in the first two coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from decoct.constructions import Hilbert, SparseVI
from decoct.coreset import Coreset
from decoct.models import GaussianMean
from decoct.plots.style import COLOURS, figure, style_axes
from decoct.solvers import GIGA
from decoct.stats import Gaussian
from experiments import common
from experiments.sparse_vi.gaussian_runs import (
    HILBERT,
    IN_PRINT,
    OURS,
    PROJECTION,
    PUBLISHED,
    PUBLISHED_EXACT,
    Method,
    Trial,
    areas,
    draw_curves,
    measured,
)
from experiments.sparse_vi.results_file import ResultsFile

N, DIM = 1000, 200
QUICK_N, QUICK_DIM = 200, 20
TRIALS, QUICK_TRIALS = 10, 2
SIZES = (1, 2, 3, 5, 7, 10, 15, *range(20, 201, 10))
QUICK_SIZES = (1, 2, 3, 5, 10, 20, 30)
SHOWN = (0, 1, 5, 20, 50, 100)
"""Picks of (b)."""

QUICK_SHOWN = (0, 1, 3, 5, 10, 20)

MOST_DRAWN, QUICK_MOST_DRAWN = 30, 2
"""Most picks of the published algorithm with draws."""

METHODS = (
    OURS,
    OURS._replace(name="SparseVI, exact, 2M picks", line="-.", exchanges=True),
    PUBLISHED_EXACT,
    Method(
        "SparseVI, exact, steps as in print",
        lambda *_: SparseVI(IN_PRINT), COLOURS[5], ":", trials=1, largest=20,
    ),
    Method(
        "SparseVI, 100 draws",
        lambda *_: SparseVI(exact=False, draws=PROJECTION), COLOURS[3],
    ),
    Method(
        "SparseVI, 100 draws, published steps",
        lambda *_: SparseVI(PUBLISHED, exact=False, draws=PROJECTION, reuse=False),
        COLOURS[4], "--", largest=MOST_DRAWN,
    ),
    *HILBERT,
    Method(
        "GIGA, optimal π̂, exact norm", lambda *_: Hilbert(GIGA(), exact=True), COLOURS[2], "--"
    ),
)  # fmt: skip

CLOUD_AREA = 500.0
"""Area in square points of a row with all the weight."""

UNIT = " (sd of a row)"

RANGE = 4.2
"""Half the width of the panels of rows, in standard deviations of a row."""


def trial_of(seed: int, number: int, n: int, dim: int) -> Trial:
    """Draw the rows of a trial (Eq. 19)."""
    source = np.random.RandomState(seed + number)  # the generator of the paper's code
    rows = {"x": source.multivariate_normal(np.ones(dim), np.eye(dim), n)}
    other = np.random.default_rng([seed, number])
    return Trial(GaussianMean(np.eye(dim)), rows, np.zeros(dim), int(other.integers(2**31)))


def quick(methods: Sequence[Method]) -> list[Method]:
    """Return the methods with less of what costs most."""
    return [
        one._replace(largest=QUICK_MOST_DRAWN) if one.largest == MOST_DRAWN else one
        for one in methods
    ]


def panels(
    trial: Trial, coresets: Mapping[int, Coreset], shown: Sequence[int]
) -> list[dict[str, Any]]:
    """Return posteriors and kept rows after each number of picks, in two coordinates."""
    found = _panel("full", trial.full, None) + _panel(0, trial.prior, None)
    for m in shown:
        if m:
            found += _panel(m, trial.posterior(coresets[m]), coresets[m])
    return found


def _panel(m: int | str, here: Gaussian, coreset: Coreset | None) -> list[dict[str, Any]]:
    centre = {"x0": here.mean[0], "x1": here.mean[1]}
    # Σ_w is a multiple of I: ellipses are circles
    found = [{"M": m, "what": "posterior", **centre, "size": here.sd[0]}]
    if coreset is not None:
        found += [
            {"M": m, "what": "row", "x0": x[0], "x1": x[1], "size": weight}
            for x, weight in zip(coreset.rows["x"], coreset.weights, strict=True)
        ]
    return found


def draw_panels(trial: Trial, found: Sequence[dict[str, Any]], shown: Sequence[int]) -> Any:
    """Draw (b): rows and predictive circles above, posteriors below."""
    picture = figure(15.5, 6.4)
    grid = picture.subplots(2, len(shown))
    full = next(one for one in found if one["M"] == "full")
    for above, below, m in zip(*grid, shown, strict=True):
        here = next(one for one in found if one["M"] == m and one["what"] == "posterior")
        kept = [one for one in found if one["M"] == m and one["what"] == "row"]
        first = m == shown[0]
        _draw_rows(above, trial, kept, full, here)
        picks = "pick" if m == 1 else "picks"
        style_axes(above, f"{m} {picks}", f"$x_1${UNIT}", f"$x_2${UNIT}" if first else "")
        _draw_posteriors(below, full, here)
        style_axes(below, "", f"θ₁{UNIT}", f"θ₂{UNIT}" if first else "")
    handles, labels = grid[0, 1].get_legend_handles_labels()
    more, names = grid[1, 0].get_legend_handles_labels()
    picture.legend(
        handles + more, labels + names, loc="outside lower center", ncols=6, frameon=False,
        fontsize=11,
    )  # fmt: skip
    return picture


def _draw_rows(
    axes: Any, trial: Trial, kept: Sequence[dict[str, Any]], full: Any, here: Any
) -> None:
    axes.scatter(*trial.rows["x"][:, :2].T, s=3, color="#c9c9c9", linewidths=0)
    axes.scatter([], [], s=20, color="#c9c9c9", linewidths=0, label="rows")
    _circle(axes, full, 2.0 * np.hypot(1.0, full["size"]), color="black", linewidth=2.4,
            label="predictive 2σ, all rows")  # fmt: skip
    _circle(axes, here, 2.0 * np.hypot(1.0, here["size"]), color=COLOURS[0], linewidth=1.8,
            label="predictive 2σ, coreset")  # fmt: skip
    if kept:
        x0, x1, weights = (np.array([one[key] for one in kept]) for key in ("x0", "x1", "size"))
        axes.scatter(x0, x1, s=areas(weights, CLOUD_AREA), color="black", alpha=0.6, linewidths=0,
                     zorder=4, label="kept rows, area ∝ weight")  # fmt: skip
    axes.set(aspect="equal", xlim=(1 - RANGE, 1 + RANGE), ylim=(1 - RANGE, 1 + RANGE))


def _draw_posteriors(axes: Any, full: Any, here: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    for one, colour, name in (
        (full, "black", "posterior"),
        (here, COLOURS[0], "coreset posterior"),
    ):
        for sds in (1.0, 2.0):
            label = f"{name}, 1σ and 2σ" if sds == 1.0 else "_"
            _circle(axes, one, sds * one["size"], color=colour, linewidth=2.0, label=label)
    centres = np.array([[one["x0"], one["x1"]] for one in (full, here)])
    middle = centres.mean(axis=0)
    half = np.abs(centres - middle).max() + 2.6 * max(full["size"], here["size"])
    axes.set(aspect="equal", xlim=middle[0] + [-half, half], ylim=middle[1] + [-half, half])
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_locator(MaxNLocator(3))


def _circle(axes: Any, centre: Any, radius: float, **style: Any) -> None:
    turn = np.linspace(0.0, 2.0 * np.pi, 200)
    x, y = centre["x0"] + radius * np.cos(turn), centre["x1"] + radius * np.sin(turn)
    axes.plot(x, y, zorder=3, **style)


def main(arguments: Sequence[str] | None = None) -> None:
    options = common.parser(__doc__, Path(__file__).parent).parse_args(arguments)
    folder, brief = options.output, options.quick
    count = options.trials or (QUICK_TRIALS if brief else TRIALS)
    n, dim = (QUICK_N, QUICK_DIM) if brief else (N, DIM)
    trials = [trial_of(options.seed, number, n, dim) for number in range(count)]

    methods = quick(METHODS) if brief else METHODS
    # a quick run neither knows nor leaves single results
    file = None if brief else ResultsFile(folder / "figure_2_runs.csv", options.seed)
    table = measured("gaussian", methods, trials, QUICK_SIZES if brief else SIZES, file)
    common.write_csv(folder / "figure_2_a.csv", table)
    picture = figure(11.5, 6.2)
    title = f"Gaussian mean, N = {n:,}, d = {dim}: median and quartiles of {count} trials"
    draw_curves(picture.add_subplot(), methods, table, title)
    picture.legend(loc="outside right upper", fontsize=11, frameon=False)
    common.save(picture, folder / "figure_2_a.png")

    shown = QUICK_SHOWN if brief else SHOWN
    found = panels(trials[0], OURS.coresets(trials[0], shown[1:]), shown)
    common.write_csv(folder / "figure_2_b.csv", found)
    common.save(draw_panels(trials[0], found, shown), folder / "figure_2_b.png")


if __name__ == "__main__":
    main()
