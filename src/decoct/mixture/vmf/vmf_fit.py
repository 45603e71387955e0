"""Expectation-maximisation for von Mises-Fisher mixtures of one known concentration.

E step: z_nk ∝ ω_k f_vMF(x_n; μ_k, τ), Σ_k z_nk = 1. M step: μ_k = x̄_k/‖x̄_k‖ and ω_k = z̄_k/Σ_j z̄_j
with x̄_k = Σ_n w_n z_nk x_n and z̄_k = Σ_n w_n z_nk (Banerjee et al. 2005, with τ fixed).

From the smoothed assignments z, Campbell & Broderick (2019, Eq. 7.6) make their weighting
distribution, a product of independent conditionals: μ_k ~ vMF(x̄_k/‖x̄_k‖, τ‖x̄_k‖) and
ω ~ Dir(1 + z̄_1, ..., 1 + z̄_K).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from decoct.errors import ModelError, RowsError
from decoct.mixture.vmf.vmf_mixture import VonMisesFisherMixture
from decoct.mixture.vmf.von_mises_fisher import (
    check_concentration,
    check_directions,
    log_normaliser,
    sample_vmf,
)
from decoct.passes.potentials import Potentials
from decoct.runtime.randomness import host_rng

EMPTY = 1e-8
"""A cluster with less than this share of a row is empty."""


@dataclass(frozen=True, eq=False)
class EMResult:
    """A local maximum of the likelihood, the best of several.

    Attributes
    ----------
    modes : (K, D)
        μ, unit vectors.
    weights : (K,)
        ω ≥ 0, summing to 1. A cluster the rows have no use for has the weight 0.
    responsibilities : (N, K)
        z, each row summing to 1; rows of weight 0 have theirs too.
    log_likelihood
        Σ_n w_n log Σ_k ω_k f_vMF(x_n; μ_k, τ), in nats.
    iterations
        EM steps of the best start.
    converged
        False where max_iterations ended the best start.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.mixture import sample_vmf, vmf_em
    >>> x = sample_vmf(np.random.default_rng(0), np.repeat(np.eye(3)[:2], 50, axis=0), 50.0)
    >>> found = vmf_em(x, n_components=2, concentration=50.0)
    >>> found.modes.shape, found.converged
    ((2, 3), True)
    """

    modes: Float[np.ndarray, "K D"]
    weights: Float[np.ndarray, " K"]
    responsibilities: Float[np.ndarray, "N K"]
    log_likelihood: float
    iterations: int
    converged: bool


def vmf_em(
    x: Float[np.ndarray, "N D"],
    weights: Float[np.ndarray, " N"] | None = None,
    *,
    n_components: int,
    concentration: float,
    restarts: int = 10,
    seed: int = 0,
    tolerance: float = 1e-9,
    max_iterations: int = 2000,
) -> EMResult:
    """Return the maximum-likelihood modes and weights of a vMF mixture at fixed τ.

    Parameters
    ----------
    x : (N, D)
        Unit vectors.
    weights : (N,), optional
        w ≥ 0: 0 is a row left out, 2 a row counted twice. All ones by default.
    n_components
        K.
    concentration
        τ > 0.
    restarts
        Random starts, of which the one with the highest likelihood is returned.
    seed
        Seed of the starts.
    tolerance
        A start has converged when a step gains less than this, in nats per unit of weight.
    max_iterations
        Most EM steps per start.

    Returns
    -------
    EMResult
        The best of the starts: ``modes`` (K, D), ``weights`` (K,) and more.

    Raises
    ------
    RowsError
        Rows or weights cannot be used, or fewer rows than clusters have a positive weight.
    ModelError
        τ is not positive and finite, or K or the number of restarts is below 1.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.mixture import sample_vmf, vmf_em
    >>> x = sample_vmf(np.random.default_rng(0), np.repeat(np.eye(3)[:2], 50, axis=0), 50.0)
    >>> found = vmf_em(x, n_components=2, concentration=50.0)
    >>> found.modes.shape, found.converged
    ((2, 3), True)
    """
    x, w = _check_rows(x, weights)
    tau = check_concentration(concentration)
    if n_components < 1 or restarts < 1:
        raise ModelError(
            f"n_components is {n_components} and restarts {restarts}; both are at least 1."
        )
    present = w > 0.0
    if int(present.sum()) < n_components:
        raise RowsError(
            f"{int(present.sum())} rows have a positive weight, fewer than the {n_components} "
            "clusters; ask for fewer clusters."
        )
    problem = _Problem(x[present], w[present], tau, log_normaliser(x.shape[1], tau))
    rng = np.random.default_rng(seed)
    fits = [
        _maximise(problem, _spread_modes(rng, problem, n_components), tolerance, max_iterations)
        for _ in range(restarts)
    ]
    best = max(fits, key=lambda fit: fit.log_likelihood)
    z, _ = _Problem(x, w, tau, problem.log_c).assign(best.modes, best.weights)
    return replace(best, responsibilities=z)


def independent_conditionals(
    rng: np.random.Generator,
    x: Float[np.ndarray, "N D"],
    responsibilities: Float[np.ndarray, "N K"],
    concentration: float,
    n: int,
    weights: Float[np.ndarray, " N"] | None = None,
) -> tuple[Float[np.ndarray, "n K D"], Float[np.ndarray, "n K"]]:
    """Return n draws of modes and weights from the product of conditionals of Eq. 7.6.

    μ_k ~ vMF(x̄_k/‖x̄_k‖, τ‖x̄_k‖) and ω ~ Dir(1 + z̄).

    Parameters
    ----------
    rng
        NumPy generator.
    x, weights, concentration
        As for `vmf_em`.
    responsibilities : (N, K)
        z ≥ 0, smoothed assignments, `EMResult.responsibilities` for example.
    n
        Number of draws.

    Returns
    -------
    tuple of ndarray
        Modes (n, K, D), unit vectors, and weights (n, K).

    Raises
    ------
    RowsError
        Rows or weights cannot be used, or the responsibilities do not fit the rows.
    ModelError
        τ is not positive and finite.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.mixture import independent_conditionals
    >>> rng = np.random.default_rng(0)
    >>> modes, weights = independent_conditionals(rng, np.eye(3), np.eye(3), 5.0, n=10)
    >>> modes.shape, weights.shape
    ((10, 3, 3), (10, 3))
    """
    x, w = _check_rows(x, weights)
    tau = check_concentration(concentration)
    z = np.asarray(responsibilities, dtype=np.float64)
    if z.ndim != 2 or len(z) != len(x) or not (np.isfinite(z).all() and (z >= 0.0).all()):
        raise RowsError(
            f"responsibilities has the shape {z.shape}; it must hold {len(x)} rows of numbers "
            "that are finite and not negative."
        )
    weighted = w[:, None] * z
    directions, lengths = directions_of(np, weighted.T @ x)
    shape = (n, *directions.shape)
    modes = sample_vmf(
        rng, np.broadcast_to(directions, shape), np.broadcast_to(tau * lengths, shape[:2])
    )
    return modes, rng.dirichlet(1.0 + weighted.sum(axis=0), size=n)


def directions_of(
    xp: ModuleType, sums: Float[Any, "K D"]
) -> tuple[Float[Any, "K D"], Float[Any, " K"]]:
    """Return directions and lengths; a sum of length 0, which has no direction, gets an axis."""
    lengths = xp.linalg.norm(sums, axis=1)
    empty = lengths == 0.0
    units = sums / xp.where(empty, 1.0, lengths)[:, None]
    return xp.where(empty[:, None], xp.eye(1, sums.shape[1]), units), lengths


@dataclass(frozen=True)
class Conditionals:
    """Independent posterior conditionals of a von Mises–Fisher mixture at the EM fit (Eq. 7.6).

    A weighting distribution for `Hilbert`.

    Attributes
    ----------
    restarts
        Starts of EM.

    Examples
    --------
    >>> import decoct, decoct.mixture
    >>> weighting = decoct.mixture.Conditionals(restarts=2)
    >>> isinstance(weighting, decoct.weighting.Weighting)
    True
    """

    restarts: int = 10

    def draw(self, key: jax.Array, potentials: Potentials, n: int) -> Float[np.ndarray, "n d"]:
        """Return n draws in flat unconstrained space, after one pass over the data."""
        model = potentials.model
        if not isinstance(model, VonMisesFisherMixture):
            raise ModelError(
                f"{type(model).__name__} has no independent conditionals; they are for "
                "VonMisesFisherMixture. Use weighting='laplace' or 'subsample'."
            )
        rng = host_rng(key)
        x = potentials.rows.take(np.arange(potentials.n_rows))["x"]
        potentials.counts.passes += 1
        K, tau = model.n_components, float(model.concentration)
        seed = int(rng.integers(2**31))
        fit = vmf_em(x, n_components=K, concentration=tau, restarts=self.restarts, seed=seed)
        modes, weights = independent_conditionals(rng, x, fit.responsibilities, tau, n)
        return model.to_unconstrained(modes, weights)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Rows of positive weight, and the density."""

    x: Float[np.ndarray, "n D"]
    w: Float[np.ndarray, " n"]
    tau: float
    log_c: float

    def assign(self, modes, weights) -> tuple[Float[np.ndarray, "n K"], Float[np.ndarray, " n"]]:
        """Return responsibilities, and the log density of every row."""
        with np.errstate(divide="ignore"):  # the logarithm of an empty cluster's weight is −inf
            joint = np.log(weights) + self.log_c + self.tau * (self.x @ modes.T)
        totals = np.asarray(logsumexp(joint, axis=1))
        return np.exp(joint - totals[:, None]), totals


def _maximise(
    problem: _Problem, modes: Float[np.ndarray, "K D"], tolerance: float, max_iterations: int
) -> EMResult:
    weights = np.full(len(modes), 1.0 / len(modes))
    z, totals = problem.assign(modes, weights)
    value, rise, steps = float(problem.w @ totals), np.inf, 0
    enough = tolerance * problem.w.sum()
    while rise >= enough and steps < max_iterations:
        weighted = problem.w[:, None] * z
        found, lengths = directions_of(np, weighted.T @ problem.x)
        # where the sum vanishes every direction is as good: the old one stays
        modes = np.where(lengths[:, None] > 0.0, found, modes)
        modes, weights = _reseed(problem, modes, weighted.sum(0) / problem.w.sum())
        z, totals = problem.assign(modes, weights)
        before, value = value, float(problem.w @ totals)
        rise, steps = value - before, steps + 1
    return EMResult(modes, weights, z, value, steps, bool(rise < enough))


def _reseed(
    problem: _Problem, modes: Float[np.ndarray, "K D"], weights: Float[np.ndarray, " K"]
) -> tuple[Float[np.ndarray, "K D"], Float[np.ndarray, " K"]]:
    """Move empty clusters to the worst explained rows, where that raises the likelihood."""
    for k in np.flatnonzero(weights * problem.w.sum() < EMPTY * problem.w.min()):
        _, totals = problem.assign(modes, weights)
        worst = int(np.argmin(totals))
        share = problem.w[worst] / problem.w.sum()
        moved, shared = modes.copy(), (1.0 - share) * weights
        moved[k], shared[k] = problem.x[worst], share
        shared /= shared.sum()
        if problem.w @ problem.assign(moved, shared)[1] > problem.w @ totals:
            modes, weights = moved, shared
    return modes, weights


def _spread_modes(rng: np.random.Generator, problem: _Problem, K: int) -> Float[np.ndarray, "K D"]:
    """Return K rows, each drawn with probability ∝ w_n (1 − largest cosine to those before).

    1 − cosine is half the squared distance, so this is the seeding of k-means++.
    """
    x, w = problem.x, problem.w
    chosen = [int(rng.choice(len(x), p=w / w.sum()))]
    distance = np.full(len(x), np.inf)
    for _ in range(K - 1):
        distance = np.minimum(distance, np.maximum(1.0 - x @ x[chosen[-1]], 0.0))
        distance[chosen] = 0.0
        mass = w * distance
        # only copies of the chosen rows are left: any other row will do
        mass = mass if mass.sum() > 0.0 else np.where(np.isin(np.arange(len(x)), chosen), 0.0, w)
        chosen.append(int(rng.choice(len(x), p=mass / mass.sum())))
    return x[chosen]


def _check_rows(
    x: Float[np.ndarray, "N D"], weights: Float[np.ndarray, " N"] | None
) -> tuple[Float[np.ndarray, "N D"], Float[np.ndarray, " N"]]:
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] < 2:
        raise RowsError(f"x has the shape {x.shape}; it must be (N, D) with D ≥ 2.")
    check_directions(x)
    w = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64)
    if w.shape != (len(x),):
        raise RowsError(f"weights has the shape {w.shape}; there are {len(x)} rows.")
    good = np.isfinite(w) & (w >= 0.0)
    if not good.all():
        bad = int(np.argmin(good))
        raise RowsError(f"weights[{bad}] is {w[bad]}; weights are finite and not negative.")
    return x, w
