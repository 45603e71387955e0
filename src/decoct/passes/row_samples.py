"""Sums over all rows from a sample drawn with known probabilities.

Two independent samples, each of the k rows with the smallest E_n/p_n, E_n standard exponential
numbers of the key and the global row number. With τ the (k+1)-th smallest of them, row n is in the
sample with probability π_n = 1 − exp(−p_n τ) whatever the other rows are, and

    Σ_n r_n  ≈  Σ_{n in sample} r_n/π_n          (Cohen & Kaplan 2007, rank conditioning)

has no bias. The odds follow remainders r_n = f_n − q_n of an expansion, p_n = 1/10 + 9/10 ‖r_n‖/m
with m a scale such as the mean norm, so that no row of influence is missed and every row has its
chance.
What the two samples disagree by tells how far off their mean is.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from decoct.data.base import Columns
from decoct.passes.expansions import Expansion
from decoct.passes.pools import Pool, merge_pools, row_exponentials
from decoct.passes.potentials import PassResult, Potentials

NORM_DRAWS = 16
"""Draws that ‖r_n‖ is estimated from."""


class SampledRows(NamedTuple):
    """Rows drawn with known probabilities.

    Attributes
    ----------
    indices : (k,)
        Global row numbers.
    rows
        Encoded columns.
    weights : (k,)
        1/π_n.
    """

    indices: np.ndarray
    rows: Columns
    weights: Float[np.ndarray, " k"]


class RowSample(NamedTuple):
    """Two independent samples of one table."""

    first: SampledRows
    second: SampledRows

    @property
    def pool(self) -> Pool:
        return merge_pools(*(Pool(half.indices, half.rows) for half in self))

    def remainders(
        self, potentials: Potentials, at: Expansion, draws: Float[np.ndarray, "S d"]
    ) -> tuple[Float[np.ndarray, " S"], float]:
        """Return an estimate of Σ_n (f_n − q_n) + constant at the draws, and its ½Var in nats."""
        sums = []
        for half in self:
            quadratic = potentials.expand_rows(half.rows, half.weights, at)
            totals = potentials.totals_of(half.rows, half.weights, draws)
            sums.append(totals - quadratic.at(draws - at.centre))
        apart = 0.5 * (sums[0] - sums[1])
        return 0.5 * (sums[0] + sums[1]), 0.5 * float(np.var(apart, ddof=1))


def sample_rows(
    potentials: Potentials,
    at: Expansion,
    draws: Float[np.ndarray, "S d"],
    size: int,
    scale: float,
    key: jax.Array,
) -> tuple[RowSample, PassResult]:
    """Draw two samples of ``size`` rows in one pass, which also brings exact totals at a few draws.

    Parameters
    ----------
    at
        The expansion whose remainders decide the odds.
    draws : (S, d)
        The first `NORM_DRAWS` of them are used.
    size
        k.
    scale
        m > 0, about the mean over all rows of the norm ‖r_n‖ at those draws, centred over them.
    """
    few = draws[:NORM_DRAWS]
    result, reservoirs = potentials.sampling_pass(few, size + 1, key, at, scale)
    halves = []
    for which, found in enumerate(reservoirs):
        order = np.argsort(found.scores)
        weights = np.ones(len(order))
        if len(order) > size:
            last, order = found.scores[order[size]], order[:size]
            with jax.enable_x64(True):
                exponentials = row_exponentials(key, found.indices[order].astype(np.uint64))[
                    :, which
                ]
            odds = exponentials / found.scores[order]
            weights = -1.0 / np.expm1(-odds * last)
        rows = {name: column[order] for name, column in found.rows.items()}
        halves.append(SampledRows(found.indices[order], rows, weights))
    return RowSample(*halves), result


def mean_norm(
    potentials: Potentials, at: Expansion, draws: Float[np.ndarray, "S d"], rows: Columns
) -> float:
    """Return the mean of ‖r_n‖ over a few encoded rows, for the scale of `sample_rows`.

    Rounding where all remainders vanish: then every row has the same odds.
    """
    few = draws[:NORM_DRAWS]
    remainders = potentials.vectors(rows, few) - potentials.quadratics(rows, at, few)
    centred = remainders - remainders.mean(axis=1, keepdims=True)
    return max(float(np.sqrt(np.square(centred).sum(axis=1)).mean()), np.finfo(float).eps)
