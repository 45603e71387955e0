"""Log-likelihoods row by row at draws, for LOO, and why not for the kept rows.

Leave-one-out weighs the draws by 1/p(row n | θ), for rows that count once in the posterior. A kept
row counts w_n times: leaving it out would take 1/p(row n | θ)^w_n, the data of many rows at once,
and what it would predict is one row and not the many. Rows of the full table count once each, also
under the coreset posterior, which stands for theirs:

    elpd_loo = Σ_n log p(row n | all rows but n),   n over the full table or a random part of it.

A random part of the table has rows that were not kept. A table of kept rows alone was taken from
the coreset, and is refused, whatever their order and number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from decoct.data.base import Columns, columns_length
from decoct.data.encoded import EncodedRows, encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import RequestError
from decoct.models.base import AbstractModel
from decoct.passes.potentials import Potentials
from decoct.samplers.datatree import unconstrained

GROUP, NAME = "log_likelihood", "rows"
"""Group in which ArviZ expects log-likelihoods, and name of the variable."""

MOST = 2**28
"""Most values that are made: 2 GiB."""

GLANCE = 100
"""Rows compared first: almost any table has among them one that was not kept."""

REASON = (
    "the kept rows are weighted, one standing for many, and leaving one out says nothing about "
    "leaving out a row of the data: LOO and WAIC of them mean nothing."
)

INSTEAD = (
    "Give rows of the table the coreset was built from, all of them or a random part: "
    "coreset.log_likelihood(draws, rows.take(numbers))."
)


def log_likelihood(
    model: AbstractModel,
    kept: Mapping[str, np.ndarray],
    n_rows: int,
    draws: xr.DataTree,
    rows: Any = None,
) -> xr.DataTree:
    """Return draws with a group ``log_likelihood``: ``rows`` (chain, draw, row), in nats.

    Refused are rows that each equal a kept one, in any order, repeated or not. Where no column has
    fractions (labels and counts, which recur in the table), they are accepted if one occurs more
    often than among the kept ones. The full table is always accepted.
    """
    if rows is None:
        raise RequestError(f"There are no rows given: {REASON} {INSTEAD}")
    table = encoded(as_rows(rows), model)
    potentials = Potentials(model, table)
    z = unconstrained(draws, potentials.dim)
    size = table.n_rows * z.shape[0] * z.shape[1]
    if size > MOST:
        fewer = MOST // (z.shape[0] * z.shape[1])
        raise RequestError(
            f"{table.n_rows} rows at {z.shape[0] * z.shape[1]} draws are {size * 8 / 2**30:.0f} "
            f"GiB; decoct.loo takes them all, a chunk at a time. Or give a random part of at most "
            f"{fewer} rows, and multiply sums by {table.n_rows}/{fewer}."
        )
    numbers = np.arange(table.n_rows)
    if is_only_kept(kept, n_rows, table):
        raise RequestError(
            f"These are the coreset's own rows, all or some of them: {REASON} {INSTEAD}"
        )
    values = potentials.vectors(table.take(numbers), z.reshape(-1, z.shape[2]))
    by_draw = values.T.reshape(*z.shape[:2], table.n_rows)
    posterior = draws["posterior"]
    coords = {"chain": posterior["chain"], "draw": posterior["draw"], "row": numbers}
    result = draws.copy()
    array = xr.DataArray(by_draw, dims=("chain", "draw", "row"), coords=coords)
    result[GROUP] = xr.DataTree(array.to_dataset(name=NAME))
    return result


def is_only_kept(kept: Mapping[str, np.ndarray], n_rows: int, table: EncodedRows) -> bool:
    """Return whether a table that is not the full one has nothing but kept rows."""
    if columns_length(kept) in (0, n_rows) or table.n_rows >= n_rows:
        return False
    if _match(kept, table, min(GLANCE, table.n_rows)) is None:
        return False
    matched = _match(kept, table, table.n_rows)
    if matched is None:
        return False
    mine, given = matched
    often = np.bincount(given, minlength=len(mine) + len(given))
    no_more = (often <= np.bincount(mine, minlength=len(often))).all()
    return bool(no_more) or any(map(_has_fractions, kept.values()))


def _match(
    kept: Mapping[str, np.ndarray], table: EncodedRows, n: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return numbers of the kept and of the first n given rows, if each of these equals a kept one.

    Equal rows have equal numbers.
    """
    columns = table.take_raw(np.arange(n))
    if any(_width(columns.get(k)) != _width(v) for k, v in kept.items()):
        return None
    mine, given = _number_rows(kept, columns)
    return (mine, given) if np.isin(given, mine).all() else None


def _number_rows(kept: Mapping[str, np.ndarray], given: Columns) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for each row of two tables: equal rows have equal ones."""
    sizes = len(next(iter(kept.values()))), len(next(iter(given.values())))
    numbers = np.zeros(sum(sizes), dtype=np.int64)
    for name, values in kept.items():
        for one, other in zip(_flat(values), _flat(given[name]), strict=True):
            codes = pd.factorize(np.concatenate([one, other]), use_na_sentinel=False)[0]
            numbers = pd.factorize(numbers * (codes.max() + 1) + codes)[0]
    return numbers[: sizes[0]], numbers[sizes[0] :]


def _width(values: Any) -> tuple[int, ...] | None:
    """Return the shape of a row's entry; None for a column that is not there."""
    return None if values is None else np.shape(values)[1:]


def _flat(values: Any) -> np.ndarray:
    """Return a column's entries, one array for each place in a vector; numbers as float64."""
    array = np.asarray(values)
    array = array.astype(np.float64 if array.dtype.kind in "biuf" else object)
    return array.reshape(len(array), -1).T


def _has_fractions(values: Any) -> bool:
    array = np.asarray(values)
    return array.dtype.kind == "f" and bool((array != np.floor(array)).any())
