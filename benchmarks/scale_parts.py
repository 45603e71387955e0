"""The parts of ``benchmarks.scale``, each run in a process of its own.

Rows are logistic: ten standard normal covariates and a label, in a folder of Parquet files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

DIM = 10
BLOCK = 1_000_000
SIZE = 10
CERTIFICATE_DRAWS = 400
CHAINS, WARMUP, DRAWS = 4, 1000, 1000
LONG_DRAWS = 5000
"""Per chain, where means and sds are compared more closely than `DRAWS` can."""


def write_rows(folder: Path, n: int) -> None:
    """Write N rows, a file for each million; a folder that is complete is left alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if (folder / "complete").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    beta = 0.7 * np.random.default_rng(0).normal(size=DIM)
    for number, begin in enumerate(range(0, n, BLOCK)):
        rng = np.random.default_rng([1, number])
        x = rng.normal(size=(min(BLOCK, n - begin), DIM))
        y = rng.random(len(x)) < 1.0 / (1.0 + np.exp(-x @ beta))
        columns = {f"x{i}": x[:, i] for i in range(DIM)} | {"y": y.astype(np.int8)}
        pq.write_table(pa.table(columns), folder / f"part-{number:05d}.parquet")
    (folder / "complete").touch()


def model_of(rows: Any) -> Any:
    """Return the formula model that a user of these columns would write."""
    from decoct.models.formula.model import from_formula

    formula = "y ~ 0 + " + " + ".join(f"x{i}" for i in range(DIM))
    return from_formula(formula, rows, "bernoulli", standardize=False)


def source(options: argparse.Namespace, folder: Path) -> Any:
    """Return the rows: streamed from the files, or through a Dask cluster of worker processes."""
    import decoct

    pattern = str(folder / "*.parquet")
    if options.workers:
        return decoct.rows(pattern, dask=options.address)
    return decoct.rows(pattern)


@contextmanager
def counted_potentials() -> Iterator[list[Any]]:
    """Yield the `Potentials` that certificates make meanwhile; they count what is evaluated."""
    from decoct.certificates import certificate

    usual, made = certificate.Potentials, []
    certificate.Potentials = lambda *args, **options: (
        made.append(usual(*args, **options)) or made[-1]
    )
    try:
        yield made
    finally:
        certificate.Potentials = usual


def coreset_run(options: argparse.Namespace) -> dict[str, Any]:
    """Build, sample and certify, as a user would; seconds by step, evaluations, peak memory."""
    import decoct

    clock = [time.perf_counter()]

    def lap() -> float:
        clock.append(time.perf_counter())
        return clock[-1] - clock[-2]

    if options.warm:
        before = source(options, options.warm)
        decoct.check(decoct.build(model_of(before), before, size=SIZE, progress=False), before)
        lap()
    rows = source(options, options.folder)
    model = model_of(rows)
    formula_s = lap()
    coreset = decoct.build(model, rows, size=SIZE, progress=False)
    build_s = lap()
    draws = coreset.sample(draws=DRAWS, warmup=WARMUP, chains=CHAINS, seed=1, progress=False)
    sample_s = lap()
    with counted_potentials() as made:
        check = decoct.check(coreset, rows, draws, max_draws=CERTIFICATE_DRAWS, progress=False)
    check_s = lap()
    evaluations = coreset.report.evaluations + sum(one.counts.evaluations for one in made)
    coreset.save(options.folder.with_suffix(".coreset.parquet"))
    return {
        "n": coreset.n_rows,
        "rows": coreset.size,
        "kl": check.kl,
        "kl_upper": check.kl_interval[1],
        "khat": check.khat,
        "rounds": len(coreset.report.rounds),
        "totals_error": coreset.report.rounds[-1].get("totals_error", ""),
        "evaluations": evaluations / coreset.n_rows,
        "formula_s": formula_s,
        "build_s": build_s,
        "sample_s": sample_s,
        "check_s": check_s,
        "coreset_s": formula_s + build_s + sample_s + check_s,
        "peak_gb": peak_gb(),
    } | summary(unconstrained(draws))


def summary(z: np.ndarray, prefix: str = "") -> dict[str, Any]:
    """Return means, sds, and the least effective sizes of either, of draws (chains, draws, d)."""
    from arviz_stats.base import array_stats

    def least(values: np.ndarray) -> float:
        sizes = [
            array_stats.ess(one, chain_axis=0, draw_axis=1) for one in values.transpose(2, 0, 1)
        ]
        return float(np.min(sizes))

    mean = z.mean(axis=(0, 1))
    found = {
        "mean": mean.tolist(),
        "sd": z.std(axis=(0, 1), ddof=1).tolist(),
        "ess": least(z),
        "square_ess": least((z - mean) ** 2),
    }
    return {prefix + name: value for name, value in found.items()}


def unconstrained(draws: Any) -> np.ndarray:
    return draws["unconstrained_posterior"]["z"].to_numpy()


def in_chains(drawn: Any) -> np.ndarray:
    return drawn.flat.reshape(CHAINS, -1, DIM)


def long_run(options: argparse.Namespace) -> dict[str, Any]:
    """Sample the coreset's posterior and that of all rows with many more draws, for comparison."""
    import jax

    import decoct
    from decoct.samplers.nuts import NUTS

    coreset = decoct.load(options.folder.with_suffix(".coreset.parquet"))
    drawn = coreset.sample(draws=LONG_DRAWS, warmup=WARMUP, chains=CHAINS, seed=2, progress=False)
    nuts = NUTS(chains=CHAINS, warmup=WARMUP)
    full = nuts.sample(jax.random.key(3), full_density(options), LONG_DRAWS)
    return summary(unconstrained(drawn)) | summary(in_chains(full), "full_")


def full_density(options: argparse.Namespace) -> Any:
    """Return the posterior of all rows, in memory."""
    from decoct.data.encoded import encoded
    from decoct.samplers.base import WeightedDensity

    rows = source(options, options.folder)
    model = model_of(rows)
    table = encoded(rows, model)
    whole = next(iter(table.chunks(table.n_rows))).columns
    return WeightedDensity.of(model, whole, np.ones(table.n_rows))


def full_run(options: argparse.Namespace) -> dict[str, Any]:
    """Sample the posterior of all rows with the sampler that the coreset had."""
    import jax

    from decoct.samplers.nuts import NUTS

    density = full_density(options)
    started = time.perf_counter()
    drawn = NUTS(chains=CHAINS, warmup=WARMUP).sample(jax.random.key(1), density, DRAWS)
    seconds = time.perf_counter() - started
    return {
        "full_s": seconds,
        # all chains move together: a step costs as many gradients as the chain that needs most
        "full_steps": float(drawn.info["n_steps"].max(axis=0).mean()),
    } | summary(in_chains(drawn), "full_")


def gradient_run(options: argparse.Namespace) -> dict[str, Any]:
    """Time one gradient of the posterior of all rows, of four chains together."""
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    from benchmarks.tables import best_of

    density = full_density(options)

    @eqx.filter_jit
    def gradients(density: Any, z: Any) -> Any:
        return jax.vmap(jax.value_and_grad(density.log_density))(z)

    with jax.enable_x64(True):
        at = jnp.asarray(0.1 * np.random.default_rng(0).normal(size=(CHAINS, DIM)))
        seconds = best_of(lambda: jax.block_until_ready(gradients(density, at)))
    return {"gradient_s": seconds}


def pass_run(options: argparse.Namespace) -> dict[str, Any]:
    """Time one pass of 1,000 draws over rows in memory: decoct's, plain JAX's and NumPy's."""
    import jax
    import jax.numpy as jnp

    import decoct
    from benchmarks.tables import best_of
    from decoct.data.encoded import encoded
    from decoct.passes.potentials import Potentials, chunk_rows
    from decoct.runtime.resources import keep_buffers

    keep_buffers()  # as a build does
    rng, n, draws = np.random.default_rng(0), 200_000, 1000
    x, sign = rng.normal(size=(n, DIM)), np.where(rng.random(n) < 0.5, 1.0, -1.0)
    z = 0.1 * rng.normal(size=(draws, DIM))
    model = decoct.models.LogisticRegression()
    ours = Potentials(model, encoded(decoct.rows({"x": x, "y": sign}), model))
    step = chunk_rows(draws)

    @jax.jit
    def one_liner(x, sign, z):
        return jax.nn.log_sigmoid(sign[:, None] * (x @ z.T)).sum(axis=0)

    @jax.jit
    def same_formula(x, sign, z):
        m = sign[:, None] * (x @ z.T)
        return (jnp.minimum(m, 0.0) - jnp.log1p(jnp.exp(-jnp.abs(m)))).sum(axis=0)

    def plain(function: Any, step: int) -> Any:
        with jax.enable_x64(True):
            parts = [
                function(x[i : i + step], sign[i : i + step], z) for i in range(0, len(x), step)
            ]
            return np.sum([np.asarray(part) for part in parts], axis=0)

    def numpy() -> Any:
        total = np.zeros(draws)
        for i in range(0, len(x), step):
            total -= np.logaddexp(0.0, -sign[i : i + step, None] * (x[i : i + step] @ z.T)).sum(0)
        return total

    def products() -> None:
        for i in range(0, len(x), step):
            x[i : i + step] @ z.T

    np.testing.assert_allclose(plain(same_formula, step), ours.totals(z), rtol=1e-12)
    seconds = {
        "decoct": best_of(lambda: ours.totals(z)),
        "plain JAX, in chunks": best_of(lambda: plain(one_liner, step)),
        "plain JAX, decoct's formula in chunks": best_of(lambda: plain(same_formula, step)),
        "plain JAX, all rows at once": best_of(lambda: plain(one_liner, n)),
        "NumPy, in chunks": best_of(numpy, 1),
        "the matrix products alone, NumPy": best_of(products),
    }
    return {name: n * draws / value for name, value in seconds.items()}


def peak_gb() -> float:
    """Return the largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


PARTS = {
    "coreset": coreset_run,
    "full": full_run,
    "long": long_run,
    "gradient": gradient_run,
    "pass": pass_run,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--warm", type=Path, help="build and certify this table first, untimed")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--cores", type=int, help="cores for this process and all it starts")
    options = parser.parse_args()
    if options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    if options.workers:
        with cluster(options.workers) as options.address:
            result = PARTS[options.part](options)
    else:
        result = PARTS[options.part](options)
    print(json.dumps(result))


def cluster(workers: int) -> Any:
    """Return a context whose value is the address of a local cluster of worker processes.

    XLA takes one thread in each, as Dask has BLAS do by default; else it takes one for each core.
    """
    from contextlib import contextmanager

    from distributed import LocalCluster

    @contextmanager
    def started() -> Any:
        with LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            env={"PJRT_NPROC": "1"},
            host="127.0.0.1",
            dashboard_address=None,
        ) as local:
            yield local.scheduler_address

    return started()


if __name__ == "__main__":
    main()
