"""The summary of a posterior as the command line words it."""

from __future__ import annotations

import numpy as np
import xarray as xr

from decoct.samplers.summary import Parameter, add_unscaled
from decoct.samplers.summary import parameters as lines

__all__ = ["HEADINGS", "MIXED", "add_unscaled", "divergences", "lines", "warnings"]

MIXED = 1.01
"""R-hat above which chains have not mixed (Vehtari et al. 2021)."""

HEADINGS = ("parameter", "mean", "sd", "5 %", "95 %", "R-hat", "ESS")


def divergences(draws: xr.DataTree) -> int | None:
    """Return how many draws diverged; None if the sampler does not record it."""
    if "sample_stats" not in draws.children or "diverging" not in draws["sample_stats"]:
        return None
    return int(draws["sample_stats"].to_dataset()["diverging"].sum())


def warnings(draws: xr.DataTree, summary: list[Parameter]) -> list[str]:
    """Return what is wrong with the draws, one sentence each."""
    said = []
    diverged, total = divergences(draws), draws["posterior"]["chain"].size
    total *= draws["posterior"]["draw"].size
    if diverged:
        said.append(
            f"{diverged} of {total} draws diverged: the posterior has a shape that NUTS cannot "
            "follow; more --warmup may help, a tighter --prior-scale at build time often does."
        )
    unmixed = [line for line in summary if line.rhat > MIXED]
    if unmixed:
        worst = max(unmixed, key=lambda line: line.rhat)
        said.append(
            f"R-hat is above {MIXED} for {len(unmixed)} of {len(summary)} parameters "
            f"({worst.name}: {worst.rhat:.3f}): the chains have not mixed, so do not use these "
            "draws; raise --warmup and --draws."
        )
    elif all(np.isnan(line.rhat) for line in summary):
        said.append("R-hat is unknown: it needs at least 2 chains of 4 draws.")
    return said
