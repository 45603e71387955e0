"""``decoct check``: the certificate of a coreset."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from decoct.cli import options as opt
from decoct.cli import output as out


def check(
    file: opt.CoresetPath,
    table: opt.BuiltFrom,
    /,
    *,
    posterior: opt.Posterior = None,
    dask: opt.Dask = None,
    exact: Annotated[bool, Parameter(negative=())] = False,
    json: opt.Json = False,
) -> int:
    """Measure how far the coreset posterior is from the full-data posterior, in nats.

    Large tables are summed to second order, and the rest is estimated from a sample of rows where
    that is precise enough. Without --posterior, the coreset is sampled first. The verdict uses
    the KL, k-hat, R-hat and effective size of the draws, and, up to 50 parameters, a search for
    modes without draws.

    For example:

    ```
    decoct check late.coreset.parquet flights.parquet
    decoct check late.coreset.parquet flights.parquet --posterior posterior.nc --json
    ```

    Exit codes: 0 the draws can be used (good, usable); 1 they cannot (doubtful, one mode of
    several, do not use); 2 bad input.

    Parameters
    ----------
    exact
        Evaluate all rows at all draws.
    """
    import decoct
    from decoct.data.tables import traffic

    coreset = decoct.load(file)
    draws = posterior and out.read_posterior(posterior)
    with opt.opened(table, dask) as rows:
        result = decoct.check(coreset, rows, draws, exact=exact or None)
    moved = traffic(rows)
    if json:
        out.put_json({**result.to_dict(), "file": str(file), "traffic": moved})
    else:
        out.put("\n".join([repr(result), *out.travelled(moved)]))
    return out.DONE if result.ok else out.SHORT
