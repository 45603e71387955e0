"""The expansion that a site carries: Gaussian variational inference on all rows.

With E over N(μ, C) and q_n the smoothed second-order expansion of f_n (`passes.expansions`), the
fixed point of

    Λ = −Σ E∇²f_n − ∇²log π₀(μ),    μ ← μ + Λ⁻¹ (Σ E∇f_n + ∇log π₀(μ)),    C ← Λ⁻¹

maximises the evidence lower bound Σ E f_n + E log π₀ + ½ log det C (Opper & Archambeau 2009, Eq. 8;
the prior enters by its second-order expansion). A step that lowers the bound is halved.

On large tables the search runs on a uniform subsample U, first alone, then with control variates:
with q⁰ = Σ q⁰_n an expansion of all rows, Σ f_n ≈ q⁰ + (N/|U|) Σ_U (f_n − q⁰_n).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from decoct.constructions.base import Problem, Selection
from decoct.models.site import GaussianSite
from decoct.passes.expansions import Expansion, antithetic
from decoct.passes.potentials import Curvature
from decoct.samplers.base import log_densities
from decoct.samplers.laplace import find_mode, gaussian_at, prior_curvature
from decoct.samplers.modes import MOST_PARAMETERS, find_modes
from decoct.stats.divergences import Gaussian

POINTS = 16
"""K, points that the derivatives of a model without a linear predictor are averaged over."""

STEP = 0.05
"""Length of the last step, in posterior standard deviations, at which the search ends."""

MOST_EVALUATIONS = 20
"""Evaluations of a search on all rows of a table, or on a subsample."""

MOST_PASSES = 6
"""Passes over all rows of a large table."""

MODE_DRAWS = 100
"""Draws of the Laplace approximation that the search for other modes begins from."""

SHARE = 0.01
"""Part of the mass from which on a second mode counts."""

SMALLEST = 1e-10
"""Least eigenvalue of the precision, over its largest in units of the diagonal, that counts."""


class ExpandedTable(NamedTuple):
    """Σ_n q_n over all rows.

    Attributes
    ----------
    at
        Where, and over which Gaussian.
    sums
        Constant, gradient and Hessian of Σ_n q_n.
    precision : (d, d)
        Λ, that of the posterior: minus the Hessian of Σ_n q_n + log π₀.
    """

    at: Expansion
    sums: Curvature
    precision: Float[np.ndarray, "d d"]

    def quadratic(self, draws: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " S"]:
        """Return Σ_n q_n at the draws."""
        delta = draws - self.at.centre
        bent = ((delta @ self.sums.hessian) * delta).sum(axis=1)
        return self.sums.value + delta @ self.sums.gradient + 0.5 * bent

    def site(self, rows: Curvature) -> GaussianSite:
        """Return the site Σ_n q_n − Σ_m w_m q_m; ``rows`` is the latter.

        Negative eigenvalues of its precision are set to 0, for a site is a Gaussian.
        """
        precision = rows.hessian - self.sums.hessian
        values, basis = np.linalg.eigh(0.5 * (precision + precision.T))
        precision = (basis * np.maximum(values, 0.0)) @ basis.T
        return GaussianSite(
            np.asarray(self.at.centre),
            self.sums.gradient - rows.gradient,
            0.5 * (precision + precision.T),
            float(self.sums.value - rows.value),
        )


class NoExpansionError(Exception):
    """Why there is no site: a sentence for the report."""


def expand_table(
    problem: Problem, pilot: Selection, seen: Selection | None, rng: np.random.Generator
) -> ExpandedTable:
    """Expand all rows about the Gaussian nearest to the posterior.

    Parameters
    ----------
    pilot
        Weighted rows whose posterior mode is where the search begins.
    seen
        A uniform subsample of a large table; None searches with passes over all rows.

    Raises
    ------
    NoExpansionError
        No Gaussian is near: the posterior has no strict maximum, or derivatives are not finite.
    """
    mode = find_mode(problem.density(pilot))
    if not mode.status.ok:
        raise NoExpansionError(f"no mode was found on a sample of rows: {mode.status.value}")
    potentials = problem.potentials
    directions = np.zeros((1, problem.dim))
    if not potentials.has_predictor:
        directions = antithetic(rng, POINTS, problem.dim)
        _require_one_mode(problem, pilot, gaussian_at(mode), rng)
    search = _Search(problem, directions)
    factor = np.linalg.cholesky(gaussian_at(mode).cov)
    if seen is None:
        return search.run(search.over_all_rows, mode.z, factor, MOST_EVALUATIONS)
    scale = problem.n_rows / seen.size
    weights = np.full(seen.size, scale)

    def from_subsample(at: Expansion) -> Curvature:
        return potentials.expand_rows(seen.rows, weights, at)

    found = search.run(from_subsample, mode.z, factor, MOST_EVALUATIONS)
    for _ in range(MOST_PASSES):
        at = found.at
        found = search.evaluated(search.over_all_rows, at)
        if search.step_length(found) <= STEP:
            break
        known, sampled = found, from_subsample(at)

        def corrected(there: Expansion, known=known, sampled=sampled) -> Curvature:
            return _difference(known, sampled, from_subsample(there), there)

        factor = np.linalg.inv(np.linalg.cholesky(known.precision)).T
        found = search.run(corrected, np.asarray(at.centre), _lower(factor), MOST_EVALUATIONS)
    else:
        found = search.evaluated(search.over_all_rows, found.at)
    return found


def _require_one_mode(
    problem: Problem, pilot: Selection, near: Gaussian, rng: np.random.Generator
) -> None:
    """Refuse a posterior with several modes, as far as they show on a sample of rows."""
    if problem.dim > MOST_PARAMETERS:
        return
    density = problem.density(pilot)
    modes = find_modes(density, near.sample(rng, MODE_DRAWS), rng)
    if modes is None or len(modes.z) == 1:
        return
    shares = modes.shares(log_densities(density, modes.z))
    if np.sort(shares)[-2] > SHARE:
        raise NoExpansionError("the posterior has several modes, and a Gaussian has one")


def expanded_at(problem: Problem, at: Expansion) -> ExpandedTable:
    """Return the expansion of all rows there; errors are those of `expand_table`."""
    search = _Search(problem, np.zeros((1, problem.dim)))
    return search.evaluated(search.over_all_rows, at)


def _difference(
    known: ExpandedTable, sampled: Curvature, there: Curvature, at: Expansion
) -> Curvature:
    """Return the expansion at another point: the known one, plus what a subsample says changes."""
    delta = np.asarray(at.centre) - np.asarray(known.at.centre)
    change = known.sums.hessian - sampled.hessian
    gradient = known.sums.gradient - sampled.gradient + change @ delta + there.gradient
    slope = known.sums.gradient - sampled.gradient
    value = known.sums.value - sampled.value + slope @ delta + 0.5 * delta @ change @ delta
    return Curvature(float(value + there.value), gradient, change + there.hessian)


class _Search:
    """Steps towards the fixed point."""

    def __init__(self, problem: Problem, directions: Float[np.ndarray, "K d"]) -> None:
        self.problem = problem
        self.directions = directions

    def over_all_rows(self, at: Expansion) -> Curvature:
        """Return the sums as they are: what is not finite is a reason for no site, no error."""
        return self.problem.potentials.expand(at, strict=False)

    def evaluated(self, evaluate: Callable[[Expansion], Curvature], at: Expansion) -> ExpandedTable:
        sums = evaluate(at)
        prior = self._prior(at)
        precision = -(sums.hessian + prior.hessian)
        precision = 0.5 * (precision + precision.T)
        finite = np.isfinite(precision).all() and np.isfinite(sums.gradient).all()
        if not (finite and np.isfinite(sums.value)):
            raise NoExpansionError("second derivatives of the log-likelihood are not finite")
        scale = np.sqrt(np.maximum(np.diag(precision), 1e-300))
        if np.linalg.eigvalsh(precision / np.outer(scale, scale))[0] < SMALLEST:
            raise NoExpansionError("the log posterior is flat or not concave where it is largest")
        return ExpandedTable(at, sums, precision)

    def run(
        self,
        evaluate: Callable[[Expansion], Curvature],
        centre: Float[np.ndarray, " d"],
        factor: Float[np.ndarray, "d d"],
        most: int,
    ) -> ExpandedTable:
        """Step from N(centre, LLᵀ) until steps are shorter than `STEP`, or evaluations run out."""
        here = self.evaluated(evaluate, Expansion.over(centre, factor, self.directions))
        bound, length = self._bound(here), 1.0
        for _ in range(most - 1):
            step = self._step(here)
            if self._length(here, step) <= STEP:
                break
            try:
                there = self.evaluated(evaluate, self._moved(here, step, length))
            except NoExpansionError:
                length *= 0.5
                continue
            if self._bound(there) >= bound - 1e-9 * (1.0 + abs(bound)):
                here, bound, length = there, self._bound(there), min(1.0, 2.0 * length)
            else:
                length *= 0.5
        return here

    def step_length(self, here: ExpandedTable) -> float:
        return self._length(here, self._step(here))

    def _moved(self, here: ExpandedTable, step: np.ndarray, length: float) -> Expansion:
        old = np.linalg.inv(np.asarray(here.at.factor))
        precision = (1.0 - length) * old.T @ old + length * here.precision
        factor = np.linalg.inv(np.linalg.cholesky(precision)).T
        centre = np.asarray(here.at.centre) + length * step
        return Expansion.over(centre, _lower(factor), self.directions)

    def _step(self, here: ExpandedTable) -> Float[np.ndarray, " d"]:
        gradient = here.sums.gradient + self._prior(here.at).gradient
        return np.linalg.solve(here.precision, gradient)

    def _length(self, here: ExpandedTable, step: np.ndarray) -> float:
        """Return how far the fixed point is, in standard deviations, of its mean and its spread."""
        moved = float(np.sqrt(step @ here.precision @ step))
        factor = np.asarray(here.at.factor)
        spread = factor.T @ here.precision @ factor - np.eye(len(step))
        return max(moved, float(np.abs(np.linalg.eigvalsh(spread)).max()))

    def _bound(self, here: ExpandedTable) -> float:
        """Return the evidence lower bound up to a constant."""
        prior, factor = self._prior(here.at), np.asarray(here.at.factor)
        covariance = factor @ factor.T
        bends = 0.5 * (covariance * (here.sums.hessian + prior.hessian)).sum()
        volume = np.log(np.abs(np.diag(factor))).sum()
        return float(here.sums.value + prior.value + bends + volume)

    def _prior(self, at: Expansion) -> Curvature:
        potentials = self.problem.potentials
        return prior_curvature(potentials.model, potentials.space, np.asarray(at.centre))


def _lower(factor: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """Return the lower Cholesky factor of F Fᵀ."""
    return np.linalg.cholesky(factor @ factor.T)
