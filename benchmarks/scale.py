"""Cost and error against the number of rows: ``python -m benchmarks.scale``.

Logistic regression in ten dimensions on generated Parquet. For every N: build, NUTS 4 × (1,000 +
1,000) on the coreset and the certificate, beside the same sampler on all rows (run up to
``--full-to`` rows; beyond, a measured gradient times the steps of the largest run, times what that
run took over what its own gradient says, and labelled so). Means and sds are compared at five
times the draws up to ``--long-to`` rows. Then the throughput of one pass beside plain JAX and
NumPy, and, with ``--huge`` and ``--dask``, a table larger than memory and a cluster of one and two
worker processes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.scale_parts import CHAINS, DRAWS, WARMUP, write_rows
from benchmarks.tables import RESULTS, in_process, write_csv

WARM_ROWS = 1_000_000

ENGINES = ((0, 1), (1, 1), (0, 2), (2, 2))
"""Workers of Dask, none for this process; cores for all of it."""

ROUNDS = 3
"""Times that the engines are compared: single runs of half a minute differ by a tenth."""

LEFT_OUT = ("mean", "sd", "full_mean", "full_sd", "ess", "square_ess", "full_square_ess")
"""Of a line; `errors` says what they come to."""


def part(name: str, *arguments: str) -> dict[str, Any]:
    return in_process("benchmarks.scale_parts", name, *arguments)


def measured(
    sizes: list[int], full_to: int, gradient_to: int, long_to: int, folder: Path
) -> list[dict]:
    """Return one line a table size."""
    lines, steps, off = [], np.nan, 1.0
    for n in sizes:
        rows = folder / f"{n}"
        write_rows(rows, n)
        line = part("coreset", "--folder", str(rows))
        if n <= gradient_to:
            line |= part("gradient", "--folder", str(rows))
        if n <= full_to:
            line |= part("full", "--folder", str(rows))
            steps = line["full_steps"]
            compared = part("long", "--folder", str(rows)) if n <= long_to else line
            line |= errors(compared) | {"full": "measured"}
            # what the gradients alone would have said of this run, as a check of what they say next
            off = line["full_s"] / (line.get("gradient_s", np.nan) * steps * (WARMUP + DRAWS))
            line["measured_over_gradients"] = off
        elif "gradient_s" in line:
            seconds = line["gradient_s"] * steps * (WARMUP + DRAWS) * off
            line |= {"full_s": seconds, "full_steps": steps, "full": "extrapolated"}
        if "full_s" in line:
            line["ratio"] = line["full_s"] / line["coreset_s"]
            line["full_gradients"] = line["full_steps"] * (WARMUP + DRAWS) * CHAINS
            line["ratio_by_evaluations"] = line["full_gradients"] / line["evaluations"]
        lines.append({key: value for key, value in line.items() if key not in LEFT_OUT})
        print(f"N = {n:,}: {line['coreset_s']:.1f} s, KL {line['kl']:.2g}", flush=True)
    return lines


def errors(line: dict[str, Any]) -> dict[str, float]:
    """Return the worst error of a posterior mean in sds, and of an sd as a ratio."""
    sd = np.asarray(line["full_sd"])
    mean = np.abs(np.asarray(line["mean"]) - line["full_mean"]) / sd
    ratio = np.asarray(line["sd"]) / sd
    # two sets of draws differ by about this much when they are of one posterior
    noise = np.sqrt(1.0 / line["ess"] + 1.0 / line["full_ess"])
    sd_noise = np.sqrt(0.5 / line["square_ess"] + 0.5 / line["full_square_ess"])
    return {
        "mean_error_sd": float(mean.max()),
        "sd_ratio": float(ratio[np.abs(ratio - 1.0).argmax()]),
        "monte_carlo_sd": float(noise),
        "monte_carlo_ratio": float(sd_noise),
    }


def show(lines: list[dict[str, Any]]) -> None:
    table = Table(title="Logistic regression, 10 coefficients")
    heads = ("N", "KL (95 %)", "k-hat", "evaluations", "coreset, s", "peak GB", "all rows, s")
    for head in (*heads, "ratio", "mean error, sd", "sd ratio"):
        table.add_column(head, justify="right")
    for one in lines:
        full = f"{one['full_s']:,.0f} {one['full']}" if "full_s" in one else "–"
        table.add_row(
            f"{one['n']:,}",
            f"{one['kl']:.1e} (≤ {one['kl_upper']:.1e})",
            f"{one['khat']:.2f}",
            f"{one['evaluations']:,.0f}",
            f"{one['coreset_s']:.1f}",
            f"{one['peak_gb']:.2f}",
            full,
            f"{one['ratio']:.1f}" if "ratio" in one else "–",
            f"{one['mean_error_sd']:.3f}" if "mean_error_sd" in one else "–",
            f"{one['sd_ratio']:.3f}" if "sd_ratio" in one else "–",
        )
    Console(width=150).print(table)


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Draw seconds and peak memory against N on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
    n = np.array([one["n"] for one in lines])
    left.loglog(n, [one["coreset_s"] for one in lines], "o-", label="coreset: build, NUTS, certify")
    for kind, style in (("measured", "s-"), ("extrapolated", "s:")):
        some = [one for one in lines if one.get("full") == kind]
        left.loglog(
            [one["n"] for one in some],
            [one["full_s"] for one in some],
            style,
            color="tab:red",
            markerfacecolor="tab:red" if kind == "measured" else "white",
            label=f"NUTS on all rows, {kind}",
        )
    left.set(xlabel="rows N", ylabel="seconds", title="Posterior of N rows")
    left.legend(frameon=False)
    right.semilogx(n, [one["peak_gb"] for one in lines], "o-")
    right.axhline(2.0, color="grey", linestyle="--")
    right.set(
        xlabel="rows N", ylabel="peak memory of the process, GB", title="Memory", ylim=(0, 2.2)
    )
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1e4, 1e5, 1e6, 1e7])
    parser.add_argument("--full-to", type=float, default=1e6, help="run NUTS on all rows up to N")
    parser.add_argument("--gradient-to", type=float, default=1e7, help="time gradients up to N")
    parser.add_argument("--long-to", type=float, default=1e5, help="compare more draws up to N")
    parser.add_argument("--huge", type=float, nargs="*", default=[], help="sizes without gradients")
    parser.add_argument("--dask", type=float, default=0, help="compare one and two workers on N")
    parser.add_argument("--folder", type=Path, help="keep the generated files there")
    parser.add_argument("--output", type=Path, default=RESULTS / "scale.csv")
    options = parser.parse_args()
    sizes = sorted({int(n) for n in [*options.sizes, *options.huge]})
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        throughput = part("pass")
        limits = (options.full_to, options.gradient_to, options.long_to)
        lines = measured(sizes, *(int(limit) for limit in limits), folder)
        if options.dask:
            workers = on_dask(int(options.dask), folder)
    show(lines)
    write_csv(options.output, lines)
    draw(lines, options.output.with_suffix(".png"))
    show_ratios("Potentials a second in one pass of 1,000 draws", throughput)
    write_csv(
        options.output.with_name("scale_pass.csv"),
        [{"code": name, "per_second": value} for name, value in throughput.items()],
    )
    if options.dask:
        show_dask(int(options.dask), workers)
        write_csv(options.output.with_name("scale_dask.csv"), workers)


def on_dask(n: int, folder: Path) -> list[dict[str, Any]]:
    """Return the seconds of build and certificate on as many cores as workers, and without them.

    Once in processes that have just started, which import and compile what they need, and once in
    processes that have been through a smaller table before; all of it `ROUNDS` times over.
    """
    rows, smaller = folder / f"{n}", folder / f"{WARM_ROWS}"
    write_rows(rows, n)
    write_rows(smaller, WARM_ROWS)
    lines = []
    for number in range(ROUNDS):
        for workers, cores in ENGINES:
            options = ("--folder", str(rows), "--workers", str(workers), "--cores", str(cores))
            line: dict[str, Any] = {"round": number + 1, "workers": workers, "cores": cores}
            for name, warm in (("cold_seconds", ()), ("seconds", ("--warm", str(smaller)))):
                found = part("coreset", *options, *warm)
                line |= {name: found["build_s"] + found["check_s"], "kl": found["kl"]}
            lines.append(line)
    return lines


def show_dask(n: int, lines: list[dict[str, Any]]) -> None:
    """Print medians, and the ratios of neighbouring runs: the machine is not as fast all day."""
    table = Table(title=f"Build and certificate, N = {n:,}, medians of {ROUNDS}")
    for head in ("engine", "cores", "cold, s", "warm, s"):
        table.add_column(head, justify="right")
    for engine in ENGINES:
        workers, cores = engine
        name = f"Dask, {workers} worker(s)" if workers else "this process"
        found = [np.median(seconds(lines, key, engine)) for key in ("cold_seconds", "seconds")]
        table.add_row(name, str(cores), *(f"{one:.1f}" for one in found))
    Console().print(table)
    for key, state in (("cold_seconds", "cold"), ("seconds", "warm")):
        here, one, _, two = (seconds(lines, key, engine) for engine in ENGINES)
        for what, ratios in (
            ("two workers are as many times as fast as one", one / two),
            ("one worker takes as many times this process's seconds", one / here),
        ):
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"{state}: {what}: median {np.median(ratios):.2f} of {each}")


def seconds(lines: list[dict[str, Any]], key: str, engine: tuple[int, int]) -> np.ndarray:
    return np.array([one[key] for one in lines if (one["workers"], one["cores"]) == engine])


def show_ratios(title: str, figures: dict[str, float]) -> None:
    table = Table(title=title)
    base = next(iter(figures))
    for head in ("", "value", f"over {base}"):
        table.add_column(head, justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3g}", f"{value / figures[base]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
