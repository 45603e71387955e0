"""What Figures 3 to 9 of Campbell & Broderick (2019) share: normalisation, summaries, panels.

Section 7.3, with medians over the trials of the sampler on all rows of the same data set:

    error in nll        (nll − best) / (nll on all rows − best), best the smallest nll of any θ
    error in W₁         W₁ / W₁ between two full-data trials
    time                (build + sampling) / sampling from all rows

so that (1, 1) is the full-data posterior. Figure 6 divides each of nll − best, W₁ and the time by
its median over uniformly random subsets of the same size M instead.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from decoct.coreset import Coreset
from decoct.plots.style import COLOURS, GREY, MARKERS, figure, style_axes
from experiments import common
from experiments.hilbert import methods, runs, sets
from experiments.hilbert.sets import DataSet

METRICS = {
    "nll": "negative test log-likelihood",
    "wasserstein": "1-Wasserstein distance",
    "seconds": "computation time",
}
"""Column -> what it is."""

METHOD_TITLES = {
    "Rand": "Uniformly random subsampling",
    "Unif": "Uniform coreset",
    "IS-F": "Hilbert importance sampling",
    "FW-F": "Hilbert Frank–Wolfe",
}

LINES = ("-", "--", ":")
"""Of the first, second and third method in a panel."""

SHOWN_SIZES = (10, 100, 1000)
"""M of the coresets in pictures; quick ones show the sizes that are run."""

SHOWN_TRIALS, QUICK_SHOWN_TRIALS = 5, 1
"""Trials whose posterior means are shown."""

GREEN = "#009E73"
WEIGHT_AREA, SMALLEST_AREA = 2000.0, 5.0
"""Area in square points of a row with all the weight, and the least area of any row."""

FAINT_ROWS = 1500
"""Rows of the data set that are shown behind the coreset."""

Run = dict[str, Any]


def results(
    options: argparse.Namespace, names: Sequence[str], chosen: Sequence[str]
) -> list[dict[str, str]]:
    """Return all runs for a figure, after those that are missing have been done."""
    rows = runs.perform(runs.folder_of(options), runs.settings_of(options), names, chosen)
    wanted = {*chosen, runs.FULL, runs.PAIR, runs.BEST}
    return [one for one in rows if one["set"] in names and one["method"] in wanted]


def relative_to_full(rows: Iterable[Mapping[str, str]]) -> list[Run]:
    """Return the runs of methods, normalised as in Section 7.3."""
    rows = list(rows)
    found = []
    for name in _distinct(rows, "set"):
        own = [one for one in rows if one["set"] == name]
        full = _of(own, runs.FULL)
        best = float(_of(own, runs.BEST)[0]["nll"])
        scale = {
            "nll": _median(full, "nll") - best,
            "wasserstein": _median(_of(own, runs.PAIR), "wasserstein"),
            "seconds": _median(full, "sample_seconds"),
        }
        for one in _runs(own, best):
            found.append({**one, **{key: one[key] / scale[key] for key in METRICS}})
    return found


def relative_to_random(rows: Iterable[Mapping[str, str]]) -> list[Run]:
    """Return the runs of methods relative to the median of random subsets of the same size."""
    rows = list(rows)
    found = []
    for name in _distinct(rows, "set"):
        own = [one for one in rows if one["set"] == name]
        normal = _runs(own, float(_of(own, runs.BEST)[0]["nll"]))
        for M in sorted({one["M"] for one in normal}):
            same = [one for one in normal if one["M"] == M]
            random = [one for one in same if one["method"] == "Rand"]
            if not random:
                continue
            scale = {key: float(np.median([one[key] for one in random])) for key in METRICS}
            found += [{**one, **{key: one[key] / scale[key] for key in METRICS}} for one in same]
    return found


def summary(found: Iterable[Run]) -> list[dict[str, Any]]:
    """Return medians and quartiles over trials, a row per set, method and M."""
    groups: dict[tuple[str, str, int], list[Run]] = defaultdict(list)
    for one in found:
        groups[one["set"], one["method"], one["M"]].append(one)
    table = []
    for (name, method, M), trials in groups.items():
        row = {"set": name, "method": method, "M": M, "trials": len(trials)}
        for key in METRICS:
            low, middle, high = common.quartiles(one[key] for one in trials)
            row |= {f"{key}_low": low, key: middle, f"{key}_high": high}
        table.append(row)
    return sorted(
        table,
        key=lambda row: (
            sets.NAMES.index(row["set"]), methods.NAMES.index(row["method"]), row["M"],
        ),
    )  # fmt: skip


def _runs(rows: Iterable[Mapping[str, str]], best: float) -> list[Run]:
    """Return the runs of methods as numbers, nll shifted by the best."""
    return [
        {
            "set": one["set"],
            "method": one["method"],
            "trial": int(one["trial"]),
            "M": int(one["M"]),
            "nll": float(one["nll"]) - best,
            "wasserstein": float(one["wasserstein"]),
            "seconds": float(one["build_seconds"]) + float(one["sample_seconds"]),
        }
        for one in rows
        if one["method"] in methods.NAMES
    ]


def _of(rows: Iterable[Mapping[str, str]], method: str) -> list[Mapping[str, str]]:
    return [one for one in rows if one["method"] == method]


def _median(rows: Iterable[Mapping[str, str]], column: str) -> float:
    return float(np.median([float(one[column]) for one in rows]))


def _distinct(rows: Iterable[Mapping[str, str]], column: str) -> list[str]:
    return list(dict.fromkeys(one[column] for one in rows))


def draw_against_time(
    axes: Any, table: Sequence[Mapping[str, Any]], metric: str, chosen: Sequence[str], title: str
) -> None:
    """Draw an error against time: a colour for each set, a line style for each method.

    Medians over trials, with bars from the lower to the upper quartile; the larger the marker, the
    larger M.
    """
    for place, name in enumerate(dict.fromkeys(row["set"] for row in table)):
        for method, line in zip(chosen, LINES, strict=False):
            own = [row for row in table if row["set"] == name and row["method"] == method]
            if own:
                _curve(axes, own, metric, COLOURS[place], MARKERS[place], line)
    axes.axhline(1.0, color=GREY, linewidth=1.0, zorder=1)
    axes.axvline(1.0, color=GREY, linewidth=1.0, zorder=1)
    logarithmic(axes)
    style_axes(axes, title, "time / time on all rows", f"{METRICS[metric]}\n/ that of all rows")


def logarithmic(axes: Any) -> None:
    """Make both axes logarithmic, a decade long at least, with plain numbers at the ticks."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, limits in ((axes.xaxis, axes.set_xlim), (axes.yaxis, axes.set_ylim)):
        low, high = axis.get_view_interval()
        wider = max(1.0, np.sqrt(10.0 * low / high))
        low, high = limits(low / wider, high * wider)
        subs = (1.0, 2.0, 5.0) if high / low < 300.0 else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=8))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def heading(metric: str) -> str:
    return METRICS[metric][0].upper() + METRICS[metric][1:]


def _curve(
    axes: Any, own: Sequence[Mapping[str, Any]], metric: str, colour: str, marker: str, line: str
) -> None:
    x, y = _column(own, "seconds"), _column(own, metric)
    bars = {
        "xerr": np.abs([_column(own, "seconds_low") - x, _column(own, "seconds_high") - x]),
        "yerr": np.abs([_column(own, f"{metric}_low") - y, _column(own, f"{metric}_high") - y]),
    }
    axes.errorbar(x, y, **bars, fmt="none", ecolor=colour, elinewidth=0.8, alpha=0.6)
    axes.plot(x, y, line, color=colour, linewidth=1.6)
    # small for the smallest M, large for the largest
    axes.scatter(x, y, s=np.linspace(12.0, 70.0, len(x)), color=colour, marker=marker, zorder=3)


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> Float[np.ndarray, " n"]:
    return np.array([float(row[name]) for row in rows])


def legend(
    holder: Any, names: Sequence[str], chosen: Sequence[str], location: str, columns: int = 3
) -> None:
    """Say what colours and line styles mean."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=COLOURS[i], marker=MARKERS[i], label=sets.TITLES[name])
        for i, name in enumerate(names)
    ]
    families = {sets.family_of(name) for name in names}
    handles += [
        Line2D([], [], color="black", linestyle=line, label=method)
        for method, line in zip(chosen, LINES, strict=False)
        if any(methods.suits(method, family) for family in families)
    ]
    holder.legend(
        handles=handles, loc=location, ncols=columns, fontsize=10, edgecolor="none", framealpha=0.85
    )


def draw_families(table: Sequence[Mapping[str, Any]], chosen: Sequence[str], title: str) -> Any:
    """Draw both errors against time, a row of panels for each family of models (Figures 7 to 9)."""
    present = dict.fromkeys(row["set"] for row in table)
    families = [one for one in sets.FAMILIES if any(name in present for name in sets.FAMILIES[one])]
    picture = figure(12.0, 1.0 + 4.4 * len(families))
    picture.suptitle(title, fontsize=14)
    all_axes = np.atleast_2d(picture.subplots(len(families), 2))
    for family, pair in zip(families, all_axes, strict=True):
        names = [name for name in sets.FAMILIES[family] if name in present]
        own = [row for row in table if row["set"] in names]
        for axes, metric in zip(pair, ("nll", "wasserstein"), strict=True):
            draw_against_time(axes, own, metric, chosen, sets.TITLES[family])
        legend(pair[1], names, chosen, "best", 1)
    return picture


def comparison(options: argparse.Namespace, number: int, chosen: Sequence[str], title: str) -> None:
    """Make one of Figures 7 to 9: PNG and CSV."""
    names = runs.QUICK_SETS if options.quick else sets.NAMES
    table = summary(relative_to_full(results(options, names, chosen)))
    finish(options, number, draw_families(table, chosen, title), table)


def finish(
    options: argparse.Namespace, number: int, picture: Any, table: Sequence[Mapping[str, Any]]
) -> None:
    """Write a figure and the numbers in it."""
    folder = runs.folder_of(options)
    common.write_csv(folder / f"figure_{number}.csv", table)
    common.save(picture, folder / f"figure_{number}.png")


class Shown(NamedTuple):
    """What one panel of coresets shows.

    Attributes
    ----------
    method, M
        Of the coresets.
    coreset
        Of the first trial.
    means
        Means of the draws, a row for each trial; of `DataSet.comparable` vectors.
    """

    method: str
    M: int
    coreset: Coreset
    means: Float[np.ndarray, "trials k"]


def coresets(
    options: argparse.Namespace, data: DataSet, chosen: Sequence[str]
) -> list[list[Shown]]:
    """Return coresets and posterior means to show: a list for each method, ascending in M.

    The sampler does a tenth of the steps of `runs`: the means are all that is wanted.
    """
    settings = runs.settings_of(options)
    sizes = settings.sizes if options.quick else SHOWN_SIZES
    trials = QUICK_SHOWN_TRIALS if options.quick else SHOWN_TRIALS
    sampler = data.sampler(max(1000, settings.steps_on(data.name) // 10))
    found = []
    for method in chosen:
        asked = methods.sizes_of(method, sizes, data.n_rows)
        paths = [
            methods.build(data, method, asked, 1000 * settings.seed + trial, settings.projection)
            for trial in range(trials)
        ]
        found.append([_shown(data, sampler, method, list(one)) for one in zip(*paths, strict=True)])
    return found


def _shown(data: DataSet, sampler: Any, method: str, trials: Sequence[methods.Built]) -> Shown:
    means = []
    for trial, built in enumerate(trials):
        z = sampler.sample(jax.random.key(trial), built.coreset.density).flat
        means.append(data.comparable(z).mean(axis=0))
    return Shown(method, trials[0].M, trials[0].coreset, np.stack(means))


def draw_rows_and_time(
    options: argparse.Namespace,
    number: int,
    data: DataSet,
    chosen: Sequence[str],
    panel: Any,
    projection: str | None = None,
) -> None:
    """Make one of Figures 3 to 5: pictures of coresets above, errors against time below.

    ``panel(axes, data, shown)`` draws one coreset.
    """
    names = [data.name] if options.quick else sets.FAMILIES[data.family]
    compared = ("FW-F", "Rand")
    table = summary(relative_to_full(results(options, names, compared)))
    cut = runs.settings_of(options).load(data.name)
    shown = coresets(options, cut, chosen)
    height = (2.9 if projection is None else 2.2) * len(shown)  # maps are twice as wide as high
    picture = figure(11.0, height + 4.6)
    above, below = picture.subfigures(2, 1, height_ratios=[height, 4.6])
    kind = {} if projection is None else {"subplot_kw": {"projection": projection}}
    all_axes = above.subplots(len(shown), len(shown[0]), squeeze=False, **kind)
    for line, of_method in zip(all_axes, shown, strict=True):
        for axes, one in zip(line, of_method, strict=True):
            panel(axes, cut, one)
            axes.set_title(f"{METHOD_TITLES[one.method]}, M = {one.M:,}", fontsize=10, loc="left")
    for axes, metric in zip(below.subplots(1, 2), ("nll", "wasserstein"), strict=True):
        draw_against_time(axes, table, metric, compared, heading(metric))
    legend(below, names, compared, "outside lower center", len(names) + len(compared))
    finish(options, number, picture, table)


def areas(weights: Float[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
    """Return marker areas in proportion to the weights, which are shares of all the weight."""
    return np.maximum(SMALLEST_AREA, WEIGHT_AREA * weights / weights.sum())


def draw_kept(
    axes: Any, x: Float[np.ndarray, " M"], y: Float[np.ndarray, " M"], weights: Any
) -> None:
    """Draw the coreset's rows, the heaviest behind the others."""
    order = np.argsort(-weights)
    axes.scatter(
        x[order], y[order], s=areas(weights)[order], facecolor=(0.0, 0.0, 0.0, 0.35),
        edgecolor="black", linewidth=0.6, zorder=4,
    )  # fmt: skip
