"""KL against coreset size, one curve a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from decoct.errors import RequestError
from decoct.plots.style import GREY, assign_styles, figure, style_axes


def kl_against_size(
    curves: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    *,
    certified: Mapping[str, tuple[int, float, float, float]] | None = None,
    target: float | None = 0.01,
    title: str = "How far the coreset posterior is from the full-data posterior",
) -> Any:
    """Draw KL(π_w‖π) in nats against the number of rows kept, on logarithmic axes.

    Where a curve begins at 0 rows, a site alone, the axis is linear up to the next size.

    Parameters
    ----------
    curves
        Name of a method -> (sizes, KLs in nats).
    certified
        Name -> (size, KL, lower, upper): estimates with their intervals, such as those of
        `decoct.check`, drawn as points with bars; an arrow from the lower bound where there is no
        upper end.
    target
        Where to draw a reference line, in nats; None draws none.
    title
        Title of the picture.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    RequestError
        matplotlib is missing, or a curve has unequal lengths, a negative size, or a KL that is not
        positive.

    Examples
    --------
    >>> import decoct.plots
    >>> curves = {"coreset": ([30, 100], [1.2, 0.003]), "uniform": ([30, 100], [9e4, 3e4])}
    >>> decoct.plots.kl_against_size(curves).axes[0].get_xscale()
    'log'
    """
    checked = {name: _check_curve(name, *curve) for name, curve in curves.items()}
    if not checked:
        raise RequestError("There is no curve to draw; give name -> (sizes, KLs).")
    if target is not None and not (np.isfinite(target) and target > 0):
        raise RequestError(f"target must be a positive number of nats, not {target!r}.")
    picture = figure(10.0, 6.0)
    axes = picture.add_subplot()
    axes.set(yscale="log")
    scale_sizes(axes, np.concatenate([sizes for sizes, _ in checked.values()]))
    for (name, (colour, marker)), (sizes, kls) in zip(
        assign_styles(checked).items(), checked.values(), strict=True
    ):
        axes.plot(sizes, kls, color=colour, marker=marker, markersize=7, linewidth=2.0, label=name)
    for name, (size, kl, low, high) in (certified or {}).items():
        is_bound = not np.isfinite(high)
        at = low if is_bound else kl
        bars = [[max(0.0, at - low)], [at if is_bound else max(0.0, high - kl)]]
        axes.errorbar(
            [size], [at], yerr=bars, lolims=is_bound, fmt="*", markersize=19, color="black",
            markerfacecolor="none", markeredgewidth=1.5, zorder=4, label=name,
        )  # fmt: skip
    axes.relim()  # an error bar would stretch the axis to the logarithm of its place
    axes.autoscale_view()
    if target is not None:
        axes.axhline(target, color=GREY, linestyle="--", linewidth=1.3)
        axes.annotate(
            f"{target:g} nats", (1.0, target), xycoords=("axes fraction", "data"),
            xytext=(-4, 4), textcoords="offset points", ha="right", color=GREY, fontsize=11,
        )  # fmt: skip
    style_axes(axes, title, "rows kept", "KL(coreset ‖ full), nats")
    axes.legend(fontsize=11, frameon=False)
    return picture


def _check_curve(name: str, sizes: Any, kls: Any) -> tuple[np.ndarray, np.ndarray]:
    try:
        x, y = np.asarray(sizes, dtype=np.float64), np.asarray(kls, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise RequestError(f"The curve '{name}' holds something that is not a number.") from error
    if x.ndim != 1 or x.shape != y.shape or not len(x):
        raise RequestError(
            f"The curve '{name}' has sizes of shape {x.shape} and KLs of shape {y.shape}; "
            "give two equally long lists."
        )
    usable = np.isfinite(x) & np.isfinite(y) & (x >= 0) & (y > 0)
    if not usable.all():
        bad = int(np.argmin(usable))
        raise RequestError(
            f"Point {bad} of the curve '{name}' is ({x[bad]:g}, {y[bad]:g}); sizes must be 0 or "
            "more, and KLs positive, for their axis is logarithmic."
        )
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def scale_sizes(axes: Any, sizes: np.ndarray) -> None:
    """Make the axis of sizes logarithmic, from 0 if there is one, and label it in plain digits."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    positive = sizes[sizes > 0]
    decades = np.log10(positive.max() / positive.min()) if len(positive) else 0.0
    ticks = LogLocator(subs=(1.0, 2.0, 5.0) if decades < 3.5 else (1.0,))
    if len(positive) and len(positive) < len(sizes):
        least, most = positive.min(), positive.max()
        axes.set_xscale("symlog", linthresh=least, linscale=0.5)
        above = [tick for tick in ticks.tick_values(least, most) if 1.9 * least < tick <= most]
        axes.xaxis.set_major_locator(FixedLocator([0.0, least, *above]))
    else:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
