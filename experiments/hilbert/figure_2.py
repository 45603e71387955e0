"""Campbell & Broderick (2019), Figure 2: the mean of a Gaussian, where every posterior is known.

    python -m experiments.hilbert.figure_2 [--quick] [--trials T] [--seed SEED] [--output FOLDER]

    μ ~ N(0, I),  y_n | μ ~ N(μ, I),  n = 1..1000, in two dimensions                     (Eq. 6.1)
    π_w = N(μ_w, I/(1 + Σ w_n)),  μ_w = Σ w_n y_n/(1 + Σ w_n);  π has w = 1         (Eq. 6.2, 6.4)
    ⟨f_n, f_m⟩ = 2/(1 + N) + (μ_π − y_n)ᵀ(μ_π − y_m), weighted Fisher, π̂ = π               (Eq. 6.5)
    KL(π‖π_w) = e − log(1 + e) + ½(1 + Σ w_n)‖μ_w − μ_π‖²,  1 + e = (1 + Σ w_n)/(1 + N)    (Eq. 6.6)

(a–d) coresets of one data set and posterior predictive 3σ ellipses of several data sets; (e) KL
against the iterations M with exact norms; (f) KL at M = 50 against the dimension J of the
projection. Every trial has its own μ and data. Beside the paper's four methods (e) shows the other
solvers of `decoct.solvers` on the same vectors, and Frank–Wolfe far beyond M = N, where its linear
convergence (Theorem 4.4) sets in.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

import decoct
from decoct.constructions import Hilbert, Sensitivity, Uniform
from decoct.models import GaussianMean
from decoct.plots.style import COLOURS, GREY, figure, style_axes
from decoct.solvers import GIGA, Budget, FrankWolfe, ImportanceSampling, OrthogonalPursuit, Solver
from decoct.solvers.nnls import UnitVectors
from experiments import common

N, DIM = 1000, 2
MODEL = GaussianMean(np.eye(DIM))

TRIALS, QUICK_TRIALS = 100, 5
SIZES = (1, 2, 3, 4, 5, 7, 10, 14, 20, 30, 50, 70, 100, 140, 200, 300, 500, 700, 1000)
QUICK_SIZES = (1, 2, 5, 10, 20, 50, 100)
PROJECTIONS = (2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
QUICK_PROJECTIONS = (2, 10, 50, 200)
PROJECTED_SIZE = 50
"""M of (f)."""

LONG_SIZES = tuple(range(100, 6001, 100))
QUICK_LONG_SIZES = tuple(range(100, 1501, 100))
LONG_TRIALS = 20
"""Most data sets on which Frank–Wolfe runs that long."""

EXAMPLE_SIZES = (5, 50, 500)
EXAMPLE_RUNS = 6
"""Ellipses in a panel of (a–d)."""

FLOOR = 1e-16
"""Nats below which (e) does not tell KLs apart: rounding is near."""


class Curve(NamedTuple):
    """A method, and how it is drawn."""

    name: str
    solves: Any
    colour: str
    line: str = "-"


PAPER = (
    Curve("Rand", Uniform(), GREY),
    Curve("Unif", Sensitivity(), COLOURS[4]),
    Curve("IS", ImportanceSampling(), COLOURS[1]),
    Curve("FW", FrankWolfe(), COLOURS[0]),
)
"""The paper's methods: a construction on the rows, or a solver on the vectors of Eq. 6.5."""

BEYOND = (
    Curve("FW, fixed step", FrankWolfe(step="fixed"), COLOURS[0], ":"),
    Curve("FW, away steps", FrankWolfe("away"), COLOURS[5], "--"),
    Curve("FW, pairwise", FrankWolfe("pairwise"), COLOURS[5], "-."),
    Curve("FW, fully corrective", FrankWolfe("fully_corrective"), COLOURS[2], "--"),
    Curve("GIGA", GIGA(), COLOURS[3], "-"),
    Curve("orthogonal pursuit", OrthogonalPursuit(), "black", ":"),
)

Weighted = tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]
"""Row numbers and their weights."""


@dataclass(frozen=True)
class Data:
    """One data set, and what the exact norms see of it."""

    mean: Float[np.ndarray, " d"]
    y: Float[np.ndarray, "N d"]
    seed: int

    @classmethod
    def of(cls, seed: int, trial: int, mean: Float[np.ndarray, " d"] | None = None) -> Data:
        """Draw a trial's data (Eq. 6.1)."""
        rng = np.random.default_rng([seed, trial])
        mean = rng.standard_normal(DIM) if mean is None else mean
        return cls(mean, mean + rng.standard_normal((N, DIM)), int(rng.integers(2**31)))

    def vectors(self) -> UnitVectors:
        """Return D + 1 numbers per row whose products are those of Eq. 6.5."""
        offsets = self.y - posterior(self.y, np.ones(N))[0]
        vectors = np.column_stack([offsets, np.full(N, np.sqrt(DIM / (1.0 + N)))])
        return UnitVectors.scaled(vectors, vectors.sum(axis=0), overwrite=True)


def posterior(
    y: Float[np.ndarray, "m d"], weights: Float[np.ndarray, " m"]
) -> tuple[Float[np.ndarray, " d"], float]:
    """Return the mean and the precision of π_w (Eq. 6.4)."""
    precision = 1.0 + float(weights.sum())
    return weights @ y / precision, precision


def kl(y: Float[np.ndarray, "N d"], kept: Weighted) -> float:
    """Return KL(π‖π_w) in nats (Eq. 6.6)."""
    full_mean, full_precision = posterior(y, np.ones(len(y)))
    mean, precision = posterior(y[kept[0]], kept[1])
    excess = (precision - full_precision) / full_precision
    spread = 0.5 * DIM * (excess - np.log1p(excess))
    return float(spread + 0.5 * precision * np.square(mean - full_mean).sum())


def coresets(
    method: Any, data: Data, units: UnitVectors, sizes: Sequence[int]
) -> dict[int, Weighted]:
    """Return the coreset of every size, from one run with exact norms."""
    if isinstance(method, Solver):
        path = method.solve(units, Budget(tuple(sizes)), np.random.default_rng(data.seed))
        return {m: (found.indices, found.weights) for m, found in path.items()}
    built = decoct.path(MODEL, {"x": data.y}, sizes, method=method, seed=data.seed, progress=False)
    return {m: (one.indices, one.weights) for m, one in zip(sizes, built, strict=True)}


def projected(solver: Solver, data: Data, dimension: int, size: int) -> Weighted:
    """Return the coreset of a random projection on ``dimension`` draws of π (Algorithm 3)."""
    # The Laplace approximation of a Gaussian posterior is the posterior.
    method = Hilbert(solver, norm="fisher", weighting="laplace", draws=dimension)
    one = decoct.build(
        MODEL, {"x": data.y}, size=size, method=method, seed=data.seed, progress=False
    )
    return one.indices, one.weights


def against_size(
    curves: Iterable[Curve], trials: int, seed: int, sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the quartiles of KL for every method and size: (e)."""
    kls, rows = defaultdict(list), defaultdict(list)
    for trial in range(trials):
        data = Data.of(seed, trial)
        units = data.vectors()
        for curve in curves:
            for m, kept in coresets(curve.solves, data, units, sizes).items():
                kls[curve.name, m].append(kl(data.y, kept))
                rows[curve.name, m].append(len(kept[0]))
    return [
        {"method": name, "M": m, "rows": float(np.median(rows[name, m])), **_summary(found)}
        for (name, m), found in kls.items()
    ]


def against_projection(
    trials: int, seed: int, dimensions: Sequence[int], size: int
) -> list[dict[str, Any]]:
    """Return the quartiles of KL for exact (J empty) and projected norms: (f)."""
    kls = defaultdict(list)
    for trial in range(trials):
        data = Data.of(seed, trial)
        units = data.vectors()
        for curve in PAPER:
            exact = coresets(curve.solves, data, units, (size,))[size]
            kls[curve.name, ""].append(kl(data.y, exact))
            if isinstance(curve.solves, Solver):
                for j in dimensions:
                    kept = projected(curve.solves, data, j, size)
                    kls[curve.name, j].append(kl(data.y, kept))
    return [
        {"method": name, "M": size, "J": j, **_summary(found)} for (name, j), found in kls.items()
    ]


def _summary(kls: Sequence[float]) -> dict[str, Any]:
    low, middle, high = common.quartiles(kls)
    return {"kl_q25": low, "kl_median": middle, "kl_q75": high, "trials": len(kls)}


def examples(runs: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the first run's coresets and the predictive ellipse of every run: (a–d).

    The runs share the mean that generates their data.
    """
    mean = Data.of(seed, 0).mean
    for run in range(runs):
        data = Data.of(seed, run, mean)
        units = data.vectors()
        for curve in PAPER:
            for m, kept in coresets(curve.solves, data, units, EXAMPLE_SIZES).items():
                yield from _example(curve.name, m, run, data, kept)
    yield {"method": "true", "what": "ellipse", "x0": mean[0], "x1": mean[1], "size": 3.0}


def _example(method: str, m: int, run: int, data: Data, kept: Weighted) -> Iterator[dict[str, Any]]:
    where = {"method": method, "M": m, "run": run}
    centre, precision = posterior(data.y[kept[0]], kept[1])
    radius = 3.0 * np.sqrt(1.0 + 1.0 / precision)  # the predictive is N(μ_w, (1 + 1/precision) I)
    yield where | {"what": "ellipse", "x0": centre[0], "x1": centre[1], "size": radius}
    if run == 0:
        for n, weight in zip(*kept, strict=True):
            yield where | {"what": "row", "x0": data.y[n, 0], "x1": data.y[n, 1], "size": weight}


def draw_examples(found: Sequence[Mapping[str, Any]], data: Data) -> Any:
    """Draw (a–d): a row of panels per method, a column per M."""
    titles = {
        "Rand": "uniform subsampling",
        "Unif": "uniform coreset",
        "IS": "Hilbert importance sampling",
        "FW": "Hilbert Frank–Wolfe",
    }
    picture = figure(7.8, 10.6)
    grid = picture.subplots(len(PAPER), len(EXAMPLE_SIZES), sharex=True, sharey=True)
    for i, curve in enumerate(PAPER):
        for j, m in enumerate(EXAMPLE_SIZES):
            here = [one for one in found if one["method"] == curve.name and one["M"] == m]
            _draw_example(grid[i, j], here, data)
            title = f"({'abcd'[i]}) {titles[curve.name]}" if j == 0 else ""
            style_axes(grid[i, j], title, "$y_1$" if i == 3 else "", "$y_2$" if j == 0 else "")
            grid[i, j].annotate(f"M = {m}", (0.03, 0.97), xycoords="axes fraction", va="top")
    for weight in (1, 100, 10_000):
        grid[0, 0].scatter([], [], s=_area(weight), color="black", label=f"weight {weight:,}")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    picture.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False,
        fontsize=10, columnspacing=1.2,
    )  # fmt: skip
    return picture


def _area(weight: Any) -> Any:
    """Return the area of a point in square points; √ because weights go from 1 to 10,000."""
    return 4.0 * np.sqrt(weight)


def _draw_example(axes: Any, found: Sequence[Mapping[str, Any]], data: Data) -> None:
    from matplotlib.patches import Circle
    from matplotlib.ticker import MultipleLocator

    axes.scatter(*data.y.T, s=3, color="#c9c9c9", linewidths=0, antialiased=False, zorder=1)
    truth = {"color": COLOURS[0], "linewidth": 5.0, "alpha": 0.6, "label": "true 3σ", "zorder": 2}
    axes.add_patch(Circle(tuple(data.mean), 3.0, fill=False, **truth))
    label = f"predictive 3σ, {EXAMPLE_RUNS} runs"
    for one in found:
        if one["what"] == "ellipse":
            style = {"color": COLOURS[2], "linewidth": 1.1, "label": label, "zorder": 3}
            axes.add_patch(Circle((one["x0"], one["x1"]), one["size"], fill=False, **style))
            label = "_"
    rows = np.array([[one["x0"], one["x1"], one["size"]] for one in found if one["what"] == "row"])
    axes.scatter(
        *rows[:, :2].T, s=_area(rows[:, 2]), color="black", alpha=0.75, linewidths=0, zorder=4
    )
    axes.xaxis.set_major_locator(MultipleLocator(2.0))
    axes.set(aspect="equal", xlim=data.mean[0] + [-5, 5], ylim=data.mean[1] + [-5, 5])


def draw_against_size(found: Sequence[Mapping[str, Any]], long: Sequence[Mapping[str, Any]]) -> Any:
    """Draw (e): all methods on logarithmic axes, and Frank–Wolfe's rate on a linear one."""
    picture = figure(14.0, 6.3)
    left, right = picture.subplots(1, 2, width_ratios=(1.7, 1.0), sharey=True)
    left.set(xscale="log", yscale="log")
    _draw_curves(left, PAPER + BEYOND, found)
    style_axes(left, "(e) exact norms", "iterations M", "KL(π ‖ coreset posterior), nats")
    _plain_numbers(left)
    left.set_ylim(FLOOR / 3.0, None)
    left.axhline(FLOOR, color=GREY, linewidth=0.8)
    left.annotate(
        f"KLs below {FLOOR:g} are drawn here", (max(SIZES), FLOOR), xytext=(0, 5),
        textcoords="offset points", ha="right", fontsize=11, color=GREY,
    )  # fmt: skip
    _draw_curves(right, (PAPER[-1], BEYOND[0]), long)
    style_axes(right, "Frank–Wolfe, linear axis", "iterations M", "")
    _plain_numbers(right)
    handles, labels = left.get_legend_handles_labels()
    _legend(picture, handles, labels, found, long[0]["trials"])
    return picture


def _draw_curves(axes: Any, curves: Iterable[Curve], found: Sequence[Mapping[str, Any]]) -> None:
    for curve in curves:
        m, low, middle, high = _columns(found, curve.name, "M")
        paper = curve in PAPER
        if paper:
            axes.fill_between(m, low, high, color=curve.colour, alpha=0.2, linewidth=0)
        axes.plot(
            m, middle, curve.line, color=curve.colour, linewidth=3.0 if paper else 1.5,
            label=curve.name if paper else f"{curve.name} *",
        )  # fmt: skip


def _plain_numbers(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _legend(picture: Any, handles: Any, labels: Any, found: Any, long: int | None = None) -> None:
    title = f"median of {found[0]['trials']} data sets,\nband: quartiles"
    if long is not None:
        title += f"\n(right: {long} data sets)\n* beyond the paper"
    legend = picture.legend(
        handles, labels, loc="outside right upper", fontsize=11, frameon=False, title=title
    )
    legend.set_alignment("left")


def draw_against_projection(found: Sequence[Mapping[str, Any]]) -> Any:
    """Draw (f)."""
    picture = figure(10.0, 6.0)
    axes = picture.add_subplot()
    axes.set(xscale="log", yscale="log")
    for curve in PAPER:
        exact = next(one for one in found if one["method"] == curve.name and one["J"] == "")
        axes.axhline(
            exact["kl_median"], color=curve.colour, linestyle="--", linewidth=1.8,
            label=f"{curve.name}, exact" if isinstance(curve.solves, Solver) else curve.name,
        )  # fmt: skip
        if isinstance(curve.solves, Solver):
            j, low, middle, high = _columns(found, curve.name, "J")
            axes.fill_between(j, low, high, color=curve.colour, alpha=0.2, linewidth=0)
            axes.plot(
                j, middle, "o-", color=curve.colour, linewidth=2.5, label=f"{curve.name}, projected"
            )
    style_axes(
        axes, f"(f) projected norms, M = {found[0]['M']}", "projection dimension J",
        "KL(π ‖ coreset posterior), nats",
    )  # fmt: skip
    _plain_numbers(axes)
    handles, labels = axes.get_legend_handles_labels()
    _legend(picture, handles, labels, found)
    return picture


def _columns(found: Sequence[Mapping[str, Any]], method: str, x: str) -> tuple[np.ndarray, ...]:
    """Return x and the three quartiles of a method, floored for logarithmic axes."""
    rows = [one for one in found if one["method"] == method and one[x] != ""]
    values = np.array([[one[x], one["kl_q25"], one["kl_median"], one["kl_q75"]] for one in rows])
    values[:, 1:] = np.maximum(values[:, 1:], FLOOR)
    return tuple(values.T)


def _fewer_colours(path: Path) -> None:
    """Write a picture again with 64 colours: thousands of smoothed edges weigh less so."""
    from PIL import Image

    with Image.open(path) as picture:
        fewer = picture.convert("RGB").quantize(64, dither=Image.Dither.NONE)
    fewer.save(path, optimize=True)


def main(arguments: Sequence[str] | None = None) -> None:
    options = common.parser(__doc__, Path(__file__).parent).parse_args(arguments)
    quick, folder, seed = options.quick, options.output, options.seed
    trials = options.trials or (QUICK_TRIALS if quick else TRIALS)

    shown = list(examples(EXAMPLE_RUNS, seed))
    first = Data.of(seed, 0, Data.of(seed, 0).mean)
    common.write_csv(folder / "figure_2_abcd.csv", shown)
    common.save(draw_examples(shown, first), folder / "figure_2_abcd.png")
    _fewer_colours(folder / "figure_2_abcd.png")

    started = time.perf_counter()
    found = against_size(PAPER + BEYOND, trials, seed, QUICK_SIZES if quick else SIZES)
    common.write_csv(folder / "figure_2_e.csv", found)
    halfway = time.perf_counter()
    long = against_size(
        (PAPER[-1], BEYOND[0]), min(trials, LONG_TRIALS), seed,
        QUICK_LONG_SIZES if quick else LONG_SIZES,
    )  # fmt: skip
    common.write_csv(folder / "figure_2_e_long.csv", long)
    common.save(draw_against_size(found, long), folder / "figure_2_e.png")

    restarted = time.perf_counter()
    dimensions = QUICK_PROJECTIONS if quick else PROJECTIONS
    found = against_projection(trials, seed, dimensions, PROJECTED_SIZE)
    common.write_csv(folder / "figure_2_f.csv", found)
    ended = time.perf_counter()
    common.save(draw_against_projection(found), folder / "figure_2_f.png")
    print(
        f"seconds per trial: {(halfway - started) / trials:.2f} for (e), "
        f"{(ended - restarted) / trials:.2f} for (f)"
    )


if __name__ == "__main__":
    main()
