"""Looks at the tangent space from a subsample of the rows, alone or beside a thin pass.

A round of a construction needs the target b = Σ_n g_n at its draws and a pool of candidate rows.
Early rounds only have to find the neighbourhood of π, for which a uniform subsample U serves:

    b ≈ q(θ) + (N/|U|) Σ_U (f_n − q_n)(θ)

with q_n the second-order expansion of f_n at the mean of the draws, summed over all rows at
1 + 2 d potentials a row in place of S (`control_variates`). The pool is drawn from U by
the odds that a full pass would use. That is scouting.

A later round may be *thin*: the same estimate of b, beside one pass over all rows at a few of the
draws. That pass fills the pool from all rows, and tells how far the estimate is off, whatever rows
U lacks: with b at those draws exact, ½Var(b − estimate) is about what the estimate adds to the KL.
What is left of it is of third order in the width of the draws, d³/(N |U|) nats or so where U
represents the rows; where it is more than is tolerable, the round passes over all rows at all
draws instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from decoct.constructions.base import Problem, Selection
from decoct.data.arrays import ArrayRows
from decoct.passes.control_variates import Part, totals_from_halves
from decoct.passes.pools import Pool, merge_pools
from decoct.passes.potentials import Potentials
from decoct.runtime.randomness import host_rng

ROWS = 20_480
"""Rows of the subsample, if the pool is not large."""

FEW = 64
"""Draws of a thin pass."""

FEWEST = 4 * FEW
"""Draws of a round from which on a thin pass is the cheaper one."""

TOLERABLE = 1e-5
"""Nats that estimated totals may add to the KL of a coreset."""

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


def scouting_rows(problem: Problem, n_draws: int, pool_size: int) -> int | None:
    """Return the size of the subsample, or None where passes over all rows are as cheap.

    Parameters
    ----------
    n_draws
        S, what a full pass would evaluate for each row.
    pool_size
        P, the pool wanted.
    """
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
    for number, half in enumerate(_halves(key, problem, seen)):
        sweep = half.potentials.sweep(draws, pool_size // 2, jax.random.fold_in(key, number))
        halves.append(half.part(problem, sweep.totals))
        pools.append(Pool(half.rows.indices[sweep.pool.indices], sweep.pool.rows))
    totals = totals_from_halves(problem.potentials, draws, halves)
    return Scouted(totals.totals, merge_pools(*pools), totals.corrected)


class Thin(NamedTuple):
    """What a thin pass shows.

    Attributes
    ----------
    totals : (S,)
        An estimate of Σ_n f_n(θ_s) over all rows, centred over the draws.
    pool
        Candidate rows of the whole table.
    error
        ½Var of the estimate's error in nats, with two Monte Carlo standard errors added.
    """

    totals: Float[np.ndarray, " S"]
    pool: Pool
    error: float


def thin(
    key: jax.Array,
    problem: Problem,
    seen: Selection,
    draws: Float[np.ndarray, "S d"],
    pool_size: int,
    tolerable: float = TOLERABLE,
) -> Thin | None:
    """Pass over all rows at `FEW` draws; totals at the others are estimated from ``seen``.

    None if the estimate is further off than is tolerable.

    Parameters
    ----------
    draws : (S, d)
        θ_s in unconstrained space, in random order.
    tolerable
        ½Var in nats.
    """
    halves = [
        half.part(problem, half.potentials.totals(draws)) for half in _halves(key, problem, seen)
    ]
    estimate = totals_from_halves(problem.potentials, draws, halves)
    if not estimate.error <= tolerable:
        return None
    sweep = problem.potentials.sweep(draws[:FEW], pool_size, key)
    miss = sweep.totals - estimate.totals[:FEW]
    squares = 0.5 * (miss - miss.mean()) ** 2
    error = float(squares.mean() + 2.0 * squares.std() / np.sqrt(len(squares)))
    return Thin(estimate.totals, sweep.pool, error) if error <= tolerable else None


class _Half(NamedTuple):
    rows: Pool
    potentials: Potentials

    def part(self, problem: Problem, sums: Float[np.ndarray, " S"]) -> Part:
        """Return what the half adds up to; what it cost is added to the problem's."""
        problem.potentials.counts.evaluations += self.potentials.counts.evaluations
        return Part(self.rows, sums)


def _halves(key: jax.Array, problem: Problem, seen: Selection) -> Iterator[_Half]:
    """Yield random halves: every other row of a sorted table would agree too well."""
    order = host_rng(jax.random.fold_in(key, 2)).permutation(seen.size)
    for half in (order[::2], order[1::2]):
        rows = Pool(seen.indices, seen.rows).some(half)
        whole = problem.potentials
        numbers = whole.named(rows.indices)
        yield _Half(rows, Potentials(whole.model, ArrayRows(rows.rows), numbers=numbers))
