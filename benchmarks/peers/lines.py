"""The lines of the table as values, without what they were made with."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TITLES = {
    "numpyro_nuts": "NUTS (NumPyro)",
    "nutpie": "NUTS (nutpie)",
    "hmcecs": "HMCECS (NumPyro)",
    "sgld_cv": "SGLD with control variates (BlackJAX)",
    "sghmc_cv": "SGHMC with control variates (BlackJAX)",
    "laplace": "Laplace",
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
    "diamonds": "Diamonds: normal",
    "wells": "Wells: logistic",
    "flights": "Flights out of New York: logistic",
    "bike_trips": "Bike trips: Poisson",
    "housing": "House values: Student-t",
    "horseshoe": "HIGGS: logistic, horseshoe prior",
    "election88": "Poll of 1988: multilevel logistic",
    "airports": "Flights by airport: multilevel logistic",
}
"""Posteriors, in the order of pictures and tables."""


@dataclass(frozen=True)
class Cell:
    """One budget of a method on a posterior."""

    line: dict[str, str]

    @property
    def posterior(self) -> str:
        return self.line["posterior"]

    @property
    def method(self) -> str:
        return self.line["method"]

    @property
    def title(self) -> str:
        return TITLES[self.method]

    @property
    def heading(self) -> str:
        return HEADINGS[self.posterior]

    @property
    def failed(self) -> str:
        """Why there are no figures; empty if there are."""
        return self.line["failed"]

    @property
    def n_rows(self) -> int:
        return int(self.line["n_rows"])

    @property
    def dim(self) -> int:
        return int(self.line["dim"])

    @property
    def evaluations(self) -> float:
        return self["evaluations"]

    def __getitem__(self, name: str) -> float:
        return float(self.line[name])

    def floor(self, figure: str) -> float:
        """Return what Monte Carlo error of the truth alone makes of a figure."""
        return self[f"truth_{figure}"]


def read_cells(path: Path) -> list[Cell]:
    """Return the cells of a file, in the order of posteriors and methods."""
    with path.open(newline="") as file:
        cells = [Cell(line) for line in csv.DictReader(file)]
    places = [list(HEADINGS), list(TITLES)]
    at = lambda cell: (places[0].index(cell.posterior), places[1].index(cell.method))  # noqa: E731
    return sorted(cells, key=lambda cell: (*at(cell), int(cell.line["number"])))


def frontier(cells: Sequence[Cell], figure: str = "mean_rms") -> list[Cell]:
    """Return the cells that no cell with fewer evaluations beats: the best of a grid."""
    best: list[Cell] = []
    for cell in sorted(cells, key=lambda cell: cell.evaluations):
        if not best or cell[figure] < best[-1][figure]:
            best.append(cell)
    return best
