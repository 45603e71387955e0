"""KL against coreset size, one curve per method, and against what the build cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from decoct.errors import RequestError
from decoct.plots.style import assign_styles, figure, mark_level, style_axes

if TYPE_CHECKING:
    from decoct.building.comparison import Comparison, Line

ROUNDING = 1e-16
"""KL in nats at which zeros are drawn if there are no others: rounding of float64."""


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
    _scale_sizes(axes, np.concatenate([sizes for sizes, _ in checked.values()]))
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
    axes.relim()  # an error bar would widen the axis to the logarithm of its place
    axes.autoscale_view()
    if target is not None:
        mark_level(axes, target, f"{target:g} nats", "--")
    style_axes(axes, title, "rows kept", "KL(coreset ‖ full), nats")
    axes.legend(fontsize=11, frameon=False)
    return picture


def _check_curve(name: str, sizes: Any, kls: Any) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(sizes, dtype=np.float64), np.asarray(kls, dtype=np.float64)
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
            "more, and KLs positive, because their axis is logarithmic."
        )
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def _scale_sizes(axes: Any, sizes: np.ndarray) -> None:
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


def comparison(result: Comparison) -> Any:
    """Draw what `decoct.compare` returned.

    Parameters
    ----------
    result
        Methods at several sizes. A method without figures is left out. A KL of 0, which has no
        place on a logarithmic axis, is drawn on a dotted line below the others, with a label. Where
        only a lower bound is known (k-hat of 0.7 and more) it is drawn, as an open marker.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    RequestError
        matplotlib is missing.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> result = decoct.compare(model, rows, [10], methods={}, draws=100)
    >>> decoct.plots.comparison(result).axes[0].get_xlabel()
    'rows kept'
    """
    picture = figure(11.0, 5.2)
    left, right = picture.subplots(1, 2, sharey=True)
    by_method: dict[str, list[Line]] = {}
    for line in result.lines:
        if line.kl is not None:
            by_method.setdefault(line.method, []).append(line)
    known = [_kl(line) for lines in by_method.values() for line in lines]
    zero = None  # where KLs of 0 are drawn: a decade below the others
    if any(kl <= 0.0 for kl in known):
        zero = min((0.1 * kl for kl in known if kl > 0.0), default=ROUNDING)
    named = assign_styles(name for name, lines in by_method.items() if lines[0].rows is not None)
    for name, lines in by_method.items():
        colour, marker = named.get(name, ("#000000", "*"))
        sized = [line for line in lines if line.rows is not None]
        kls = [kl if kl > 0.0 else zero for kl in map(_kl, lines)]
        if sized:
            left.plot([line.rows for line in sized], kls, color=colour, linewidth=1.8)
        for line, kl in zip(lines, kls, strict=True):
            fill = colour if line.kl_is_known else "none"
            shape = {"marker": marker, "color": colour, "markerfacecolor": fill, "markersize": 8}
            if line.rows is not None:
                left.plot([line.rows], [kl], **shape)
            right.plot([line.seconds], [kl], **shape, linestyle="none")
        if not sized:
            left.axhline(kls[0], color=colour, linestyle="--", linewidth=1.5)
        right.plot([], [], color=colour, marker=marker, linestyle="none", label=name)
    right.set_xscale("log")
    for axes in (left, right):
        axes.set_yscale("log")
        if zero is not None:
            mark_level(axes, zero, "0 (rounding)", ":")
    _scale_sizes(left, np.array([one.rows for one in result.lines if one.rows is not None]))
    style_axes(left, f"Of {result.n_rows:,} rows", "rows kept", "KL(coreset ‖ full), nats")
    style_axes(right, "What the build cost (open: lower bounds of KL)", "seconds of the build", "")
    picture.legend(
        *right.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    return picture


def _kl(line: Line) -> float:
    """Return the KL of a line with figures, or its lower bound where that is all that is known."""
    kl = line.kl if line.kl_is_known else line.kl_low
    assert kl is not None
    return kl
