"""``decoct sample``: a coreset file to a netCDF file of draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from decoct.cli import options as opt
from decoct.cli import output as out

if TYPE_CHECKING:
    import xarray as xr

    from decoct.samplers.summary import Parameter

MIXED = 1.01
"""R-hat above which chains have not mixed (Vehtari et al. 2021)."""

HEADINGS = ("parameter", "mean", "sd", "5 %", "95 %", "R-hat", "ESS")


def sample(
    file: opt.CoresetPath,
    /,
    *,
    output: opt.OutputPath,
    draws: opt.Count = 1000,
    chains: opt.Count = 4,
    warmup: opt.Count = 1000,
    seed: opt.Seed = 0,
    json: opt.Json = False,
) -> int:
    """Draw from the posterior of a coreset with NUTS.

    The draws are written as netCDF, ready for ArviZ (arviz_base.from_netcdf); a table of every
    coefficient is printed, in the units of the original columns. In the file, 'beta' belongs to
    the standardised columns and 'beta_unscaled' to the original ones.

    For example:

    ```
    decoct sample late.coreset.parquet -o posterior.nc
    decoct sample late.coreset.parquet -o posterior.nc --draws 2000 --json
    ```

    Parameters
    ----------
    output
        The netCDF file to write.
    draws
        Draws per chain, after warm-up.
    chains
        Number of chains.
    warmup
        Adaptation steps per chain, thrown away; at most 50 where a site gives units that fit.
    seed
        Seed of the sampler.
    """
    opt.require_output(output, file)

    import decoct
    from decoct.samplers.summary import add_unscaled, parameters

    coreset = decoct.load(file)
    with opt.interruption("nothing was written"):
        drawn = coreset.sample(draws, chains, seed=seed, warmup=warmup)
        unscaled = add_unscaled(drawn, coreset.model)
        lines = parameters(drawn)
        warnings = find_warnings(drawn, lines)
        out.write_posterior(drawn, output)
    diverged = count_divergences(drawn)
    if json:
        out.put_json(
            {
                "file": str(output),
                "coreset": str(file),
                "draws": draws,
                "chains": chains,
                "warmup": warmup,
                "seed": seed,
                "divergences": diverged,
                "largest_rhat": max((line.rhat for line in lines), default=None),
                "smallest_ess": min((line.ess for line in lines), default=None),
                "warnings": warnings,
                "units": "table" if unscaled else "model",
                "parameters": [line.to_dict() for line in lines],
            }
        )
        return out.DONE
    out.put_table(HEADINGS, [line.cells() for line in lines])
    out.put("")
    out.put(f"{output}: {chains} chains of {draws:,} draws, {diverged or 0} divergences")
    if unscaled:
        out.put("Coefficients are per unit of the table's columns ('beta_unscaled' in the file).")
    for warning in warnings:
        out.put(f"Warning: {warning}")
    return out.DONE


def count_divergences(draws: xr.DataTree) -> int | None:
    """Return how many draws diverged; None if the sampler does not record it."""
    if "sample_stats" not in draws.children or "diverging" not in draws["sample_stats"]:
        return None
    return int(draws["sample_stats"].to_dataset()["diverging"].sum())


def find_warnings(draws: xr.DataTree, summary: list[Parameter]) -> list[str]:
    """Return what is wrong with the draws, one sentence each."""
    said = []
    diverged, total = count_divergences(draws), draws["posterior"]["chain"].size
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
    elif all(math.isnan(line.rhat) for line in summary):
        said.append("R-hat is unknown: it needs at least 2 chains of 4 draws.")
    return said
