"""Campbell & Broderick (2019), Figure 1(b): which rows the sensitivity favours, and what it misses.

    python -m experiments.hilbert.figure_1 [--quick] [--seed SEED] [--output FOLDER]

A Gaussian mean in one dimension: y_n ~ N(μ, 1) and μ ~ N(0, 1). Every row is drawn as its
likelihood N(y_n | μ, 1), a function of μ, the thicker the more

    uniform     Nσ_n = 1 + (y_n − ȳ)²/((1/N)Σ_m(y_m − ȳ)²)                          (Eq. 6.3)
    Hilbert     ‖f_n‖ = √(1/(1 + N) + (μ_π − y_n)²), weighted Fisher norm            (Eq. 6.5)
    alignment   ⟨f_n, Σ_m f_m⟩/(‖f_n‖‖Σ_m f_m‖), what Frank–Wolfe starts with         (Eq. 4.7)

The first panel is the paper's. The second shows that the Hilbert norm alone asks for the same rows;
the third that the inner product, which a supremum norm lacks, asks for the opposite ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from decoct.constructions import Sensitivity
from decoct.constructions.base import Problem
from decoct.data import rows as as_rows
from decoct.data.encoded import encoded
from decoct.models import GaussianMean
from decoct.passes.potentials import Potentials
from decoct.plots.style import COLOURS, GREY, figure, style_axes
from decoct.samplers import Automatic
from decoct.stats.divergences import Gaussian
from experiments import common

ROWS = 12
QUICK_ROWS = 8
MEAN = 1.0
"""The mean that generates the data, in units of the rows' standard deviation."""

THINNEST, THICKEST = 0.6, 5.0
"""Lines, in points."""


class Panel(NamedTuple):
    """A number per row, and what it is called."""

    column: str
    title: str
    values: Float[np.ndarray, " N"]


def sensitivities(y: Float[np.ndarray, " N"], seed: int) -> Float[np.ndarray, " N"]:
    """Return Nσ_n of every row (Eq. 6.3)."""
    model = GaussianMean(1.0)
    potentials = Potentials(model, encoded(as_rows({"x": y}), model))
    problem = Problem(potentials, Automatic(), (1,))
    return Sensitivity().sensitivities(jax.random.key(seed), problem).values


def posterior(y: Float[np.ndarray, " N"]) -> Gaussian:
    """Return π (Eq. 6.2 in one dimension)."""
    precision = 1.0 + len(y)
    return Gaussian(np.array([y.sum() / precision]), np.array([[1.0 / precision]]))


def fisher_vectors(y: Float[np.ndarray, " N"]) -> Float[np.ndarray, "N 2"]:
    """Return vectors whose products are those of Eq. 6.5 in one dimension."""
    pi = posterior(y)
    return np.stack([y - pi.mean[0], np.full(len(y), pi.sd[0])], axis=1)


def panels(y: Float[np.ndarray, " N"], seed: int) -> list[Panel]:
    vectors = fisher_vectors(y)
    norms, target = np.linalg.norm(vectors, axis=1), vectors.sum(axis=0)
    aligned = vectors @ target / (norms * np.linalg.norm(target))
    return [
        Panel("sensitivity", "Uniform coreset: sensitivity", sensitivities(y, seed)),
        Panel("fisher_norm", "Hilbert: Fisher norm", norms),
        Panel("alignment", "Frank–Wolfe: alignment with the sum", aligned),
    ]


def draw(y: Float[np.ndarray, " N"], shown: Sequence[Panel]) -> Any:
    """Draw one panel per number."""
    picture = figure(12.0, 4.4)
    all_axes = picture.subplots(1, len(shown), sharey=True)
    for axes, panel in zip(all_axes, shown, strict=True):
        _draw_panel(axes, y, panel)
    all_axes[0].set_ylabel("density (1 / unit of μ)", fontsize=12)
    handles, labels = all_axes[0].get_legend_handles_labels()
    legend = picture.legend(
        handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=11
    )
    legend.legend_handles[0].set(linewidth=2.0, alpha=0.7)
    return picture


def _draw_panel(axes: Any, y: Float[np.ndarray, " N"], panel: Panel) -> None:
    grid = np.linspace(y.min() - 3.0, y.max() + 3.0, 600)
    low, high = float(panel.values.min()), float(panel.values.max())
    importance = (panel.values - low) / (high - low)
    label = "likelihood of one row (thicker: more of what the title names)"
    for n in np.argsort(importance):  # the thick ones on top
        axes.plot(
            grid, _normal(grid, y[n], 1.0), color="black", label=label, zorder=2,
            linewidth=THINNEST + (THICKEST - THINNEST) * importance[n],
            alpha=0.2 + 0.65 * importance[n],
        )  # fmt: skip
        label = "_"
    pi = posterior(y)
    scaled = _normal(grid, pi.mean[0], pi.sd[0]) * (0.40 / _normal(0.0, 0.0, pi.sd[0]))
    axes.plot(grid, scaled, color=COLOURS[0], linewidth=2.5, label="posterior, scaled", zorder=4)
    axes.plot(
        y, np.zeros(len(y)), "o", color="black", markersize=6, markeredgecolor="white",
        label="rows", zorder=5, clip_on=False,
    )  # fmt: skip
    style_axes(axes, panel.title, "μ (standard deviations of a row)", "")
    axes.annotate(
        f"{low:.2f} to {high:.2f}".replace("-", "−"), (0.99, 0.99), xycoords="axes fraction",
        ha="right", va="top", fontsize=11, color=GREY,
    )  # fmt: skip
    axes.set_ylim(0.0, 0.45)


def _normal(x: Any, mean: Any, sd: Any) -> Any:
    return np.exp(-0.5 * ((x - mean) / sd) ** 2) / (sd * np.sqrt(2.0 * np.pi))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, Path(__file__).parent)
    options = parser.parse_args(arguments)
    if options.trials is not None:
        parser.error("Figure 1 is one picture of one data set; it has no trials.")
    rng = np.random.default_rng(options.seed)
    y = np.sort(rng.normal(MEAN, 1.0, size=QUICK_ROWS if options.quick else ROWS))
    shown = panels(y, options.seed)
    table = [
        {"row": n, "y": y[n], **{one.column: one.values[n] for one in shown}} for n in range(len(y))
    ]
    common.write_csv(options.output / "figure_1.csv", table)
    common.save(draw(y, shown), options.output / "figure_1.png")


if __name__ == "__main__":
    main()
