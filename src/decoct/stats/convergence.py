"""R-hat and effective sample sizes of all coordinates at once.

Those of Vehtari, Gelman, Simpson, Carpenter & Bürkner (2021), as ArviZ has them, which takes one
coordinate at a time: of 2,000 draws of 2,500 coordinates that takes three times as long.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.fft import next_fast_len
from scipy.special import ndtri

BLOCK = 128
"""Coordinates whose draws are ranked and transformed at once."""


def convergence(z: Float[np.ndarray, "chains draws d"]) -> dict[str, float]:
    """Return the worst rank-normalised R-hat and the smallest bulk ESS over the coordinates.

    The halves of a single chain count as two chains. Both are NaN for chains of fewer than 4 draws,
    or 8 of a single one, and R-hat is for coordinates that never moved.
    """
    if z.shape[1] < (4 if len(z) > 1 else 8):
        return {"rhat": np.nan, "ess": np.nan}
    rhat, ess = [], []
    for first in range(0, z.shape[2], BLOCK):
        halves = _halve(np.moveaxis(z[..., first : first + BLOCK], 2, 0))
        scores = _normal_scores(halves)
        ess.append(_ess(scores).min())
        if len(z) == 1:
            halves = _halve(halves)
            scores = _normal_scores(halves)
        distances = np.abs(halves - np.median(halves, axis=(1, 2), keepdims=True))
        rhat += [_rhat(scores).max(), _rhat(_normal_scores(distances)).max()]
    return {"rhat": float(np.max(rhat)), "ess": float(np.min(ess))}


def ess_of_mean(values: Float[np.ndarray, "chains S"]) -> float:
    """Return the effective sample size for the mean of a scalar along chains.

    NaN for chains of fewer than 4 draws.
    """
    return float(_ess(_halve(values[None]))[0]) if values.shape[1] >= 4 else np.nan


def _halve(z: Float[np.ndarray, "d chains n"]) -> Float[np.ndarray, "d halves half"]:
    half = z.shape[2] // 2
    return np.concatenate([z[..., :half], z[..., -half:]], axis=1)


def _normal_scores(z: Float[np.ndarray, "d m n"]) -> Float[np.ndarray, "d m n"]:
    """Return normal scores of the ranks of all draws of each coordinate (Eq. 14)."""
    ranks = _ranks(z.reshape(len(z), -1))
    return ndtri((ranks - 0.375) / (ranks.shape[1] + 0.25)).reshape(z.shape)


def _ranks(z: Float[np.ndarray, "d n"]) -> Float[np.ndarray, "d n"]:
    """Return ranks from 1, of equal draws their mean, and NaN where one draw is.

    As `scipy.stats.rankdata`, whose module takes half a second to import.
    """
    places = np.arange(z.shape[1])
    order = z.argsort(axis=1)
    ordered = np.take_along_axis(z, order, axis=1)
    ends = np.append(ordered[:, 1:] != ordered[:, :-1], np.ones((len(z), 1), dtype=bool), axis=1)
    last = np.minimum.accumulate(np.where(ends, places, z.shape[1])[:, ::-1], axis=1)[:, ::-1]
    begins = np.roll(ends, 1, axis=1)
    first = np.maximum.accumulate(np.where(begins, places, 0), axis=1)
    ranks = np.empty(z.shape)
    np.put_along_axis(ranks, order, 0.5 * (first + last) + 1.0, axis=1)
    return np.where(np.isnan(ordered[:, -1:]), np.nan, ranks)


def _rhat(z: Float[np.ndarray, "d m n"]) -> Float[np.ndarray, " d"]:
    """Return R-hat (Eq. 4)."""
    n = z.shape[2]
    between = n * z.mean(axis=2).var(axis=1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = between / z.var(axis=2, ddof=1).mean(axis=1)
    return np.sqrt((ratio + n - 1) / n)


def _ess(z: Float[np.ndarray, "d m n"]) -> Float[np.ndarray, " d"]:
    """Return the effective sample size for the mean, with Geyer's initial monotone sequence."""
    d, m, n = z.shape
    length = next_fast_len(2 * n)
    power = np.abs(np.fft.rfft(z - z.mean(axis=2, keepdims=True), length)) ** 2
    covariance = np.fft.irfft(power.mean(axis=1), length)[:, :n] / n
    within = covariance[:, :1] * n / (n - 1)
    variance = covariance[:, :1] + z.mean(axis=2).var(axis=1, ddof=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        rho = 1.0 - (within - covariance) / variance
    rho[:, 0] = 1.0 + 0.0 * variance[:, 0]  # NaN stays NaN
    even = rho[:, 0 : max(n - 2, 1) : 2]
    pairs = even + rho[:, 1 : 2 * even.shape[1] : 2]
    # up to the first pair that is not positive, of which only the first counts, and if positive
    ends = np.append(~(pairs[:, :-1] > 0.0), np.ones((d, 1), dtype=bool), axis=1)
    last = ends.argmax(axis=1)[:, None]
    falling = np.minimum.accumulate(pairs, axis=1)
    total = falling.sum(axis=1, where=np.arange(pairs.shape[1]) < last)
    left = np.maximum(np.take_along_axis(even, last, axis=1)[:, 0], 0.0)
    tau = np.maximum(2.0 * total + left - 1.0, 1.0 / np.log10(m * n))
    return np.where(np.ptp(z, axis=(1, 2)) < 1e-15, m * n, m * n / tau)  # equal draws
