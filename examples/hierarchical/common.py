"""What the hierarchical examples share: build, sample, certify, and compare with all rows.

One line of the table is one size. With draws of the coreset posterior (c) and of the full one (f),
each from NumPyro's own NUTS, a population-level parameter θ has

    shift = |mean_c θ − mean_f θ| / sd_f θ,    ratio = sd_c θ / sd_f θ,

with Monte Carlo errors √(1/ESS_c + 1/ESS_f) and about √(1/(2 ESS_c) + 1/(2 ESS_f)). KL is that of
the certificate: of all parameters jointly, in nats, from one pass at the coreset's draws θ_s. Its
importance weights r_s ∝ π(θ_s)/π_w(θ_s) tell the shift without a second run, and with the same
draws on both sides: where k-hat is good, far more precisely,

    bias = |Σ r_s θ_s − mean_c θ| / sd_c θ.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from rich.console import Console
from rich.table import Table

import decoct

CHAINS, TARGET = 2, 0.9
"""Of NUTS; scales of few groups have funnels, in which at 0.8 transitions diverge."""

Draws = Mapping[str, np.ndarray]
"""Site -> values (chains, draws, ...)."""


@dataclass(frozen=True)
class Example:
    """One model on one data set.

    Attributes
    ----------
    name
        For the table.
    model
        The NumPyro model, with a plate "data" over the rows.
    load
        Returns its arguments.
    population, groups
        Sites of population-level parameters, and of the effects of groups.
    size
        Rows to keep unless asked otherwise.
    """

    name: str
    model: Callable[..., Any]
    load: Callable[[], dict[str, Any]]
    population: tuple[str, ...]
    groups: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class Effort:
    """How long to sample, per chain."""

    warmup: int = 600
    draws: int = 600

    @classmethod
    def quick(cls) -> Effort:
        return cls(warmup=300, draws=200)


def columns_of(name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a data set in the folder named by DECOCT_DATA."""
    folder = os.environ.get("DECOCT_DATA")
    if not folder or not Path(folder).is_dir():
        sys.exit("Set DECOCT_DATA to the folder with the data sets (see benchmarks/README.md).")
    with np.load(Path(folder) / f"{name}.npz", allow_pickle=False) as archive:
        return {column: archive[column] for column in archive.files}


def bridged(example: Example) -> Any:
    """Return the example as a decoct model."""
    return decoct.from_numpyro(example.model, example.load())


def nuts(model: Callable[..., Any], arguments: Mapping[str, Any], effort: Effort, seed: int):
    """Return NumPyro's draws in float64."""
    from numpyro.infer import MCMC, NUTS

    with jax.enable_x64(True):
        given = {k: jnp.asarray(v) if np.ndim(v) else v for k, v in arguments.items()}
        counts = {"num_warmup": effort.warmup, "num_samples": effort.draws, "num_chains": CHAINS}
        mcmc = MCMC(
            NUTS(model, target_accept_prob=TARGET),
            **counts,
            chain_method="sequential",
            progress_bar=False,
        )
        mcmc.run(jax.random.key(seed), **given, extra_fields=("num_steps", "diverging"))
        draws = {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items()}
        extra = {k: np.asarray(v) for k, v in mcmc.get_extra_fields().items()}
    return draws, extra


def on_coreset(coreset: decoct.Coreset, effort: Effort, seed: int):
    """Return NumPyro's draws from the coreset posterior."""
    with jax.enable_x64(True):  # the kept rows become JAX arrays here
        model, arguments = coreset.to_numpyro()
    return nuts(model, dict(zip(model.names, arguments, strict=True)), effort, seed)


def compared(small: Draws, full: Draws, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a line for every scalar of the named sites: means, sds, shift, ratio, errors."""
    lines = []
    for name in names:
        one, other = (np.asarray(d[name], dtype=float) for d in (small, full))
        one, other = (v.reshape(*v.shape[:2], -1) for v in (one, other))
        for at in range(one.shape[2]):
            c, f = one[:, :, at], other[:, :, at]
            both = sum(1.0 / _ess(v) for v in (c, f))
            lines.append(
                {
                    "parameter": f"{name}[{at}]" if one.shape[2] > 1 else name,
                    "mean": c.mean(),
                    "full mean": f.mean(),
                    "sd": c.std(),
                    "full sd": f.std(),
                    "shift": abs(c.mean() - f.mean()) / f.std(),
                    "its error": np.sqrt(both),
                    "ratio": c.std() / f.std(),
                    "ratio's error": np.hypot(_error_of_sd(c), _error_of_sd(f)),
                }
            )
    return lines


def biases(check: decoct.Certificate, small: Draws, names: Sequence[str]) -> np.ndarray:
    """Return the bias of every scalar of the named sites, from the certificate's weights."""
    weights = np.exp(check.log_weights)
    weights = (weights / weights.sum()).ravel()
    found = []
    for name in names:
        values = np.asarray(small[name], dtype=float)[:, check.picked]
        flat = values.reshape(len(weights), -1)
        found.append(np.abs(weights @ flat - flat.mean(axis=0)) / flat.std(axis=0))
    return np.concatenate(found)


def _error_of_sd(values: np.ndarray) -> float:
    """Return the relative Monte Carlo error of an sd, from the squares: scales have long tails."""
    squares = np.square(values - values.mean())
    return 0.5 * squares.std() / squares.mean() / np.sqrt(_ess(squares))


def _ess(values: np.ndarray) -> float:
    return float(array_stats.ess(values, chain_axis=0, draw_axis=1))


def measured(
    example: Example, bridge: Any, coreset: decoct.Coreset, full: Draws, effort: Effort, seed: int
) -> tuple[dict[str, Any], list[dict[str, Any]], Any]:
    """Return the line of one size, those of its population parameters, and the certificate."""
    started = time.perf_counter()
    small, extra = on_coreset(coreset, effort, seed)
    seconds = time.perf_counter() - started
    check = decoct.check(coreset, bridge.rows, bridge.unconstrain(small))
    lines = compared(small, full, example.population)
    groups = compared(small, full, example.groups)
    worst = max(lines, key=lambda line: line["shift"])
    ratios = [line["ratio"] for line in lines]
    return (
        {
            "data": example.name,
            "parameters": coreset.dim,
            "rows": coreset.n_rows,
            "M": coreset.size,
            "KL": float(check.kl),
            "KL/parameter": float(check.kl) / coreset.dim,
            "k-hat": float(check.khat),
            "ok": check.ok,
            "worst shift": worst["shift"],
            "its error": worst["its error"],
            "where": worst["parameter"],
            "worst bias": float(biases(check, small, example.population).max()),
            "sd ratio, least": min(ratios),
            "sd ratio, most": max(ratios),
            "groups: worst shift": max(line["shift"] for line in groups),
            "groups: worst bias": float(biases(check, small, example.groups).max()),
            "divergences": int(extra["diverging"].sum()),
            "steps a draw": float(extra["num_steps"].mean()),
            "sampling seconds": round(seconds, 1),
        },
        lines,
        check,
    )


def shown(lines: Sequence[Mapping[str, Any]], title: str) -> None:
    """Print lines as a table."""
    table = Table(title=title)
    for name in lines[0]:
        table.add_column(name, justify="right")
    for one in lines:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in one.values()))
    Console(width=max(120, Console().width)).print(table)


def run(example: Example, sizes: Sequence[int], effort: Effort, seed: int = 0) -> list[dict]:
    """Build, sample, certify and compare at every size; return the lines of the table."""
    bridge = bridged(example)
    clock = time.perf_counter
    started = clock()
    coresets = decoct.path(bridge, bridge.rows, sizes, seed=seed)
    build = round(clock() - started, 1)
    rounds = coresets[-1].report.rounds
    print(f"{coresets[-1]!r}: {len(rounds)} rounds, {build} s, drawn by {rounds[-1]['sampler']}")
    started = clock()
    full, extra = nuts(example.model, example.load(), effort, seed + 1)
    seconds = round(clock() - started, 1)
    print(
        f"NUTS on all rows: {seconds} s, {extra['num_steps'].mean():.0f} steps a draw, "
        f"{int(extra['diverging'].sum())} divergences"
    )
    results = []
    for coreset in coresets:
        line, population, check = measured(example, bridge, coreset, full, effort, seed)
        line |= {"build seconds": build, "full seconds": seconds}
        results.append(line)
        print(check)
        shown(population, f"{example.name}, {coreset.size} rows: population-level parameters")
    return results


def write(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write the lines to a CSV file."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def main(example: Example, about: str) -> None:
    """Run one example from the command line."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--size", type=int, nargs="+", default=[example.size], metavar="M")
    parser.add_argument("--quick", action="store_true", help="few draws, to try it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="write the table to this file as well")
    options = parser.parse_args()
    effort = Effort.quick() if options.quick else Effort()
    lines = run(example, options.size, effort, options.seed)
    by_size = [{"": k, **{f"M = {one['M']}": one[k] for one in lines}} for k in lines[0]]
    shown(by_size, f"{example.name}: worst of the population-level parameters")
    if options.csv is not None:
        write(lines, options.csv)
