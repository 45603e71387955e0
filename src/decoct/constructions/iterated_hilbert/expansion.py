"""The expansion that a site carries: Gaussian variational inference on all rows.

With E over N(μ, C) and q_n the smoothed second-order expansion of f_n (`passes.expansions`), the
fixed point of

    Λ = −Σ E∇²f_n − ∇²log π₀(μ),    μ ← μ + Λ⁻¹ (Σ E∇f_n + ∇log π₀(μ)),    C ← Λ⁻¹

maximises the evidence lower bound Σ E f_n + E log π₀ + ½ log det C (Opper & Archambeau 2009, Eq. 8;
the prior enters by its second-order expansion). A step that lowers the bound is tried again at a
quarter of its length.

On large tables the search runs on a uniform subsample of n rows, then with the gradient of all rows
and the precision Λ̂ of the subsample, and ends where a step lowers the density: rare levels are not
in it. With r = d/n the eigenvalues of Λ̂⁻¹Λ are near the interval from (1 + √r)⁻² to (1 − √r)⁻²
(Marchenko & Pastur 1967), for which the heavy ball

    δ ← (1 − r)² Λ̂⁻¹ (Σ ∇f_n + ∇log π₀) + r δ

is best: each step shrinks the error by √r, one without momentum by 2√r at best (Lacotte & Pilanci
2019). A pass that expands all rows also draws those that stand for their remainders
(`passes.row_samples`). With these rows n ∈ S, their weights v_n, and q⁰ = Σ q⁰_n the expansion of
all rows, Σ f_n ≈ q⁰ + Σ_S v_n (f_n − q⁰_n): the search goes on with that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import scipy
from jaxtyping import Float

from decoct.constructions.base import Problem, Selection, central_draw, no_weight
from decoct.models.site import GaussianSite
from decoct.passes.expansions import Expansion, antithetic
from decoct.passes.potentials import Curvature, Potentials
from decoct.passes.row_samples import EXACT_DRAWS, SCALE_ROWS, RowSample, sample_rows
from decoct.passes.third_order import Skewness
from decoct.runtime.randomness import host_rng
from decoct.samplers.base import log_densities
from decoct.samplers.laplace import find_mode, gaussian_at, prior_curvature
from decoct.stats.divergences import Gaussian, kl_gaussian

POINTS = 16
"""K, points that the derivatives of a model without a linear predictor are averaged over."""

STEP = 0.05
"""Length of the last step, in posterior standard deviations, at which the search ends."""

SETTLED_NATS, SETTLED_ERROR = 1e-5, 0.5
"""Conditions on an expansion of all rows of a large table: the most nats a parameter by which, on
the subsample, another would move its Gaussian; and the largest error in a coordinate, of the mean
in sd and of the variance relative to it, at which the subsample can predict that."""

MOST_EVALUATIONS = 20
"""Evaluations of a search on all rows of a table, or on a subsample."""

MOST_GRADIENTS = 6
"""Gradients of all rows of a large table before its first expansion."""

MOST_PASSES = 6
"""Expansions of all rows of a large table."""

MODE_DRAWS = 100
"""Draws of the Laplace approximation that the search for other modes begins from."""

SHARE = 0.01
"""Part of the mass from which on a second mode counts."""

SMALLEST = 1e-10
"""Least eigenvalue of the precision, over its largest in units of the diagonal, that counts."""

ZERO_EIGENVALUE = 1e-12
"""Eigenvalue of a site's precision, in those units, that counts as 0 where it is negative."""

NOT_FINITE = "second derivatives of the log-likelihood are not finite"


class ExpandedTable(NamedTuple):
    """Σ_n q_n over all rows.

    Λ is minus the Hessian of Σ_n q_n + log π₀; of likelihood parameters, whose prior is anything,
    minus that of Σ_n q_n − ½ Σ_i φ_i²/C_ii.
    """

    at: Expansion  # where, and over which Gaussian
    sums: Curvature  # constant, gradient and Hessian of Σ_n q_n
    precision: Float[np.ndarray, "d d"]  # Λ, that of the posterior
    sample: RowSample | None = None  # of a large table, drawn by remainder, for its totals
    draws: Float[np.ndarray, "n D"] | None = None  # of θ, for the moments of likelihood parameters
    has_third_order: bool = True
    pair_offsets: tuple[int, ...] = ()

    def quadratic(self, draws: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " S"]:
        """Return Σ_n q_n at draws of φ."""
        return self.sums.at(draws - self.at.centre)

    def basis(self, draws: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "S T"]:
        """Return what a unit of each third derivative adds at draws of φ, nothing or a term."""
        skewness, none = self.skewness, np.zeros((len(draws), self.sums.thirds.size))
        return none if skewness is None else skewness.basis(draws)

    def totals(
        self, potentials: Potentials, draws: Float[np.ndarray, "S d"]
    ) -> tuple[Float[np.ndarray, " S"], float]:
        """Return Σ_n f_n at draws of θ, and ½Var in nats of its error: 0 of all rows."""
        if self.sample is None:
            return potentials.totals(draws), 0.0
        phi = potentials.to_likelihood(draws)
        basis = self.basis(phi)
        left, error = self.sample.remainders(potentials, self.at, draws, basis)
        return self.quadratic(phi) + basis @ self.sums.thirds + left, error

    @property
    def skewness(self) -> Skewness | None:
        """What terms of third order are made of; None where there are none."""
        return Skewness.of(self.at, self.sums, self.pair_offsets) if self.has_third_order else None

    def site(self, rows: Curvature) -> GaussianSite:
        """Return the site Σ_n q_n − Σ_m w_m q_m; ``rows`` is the latter.

        Negative eigenvalues of its precision are set to 0, for a site is a Gaussian. They are those
        in units of about the width of the posterior, so that little changes where it is narrow.
        """
        precision = rows.hessian - self.sums.hessian
        precision = 0.5 * (precision + precision.T)
        if not is_proper(precision):
            widths = np.diag(np.asarray(self.at.covariance))
            scale = np.sqrt(1.0 / widths + np.abs(np.diag(self.sums.hessian)))
            proper = precision / np.outer(scale, scale)
            values, basis = scipy.linalg.eigh(proper, subset_by_value=(-np.inf, 0.0))
            proper -= (basis * values) @ basis.T
            # zeros stay, for samplers are quick by them: diag(|E| 1) − E is ⪰ 0 for any E
            filled = np.where(precision == 0.0, proper, 0.0)
            proper += np.diag(np.abs(filled).sum(axis=1)) - filled
            precision = proper * np.outer(scale, scale)
        precision = 0.5 * (precision + precision.T)
        skewness = self.skewness
        return GaussianSite(
            np.asarray(self.at.centre),
            self.sums.gradient - rows.gradient,
            precision,
            float(self.sums.value - rows.value),
            skewness and skewness.third_order(precision, rows),
        )


def is_proper(precision: Float[np.ndarray, "d d"]) -> bool:
    """Return whether a symmetric matrix has no negative eigenvalue, rounding apart."""
    if (np.diag(precision) < 0.0).any():
        return False
    try:
        np.linalg.cholesky(_relative(precision) + ZERO_EIGENVALUE * np.eye(len(precision)))
    except np.linalg.LinAlgError:
        return False
    return True


def _relative(precision: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """Return a matrix in units of its diagonal."""
    scale = np.sqrt(np.maximum(np.diag(precision), 1e-300))
    return precision / np.outer(scale, scale)


class NoExpansionError(Exception):
    """Why there is no site, for the report; and where second derivatives may not be finite."""

    def __init__(self, reason: str, at: Expansion | None = None) -> None:
        super().__init__(reason)
        self.at = at

    def reason(self, potentials: Potentials) -> str:
        """Return why there is no site, with the first row whose derivatives are not finite."""
        row = None if self.at is None else potentials.row_not_finite(self.at)
        return str(self) if row is None else f"{NOT_FINITE} in row {row}"


def expand_table(
    problem: Problem,
    pilot: Selection,
    seen: Selection | None,
    key: jax.Array,
    sampled_rows: int = 0,
) -> ExpandedTable:
    """Expand all rows about the Gaussian nearest to the posterior.

    The search begins at the posterior mode of the weighted rows ``pilot``. On a large table it uses
    a uniform subsample ``seen``, and draws ``sampled_rows`` rows by remainder, twice. A
    `NoExpansionError` says that no Gaussian is near.
    """
    mode = find_mode(problem.density(pilot))
    if not mode.status.ok:
        reason = f"no mode was found on a sample of rows: {mode.status.value}"
        raise NoExpansionError(reason, Expansion.taylor(mode.z))
    potentials, rng = problem.potentials, host_rng(key)
    directions = directions_of(potentials, rng)
    if not potentials.is_regression:
        _require_one_mode(problem, pilot, gaussian_at(mode), rng)
    search = _Search(problem, directions)
    at = Expansion.over(mode.z, np.linalg.cholesky(gaussian_at(mode).cov), directions)
    # a value that is not finite means no site, and is no error
    over_all_rows = partial(potentials.expand, strict=False)
    if seen is None:
        return search.run(over_all_rows, search.evaluated(over_all_rows(at), at))
    scale = problem.n_rows / seen.size
    weights, some = np.full(seen.size, scale), potentials.restrict(seen.pool)

    def from_subsample(at: Expansion) -> Curvature:
        return potentials.expand_rows(seen.rows, weights, at)

    def from_sample(known: ExpandedTable) -> ExpandedTable:
        """Continue the search from an expansion of all rows, by those drawn by remainder."""
        assert known.sample is not None
        sample, there = known.sample, np.asarray(known.at.centre)
        change = known.sums.plus(sample.expand(potentials, known.at).scaled(-1.0))

        def corrected(at: Expansion) -> Curvature:
            return change.moved(np.asarray(at.centre) - there).plus(sample.expand(potentials, at))

        at = search.over(there, known.precision)
        return search.run(corrected, search.evaluated(corrected(at), at))

    # levels that the pilot lacks have their prior's width there, far too wide to step from
    narrow = at.moved(mode.z, 1e-12 * np.asarray(at.covariance))
    precision = search.evaluated(from_subsample(narrow), narrow).precision
    at = search.over(mode.z, precision)
    found = search.run(from_subsample, search.evaluated(from_subsample(at), at), False)
    earlier, highest, before = found, -np.inf, 0.0
    ratio, step = problem.dim / seen.size, np.zeros(problem.dim)
    for _ in range(MOST_GRADIENTS):
        here = np.asarray(found.at.centre)
        value, gradient = potentials.value_and_gradient(here)
        value += float(potentials.log_prior(here[None])[0])
        # the subsample lacks important rows: a gradient alone is not enough
        if not value >= highest:
            found = earlier
            break
        earlier, highest = found, value
        gradient = found.sums.gradient + gradient - scale * some.value_and_gradient(here)[1]
        newton = search.step(found._replace(sums=found.sums._replace(gradient=gradient)))
        step = (1.0 - ratio) ** 2 * newton + ratio * step
        moved = float(np.sqrt(step @ found.precision @ step / problem.dim))
        at = search.over(here + step, found.precision)
        found = search.evaluated(from_subsample(at), at)
        if moved**2 <= STEP * max(moved, before):  # the next step would be as much shorter
            break
        before = moved
    at, best = found.at, None
    for left in reversed(range(MOST_PASSES)):
        found = expand_at(problem, at, seen, jax.random.fold_in(key, 1), sampled_rows)
        again = None
        if best is None or search.bound(found) >= search.bound(best):
            best = found
            with suppress(NoExpansionError):  # a difference of samples need not be concave
                again = from_sample(found)
        if again is None:
            # a sample is wrong where a few rows matter much
            best = search.evaluated(over_all_rows(best.at), best.at)
            at = search.run(over_all_rows, best).at
            return expand_at(problem, at, seen, jax.random.fold_in(key, 1), sampled_rows)
        gained = kl_gaussian(search.gaussian(found), search.gaussian(again))
        settled = gained <= SETTLED_NATS * problem.dim
        if not left or (search.distance(found) <= SETTLED_ERROR and settled):
            break
        at = again.at
    return found


def directions_of(potentials: Potentials, rng: np.random.Generator) -> Float[np.ndarray, "K d"]:
    """Return the points of N(0, I) to average over: 0 alone where predictors are smoothed."""
    d = potentials.likelihood_dim
    return np.zeros((1, d)) if potentials.has_predictors else antithetic(rng, POINTS, d)


def _require_one_mode(
    problem: Problem, pilot: Selection, near: Gaussian, rng: np.random.Generator
) -> None:
    """Refuse a posterior with several modes on a sample of rows."""
    from decoct.samplers.modes import MOST_PARAMETERS, find_modes  # regressions do without

    if problem.dim > MOST_PARAMETERS:
        return
    density = problem.density(pilot)
    modes = find_modes(density, near.sample(rng, MODE_DRAWS), rng)
    if modes is None or len(modes.z) == 1:
        return
    shares = modes.shares(log_densities(density, modes.z))
    if np.sort(shares)[-2] > SHARE:
        raise NoExpansionError("the posterior has several modes, and a Gaussian has one")


def expand_at(
    problem: Problem,
    at: Expansion,
    seen: Selection | None = None,
    key: jax.Array | None = None,
    sampled_rows: int = 0,
    draws: Float[np.ndarray, "S D"] | None = None,
) -> ExpandedTable:
    """Return the expansion of all rows there; parameters and errors are those of `expand_table`.

    With ``draws`` of θ, of the posterior or from near it, the prior is not expanded.
    """
    potentials, sample = problem.potentials, None
    if seen is None or key is None:
        sums = potentials.expand(at, strict=False)
    else:
        if potentials.has_predictors:
            some = np.zeros((0, problem.dim))
        elif draws is not None:
            some = draws[:EXACT_DRAWS]
        else:
            normal = host_rng(key).standard_normal((EXACT_DRAWS, problem.dim))
            some = np.asarray(at.centre) + normal @ at.factor.T
        few = {name: column[:SCALE_ROWS] for name, column in seen.rows.items()}
        sums, sample, _ = sample_rows(potentials, at, sampled_rows, few, key, some)
    if draws is None:
        search = _Search(problem, np.zeros((1, problem.dim)))
        return search.evaluated(sums, at)._replace(sample=sample)
    if not np.isfinite(np.append(sums.hessian, sums.gradient)).all():
        raise NoExpansionError(NOT_FINITE, at)
    precision = np.diag(1.0 / np.diag(np.asarray(at.covariance))) - sums.hessian
    precision = 0.5 * (precision + precision.T)
    third_order = problem.has_third_order, potentials.pair_offsets
    return ExpandedTable(at, sums, precision, sample, draws, *third_order)


def site_alone(problem: Problem, expanded: ExpandedTable) -> Selection:
    """Return the site of all rows, without any row."""
    site = expanded.site(expanded.sums.scaled(0.0))
    start = None if expanded.draws is None else central_draw(expanded.draws)
    return no_weight(problem.potentials, 0)._replace(site=site, start=start)


class _Search:
    """Steps towards the fixed point."""

    def __init__(self, problem: Problem, directions: Float[np.ndarray, "K d"]) -> None:
        self.problem, self.directions = problem, directions

    def evaluated(self, sums: Curvature, at: Expansion) -> ExpandedTable:
        """Return the expansion with the precision that follows from it."""
        prior = self._prior(at)
        precision = -(sums.hessian + prior.hessian)
        precision = 0.5 * (precision + precision.T)
        if not all(np.isfinite(part).all() for part in (precision, sums.gradient, sums.value)):
            raise NoExpansionError(NOT_FINITE, at)
        is_positive = (np.diag(precision) > 0.0).all()
        if not is_positive or np.linalg.eigvalsh(_relative(precision))[0] < SMALLEST:
            raise NoExpansionError("the log posterior is flat or not concave where it is largest")
        third_order = self.problem.has_third_order, self.problem.potentials.pair_offsets
        return ExpandedTable(at, sums, precision, None, None, *third_order)

    def run(
        self, evaluate: Callable[[Expansion], Curvature], here: ExpandedTable, shorter: bool = True
    ) -> ExpandedTable:
        """Take steps until they are shorter than `STEP`, one fails, or evaluations run out.

        With ``shorter`` a step that fails is tried again at a quarter of its length.
        """
        bound, length = self.bound(here), 1.0
        for _ in range(MOST_EVALUATIONS - 1):
            step = self.step(here)
            if self._length(here, step) <= STEP:
                break
            there = None
            with suppress(NoExpansionError):
                old = np.linalg.inv(np.asarray(here.at.covariance))
                precision = (1.0 - length) * old + length * here.precision
                at = self.over(np.asarray(here.at.centre) + length * step, precision)
                there = self.evaluated(evaluate(at), at)
            if there and self.bound(there) >= bound - 1e-9 * (1.0 + abs(bound)):
                here, bound, length = there, self.bound(there), min(1.0, 4.0 * length)
            elif shorter:
                length *= 0.25
            else:
                break
        return here

    def over(self, centre: np.ndarray, precision: np.ndarray) -> Expansion:
        factor = np.linalg.inv(np.linalg.cholesky(precision)).T
        return Expansion.over(centre, np.linalg.cholesky(factor @ factor.T), self.directions)

    def gaussian(self, here: ExpandedTable) -> Gaussian:
        """Return the Gaussian posterior of the site of all rows."""
        covariance = np.linalg.inv(here.precision)
        return Gaussian(np.asarray(here.at.centre) + self.step(here), covariance)

    def distance(self, here: ExpandedTable) -> float:
        """Return how far the Gaussian of the expansion is from that of its site, by coordinate."""
        variances = np.diag(np.linalg.inv(here.precision))
        moved = np.abs(self.step(here)) / np.sqrt(variances)
        wider = np.abs(np.diag(np.asarray(here.at.covariance)) / variances - 1.0)
        return float(max(moved.max(), wider.max()))

    def step(self, here: ExpandedTable) -> Float[np.ndarray, " d"]:
        gradient = here.sums.gradient + self._prior(here.at).gradient
        return np.linalg.solve(here.precision, gradient)

    def _length(self, here: ExpandedTable, step: np.ndarray) -> float:
        """Return how far the fixed point is, in standard deviations, of its mean and its spread."""
        moved = float(np.sqrt(step @ here.precision @ step))
        factor = here.at.factor
        spread = factor.T @ here.precision @ factor - np.eye(len(step))
        return max(moved, float(np.abs(np.linalg.eigvalsh(spread)).max()))

    def bound(self, here: ExpandedTable) -> float:
        """Return the evidence lower bound up to a constant."""
        prior, factor = self._prior(here.at), here.at.factor
        covariance = np.asarray(here.at.covariance)
        bends = 0.5 * (covariance * (here.sums.hessian + prior.hessian)).sum()
        volume = np.log(np.abs(np.diag(factor))).sum()
        return float(here.sums.value + prior.value + bends + volume)

    def _prior(self, at: Expansion) -> Curvature:
        potentials = self.problem.potentials
        return prior_curvature(potentials.model, potentials.space, np.asarray(at.centre))
