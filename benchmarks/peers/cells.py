"""A cell of the comparison, one budget of a method on a posterior, and the file of all cells."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from math import nan
from pathlib import Path

FIGURES = ("mean_rms", "mean_worst", "sd_rms", "sd_worst", "w1_worst", "kl")
"""Errors against the truth: of means in sd, of sds relative, W₁ in sd, KL of Gaussians in nats."""

RUNNING = "running"

TITLES = {
    "numpyro_nuts": "NUTS (NumPyro)",
    "nutpie": "NUTS (nutpie)",
    "hmcecs": "HMCECS (NumPyro)",
    "sgld_cv": "SGLD with control variates (BlackJAX)",
    "laplace": "Laplace",
    "laplace_weighted": "Laplace, importance weights",
    "pathfinder": "Pathfinder (BlackJAX)",
    "advi": "ADVI, mean field (NumPyro)",
    "advi_full": "ADVI, full rank (NumPyro)",
    "dais": "surrogate DAIS (NumPyro)",
    "pass_glm": "PASS-GLM's quadratic",
    "uniform": "uniform rows",
    "quasi_newton": "quasi-Newton coreset",
    "coreset_mcmc": "Coreset MCMC, tuning-free",
    "decoct": "decoct, with a site",
    "decoct_rows": "decoct, rows alone",
}
"""Methods, in the order of pictures and tables."""

HEADINGS = {
    "flights": "Flights out of New York, logistic",
    "airports": "Flights by airport, multilevel logistic",
    "wells": "Wells, logistic",
    "diamonds": "Diamonds, normal",
    "bike_trips": "Bike trips, Poisson",
    "housing": "House values, Student-t",
    "horseshoe": "HIGGS, logistic, horseshoe prior",
    "election88": "Poll of 1988, multilevel logistic",
}
"""Posteriors, in the order of runs, pictures and tables: the large tables first."""


@dataclass(frozen=True)
class Cell:
    """One budget of a method on a posterior; figures are NaN if it failed.

    Attributes
    ----------
    number, of
        Which of the method's budgets this is; after the last one the method is complete.
    evaluations
        Log-likelihoods of one row at one point, with or without the gradient.
    cpu_seconds
        Of the processor, compiling included, loading the table not.
    truth_mean_rms, truth_sd_rms, truth_w1_worst, truth_kl
        What Monte Carlo error of the truth alone makes of a figure; of the KL, that of the draws
        too, d(d + 3)/4S nats.
    failed
        Why there are no figures; empty if there are.
    """

    posterior: str
    n_rows: int
    dim: int
    method: str
    seed: int
    number: int
    of: int
    budget: str = ""
    evaluations: float = nan
    mean_rms: float = nan
    mean_worst: float = nan
    sd_rms: float = nan
    sd_worst: float = nan
    w1_worst: float = nan
    kl: float = nan
    cpu_seconds: float = nan
    peak_gb: float = nan
    draws: int = 0
    truth_mean_rms: float = nan
    truth_sd_rms: float = nan
    truth_w1_worst: float = nan
    truth_kl: float = nan
    failed: str = ""

    @property
    def passes(self) -> float:
        """Evaluations in units of N."""
        return self.evaluations / self.n_rows

    def __str__(self) -> str:
        found = ", ".join(f"{name} {getattr(self, name):.2g}" for name in FIGURES)
        found = self.failed or f"{self.passes:.4g} N, {found}"
        name = f"{self.posterior:11s}{self.method:14s}{self.budget:16s}"
        return f"{name}{self.cpu_seconds:.4g} s, {found}"


READ = {"str": str, "int": int, "float": float}


def read_cells(path: Path) -> list[Cell]:
    """Return the cells of a file, in the order of posteriors and methods."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    types = {field.name: READ[str(field.type)] for field in fields(Cell)}
    cells = [Cell(**{name: types[name](text) for name, text in one.items()}) for one in lines]
    places = list(HEADINGS), list(TITLES)
    return sorted(
        cells, key=lambda c: (places[0].index(c.posterior), places[1].index(c.method), c.number)
    )


def append_cell(path: Path, cell: Cell) -> None:
    """Add a cell to a file, in four digits."""
    is_new = not path.exists()
    line = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in asdict(cell).items()}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(line), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(line)


def frontier(cells: Sequence[Cell], figure: str = "mean_rms") -> list[Cell]:
    """Return the cells that no cell with fewer evaluations beats: the best of a grid."""
    best: list[Cell] = []
    for cell in sorted((c for c in cells if not c.failed), key=lambda cell: cell.evaluations):
        if not best or getattr(cell, figure) < getattr(best[-1], figure):
            best.append(cell)
    return best
