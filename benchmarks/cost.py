"""What a build costs: ``python -m benchmarks.cost``.

200,000 × 10 logistic regression, 100 rows: seconds with a cold and a warm compilation cache (whole
processes), passes, draws a pass, beside the time of the bare passes in plain JAX and NumPy in the
same run; and peak memory on a generated 1 GB Parquet file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.tables import RESULTS, write_csv


def build_once() -> dict[str, Any]:
    """Build and report, in this process."""
    import decoct
    from benchmarks import data

    rows = data.logistic()
    started = time.perf_counter()
    coreset = decoct.build(decoct.models.LogisticRegression(), rows, size=100, progress=False)
    first = time.perf_counter() - started
    started = time.perf_counter()
    decoct.build(decoct.models.LogisticRegression(), rows, size=100, progress=False)
    return {
        "first_s": first,
        "again_s": time.perf_counter() - started,
        "passes": coreset.report.passes,
        "draws": max(one["draws"] for one in coreset.report.rounds),
        "rows": coreset.size,
        "predicted_kl": coreset.report.predicted_kl,
    }


def passes_floor(draws: int) -> dict[str, float]:
    """Time one pass over the same rows: decoct's, plain JAX's and NumPy's."""
    import jax
    import jax.numpy as jnp

    import decoct
    from benchmarks import data
    from decoct.data import encoded
    from decoct.passes.potentials import Potentials, chunk_rows

    rows = data.logistic()
    model = decoct.models.LogisticRegression()
    z = 0.1 * np.random.default_rng(0).normal(size=(draws, 10))
    potentials = Potentials(model, encoded(decoct.rows(rows), model))
    x, sign, step = rows["x"], 2.0 * rows["y"] - 1.0, chunk_rows(draws)

    def ours() -> None:
        potentials.totals(z)

    @jax.jit
    def one_liner(x, sign, z):
        return jax.nn.log_sigmoid(sign[:, None] * (x @ z.T)).sum(axis=0)

    def plain_jax() -> None:
        with jax.enable_x64(True):
            total = jnp.zeros(draws)
            for i in range(0, len(x), step):
                total += one_liner(x[i : i + step], sign[i : i + step], z)
            total.block_until_ready()

    def plain_numpy() -> None:
        total = np.zeros(draws)
        for i in range(0, len(x), step):
            total -= np.logaddexp(0.0, -sign[i : i + step, None] * (x[i : i + step] @ z.T)).sum(0)

    return {
        "pass_decoct_s": best_of(ours),
        "pass_jax_s": best_of(plain_jax),
        "pass_numpy_s": best_of(plain_numpy, 1),
    }


def best_of(function, times: int = 3) -> float:
    """Return the shortest of several runs, after one to warm up."""
    function()
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def big_file(path: Path, gigabytes: float) -> int:
    """Write a Parquet file of logistic rows, and return its number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    beta = 0.7 * rng.normal(size=10)
    names = [f"x{i}" for i in range(10)]
    schema = pa.schema([(name, pa.float64()) for name in names] + [("y", pa.int64())])
    block, blocks = 500_000, max(1, round(gigabytes * 1e9 / (500_000 * 80)))
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(blocks):
            x = rng.normal(size=(block, 10))
            y = (rng.random(block) < 1.0 / (1.0 + np.exp(-x @ beta))).astype(np.int64)
            columns = [*x.T, y]
            writer.write_table(pa.table(dict(zip(schema.names, columns, strict=True))))
    return block * blocks


def memory_once(path: str) -> dict[str, Any]:
    """Build from a file and report peak memory of this process."""
    import resource

    import decoct
    from decoct.models.formula.model import from_formula

    formula = "y ~ 0 + " + " + ".join(f"x{i}" for i in range(10))
    started = time.perf_counter()
    rows = decoct.rows(path)
    model = from_formula(formula, rows, "bernoulli", standardize=False)
    coreset = decoct.build(model, rows, size=100, progress=False)
    return {
        "N": coreset.n_rows,
        "seconds": time.perf_counter() - started,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "predicted_kl": coreset.report.predicted_kl,
        "passes": coreset.report.passes,
    }


def in_process(*arguments: str, cache: str) -> dict[str, Any]:
    """Run a part of this module in a process of its own, with its own compilation cache."""
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    command = [sys.executable, "-m", "benchmarks.cost", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="size of the Parquet file")
    parser.add_argument("--part", choices=("build", "floor", "memory"), help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=RESULTS / "cost.csv")
    options = parser.parse_args()
    if options.part == "build":
        print(json.dumps(build_once()))
    elif options.part == "floor":
        print(json.dumps(passes_floor(1000)))
    elif options.part == "memory":
        print(json.dumps(memory_once(options.file)))
    else:
        report(options)


def report(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cold = in_process("--part", "build", cache=folder)
        warm = in_process("--part", "build", cache=folder)
        floor = in_process("--part", "floor", cache=folder)
        path = Path(folder) / "rows.parquet"
        big_file(path, options.gigabytes)
        size = path.stat().st_size / 1e9
        memory = in_process("--part", "memory", "--file", str(path), cache=folder)
    # Passes of the build use draws of the report; the floor was timed at 1,000.
    bare = warm["passes"] * floor["pass_decoct_s"] * warm["draws"] / 1000
    figures = {
        "build 200,000 × 10, 100 rows: cold cache, s": cold["first_s"],
        "the same, warm cache, s": warm["first_s"],
        "the same, again in one process, s": warm["again_s"],
        "passes over the data": warm["passes"],
        "draws a pass": warm["draws"],
        "its bare passes alone, s": bare,
        "predicted KL, nats": warm["predicted_kl"],
        "one pass, 1,000 draws: decoct, s": floor["pass_decoct_s"],
        "one pass, 1,000 draws: plain JAX / decoct": floor["pass_jax_s"] / floor["pass_decoct_s"],
        "one pass, 1,000 draws: NumPy / decoct": floor["pass_numpy_s"] / floor["pass_decoct_s"],
        "Parquet file, GB": size,
        "its rows": memory["N"],
        "build from it, 100 rows, s": memory["seconds"],
        "peak memory of that process, GB": memory["peak_gb"],
        "its predicted KL, nats": memory["predicted_kl"],
        "its passes": memory["passes"],
    }
    table = Table(title="Cost of a build")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else f"{value:.3g}")
    Console().print(table)
    write_csv(options.output, [{"figure": k, "value": v} for k, v in figures.items()])


if __name__ == "__main__":
    main()
