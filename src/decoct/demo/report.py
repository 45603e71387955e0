"""The demonstration's figures as tables for a person."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def show(figures: Mapping[str, Any], output: Path, console: Console) -> None:
    """Print what `decoct.demo.run` measured.

    Parameters
    ----------
    figures
        The content of ``demo.json``.
    output
        Where the files are.
    console
        Where to print.
    """
    data = figures["data"]
    console.print(
        f"\n[bold]{data['rows']:,} flights, {data['coefficients']} coefficients[/bold]: "
        "logistic regression of arriving late\n"
    )
    console.print(_fits(figures))
    console.print(_certificate(figures))
    console.print(_seconds(figures))
    console.print(_sampling(figures))
    verdict = figures["coreset"]["certificate"]["verdict"]
    mark = "[green]passed[/green]" if figures["passed"] else "[red]not passed[/red]"
    console.print(f"Certificate {mark}: {verdict}.")
    console.print(f"Files are in {output}.", soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    named = any(name.strip() for name in columns)
    table = Table(title=title, title_justify="left", title_style="bold", show_header=named)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    return table


def _fits(figures: Mapping[str, Any]) -> Table:
    table = _table(
        "Errors, Laplace fit against Laplace fit to all rows",
        "", "rows", "KL, nats", "worst mean error,\nposterior sd", "worst\nsd ratio",
    )  # fmt: skip
    entries = [("coreset", figures["coreset"])]
    entries += [("uniform subsample", one) for one in figures["uniform"]]
    for name, one in entries:
        table.add_row(
            name,
            f"{one['rows']:,}",
            _number(one["kl"]),
            _number(one["worst_mean_error"]),
            f"{one['worst_sd_ratio']:.4g}",
        )
    return table


def _certificate(figures: Mapping[str, Any]) -> Table:
    found = figures["coreset"]["certificate"]
    low, high = found["kl_interval"]
    table = _table("Certificate: one pass at NUTS draws", "", "")
    table.add_row("rows kept", f"{found['size']:,} of {found['n_rows']:,}")
    if high is not None:
        table.add_row("KL(coreset‖full), nats", f"{found['kl']:.2g}")
        table.add_row("95 % interval", f"{low:.2g} to {high:.2g}")
        table.add_row("KL(full‖coreset), nats", f"{found['forward_kl']:.2g}")
    else:
        table.add_row("KL(coreset‖full), nats", f"at least {low:.2g}")
    table.add_row("Pareto k-hat, good below 0.5", f"{found['khat']:.2f}")
    table.add_row("effective draws of all", f"{found['ess']:,.0f} of {found['draws']:,}")
    return table


def _seconds(figures: Mapping[str, Any]) -> Table:
    table = _table("Seconds in this run", "", "s")
    for name, seconds in figures["seconds"].items():
        table.add_row(name, f"{seconds:,.1f}")
    table.add_section()
    table.add_row("all", f"{sum(figures['seconds'].values()):,.1f}")
    return table


def _sampling(figures: Mapping[str, Any]) -> Table:
    nuts, full = figures["nuts_on_coreset"], figures["nuts_on_all_rows"]
    seconds = figures["seconds"]
    route = ("formula", "building the coresets", "sampling the coreset", "certificate")
    chains = f"{nuts['chains']} × ({nuts['warmup']:,} + {nuts['draws']:,})"
    table = _table(f"Posterior of all rows, NUTS draws {chains}", "", "seconds")
    table.add_row(
        f"through the coreset: build {len(figures['curve']['coreset'][0])} sizes, sample, certify",
        f"{sum(seconds[name] for name in route):,.0f}",
    )
    table.add_row(
        f"on all rows, EXTRAPOLATED: {full['gradients']:,.0f} gradients of "
        f"{1e3 * full['gradient_seconds']:.1f} ms\n"
        f"({nuts['steps_per_draw']:.1f} leapfrog steps a draw, as on the coreset)",
        f"{full['seconds']:,.0f}",
    )
    table.add_row(
        f"Laplace fit to all rows, {figures['full_laplace']['passes']} passes (no draws)",
        f"{seconds['full-data Laplace fit']:,.1f}",
    )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
