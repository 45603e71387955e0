"""Log-likelihoods row by row at draws, for LOO, and why not for the kept rows.

Leave-one-out weighs the draws by 1/p(row n | θ), for rows that count once in the posterior. A kept
row counts w_n times: leaving it out would take 1/p(row n | θ)^w_n, the data of many rows at once,
and what it would predict is one row and not the many. Rows of the full table count once each, also
under the coreset posterior, which stands for theirs:

    elpd_loo = Σ_n log p(row n | all rows but n),   n over the full table or a random part of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from decoct.coreset import Coreset
from decoct.coreset_file import same_rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.draws import unconstrained
from decoct.errors import RequestError
from decoct.potentials import Potentials

GROUP, NAME = "log_likelihood", "rows"
"""Where ArviZ looks for log-likelihoods, and what the variable is called."""

MOST = 2**28
"""Most values that are made: 2 GiB."""

REASON = (
    "the kept rows are weighted, one standing for many, and leaving one out says nothing about "
    "leaving out a row of the data: LOO and WAIC of them mean nothing. Give rows of the table the "
    "coreset was built from, all of them or a random part: "
    "coreset.log_likelihood(draws, rows.take(numbers))."
)


def log_likelihood(coreset: Coreset, draws: xr.DataTree, rows: Any = None) -> xr.DataTree:
    """Return draws with the log-likelihood of each of some unweighted rows.

    Parameters
    ----------
    coreset
        Whose posterior was sampled.
    draws
        What ``coreset.sample()`` or ``check.correct()`` returned.
    rows
        Rows of the full table: anything `decoct.rows` takes. Not the kept ones.

    Returns
    -------
    xarray.DataTree
        The draws with a group ``log_likelihood``: ``rows`` (chain, draw, row), in nats.

    Raises
    ------
    RequestError
        No rows, or the kept ones, are given; the draws are of another model; the result would have
        more than 2 GiB.
    """
    if rows is None:
        raise RequestError(f"There are no rows given: {REASON}")
    z = unconstrained(draws, coreset.dim)
    table = encoded(as_rows(rows), coreset.model)
    size = table.n_rows * z.shape[0] * z.shape[1]
    if size > MOST:
        fewer = MOST // (z.shape[0] * z.shape[1])
        raise RequestError(
            f"{table.n_rows} rows at {z.shape[0] * z.shape[1]} draws are {size * 8 / 2**30:.0f} "
            f"GiB; give a random part of at most {fewer} rows, and multiply sums by "
            f"{table.n_rows}/{fewer}."
        )
    numbers = np.arange(table.n_rows)
    as_many = table.n_rows == coreset.size < coreset.n_rows
    if as_many and same_rows(coreset, table.take_raw(numbers)) is None:
        raise RequestError(f"These are the coreset's own rows: {REASON}")
    values = Potentials(coreset.model, table).vectors(
        table.take(numbers), z.reshape(-1, z.shape[2])
    )
    by_draw = values.T.reshape(*z.shape[:2], table.n_rows)
    posterior = draws["posterior"]
    coords = {"chain": posterior["chain"], "draw": posterior["draw"], "row": numbers}
    result = draws.copy()
    array = xr.DataArray(by_draw, dims=("chain", "draw", "row"), coords=coords)
    result[GROUP] = xr.DataTree(array.to_dataset(name=NAME))
    return result
