"""Campbell & Beronov (2019), Figure 5: logistic and Poisson regression, KL against CPU time.

    python -m experiments.sparse_vi.figure_5 [--quick] [--trials T] [--seed SEED] [--output FOLDER]

KL(π_w‖π)/KL(π₀‖π) between Laplace fits against the CPU seconds of a build, without compilation, on
logarithmic axes. A point for each M, ascending along the line; medians over trials, with bars from
the lower to the upper quartile of either. The numbers are those of
figure_4.csv, which `figure_4` writes. Runs that regression_runs.csv lacks are done first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments import common
from experiments.sparse_vi.figure_4 import Table, column, floored, panels, summary
from experiments.sparse_vi.regression_runs import asked, parser


def draw(table: Table) -> Any:
    """Draw the KL against CPU seconds; a panel for each set."""
    picture = panels(table, "cpu_s", "CPU time of the build (seconds)", _bars)
    for axes in picture.axes:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    return picture


def _bars(axes: Any, own: Table, colour: str) -> None:
    x, y = column(own, "cpu_s"), floored(own, "kl_fraction")
    low, high = floored(own, "kl_fraction_low"), floored(own, "kl_fraction_high")
    axes.errorbar(
        x, y, xerr=np.abs([column(own, "cpu_s_low") - x, column(own, "cpu_s_high") - x]),
        yerr=np.abs([low - y, high - y]), fmt="none", ecolor=colour, elinewidth=1.0, alpha=0.45,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    folder, results = asked(parser(__doc__).parse_args(arguments))
    common.save(draw(summary(results)), folder / "figure_5.png")


if __name__ == "__main__":
    main()
