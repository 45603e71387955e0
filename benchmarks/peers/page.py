"""The page of the comparison and its picture, made of the file of cells and of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.cells import HEADINGS, TITLES, Cell, frontier, read_cells
from decoct.plots.style import figure

DOCS = Path(__file__).parents[2] / "docs"

LEVELS = (0.05, 0.02, 0.01)
"""Errors of means, in posterior standard deviations, root mean square over the parameters."""

ASKED = (0.05, 0.04, 0.03, 0.02, 0.01)
"""Levels of the claim about evaluations."""

LARGE = 100_000
"""Rows from which on the claim about evaluations is asked."""

OURS = ("decoct", "decoct_rows")

SHOWN = ("mean_rms", "sd_rms", "w1_worst", "kl")
"""Figures of the tables; of each a cell has the truth's own Monte Carlo error."""

PREAMBLE = """\
# Where decoct stands

decoct and peers on the same posteriors: `python -m benchmarks.peers`
([CSV](../benchmarks/results/peers.csv)). Each posterior has one truth. Posteriors ran on several
days, at speeds that varied by two: evaluations compare, seconds roughly.
`python -m benchmarks.pages` makes this page.

![error of means against evaluations, one panel a posterior](images/compared.png)

*Error of means against evaluations, at the best settings of those that users choose.
Grey: the truth's Monte Carlo error. Line: 0.05 sd.*

**Evaluations** are log-likelihoods of one row at one point, with or without the gradient; a Hessian
is one more for every likelihood parameter that the row depends on. They are given in N, the rows of
the table. The prior and decoct's site are not counted. decoct's are those of its report, which
counts a gradient as two and includes the build's own check, and those of drawing from the coreset.
**Seconds** are CPU seconds on one core, with compiling, without loading the table; later budgets of
a method are compiled already. **GB** is the largest memory of the process.

**Errors** are root mean squares over all unconstrained parameters (scales as logarithms): of means
in posterior sd, and of sds relative. W₁ is the 1-Wasserstein distance of the worst marginal in sd.
KL is that of Gaussians with the moments of draws and truth, "—" where the covariance cannot be
estimated. **The truth** is NumPyro's NUTS on all rows, two chains; control variates made of the
scores (Mira, Solgi & Imparato 2013) remove most of its Monte Carlo error. For the multilevel
models, chains start from decoct's draws and move in their coordinates. Its means of the diamonds
are within 0.018 sd of posteriordb's, which has another prior for the wells. A few draws for the
horseshoe and the poll diverged. "≤" marks what is within the truth's error (for the KL, with that
of the draws), "?" a level below twice that error. One seed.

**Settings.** Samplers have one chain. SGLD, HMCECS and Laplace start from the mode and a Hessian
there, both counted. SGLD moves in coordinates of the Laplace approximation. ADVI and DAIS use
minibatches and Adam with falling steps, and start where NUTS does, or at the mode, with Laplace's
median sd; steps of their means from there are in units of it. Quasi-Newton coresets and Coreset
MCMC are our own, with their authors' steps and uniform subsamples, of Coreset MCMC by class.
decoct's NUTS draws from them, from uniform rows and from PASS-GLM's quadratic. Step sizes of SGLD,
ADVI and DAIS, dampings, PASS-GLM's radius and numbers of rows, decoct's too, are tried on small
grids, and an oracle takes the best. After a budget over the time limit a method has no more. On
the flights no step of a quasi-Newton coreset passes its test: weights stay uniform.
"""

UNSEEN = """\
NUTS is exact for any posterior;
Pathfinder needs no Hessian; PASS-GLM's sums add up over machines and time; ADVI and DAIS take any
model that NumPyro can write; quasi-Newton coresets and Coreset MCMC need
neither gradients nor a smooth likelihood.
"""


def number(value: float, floor: float = 0.0) -> str:
    """Return a figure in two digits; what is within the truth's own error as "≤"."""
    if np.isnan(value):
        return "—"
    mark, value = ("≤ ", floor) if value <= floor else ("", value)
    if value == 0.0 or 1e-3 <= value < 1e5:
        return f"{mark}{value:.2g}" if value < 10 else f"{mark}{value:,.0f}"
    mantissa, power = f"{value:.0e}".split("e") if value < float("inf") else ("", "")
    return f"{mark}{mantissa}e{int(power)}" if power else "∞"


def of_method(cells: Sequence[Cell], *methods: str) -> list[Cell]:
    """Return the cells of methods that have figures."""
    return [cell for cell in cells if cell.method in methods and not cell.failed]


def error_of(cell: Cell) -> float:
    """Return the error of means, at least what the truth can tell."""
    return max(cell.mean_rms, cell.truth_mean_rms)


def is_known(cells: Sequence[Cell], level: float) -> bool:
    """Return whether an error of the level is to be seen beside the truth's own."""
    errors = [cell.truth_mean_rms for cell in cells if not cell.failed]
    return level >= 2.0 * max(errors, default=0.0)


def first_to_reach(cells: Sequence[Cell], level: float, cost: str = "passes") -> Cell | None:
    """Return the cell of the least cost whose means are within a level."""
    there = [cell for cell in cells if cell.mean_rms <= level]
    return min(there, key=lambda cell: getattr(cell, cost), default=None)


def table_of(cells: Sequence[Cell]) -> list[str]:
    """Return the table of a posterior: a line a method, at its most accurate budget."""
    heads = [f"N to {level:g} sd" for level in LEVELS]
    heads = ["method", *heads, "N at best", "means", "sds", "W₁", "KL", "s", "GB"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for method, title in TITLES.items():
        mine = of_method(cells, method)
        if not mine:
            continue
        best = frontier(mine)[-1]
        found = [number(getattr(best, k), getattr(best, f"truth_{k}")) for k in SHOWN]
        spent = [number(best.cpu_seconds), number(best.peak_gb)]
        costs = ["?"] * len(LEVELS)
        for i, level in enumerate(LEVELS):
            if is_known(cells, level):
                reached = first_to_reach(mine, level)
                costs[i] = number(reached.passes) if reached else "—"
        lines.append(f"| {' | '.join([title, *costs, number(best.passes), *found, *spent])} |")
    return [*lines, ""]


def large_table(cells: Sequence[Cell]) -> list[str]:
    """Return who reaches every level with the fewest evaluations, a line a posterior and level."""
    lines, won, total = [], 0, 0
    names = [n for n in HEADINGS if any(c.posterior == n and c.n_rows >= LARGE for c in cells)]
    for name in names:
        here = [cell for cell in cells if cell.posterior == name]
        for level in ASKED:
            if not is_known(here, level):
                columns = [HEADINGS[name], f"{level:g}", "the truth is not known so well", "—"]
                lines.append(f"| {' | '.join(columns)} |")
                continue
            total += 1
            ours = first_to_reach(of_method(here, *OURS), level)
            firsts = [first_to_reach(of_method(here, m), level) for m in TITLES if m not in OURS]
            peers = sorted((one for one in firsts if one), key=lambda one: one.passes)
            less = [p for p in peers if ours is None or p.passes < ours.passes]
            said = "; ".join(f"{TITLES[p.method]} {number(p.passes)}" for p in less) or "none"
            won += bool(ours) and not less
            cost = f"{number(ours.passes)} ({ours.budget} rows)" if ours else "—"
            columns = [HEADINGS[name], f"{level:g}", cost, said]
            lines.append(f"| {' | '.join(columns)} |")
    answer = "at all levels" if won == total else f"at {won} of {total} levels only"
    return [
        f"## Who takes the fewest evaluations on tables of {LARGE:,} rows and more",
        "",
        f"decoct, with a site or without, has the fewest **{answer}**. In N:",
        "",
        "| posterior | level, sd | decoct | peers with less |",
        "|---|---|---|---|",
        *lines,
        "",
    ]


def better_table(cells: Sequence[Cell]) -> list[str]:
    """Return on which posteriors each peer beats decoct, and in what."""
    lines = ["## What each peer does better", ""]
    lines += ["Posteriors on which it is ahead of decoct, with a site or without: smallest errors,"]
    lines += [f"least costs to {LEVELS[0]:g} sd (decoct's seconds: of its first budget, which"]
    lines += ["compiles), memory at the smallest error.", ""]
    lines += ["| method | means | sds | KL | evaluations | seconds | memory |", "|---" * 7 + "|"]
    for method in TITLES:
        if method in OURS:
            continue
        ahead: dict[str, list[str]] = {}
        for name in HEADINGS:
            here = [cell for cell in cells if cell.posterior == name]
            theirs = figures_of(here, of_method(here, method))
            decocts = figures_of(here, of_method(here, *OURS))
            for key, value in theirs.items():
                names = ahead.setdefault(key, [])
                names += [name.replace("_", " ")] * (value < decocts[key])
        said = [", ".join(names) or "—" for names in ahead.values()]
        lines.append(f"| {' | '.join([TITLES[method], *said])} |")
    return [*lines, "", UNSEEN]


def figures_of(here: Sequence[Cell], mine: Sequence[Cell]) -> dict[str, float]:
    """Return a method's smallest errors and costs on a posterior, infinite where it has none."""
    infinite = float("inf")
    found = {}
    for key in ("mean_rms", "sd_rms", "kl"):
        errors = (max(getattr(cell, key), getattr(cell, f"truth_{key}")) for cell in mine)
        found[key] = min((error for error in errors if not np.isnan(error)), default=infinite)
    for cost in ("passes", "cpu_seconds"):
        # decoct's later budgets are compiled already
        is_fair = cost == "passes" or (mine and mine[0].method not in OURS)
        some = [cell for cell in mine if is_fair or not cell.number]
        first = first_to_reach(some, LEVELS[0], cost) if is_known(here, LEVELS[0]) else None
        found[cost] = getattr(first, cost) if first else infinite
    found["peak_gb"] = frontier(mine)[-1].peak_gb if mine else infinite
    return found


def rows_table(cells: Sequence[Cell]) -> list[str]:
    """Return decoct's error of means at each number of rows, a line a posterior."""
    lines = ["## decoct by rows kept", "", "| error of means, sd | with a site | rows alone |"]
    lines += ["|---|---|---|"]
    for name, heading in HEADINGS.items():
        here = [cell for cell in cells if cell.posterior == name]
        said = [
            "; ".join(f"{one.budget}: {number(one.mean_rms)}" for one in of_method(here, method))
            for method in OURS
        ]
        lines.append(f"| {heading} | {' | '.join(one or '—' for one in said)} |")
    return [*lines, ""]


def failures(cells: Sequence[Cell]) -> list[str]:
    """Return what has no figures, and why: a line a method and reason."""
    reasons: dict[tuple[str, str], dict[str, list[str]]] = {}
    for cell in cells:
        if cell.failed:
            why = cell.failed.removeprefix("ValueError: ")
            where = reasons.setdefault((TITLES[cell.method], why), {})
            where.setdefault(cell.posterior.replace("_", " "), []).append(cell.budget)
    if not reasons:
        return []
    heads = "| method | why, in its program's words | posterior (budgets) |"
    lines = ["## What has no figures", "", heads, "|---|---|---|"]
    for (method, why), where in reasons.items():
        found = (f"{name} ({'; '.join(budgets)})" for name, budgets in where.items())
        lines.append(f"| {method} | {why} | {', '.join(found)} |")
    return [*lines, ""]


def page_of(cells: Sequence[Cell]) -> str:
    """Return the page."""
    lines = [PREAMBLE, *large_table(cells), *better_table(cells), "## Every posterior", ""]
    lines += [
        "Evaluations to a level of the means' error, then the budget with the smallest error."
    ]
    lines += [""]
    for name, heading in HEADINGS.items():
        here = [cell for cell in cells if cell.posterior == name]
        if here:
            lines += [f"### {heading}: N = {here[0].n_rows:,}, d = {here[0].dim}", ""]
            lines += table_of(here)
    return "\n".join([*lines, *rows_table(cells), *failures(cells)]).rstrip() + "\n"


STYLES = {
    "numpyro_nuts": ("#999999", "o", "-"),
    "nutpie": ("#999999", "s", "--"),
    "hmcecs": ("#56B4E9", "D", "-"),
    "sgld_cv": ("#56B4E9", "v", "--"),
    "laplace": ("#E69F00", "v", "-"),
    "laplace_weighted": ("#E69F00", "o", "-"),
    "pathfinder": ("#E69F00", "s", "--"),
    "pass_glm": ("#E69F00", "D", ":"),
    "advi": ("#009E73", "o", "-"),
    "advi_full": ("#009E73", "s", "--"),
    "dais": ("#009E73", "D", ":"),
    "uniform": ("#CC79A7", "o", ":"),
    "quasi_newton": ("#CC79A7", "s", "-"),
    "coreset_mcmc": ("#CC79A7", "D", "--"),
    "decoct": ("#000000", "o", "-"),
    "decoct_rows": ("#000000", "X", "--"),
}
"""Method -> colour of its family, marker, line."""


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Draw error against evaluations, one panel a posterior."""
    names = list(dict.fromkeys(cell.posterior for cell in cells if not cell.failed))
    picture = figure(15.0, 2.0 + 3.6 * -(-len(names) // 3))
    panels = picture.subplots(-(-len(names) // 3), 3, squeeze=False).ravel()
    handles: dict[str, Any] = {}
    for axes, name in zip(panels, names, strict=False):
        done = [cell for cell in cells if cell.posterior == name and not cell.failed]
        for method, (colour, marker, line) in STYLES.items():
            best = frontier(of_method(done, method))
            style = {"color": colour, "marker": marker, "linestyle": line, "markersize": 5}
            x, y = [one.evaluations for one in best], [one.mean_rms for one in best]
            handles[TITLES[method]] = axes.plot(x, y, **style)[0]
        first = done[0]
        axes.axhspan(1e-7, first.truth_mean_rms, color="#e3e3e3", zorder=0)
        axes.axhline(LEVELS[0], color="#6e6e6e", linewidth=0.7)
        axes.set(xscale="log", yscale="log", ylim=(0.5 * min(map(error_of, done)), 1e3))
        title = f"{HEADINGS[name]}\nN = {first.n_rows:,}, d = {first.dim}"
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("evaluations of a row")
        axes.set_ylabel("error of means, rms, in sd")
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    legend = {"loc": "outside lower center", "ncols": 4, "frameon": False, "fontsize": 10}
    picture.legend(handles.values(), handles.keys(), **legend)
    picture.savefig(path)


def write_page(table: Path) -> None:
    """Write docs/compared.md and its picture."""
    cells = read_cells(table)
    (DOCS / "compared.md").write_text(page_of(cells))
    draw(cells, DOCS / "images" / "compared.png")
