"""What Figures 2 and 3 of Campbell & Beronov (2019) share: π_w is a known Gaussian in both.

KL(π_w‖π) (reverse) and KL(π‖π_w) (forward) are exact, in nats. The weighting distributions π̂ of
Hilbert coresets are Gaussians as well (Section 5), projected on S = 100 draws:

    optimal      π itself
    realistic    m = Uμ_π + (1 − U)μ₀, V = UΣ_π + (1 − U)Σ₀, U ~ Unif[0, 1], and 75 % noise:
                 μ̂ = m + 0.75‖m‖z, Σ̂ = exp(−1.5|ζ|)V with z ~ N(0, I), ζ ~ N(0, 1)

The paper says no more of the noise than its size; this form of it is that of the authors' code,
where the noise of every coordinate of the mean is as large as the whole mean. Their code also takes
Adam's steps, of length 1/(1 + t), where Algorithm 1 in print has plain ones of the same γ_t.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

import decoct
from decoct.constructions import Construction, Hilbert, SparseVI, Uniform
from decoct.constructions.sparse_vi.weight_updates import Gradient
from decoct.coreset import Coreset
from decoct.models.conjugate import AbstractConjugate
from decoct.plots.style import COLOURS, GREY, style_axes
from decoct.samplers.base import WeightedDensity
from decoct.samplers.exact import exact_posterior
from decoct.solvers import GIGA
from decoct.stats import Gaussian
from experiments import common
from experiments.sparse_vi.results_file import ResultsFile

PROJECTION = 100
"""S: draws of π̂, and of π_w in Algorithm 1."""

NOISE = 0.75
"""Relative noise of the realistic π̂."""

PUBLISHED = Gradient(steps=100, rate=1.0, optimizer="adam")
"""T = 100 steps of 1/(1 + t), as the paper's code takes them."""

IN_PRINT = Gradient(steps=100, rate=1.0)
"""The same in the words of Algorithm 1, line 15: w ← w − γ_t D."""

EXCHANGED = (1, 2, 5, 10, 20, 30, 50, 70, 100, 130, 160, 200)
"""Sizes of builds with exchanges."""

LOWEST = 1e-12
"""Nats below which KLs are rounding; they are drawn here."""


@dataclass(frozen=True)
class Trial:
    """Rows, a conjugate model of them, and its exact posteriors.

    Attributes
    ----------
    origin
        (d,): the paper's parameters are this and the model's, whose prior mean is 0.
    seed
        Of what is random besides the rows.
    """

    model: AbstractConjugate
    rows: Mapping[str, np.ndarray]
    origin: Float[np.ndarray, " d"]
    seed: int

    @cached_property
    def full(self) -> Gaussian:
        """π."""
        n_rows = len(next(iter(self.rows.values())))
        return self._posterior(self.rows, np.ones(n_rows))

    @cached_property
    def prior(self) -> Gaussian:
        """π₀."""
        one = {name: column[:1] for name, column in self.rows.items()}
        return self._posterior(one, np.zeros(1))

    def posterior(self, coreset: Coreset) -> Gaussian:
        """Return π_w."""
        return exact_posterior(coreset.density)

    def kl(self, here: Gaussian) -> tuple[float, float]:
        """Return KL(π_w‖π) and KL(π‖π_w)."""
        return decoct.kl_gaussian(here, self.full), decoct.kl_gaussian(self.full, here)

    def _posterior(self, rows: Any, weights: np.ndarray) -> Gaussian:
        return exact_posterior(WeightedDensity.of(self.model, dict(rows), weights))


class Method(NamedTuple):
    """A construction, how it is drawn, and how much of it is affordable.

    Attributes
    ----------
    construction
        From a trial and a source of random numbers.
    trials
        Most trials; None for all.
    largest
        Largest M; None for all.
    exchanges
        Build every M of `EXCHANGED` on its own, with 2 M picks: once M rows are kept, a pick takes
        the place of the row that is missed least.
    """

    name: str
    construction: Callable[[Trial, np.random.Generator], Construction]
    colour: str
    line: str = "-"
    trials: int | None = None
    largest: int | None = None
    exchanges: bool = False

    def sizes(self, sizes: Sequence[int]) -> list[int]:
        if self.exchanges:
            return [m for m in sizes if m in EXCHANGED]
        return [m for m in sizes if self.largest is None or m <= self.largest]

    def path(self, trial: Trial, sizes: Sequence[int]) -> list[Coreset]:
        """Return the coreset after every number of picks."""
        method = self.construction(trial, np.random.default_rng(trial.seed))
        model, rows = trial.model, dict(trial.rows)
        options: dict[str, Any] = {"seed": trial.seed, "progress": False}
        if not self.exchanges:
            return decoct.path(model, rows, sizes, method=method, **options)
        assert isinstance(method, SparseVI)
        return [
            decoct.build(model, rows, size=m, method=replace(method, picks=2 * m), **options)
            for m in sizes
        ]

    def coresets(self, trial: Trial, picks: Sequence[int]) -> dict[int, Coreset]:
        """Return the coresets after these numbers of picks."""
        return dict(zip(picks, self.path(trial, picks), strict=True))


def optimal(trial: Trial, rng: np.random.Generator) -> Construction:
    """Return GIGA with π̂ = π."""
    return Hilbert(GIGA(), weighting=trial.full.sample(rng, PROJECTION))


def realistic(trial: Trial, rng: np.random.Generator) -> Construction:
    """Return GIGA with a π̂ somewhere between π₀ and π, and noisy."""
    return Hilbert(GIGA(), weighting=noisy(trial, rng).sample(rng, PROJECTION))


def noisy(trial: Trial, rng: np.random.Generator) -> Gaussian:
    """Return the realistic π̂; its noise is relative to the mean of the paper's parameters."""
    share = rng.random()
    full, prior = trial.full, trial.prior
    mean = share * full.mean + (1.0 - share) * prior.mean + trial.origin
    mean = mean + NOISE * np.linalg.norm(mean) * rng.standard_normal(full.dim)
    cov = share * full.cov + (1.0 - share) * prior.cov
    return Gaussian(mean - trial.origin, np.exp(-2.0 * NOISE * abs(rng.standard_normal())) * cov)


OURS = Method("SparseVI, exact", lambda *_: SparseVI(), COLOURS[0])
"""Our default: closed-form covariances, damped quadratic updates."""

PUBLISHED_EXACT = Method(
    "SparseVI, exact, published steps", lambda *_: SparseVI(PUBLISHED), COLOURS[5], "--"
)
HILBERT = (
    Method("GIGA, optimal π̂", optimal, COLOURS[2]),
    Method("GIGA, realistic π̂", realistic, COLOURS[1]),
    Method("uniform", lambda *_: Uniform(), GREY),
)


class Result(NamedTuple):
    """What a method came to at M, in nats, and the CPU seconds of the whole path."""

    set: str
    method: str
    trial: int
    M: int
    rows: int
    reverse: float
    forward: float
    path_cpu_s: float

    @classmethod
    def read(cls, row: Mapping[str, str]) -> Result:
        """Return a result from a row of a file."""
        numbers = (float(row[name]) for name in ("reverse", "forward", "path_cpu_s"))
        whole = (int(row[name]) for name in ("trial", "M", "rows"))
        return cls(row["set"], row["method"], *whole, *numbers)


def measured(
    name: str,
    methods: Iterable[Method],
    trials: Sequence[Trial],
    sizes: Sequence[int],
    file: ResultsFile | None = None,
) -> list[dict[str, Any]]:
    """Run the methods, judge every coreset exactly, and return a table of quartiles.

    It has the prior (M = 0), and every method at every M. What ``file`` knows of the set ``name``
    is not run again; what is run is written there.
    """
    table = [_summary("prior", 0, [one.kl(one.prior) for one in trials], [])]
    known = [] if file is None else [Result.read(one) for one in file.rows()]
    for method in methods:
        wanted = set(method.sizes(sizes))
        found: list[Result] = []
        for number, trial in enumerate(trials[: method.trials]):
            place = name, method.name, number
            own = [one for one in known if one[:3] == place and one.M in wanted]
            if len(own) < len(wanted):
                own = _results(place, method, trial, sorted(wanted))
                if file is not None:
                    file.append([one._asdict() for one in own])
            found += own
        for m in sorted(wanted):
            here = [one for one in found if m == one.M]
            kls = [(one.reverse, one.forward) for one in here]
            table.append(_summary(method.name, m, kls, here))
        seconds = np.median([one.path_cpu_s for one in found])
        number = len(trials[: method.trials])
        print(f"{name}, {method.name}: {seconds:.1f} CPU s a trial, {_trials(number)}", flush=True)
    return table


def _results(
    place: tuple[str, str, int], method: Method, trial: Trial, sizes: Sequence[int]
) -> list[Result]:
    started = time.process_time()
    path = method.path(trial, sizes)
    seconds = time.process_time() - started
    return [
        Result(*place, m, one.size, *trial.kl(trial.posterior(one)), seconds)
        for m, one in zip(sizes, path, strict=True)
    ]


def _summary(
    method: str, m: int, kls: Sequence[tuple[float, float]], results: Sequence[Result]
) -> dict[str, Any]:
    rows = float(np.median([one.rows for one in results])) if results else 0.0
    row: dict[str, Any] = {"method": method, "M": m, "rows": rows}
    for direction, values in zip(("reverse", "forward"), zip(*kls, strict=True), strict=True):
        low, middle, high = common.quartiles(values)
        row |= {f"{direction}_q25": low, f"{direction}_median": middle, f"{direction}_q75": high}
    path = f"{np.median([one.path_cpu_s for one in results]):.3g}" if results else ""
    return row | {"trials": len(kls), "path_cpu_s": path}


def draw_curves(
    axes: Any, methods: Iterable[Method], table: Sequence[Mapping[str, Any]], title: str
) -> None:
    """Draw reverse KL against M: medians, and bands between the quartiles."""
    prior = next(one for one in table if one["method"] == "prior")
    most = max(one["trials"] for one in table)
    for method in methods:
        own = [prior, *(one for one in table if one["method"] == method.name)]
        m = [one["M"] for one in own]
        low, middle, high = (
            np.maximum([one[f"reverse_{name}"] for one in own], LOWEST)
            for name in ("q25", "median", "q75")
        )
        trials = own[-1]["trials"]
        label = method.name if trials == most else f"{method.name} ({_trials(trials)})"
        axes.fill_between(m, low, high, color=method.colour, alpha=0.18, linewidth=0)
        axes.plot(m, middle, method.line, color=method.colour, linewidth=2.2, label=label)
    axes.set_yscale("log")
    style_axes(axes, title, "rows asked for, M", "KL(coreset posterior ‖ posterior), nats")
    below = min(one["reverse_median"] for one in table)
    if below < LOWEST:
        axes.axhline(LOWEST, color=GREY, linewidth=0.8)
        axes.annotate(
            f"KLs below {LOWEST:g} are drawn here", (0.0, LOWEST), xytext=(4, 4),
            textcoords="offset points", fontsize=10, color=GREY,
        )  # fmt: skip


def _trials(number: int) -> str:
    return "1 trial" if number == 1 else f"{number} trials"


def areas(weights: Float[np.ndarray, " M"], largest: float) -> Float[np.ndarray, " M"]:
    """Return marker areas in square points: ``largest`` for a row with all the weight."""
    return np.maximum(3.0, largest * weights / weights.sum())
