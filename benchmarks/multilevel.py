"""Multilevel models on tall tables: ``python -m benchmarks.multilevel [CASE ...]``.

For each case a coreset is built, sampled (4 × (up to 100 + 500) steps of NUTS) and certified, in a
process of its own. With ``--full`` NumPyro's NUTS then samples the posterior of all rows, 2 × (600
+ 600) steps, both with a target acceptance of 0.9, and population-level parameters are compared:
the largest shift of a mean in posterior standard deviations, and the largest |sd ratio − 1|, each
beside its Monte Carlo error there. KL is the certificate's. Lines of cases that are not run again
are kept. ``--passes`` times an expansion of 1,000,000 rows by the number of groups instead.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import decoct
from benchmarks.tables import RESULTS, in_process, read_csv, write_csv
from decoct.data import encoded
from decoct.passes.expansions import Expansion
from decoct.passes.potentials import Potentials
from decoct.samplers import NUTS
from examples.hierarchical import chem97, election88, flights, radon
from examples.hierarchical.common import TARGET, Effort, columns_of, compared, nuts

FILE = RESULTS / "multilevel.csv"

FULL = Effort(warmup=600, draws=600)


class Case(NamedTuple):
    """A posterior, rows to keep (None: for 0.01 nats), and population-level parameters to compare.

    ``make`` returns a decoct model, its rows, and what NumPyro is to sample: model and arguments.
    """

    make: Callable[[], tuple[Any, Any, Any]]
    size: int | None
    population: tuple[str, ...] = ()


def of_numpyro(model: Callable[..., Any], arguments: dict[str, Any]) -> tuple[Any, Any, Any]:
    bridge = decoct.from_numpyro(model, arguments)
    return bridge, bridge.rows, (model, arguments)


def of_bridge(bridge: Any) -> tuple[Any, Any, None]:
    return bridge, bridge.rows, None


def crossed(n: int, groups: int, is_count: bool) -> tuple[Any, Any, None]:
    """Return made-up rows of two crossed sets of groups, counts or zeros and ones."""
    rng = np.random.default_rng(0)
    effects = {"a": 0.3 * rng.normal(size=groups), "b": 0.4 * rng.normal(size=groups)}
    group = {name: rng.integers(groups, size=n, dtype=np.int32) for name in effects}
    x = rng.normal(size=n)
    eta = -1.0 + 0.3 * x + sum(effects[name][group[name]] for name in effects)
    y = rng.poisson(np.exp(eta)) if is_count else rng.random(n) < 1.0 / (1.0 + np.exp(-eta))

    def log_likelihood(phi, rows):
        eta = phi["beta"][0] + phi["beta"][1] * rows["x"]
        eta += phi["effect_a"][rows["a"]] + phi["effect_b"][rows["b"]]
        return rows["y"] * eta - (jnp.exp(eta) if is_count else jnp.logaddexp(0.0, eta))

    def log_prior(p):
        total = -0.5 * (p["beta"] ** 2).sum() / 2.5**2
        for name in effects:
            effect, log_tau = p[f"effect_{name}"], p[f"log_tau_{name}"]
            total += -0.5 * (effect**2).sum() * jnp.exp(-2.0 * log_tau) - groups * log_tau
            total += -0.5 * jnp.exp(2.0 * log_tau) + log_tau
        return total

    def likelihood_params(p):
        return {name: p[name] for name in ("beta", "effect_a", "effect_b")}

    start = {"beta": np.zeros(2), "log_tau_a": 0.0, "log_tau_b": 0.0}
    start |= {f"effect_{name}": np.zeros(groups) for name in effects}
    model = decoct.Model(log_likelihood, log_prior, start, likelihood_params=likelihood_params)
    return model, {"x": x, **group, "y": y.astype(np.float64)}, None


def groups_of(n: int, groups: int = 200) -> tuple[Any, Any, Any]:
    """Return made-up zeros and ones in groups of n rows."""
    rng = np.random.default_rng(0)
    group, x = np.repeat(np.arange(groups), n), rng.normal(size=n * groups)
    eta = -1.0 + 0.3 * x + 0.5 * rng.normal(size=groups)[group]
    y = (rng.random(n * groups) < 1.0 / (1.0 + np.exp(-eta))).astype(np.int32)

    def model(group, x, y=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.5).expand([2]).to_event(1))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([groups]).to_event(1))
        with numpyro.plate("data", len(x)):
            eta = beta[0] + beta[1] * x + tau * z[group]
            numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)

    return of_numpyro(model, {"group": group, "x": x, "y": y})


def proteins() -> tuple[Any, Any, Any]:
    """Return proteins alike to one of 77, 639 of 72,875, with intercepts and slopes by that one."""
    table = columns_of("protein_homology_part1")
    names, block = np.unique(table["block"], return_inverse=True)
    x = table["X"][:, [0, 3, 54, 55, 57]].astype(np.float64)
    x = np.clip((x - x.mean(axis=0)) / x.std(axis=0), -6.0, 6.0)

    def model(x, block, y=None):
        normal, scale = dist.Normal(0.0, 1.0), dist.HalfNormal(2.0)
        a = numpyro.sample("a", dist.Normal(-4.0, 3.0))
        b = numpyro.sample("b", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
        tau = numpyro.sample("tau", scale.expand([2]).to_event(1))
        z = numpyro.sample("z", normal.expand([2, len(names)]).to_event(2))
        u, slope = tau[:, None] * z
        with numpyro.plate("data", len(x)):
            logits = a + x @ b + u[block] + slope[block] * x[:, 2]
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    return of_numpyro(model, {"x": x, "block": block, "y": table["y"].astype(np.int64)})


GROUPS = {f"groups of {n:,}": partial(groups_of, n) for n in (3, 10, 30, 100, 300, 1000)}

CASES = {
    "flights": Case(lambda: of_numpyro(flights.numpyro_model, flights.load()), 100),
    "flights, in PyMC": Case(lambda: of_bridge(flights.pymc_bridge(flights.load())), 100),
    "flights, in Bambi": Case(lambda: of_bridge(flights.bambi_bridge(flights.load())), 100),
    "flights, 300,000": Case(
        lambda: of_numpyro(flights.numpyro_model, flights.load(300_000)),
        200,
        ("beta", "tau_origin", "tau_dest"),
    ),
    "election88": Case(
        lambda: of_numpyro(election88.model, election88.load()), 90, election88.EXAMPLE.population
    ),
    "radon": Case(lambda: of_numpyro(radon.model, radon.load()), 50, radon.EXAMPLE.population),
    "chem97, pupils": Case(
        lambda: of_numpyro(chem97.pupils, chem97.load_pupils()),
        200,
        ("beta", "tau_school", "tau_lea", "sigma"),
    ),
    "crossed, Poisson": Case(lambda: crossed(5_000_000, 1000, True), 200),
    "crossed, logistic": Case(lambda: crossed(5_000_000, 1000, False), 200),
    "proteins": Case(proteins, None, ("a", "b", "tau")),
    **{name: Case(make, 100, ("beta", "tau")) for name, make in GROUPS.items()},
}


def measure(name: str, is_full: bool) -> dict[str, Any]:
    """Return the line of a case."""
    case, clock = CASES[name], time.perf_counter
    model, rows, for_numpyro = case.make()
    started = clock()
    coreset = decoct.build(model, rows, size=case.size)
    built = clock()
    draws = coreset.sample(draws=500, sampler=NUTS(warmup=300, target_acceptance=TARGET))
    sampled = clock()
    check = decoct.check(coreset, rows, draws)
    certified = clock()
    line = {
        "case": name,
        "N": coreset.n_rows,
        "parameters": coreset.dim,
        "rows": coreset.size,
        "kl": check.kl,
        "kl_low": check.kl_interval[0],
        "kl_high": check.kl_interval[1],
        "khat": check.khat,
        "rhat": check.rhat,
        "leapfrogs": float(np.median(draws["sample_stats"]["n_steps"])),
        "divergences": int(draws["sample_stats"]["diverging"].sum()),
        "build_s": built - started,
        "sample_s": sampled - built,
        "check_s": certified - sampled,
        "passes": coreset.report.passes,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    if not (is_full and for_numpyro and case.population):
        return line
    started = clock()
    full, extra = nuts(*for_numpyro, FULL, seed=1)
    line |= {"full_s": clock() - started, "full_leapfrogs": float(np.median(extra["num_steps"]))}
    small = {k: draws["posterior"][k].to_numpy() for k in case.population}
    lines = compared(small, full, case.population)
    shift = max(lines, key=lambda one: one["shift"])
    ratio = max(lines, key=lambda one: abs(one["ratio"] - 1.0))
    return line | {
        "shift": shift["shift"],
        "shift_error": shift["its error"],
        "sd_off": abs(ratio["ratio"] - 1.0),
        "sd_error": ratio["ratio's error"],
    }


def time_passes() -> None:
    """Print the seconds of an expansion of all rows, with compilation and without."""
    for groups in (4, 499, 1000):
        model, rows, _ = crossed(1_000_000, groups, False)
        potentials = Potentials(model, encoded(decoct.rows(rows), model))
        d, seconds = potentials.likelihood_dim, []
        at = Expansion.over(np.zeros(d), 0.05 * np.eye(d), np.zeros((1, d)))
        for _ in range(4):
            started = time.perf_counter()
            potentials.expand(at)
            seconds.append(time.perf_counter() - started)
        print(f"d = {d:,}: {seconds[0]:.2f} s, {min(seconds):.2f} s again")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(map(repr, CASES)))
    parser.add_argument("--full", action="store_true", help="sample the posterior of all rows, too")
    parser.add_argument("--passes", action="store_true", help="time expansions by groups")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    if options.passes:
        time_passes()
        return
    if options.here:
        print(json.dumps(measure(options.cases[0], options.full)))
        return
    lines = {one["case"]: one for one in read_csv(FILE)}
    for name in options.cases or CASES:
        full = ["--full"] if options.full else []
        lines[name] = in_process("benchmarks.multilevel", name, "--here", *full)
        print(json.dumps(lines[name]))
        write_csv(FILE, [lines[name] for name in CASES if name in lines])


if __name__ == "__main__":
    main()
