"""Scouting: a look at the tangent space from a subsample of the rows.

A round of a construction needs the target b = Σ_n g_n at its draws and a pool of candidate rows.
Early rounds only have to find the neighbourhood of π, for which a uniform subsample U serves:

    b ≈ q(θ) + (N/|U|) Σ_U (f_n − q_n)(θ)

with q_n the second-order expansion of f_n at the mean of the draws, summed over all rows at
1 + 2 d potentials a row in place of S (`decoct.control_variates`). The pool is drawn from U by
the odds that a full pass would use.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from decoct.constructions.base import Problem, Selection, uniform_selection
from decoct.control_variates import Part, totals_from_halves
from decoct.data.arrays import ArrayRows
from decoct.pools import Pool, merge_pools
from decoct.potentials import Potentials

ROWS = 20_480
"""Rows of the subsample, if the pool is not large."""

WORTH = 10
"""Times as many rows as the subsample there must be for scouting to pay."""


class Scouted(NamedTuple):
    """What the subsample shows.

    Attributes
    ----------
    totals : (S,)
        An estimate of Σ_n f_n(θ_s) over all rows, centred over the draws.
    pool
        Candidate rows, all of them of the subsample.
    corrected
        Whether control variates were worth their pass; without them the totals are rough.
    """

    totals: Float[np.ndarray, " S"]
    pool: Pool
    corrected: bool


def subsample(key: jax.Array, problem: Problem, n_draws: int, pool_size: int) -> Selection | None:
    """Return the rows to scout with, or None where passes over all rows are as cheap.

    Parameters
    ----------
    n_draws
        S, what a full pass would evaluate for each row.
    pool_size
        P, the pool wanted.
    """
    size = scouting_rows(problem, n_draws, pool_size)
    return None if size is None else uniform_selection(key, problem, size)


def scouting_rows(problem: Problem, n_draws: int, pool_size: int) -> int | None:
    """Return the size of the subsample, or None where scouting does not pay."""
    size = max(ROWS, 4 * pool_size)
    worth = problem.n_rows >= WORTH * size and 4 * problem.dim <= n_draws
    return size if worth else None


def part_of(problem: Problem, seen: Selection, size: int) -> Selection:
    """Return evenly spaced rows of the subsample, with the weight of the whole table."""
    places = np.linspace(0, seen.size - 1, size).round().astype(np.int64)
    rows = {name: column[places] for name, column in seen.rows.items()}
    return Selection(seen.indices[places], np.full(size, problem.n_rows / size), rows)


def scouted(
    key: jax.Array,
    problem: Problem,
    seen: Selection,
    draws: Float[np.ndarray, "S d"],
    pool_size: int,
) -> Scouted:
    """Return estimated totals and a pool from the subsample ``seen``.

    Parameters
    ----------
    draws : (S, d)
        θ_s in unconstrained space.
    """
    halves, pools = [], []
    for number, half in enumerate((slice(0, None, 2), slice(1, None, 2))):
        rows = {name: column[half] for name, column in seen.rows.items()}
        potentials = Potentials(problem.potentials.model, ArrayRows(rows))
        sweep = potentials.sweep(draws, pool_size // 2, jax.random.fold_in(key, number))
        problem.potentials.counts.evaluations += potentials.counts.evaluations
        halves.append(Part(rows, sweep.totals))
        pools.append(Pool(seen.indices[half][sweep.pool.indices], sweep.pool.rows))
    totals = totals_from_halves(problem.potentials, draws, halves)
    return Scouted(totals.totals, merge_pools(*pools), totals.corrected)
