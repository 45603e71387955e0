"""The page of the comparison, made of its table: ``python -m benchmarks.peers.page``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.lines import HEADINGS, TITLES, Cell, frontier, read_cells
from benchmarks.tables import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "compared.md"

LEVELS = (0.05, 0.02, 0.01)
"""Errors of means, in posterior standard deviations, root mean square over the parameters."""

LARGE = 100_000
"""Rows from which on the claim about evaluations is asked."""

OURS = ("decoct", "decoct_rows")

PREAMBLE = """\
# Where decoct stands

decoct and its peers on the same posteriors, in one run: `python -m benchmarks.peers`
([CSV](../benchmarks/results/peers.csv)). This page is made of that file by `python -m
benchmarks.peers.page`; no number on it was typed.

![error of means against evaluations, one panel a posterior](../benchmarks/results/peers.png)

*Root mean square error of the posterior means, in posterior standard deviations, against
evaluations. Of settings that a method leaves to the user the best is drawn. Grey: within the
truth's own Monte Carlo error. The line is at 0.05 sd.*

**Evaluations** are log-likelihoods of one row at one point, with or without the gradient; a
Hessian is one more for every likelihood parameter that the row depends on. They are given in N,
the rows of the table: so many evaluations of the whole likelihood. Priors are free, and so is
decoct's site. decoct's are those of its report, which counts a gradient as two and has the
build's own measurement of KL in it; drawing from the coreset is added. **Seconds** are of the
processor, on one core, compiling included, without loading the table. **GB** is the peak of the
process: interpreter, libraries and table are about 0.6 of it.

**Errors** are over all unconstrained parameters (scales as logarithms): of means in posterior sd,
of sds relative; W₁ is the 1-Wasserstein distance of the worst marginal in sd; KL is that of
Gaussians with the moments of draws and truth, which says little where draws are fewer than d²: of
466 parameters it is mostly noise. **The truth** is NumPyro's NUTS on all rows, two long chains in
coordinates of the Laplace approximation; control variates made of the scores (Mira, Solgi &
Imparato 2013) take most of the Monte Carlo error out of its means and sds. "≤" marks what is
within that error. A figure is of one seed.

**Settings.** Samplers have one chain and the settings they come with; SGLD, SGHMC, Laplace and
HMCECS's proxy have the mode by L-BFGS and one Hessian, which is counted. SGLD and SGHMC move in
coordinates of the Laplace approximation, with batches of N/100 rows, 100 to 1,000. ADVI and DAIS
have batches of N/50, 100 to 1,000, and Adam with steps falling from 0.02 to 2e-4. PASS-GLM's
quadratic is fitted on [−R, R] and drawn from by decoct's NUTS, as are uniform rows, quasi-Newton
coresets and Coreset MCMC. The last two are our own implementations of their equations. Step
sizes, R, τ of quasi-Newton coresets and sizes M are tried on a grid, and every one is in the
table: where the best is taken, an oracle chose it. New York's flights have an orthonormal design,
as is recommended for samplers on all rows.
"""

BETTER = """\
## What each peer does better

- **NUTS on all rows** is exact whatever the posterior looks like, and has nothing to choose;
  below a few thousand rows it is also the fastest way to two digits.
- **Laplace** costs some tens of evaluations of the likelihood where decoct costs hundreds or
  more. Where its means are good enough, or the importance weights of draws are (few parameters,
  or a near-Gaussian posterior), nothing beats it. It has no answer where the posterior is far
  from normal.
- **Pathfinder** needs no Hessian and starts from nowhere.
- **HMCECS** and **stochastic gradients** look at a few rows a step: at tens or hundreds of N they
  are past the mode and sampling. They need the mode, a batch size and (SGLD, SGHMC) a step size,
  and nothing says how far off they are.
- **ADVI** and **DAIS** need a fraction of a pass to be roughly right, and any model that NumPyro
  can write.
- **PASS-GLM's quadratic** needs exactly one pass, and adds up over machines and time.
- **Uniform rows** cost nothing.
- **Quasi-Newton coresets** and **Coreset MCMC** need neither gradients nor smoothness of the
  likelihood.
"""


def number(value: float, floor: float = 0.0) -> str:
    """Return a figure in two digits; what is within the truth's own error as "≤"."""
    mark, value = ("≤ ", floor) if value <= floor else ("", value)
    if value == 0.0 or 1e-3 <= value < 1e5:
        return f"{mark}{value:.2g}" if value < 10 else f"{mark}{value:,.0f}"
    mantissa, power = f"{value:.0e}".split("e")
    return f"{mark}{mantissa}e{int(power)}"


def first_to_reach(
    cells: Sequence[Cell], level: float, figures: Sequence[str], cost: str = "evaluations"
) -> Cell | None:
    """Return the cell of the least cost whose figures are all at most a level."""
    there = [c for c in cells if not c.failed and all(c[f] <= level for f in figures)]
    return min(there, key=lambda cell: cell[cost], default=None)


def of_method(cells: Sequence[Cell], *methods: str) -> list[Cell]:
    """Return the cells of methods."""
    return [cell for cell in cells if cell.method in methods]


def table_of(cells: Sequence[Cell]) -> list[str]:
    """Return the table of a posterior: a line a method, at its most accurate budget."""
    lines = [
        "| method | "
        + " | ".join(f"N to {level:g} sd" for level in LEVELS)
        + " | N | budget | means, rms | worst | sds, rms | worst | W₁ | KL | s | GB |",
        "|---" * (len(LEVELS) + 11) + "|",
    ]
    for method, title in TITLES.items():
        mine = [cell for cell in of_method(cells, method) if not cell.failed]
        if not mine:
            continue
        reached = (first_to_reach(mine, level, ["mean_rms"]) for level in LEVELS)
        costs = [number(one.evaluations / one.n_rows) if one else "—" for one in reached]
        best = frontier(mine)[-1]
        names = ("mean_rms", "mean_worst", "sd_rms", "sd_worst", "w1_worst", "kl")
        figures = [number(best[name], best.floor(name)) for name in names]
        spent = [number(best.evaluations / best.n_rows), best.line["budget"]]
        means = [number(best["cpu_seconds"]), number(best["peak_gb"])]
        lines.append("| " + " | ".join([title, *costs, *spent, *figures, *means]) + " |")
    return lines


def claims(
    cells: Sequence[Cell], names: Sequence[str], figures: Sequence[str], cost: str
) -> list[str]:
    """Return who reaches every level at the least cost, a line a posterior and level."""
    lines = []
    for name in names:
        here = [cell for cell in cells if cell.posterior == name]
        for level in LEVELS:
            reach = [
                first_to_reach(of_method(here, *methods), level, figures, cost)
                for methods in (OURS, *((m,) for m in TITLES if m not in OURS))
            ]
            ours, peers = reach[0], [one for one in reach[1:] if one]
            peers.sort(key=lambda one: one[cost])
            columns = [HEADINGS[name], f"{level:g}", _cost(ours, cost), _less(ours, peers, cost)]
            lines.append(f"| {' | '.join(columns)} |")
    return lines


def _cost(cell: Cell | None, cost: str) -> str:
    if cell is None:
        return "not reached"
    if cost == "evaluations":
        return f"{number(cell.evaluations / cell.n_rows)} N"
    return f"{number(cell[cost])} s"


def _less(ours: Cell | None, peers: Sequence[Cell], cost: str) -> str:
    before = [p for p in peers if ours is None or p[cost] < ours[cost]]
    if before:
        return "; ".join(f"{one.title}: {_cost(one, cost)}" for one in before)
    if ours is None:
        return "none reached it"
    return f"**none**; next {peers[0].title}: {_cost(peers[0], cost)}" if peers else "**none**"


def verdict(lines: Sequence[str], what: str) -> str:
    """Return the answer to the question of the section in one sentence."""
    won = sum("**none**" in line for line in lines)
    answer = "yes" if won == len(lines) else f"no, at {won} of {len(lines)}"
    return f"Does decoct take the {what} at every level on every such table? **{answer}**."


QUESTIONS = (
    ("Means to so many sd, evaluations.", ["mean_rms"], "evaluations", "fewest evaluations"),
    (
        "Means, and sds relative, both to that, evaluations.",
        ["mean_rms", "sd_rms"],
        "evaluations",
        "fewest evaluations",
    ),
    (
        "Means, and sds relative, both to that, seconds.",
        ["mean_rms", "sd_rms"],
        "cpu_seconds",
        "least processor time",
    ),
)
"""Heading, figures, cost and what is asked."""


def large_tables(cells: Sequence[Cell]) -> list[str]:
    """Return the section that asks who costs least on large tables."""
    large = {c.posterior for c in cells if c.line["n_rows"] and c.n_rows >= LARGE}
    names = [name for name in HEADINGS if name in large]
    lines = [f"## Who costs least on tables of {LARGE:,} rows and more", ""]
    for heading, figures, cost, what in QUESTIONS:
        found = claims(cells, names, figures, cost)
        lines += [f"**{heading}** {verdict(found, what)}", ""]
        head = ["| posterior | level | decoct | peers with less |", "|---|---|---|---|"]
        lines += [*head, *found, ""]
    return lines


def failures(cells: Sequence[Cell]) -> list[str]:
    """Return what failed, and why."""
    lines = ["## What failed", ""]
    for cell in cells:
        if cell.failed:
            budget = f", {cell.line['budget']}" if cell.line["budget"] else ""
            lines.append(f"- {HEADINGS[cell.posterior]}, {cell.title}{budget}: {cell.failed}")
    return [*lines, ""] if len(lines) > 2 else []


def page_of(cells: Sequence[Cell]) -> str:
    """Return the page."""
    lines = [PREAMBLE, *large_tables(cells), BETTER, "## Every posterior", ""]
    lines += [
        "N to a level: evaluations at which the means' rms error is first at most that. Then the "
        "budget with the smallest such error.",
        "",
    ]
    for name, heading in HEADINGS.items():
        here = [cell for cell in cells if cell.posterior == name]
        if here:
            size = next(c for c in here if c.line["n_rows"])
            lines += [
                f"### {heading}, N = {size.n_rows:,}, d = {size.dim}",
                "",
                *table_of(here),
                "",
            ]
    lines += failures(cells)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--csv", type=Path, default=RESULTS / "peers.csv")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    options.page.write_text(page_of(read_cells(options.csv)))


if __name__ == "__main__":
    main()
