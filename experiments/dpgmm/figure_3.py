"""Borsos, Bachem & Krause (2017), Figure 3: held-out error and speed-up of coreset fits.

    python -m experiments.dpgmm.figure_3 [--sets NAME ...] [--quick] [--trials T] [--splits S]
        [--readings {inverse,printed} ...] [--components T] [--iterations I] [--seed SEED]
        [--output FOLDER]

(a) |L − L_full|/|L_full| against the coreset size M, with L the total log probability of the 20 %
held-out rows under the posterior predictive (Section 4): mean and 95 % interval over the
runs. (b) The CPU seconds of the full fit over those of the fit, medians over the runs, against the
same error; start and choice of rows are in the seconds, compiling is not. The paper gives no sizes
in its text; here they are shares of N.

W₀ = 10·I has two readings (`experiments.dpgmm.fits.READINGS`): "inverse" is W₀⁻¹ = 10·I, and
"printed" is W₀ = 10·I. Errors are against the full fit under the same reading.

Every run has a split of its own; with S splits, as where a full fit is dear, run r has the split
r mod S, and a start and draws of its own. Results are kept run by run in ``runs_SET.csv`` and
``runs_SET_printed.csv``; started again, the program does what is missing. Several sets may be run
at the same time.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import t as student

from decoct.plots.style import COLOURS, GREY, figure, style_axes
from experiments import common
from experiments.dpgmm import sets
from experiments.dpgmm.fits import (
    CORESET,
    FULL,
    INVERSE,
    PRINTED,
    READINGS,
    UNIFORM,
    Fitted,
    Settings,
    fit,
)

SHARES = (0.01, 0.02, 0.05, 0.1)
"""M/N."""

QUICK_SHARES = (0.02, 0.1)
TRIALS, QUICK_TRIALS = 25, 2
KDD, KDD_RAW = "protein_homology", "protein_homology_raw"
FEW_SHARES = dict.fromkeys((KDD, KDD_RAW), (0.01, 0.02, 0.05))
FEW_SPLITS = dict.fromkeys(((KDD, PRINTED), (KDD_RAW, INVERSE), (KDD_RAW, PRINTED)), 2)
"""Where a full fit takes minutes: fewer sizes, and beside the main reading runs share splits."""

QUICK_SETS, QUICK_ROWS = ("rare",), 4000
COLOUR = {CORESET: COLOURS[0], UNIFORM: COLOURS[1]}
LABELS = {CORESET: "lightweight coreset", UNIFORM: "uniform rows"}
PRIORS = {INVERSE: "W₀⁻¹ = 10·I", PRINTED: "W₀ = 10·I, as printed"}
LINES = {INVERSE: {}, PRINTED: {"linestyle": "--", "markerfacecolor": "white"}}

Row = dict[str, Any]


def runs(
    name: str,
    reading: str,
    x: Float[np.ndarray, "N D"],
    options: argparse.Namespace,
    done: Sequence[Row],
) -> Iterator[Row]:
    """Yield what is not done yet, a row of the table per fit."""
    settings = Settings(options.components, READINGS[reading], options.iterations)
    have = {(int(one["run"]), one["method"], int(one["M"])) for one in done}
    warmed: set[tuple[str, int]] = set()
    trials = options.trials or TRIALS
    splits = min(trials, options.splits or FEW_SPLITS.get((name, reading), trials))
    for trial in range(trials):
        train, test = sets.split(x, options.seed + trial % splits)
        shares = QUICK_SHARES if options.quick else FEW_SHARES.get(name, SHARES)
        sizes = [round(share * len(train)) for share in shares]
        wanted = [(FULL, len(train))] if trial < splits else []
        wanted += [(method, size) for size in sizes for method in (CORESET, UNIFORM)]
        for method, size in wanted:
            if (trial, method, size) not in have:
                if (method, size) not in warmed:
                    # compiles, which the seconds of a fit should not hold
                    fit(method, train, size, options.seed, replace(settings, iterations=2))
                    warmed.add((method, size))
                fitted = fit(method, train, size, _seed(options.seed, trial), settings)
                yield {
                    "set": name, "run": trial, "split": trial % splits, "method": method,
                    "M": size, "N": len(train), **measured(fitted, test),
                }  # fmt: skip


def _seed(seed: int, trial: int) -> int:
    return int(np.random.SeedSequence([seed, trial]).generate_state(1)[0] % 2**31)


def measured(fitted: Fitted, test: Float[np.ndarray, "m D"]) -> Row:
    """Return what a fit is worth and what it cost."""
    mixture = fitted.mixture
    chosen: Row = {} if mixture.coreset_ is None else mixture.coreset_.report.rounds[0]
    return {
        "rows": "" if fitted.picked is None else len(fitted.picked),
        # more digits than a table has: errors are differences of these
        "log_probability": f"{mixture.score_samples(test).sum():.12g}",
        "test_rows": len(test),
        "seconds": fitted.seconds,
        "iterations": mixture.n_iter_,
        "components": int((mixture.weights_ > 1e-4).sum()),
        "normalised_entropy": chosen.get("normalised_entropy", ""),
    }


def relative(table: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return error and speed-up of every run, against the full fit of its split and reading."""
    full = {_fit_of(one): one for one in table if one["method"] == FULL}
    found = []
    for one in table:
        if one["method"] == FULL or _fit_of(one) not in full:
            continue
        exact = full[_fit_of(one)]
        at = float(exact["log_probability"])
        found.append(
            {
                "set": one["set"], "reading": _reading(one), "method": one["method"],
                "M": int(one["M"]),
                "N": int(one["N"]), "split": one["split"],
                "error": abs(float(one["log_probability"]) - at) / abs(at),
                "speedup": float(exact["seconds"]) / float(one["seconds"]),
            }
        )  # fmt: skip
    return found


def _reading(one: Mapping[str, Any]) -> str:
    return next(name for name, value in READINGS.items() if float(one["covariance_prior"]) == value)


def _fit_of(one: Mapping[str, Any]) -> tuple[str, str, str]:
    return one["set"], _reading(one), one["split"]


def summary(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return means and 95 % intervals (Student's t) of errors, medians and quartiles of speed-ups.

    Something else on the machine may make a fit of milliseconds take seconds: no mean of those.
    """
    groups: dict[tuple[str, str, str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for one in found:
        groups[one["set"], one["reading"], one["method"], one["M"]].append(one)
    rows = []
    for (name, reading, method, size), ones in sorted(groups.items()):
        n = ones[0]["N"]
        row: Row = {"set": name, "reading": reading, "method": method, "M": size}
        row |= {"percent": 100.0 * size / n}
        errors = np.array([one["error"] for one in ones])
        margin = 0.0
        if len(errors) > 1:
            margin = student.ppf(0.975, len(errors) - 1) * errors.std(ddof=1) / np.sqrt(len(errors))
        mean = errors.mean()
        row |= {"error": mean, "error_low": mean - margin, "error_high": mean + margin}
        low, middle, high = np.quantile([one["speedup"] for one in ones], [0.25, 0.5, 0.75])
        row |= {"speedup": middle, "speedup_low": low, "speedup_high": high}
        row |= {"n_over_m": n / size, "runs": len(ones)}
        rows.append(row | {"splits": len({one["split"] for one in ones})})
    return rows


def draw(table: Sequence[Row], what: str) -> Any:
    """Draw (a) error against M, or (b) speed-up against error, a panel per set."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    names = [name for name in sets.NAMES if any(one["set"] == name for one in table)]
    picture = figure(max(6.0, 4.2 * len(names)), 4.6)
    panels = picture.subplots(1, len(names), squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        curves: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for one in sorted(table, key=lambda one: one["M"]):
            if one["set"] == name:
                curves[one["reading"], one["method"]].append(one)
        for (reading, method), ones in sorted(curves.items()):
            _draw_curve(axes, what, reading, method, ones)
        if what == "error":
            style_axes(
                axes, sets.TITLES[name], "M, rows drawn", "relative error, held-out log prob."
            )
        else:
            style_axes(axes, sets.TITLES[name], "relative error, held-out log prob.", "speed-up")
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.5g}"))
            axis.set_minor_formatter(NullFormatter())
    handles = {}
    for axes in panels:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    picture.legend(
        handles.values(), handles, loc="outside lower center", ncols=2, frameon=False, fontsize=11
    )
    return picture


def _draw_curve(axes: Any, what: str, reading: str, method: str, ones: Sequence[Row]) -> None:
    colour = COLOUR[method]
    how = {"color": colour, "marker": "o", "markersize": 5, **LINES[reading]}
    how |= {"label": f"{LABELS[method]}, {PRIORS[reading]}"}
    columns = ("M", "percent", "error", "error_low", "error_high", "speedup")
    column = {key: np.array([float(one[key]) for one in ones]) for key in columns}
    if what == "error":
        floor = np.maximum(column["error_low"], 0.1 * column["error"])
        axes.plot(column["M"], column["error"], **how)
        axes.fill_between(column["M"], floor, column["error_high"], color=colour, alpha=0.2)
        return
    axes.plot(column["error"], column["speedup"], **how)
    for x, y, percent in zip(column["error"], column["speedup"], column["percent"], strict=True):
        axes.annotate(
            f"{percent:.3g} %", (x, y), xytext=(5, 3), textcoords="offset points", fontsize=9,
            color=GREY,
        )  # fmt: skip


def kept(path: Path, settings: Mapping[str, Any]) -> list[Row]:
    """Return what an earlier start of the same settings found, or end with a sentence."""
    if not path.exists():
        return []
    table = common.read_csv(path)
    for key, value in settings.items():
        other = {float(one[key]) for one in table} - {float(value)}
        if other:
            sys.exit(
                f"{path} has runs of {key} {other.pop():g}, not {value}; use another --output."
            )
    return [dict(one) for one in table]


def run_set(name: str, reading: str, options: argparse.Namespace) -> None:
    """Do what is missing of a set under a reading."""
    path = options.output / f"runs_{name}{'' if reading == INVERSE else f'_{reading}'}.csv"
    settings = {
        "seed": options.seed, "T": options.components, "most_iterations": options.iterations,
        "covariance_prior": READINGS[reading],
    }  # fmt: skip
    table = kept(path, settings)
    x = sets.load(name)[: QUICK_ROWS if options.quick else None]
    for one in runs(name, reading, x, options, table):
        table.append(one | settings)
        common.write_csv(path, table)
        print(
            f"{name}, {reading}, run {one['run']} {one['method']} M {one['M']:,}: "
            f"{one['seconds']:.1f} s, {one['iterations']} iterations",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, Path(__file__).parent)
    parser.add_argument("--sets", nargs="+", choices=sets.NAMES, help="all of them if not given")
    parser.add_argument("--splits", type=int, help="splits that have a full fit")
    parser.add_argument("--components", type=int, help="T; the paper's is 100")
    parser.add_argument("--iterations", type=int, default=100, help="most of a fit")
    parser.add_argument(
        "--readings", nargs="+", choices=READINGS, help="of W₀ = 10·I; both if not given"
    )
    options = parser.parse_args(arguments)
    quick = options.quick
    options.components = options.components or (20 if quick else 100)
    if quick:
        options.output = options.output / "quick"
        options.trials = options.trials or QUICK_TRIALS
    for reading in options.readings or READINGS:
        for name in options.sets or (QUICK_SETS if quick else sets.NAMES):
            run_set(name, reading, options)
    # what other starts have found is drawn too
    tables = [common.read_csv(path) for path in sorted(options.output.glob("runs_*.csv"))]
    found = summary([one for table in tables for one in relative(table)])
    common.write_csv(options.output / "figure_3.csv", found)
    common.save(draw(found, "error"), options.output / "figure_3a.png")
    common.save(draw(found, "speedup"), options.output / "figure_3b.png")


if __name__ == "__main__":
    main()
