"""Run the regressions of Campbell & Beronov (2019, Section 5.3): all results of Figures 4 and 5.

    python -m experiments.sparse_vi.regression_runs [--quick] [--sets ...] [--methods ...]
        [--trials T] [--published-trials T] [--published-picks M] [--seed SEED] [--output FOLDER]

Logistic and Poisson regression on N = 500 rows, prior N(0, I). Methods, all with draws of the
Laplace fit of π_w:

    SparseVI, published      Algorithm 1 as in the paper: S = 100, T = 500, γ_t = 0.5/(1 + t), new
                             draws for every gradient. γ_t is the length of an Adam step, as in the
                             authors' runs; the plain step of the printed algorithm has no scale
    SparseVI                 ours: damped quadratic updates, draws reused while they last
    IteratedHilbert          the package's default
    GIGA, optimal            GIGA (Campbell & Broderick 2018) in the L2 norm at 100 draws of π̂, the
                             Laplace fit of π
    GIGA, realistic          the same with a π̂ between prior and π, and 75 % noise (`realistic`)
    uniform                  rows drawn with replacement, weight N/M a draw

Every result is a row of regression_runs.csv, written as soon as its trial is done; a command that
is started again goes on where it ended. Columns:

    set, method, trial, M    M counts picks; for IteratedHilbert rows asked for, for uniform draws
    rows                     rows with a positive weight
    kl                       KL(π_w‖π) between Laplace fits, nats
    kl_fraction              the same divided by KL(π₀‖π)
    cpu_s                    CPU seconds of the process, all threads, of a build that ends at M
    seed                     what the run was made with

Times are without compilation, which a build of the same shapes does beforehand. SparseVI and GIGA
are built once for all M, and a stopwatch tells when each pick was done; the other two are built for
each M. GIGA's optimal π̂ is paid for, the realistic one is not. --quick results, of a shortened
Algorithm 1, are in a folder of their own, quick/.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from benchmarks import data
from benchmarks.quality import model_for
from jaxtyping import Float, Int

import decoct
from decoct.constructions import Hilbert, IteratedHilbert, SparseVI, Uniform
from decoct.constructions.base import Chosen, Construction, Problem, StepInfo
from decoct.constructions.sparse_vi import SparseVIState
from decoct.constructions.weight_updates import Gradient
from decoct.diagnostics import Gaussian
from decoct.models.base import AbstractModel
from decoct.posteriors import Laplace
from decoct.solvers import GIGA
from decoct.solvers.active_set import UnitVectors
from decoct.solvers.base import Budget, Solver
from decoct.solvers.base import Path as SolverPath
from decoct.status import Status
from experiments import common

FOLDER = Path(__file__).parent

SETS = {
    "synth_lr": "Synthetic (logistic)",
    "phishing": "Phishing (logistic)",
    "ds1": "Chemical reactivities (logistic)",
    "synth_poiss": "Synthetic (Poisson)",
    "biketrips": "Bike trips (Poisson)",
    "airportdelays": "Airport delays (Poisson)",
}
"""Data sets, and what they are called in pictures."""

QUICK_SETS = ("synth_lr", "synth_poiss")

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

NOISE = 0.75
"""Relative noise of the realistic π̂."""

FIELDS: tuple[str, ...] = (
    "set", "method", "trial", "M", "rows", "kl", "kl_fraction", "cpu_s", "seed",
)  # fmt: skip

Key = tuple[str, str, int, int]


@dataclass(frozen=True)
class Settings:
    """How much is run.

    Attributes
    ----------
    trials, published_trials
        Of every method, and at most of the published algorithm.
    sizes
        M.
    published_picks
        Largest M of the published algorithm.
    steps
        T of the published algorithm.
    seed
        Trial t of every method has the seed 1000 · seed + t.
    """

    trials: int = 10
    published_trials: int = 1
    sizes: tuple[int, ...] = (1, 2, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100)
    published_picks: int = 50
    steps: int = 500
    seed: int = 0

    def trials_of(self, method: str) -> int:
        return min(self.trials, self.published_trials) if method == PUBLISHED else self.trials

    def sizes_of(self, method: str) -> tuple[int, ...]:
        most = self.published_picks if method == PUBLISHED else max(self.sizes)
        return tuple(M for M in sorted(self.sizes) if most >= M)


QUICK = Settings(trials=2, sizes=(1, 5, 10), published_picks=10, steps=10)


class Weights(NamedTuple):
    """Rows and their weights."""

    indices: Int[np.ndarray, " m"]
    weights: Float[np.ndarray, " m"]


@dataclass(frozen=True, eq=False)
class Regression:
    """A data set with its model.

    Attributes
    ----------
    model, rows
        What is compressed.
    full
        Laplace fit of π.
    prior_kl
        KL(π₀‖π) in nats.
    """

    model: AbstractModel
    rows: dict[str, np.ndarray]
    full: Gaussian
    prior_kl: float

    def kl(self, selected: Weights) -> float:
        """Return KL(π_w‖π) between Laplace fits, in nats."""
        used = selected.weights > 0.0
        if not used.any():
            return self.prior_kl
        kept = {name: column[selected.indices[used]] for name, column in self.rows.items()}
        fit = decoct.laplace(self.model, kept, selected.weights[used])
        return decoct.kl_gaussian(fit, self.full)

    def path(self, method: Construction, sizes: Sequence[int], seed: int) -> list[decoct.Coreset]:
        return decoct.path(
            self.model, self.rows, sizes, method=method, posterior=Laplace(), seed=seed,
            progress=False,
        )  # fmt: skip


@cache
def load(name: str) -> Regression:
    """Return a data set of `SETS`, from the data folder."""
    model, rows = model_for(name), data.paper_set(name)
    full = decoct.laplace(model, rows)
    return Regression(model, rows, full, decoct.kl_gaussian(prior(full.dim), full))


def prior(dim: int) -> Gaussian:
    """Return π₀ = N(0, I)."""
    return Gaussian(np.zeros(dim), np.eye(dim))


def realistic(full: Gaussian, rng: np.random.Generator) -> Gaussian:
    """Return a guess of π as the paper simulates one: between prior and π, and noisy.

    With U ~ Unif[0, 1], z ~ N(0, I) and ζ ~ N(0, 1), the noise as in the paper's code,

        μ̂ = m + 0.75‖m‖z,          m = U μ_π + (1 − U)μ₀
        Σ̂ = exp(−1.5|ζ|) V,         V = U Σ_π + (1 − U)Σ₀.
    """
    start, share = prior(full.dim), rng.uniform()
    mean = share * full.mean + (1.0 - share) * start.mean
    cov = share * full.cov + (1.0 - share) * start.cov
    noisy = mean + NOISE * float(np.linalg.norm(mean)) * rng.standard_normal(full.dim)
    return Gaussian(noisy, np.exp(-2.0 * NOISE * abs(rng.standard_normal())) * cov)


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

    def path(self, state: SparseVIState) -> tuple[Chosen, ...]:
        return self.method.path(state)

    def steps(self, problem: Problem) -> int:
        return self.method.steps(problem)

    def pack(self, state: SparseVIState) -> dict[str, Any]:
        return self.method.pack(state)

    def unpack(self, packed: dict[str, Any]) -> SparseVIState:
        return self.method.unpack(packed)


@dataclass(frozen=True)
class IterationWatch:
    """A solver, with a note of the time after each iteration and at the end."""

    solver: Solver
    times: list[float] = field(default_factory=list, repr=False, compare=False)

    def solve(self, problem: UnitVectors, budget: Budget, rng: np.random.Generator) -> SolverPath:
        def tick(iterations: int) -> None:
            self.times.extend([time.process_time()] * iterations)

        path = self.solver.solve(problem, replace(budget, on_iteration=tick), rng)
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
        update = Gradient(steps=steps, rate=0.5, optimizer="adam")
        algorithm = SparseVI(update=update, draws=PROJECTION, reuse=False, exact=False)
        return _picked(regression, PickWatch(algorithm, plain=True), sizes, seed)
    if method == "sparse_vi":
        return _picked(regression, PickWatch(SparseVI(), plain=False), sizes, seed)
    if method == "giga_optimal":
        return _projected(regression, "laplace", sizes, seed)
    if method == "giga_realistic":
        rng = np.random.default_rng([seed, 1])
        draws = realistic(regression.full, rng).sample(rng, PROJECTION)
        return _projected(regression, draws, sizes, seed)
    construction = {"uniform": Uniform(), "iterated_hilbert": IteratedHilbert()}[method]
    return [_alone(regression, construction, M, seed) for M in sizes]


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


@cache
def _compile(name: str, method: str, sizes: tuple[int, ...]) -> None:
    """Compile what the builds of a set need, once in this process."""
    build(load(name), method, sizes, 999, steps=2)


def perform(
    folder: Path, settings: Settings, names: Sequence[str], chosen: Sequence[str]
) -> list[dict[str, str]]:
    """Run what is missing in ``folder`` for these sets and methods; return their rows."""
    path = folder / "regression_runs.csv"
    known = _known(path, settings)
    done = {_key(one) for one in known}
    for method, trial, name in itertools.product(METHODS, range(settings.trials), names):
        sizes = settings.sizes_of(method)
        missing = {M for M in sizes if (name, method, trial, M) not in done}
        if method in chosen and trial < settings.trials_of(method) and missing:
            _append(path, _trial(name, method, trial, missing, settings))
    wanted = {
        (name, method, trial, M)
        for name, method in itertools.product(names, chosen)
        for trial in range(settings.trials_of(method))
        for M in settings.sizes_of(method)
    }
    return [one for one in _known(path, settings) if _key(one) in wanted]


def _trial(
    name: str, method: str, trial: int, missing: Iterable[int], settings: Settings
) -> list[dict[str, Any]]:
    regression, sizes = load(name), settings.sizes_of(method)
    _compile(name, method, sizes)
    started = time.perf_counter()
    built = build(regression, method, sizes, 1000 * settings.seed + trial, settings.steps)
    results = []
    for one in built:
        kl = regression.kl(one.selected)
        results.append(
            {
                "set": name, "method": method, "trial": trial, "M": one.M,
                "rows": int(np.count_nonzero(one.selected.weights)), "kl": kl,
                "kl_fraction": kl / regression.prior_kl, "cpu_s": one.cpu, "seed": settings.seed,
            }
        )  # fmt: skip
    last = results[-1]
    print(
        f"{name}, {method}, trial {trial}, M = {last['M']}: {last['rows']} rows, "
        f"{last['kl_fraction']:.2g} of the prior's KL, {last['cpu_s']:.2f} CPU s; "
        f"{time.perf_counter() - started:.1f} s in all",
        flush=True,
    )
    return [one for one in results if one["M"] in set(missing)]


def _known(path: Path, settings: Settings) -> list[dict[str, str]]:
    known = common.read_csv(path) if path.exists() else []
    for one in known:
        if one["seed"] != str(settings.seed):
            sys.exit(
                f"{path} holds runs with seed {one['seed']}, not {settings.seed}; give another "
                "--output, or remove the file to start afresh."
            )
    return known


def _key(row: dict[str, str]) -> Key:
    return row["set"], row["method"], int(row["trial"]), int(row["M"])


def _append(path: Path, results: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    begin = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if begin:
            writer.writeheader()
        for one in results:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in one.items()})


def parser(module_doc: str | None) -> argparse.ArgumentParser:
    """Return the options that the runs and both figures share."""
    options = common.parser(module_doc, FOLDER)
    options.add_argument("--published-trials", type=int, help="trials of the published algorithm")
    options.add_argument("--published-picks", type=int, metavar="M", help="its largest M")
    options.add_argument("--sets", type=_names(SETS), metavar="NAME,...")
    options.add_argument("--methods", type=_names(METHODS), metavar="NAME,...")
    return options


def _names(known: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        unknown = [name for name in text.split(",") if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"unknown: {', '.join(unknown)}; known are {', '.join(known)}"
            )
        return tuple(text.split(","))

    return parse


def asked(options: argparse.Namespace) -> tuple[Path, list[dict[str, str]]]:
    """Return the folder for results, and all runs that the options ask for, done where missing."""
    names = ("trials", "published_trials", "published_picks", "seed")
    given = {name: getattr(options, name) for name in names}
    settings = replace(
        QUICK if options.quick else Settings(), **{k: v for k, v in given.items() if v is not None}
    )
    folder = options.output / "quick" if options.quick else options.output
    sets = options.sets or (QUICK_SETS if options.quick else tuple(SETS))
    return folder, perform(folder, settings, sets, options.methods or tuple(METHODS))


def main(arguments: Sequence[str] | None = None) -> None:
    folder, results = asked(parser(__doc__).parse_args(arguments))
    print(f"{folder / 'regression_runs.csv'}: {len(results)} rows")


if __name__ == "__main__":
    main()
