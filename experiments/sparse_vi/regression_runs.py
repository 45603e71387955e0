"""Run the regressions of Campbell & Beronov (2019, Section 5.3): all results of Figures 4 and 5.

    python -m experiments.sparse_vi.regression_runs [--quick] [--sets ...] [--methods ...]
        [--trials T] [--published-trials T] [--published-picks M] [--seed SEED] [--output FOLDER]

Logistic and Poisson regression on N = 500 rows, prior N(0, I). Methods, all with draws of the
Laplace fit of π_w:

    SparseVI, published      Algorithm 1 as in the paper: S = 100, T = 500, γ_t = 0.5/(1 + t), new
                             draws for every gradient. γ_t is the length of an Adam step, as in the
                             authors' runs; the plain step of the printed algorithm has no scale
    SparseVI                 ours: damped quadratic updates, 800 draws, reused while they last
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

Times are without compilation, which a build of the same shapes does first; other work on the
machine makes them longer. No result at M depends on the other M that are asked for. GIGA's optimal
π̂ is paid for, the realistic one is not. --quick results, of a shortened Algorithm 1, are in a
folder of their own, quick/.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments import common
from experiments.sparse_vi.regression_methods import METHODS, PUBLISHED, build, compiled
from experiments.sparse_vi.regression_problems import QUICK_SETS, SETS, load
from experiments.sparse_vi.results_file import ResultsFile

FOLDER = Path(__file__).parent

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
    published_trials: int = 10
    sizes: tuple[int, ...] = (1, 2, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100)
    published_picks: int = 50
    steps: int = 500
    seed: int = 0

    def trials_of(self, method: str) -> int:
        return min(self.trials, self.published_trials) if method == PUBLISHED else self.trials

    def sizes_of(self, method: str) -> tuple[int, ...]:
        most = self.published_picks if method == PUBLISHED else max(self.sizes)
        return tuple(M for M in sorted(self.sizes) if most >= M)


QUICK = Settings(trials=2, published_trials=1, sizes=(1, 5, 10), published_picks=10, steps=10)


def perform(
    folder: Path, settings: Settings, names: Sequence[str], chosen: Sequence[str]
) -> list[dict[str, str]]:
    """Run what is missing in ``folder`` for these sets and methods; return their rows."""
    file = ResultsFile(folder / "regression_runs.csv", settings.seed)
    done = {_key(one) for one in file.rows()}
    for method, trial, name in itertools.product(METHODS, range(settings.trials), names):
        sizes = settings.sizes_of(method)
        missing = {M for M in sizes if (name, method, trial, M) not in done}
        if method in chosen and trial < settings.trials_of(method) and missing:
            file.append(_trial(name, method, trial, missing, settings))
    wanted = {
        (name, method, trial, M)
        for name, method in itertools.product(names, chosen)
        for trial in range(settings.trials_of(method))
        for M in settings.sizes_of(method)
    }
    return [one for one in file.rows() if _key(one) in wanted]


def _trial(
    name: str, method: str, trial: int, missing: Iterable[int], settings: Settings
) -> list[dict[str, Any]]:
    regression, sizes = load(name), settings.sizes_of(method)
    compiled(name, method, sizes)
    started = time.perf_counter()
    built = build(regression, method, sizes, 1000 * settings.seed + trial, settings.steps)
    results = []
    for one in built:
        kl = regression.kl(one.selected)
        results.append(
            {
                "set": name, "method": method, "trial": trial, "M": one.M,
                "rows": int(np.count_nonzero(one.selected.weights)), "kl": kl,
                "kl_fraction": kl / regression.prior_kl, "cpu_s": one.cpu,
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


def _key(row: dict[str, str]) -> Key:
    return row["set"], row["method"], int(row["trial"]), int(row["M"])


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
