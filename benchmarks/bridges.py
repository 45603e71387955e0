"""Models of other frameworks on coresets: ``python -m benchmarks.bridges``.

For each model the framework's own sampler runs on all rows and on the coreset; reported are the
largest shift of a posterior mean in units of the full-data posterior sd, the Monte Carlo error of
such a shift (√(1/ESS + 1/ESS) at the worst parameter's ESS), the certificate, and the seconds. The
shift cannot be seen to be below about three of those errors. ``--overhead`` times passes over the
data through the bridges beside models written by hand (`benchmarks.bridge_passes`).

A case is a function that returns a `Case`; add it to `CASES`.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from arviz_stats.base import array_stats
from rich.console import Console
from rich.table import Table

import decoct
from benchmarks import data
from benchmarks.bridge_models import (
    numpyro_logistic_model,
    numpyro_radon_model,
    pymc_logistic_model,
)
from benchmarks.bridge_passes import overhead
from decoct.constructions import IteratedHilbert
from decoct.samplers.base import Sampler

RESULTS = Path(__file__).parent / "results"

WARMUP, DRAWS, PYMC_DRAWS = 500, 1200, 3000
"""Per chain; two chains each."""

Draws = Mapping[str, np.ndarray]
"""Name -> values (chains, draws, ...)."""


@dataclass(frozen=True)
class Case:
    """One model of one framework.

    Attributes
    ----------
    framework, name
        In the table.
    bridge
        The model as decoct's.
    size
        Rows to keep at most.
    on_all, on_coreset
        The framework's sampler: seed -> draws, coreset and seed -> draws.
    parameters
        Names to compare.
    build_sampler
        The sampler of the build; None for the default.
    """

    framework: str
    name: str
    bridge: Any
    size: int
    on_all: Callable[[int], Draws]
    on_coreset: Callable[[decoct.Coreset, int], Draws]
    parameters: tuple[str, ...]
    build_sampler: Sampler | None = None


def numpyro_case(
    name: str,
    model: Any,
    given: Mapping[str, Any],
    size: int,
    parameters: tuple[str, ...],
    draws: int = DRAWS,
    **options,
) -> Case:
    """Return a case for NumPyro: its NUTS, two chains, in float64."""
    import numpyro

    from decoct.bridges.numpyro import from_numpyro

    numpyro.enable_x64()

    def nuts(model: Any, seed: int, *args: Any, **kwargs: Any) -> Draws:
        from numpyro.infer import MCMC, NUTS

        counts = {"num_warmup": WARMUP, "num_samples": draws, "num_chains": 2}
        mcmc = MCMC(NUTS(model), **counts, chain_method="sequential", progress_bar=False)
        mcmc.run(jax.random.key(seed), *args, **kwargs)
        return mcmc.get_samples(group_by_chain=True)

    def on_coreset(coreset: decoct.Coreset, seed: int) -> Draws:
        weighted, args = coreset.to_numpyro()
        return nuts(weighted, seed, *args)

    bridge = from_numpyro(model, given)
    everything = {k: jax.numpy.asarray(v) if np.ndim(v) else v for k, v in given.items()}
    return Case(
        "NumPyro",
        name,
        bridge,
        size,
        lambda seed: nuts(model, seed, **everything),
        on_coreset,
        parameters,
        **options,
    )


def numpyro_logistic() -> Case:
    """Logistic regression, 50,000 synthetic rows, 10 coefficients."""
    return numpyro_case("logistic", numpyro_logistic_model(), data.logistic(50_000), 80, ("beta",))


def numpyro_radon() -> Case:
    """Radon in 12,573 homes of 386 counties, non-centred (Gelman & Hill 2006, Chapter 12)."""
    from decoct.samplers import Laplace

    with np.load(data.folder() / "radon_all.npz") as archive:
        given = {
            "county": archive["county_idx"] - 1,
            "floor": archive["floor_measure"],
            "y": archive["log_radon"],
            "n_counties": int(archive["J"]),
        }
    names = ("mu", "tau", "slope", "sigma", "alpha")
    # τ mixes slowly
    options = {"draws": 6 * DRAWS, "build_sampler": Laplace(judge=False)}
    return numpyro_case("radon, 386 counties", numpyro_radon_model(), given, 1500, names, **options)


def numpyro_two_sites() -> Case:
    """Negative-binomial counts and a Student-t response per row, 10,000 synthetic rows."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def model(x, counts=None, score=None):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        gamma = numpyro.sample("gamma", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        shape = numpyro.sample("shape", dist.Gamma(2.0, 1.0))
        freedom = numpyro.sample("freedom", dist.Gamma(2.0, 0.1))
        scale = numpyro.sample("scale", dist.HalfNormal(2.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("counts", dist.NegativeBinomial2(jnp.exp(x @ beta), shape), obs=counts)
            numpyro.sample("score", dist.StudentT(freedom, x @ gamma, scale), obs=score)

    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(10_000, 2)), np.ones(10_000)])
    mean = np.exp(x @ np.array([0.4, -0.2, 0.5])) * rng.gamma(2.0, 0.5, size=len(x))
    score = x @ np.array([1.0, 0.5, -1.0]) + 0.7 * rng.standard_t(5.0, size=len(x))
    given = {"x": x, "counts": rng.poisson(mean), "score": score}
    names = ("beta", "gamma", "shape", "freedom", "scale")
    return numpyro_case("two observed sites", model, given, 150, names)


def pymc_case(
    name: str,
    model: Any,
    size: int,
    parameters: tuple[str, ...],
    draws: int = PYMC_DRAWS,
    sampler: str = "pymc",
    **options,
) -> Case:
    """Return a case for PyMC: ``pm.sample``, two chains, compiled by JAX in float64."""
    import pymc as pm

    from decoct.bridges.pymc import from_pymc

    jax.config.update("jax_enable_x64", True)
    compiled = {"compile_kwargs": {"mode": "JAX"}}
    sequential = {"nuts_sampler_kwargs": {"chain_method": "sequential"}}

    def nuts(model: Any, seed: int) -> Draws:
        with model:
            drawn = pm.sample(
                draws=draws,
                tune=2 * WARMUP,
                chains=2,
                cores=1,
                random_seed=seed,
                progressbar=False,
                compute_convergence_checks=False,
                nuts_sampler=sampler,
                **(compiled if sampler == "pymc" else sequential),
            )
        return {str(k): values.to_numpy() for k, values in drawn["posterior"].items()}

    return Case(
        "PyMC",
        name,
        from_pymc(model),
        size,
        lambda seed: nuts(model, seed),
        lambda coreset, seed: nuts(coreset.to_pymc(), seed),
        parameters,
        **options,
    )


def pymc_logistic() -> Case:
    """Logistic regression, 50,000 synthetic rows, 10 coefficients."""
    return pymc_case("logistic", pymc_logistic_model(data.logistic(50_000)), 80, ("beta",))


def pymc_election() -> Case:
    """Votes of 11,566 people in 51 states in 1988, non-centred (Gelman & Hill 2006, Chapter 14)."""
    import pymc as pm

    from decoct.samplers import Laplace

    with np.load(data.folder() / "election88.npz") as archive:
        given = {k: archive[k] for k in ("state", "black", "female", "v_prev_full", "y")}
        n_states = int(archive["n_state"])
    with pm.Model(coords={"state": np.arange(1, n_states + 1)}) as model:
        state = pm.Data("where", given["state"] - 1)
        black, female = pm.Data("black", given["black"]), pm.Data("female", given["female"])
        before, y = pm.Data("before", given["v_prev_full"] - 0.5), pm.Data("y", given["y"])
        beta = pm.Normal("beta", 0.0, 5.0, shape=4)
        tau = pm.HalfNormal("tau", 1.0)
        offset = pm.Normal("offset", 0.0, 1.0, dims="state")
        alpha = pm.Deterministic("alpha", tau * offset, dims="state")
        linear = beta[0] + beta[1] * black + beta[2] * female + beta[3] * before
        pm.Bernoulli("vote", logit_p=linear + alpha[state], observed=y)
    names = ("beta", "tau", "alpha")
    laplace = Laplace(judge=False)
    # τ mixes slowly: NumPyro's NUTS, which pm.sample calls, makes more draws in the same time
    faster = {"draws": 2 * PYMC_DRAWS, "sampler": "numpyro"}
    return pymc_case("votes, 51 states", model, 1500, names, **faster, build_sampler=laplace)


CASES: dict[str, Callable[[], Case]] = {
    "numpyro_logistic": numpyro_logistic,
    "numpyro_radon": numpyro_radon,
    "numpyro_two_sites": numpyro_two_sites,
    "pymc_logistic": pymc_logistic,
    "pymc_election": pymc_election,
}


def compared(name: str, seed: int = 0) -> dict[str, Any]:
    """Return one line of the table."""
    case = CASES[name]()
    clock = time.perf_counter
    started = clock()
    options = {"method": IteratedHilbert(site=False), "sampler": case.build_sampler}
    coreset = decoct.build(case.bridge, case.bridge.rows, size=case.size, seed=seed, **options)
    built = clock()
    small = case.on_coreset(coreset, seed)
    sampled = clock()
    full = case.on_all(seed + 1)
    done = clock()
    check = decoct.check(coreset, case.bridge.rows, case.bridge.unconstrain(small))
    shift, where, error = worst_shift(small, full, case.parameters)
    return {
        "framework": case.framework,
        "model": case.name,
        "N": coreset.n_rows,
        "dim": coreset.dim,
        "rows": coreset.size,
        "kl": check.kl,
        "khat": check.khat,
        "shift": shift,
        "shift_error": error,
        "where": where,
        "build_seconds": round(built - started, 1),
        "coreset_seconds": round(sampled - built, 1),
        "full_seconds": round(done - sampled, 1),
    }


def worst_shift(small: Draws, full: Draws, names: tuple[str, ...]) -> tuple[float, str, float]:
    """Return the largest |mean difference| in full-data sd, where, and its Monte Carlo error."""
    worst = (-1.0, "", 0.0)
    for name in names:
        first, second = (np.asarray(draws[name], dtype=float) for draws in (small, full))
        first, second = (v.reshape(*v.shape[:2], -1) for v in (first, second))
        sd = second.std(axis=(0, 1))
        shifts = np.abs(first.mean(axis=(0, 1)) - second.mean(axis=(0, 1))) / sd
        at = int(np.argmax(shifts))
        ess = [
            float(array_stats.ess(v[:, :, at], chain_axis=0, draw_axis=1)) for v in (first, second)
        ]
        error = float(np.sqrt(sum(1.0 / one for one in ess)))
        worst = max(
            worst, (float(shifts[at]), f"{name}[{at}]" if first.shape[2] > 1 else name, error)
        )
    return worst


def show(results: list[dict[str, Any]], title: str) -> None:
    """Print the results as one table."""
    table = Table(title=title)
    for name in results[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for one in results:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in one.values()))
    Console(width=max(150, Console().width)).print(table)


def write(results: list[dict[str, Any]], path: Path, *keys: str) -> None:
    """Write the results; lines of earlier runs stay unless these have the same keys."""
    kept: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="") as file:
            new = {tuple(n[key] for key in keys) for n in results}
            kept = [r for r in csv.DictReader(file) if tuple(r[key] for key in keys) not in new]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(results[0]), lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(kept + results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default all: {', '.join(CASES)}")
    parser.add_argument("--overhead", action="store_true", help="time passes over the data")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    if options.overhead:
        times = overhead()
        show(times, "Processor seconds a pass, 131,072 rows")
        write(times, RESULTS / "bridges_overhead.csv", "framework", "likelihood", "pass")
        return
    for name in options.cases or CASES:
        result = compared(name, options.seed)
        show([result], f"{result['framework']}: {result['model']}")
        write([result], RESULTS / "bridges.csv", "framework", "model")


if __name__ == "__main__":
    main()
