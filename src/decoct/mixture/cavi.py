"""Weighted coordinate ascent for truncated Gaussian mixtures, and its exact evidence bound.

The model: z_n ~ π, x_n ~ N(μ_{z_n}, Λ_{z_n}⁻¹), Normal-Wishart priors (`normal_wishart`), π from
stick-breaking or a Dirichlet (`stick_breaking`). A row of weight γ_n counts γ_n times. With
q(π) Π_t q(μ_t, Λ_t) Π_n q(z_n) and r_nt = q(z_n = t) the bound on the log evidence is

    L(r, q) = Σ_n γ_n Σ_t r_nt (ℓ_nt − ln r_nt) − KL(q(π)‖p(π)) − Σ_t KL_t,                      (1)
    ℓ_nt = E ln π_t + E ln N(x_n; μ_t, Λ_t⁻¹),                                       (2), (N4), (S3)

in nats, with every constant. Each update is the maximiser of (1) in its block:

    r_nt = exp(ℓ_nt − e_n),   e_n = ln Σ_t exp ℓ_nt,                                             (3)
    N_t = Σ_n γ_n r_nt,   x̄_t = Σ_n γ_n r_nt x_n/N_t,
    S_t = Σ_n γ_n r_nt (x_n − x̄_t)(x_n − x̄_t)ᵀ,                                                (4)
    q(μ_t, Λ_t) by (N1, N2),   q(π) by (S1) or (S6).                                             (5)

An iteration is (3, 4) in one walk over the rows, then (5). As ℓ is linear in what (4) sums up, the
bound after it needs neither r nor a second walk: with ℓ before and ℓ' after (5),

    L = Σ_n γ_n e_n + Σ_nt γ_n r_nt (ℓ'_nt − ℓ_nt) − KL(q(π)‖p(π)) − Σ_t KL_t.                   (6)

Source: Borsos, Bachem & Krause (2017), Alg. 2; Blei & Jordan (2006). The printed Alg. 2 differs
from the maximiser of (1): there E ln|Λ_t| has the factor 1 for ½ and lacks D ln 2, and sticks
t = T are updated though v_T = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from decoct.errors import ModelError
from decoct.mixture.normal_wishart import (
    BROKEN_DOWN,
    Expected,
    NormalWishart,
    Statistics,
    divergence,
    expected,
    expected_log_likelihood,
    updated,
)
from decoct.mixture.stick_breaking import Shares, WeightPrior
from decoct.mixture.walks import LARGEST_FEATURES, LARGEST_REACH, Table, reach, walk


class Mixture(NamedTuple):
    """q(π) Π_t q(μ_t, Λ_t), or the prior's parameters.

    Attributes
    ----------
    shares : (2, T) or (1, T)
        Parameters of q(π).
    components
        Normal-Wishart parameters.
    """

    shares: Shares
    components: NormalWishart

    def moved(self, by: Float[np.ndarray, " D"]) -> Mixture:
        """Return the same mixture in coordinates x + by."""
        return Mixture(self.shares, _moved(self.components, by))


class Priors(NamedTuple):
    """The two priors.

    Attributes
    ----------
    weights
        `StickBreaking` or `FiniteDirichlet`.
    components
        Normal-Wishart parameters without the axis T.
    """

    weights: WeightPrior
    components: NormalWishart


class Fit(NamedTuple):
    """A fixed point, or where the iterations ended.

    Attributes
    ----------
    mixture
        In the user's coordinates.
    bounds
        (1) after every iteration, in nats.
    converged
        The last iteration raised the bound by less than the tolerance.
    """

    mixture: Mixture
    bounds: list[float]
    converged: bool


def started(priors: Priors, statistics: Statistics) -> Mixture:
    """Return q given N_t, x̄_t, S_t (5).

    Parameters
    ----------
    priors, statistics
        In the user's coordinates.

    Raises
    ------
    ModelError
        A component's scatter is not positive definite in float64.
    """
    return _updated(priors, statistics)


def grouped(
    x: Float[np.ndarray, "N D"],
    weights: Float[np.ndarray, " N"],
    responsibilities: Float[np.ndarray, "N T"],
) -> Statistics:
    """Return N_t, x̄_t, S_t of rows with given r (4), to start from."""
    counts = weights @ responsibilities
    safe = np.where(counts > 0.0, counts, 1.0)
    means = np.empty((len(counts), x.shape[1]))
    scatters = np.empty((len(counts), x.shape[1], x.shape[1]))
    for t in range(len(counts)):
        members = np.flatnonzero(responsibilities[:, t])
        w = weights[members] * responsibilities[members, t]
        means[t] = w @ x[members] / safe[t]
        away = x[members] - means[t]
        scatters[t] = (w[:, None] * away).T @ away
    return Statistics(counts, means, scatters)


def ascend(
    table: Table,
    priors: Priors,
    start: Mixture,
    *,
    tolerance: float = 1e-3,
    max_iterations: int = 100,
    bound: float = -np.inf,
    on_iteration: Callable[[int, float, float], None] = lambda *_: None,
) -> Fit:
    """Climb the evidence bound from ``start``.

    Parameters
    ----------
    table
        The rows.
    priors, start
        In the user's coordinates.
    tolerance
        Stop when an iteration raises the bound by less than this many nats.
    max_iterations
        Most iterations; 0 returns the start.
    bound
        The bound at the start, where it is known.
    on_iteration
        Told the number of the iteration, the bound and how much it rose.

    Raises
    ------
    ModelError
        The bound is not a number: a component's scatter is not positive definite in float64.
    """
    moved = Priors(priors.weights, _moved(priors.components, -table.centre))
    known = _known(moved.weights, start.moved(-table.centre))
    few = table.x.shape[1] <= LARGEST_FEATURES
    bounds: list[float] = []
    converged = False
    while len(bounds) < max_iterations and not converged:
        exact = not (few and known.reach <= LARGEST_REACH)
        step = _iteration(table, moved, known, exact)
        if not exact and not step.known.reach <= LARGEST_REACH:
            step = _iteration(table, moved, known, exact=True)
        known, rise, bound = step.known, step.bound - bound, step.bound
        if not np.isfinite(bound):
            raise ModelError(BROKEN_DOWN)
        bounds.append(bound)
        converged = abs(rise) < tolerance
        on_iteration(len(bounds), bound, rise)
    return Fit(known.mixture.moved(table.centre), bounds, converged)


def evidence_bound(table: Table, priors: Priors, mixture: Mixture) -> float:
    """Return (1) at q with the best r, Σ_n γ_n e_n − KL(q(π)‖p(π)) − Σ_t KL_t, in nats.

    Parameters
    ----------
    table
        The rows.
    priors, mixture
        In the user's coordinates; any q, of another fit for example.
    """
    components = _moved(priors.components, -table.centre)
    known = _known(priors.weights, mixture.moved(-table.centre))
    evidence, _ = walk(table, known.components, known.log_shares, exact=True)
    away = divergence(components, known.mixture.components, known.components).sum()
    return float(evidence - away - priors.weights.divergence(known.mixture.shares))


class _Known(NamedTuple):
    """q and what the next walk needs of it."""

    mixture: Mixture
    components: Expected
    log_shares: Float[np.ndarray, " T"]
    reach: float


class _Step(NamedTuple):
    known: _Known
    bound: float


def _iteration(table: Table, priors: Priors, before: _Known, exact: bool) -> _Step:
    """Take one step (3, 4, 5), and return the bound after it (6)."""
    evidence, statistics = walk(table, before.components, before.log_shares, exact)
    now = _known(priors.weights, _updated(priors, statistics))
    gained = expected_log_likelihood(now.components, statistics) - expected_log_likelihood(
        before.components, statistics
    )
    shared = statistics.counts * (now.log_shares - before.log_shares)
    away = divergence(priors.components, now.mixture.components, now.components).sum()
    away += priors.weights.divergence(now.mixture.shares)
    return _Step(now, float(evidence + (gained + shared).sum() - away))


def _known(prior: WeightPrior, mixture: Mixture) -> _Known:
    components = expected(mixture.components)
    largest = reach(mixture.components, components)
    return _Known(mixture, components, prior.expected_log(mixture.shares), largest)


def _updated(priors: Priors, statistics: Statistics) -> Mixture:
    shares = priors.weights.updated(statistics.counts)
    return Mixture(shares, updated(priors.components, statistics))


def _moved(components: NormalWishart, by: Float[np.ndarray, " D"]) -> NormalWishart:
    return components._replace(mean=components.mean + by)
