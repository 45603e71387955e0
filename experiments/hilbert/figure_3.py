"""Campbell & Broderick (2019), Figure 3: logistic regression.

    python -m experiments.hilbert.figure_3 [--quick] [--trials T] [--seed SEED] [--output FOLDER]

Above: coresets of the synthetic set for M = 10, 100 and 1000 (black, area in proportion to the
weight, of one trial) and the classification boundaries of the posterior means (green, of five
trials); rows of either label are blue and red. Below: both errors against time for Frank-Wolfe and
uniformly random subsampling, on three data sets. Runs that runs.csv lacks are done first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from decoct.plots.style import COLOURS
from experiments.hilbert import pictures, runs, sets
from experiments.hilbert.pictures import Shown
from experiments.hilbert.sets import DataSet

METHODS = ("Rand", "Unif", "IS-F", "FW-F")
REACH = 4.4
"""Half the width of a panel, in standard deviations of the covariates."""


def panel(axes: Any, data: DataSet, shown: Shown) -> None:
    """Draw rows, coreset and boundaries θ₁x₁ + θ₂x₂ + θ₃ = 0."""
    x, y = data.train["x"][: pictures.FAINT_ROWS], data.train["y"][: pictures.FAINT_ROWS]
    for label, colour in ((1.0, COLOURS[0]), (-1.0, COLOURS[1])):
        own = x[y == label]
        axes.scatter(own[:, 0], own[:, 1], s=4, color=colour, alpha=0.25, linewidth=0, zorder=1)
    for theta in shown.means:
        # the point of the line nearest to the origin, and from there along the line
        foot = -theta[2] * theta[:2] / np.sum(theta[:2] ** 2)
        along = 10.0 * np.array([-theta[1], theta[0]]) / np.linalg.norm(theta[:2])
        ends = np.stack([foot - along, foot + along])
        axes.plot(ends[:, 0], ends[:, 1], color=pictures.GREEN, linewidth=1.6, zorder=3)
    kept = np.asarray(shown.coreset.rows["x"])
    pictures.draw_kept(axes, kept[:, 0], kept[:, 1], shown.coreset.weights)
    axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), aspect="equal")
    axes.set_xlabel("x₁ (whitened)", fontsize=9)
    axes.set_ylabel("x₂ (whitened)", fontsize=9)
    axes.label_outer()


def main(arguments: Sequence[str] | None = None) -> None:
    options = runs.parser(__doc__).parse_args(arguments)
    pictures.draw_rows_and_time(options, 3, sets.load("synth_lr"), METHODS, panel)


if __name__ == "__main__":
    main()
