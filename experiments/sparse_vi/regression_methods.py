"""The methods of Figures 4 and 5, and the seconds that each of their picks takes.

SparseVI and GIGA are built once for all M, and a stopwatch tells when each pick was done; the
others are built for each M.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

import decoct
from decoct.constructions import Hilbert, IteratedHilbert, SparseVI, Uniform
from decoct.constructions.base import Construction, Problem, Selection, SizedSelection, StepInfo
from decoct.constructions.sparse_vi.sparse_vi import SparseVIState
from decoct.constructions.sparse_vi.weight_updates import Gradient
from decoct.data import encoded
from decoct.passes.potentials import Potentials
from decoct.report import Status
from decoct.samplers import Laplace
from decoct.solvers import GIGA
from decoct.solvers.base import Budget, Solver
from decoct.solvers.base import Path as SolverPath
from decoct.solvers.nnls import UnitVectors
from experiments import common
from experiments.sparse_vi.regression_problems import Regression, Weights, load, realistic

PUBLISHED = "published"

METHODS = {
    "uniform": "uniform",
    "giga_realistic": "GIGA, realistic π̂",
    "giga_optimal": "GIGA, optimal π̂",
    "iterated_hilbert": "IteratedHilbert",
    "sparse_vi": "SparseVI",
    PUBLISHED: "SparseVI, published",
}
"""Methods in the order they are run, and what they are called in pictures."""

PROJECTION = 100
"""Draws of GIGA's π̂, and of π_w in the published algorithm."""

DRAWS = 800
"""Draws of our SparseVI: its default for 100 picks, whatever number is asked for."""


class Built(NamedTuple):
    """What a method kept at M, and the CPU seconds of a build that ends there."""

    M: int
    selected: Weights
    cpu: float


@dataclass(frozen=True)
class PickWatch:
    """SparseVI, with a note of the weights and the time after each pick.

    Attributes
    ----------
    method
        The one that does the work.
    plain
        Note the weights as they are; else the best so far, which a build that ends there returns.
    notes
        Rows with weights, and `time.process_time()`, after pick m = 1, 2, … at [m − 1].
    """

    method: SparseVI
    plain: bool
    notes: list[tuple[Weights, float]] = field(default_factory=list, repr=False, compare=False)

    def step(
        self, key: jax.Array, problem: Problem, state: SparseVIState
    ) -> tuple[SparseVIState, StepInfo]:
        state, info = self.method.step(key, problem, state)
        chosen = state.selection
        if not self.plain and problem.size in state.chosen:
            chosen = state.chosen[problem.size].selection
        self.notes.append((Weights(chosen.indices, chosen.weights), time.process_time()))
        return state, info

    def after(self, picks: int) -> tuple[Weights, float]:
        """Return the note of a pick; the last one if there was nothing left to pick by then."""
        return self.notes[min(picks, len(self.notes)) - 1]

    def init(self, key: jax.Array, problem: Problem) -> SparseVIState:
        return self.method.init(key, problem)

    def status(self, problem: Problem, state: SparseVIState) -> Status:
        return self.method.status(problem, state)

    def path(self, state: SparseVIState) -> tuple[SizedSelection, ...]:
        return self.method.path(state)

    def steps(self, problem: Problem) -> int:
        return self.method.steps(problem)


@dataclass(frozen=True)
class IterationWatch:
    """A solver, with a note of the time after each iteration and at the end."""

    solver: Solver
    times: list[float] = field(default_factory=list, repr=False, compare=False)

    def solve(self, problem: UnitVectors, budget: Budget, rng: np.random.Generator) -> SolverPath:
        def note(iterations: float) -> None:
            self.times.extend([time.process_time()] * int(iterations))

        with common.Picks(note):
            path = self.solver.solve(problem, budget, rng)
        self.times.append(time.process_time())
        return path

    def after(self, iterations: int) -> float:
        """Return when an iteration was done, or the solver if it needed fewer."""
        return self.times[min(iterations, len(self.times)) - 1]


def build(
    regression: Regression, method: str, sizes: Sequence[int], seed: int, steps: int
) -> list[Built]:
    """Return what a method keeps at each M; ``steps`` are those of the published algorithm."""
    if method == PUBLISHED:
        algorithm = SparseVI(_published(steps), draws=PROJECTION, reuse=False, exact=False)
        return _picked(regression, PickWatch(algorithm, plain=True), sizes, seed)
    if method == "sparse_vi":
        return _picked(regression, PickWatch(SparseVI(draws=DRAWS), plain=False), sizes, seed)
    if method == "giga_optimal":
        return _projected(regression, "laplace", sizes, seed)
    if method == "giga_realistic":
        rng = np.random.default_rng([seed, 1])
        draws = realistic(regression.full, rng).sample(rng, PROJECTION)
        return _projected(regression, draws, sizes, seed)
    construction = {"uniform": Uniform(), "iterated_hilbert": IteratedHilbert(site=False)}[method]
    return [_alone(regression, construction, M, seed) for M in sizes]


def _published(steps: int) -> Gradient:
    return Gradient(steps=steps, rate=0.5, optimizer="adam")


@cache
def compiled(name: str, method: str, sizes: tuple[int, ...]) -> None:
    """Compile what the builds of a set need, once in this process."""
    regression = load(name)
    build(regression, method, sizes, 999, steps=2)
    if method != PUBLISHED:
        return
    # two steps a pick keep few rows: supports of all sizes are seen to besides
    model = regression.model
    potentials = Potentials(model, encoded(decoct.rows(regression.rows), model))
    problem = Problem(potentials, Laplace(), (max(sizes),))
    algorithm, key = SparseVI(draws=PROJECTION, reuse=False), jax.random.key(999)
    manifold = algorithm.make_manifold(problem, None, None)
    for m in range(1, max(sizes) + 1, 16):
        kept = np.arange(m)
        weights = np.full(m, problem.n_rows / m)
        view = manifold.at(key, Selection(kept, weights, potentials.rows.take(kept)))
        _published(2).run(key, manifold, view, picked=0)


def _picked(
    regression: Regression, watch: PickWatch, sizes: Sequence[int], seed: int
) -> list[Built]:
    started = time.process_time()
    regression.path(watch, [max(sizes)], seed)
    notes = ((M, *watch.after(M)) for M in sizes)
    return [Built(M, selected, done - started) for M, selected, done in notes]


def _projected(
    regression: Regression, weighting: Any, sizes: Sequence[int], seed: int
) -> list[Built]:
    watch = IterationWatch(GIGA())
    method = Hilbert(watch, weighting=weighting, draws=PROJECTION)
    started = time.process_time()
    path = regression.path(method, sizes, seed)
    return [
        Built(M, Weights(one.indices, one.weights), watch.after(M) - started)
        for M, one in zip(sorted(sizes), path, strict=True)
    ]


def _alone(regression: Regression, method: Construction, M: int, seed: int) -> Built:
    started = time.process_time()
    (one,) = regression.path(method, [M], seed)
    return Built(M, Weights(one.indices, one.weights), time.process_time() - started)
