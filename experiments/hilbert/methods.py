"""The constructions that Campbell & Broderick (2019, Sections 7.3 and B) compare, and their cost.

    Rand     uniformly random rows of weight N/M
    Unif     uniform coreset: rows drawn by sensitivity, a = 3 and K = 4 (logistic regression only)
    IS-F     Hilbert coreset by importance sampling, weighted Fisher information norm (Eq. 5.1)
    IS-2     the same, weighted 2-norm (Eq. 5.3)
    FW-F     Hilbert coreset by Frank-Wolfe, weighted Fisher information norm
    FW-2     the same, weighted 2-norm

and, beyond the paper, GIGA-2 (geodesic ascent) and pursuit-2 (orthogonal pursuit), both with the
weighted 2-norm. S = 500 draws of the weighting distribution in all.

One path gives the coresets of all sizes M, M counting iterations; what a build of size M *alone*
would have taken is measured by a stopwatch in the solver (`Stopwatch`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

import decoct
from decoct.constructions import Hilbert, Sensitivity, Uniform
from decoct.constructions.base import Construction
from decoct.coreset import Coreset
from decoct.solvers import GIGA, FrankWolfe, ImportanceSampling, OrthogonalPursuit
from decoct.solvers.base import Budget, Path, Solver
from decoct.solvers.nnls import UnitVectors
from experiments import common
from experiments.hilbert.sets import LOGISTIC, DataSet

PROJECTION = 500
"""The paper's random projection dimension."""

SOLVERS: dict[str, tuple[Solver, str]] = {
    "IS-F": (ImportanceSampling(), "fisher"),
    "IS-2": (ImportanceSampling(), "l2"),
    "FW-F": (FrankWolfe(), "fisher"),
    "FW-2": (FrankWolfe(), "l2"),
    "GIGA-2": (GIGA(), "l2"),
    "pursuit-2": (OrthogonalPursuit(), "l2"),
}
"""Hilbert coresets: how they are found, and in which norm."""

PAPER = ("Rand", "Unif", "IS-F", "IS-2", "FW-F", "FW-2")
NAMES = (*PAPER, "GIGA-2", "pursuit-2")

LARGEST = {"GIGA-2": 1000, "pursuit-2": 100}
"""Sizes beyond which the methods that are not the paper's are not run: there is nothing to gain."""


class Built(NamedTuple):
    """A coreset of at most M rows, and the seconds that a build of this size takes."""

    M: int
    coreset: Coreset
    seconds: float


def suits(method: str, family: str) -> bool:
    """Return whether a method is defined for a family of models."""
    return method != "Unif" or family == LOGISTIC


def sizes_of(method: str, sizes: Sequence[int], n_rows: int) -> list[int]:
    """Return the sizes to build, each at most N and at most the method's largest."""
    most = LARGEST.get(method, n_rows)
    return sorted({min(one, n_rows) for one in sizes if one <= most})


def construction(
    method: str, data: DataSet, projection: int = PROJECTION, watch: Stopwatch | None = None
) -> Construction:
    """Return a method as a construction for a data set."""
    if method == "Rand":
        return Uniform()
    if method == "Unif":
        return Sensitivity(clusters=4, scale=3.0)
    solver, norm = SOLVERS[method]
    timed = solver if watch is None else replace(watch, solver=solver)
    return Hilbert(timed, norm=norm, weighting=data.weighting, draws=projection)


def build(
    data: DataSet, method: str, sizes: Sequence[int], seed: int, projection: int = PROJECTION
) -> list[Built]:
    """Return the coresets of all sizes, from one path.

    Seconds of size M are those of the path without the solver's iterations after the M-th. For
    the methods without iterations they are the path's: embedding the rows, which each size needs,
    is nearly all of it. The few milliseconds a size in which rows are fetched and the predicted KL
    is computed stay in.
    """
    watch = Stopwatch()
    chosen = construction(method, data, projection, watch)
    started = time.perf_counter()
    path = decoct.path(data.model, data.train, sizes, method=chosen, seed=seed, progress=False)
    elapsed = time.perf_counter() - started
    asked = sorted(set(sizes))
    return [
        Built(M, coreset, elapsed - watch.after(M)) for M, coreset in zip(asked, path, strict=True)
    ]


def compile_build(data: DataSet, method: str, largest: int, projection: int = PROJECTION) -> None:
    """Compile all that a build of up to ``largest`` rows needs, by a cheap one of other rows."""
    cheap = {"fisher": "IS-F", "l2": "IS-2"}
    method = cheap[SOLVERS[method][1]] if method in SOLVERS else method
    # rows are padded to powers of two: one size of each
    sizes = [2**k for k in range(4, 1 + int(np.log2(max(16, largest))))] + [largest]
    build(data, method, sorted({min(one, data.n_rows) for one in sizes}), 999, projection)


@dataclass(frozen=True)
class Stopwatch:
    """A solver that notes when each iteration of another one was done.

    Attributes
    ----------
    solver
        The one that does the work.
    seconds
        Seconds from the start of the solver until the end of iteration i = 1, 2, ... at [i − 1].
    total
        Seconds of the solver in all; one number, once it is done.
    """

    solver: Solver = field(default_factory=FrankWolfe)
    seconds: list[float] = field(default_factory=list, repr=False, compare=False)
    total: list[float] = field(default_factory=list, repr=False, compare=False)

    def solve(self, problem: UnitVectors, budget: Budget, rng: np.random.Generator) -> Path:
        started = time.perf_counter()

        def note(iterations: float) -> None:
            self.seconds.extend([time.perf_counter() - started] * int(iterations))

        with common.Picks(note):
            path = self.solver.solve(problem, budget, rng)
        self.total.append(time.perf_counter() - started)
        return path

    def after(self, iterations: int) -> float:
        """Return the seconds that the solver spent after that many iterations."""
        if iterations > len(self.seconds):
            return 0.0
        return self.total[0] - self.seconds[iterations - 1]
