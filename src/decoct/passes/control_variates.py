"""Σ_n f_n(θ_s) over all rows, estimated from a subsample U of them.

    plain      (N/|U|) Σ_U f_n(θ)                         Campbell & Beronov 2019, §3.3
    corrected  q(θ) + (N/|U|) Σ_U (f_n − q_n)(θ)          second-order control variates

with q_n the second-order expansion of f_n at the mean of the draws and q = Σ_n q_n over *all* rows,
a pass that costs 1 + 2 d potentials a row whatever the number of draws. What is left to estimate is
of third order in the width of the draws: next to nothing near a posterior of many rows, and more
than f_n itself at draws of a wide prior. Two halves of U decide which estimate is better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from decoct.passes.pools import Pool
from decoct.passes.potentials import Curvature, PassResult, Potentials


def subsampled_totals(
    potentials: Potentials,
    draws: Float[np.ndarray, "S d"],
    rows: Pool,
    values: Float[np.ndarray, "u S"],
    control_variates: bool = True,
) -> PassResult:
    """Estimate Σ_n f_n at the draws from a uniform subsample.

    The rows U are in random order. Their values f_n(θ_s), up to a constant for each row, are
    (|U|, S). Without ``control_variates`` the estimate is the plain one.
    """
    if not control_variates or len(values) < 2:
        totals = _centre(potentials.n_rows / len(values) * values.sum(axis=0))
        return PassResult(totals, error=np.inf, is_corrected=False)
    halves = [
        (rows.some(half), values[half].sum(axis=0))
        for half in (slice(0, None, 2), slice(1, None, 2))
    ]
    return totals_from_halves(potentials, draws, halves)


def totals_from_halves(
    potentials: Potentials,
    draws: Float[np.ndarray, "S d"],
    halves: Sequence[tuple[Pool, Float[np.ndarray, " S"]]],
) -> PassResult:
    """Estimate Σ_n f_n at the draws from two random halves of a uniform subsample.

    A half is its rows, and Σ f_n(θ_s) over them. The difference of the halves decides which
    estimate is better, and gives its ``error``, which ignores rows that the subsample lacks.
    """
    scale = potentials.n_rows / sum(len(rows.indices) for rows, _ in halves)
    at = draws.mean(axis=0)
    delta = draws - at
    sums = [scale * of_half for _, of_half in halves]
    left = [
        total - scale * _expansion(potentials.curvature_of(rows, at), delta)
        for total, (rows, _) in zip(sums, halves, strict=True)
    ]
    apart, plain_apart = (0.5 * float(np.var(a - b)) for a, b in (left, sums))
    if not apart < plain_apart:
        plain = _centre(sums[0] + sums[1])
        return PassResult(plain, error=plain_apart, is_corrected=False)
    everything = _expansion(potentials.curvature(at), delta)
    return PassResult(_centre(everything + left[0] + left[1]), error=apart)


def _expansion(curvature: Curvature, delta: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " S"]:
    """Return gᵀδ + ½δᵀHδ."""
    return delta @ curvature.gradient + 0.5 * np.einsum(
        "sd,de,se->s", delta, curvature.hessian, delta, optimize=True
    )


def _centre(values: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    return values - values.mean()
