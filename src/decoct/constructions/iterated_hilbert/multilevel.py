"""Expansions for multilevel models, whose site lives in likelihood parameters φ(θ).

The posterior of θ has funnels and no useful mode, but that of φ is near a Gaussian N(m, C). The
search alternates between

    all rows: Σ q_n expanded over N(m, C),     and     draws of π₀(θ) exp(Σ q_n(φ(θ))): m, C of φ,

where the second needs no row, and ends when the quadratic no longer changes at the draws. It begins
at the mode of π with the parameters that φ does not depend on, such as scales, at their start.
Where a round changes more than the one before, the next ones go half their way: with few events a
group, full steps may alternate between two Gaussians.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.sparse import csr_array

from decoct.constructions.base import Problem, Selection, no_weight
from decoct.constructions.iterated_hilbert.expansion import (
    ExpandedTable,
    directions_of,
    expand_at,
    site_alone,
)
from decoct.errors import ModelError
from decoct.passes.expansions import Expansion, to_second_order
from decoct.passes.potentials import Curvature
from decoct.runtime.precision import compile_quickly, float64
from decoct.runtime.randomness import host_rng
from decoct.samplers.arrow import factor_of
from decoct.samplers.base import WeightedDensity
from decoct.samplers.centring import Centring, Placed
from decoct.samplers.laplace import maximise
from decoct.samplers.units import from_parameters
from decoct.stats.divergences import Gaussian

ROUNDS, DRAWS_A_ROUND = 4, 400
"""Most rounds, and draws of each: moments of so many are as good as exact ones to smooth over."""

SETTLED, SETTLED_A_PARAMETER = 1e-3, 1e-5
"""½Var in nats, over the draws, of what a round changes, or nats a parameter, below which it was
the last."""

HALF = 0.5
"""Part of its way that a round goes after one that changed more than the one before."""

ZERO_SLOPE = 1e-9
"""Derivative of φ, relative to the largest, that counts as 0."""

MODE_EVALUATIONS, MODE_DECREMENT = 30, 0.1
"""Most evaluations of the first search, and where it ends: twice the nats to the maximum."""


def expand_by_draws(
    problem: Problem, seen: Selection | None, key: jax.Array, sampled_rows: int
) -> ExpandedTable:
    """Return the expansion of all rows over the Gaussian with the moments of the posterior of φ.

    Parameters and errors are those of `expand_table`.
    """
    potentials, d = problem.potentials, problem.likelihood_dim
    z, gaussian = _find_start(problem)
    directions = directions_of(potentials, host_rng(key))
    at = Expansion.over(gaussian.mean, np.linalg.cholesky(gaussian.cov), directions)
    found = expand_at(problem, at, seen, key, sampled_rows, z[None])
    near, step, changed = None, 1.0, np.inf
    for number in range(ROUNDS):
        round_key = jax.random.fold_in(key, number + 1)
        drawn = problem.draw(round_key, site_alone(problem, found), DRAWS_A_ROUND, z, near=near)
        draws = near = drawn.flat
        phi = potentials.to_likelihood(draws)
        moments = phi.mean(axis=0), np.atleast_2d(np.cov(phi, rowvar=False))
        centre, covariance = (
            (1.0 - step) * np.asarray(old) + step * new
            for old, new in zip((at.centre, at.covariance), moments, strict=True)
        )
        at = Expansion(centre, covariance, at.offsets)
        before, changed_before = found, changed
        found = expand_at(problem, at, seen, round_key, sampled_rows, draws)
        changed = 0.5 * float(np.var(found.quadratic(phi) - before.quadratic(phi)))
        if changed > changed_before:
            step = HALF
        if changed <= max(SETTLED, SETTLED_A_PARAMETER * d):
            break
    return found


@float64
def _find_start(problem: Problem) -> tuple[np.ndarray, Gaussian]:
    """Return θ at the mode of π with the other parameters fixed, and the Gaussian of φ there."""
    potentials = problem.potentials
    model, space = potentials.model, potentials.space
    start = space.flatten(potentials.initial)
    centring = Centring.of(model, space, start)
    prior, selection = problem.density(no_weight(potentials, 0)), centring.selection
    y = np.array(from_parameters(centring, jnp.asarray(start)[None], None)[0])
    if selection is not None:
        y[selection] = potentials.to_likelihood(start[None])[0]
    if not np.isfinite(_place(centring, jnp.asarray(y)).phi).all():
        raise ModelError(
            "The likelihood parameters are not finite at the model's init; start where "
            "likelihood_params gives finite numbers."
        )
    free = np.unique(_slopes_at(centring, y).nonzero()[1])

    def evaluate(values: np.ndarray) -> Curvature:
        y[free] = values
        at = Expansion.taylor(np.asarray(_place(centring, jnp.asarray(y)).phi))
        outer = potentials.expand(at, strict=False)
        parts = _prior_and_tilt(prior, centring, outer.gradient, jnp.asarray(y))
        value, gradient, hessian = (np.array(part) for part in parts)
        slopes = _slopes_at(centring, y)
        hessian += slopes.T @ (outer.hessian @ slopes)
        return Curvature(float(value + outer.value), gradient[free], hessian[np.ix_(free, free)])

    # from the start of the model: the mode of a subsample is far from it in groups of few rows
    found = maximise(evaluate, y[free], MODE_EVALUATIONS, MODE_DECREMENT)
    y[free] = found.z
    placed = _place(centring, jnp.asarray(y))
    spread = _slopes_at(centring, y)[:, free] @ factor_of(-found.curvature.hessian)
    covariance = spread @ spread.T
    floor = 1e-12 * np.diag(np.diag(covariance) + 1.0)
    return np.asarray(placed.z), Gaussian(np.asarray(placed.phi), covariance + floor)


def _slopes_at(centring: Centring, y: Float[np.ndarray, " D"]) -> Any:
    """Return the derivatives of φ in y, most of them 0."""
    if centring.selection is None:
        # φ is computed from y by way of θ, so that slopes of 0 are rounding
        slopes = np.asarray(_slopes(centring, jnp.asarray(y)))
        size = np.abs(slopes)
        return csr_array(np.where(size > ZERO_SLOPE * size.max(), slopes, 0.0))
    places = np.arange(len(centring.selection)), centring.selection
    return csr_array((np.ones(len(places[0])), places), (len(places[0]), len(y)))


def _placed(centring: Centring, y: Float[Array, " D"]) -> Placed:
    """Return θ and φ at y: x with all effects centred, and φ in place of φ in its own units.

    The log-likelihood of a linear model is concave in y, and not in x.
    """
    selection = centring.selection
    if selection is None:
        return centring.to_parameters(y, None)
    phi = y[selection]
    x = y.at[selection].set(centring.undo(phi))
    return centring.to_parameters(x, None)._replace(phi=phi)


_place = compile_quickly(_placed)


@compile_quickly
def _slopes(centring: Centring, y: Float[Array, " D"]) -> Float[Array, "d D"]:
    return jax.jacfwd(lambda y: _placed(centring, y).phi)(y)


@compile_quickly
def _prior_and_tilt(
    prior: WeightedDensity, centring: Centring, tilt: Float[Any, " d"], y: Float[Array, " D"]
) -> tuple[Float[Array, ""], Float[Array, " D"], Float[Array, "D D"]]:
    """Return value, gradient and Hessian in y of the log prior and a linear term in φ − φ(y)."""
    centre = _placed(centring, y).phi

    def total(y):
        z, volume, phi = _placed(centring, y)
        return prior.log_density(z) + volume + (phi - centre) @ tilt

    return to_second_order(total, y)
