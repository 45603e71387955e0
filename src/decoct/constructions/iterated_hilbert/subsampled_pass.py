"""Passes of a round from a subsample of the rows, alone or checked on all of them.

A round of a construction needs the target b = Σ_n g_n at its draws and a pool of candidate rows.
Early rounds only have to find the neighbourhood of π, for which a uniform subsample U serves:
`passes.control_variates` estimates b from it, and the pool is drawn from it by the odds that a full
pass would use (`subsample_pass`).

A later round may use the same estimate of b with one pass over all rows at a few of the draws
(`check_pass`). That pass fills the pool from all rows and measures the error of the estimate:
with b exact at those draws, ½Var(b − estimate) is about what the estimate adds to the KL. It is of
third order in the width of the draws, about d³/(N |U|) nats where U represents the rows; where it
is too large, the round passes over all rows at all draws instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
from jaxtyping import Float

from decoct.constructions.base import Problem, Selection
from decoct.constructions.iterated_hilbert.settings import CHECK_DRAWS
from decoct.passes.control_variates import totals_from_halves
from decoct.passes.pools import Pool, merge_pools
from decoct.passes.potentials import PassResult
from decoct.runtime.randomness import host_rng

MAX_TOTALS_ERROR = 1e-5
"""Nats that estimated totals may add to the KL of a coreset."""


def subsample_pass(
    key: jax.Array,
    problem: Problem,
    seen: Selection,
    draws: Float[np.ndarray, "S d"],
    pool_size: int,
) -> PassResult:
    """Return estimated totals, and a pool of rows of the subsample ``seen``."""
    halves, pools = [], []
    for number, rows in enumerate(_halves(key, seen)):
        half_key = jax.random.fold_in(key, number)
        found = problem.potentials.restrict(rows).one_pass(draws, pool_size // 2, half_key)
        halves.append((rows, found.totals))
        pools.append(Pool(rows.indices[found.pool.indices], found.pool.rows))
    return totals_from_halves(problem.potentials, draws, halves)._replace(pool=merge_pools(*pools))


def check_pass(
    key: jax.Array,
    problem: Problem,
    seen: Selection,
    draws: Float[np.ndarray, "S d"],
    pool_size: int,
    tolerable: float = MAX_TOTALS_ERROR,
) -> PassResult | None:
    """Pass over all rows at the first `CHECK_DRAWS` draws; ``seen`` estimates all totals.

    None if the error of the estimate, two Monte Carlo standard errors added, is more than is
    tolerable: ½Var in nats.
    """
    halves = [
        (rows, problem.potentials.restrict(rows).totals(draws)) for rows in _halves(key, seen)
    ]
    estimate = totals_from_halves(problem.potentials, draws, halves)
    if not estimate.error <= tolerable:
        return None
    exact = problem.potentials.one_pass(draws[:CHECK_DRAWS], pool_size, key)
    miss = exact.totals - estimate.totals[:CHECK_DRAWS]
    squares = 0.5 * (miss - miss.mean()) ** 2
    error = float(squares.mean() + 2.0 * squares.std() / np.sqrt(len(squares)))
    if error > tolerable:
        return None
    return exact._replace(totals=estimate.totals, error=error)


def _halves(key: jax.Array, seen: Selection) -> Iterator[Pool]:
    """Yield random halves; every other row of a sorted table would give too similar halves."""
    order = host_rng(jax.random.fold_in(key, 2)).permutation(seen.size)
    for half in (order[::2], order[1::2]):
        yield seen.pool.some(half)
