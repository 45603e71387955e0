"""Sums over all rows from a sample drawn with known probabilities.

Two independent samples, each of the k rows with the smallest E_n/p_n, E_n standard exponential
numbers of the key and the global row number. With τ the (k+1)-th smallest of them, or 4 k/N if that
is smaller, row n is in the sample with probability π_n = 1 − exp(−p_n τ) whatever the other rows
are, and

    Σ_n r_n  ≈  Σ_{n in sample} r_n/π_n          (Cohen & Kaplan 2007, rank conditioning)

has no bias. The odds follow remainders r_n = f_n − q_n of an expansion, p_n = 1/10 + 9/10 s_n/m
with s_n = √Var(r_n) and m the mean of a few of them, so that influential rows are likely and every
row is possible. The difference of the two samples estimates the error of their mean.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from decoct.data.base import Columns
from decoct.passes.chunk_sums import ODDS
from decoct.passes.expansions import Expansion
from decoct.passes.pools import Pool, merge_pools
from decoct.passes.potentials import Curvature, Potentials

SCALE_ROWS = 2048
"""Rows that the mean remainder is estimated from."""

EXACT_DRAWS = 12
"""Draws for exact totals, and for Var(r_n) of models without a linear predictor."""


class SampledRows(NamedTuple):
    """Rows drawn with known probabilities: their numbers, encoded columns, and weights 1/π_n."""

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

    def expand(self, potentials: Potentials, at: Expansion) -> Curvature:
        """Return an estimate of Σ_n q_n over all rows."""
        one, other = (potentials.expand_rows(half.rows, half.weights, at) for half in self)
        return one.plus(other).scaled(0.5)

    def remainders(
        self,
        potentials: Potentials,
        at: Expansion,
        draws: Float[np.ndarray, "S d"],
        basis: Float[np.ndarray, "S d"],
    ) -> tuple[Float[np.ndarray, " S"], float]:
        """Return an estimate of Σ_n (f_n − q_n − t_n) + constant, and its ½Var in nats.

        At the draws; t_n is the row's part in the terms of a `Skewness.basis`.
        """
        sums = []
        for half in self:
            quadratic = potentials.expand_rows(half.rows, half.weights, at)
            totals = potentials.totals_of(half.rows, half.weights, draws)
            delta = potentials.to_likelihood(draws) - at.centre
            sums.append(totals - quadratic.at(delta) - basis @ quadratic.thirds)
        apart = 0.5 * (sums[0] - sums[1])
        return 0.5 * (sums[0] + sums[1]), 0.5 * float(np.var(apart, ddof=1))


def sample_rows(
    potentials: Potentials,
    at: Expansion,
    size: int,
    few: Columns,
    key: jax.Array,
    draws: Float[np.ndarray, "S d"],
) -> tuple[Curvature, RowSample, Float[np.ndarray, " S"]]:
    """Return Σ_n q_n, two samples of ``size`` rows, and exact Σ_n f_n at the draws, in one pass.

    The scale m of the odds is estimated from ``few`` encoded rows. Models without a linear
    predictor need some draws for s_n; elsewhere there may be none.
    """
    deviations = potentials.remainder_deviations(few, at, draws)
    # rounding where all remainders vanish: then every row has the same odds
    scale = max(float(deviations.mean()), np.finfo(float).eps)
    # of a mean p_n near 1, one score in four below this is among the k smallest
    cut = np.inf if size >= potentials.n_rows else 4.0 * size / potentials.n_rows
    totals, sums, reservoirs = potentials.sampling_pass(draws, size + 1, key, at, scale, cut)
    halves = []
    for found in reservoirs:
        order = np.argsort(found.scores)
        last = found.scores[order[size]] if len(order) > size else cut
        order = order[:size]
        indices, rows = found.pool.some(order)
        weights = -1.0 / np.expm1(-rows[ODDS] * last)
        rows = {name: column for name, column in rows.items() if name != ODDS}
        halves.append(SampledRows(indices, rows, weights))
    return sums, RowSample(*halves), totals
