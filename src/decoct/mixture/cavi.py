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

An iteration is (3, 4) in one pass over the rows, then (5). As ℓ is linear in what (4) sums up, and
(5) is conjugate, the bound after it needs neither r nor a second pass: with ℓ from before (5),

    L = Σ_n γ_n e_n − Σ_nt γ_n r_nt ℓ_nt + (ln Z of q(π)) + Σ_t (ln Z of q(μ_t, Λ_t)),          (6)

where ln Z is that of posterior over prior: (N8), and Σ_t N_t E ln π_t − KL(q(π)‖p(π)).

`coordinate_ascent` has the compiled iterations.

Source: Borsos, Bachem & Krause (2017), Alg. 2; Blei & Jordan (2006). The printed Alg. 2 differs
from the maximiser of (1): there E ln|Λ_t| has the factor 1 for ½ and lacks D ln 2, and sticks
t = T are updated though v_T = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from decoct.errors import ModelError
from decoct.mixture import coordinate_ascent as ascent
from decoct.mixture.coordinate_ascent import (
    Iterations,
    Limits,
    Mixture,
    Priors,
    prepare,
    to_arrays,
    update_mixture,
)
from decoct.mixture.e_step import LARGEST_FEATURES, LARGEST_REACH, Table
from decoct.mixture.normal_wishart import Statistics
from decoct.runtime.precision import float64

BROKEN_DOWN = (
    "Fitting the mixture model failed because some components have ill-defined empirical "
    "covariance (for instance caused by singleton or collapsed samples). Try to decrease the "
    "number of components, increase covariance_prior, or scale the input data."
)
"""scikit-learn's sentence, with our parameter."""


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
    fall
        How far the bound fell, beyond rounding, in an iteration that was not taken and ended the
        fit, in nats; 0 otherwise.
    """

    mixture: Mixture
    bounds: list[float]
    converged: bool
    fall: float = 0.0


@float64
def start_mixture(priors: Priors, statistics: Statistics) -> Mixture:
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
    mixture = jax.device_get(update_mixture(*to_arrays((priors, statistics))))
    if not np.isfinite(mixture.components.chol).all():
        raise ModelError(BROKEN_DOWN)
    return mixture


def group_rows(
    x: Float[np.ndarray, "N D"],
    weights: Float[np.ndarray, " N"],
    responsibilities: Float[np.ndarray, "N T"],
) -> Statistics:
    """Return N_t, x̄_t, S_t of rows with given r (4), to start from."""
    shares = np.ascontiguousarray(responsibilities.T) * weights
    columns = np.ascontiguousarray(x.T)
    counts = shares.sum(axis=1)
    means = shares @ x / np.where(counts > 0.0, counts, 1.0)[:, None]
    scatters = np.empty((len(counts), len(columns), len(columns)))
    for t, share in enumerate(shares):
        members = np.flatnonzero(share)
        own = slice(None) if 2 * len(members) > len(x) else members
        away = columns[:, own] - means[t][:, None]
        scatters[t] = (share[own] * away) @ away.T
    return Statistics(counts, means, scatters)


@float64
def ascend(
    table: Table,
    priors: Priors,
    start: Mixture,
    *,
    tolerance: float = 1e-3,
    max_iterations: int = 100,
    bound: float = -np.inf,
    on_iteration: Callable[[int, float, float], None] | None = None,
) -> Fit:
    """Raise the evidence bound from ``start``.

    An iteration after which the computed bound is lower by more than rounding is not taken, and
    ends the fit: float64 cannot hold a covariance that is needed.

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
        The bound at the start, perhaps of other rows, where it is known.
    on_iteration
        Called after each iteration with its number, the bound and how much it rose.

    Raises
    ------
    ModelError
        The bound is not a number: a component's scatter is not positive definite in float64.
    """
    moved, known = prepare(table.centre, *to_arrays((priors, start)))
    reach = LARGEST_REACH if table.x.shape[1] <= LARGEST_FEATURES else -np.inf
    bounds: list[float] = []

    def run(most: int) -> Iterations:
        limits = to_arrays(Limits(most, float(tolerance), reach, bool(bounds)))
        places = ascent.find_occupied(table, known) if most == 1 else None
        return ascent.iterate(table, moved, known, to_arrays(float(bound)), limits, exact, places)

    block = 1 if on_iteration else ascent.choose_block(table, known)
    end, fall, exact = ascent.GOES_ON, 0.0, not known.reach <= reach
    while len(bounds) < max_iterations and end not in (ascent.CONVERGED, ascent.FELL):
        found = run(min(block, max_iterations - len(bounds)))
        done, end, heights = int(found.done), int(found.end), np.asarray(found.bounds).tolist()
        if end == ascent.FELL:
            fall = (heights[done - 1] if done else bound) - heights[done]
        if done and found.excess:
            # the same again without it
            found = run(done)
        if done:
            known = found.known
        for height in heights[:done]:
            if not np.isfinite(height):
                raise ModelError(BROKEN_DOWN)
            rise, bound = height - bound, height
            bounds.append(height)
            if on_iteration:
                on_iteration(len(bounds), height, rise)
        exact = end == ascent.ESCAPED or not known.reach <= reach
    mixture = jax.device_get(known.mixture).moved(table.centre)
    return Fit(mixture, bounds, end == ascent.CONVERGED, fall)


@float64
def evidence_bound(table: Table, priors: Priors, mixture: Mixture) -> float:
    """Return (1) at q with the best r, Σ_n γ_n e_n − KL(q(π)‖p(π)) − Σ_t KL_t, in nats.

    Parameters
    ----------
    table
        The rows.
    priors, mixture
        In the user's coordinates; any q, of another fit for example.
    """
    moved, known = prepare(table.centre, *to_arrays((priors, mixture)))
    return float(ascent.compute_bound(table, moved, known))
