"""``decoct sample``: a coreset file to a netCDF file of draws."""

from __future__ import annotations

from pathlib import Path

from decoct.cli import output as out
from decoct.cli.options import Flag, OutputPath, Whole, require_different, seed_in_range


def sample(
    file: Path,
    /,
    *,
    output: OutputPath,
    draws: Whole = 1000,
    chains: Whole = 4,
    warmup: Whole = 1000,
    seed: Whole = 0,
    json: Flag = False,
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
    file
        The coreset file that 'decoct build' wrote.
    output
        The netCDF file to write.
    draws
        Draws per chain, after warm-up.
    chains
        Number of chains.
    warmup
        Adaptation steps per chain, thrown away.
    seed
        Seed of the sampler.
    json
        Print one JSON object on stdout instead of the table.
    """
    seed_in_range(seed)
    for option, value in (("--draws", draws), ("--chains", chains), ("--warmup", warmup)):
        if value < 1:
            raise out.UsageError(f"{option} must be at least 1, not {value}.")
    require_different(output, file, "the coreset file")

    from decoct.runtime.files import require_writable

    require_writable(output, "--output")

    import decoct
    from decoct.cli import summary
    from decoct.cli.posterior_file import write_posterior

    coreset = decoct.load(file)
    try:
        drawn = coreset.sample(draws, chains, seed=seed, warmup=warmup)
        unscaled = summary.add_unscaled(drawn, coreset.model)
        lines = summary.lines(drawn)
        warnings = summary.warnings(drawn, lines)
        write_posterior(drawn, coreset, output)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; nothing was written.") from None
    diverged = summary.divergences(drawn)
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
    out.put_table(summary.HEADINGS, [line.cells() for line in lines])
    out.put("")
    out.put(f"{output}: {chains} chains of {draws:,} draws, {diverged or 0} divergences")
    if unscaled:
        out.put("Coefficients are per unit of the table's columns ('beta_unscaled' in the file).")
    for warning in warnings:
        out.put(f"Warning: {warning}")
    return out.DONE
