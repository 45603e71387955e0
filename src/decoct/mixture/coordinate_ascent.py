"""The compiled iterations of weighted coordinate ascent; what they compute is in `cavi`.

Several iterations are one call, as a pass over few rows takes less time than a call. A call ends
early where the bound stands still, where an iteration leads beyond what features can do (7), and
where the bound falls: an exact step cannot lower it, so then the numbers have too few digits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from decoct.mixture.e_step import Table, compute_reach, sum_rows
from decoct.mixture.empty_components import LEAST_WORK, occupied, sum_rows_of_occupied
from decoct.mixture.normal_wishart import (
    Expected,
    NormalWishart,
    Statistics,
    compute_expected,
    divergence,
    expected_log_likelihood,
    log_evidence,
    update_components,
)
from decoct.mixture.stick_breaking import Shares, WeightPrior

BLOCK, BLOCK_WORK = 128, 2**30
"""Most iterations and multiplications of a compiled call (at least one iteration): a pass
over few rows takes less time than a call, and one over many rows must stop on Ctrl-C."""

ROUNDING = 1e-9
"""Part of the terms of (6) by which the computed bound may be off."""

LOG_GAMMA = 1e-15
"""Part of ln Γ by which it may be off."""

GOES_ON, CONVERGED, ESCAPED, FELL = 0, 1, 2, 3
"""How a call ended: by the number of iterations, by the tolerance, as features cannot do the next
iteration, or as the bound would be lower after it by more than the tolerance and rounding."""


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
        components = self.components
        return Mixture(self.shares, components._replace(mean=components.mean + by[None, :]))


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


class Known(NamedTuple):
    """q and what the next pass needs of it."""

    mixture: Mixture
    components: Expected
    log_shares: Float[Array, " T"]
    reach: Float[Array, ""]


class Limits(NamedTuple):
    """What ends a call.

    Attributes
    ----------
    most
        Iterations.
    tolerance
        A rise of the bound below this, in nats.
    reach
        κ (7) above which features are not exact enough.
    comparable
        The bound before the first iteration is of the same rows and priors, so may not fall.
    """

    most: Int[Array, ""] | int
    tolerance: Float[Array, ""] | float
    reach: Float[Array, ""] | float
    comparable: Bool[Array, ""] | bool


class Iterations(NamedTuple):
    """The result of a call.

    Attributes
    ----------
    known
        The last q.
    bounds : (BLOCK,)
        The bound after each of ``done`` iterations, then that after the ``excess``.
    done
        Iterations taken.
    end
        How it ended.
    excess
        One iteration more was made, which is not to be taken; ``known`` is after it.
    """

    known: Known
    bounds: Float[Array, " B"]
    done: Int[Array, ""]
    end: Int[Array, ""]
    excess: Bool[Array, ""]


@eqx.filter_jit
def iterate(
    table: Table,
    priors: Priors,
    known: Known,
    bound: Float[Array, ""],
    limits: Limits,
    exact: bool,
    places: Int[Any, " L"] | None = None,
) -> Iterations:
    """Take iterations by features or by factors, until the other is needed.

    Parameters
    ----------
    table
        The rows.
    priors, known
        In the table's coordinates.
    bound
        The bound at ``known``.
    limits
        What ends the call.
    exact
        By factors rather than features.
    places
        From `find_occupied`, in a call of one iteration; None to evaluate all components.
    """

    def goes_on(at: Iterations) -> Bool[Array, ""]:
        fine = jnp.isfinite(at.bounds[at.done - 1])
        if exact:
            fine &= ~(at.known.reach <= limits.reach)
        return (at.done < limits.most) & (at.end == GOES_ON) & ((at.done == 0) | fine)

    def step(at: Iterations) -> Iterations:
        now, height, terms = _iterate_once(table, priors, at.known, exact, places)
        rise = height - jnp.where(at.done == 0, bound, at.bounds[at.done - 1])
        fell = (rise < -ROUNDING * terms) & (limits.comparable | (at.done > 0))
        end = jnp.where(fell, FELL, GOES_ON)
        end = jnp.where(jnp.abs(rise) < limits.tolerance, CONVERGED, end)
        if not exact:
            # where the bound falls, factors may know better
            fell |= ~(now.reach <= limits.reach)
            end = jnp.where(fell, ESCAPED, end)
        done = at.done + jnp.where(fell, 0, 1)
        return Iterations(now, at.bounds.at[at.done].set(height), done, end, fell)

    none = jnp.asarray(0), jnp.asarray(GOES_ON), jnp.asarray(False)
    start = Iterations(known, jnp.full(BLOCK, -jnp.inf), *none)
    return jax.lax.while_loop(goes_on, step, start)


@eqx.filter_jit
def compute_bound(table: Table, priors: Priors, known: Known) -> Float[Array, ""]:
    """Return the bound (1) at q with the best r."""
    evidence, _ = sum_rows(table, known.components, known.log_shares, exact=True)
    away = divergence(priors.components, known.mixture.components, known.components).sum()
    return evidence - away - priors.weights.divergence(known.mixture.shares)


@eqx.filter_jit
def prepare(
    centre: Float[np.ndarray, " D"], priors: Priors, mixture: Mixture
) -> tuple[Priors, Known]:
    """Return both in coordinates x − centre."""
    components = priors.components
    components = components._replace(mean=components.mean - centre)
    return Priors(priors.weights, components), _make_known(priors.weights, mixture.moved(-centre))


@eqx.filter_jit
def update_mixture(priors: Priors, statistics: Statistics) -> Mixture:
    """Return q given N_t, x̄_t, S_t (5)."""
    shares = priors.weights.update(statistics.counts)
    return Mixture(shares, update_components(priors.components, statistics))


def choose_block(table: Table, known: Known) -> int:
    """Return how many iterations a call takes."""
    return int(np.clip(BLOCK_WORK // count_work(table, known), 1, BLOCK))


def count_work(table: Table, known: Known) -> int:
    """Return the multiplications of an E-step."""
    T, D = known.components.mean.shape
    return 2 * T * int(table.used) * table.x.shape[2] * (D * (D + 3) // 2 + 1)


def find_occupied(table: Table, known: Known) -> Int[np.ndarray, " L"] | None:
    """Return the ``places`` of `iterate` for a call of one iteration."""
    if count_work(table, known) < LEAST_WORK:
        return None
    return occupied(known.mixture.components)


def to_arrays(tree: Any) -> Any:
    """Return numbers as arrays, which compiled functions take as arguments."""
    return jax.tree.map(np.asarray, tree)


def _iterate_once(
    table: Table, priors: Priors, before: Known, exact: bool, places: Int[Any, " L"] | None
) -> tuple[Known, Float[Array, ""], Float[Array, ""]]:
    """Take one step (3, 4, 5), and return the bound after it (6), and the sum of its |terms|."""
    if places is None:
        evidence, statistics = sum_rows(table, before.components, before.log_shares, exact)
    else:
        q = before.components, before.log_shares
        evidence, statistics = sum_rows_of_occupied(table, *q, places, exact)
    now = _make_known(priors.weights, update_mixture(priors, statistics))
    spent = expected_log_likelihood(before.components, statistics)
    spent += statistics.counts * before.log_shares
    gained = log_evidence(priors.components, now.mixture.components)
    of_weights = priors.weights.log_evidence(now.mixture.shares)
    shares = now.mixture.shares
    terms = jnp.abs(evidence) + (jnp.abs(spent) + jnp.abs(gained)).sum()
    # ln Γ(a) is about a ln a, and differences of such are left
    terms += LOG_GAMMA / ROUNDING * (shares * jnp.log1p(shares)).sum()
    return now, evidence + (gained - spent).sum() + of_weights, terms


def _make_known(prior: WeightPrior, mixture: Mixture) -> Known:
    components = compute_expected(mixture.components)
    largest = compute_reach(mixture.components, components)
    return Known(mixture, components, prior.expected_log(mixture.shares), largest)
