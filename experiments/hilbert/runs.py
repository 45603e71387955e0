"""Run the comparisons of Campbell & Broderick (2019, Sections 7 and B) and keep every result.

    python -m experiments.hilbert.runs [--quick | --paper] [--sets ...] [--methods ...]
        [--sizes ...] [--trials T] [--full-trials F] [--steps STEPS] [--workers W] [--seed SEED]
        [--output FOLDER]

For each data set: some trials of the paper's sampler on all rows; then, per method, trial and size
M, a coreset and the same sampler on it. Every result is a row of runs.csv, written as soon as it
is there; a command that is started again goes on where it ended. Columns:

    set, method, trial, M        M counts iterations; "full" is the sampler on all rows
    rows                         rows with a positive weight
    build_seconds                of a build of this size alone (`methods.build`)
    sample_seconds               of all steps, warm-up included, compiled before
    nll                          negative log-likelihood per test row, averaged over draws, nats
    wasserstein                  1-Wasserstein distance of 1000 draws to 1000 of full-data trial 0
    steps, seed                  what the run was made with

Method "pair" has the distance between two full-data trials ("0-1" and so on), "best" the smallest
nll that any parameter has. Draws of full-data trials are in runs_full/. Each worker is a process on
a core of its own, so that seconds are those of one core. --quick results are in a folder of their
own, quick/.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from decoct.runtime.resources import use_compilation_cache
from decoct.samplers.base import WeightedDensity
from decoct.theory.predictive import negative_log_likelihood
from decoct.theory.wasserstein import wasserstein
from experiments import common
from experiments.hilbert import methods, sets
from experiments.hilbert.sets import DataSet

FOLDER = Path(__file__).parent

FIELDS: tuple[str, ...] = (
    "set", "method", "trial", "M", "rows", "build_seconds", "sample_seconds", "nll", "wasserstein",
    "steps", "seed",
)  # fmt: skip

DISTANCE_DRAWS = 1000
"""Draws of either sample between which distances are computed."""

PREDICTIVE_DRAWS = 2000
"""Draws over which the test log-likelihood is averaged."""

FULL, PAIR, BEST = "full", "pair", "best"

LONGEST_FIRST = (
    "synth_vmf", "chemreact", "phishing", "biketrips", "airportdelays", "synth_poiss", "synth_lr",
)  # fmt: skip
"""Sets by the time they take, so that two workers end together."""

QUICK_SETS = ("synth_lr", "synth_poiss")

Key = tuple[str, str, str, int]


@dataclass(frozen=True)
class Settings:
    """How much is run.

    Attributes
    ----------
    trials, full_trials
        Of every method, and of the sampler on all rows.
    sizes
        M; more than N rows become N.
    steps, gibbs_steps
        Of the samplers, half of them warm-up. A Gibbs draw hardly depends on the one five steps
        before, so fewer steps than the paper's 100,000 give the same distances.
    projection
        Draws of the weighting distribution.
    rows
        Rows to which the sets are cut; None leaves them whole.
    seed
        Trial t of every method has a seed of its own that this one and t decide.
    workers
        Processes; 0 does everything in this one.
    """

    trials: int = 5
    full_trials: int = 3
    sizes: tuple[int, ...] = (10, 50, 100, 500, 1000, 5000)
    steps: int = 100_000
    gibbs_steps: int = 20_000
    projection: int = methods.PROJECTION
    rows: int | None = None
    seed: int = 0
    workers: int = 2

    def load(self, name: str) -> DataSet:
        whole = sets.load(name)
        return whole if self.rows is None else whole.cut(self.rows)

    def steps_on(self, name: str) -> int:
        """Return the steps of a set's sampler."""
        return self.gibbs_steps if sets.family_of(name) == sets.DIRECTIONAL else self.steps


QUICK = Settings(1, 2, (10, 50), 2000, 2000, 100, 500, workers=0)
PAPER = Settings(50, 10, (10, 50, 100, 500, 1000, 5000, 10_000), gibbs_steps=100_000)


@dataclass(frozen=True)
class Job:
    """What one worker does in one go: a method's coresets of one trial, or a full-data trial."""

    set: str
    method: str
    trial: int
    sizes: tuple[int, ...]
    settings: Settings
    folder: Path


def perform(
    folder: Path, settings: Settings, names: Sequence[str], chosen: Sequence[str]
) -> list[dict[str, str]]:
    """Run what is missing in ``folder`` for these sets and methods; return all of its rows."""
    _begin(folder / "runs.csv")
    rows = read(folder)
    _check_same(rows, settings, folder)
    names = sorted(names, key=LONGEST_FIRST.index)
    done = {_key(one) for one in rows}
    _work(_run_full, _full_jobs(folder, settings, names, done), settings.workers)
    for name in names:
        _compare_full(folder, settings, name, done)
    _work(_run_method, _method_jobs(folder, settings, names, chosen, done), settings.workers)
    return read(folder)


def read(folder: Path) -> list[dict[str, str]]:
    """Return the rows of runs.csv; none where there is no such file."""
    path = folder / "runs.csv"
    return common.read_csv(path) if path.exists() else []


def _begin(path: Path) -> None:
    """Write the header before workers can want to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(",".join(FIELDS) + "\n")


def _key(row: dict[str, str]) -> Key:
    return row["set"], row["method"], row["trial"], int(row["M"])


def _check_same(rows: Iterable[dict[str, str]], settings: Settings, folder: Path) -> None:
    for one in rows:
        for name, value in (("steps", settings.steps_on(one["set"])), ("seed", settings.seed)):
            if one[name] != str(value):
                sys.exit(
                    f"{folder / 'runs.csv'} holds runs of {one['set']} with {name} {one[name]}, "
                    f"not {value}; give another --output, or remove the file to start again."
                )


def _append(folder: Path, settings: Settings, **values: Any) -> None:
    """Write one row in one go, so that workers cannot mix theirs."""
    row = {**values, "steps": settings.steps_on(values["set"]), "seed": settings.seed}
    row = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
    with (folder / "runs.csv").open("a", newline="") as file:
        csv.DictWriter(file, FIELDS, lineterminator="\n").writerow(row)


def _full_jobs(folder: Path, settings: Settings, names: Sequence[str], done: set[Key]) -> list[Job]:
    jobs = []
    for trial, name in itertools.product(range(settings.full_trials), names):
        n_rows = settings.load(name).n_rows
        known = (name, FULL, str(trial), n_rows) in done
        if not (known and _draws_file(folder, name, trial).exists()):
            jobs.append(Job(name, FULL, trial, () if known else (n_rows,), settings, folder))
    return jobs


def _method_jobs(
    folder: Path, settings: Settings, names: Sequence[str], chosen: Sequence[str], done: set[Key]
) -> list[Job]:
    jobs = []
    for trial, name, method in itertools.product(range(settings.trials), names, chosen):
        if not methods.suits(method, sets.family_of(name)):
            continue
        sizes = methods.sizes_of(method, settings.sizes, settings.load(name).n_rows)
        missing = tuple(M for M in sizes if (name, method, str(trial), M) not in done)
        if missing:
            jobs.append(Job(name, method, trial, missing, settings, folder))
    return jobs


def _work(function: Callable[[Job], None], jobs: Sequence[Job], workers: int) -> None:
    """Do all jobs, here or by workers; the first error ends everything."""
    if workers == 0 or not jobs:
        for job in jobs:
            function(job)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    cores = context.SimpleQueue()
    for core in itertools.islice(itertools.cycle(_cores()), workers):
        cores.put(core)
    with ProcessPoolExecutor(workers, context, _settle, (cores,)) as pool:
        futures = [pool.submit(function, job) for job in jobs]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _settle(cores: Any) -> None:
    """Keep a worker, threads and all, on one core where the system lets it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cores.get()})


def _draws_file(folder: Path, name: str, trial: int) -> Path:
    return folder / "runs_full" / f"{name}-{trial}.npy"


def _run_full(job: Job) -> None:
    """Sample from the posterior of all rows."""
    settings, data = job.settings, job.settings.load(job.set)
    columns = data.model.encode(data.train)
    density = WeightedDensity.of(data.model, columns, np.ones(data.n_rows))
    z, seconds = _sample(job, density, data.n_rows)
    path = _draws_file(job.folder, job.set, job.trial)
    path.parent.mkdir(exist_ok=True)
    np.save(path, data.comparable(thinned(z, DISTANCE_DRAWS)).astype(np.float32))
    nll = _predictive(data, z)
    for M in job.sizes:
        _append(
            job.folder, settings, set=job.set, method=FULL, trial=job.trial, M=M, rows=data.n_rows,
            build_seconds=0.0, sample_seconds=seconds, nll=nll,
        )  # fmt: skip
    _tell(f"{job.set}, all {data.n_rows} rows, trial {job.trial}: {seconds:.1f} s, nll {nll:.5g}")


def _compare_full(folder: Path, settings: Settings, name: str, done: set[Key]) -> None:
    """Add the distances between full-data trials, and the best possible nll."""
    if (name, BEST, "0", 0) not in done:
        nll = -settings.load(name).best()
        _append(folder, settings, set=name, method=BEST, trial=0, M=0, nll=nll)
    for first, second in itertools.combinations(range(settings.full_trials), 2):
        trial = f"{first}-{second}"
        if (name, PAIR, trial, 0) not in done:
            draws = (np.load(_draws_file(folder, name, one)) for one in (first, second))
            distance = wasserstein(*draws, max_draws=DISTANCE_DRAWS)
            _append(folder, settings, set=name, method=PAIR, trial=trial, M=0, wasserstein=distance)


def _run_method(job: Job) -> None:
    """Build a method's coresets of one trial and sample from each."""
    settings, data = job.settings, job.settings.load(job.set)
    _compile_build(job.set, job.method, settings)
    reference = np.load(_draws_file(job.folder, job.set, 0))
    seed = 1000 * settings.seed + job.trial
    for M, coreset, build_seconds in methods.build(
        data, job.method, job.sizes, seed, settings.projection
    ):
        z, seconds = _sample(job, coreset.density, M)
        draws = data.comparable(thinned(z, DISTANCE_DRAWS))
        nll = _predictive(data, z)
        distance = wasserstein(draws, reference, max_draws=DISTANCE_DRAWS)
        _append(
            job.folder, settings, set=job.set, method=job.method, trial=job.trial, M=M,
            rows=coreset.size, build_seconds=build_seconds, sample_seconds=seconds, nll=nll,
            wasserstein=distance,
        )  # fmt: skip
        _tell(
            f"{job.set}, {job.method}, trial {job.trial}, M = {M}: {coreset.size} rows, build "
            f"{build_seconds:.1f} s, sampling {seconds:.1f} s, nll {nll:.5g}, "
            f"distance {distance:.3g}"
        )


def _sample(job: Job, density: WeightedDensity, M: int) -> tuple[Float[np.ndarray, "S d"], float]:
    """Return draws, and the seconds they took without compilation."""
    data, steps = job.settings.load(job.set), job.settings.steps_on(job.set)
    _compile_sampler(data, density)
    key = jax.random.key(1000 * job.settings.seed + job.trial)
    # chains that share their random numbers would seem closer than they are
    key = jax.random.fold_in(key, zlib.crc32(f"{job.method} {M}".encode()))
    started = time.perf_counter()
    z = data.sampler(steps).sample(key, density).flat
    return z, time.perf_counter() - started


_compiled: set[tuple[Any, ...]] = set()
"""What this process has compiled."""


def _compile_build(name: str, method: str, settings: Settings) -> None:
    largest = max(methods.sizes_of(method, settings.sizes, settings.load(name).n_rows))
    known = (name, methods.SOLVERS.get(method, (None, method))[1], largest)
    if known not in _compiled:
        methods.compile_build(settings.load(name), method, largest, settings.projection)
        _compiled.add(known)


def _compile_sampler(data: DataSet, density: WeightedDensity) -> None:
    """Run a few steps: what is compiled depends on shapes, not on the number of steps."""
    use_compilation_cache()
    known = (data.name, density.weights.shape)
    if data.family == sets.DIRECTIONAL or known not in _compiled:
        data.sampler(200).sample(jax.random.key(0), density)
        _compiled.add(known)


def _predictive(data: DataSet, z: Float[np.ndarray, "S d"]) -> float:
    return negative_log_likelihood(data.model, data.test, thinned(z, PREDICTIVE_DRAWS))


def thinned(z: Float[np.ndarray, "S d"], most: int) -> Float[np.ndarray, "s d"]:
    """Return evenly spaced draws, at most ``most``."""
    return z if len(z) <= most else z[np.arange(most) * len(z) // most]


def _tell(line: str) -> None:
    print(line, flush=True)


def parser(module_doc: str | None) -> argparse.ArgumentParser:
    """Return the options that runs and all figures share."""
    options = common.parser(module_doc, FOLDER)
    options.add_argument("--paper", action="store_true", help="50 trials, M to 10,000: days")
    options.add_argument("--full-trials", type=int, help="trials of the sampler on all rows")
    options.add_argument("--sizes", type=_sizes, metavar="M,M,...", help="sizes of the coresets")
    options.add_argument("--steps", type=int, help="steps of either sampler")
    options.add_argument("--workers", type=int, help="processes, each on one core; 0: this one")
    return options


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def settings_of(options: argparse.Namespace) -> Settings:
    """Return what the options ask for."""
    start = QUICK if options.quick else PAPER if options.paper else Settings()
    names = ("trials", "full_trials", "sizes", "steps", "workers", "seed")
    given = {name: getattr(options, name) for name in names}
    settings = replace(start, **{k: v for k, v in given.items() if v is not None})
    if options.steps is not None:
        settings = replace(settings, gibbs_steps=options.steps)
    if settings.full_trials < 2:
        sys.exit("Distances are compared with those between full-data trials: ask for two or more.")
    return settings


def folder_of(options: argparse.Namespace) -> Path:
    """Return where results go: quick ones must not pass for the others."""
    return options.output / "quick" if options.quick else options.output


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"unknown: {', '.join(unknown)}; known are {', '.join(known)}"
            )
        return names

    return parse


def main(arguments: Sequence[str] | None = None) -> None:
    arguments_parser = parser(__doc__)
    arguments_parser.add_argument("--sets", type=_names(sets.NAMES), metavar="NAME,...")
    arguments_parser.add_argument("--methods", type=_names(methods.NAMES), metavar="NAME,...")
    options = arguments_parser.parse_args(arguments)
    names = options.sets or (QUICK_SETS if options.quick else sets.NAMES)
    folder = folder_of(options)
    rows = perform(folder, settings_of(options), names, options.methods or methods.NAMES)
    print(f"{folder / 'runs.csv'}: {len(rows)} rows")


if __name__ == "__main__":
    main()
