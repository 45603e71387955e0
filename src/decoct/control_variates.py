"""Σ_n f_n(θ_s) over all rows, estimated from a subsample U of them.

    plain      (N/|U|) Σ_U f_n(θ)                         Campbell & Beronov 2019, §3.3
    corrected  q(θ) + (N/|U|) Σ_U (f_n − q_n)(θ)          second-order control variates

with q_n the second-order expansion of f_n at the mean of the draws and q = Σ_n q_n over *all* rows,
a pass that costs 1 + 2 d potentials a row whatever the number of draws. What is left to estimate is
of third order in the width of the draws: next to nothing near a posterior of many rows, and more
than f_n itself at draws of a wide prior. Two halves of U tell which estimate is the better one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from decoct.data.base import Columns
from decoct.posteriors.newton import Curvature
from decoct.potentials import Potentials


class SubsampledTotals(NamedTuple):
    """An estimate of Σ_n f_n(θ_s), centred over the draws.

    Attributes
    ----------
    totals : (S,)
        In nats.
    corrected
        Whether the control variates were worth their pass.
    """

    totals: Float[np.ndarray, " S"]
    corrected: bool


def subsampled_totals(
    potentials: Potentials,
    draws: Float[np.ndarray, "S d"],
    rows: Columns,
    values: Float[np.ndarray, "u S"],
    control_variates: bool = True,
) -> SubsampledTotals:
    """Estimate Σ_n f_n at the draws from a uniform subsample.

    Parameters
    ----------
    potentials
        Model × all rows.
    draws : (S, d)
        θ_s in unconstrained space.
    rows
        The encoded rows of U, in random order with respect to their values.
    values : (|U|, S)
        f_n(θ_s) of those rows; a constant may have been added to every row of it.
    control_variates
        Allow the corrected estimate; False gives the plain one.
    """
    n, u = potentials.n_rows, len(values)
    plain = (n / u) * values.sum(axis=0)
    if not control_variates or u < 2:
        return SubsampledTotals(_centred(plain), False)
    at = draws.mean(axis=0)
    delta = draws - at
    sums, left = [], []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        taken = {name: column[half] for name, column in rows.items()}
        expansion = _expansion(potentials.curvature_of(taken, at), delta)
        share = (n / u) * values[half].sum(axis=0)
        sums.append(share)
        left.append(share - (n / u) * expansion)
    if not np.std(left[0] - left[1]) < np.std(sums[0] - sums[1]):
        return SubsampledTotals(_centred(plain), False)
    everything = _expansion(potentials.curvature(at), delta)
    return SubsampledTotals(_centred(everything + left[0] + left[1]), True)


def _expansion(curvature: Curvature, delta: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " S"]:
    """Return gᵀδ + ½δᵀHδ."""
    return delta @ curvature.gradient + 0.5 * np.einsum(
        "sd,de,se->s", delta, curvature.hessian, delta, optimize=True
    )


def _centred(values: Float[np.ndarray, " S"]) -> Float[np.ndarray, " S"]:
    return values - values.mean()
