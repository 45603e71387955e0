"""Weighted coordinate ascent for truncated Gaussian mixtures, and its exact evidence bound.

The model: z_n ~ π, x_n ~ N(μ_{z_n}, Λ_{z_n}⁻¹), Normal-Wishart priors (`normal_wishart`), π from
stick-breaking or a Dirichlet (`stick_breaking`). A row of weight γ_n counts γ_n times. With
q(π) Π_t q(μ_t, Λ_t) Π_n q(z_n), r_nt = q(z_n = t) and KL_t = KL(q(μ_t, Λ_t)‖p(μ_t, Λ_t)) the bound
on the log evidence is

    L(r, q) = Σ_n γ_n Σ_t r_nt (ℓ_nt − ln r_nt) − KL(q(π)‖p(π)) − Σ_t KL_t,                      (1)
    ℓ_nt = E ln π_t + E ln N(x_n; μ_t, Λ_t⁻¹),                                       (2), (N4), (S3)

in nats, with every constant. Each update is the maximiser of (1) in its block:

    r_nt = exp(ℓ_nt − e_n),   e_n = ln Σ_t exp ℓ_nt,                                             (3)
    N_t = Σ_n γ_n r_nt,   x̄_t = Σ_n γ_n r_nt x_n/N_t,
    S_t = Σ_n γ_n r_nt (x_n − x̄_t)(x_n − x̄_t)ᵀ,                                                (4)
    q(μ_t, Λ_t) by (N1, N2),   q(π) by (S1) or (S6).                                             (5)

An iteration is (3, 4) in one pass over the rows (`e_step`), then (5). As ℓ is linear in what (4)
sums up, and (5) is conjugate, the bound after it needs neither r nor a second pass: with ℓ from
before (5),

    L = Σ_n γ_n e_n − Σ_nt γ_n r_nt ℓ_nt + (ln Z of q(π)) + Σ_t (ln Z of q(μ_t, Λ_t)),          (6)

where ln Z is that of posterior over prior: (N6), and Σ_t N_t E ln π_t − KL(q(π)‖p(π)).

Several iterations are one compiled call, as a pass over few rows takes less time than a call. A
call ends early where the bound stands still, where features are no longer exact enough (7), and
where the bound falls: an exact step cannot lower it, so then the numbers have too few digits.

Source: Borsos, Bachem & Krause (2017), Alg. 2; Blei & Jordan (2006). The printed Alg. 2 differs
from the maximiser of (1): there E ln|Λ_t| has the factor 1 for ½ and lacks D ln 2, and sticks
t = T are updated though v_T = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from decoct.errors import ModelError
from decoct.mixture.e_step import (
    LARGEST_FEATURES,
    LARGEST_REACH,
    Table,
    compute_reach,
    find_occupied,
    sum_rows,
    sum_rows_of_occupied,
)
from decoct.mixture.normal_wishart import (
    Expected,
    NormalWishart,
    Statistics,
    compute_expected,
    expected_log_likelihood,
    log_evidence,
    update_components,
)
from decoct.mixture.stick_breaking import Shares, WeightPrior
from decoct.runtime.precision import float64

ITERATIONS_A_CALL, WORK_A_CALL = 128, 2**30
"""Most iterations and multiplications of a compiled call (at least one iteration); a call over
many rows must stop on Ctrl-C."""

LEAST_WORK = 2**32
"""Multiplications of an E-step from which on a program for fewer components pays for itself."""

ROUNDING = 1e-9
"""Part of the terms of (6) by which the computed bound may be off."""

LOG_GAMMA = 1e-15
"""Part of ln Γ by which it may be off."""

GOES_ON, CONVERGED, ESCAPED, FELL = 0, 1, 2, 3
"""Why a call ended: the number of iterations, the tolerance, features too inexact for the next
iteration, or a bound that would fall by more than the tolerance and rounding."""

BROKEN_DOWN = (
    "Fitting the mixture model failed because some components have ill-defined empirical "
    "covariance (for instance caused by singleton or collapsed samples). Try to decrease the "
    "number of components, increase covariance_prior, or scale the input data."
)
"""scikit-learn's sentence, with our parameter."""


class Mixture(NamedTuple):
    """q(π) Π_t q(μ_t, Λ_t)."""

    shares: Shares  # (2, T) or (1, T)
    components: NormalWishart

    def moved(self, by: Float[np.ndarray, " D"]) -> Mixture:
        """Return the same mixture in coordinates x + by."""
        mean = self.components.mean + by[None, :]
        return Mixture(self.shares, self.components._replace(mean=mean))


class Priors(NamedTuple):
    """The two priors; the components' has no axis T."""

    weights: WeightPrior
    components: NormalWishart


class Fit(NamedTuple):
    """A fixed point, or where the iterations ended."""

    mixture: Mixture  # in the user's coordinates
    bounds: list[float]  # (1) after every iteration, in nats
    converged: bool  # the last iteration raised the bound by less than the tolerance
    fall: float = 0.0  # nats, beyond rounding, in a rejected iteration that ended the fit


class _Known(NamedTuple):
    """q and what the next pass needs of it."""

    mixture: Mixture
    components: Expected
    log_shares: Float[Array, " T"]
    reach: Float[Array, ""]


class _Limits(NamedTuple):
    """What ends a call."""

    most: Int[Array, ""] | int  # iterations
    tolerance: Float[Array, ""] | float  # a rise of the bound below this, in nats
    reach: Float[Array, ""] | float  # κ (7) above which features are not exact enough
    comparable: Bool[Array, ""] | bool  # the bound before is of the same rows: it may not fall


class _Iterations(NamedTuple):
    """The result of a call: of ``done`` iterations, and perhaps one more, not to be taken."""

    known: _Known  # after all of them, ``excess`` included
    bounds: Float[Array, " B"]  # after each, in the first places of `ITERATIONS_A_CALL`
    done: Int[Array, ""]
    end: Int[Array, ""]
    excess: Bool[Array, ""]


@float64
def start_mixture(priors: Priors, statistics: Statistics) -> Mixture:
    """Return q given N_t, x̄_t, S_t (5), all in the user's coordinates.

    Refuses a scatter that is not positive definite in float64.
    """
    mixture = jax.device_get(_update_mixture(*_to_arrays((priors, statistics))))
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
    """Raise the evidence bound from ``start``, which is in the user's coordinates like the priors.

    Iterations end when one raises the bound by less than ``tolerance`` nats; one after which it is
    lower by more than rounding is not taken, as float64 cannot hold a covariance that is needed.
    ``bound`` is the one at the start, perhaps of other rows, where it is known. ``on_iteration``
    gets the number of each iteration, the bound and its rise. A bound that is not a number, of a
    scatter that is not positive definite in float64, is an error.
    """
    moved, known = _prepare(table.centre, *_to_arrays((priors, start)))
    reach = LARGEST_REACH if table.x.shape[1] <= LARGEST_FEATURES else -np.inf
    T, D = known.components.mean.shape
    work = 2 * T * int(table.used) * table.x.shape[2] * (D * (D + 3) // 2 + 1)
    block = 1 if on_iteration else int(np.clip(WORK_A_CALL // work, 1, ITERATIONS_A_CALL))
    bounds: list[float] = []

    def run(most: int) -> _Iterations:
        limits = _to_arrays(_Limits(most, float(tolerance), reach, bool(bounds)))
        fewer = most == 1 and work >= LEAST_WORK
        places = find_occupied(known.mixture.components) if fewer else None
        return _iterate(table, moved, known, _to_arrays(float(bound)), limits, exact, places)

    end, fall, exact = GOES_ON, 0.0, not known.reach <= reach
    while len(bounds) < max_iterations and end not in (CONVERGED, FELL):
        found = run(min(block, max_iterations - len(bounds)))
        done, end, block_bounds = int(found.done), int(found.end), np.asarray(found.bounds).tolist()
        if end == FELL:
            fall = (block_bounds[done - 1] if done else bound) - block_bounds[done]
        if done and found.excess:
            found = run(done)  # the same again without it
        if done:
            known = found.known
        for new_bound in block_bounds[:done]:
            if not np.isfinite(new_bound):
                raise ModelError(BROKEN_DOWN)
            rise, bound = new_bound - bound, new_bound
            bounds.append(new_bound)
            if on_iteration:
                on_iteration(len(bounds), new_bound, rise)
        exact = end == ESCAPED or not known.reach <= reach
    mixture = jax.device_get(known.mixture).moved(table.centre)
    return Fit(mixture, bounds, end == CONVERGED, fall)


@eqx.filter_jit
def _prepare(
    centre: Float[np.ndarray, " D"], priors: Priors, mixture: Mixture
) -> tuple[Priors, _Known]:
    """Return both in coordinates x − centre."""
    components = priors.components
    components = components._replace(mean=components.mean - centre)
    return Priors(priors.weights, components), _make_known(priors.weights, mixture.moved(-centre))


@eqx.filter_jit
def _update_mixture(priors: Priors, statistics: Statistics) -> Mixture:
    """Return q given N_t, x̄_t, S_t (5)."""
    shares = priors.weights.update(statistics.counts)
    return Mixture(shares, update_components(priors.components, statistics))


@eqx.filter_jit
def _iterate(
    table: Table,
    priors: Priors,
    known: _Known,
    bound: Float[Array, ""],
    limits: _Limits,
    exact: bool,
    places: Int[Any, " L"] | None = None,
) -> _Iterations:
    """Take iterations by features, or by factors if ``exact``, until the other is needed.

    All is in the table's coordinates; ``bound`` is the one at ``known``. In a call of one iteration
    ``places`` may be those of `find_occupied`.
    """

    def goes_on(at: _Iterations) -> Bool[Array, ""]:
        fine = jnp.isfinite(at.bounds[at.done - 1])
        if exact:
            fine &= ~(at.known.reach <= limits.reach)
        return (at.done < limits.most) & (at.end == GOES_ON) & ((at.done == 0) | fine)

    def step(at: _Iterations) -> _Iterations:
        now, new_bound, terms = _iterate_once(table, priors, at.known, exact, places)
        rise = new_bound - jnp.where(at.done == 0, bound, at.bounds[at.done - 1])
        fell = (rise < -ROUNDING * terms) & (limits.comparable | (at.done > 0))
        end = jnp.where(fell, FELL, GOES_ON)
        end = jnp.where(jnp.abs(rise) < limits.tolerance, CONVERGED, end)
        if not exact:
            # where the bound falls, factors may be more exact
            fell |= ~(now.reach <= limits.reach)
            end = jnp.where(fell, ESCAPED, end)
        done = at.done + jnp.where(fell, 0, 1)
        return _Iterations(now, at.bounds.at[at.done].set(new_bound), done, end, fell)

    none = jnp.asarray(0), jnp.asarray(GOES_ON), jnp.asarray(False)
    start = _Iterations(known, jnp.full(ITERATIONS_A_CALL, -jnp.inf), *none)
    return jax.lax.while_loop(goes_on, step, start)


def _iterate_once(
    table: Table, priors: Priors, before: _Known, exact: bool, places: Int[Any, " L"] | None
) -> tuple[_Known, Float[Array, ""], Float[Array, ""]]:
    """Take one step (3, 4, 5), and return the bound after it (6), and the sum of its |terms|."""
    q = before.components, before.log_shares
    if places is None:
        evidence, statistics = sum_rows(table, *q, exact)
    else:
        evidence, statistics = sum_rows_of_occupied(table, *q, places, exact)
    now = _make_known(priors.weights, _update_mixture(priors, statistics))
    spent = expected_log_likelihood(before.components, statistics)
    spent += statistics.counts * before.log_shares
    gained = log_evidence(priors.components, now.mixture.components)
    of_weights = priors.weights.log_evidence(now.mixture.shares)
    shares = now.mixture.shares
    terms = jnp.abs(evidence) + (jnp.abs(spent) + jnp.abs(gained)).sum()
    # ln Γ(a) is about a ln a, and differences of such are left
    terms += LOG_GAMMA / ROUNDING * (shares * jnp.log1p(shares)).sum()
    return now, evidence + (gained - spent).sum() + of_weights, terms


def _make_known(prior: WeightPrior, mixture: Mixture) -> _Known:
    components = compute_expected(mixture.components)
    largest = compute_reach(mixture.components, components)
    return _Known(mixture, components, prior.expected_log(mixture.shares), largest)


def _to_arrays(tree: Any) -> Any:
    """Return numbers as arrays, which compiled functions take as arguments."""
    return jax.tree.map(np.asarray, tree)
