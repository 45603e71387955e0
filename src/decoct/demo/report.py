"""The demonstration's figures as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from decoct.certificates.certificate import Certificate


def show(
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
