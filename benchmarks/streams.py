"""Streams beside one build: ``python -m benchmarks.streams``.

The same rows in batches through `StreamingCoreset`, in one `build`, and by uniform sampling, all to
the same size; KL(π_w‖π) in nats by `decoct.check` at NUTS draws, beside what the stream itself
predicts. With ``--parts`` parts built apart and merged instead (``merge.csv``), with ``--drift``
two parts that agree more or less (``merge_drift.csv``).
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import decoct
from benchmarks import data
from benchmarks.tables import RESULTS, write_csv
from decoct.constructions import Uniform
from decoct.streams import StreamingCoreset

BATCHES = 64
COLUMNS = ("set", "size", "stream_kl", "predicted_kl", "drift", "build_kl", "uniform_kl")


def poisson(n: int = 200_000, seed: int = 0) -> dict[str, np.ndarray]:
    """Return synthetic counts with a log link."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([rng.normal(size=(n, 4)), np.ones(n)])
    return {"x": x, "y": rng.poisson(np.exp(x @ np.array([0.3, -0.2, 0.1, 0.4, 0.5])))}


def drifting(n: int = 200_000, seed: int = 0) -> dict[str, np.ndarray]:
    """Return logistic rows whose coefficients move from −β to 2β on the way."""
    rng = np.random.default_rng(seed)
    x, beta = rng.normal(size=(n, 10)), 0.7 * rng.normal(size=10)
    eta = (x @ beta) * np.linspace(-1.0, 2.0, n)
    return {"x": x, "y": (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))).astype(np.int64)}


def flights() -> tuple[Any, dict[str, np.ndarray]]:
    """Return the demonstration's model and its 291,140 flights in the order of the year."""
    from decoct.demo.flights import FORMULA, load_flights
    from decoct.models.formula.model import from_formula

    rows = decoct.rows(load_flights())
    model = from_formula(FORMULA, rows, "bernoulli")
    return model, next(rows.chunks(rows.n_rows)).columns


def problems(wanted: list[str]) -> Iterator[tuple[str, Any, dict[str, np.ndarray], list[int]]]:
    """Yield name, model, rows and sizes."""
    logistic, sizes = decoct.models.LogisticRegression(), [100, 200]
    if "logistic" in wanted:
        yield "logistic", logistic, data.logistic(), sizes
    if "poisson" in wanted:
        yield "poisson", decoct.models.PoissonRegression(link="log"), poisson(), [100]
    if "flights" in wanted:
        yield "flights", *flights(), [250]
    if "by_label" in wanted:
        rows = data.logistic()
        rows = {**rows, "x": np.column_stack([rows["x"], np.ones(len(rows["y"]))])}
        order = np.argsort(rows["y"], kind="stable")
        yield "by_label", logistic, {name: one[order] for name, one in rows.items()}, [200]
    if "drifting" in wanted:
        yield "drifting", logistic, drifting(), [200]


def streamed(model: Any, rows: dict[str, np.ndarray], size: int, **options: Any) -> Any:
    """Return the stream after all batches."""
    stream = StreamingCoreset(model, size, progress=False, **options)
    n = len(next(iter(rows.values())))
    for cut in np.array_split(np.arange(n), BATCHES):
        stream.update({name: column[cut] for name, column in rows.items()})
    return stream


def certified(coreset: decoct.Coreset, rows: Any) -> float:
    """Return KL(π_w‖π) by the certificate."""
    draws = coreset.sample(draws=500, chains=2, progress=False)
    return float(decoct.check(coreset, rows, draws).kl)


def measure(name: str, model: Any, rows: Any, size: int) -> dict[str, Any]:
    """Return one line of the table."""
    started = time.process_time()
    stream = streamed(model, rows, size)
    coreset = stream.coreset
    streaming = time.process_time() - started
    started = time.process_time()
    built = decoct.build(model, rows, size=size, progress=False)
    building = time.process_time() - started
    uniform = decoct.build(model, rows, size=size, method=Uniform(), progress=False)
    last = coreset.report.rounds[-1]
    return {
        "set": name,
        "size": size,
        "stream_kl": certified(coreset, rows),
        "predicted_kl": coreset.report.predicted_kl,
        "build_kl": certified(built, rows),
        "uniform_kl": certified(uniform, rows),
        "drift": last["drift"],
        "buffer": coreset.report.method["buffer"],
        "rows_in_memory": stream.rows_in_memory,
        "stream_cpu_s": streaming,
        "build_cpu_s": building,
    }


def apart(parts: int, size: int) -> dict[str, Any]:
    """Return one line about logistic rows in parts: union, and compressed to one part's size."""
    model, rows = decoct.models.LogisticRegression(), data.logistic()
    cuts = np.array_split(np.arange(len(rows["y"])), parts)
    pieces = [{name: column[cut] for name, column in rows.items()} for cut in cuts]
    built = [decoct.build(model, piece, size=size, progress=False) for piece in pieces]
    union, merged = decoct.merge(built), decoct.merge(built, size=size)
    return {
        "parts": parts,
        "size": size,
        "union_rows": union.size,
        "union_kl": certified(union, rows),
        "merged_kl": certified(merged, rows),
        "predicted_kl": merged.report.predicted_kl,
    }


def two_parts(
    factor: float, sort: bool = False, n: int = 20_000, repeated: int = 1, size: int = 20
) -> dict[str, Any]:
    """Return one line about two tables, the second with coefficients ``factor`` times as large."""
    rng = np.random.default_rng(0)
    beta = np.tile([1.0, -0.5, 0.3, 0.8, -0.2], repeated) / np.sqrt(repeated)
    x = rng.normal(size=(2 * n, len(beta)))
    if sort:
        x = x[np.argsort(x[:, 0])]
    eta = (x @ beta) * np.repeat([1.0, factor], n)
    rows = {"x": x, "y": (rng.random(2 * n) < 1.0 / (1.0 + np.exp(-eta))).astype(np.int64)}
    model = decoct.models.LogisticRegression()
    built = [
        decoct.build(model, {k: v[cut] for k, v in rows.items()}, size=size, progress=False)
        for cut in (slice(n), slice(n, None))
    ]
    predicted = np.array([one.report.predicted_kl for one in built], dtype=np.float64)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        union = decoct.merge(built)
    last = union.report.rounds[-1]
    return {
        "coefficients": len(beta),
        "size": size,
        "factor": f"{factor:g}{', sorted' if sort else ''}",
        "drift": last["drift"],
        "status": union.report.status.name,
        "parts_kl": float(predicted.sum()),
        "union_kl": certified(union, rows),
    }


def memory(buffers: int) -> None:
    """Print the most memory this process has used after so many buffers of generated rows."""
    stream = StreamingCoreset(decoct.models.LogisticRegression(), 100, progress=False)
    rng, beta = np.random.default_rng(0), np.linspace(1.0, -0.5, 10)
    for number in range(buffers):
        x = rng.normal(size=(20_000, 10))
        stream.update({"x": x, "y": rng.random(20_000) < 1 / (1 + np.exp(-x @ beta))})
        if number + 1 in (buffers // 8, buffers // 4, buffers // 2, buffers):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{stream.n_rows:>12,} rows: {stream.rows_in_memory} in memory, peak {peak:.0f} MB"
            )


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = ["logistic", "poisson", "flights", "by_label", "drifting"]
    parser.add_argument("--sets", nargs="+", default=every, choices=every)
    parser.add_argument("--buffers", type=int, help="only measure memory over that many buffers")
    parser.add_argument("--parts", action="store_true", help="only measure parts built apart")
    parser.add_argument("--drift", action="store_true", help="only measure parts that disagree")
    options = parser.parse_args()
    if options.drift:
        lines = [two_parts(1.0, sort=True), *map(two_parts, (1.0, 1.1, 1.15, 1.2, 1.4, -2.0))]
        lines += [two_parts(f, repeated=4, size=50) for f in (1.0, 1.1, 1.2)]
        show(lines, tuple(lines[0]))
        write_csv(RESULTS / "merge_drift.csv", lines)
        return
    if options.parts:
        several = ((1, 10), (1, 100), (4, 10), (4, 100), (16, 100))
        lines = [apart(*one) for one in several]
        show(lines, tuple(lines[0]))
        write_csv(RESULTS / "merge.csv", lines)
        return
    if options.buffers:
        memory(options.buffers)
        return
    lines = []
    for name, model, rows, sizes in problems(options.sets):
        for size in sizes:
            lines.append(measure(name, model, rows, size))
            print(lines[-1], flush=True)
    show(lines, COLUMNS)
    write_csv(RESULTS / "streams.csv", lines)


def show(lines: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    table = Table(title="KL(π_w‖π) in nats")
    for column in columns:
        table.add_column(column, justify="right")
    for line in lines:
        values = (line[column] for column in columns)
        table.add_row(*(f"{v:.1e}" if isinstance(v, float) else str(v) for v in values))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
