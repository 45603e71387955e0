"""Borsos, Bachem & Krause (2017), Figure 1: full, coreset and uniform fits of a toy set.

    python -m experiments.dpgmm.figure_1 [--quick] [--trials T] [--seed SEED] [--output FOLDER]

Rows in the plane, their groups drawn by a Chinese restaurant process. Coreset and uniform rows are
2 % of the rows. Ellipses are the one standard deviation contours of the components that hold a row
at least. The picture shows the first draw of coreset and uniform rows; the CSVs have its ellipses,
and of all draws the groups seen and the relative error of the held-out log probability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import invwishart

from decoct.plots.style import COLOURS, figure, style_axes
from experiments import common
from experiments.dpgmm import sets
from experiments.dpgmm.fits import CORESET, FULL, UNIFORM, Fitted, Settings, fit

ROWS, QUICK_ROWS = 10_000, 2_500
SHARE = 0.02
TRIALS, QUICK_TRIALS = 25, 2
STARTS = 5
CONCENTRATION = 5.0
"""Of the restaurant: some forty groups of 10,000 rows, most of them small."""

REACH = 12.0
"""Standard deviation of the groups' means; that of rows in a group is about 1."""

TITLES = {FULL: "all rows", CORESET: "coreset", UNIFORM: "uniform rows"}


def toy(rng: np.random.Generator, n: int) -> tuple[Float[np.ndarray, "n 2"], Int[np.ndarray, " n"]]:
    """Return rows and their groups."""
    groups = sets.chinese_restaurant(rng, n, CONCENTRATION)
    x = np.empty((n, 2))
    for group in range(groups.max() + 1):
        here = np.flatnonzero(groups == group)
        covariance = invwishart(6.0, 3.0 * np.eye(2)).rvs(random_state=rng)
        centre = REACH * rng.standard_normal(2)
        x[here] = rng.multivariate_normal(centre, covariance, size=len(here))
    return x, groups


def ellipses(method: str, fitted: Fitted) -> list[dict[str, Any]]:
    """Return the components that hold a row at least, N_t = ν_t − ν₀ ≥ 1."""
    mixture = fitted.mixture
    counts = mixture.degrees_of_freedom_ - mixture.degrees_of_freedom_prior_
    return [
        {
            "method": method, "component": t, "rows": counts[t],
            "x0": mixture.means_[t, 0], "x1": mixture.means_[t, 1],
            "c00": mixture.covariances_[t, 0, 0], "c01": mixture.covariances_[t, 0, 1],
            "c11": mixture.covariances_[t, 1, 1],
        }
        for t in np.flatnonzero(counts >= 1.0)
    ]  # fmt: skip


def measured(
    trial: int, method: str, fitted: Fitted, groups: Int[np.ndarray, " n"],
    test: Float[np.ndarray, "m 2"], exact: float,
) -> dict[str, Any]:  # fmt: skip
    """Return rows, groups seen and the held-out error of a fit."""
    rows = np.arange(len(groups)) if fitted.picked is None else fitted.picked
    log_probability = fitted.mixture.score_samples(test).sum()
    return {
        "trial": trial, "method": method, "rows": len(rows),
        "groups": len(np.unique(groups[rows])), "log_probability": log_probability,
        "relative_error": abs(log_probability - exact) / abs(exact),
    }  # fmt: skip


def draw(
    x: Float[np.ndarray, "n 2"],
    groups: Int[np.ndarray, " n"],
    fits: Mapping[str, Fitted],
    found: Sequence[Mapping[str, Any]],
) -> Any:
    """Draw one panel per method."""
    from matplotlib.patches import Ellipse

    picture = figure(13.0, 4.4)
    panels = picture.subplots(1, len(fits), sharex=True, sharey=True)
    for axes, (method, fitted), one in zip(panels, fits.items(), found, strict=False):
        axes.scatter(*x.T, c=groups, cmap="tab20", s=3, alpha=0.5, linewidths=0, rasterized=True)
        if fitted.picked is not None:
            axes.scatter(
                *x[fitted.picked].T, marker="*", s=34, color="white", edgecolors="black",
                linewidths=0.5, label="rows kept", zorder=3,
            )  # fmt: skip
        for each in ellipses(method, fitted):
            covariance = np.array([[each["c00"], each["c01"]], [each["c01"], each["c11"]]])
            spread, axis = np.linalg.eigh(covariance)
            axes.add_patch(
                Ellipse(
                    (each["x0"], each["x1"]), *(2.0 * np.sqrt(spread)),
                    angle=np.degrees(np.arctan2(axis[1, 0], axis[0, 0])),
                    fill=False, edgecolor=COLOURS[0], linewidth=2.0, zorder=4,
                )
            )  # fmt: skip
        note = f"{one['rows']:,} rows, {one['groups']} groups seen"
        if method != FULL:
            note += f", held-out error {one['relative_error']:.1%}"
        style_axes(axes, TITLES[method], "", "")
        axes.annotate(note, (0.02, 0.98), xycoords="axes fraction", va="top", fontsize=11)
        axes.set_aspect("equal")
    return picture


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, Path(__file__).parent)
    options = parser.parse_args(arguments)
    trials = options.trials or (QUICK_TRIALS if options.quick else TRIALS)
    n = QUICK_ROWS if options.quick else ROWS
    rng = np.random.default_rng(options.seed)
    x, groups = toy(rng, n + n // 4)
    order = rng.permutation(len(x))  # guests come in an order; the test rows are any
    train, test = order[:n], order[n:]
    settings = Settings(components=20 if options.quick else 50, iterations=300, starts=STARTS)
    fits = {FULL: fit(FULL, x[train], None, options.seed, settings)}
    exact = float(fits[FULL].mixture.score_samples(x[test]).sum())
    found = [measured(0, FULL, fits[FULL], groups[train], x[test], exact)]
    for trial in range(trials):
        for method in (CORESET, UNIFORM):
            one = fit(method, x[train], round(SHARE * n), options.seed + trial, settings)
            found.append(measured(trial, method, one, groups[train], x[test], exact))
            fits.setdefault(method, one)
    shapes = [each for method, one in fits.items() for each in ellipses(method, one)]
    common.write_csv(options.output / "figure_1.csv", found)
    common.write_csv(options.output / "figure_1_ellipses.csv", shapes)
    common.save(draw(x[train], groups[train], fits, found), options.output / "figure_1.png")


if __name__ == "__main__":
    main()
