"""The expansion that a site carries: Gaussian variational inference on all rows.

With E over N(μ, C) and q_n the smoothed second-order expansion of f_n (`passes.expansions`), the
fixed point of

    Λ = −Σ E∇²f_n − ∇²log π₀(μ),    μ ← μ + Λ⁻¹ (Σ E∇f_n + ∇log π₀(μ)),    C ← Λ⁻¹

maximises the evidence lower bound Σ E f_n + E log π₀ + ½ log det C (Opper & Archambeau 2009, Eq. 8;
the prior enters by its second-order expansion). A step that lowers the bound is halved.

On large tables the search runs on a uniform subsample U, first alone, then with the gradient of all
rows in place of that of U, then with control variates: with q⁰ = Σ q⁰_n an expansion of all rows,
Σ f_n ≈ q⁰ + (N/|U|) Σ_U (f_n − q⁰_n). A pass that expands all rows also draws those that stand for
their remainders (`passes.row_samples`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from decoct.constructions.base import Problem, Selection
from decoct.models.site import GaussianSite
from decoct.passes.expansions import Expansion, antithetic
from decoct.passes.potentials import Curvature, Potentials
from decoct.passes.row_samples import DRAWS, RowSample, sample_rows
from decoct.runtime.randomness import host_rng
from decoct.samplers.base import log_densities
from decoct.samplers.laplace import find_mode, gaussian_at, prior_curvature
from decoct.samplers.modes import MOST_PARAMETERS, find_modes
from decoct.stats.divergences import Gaussian

POINTS = 16
"""K, points that the derivatives of a model without a linear predictor are averaged over."""

STEP = 0.05
"""Length of the last step, in posterior standard deviations, at which the search ends."""

WIDTH = 0.5
"""Most relative error of a variance of the Gaussian that expansions of a large table are smoothed
over: what its subsample says, where the mean is that of all rows."""

MOST_EVALUATIONS = 20
"""Evaluations of a search on all rows of a table, or on a subsample."""

GRADIENTS = 2
"""Gradients of all rows of a large table before its first expansion. The curvature of the subsample
is right to a few per cent, and so is a step of tens of standard deviations; the next is of one."""

MOST_PASSES = 6
"""Expansions of all rows of a large table."""

SCALE_ROWS = 2048
"""Rows that the mean remainder is estimated from."""

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
    sample
        Rows of a large table, drawn by remainder, that totals are estimated from.
    """

    at: Expansion
    sums: Curvature
    precision: Float[np.ndarray, "d d"]
    sample: RowSample | None = None

    def quadratic(self, draws: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " S"]:
        """Return Σ_n q_n at the draws."""
        delta = draws - self.at.centre
        bent = ((delta @ self.sums.hessian) * delta).sum(axis=1)
        return self.sums.value + delta @ self.sums.gradient + 0.5 * bent

    def totals(
        self, potentials: Potentials, draws: Float[np.ndarray, "S d"]
    ) -> tuple[Float[np.ndarray, " S"], float]:
        """Return Σ_n f_n at the draws, and ½Var in nats of its error: 0 where all rows are seen."""
        if self.sample is None:
            return potentials.totals(draws), 0.0
        left, error = self.sample.remainders(potentials, self.at, draws)
        return self.quadratic(draws) + left, error

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
    problem: Problem, pilot: Selection, seen: Selection | None, key: jax.Array, sampled: int = 0
) -> ExpandedTable:
    """Expand all rows about the Gaussian nearest to the posterior.

    Parameters
    ----------
    pilot
        Weighted rows whose posterior mode is where the search begins.
    seen
        A uniform subsample of a large table; None searches with passes over all rows.
    sampled
        Rows to draw by remainder, twice, from a large table.

    Raises
    ------
    NoExpansionError
        No Gaussian is near: the posterior has no strict maximum, or derivatives are not finite.
    """
    mode = find_mode(problem.density(pilot))
    if not mode.status.ok:
        raise NoExpansionError(f"no mode was found on a sample of rows: {mode.status.value}")
    potentials, rng = problem.potentials, host_rng(key)
    directions = np.zeros((1, problem.dim))
    if not potentials.has_predictor:
        directions = antithetic(rng, POINTS, problem.dim)
        _require_one_mode(problem, pilot, gaussian_at(mode), rng)
    search = _Search(problem, directions)
    factor = np.linalg.cholesky(gaussian_at(mode).cov)
    if seen is None:
        return search.run(search.over_all_rows, mode.z, factor, MOST_EVALUATIONS)
    weights = np.full(seen.size, problem.n_rows / seen.size)

    def from_subsample(at: Expansion) -> Curvature:
        return potentials.expand_rows(seen.rows, weights, at)

    def from_difference(known: Curvature, at: Expansion) -> ExpandedTable:
        """Search on, from where ``known`` is better than what the subsample says."""
        sampled = from_subsample(at)

        def corrected(there: Expansion) -> Curvature:
            delta = np.asarray(there.centre) - np.asarray(at.centre)
            return _difference(known, sampled, from_subsample(there), delta)

        return search.run(corrected, np.asarray(at.centre), np.asarray(at.factor), MOST_EVALUATIONS)

    found = search.run(from_subsample, mode.z, factor, MOST_EVALUATIONS)
    for _ in range(GRADIENTS):
        here, sums = np.asarray(found.at.centre), from_subsample(found.at)
        taylor = Expansion.over(here, np.zeros_like(factor), directions)
        more = potentials.gradient(here) - from_subsample(taylor).gradient
        found = from_difference(sums._replace(gradient=sums.gradient + more), found.at)
    for _ in range(MOST_PASSES):
        found = expanded_at(problem, found.at, seen, jax.random.fold_in(key, 1), sampled)
        moved, spread = search.lengths(found, search.step(found))
        if moved <= STEP and spread <= WIDTH:
            return found
        found = from_difference(found.sums, found.at)
    return expanded_at(problem, found.at, seen, jax.random.fold_in(key, 1), sampled)


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


def expanded_at(
    problem: Problem,
    at: Expansion,
    seen: Selection | None = None,
    key: jax.Array | None = None,
    sampled: int = 0,
) -> ExpandedTable:
    """Return the expansion of all rows there; parameters and errors are those of `expand_table`."""
    search, potentials = _Search(problem, np.zeros((1, problem.dim))), problem.potentials
    if seen is None or key is None:
        return search.evaluated(search.over_all_rows, at)
    draws = np.zeros((0, problem.dim))
    if not potentials.has_predictor:
        normal = host_rng(key).standard_normal((DRAWS, problem.dim))
        draws = np.asarray(at.centre) + normal @ np.asarray(at.factor).T
    few = {name: column[:SCALE_ROWS] for name, column in seen.rows.items()}
    sums, sample, _ = sample_rows(potentials, at, sampled, few, key, draws)
    return search.evaluated(lambda _: sums, at)._replace(sample=sample)


def _difference(
    known: Curvature, sampled: Curvature, there: Curvature, delta: Float[np.ndarray, " d"]
) -> Curvature:
    """Return the expansion δ away: the known one, plus what a subsample says changes."""
    change = known.hessian - sampled.hessian
    slope = known.gradient - sampled.gradient
    value = known.value - sampled.value + slope @ delta + 0.5 * delta @ change @ delta
    return Curvature(
        float(value + there.value),
        slope + change @ delta + there.gradient,
        change + there.hessian,
    )


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
            step = self.step(here)
            if max(self.lengths(here, step)) <= STEP:
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

    def _moved(self, here: ExpandedTable, step: np.ndarray, length: float) -> Expansion:
        old = np.linalg.inv(np.asarray(here.at.factor))
        precision = (1.0 - length) * old.T @ old + length * here.precision
        factor = np.linalg.inv(np.linalg.cholesky(precision)).T
        centre = np.asarray(here.at.centre) + length * step
        return Expansion.over(centre, _lower(factor), self.directions)

    def step(self, here: ExpandedTable) -> Float[np.ndarray, " d"]:
        gradient = here.sums.gradient + self._prior(here.at).gradient
        return np.linalg.solve(here.precision, gradient)

    def lengths(self, here: ExpandedTable, step: np.ndarray) -> tuple[float, float]:
        """Return how far the fixed point is: its mean in sd, its variances relative to these."""
        moved = float(np.sqrt(step @ here.precision @ step))
        factor = np.asarray(here.at.factor)
        spread = factor.T @ here.precision @ factor - np.eye(len(step))
        return moved, float(np.abs(np.linalg.eigvalsh(spread)).max())

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
