"""Σ_n f_n at the draws of a certificate from a sample of rows, and what its error does to the KL.

With q_n the second-order expansion of f_n about the mean of the draws, smoothed over their
covariance and with terms of third order where the model has a linear predictor
(`passes.expansions`, `passes.third_order`), and T = Σ_n q_n from one pass over all rows,

    Σ_n f_n(θ_s)  ≈  T(θ_s) + ½ Σ_{both samples} r_n(θ_s)/π_n,     r_n = f_n − q_n,

with two samples of rows drawn with known probabilities π_n by the same pass (`passes.row_samples`).
The errors e_s of different rows are uncorrelated (Cohen & Kaplan 2007), so that with
ω_n = (1 − π_n)/(4 π_n²) and ρ_s = e^{D_s}/mean e^D

    ½E Var(e)  ≈  ½ Σ ω_n Var(r_n),       Var(KL)  ≈  Σ ω_n (mean_s (ρ_s − 1) r_n(θ_s))²,

sums over the sampled rows: the estimate of either divergence is too large by the first, and the
second is the variance of the rows' part of its error, by its influence function.

Expansions and sample do not determine a constant. The same pass has exact totals at a few draws F,
and the estimates are shifted to be exact there on average, so that

    Var(log mean e^D)  ≈  Σ ω_n (mean_s ρ_s r_n(θ_s) − mean_F r_n(θ_s))².
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from decoct.passes.expansions import Expansion
from decoct.passes.potentials import Potentials
from decoct.passes.row_samples import EXACT_DRAWS, SCALE_ROWS, sample_rows
from decoct.passes.third_order import Skewness
from decoct.stats.chains import GOOD_KHAT
from decoct.stats.verdict import SMALL_KL, USABLE_KL, Judgement, judge

SAMPLE = 4000
"""Rows of each of the two samples: with a site alone, the standard error is about 2 % of the KL."""

TOLERANCE = 0.1
"""Most error by the sampling of rows, relative to the KL."""


class EstimatedTotals(NamedTuple):
    """Σ_n f_n at the draws from a sample of rows."""

    totals: Float[np.ndarray, " S"]  # the estimates, exact on average over a few draws
    remainders: Float[np.ndarray, "k S"]  # r_n of the sampled rows, centred over the draws
    at_few: Float[np.ndarray, " k"]  # means of the remainders over the few draws
    weights: Float[np.ndarray, " k"]  # 1/π_n
    apart: float  # ½Var of the error of the estimates, over the few draws
    rows: int  # in the sample

    def judge(self, log_ratios: Float[np.ndarray, "chains S"]) -> Judgement | None:
        """Judge log ratios that these totals went into, their error included.

        None where all rows are needed: the error is above a tenth of the KL and the KL above 1e-4
        nats, or the draws are not clearly good enough.
        """
        if not np.isfinite(log_ratios).all():
            return None
        found = judge(log_ratios)
        squares = np.einsum("ks,ks->k", self.remainders, self.remainders)
        bias = 0.5 * float(self._spread @ squares) / log_ratios.size
        se = float(np.sqrt(self._spread @ np.square(self._weighted_remainders(log_ratios))))
        kl = found.kl
        reverse = max(0.0, kl.reverse - bias)
        below, above = kl.reverse - kl.reverse_low, kl.reverse_high - kl.reverse
        kl = kl._replace(
            reverse=reverse,
            reverse_se=float(np.hypot(kl.reverse_se, se)),
            forward=max(0.0, kl.forward - bias),
            forward_se=float(np.hypot(kl.forward_se, se)),
            half_variance=max(0.0, kl.half_variance - bias),
            reverse_low=max(0.0, reverse - float(np.hypot(below, 1.96 * se))),
            reverse_high=reverse + max(bias, self.apart) + float(np.hypot(above, 1.96 * se)),
        )
        is_small = kl.reverse_high < SMALL_KL
        is_close = is_small or max(bias, self.apart) + 1.96 * se <= TOLERANCE * reverse
        is_good = is_small or (kl.reverse_high < USABLE_KL and found.khat < GOOD_KHAT)
        return found._replace(kl=kl) if is_close and is_good else None

    def error(self, log_ratios: Float[np.ndarray, "chains S"]) -> float:
        """Return the standard error of log mean e^D by the sampling of rows."""
        off = self._weighted_remainders(log_ratios) - self.at_few
        return float(np.sqrt(self._spread @ np.square(off)))

    @property
    def _spread(self) -> Float[np.ndarray, " k"]:
        """ω_n."""
        return 0.25 * self.weights * (self.weights - 1.0)

    def _weighted_remainders(
        self, log_ratios: Float[np.ndarray, "chains S"]
    ) -> Float[np.ndarray, " k"]:
        """Return mean_s ρ_s r_n(θ_s), with r_n centred over the draws."""
        relative = np.exp(log_ratios - log_ratios.max()).ravel()
        return self.remainders @ (relative / relative.sum())


def is_cheaper(potentials: Potentials, draws: int) -> bool:
    """Return whether a sample of rows costs less than a fifth of all rows at all draws.

    A potential of the sample takes longer than one of a plain sum, and all rows may follow.
    """
    a_row = potentials.expansion_cost(1)
    cost = potentials.n_rows * (a_row + 2 * EXACT_DRAWS) + 4 * SAMPLE * draws
    return 5 * cost < potentials.n_rows * draws


def estimate_totals(
    potentials: Potentials, draws: Float[np.ndarray, "S d"], key: jax.Array
) -> EstimatedTotals:
    """Estimate Σ_n f_n at the draws, in one pass over all rows that is cheap.

    It brings exact totals at `EXACT_DRAWS` of the draws, half of them those furthest from the mean,
    half evenly spaced.
    """
    phi = potentials.to_likelihood(draws)
    at = Expansion.taylor(phi.mean(axis=0))
    if potentials.has_predictors:
        at = at._replace(covariance=np.atleast_2d(np.cov(phi, rowvar=False)))
    few = draws[_some(phi - at.centre, EXACT_DRAWS)]
    places = np.linspace(0, potentials.n_rows - 1, SCALE_ROWS).astype(np.int64)
    some = potentials.rows.take(places)
    expanded, sample, exact = sample_rows(potentials, at, SAMPLE, some, key, few)
    names = sample.first.rows
    rows = {name: np.concatenate([half.rows[name] for half in sample]) for name in names}
    weights = np.concatenate([half.weights for half in sample])
    everywhere = np.concatenate([draws, few])
    phi = potentials.to_likelihood(everywhere)
    skewness = Skewness.of(at, expanded, potentials.pair_offsets)
    basis = np.zeros((len(phi), len(expanded.thirds)))
    if skewness is not None:
        basis = skewness.basis(phi)
    remainders = potentials.vectors(rows, everywhere)
    remainders -= potentials.quadratics(rows, at, everywhere, basis)
    totals = expanded.at(phi - at.centre) + basis @ expanded.thirds + 0.5 * weights @ remainders
    totals, at_few = np.split(totals, [len(draws)])
    totals += (exact - at_few).mean()
    remainders -= remainders[:, : len(draws)].mean(axis=1, keepdims=True)
    remainders, of_few = np.split(remainders, [len(draws)], axis=1)
    apart, count = 0.5 * float(np.var(at_few - exact)), len(sample.pool.indices)
    return EstimatedTotals(totals, remainders, of_few.mean(axis=1), weights, apart, count)


def _some(delta: Float[np.ndarray, "S d"], count: int) -> np.ndarray:
    """Return places of draws: half the furthest from their mean, half evenly spaced."""
    basis = np.linalg.qr(delta)[0]
    furthest = np.argsort(-np.square(basis).sum(axis=1), kind="stable")[: count // 2]
    spaced = np.linspace(0, len(delta) - 1, count - len(furthest)).astype(np.int64)
    return np.concatenate([furthest, spaced])
