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


def first_to_reach(cells: Sequence[Cell], level: float, figures: Sequence[str]) -> Cell | None:
    """Return the cell with the fewest evaluations whose figures are all at most a level."""
    there = [c for c in cells if not c.failed and all(c[f] <= level for f in figures)]
    return min(there, key=lambda cell: cell.evaluations, default=None)


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


def claims(cells: Sequence[Cell], names: Sequence[str], figures: Sequence[str]) -> list[str]:
    """Return, for tables of `LARGE` rows, who needs the fewest evaluations at every level."""
    lines = []
    for name in names:
        here = [cell for cell in cells if cell.posterior == name]
        for level in LEVELS:
            ours = first_to_reach(of_method(here, *OURS), level, figures)
            peers = [m for m in TITLES if m not in OURS]
            firsts = [first_to_reach(of_method(here, m), level, figures) for m in peers]
            found = sorted((one for one in firsts if one), key=lambda one: one.evaluations)
            lines.append(
                f"| {HEADINGS[name]} | {level:g} | {_cost(ours)} | {_fewer(ours, found)} |"
            )
    return lines


def _cost(cell: Cell | None) -> str:
    return f"{number(cell.evaluations / cell.n_rows)} N" if cell else "not reached"


def _fewer(ours: Cell | None, peers: Sequence[Cell]) -> str:
    before = [p for p in peers if ours is None or p.evaluations < ours.evaluations]
    if before:
        return "; ".join(f"{one.title}: {_cost(one)}" for one in before)
    return f"**none**; next {peers[0].title}: {_cost(peers[0])}" if peers else "**none**"


def verdict(lines: Sequence[str]) -> str:
    """Return the answer to the question of the section in one sentence."""
    won = sum("**none**" in line for line in lines)
    if won == len(lines):
        return "decoct has the fewest evaluations at every level on every table of that size: yes."
    return (
        "decoct has the fewest evaluations at every level on every table of that size: no. "
        f"It has them at {won} of {len(lines)}."
    )


def large_tables(cells: Sequence[Cell]) -> list[str]:
    """Return the section that asks who needs the fewest evaluations on large tables."""
    large = {c.posterior for c in cells if c.line["n_rows"] and c.n_rows >= LARGE}
    names = [name for name in HEADINGS if name in large]
    lines = [f"## The fewest evaluations, tables of {LARGE:,} rows and more", ""]
    asked = {
        "Means to so many sd": ["mean_rms"],
        "Means, and sds relative, both to that": ["mean_rms", "sd_rms"],
    }
    for question, figures in asked.items():
        found = claims(cells, names, figures)
        lines += [f"**{question}.** {verdict(found)}", ""]
        lines += [
            "| posterior | level | decoct | peers with fewer |",
            "|---|---|---|---|",
            *found,
            "",
        ]
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
