"""Campbell & Broderick (2019), Figure 4: Poisson regression.

    python -m experiments.hilbert.figure_4 [--quick] [--trials T] [--seed SEED] [--output FOLDER]

Above: coresets of the synthetic set for M = 10, 100 and 1000 (black, area in proportion to the
weight, of one trial) and the mean counts log(1 + exp(θ₁x + θ₂)) at the posterior means (green, of
five trials); rows are blue. Below: both errors against time for Frank-Wolfe and uniformly random
subsampling, on three data sets. Runs that runs.csv lacks are done first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from decoct.plots.style import COLOURS
from experiments.hilbert import pictures, runs, sets
from experiments.hilbert.pictures import Shown
from experiments.hilbert.sets import DataSet

METHODS = ("Rand", "IS-F", "FW-F")
REACH = 4.0
"""Half the width of a panel, in standard deviations of the covariate."""

MOST = 8.7
"""Largest count in a panel; the data go to 8."""


def panel(axes: Any, data: DataSet, shown: Shown) -> None:
    """Draw rows, coreset and mean counts."""
    x, y = data.train["x"][: pictures.FAINT_ROWS, 0], data.train["y"][: pictures.FAINT_ROWS]
    axes.scatter(x, y, s=8, color=COLOURS[0], alpha=0.2, linewidth=0, zorder=1)
    grid = np.linspace(-REACH, REACH, 200)
    for slope, intercept in shown.means:
        curve = np.logaddexp(0.0, slope * grid + intercept)
        axes.plot(grid, curve, color=pictures.GREEN, linewidth=1.6, zorder=3)
    kept, counts = np.asarray(shown.coreset.rows["x"])[:, 0], np.asarray(shown.coreset.rows["y"])
    pictures.draw_kept(axes, kept, counts, shown.coreset.weights)
    axes.set(xlim=(-REACH, REACH), ylim=(-0.7, MOST))
    axes.set_xlabel("x (whitened)", fontsize=9)
    axes.set_ylabel("count", fontsize=9)
    axes.label_outer()


def main(arguments: Sequence[str] | None = None) -> None:
    options = runs.parser(__doc__).parse_args(arguments)
    pictures.draw_rows_and_time(options, 4, sets.load("synth_poiss"), METHODS, panel)


if __name__ == "__main__":
    main()
