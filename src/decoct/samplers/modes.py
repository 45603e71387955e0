"""Search for modes of π_w without draws, which a certificate from draws cannot see.

Newton's method maximises log π_w from a few of the draws θ_s, and from overdispersed starts

    mean θ + c (θ_s − mean θ),  c = 2 … 2000,    and    draws of N(z₀ + P⁻¹ ∇log π₀(z₀), P⁻¹),

with P = −∇² log π₀ at z₀, where samplers start (the prior itself where it is Gaussian; left out
where P is not positive definite). With H_k = −∇² log π_w(z_k), two maxima z_j, z_k are one mode
where

    (z_j − z_k)ᵀ H_j (z_j − z_k) < 1,

less than a posterior standard deviation. Every draw belongs to the mode that is nearest by the same
distance, with H of one mode for all. By Laplace, the mass of mode k under the *full* posterior is

    log m_k = Σ_n f_n(z_k) + log π₀(z_k) − ½ log det H_k + constant:

exact potentials of all rows at z_k, the coreset's curvature. The potentials come from the pass that
a certificate makes anyway.

Limits: it misses modes that no start leads to, modes of π where π_w has none, and regions of mass
without a maximum. The mass of a mode that π_w has at another place than π is too small, never too
large, by half the squared distance in posterior standard deviations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from decoct.samplers.base import WeightedDensity
from decoct.samplers.laplace import Mode, decrement_of, find_mode, prior_curvature
from decoct.stats.divergences import Gaussian

MOST_PARAMETERS = 50
"""Parameters above which modes are not searched for: a step costs d + 1 gradients."""

NEAR_STARTS = 4
"""Draws that searches start from: one in each of NUTS' chains, so that their own mode is found."""

STARTS = 20
"""Overdispersed starts, half of them from the prior where it can be drawn from."""

SCALES = 2.0, 2000.0
"""The least and the largest factor by which draws are moved away from their mean."""

MOST_EVALUATIONS = 50
"""Evaluations of a search that meets curvature of the wrong sign; most need ten."""

SAME = 1.0
"""Squared distance, in posterior standard deviations, below which two maxima are one mode."""


class Modes(NamedTuple):
    """Maxima of log π_w, and how the search for them went."""

    z: Float[np.ndarray, "k d"]  # the maxima
    log_volume: Float[np.ndarray, " k"]  # −½ log det H_k
    draws: Int[np.ndarray, " k"]  # how many are nearer to it than to any other
    searches: int  # overdispersed starts whose search ended at a maximum

    def shares(self, log_density: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        """Return m_k / Σ m_j from log π at the maxima; 0 where that is not finite."""
        log_mass = np.where(np.isfinite(log_density), log_density, -np.inf) + self.log_volume
        mass = np.exp(log_mass - log_mass.max(initial=-1e300))
        return mass / np.maximum(1.0, mass.sum())


def find_modes(
    density: WeightedDensity, draws: Float[np.ndarray, "S d"], rng: np.random.Generator
) -> Modes | None:
    """Search log π_w for maxima, from its draws, chain by chain, and from overdispersed starts.

    None where no search ends at a maximum.
    """
    near_starts = draws[np.linspace(0, len(draws) - 1, NEAR_STARTS).astype(int)]
    distant = _maxima_from(density, _overdispersed(density, draws, rng))
    modes = _distinct(_maxima_from(density, near_starts) + distant)
    if not modes:
        return None
    z = np.stack([one.z for one in modes])
    precision = -modes[0].curvature.hessian
    nearest = np.argmin([_square(draws - at, precision) for at in z], axis=0)
    log_volume = [-0.5 * np.linalg.slogdet(-one.curvature.hessian)[1] for one in modes]
    counts = np.bincount(nearest, minlength=len(modes))
    return Modes(z, np.array(log_volume), counts, len(distant))


def _maxima_from(density: WeightedDensity, starts: Float[np.ndarray, "m d"]) -> list[Mode]:
    with np.errstate(over="ignore", invalid="ignore"):  # a start that overflows fails
        found = [find_mode(density, start, MOST_EVALUATIONS) for start in starts]
    return [mode for mode in found if mode.status.ok]


def _distinct(modes: list[Mode]) -> list[Mode]:
    kept: list[Mode] = []
    for mode in modes:
        apart = (_square((mode.z - one.z)[None], -one.curvature.hessian) for one in kept)
        if all(squared[0] >= SAME for squared in apart):
            kept.append(mode)
    return kept


def _square(
    off: Float[np.ndarray, "m d"], precision: Float[np.ndarray, "d d"]
) -> Float[np.ndarray, " m"]:
    return ((off @ precision) * off).sum(axis=1)


def _overdispersed(
    density: WeightedDensity, draws: Float[np.ndarray, "S d"], rng: np.random.Generator
) -> Float[np.ndarray, "m d"]:
    here, from_prior = prior_curvature(density.model, density.space, density.start), draws[:0]
    if decrement_of(here) is not None:
        covariance = np.linalg.inv(-here.hessian)
        prior = Gaussian(density.start + covariance @ here.gradient, covariance)
        from_prior = prior.sample(rng, STARTS // 2)
    scales = np.geomspace(*SCALES, STARTS - len(from_prior))
    picked, mean = draws[rng.integers(len(draws), size=len(scales))], draws.mean(axis=0)
    return np.concatenate([from_prior, mean + scales[:, None] * (picked - mean)])
