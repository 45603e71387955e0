"""Late flights by airport of origin and destination: ``python -m examples.hierarchical.flights``.

2,000,000 US flights of January to June 2001, 229 airports. Whether flight n is more than 15 minutes
late on arrival,

    logit P(y_n = 1) = β₀ + β₁ log distance + two cycles of the hour of day + o_origin + d_dest,
    β ~ N(0, 2.5²),    o_j ~ N(0, τ_o²),    d_j ~ N(0, τ_d²),    τ ~ HalfNormal(1),

in three notations: NumPyro, PyMC, and Bambi's formula. 466 parameters; the rows depend on 464
likelihood parameters, β and the effects.

The three have the same posterior. Their sites agree to the Monte Carlo error of the draws that a
build takes, as NUTS multiplies rounding, and rows kept beside them differ; `python -m
benchmarks.multilevel` certifies each. Bambi has effects only of airports that occur: one origin and
one destination do not.

Effects of origin by hour of day do not fit: a quarter of the 3,813 pairs that occur have 16 flights
or fewer. With them, a build beside other work took 23 minutes and ended with the status `UNKNOWN`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import decoct
from examples.hierarchical.common import columns_of, shown

LATE = 15
"""Minutes."""

COVARIATES = ("log_distance", "sin1", "cos1", "sin2", "cos2")

STEPS, GRADIENTS = 4 * 1000, 31
"""Steps of a run of four chains, and gradients a step, that a run on all rows is taken to need."""


def numpyro_model(x, origin, dest, late=None, *, airports):
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.5).expand([x.shape[1]]).to_event(1))
    effects = {}
    for name in ("origin", "dest"):
        tau = numpyro.sample(f"tau_{name}", dist.HalfNormal(1.0))
        with numpyro.plate(f"{name}s", airports):
            unit = numpyro.sample(f"unit_{name}", dist.Normal(0.0, 1.0))
            effects[name] = numpyro.deterministic(f"effect_{name}", tau * unit)
    with numpyro.plate("data", x.shape[0]):
        logits = x @ beta + effects["origin"][origin] + effects["dest"][dest]
        numpyro.sample("late", dist.Bernoulli(logits=logits), obs=late)


def pymc_bridge(table: dict[str, Any]) -> Any:
    """Return the same model, written in PyMC, as a decoct model."""
    import pymc as pm

    with pm.Model() as model:
        x, late = pm.Data("x", table["x"]), pm.Data("late", table["late"])
        groups = {name: pm.Data(name, table[name]) for name in ("origin", "dest")}
        beta = pm.Normal("beta", 0.0, 2.5, shape=table["x"].shape[1])
        logits = x @ beta
        for name, group in groups.items():
            tau = pm.HalfNormal(f"tau_{name}", 1.0)
            unit = pm.Normal(f"unit_{name}", shape=table["airports"])
            logits += pm.Deterministic(f"effect_{name}", tau * unit)[group]
        pm.Bernoulli("y", logit_p=logits, observed=late)
    return decoct.from_pymc(model)


def bambi_bridge(table: dict[str, Any]) -> Any:
    """Return the same model, a formula of Bambi's, as a decoct model."""
    import bambi as bmb
    import pandas as pd

    columns = dict(zip(COVARIATES, table["x"][:, 1:].T, strict=True))
    flights = pd.DataFrame(columns | {k: table[k] for k in ("origin", "dest", "late")})
    flights[["origin", "dest"]] = flights[["origin", "dest"]].astype("category")
    fixed = bmb.Prior("Normal", mu=0.0, sigma=2.5)
    effect = bmb.Prior("Normal", mu=0.0, sigma=bmb.Prior("HalfNormal", sigma=1.0))
    groups = {"1|origin": effect, "1|dest": effect}
    priors = {"Intercept": fixed} | dict.fromkeys(COVARIATES, fixed) | groups
    formula = f"late ~ {' + '.join(COVARIATES)} + (1|origin) + (1|dest)"
    model = bmb.Model(formula, flights, family="bernoulli", priors=priors, center_predictors=False)
    return decoct.from_bambi(model)


def load(rows: int | None = None) -> dict[str, Any]:
    """Return the arguments of `numpyro_model`, for a random sample of so many rows or for all."""
    table = columns_of("flights_2001_2m")
    n = len(table["delay"])
    some = np.random.default_rng(0).permutation(n)[:rows]
    hour = (table["minute"][some] % 1440) / 1440 * 2.0 * np.pi
    distance = np.log(table["distance"][some].astype(np.float64))
    distance = (distance - distance.mean()) / distance.std()
    cycles = (np.sin(hour), np.cos(hour), np.sin(2.0 * hour), np.cos(2.0 * hour))
    return {
        "x": np.column_stack([np.ones(len(some)), distance, *cycles]),
        "origin": table["origin"][some].astype(np.int64),
        "dest": table["dest"][some].astype(np.int64),
        "late": (table["delay"][some] > LATE).astype(np.int64),
        "airports": len(table["airports"]),
    }


BRIDGES = {
    "numpyro": lambda table: decoct.from_numpyro(numpyro_model, table),
    "pymc": pymc_bridge,
    "bambi": bambi_bridge,
}


def seconds_of_gradient(bridge: Any) -> float:
    """Return the seconds that the gradient of the log-likelihood of all rows takes."""
    rows = bridge.encode(bridge.rows.take(np.arange(bridge.rows.n_rows)))
    with jax.enable_x64(True):
        columns = {name: jnp.asarray(values) for name, values in rows.items()}
        params = {name: jnp.asarray(values) for name, values in bridge.start.items()}
        gradient = jax.jit(jax.grad(lambda p, r: bridge.potentials(p, r).sum()))
        jax.block_until_ready(gradient(params, columns))
        started = time.perf_counter()
        jax.block_until_ready(gradient(params, columns))
    return time.perf_counter() - started


def draw_effects(draws: Any, coreset: decoct.Coreset, table: dict[str, Any], path: Path) -> None:
    """Draw the effects of all airports in order, and which of them have rows in the coreset."""
    from matplotlib.figure import Figure

    names = columns_of("flights_2001_2m")["airports"]
    picture = Figure(figsize=(10, 7), layout="constrained")
    for axes, name in zip(picture.subplots(2, 1, sharey=True), ("origin", "dest"), strict=True):
        is_bambi = f"1|{name}" in draws["posterior"]
        numbers = np.unique(table[name]) if is_bambi else np.arange(table["airports"])
        effects = draws["posterior"][f"1|{name}" if is_bambi else f"effect_{name}"].to_numpy()
        effects = effects.reshape(-1, effects.shape[-1])
        order = np.argsort(effects.mean(axis=0))
        airports, has_rows = names[numbers], np.isin(numbers[order], table[name][coreset.indices])
        low, high = np.quantile(effects[:, order], [0.025, 0.975], axis=0)
        for kept, colour, label in ((False, "#999999", "no row"), (True, "#d55e00", "rows kept")):
            at = np.flatnonzero(has_rows == kept)
            axes.vlines(at, low[at], high[at], colors=colour, label=label)
        first, last = (", ".join(airports[order[part]]) for part in (slice(3), slice(-3, None)))
        axes.set(title=f"{name}: effects on the log odds of a late flight, 95 %", xticks=[])
        axes.set_xlabel(f"airports in order of their means, from {first} to {last}")
        axes.axhline(0.0, color="black", linewidth=0.5)
        axes.legend(loc="upper left", frameon=False)
    picture.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, help="a random sample of so many flights")
    parser.add_argument("--size", type=int, default=100, metavar="M")
    parser.add_argument("--notation", choices=list(BRIDGES), default="numpyro")
    parser.add_argument("--picture", type=Path, help="draw the effects to this file")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    seconds, clock = {}, time.perf_counter
    table = load(options.rows)
    bridge = BRIDGES[options.notation](table)
    print(bridge.likelihood_params)
    started = clock()
    coreset = decoct.build(bridge, bridge.rows, size=options.size, seed=options.seed)
    seconds["build"], started = clock() - started, clock()
    draws = coreset.sample(draws=500, chains=4, seed=options.seed + 1)
    seconds["sample"], started = clock() - started, clock()
    check = decoct.check(coreset, bridge.rows, draws)
    seconds["certify"] = clock() - started
    print(coreset, check, sep="\n")
    lines = []
    for name, values in draws["posterior"].data_vars.items():
        if values.size >= values.sizes["chain"] * values.sizes["draw"] * len(COVARIATES) * 2:
            continue  # effects
        for at, value in enumerate(values.to_numpy().reshape(-1, values[0, 0].size).T):
            lines.append({"": f"{name}[{at}]", "mean": value.mean(), "sd": value.std()})
    shown(lines, f"flights, {coreset.size} of {coreset.n_rows:,} rows")
    steps = float(np.mean(draws["sample_stats"]["n_steps"]))
    gradient = seconds_of_gradient(bridge)
    print(", ".join(f"{name} {value:.1f} s" for name, value in seconds.items()), end="; ")
    print(f"{steps:.0f} gradients a draw")
    print(
        f"A gradient of all rows takes {gradient:.3f} s: {STEPS:,} steps of {GRADIENTS} gradients "
        f"would take {STEPS * GRADIENTS * gradient:,.0f} s (extrapolated)."
    )
    if options.picture is not None:
        draw_effects(draws, coreset, table, options.picture)


if __name__ == "__main__":
    main()
