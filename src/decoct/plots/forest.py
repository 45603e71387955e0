"""Posterior intervals of several posteriors side by side, one coefficient a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from decoct.errors import RequestError
from decoct.plots.style import GREY, assign_styles, figure, style_axes
from decoct.samplers.summary import scalars

WIDTH = 1.96
"""Half the length of a drawn interval, in standard deviations: 95 % of a normal distribution."""

Posterior = tuple[Sequence[str], Any, Any]
"""Names, means and standard deviations of the coefficients."""


def intervals(
    posteriors: Mapping[str, Posterior | xr.DataTree],
    *,
    reference: str | None = None,
    clip: float = 6.0,
    unit: str = "parameter value",
    title: str = "Posterior intervals, 95 %",
) -> Any:
    """Draw the 95 % intervals (mean ± 1.96 sd) of several posteriors, one coefficient a line.

    The left panel has them in their own unit. The right panel measures them in standard deviations
    of the reference posterior from its mean, so that agreement is visible however narrow the
    intervals are; what lies outside ± ``clip`` ends in an arrow.

    Parameters
    ----------
    posteriors
        Name -> (coefficient names, means, sds), or draws as ``coreset.sample()`` returns them. All
        must have the same coefficients.
    reference
        The posterior that sets the scale of the right panel; default the first.
    clip
        Half the width of the right panel, in standard deviations.
    unit
        Unit of the coefficients, for the axis.
    title
        Title of the picture.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    RequestError
        matplotlib is missing, or the posteriors do not fit each other.

    Examples
    --------
    >>> import decoct.plots
    >>> full = (["slope", "intercept"], [1.0, -2.0], [0.1, 0.2])
    >>> coreset = (["slope", "intercept"], [1.01, -2.0], [0.1, 0.19])
    >>> len(decoct.plots.intervals({"full data": full, "coreset": coreset}).axes)
    2
    """
    checked = {name: _check_posterior(name, posterior) for name, posterior in posteriors.items()}
    reference = _find_reference(checked, reference)
    if not clip > 0:
        raise RequestError(f"clip must be a positive number of standard deviations, not {clip!r}.")
    names, centre, spread = checked[reference]
    n, k = len(names), len(checked)
    picture = figure(10.0, 1.6 + 0.1 * n * max(k, 2))
    left, right = picture.subplots(1, 2, sharey=True)
    lines = np.arange(n, dtype=np.float64)
    others = assign_styles(name for name in checked if name != reference)
    for i, name in enumerate(checked):
        colour, marker = others.get(name, ("#000000", "o"))
        _, mean, sd = checked[name]
        y = lines + 0.25 * (i - (k - 1) / 2)
        left.errorbar(
            mean, y, xerr=WIDTH * sd, fmt=marker, markersize=3.5, color=colour, elinewidth=1.6,
            label=name,
        )  # fmt: skip
        _draw_clipped(right, y, (mean - centre) / spread, WIDTH * sd / spread, clip, colour, marker)
    style_axes(left, title, unit, "")
    style_axes(right, f"Relative to {reference}", "distance from its mean, posterior sd", "")
    left.axvline(0.0, color=GREY, linewidth=0.8)
    for edge in (-WIDTH, WIDTH):
        right.axvline(edge, color=GREY, linewidth=1.0, linestyle=":")
    right.set_xlim(-1.06 * clip, 1.06 * clip)
    left.set_ylim(n - 0.4, -0.6)
    left.set_yticks(lines, names)
    left.tick_params(axis="y", labelsize=10, length=0)
    right.tick_params(axis="y", length=0)
    for axes in (left, right):
        axes.grid(visible=False, axis="y")
        for line in range(0, n, 2):
            axes.axhspan(line - 0.5, line + 0.5, color="#f5f5f5", linewidth=0, zorder=0)
    picture.legend(
        *left.get_legend_handles_labels(),
        loc="outside lower center", ncols=k, fontsize=11, frameon=False,
    )  # fmt: skip
    return picture


def _draw_clipped(
    axes: Any, y: Any, mean: np.ndarray, half: np.ndarray, clip: float, colour: str, marker: str
) -> None:
    """Draw intervals inside ± clip; an end beyond becomes an arrowhead at the edge."""
    low, high = mean - half, mean + half
    seen = (high > -clip) & (low < clip)
    axes.hlines(
        y[seen], np.maximum(low, -clip)[seen], np.minimum(high, clip)[seen], colour, linewidth=1.6
    )
    inside = np.abs(mean) <= clip
    axes.plot(mean[inside], y[inside], marker, markersize=3.5, color=colour)
    for side, beyond, edge in (("<", low < -clip, -clip), (">", high > clip, clip)):
        axes.plot(np.full(beyond.sum(), edge), y[beyond], side, markersize=4.0, color=colour)


def _check_posterior(name: str, posterior: Any) -> tuple[list[str], np.ndarray, np.ndarray]:
    if isinstance(posterior, xr.DataTree):
        found = [(label, z.mean(), z.std(ddof=1)) for label, z in scalars(posterior)]
        posterior = [[one[i] for one in found] for i in range(3)]
    try:
        labels, mean, sd = posterior
        mean, sd = np.asarray(mean, dtype=np.float64), np.asarray(sd, dtype=np.float64)
        labels = [str(label) for label in labels]
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"The posterior '{name}' must be (names, means, sds) or draws of coreset.sample()."
        ) from error
    if mean.shape != (len(labels),) or sd.shape != (len(labels),):
        raise RequestError(
            f"The posterior '{name}' has {len(labels)} names, means of shape {mean.shape} and sds "
            f"of shape {sd.shape}; give one of each per coefficient."
        )
    usable = np.isfinite(mean) & np.isfinite(sd) & (sd > 0)
    if not usable.all():
        bad = int(np.argmin(usable))
        raise RequestError(
            f"The posterior '{name}' has mean {mean[bad]:g} and sd {sd[bad]:g} for "
            f"'{labels[bad]}'; means are finite and sds positive."
        )
    return labels, mean, sd


def _find_reference(
    checked: Mapping[str, tuple[list[str], np.ndarray, np.ndarray]], reference: str | None
) -> str:
    if not checked or not next(iter(checked.values()))[0]:
        raise RequestError("There is no posterior to draw; give name -> (names, means, sds).")
    reference = next(iter(checked)) if reference is None else reference
    if reference not in checked:
        raise RequestError(
            f"The reference '{reference}' is none of the posteriors: {', '.join(checked)}."
        )
    for name, (labels, _, _) in checked.items():
        if labels != checked[reference][0]:
            raise RequestError(
                f"The posteriors '{name}' and '{reference}' have different coefficients."
            )
    return reference
