"""Campbell & Broderick (2019), Figure 5: directional clustering.

    python -m experiments.hilbert.figure_5 [--quick] [--trials T] [--seed SEED] [--output FOLDER]

Above: coresets for M = 10, 100 and 1000 (black, area in proportion to the weight, of one trial) and
the clusters at the posterior means (green, of five trials: circles two standard deviations of a
cluster's rows, 2/√τ radians, from its mode); rows are blue. The sphere is turned so that the six
modes lie 35° north and south of the equator, and shown in Mollweide's projection, which keeps
areas. Below: both errors against time for Frank-Wolfe and uniformly random subsampling. Runs that
runs.csv lacks are done first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from decoct.plots.style import COLOURS
from experiments.hilbert import pictures, runs, sets
from experiments.hilbert.pictures import Shown
from experiments.hilbert.sets import CONCENTRATION, POLES, DataSet

METHODS = ("Rand", "IS-F", "FW-F")


def panel(axes: Any, data: DataSet, shown: Shown) -> None:
    """Draw rows, coreset and clusters on the turned sphere."""
    east, north = map_of(data.train["x"][: pictures.FAINT_ROWS])
    axes.scatter(east, north, s=4, color=COLOURS[0], alpha=0.25, linewidth=0, zorder=1)
    for mean in shown.means:
        for mode in mean[: POLES.size].reshape(POLES.shape):
            _draw_circle(axes, mode / np.linalg.norm(mode))
    east, north = map_of(np.asarray(shown.coreset.rows["x"]))
    pictures.draw_kept(axes, east, north, shown.coreset.weights)
    axes.grid(visible=True, color="#e3e3e3", linewidth=0.6)
    axes.set(xticklabels=[], yticklabels=[])


def map_of(
    x: Float[np.ndarray, "n 3"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return longitude and latitude, in radians, with the axes' diagonal (1, 1, 1) as the north.

    The poles of the axes come to lie at 35.3° north and south, 60° of longitude apart.
    """
    first = np.array([1.0, -1.0, 0.0]) / np.sqrt(2.0)
    second = np.array([1.0, 1.0, -2.0]) / np.sqrt(6.0)
    up = np.ones(3) / np.sqrt(3.0)
    return np.arctan2(x @ second, x @ first), np.arcsin(np.clip(x @ up, -1.0, 1.0))


def _draw_circle(axes: Any, mode: Float[np.ndarray, " 3"]) -> None:
    """Draw the points 2/√τ radians from a mode, broken where the map is."""
    basis = np.linalg.svd(mode[None])[2][1:]
    turn = np.linspace(0.0, 2.0 * np.pi, 80)
    ring = np.stack([np.cos(turn), np.sin(turn)], axis=1) @ basis
    radius = 2.0 / np.sqrt(CONCENTRATION)
    east, north = map_of(np.cos(radius) * mode + np.sin(radius) * ring)
    east[1:][np.abs(np.diff(east)) > np.pi] = np.nan
    axes.plot(east, north, color=pictures.GREEN, linewidth=1.4, zorder=3)


def main(arguments: Sequence[str] | None = None) -> None:
    options = runs.parser(__doc__).parse_args(arguments)
    data = sets.load("synth_vmf")
    pictures.draw_rows_and_time(options, 5, data, METHODS, panel, "mollweide")


if __name__ == "__main__":
    main()
