"""Leave-one-out by Pareto-smoothed importance sampling, of many rows at once.

With draws θ_s of π_w, D_s = log π(θ_s) − log π_w(θ_s) and f_n(θ_s) = log p(y_n | θ_s), draws of the
posterior of all rows but n have the importance ratios

    r_ns = exp(D_s − f_n(θ_s)),     elpd_n = log Σ_s r_ns exp f_n(θ_s) − log Σ_s r_ns

(Vehtari, Gelman & Gabry 2017, Eq. 10; Magnusson et al. 2019, for D). The M largest of a row's
ratios are smoothed as in `chains.smoothed_log_weights`. Below this tail

    r_ns exp f_n(θ_s) = exp D_s,

so that a row's draws are put in order in the tail alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from decoct.stats.chains import fit_pareto, pareto_quantiles
from decoct.stats.convergence import ess_of_mean

EQUAL = 1e-8
"""Spread of a row's log ratios, in nats, that is rounding alone: no tail, and k-hat −inf."""


class LogRatios(NamedTuple):
    """The log ratios x_ns = D_s − f_n(θ_s) of n rows, and the extremes of each row's."""

    x: Float[np.ndarray, "n S"]
    smallest: Float[np.ndarray, " n"]
    largest: Float[np.ndarray, " n"]


def relative_efficiency(variables: Iterable[Float[np.ndarray, "chains S ..."]]) -> float:
    """Return ESS/S, the mean over all entries of some variables, as ArviZ's ``loo`` takes it.

    1 for a single chain.
    """
    parts = []
    for values in variables:
        chains, n = values.shape[:2]
        if chains == 1:
            return 1.0
        for one in np.moveaxis(values.reshape(chains, n, -1), 2, 0):
            parts.append(ess_of_mean(one) / (chains * n))
    return float(np.mean(parts))


def tail_length(S: int, efficiency: float) -> int:
    """Return M, how many of S ratios are the tail: ⌊min(S/5, 3√(S/r))⌋ at relative efficiency r.

    Vehtari et al. (2024, Appendix H).
    """
    return int(min(S / 5, 3.0 * np.sqrt(S / efficiency)))


def log_ratios(potentials: Float[Array, "S n"], shift: Float[Array, " S"]) -> LogRatios:
    """Return x_ns = D_s − f_n(θ_s) of some rows; pure JAX."""
    x = shift[:, None] - potentials
    return LogRatios(x.T, x.min(axis=0), x.max(axis=0))  # pyright: ignore[reportArgumentType]


def leave_one_out(
    ratios: LogRatios, shift: Float[np.ndarray, " S"], M: int
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return elpd_n in nats and k-hat of every row.

    ``shift`` is D_s, at most 0, and M the length of the tail, below S. k-hat is −inf where all
    ratios are equal, and +inf where no Pareto distribution fits; these ratios are not smoothed.
    """
    # NumPy's partition is vectorised, and fifty times as fast as XLA's sorts
    largest = np.argpartition(ratios.x, -M - 1, axis=1)[:, -M - 1 :]
    values = np.take_along_axis(ratios.x, largest, axis=1)
    order = np.argsort(values, axis=1)
    tail = np.take_along_axis(values, order, axis=1)
    places = np.take_along_axis(largest, order[:, 1:], axis=1)
    elpd, khat = _from_tails(ratios, tail, shift[places], np.exp(shift).sum())
    return np.asarray(elpd), np.asarray(khat)


@jax.jit
def _from_tails(ratios: LogRatios, tail, shifts, shift_sum):
    """Return elpd and k-hat from the tails, ascending, their first entry the threshold."""
    x, smallest, largest = ratios
    lowest, raw = tail[:, :1] - largest[:, None], tail[:, 1:] - largest[:, None]
    khat, sigma = fit_pareto(jnp.exp(raw) - jnp.exp(lowest))
    quantiles = pareto_quantiles(khat, sigma, raw.shape[1])
    # no weight may be larger than the largest ratio
    smoothed = jnp.minimum(jnp.log(jnp.exp(lowest) + quantiles), 0.0)
    fits = jnp.isfinite(khat) & jnp.isfinite(smoothed).all(axis=1)
    equal = largest - smallest <= EQUAL
    log_weights = jnp.where((fits & ~equal)[:, None], smoothed, raw)
    # the ratios below the tail: those in it count as its threshold here, and are taken off
    capped = jnp.exp(jnp.minimum(x, tail[:, :1]) - largest[:, None]).sum(axis=1)
    rest = capped - raw.shape[1] * jnp.exp(lowest[:, 0])
    total = rest + jnp.exp(log_weights).sum(axis=1)
    # a difference of sums that are equal but for rounding can be negative
    below = jnp.maximum(shift_sum - jnp.exp(shifts).sum(axis=1), 0.0)
    in_tail = logsumexp(log_weights - raw + shifts, axis=1)
    elpd = jnp.logaddexp(jnp.log(below), in_tail) - largest - jnp.log(total)
    khat = jnp.where(equal, -jnp.inf, jnp.where(fits, khat, jnp.inf))
    return elpd, khat
