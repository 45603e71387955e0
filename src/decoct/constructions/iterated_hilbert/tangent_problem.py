"""The sparse regression problem of a round, and the fits made from it.

A pass supplies draws θ_s, totals Σ_n f_n(θ_s) and a pool of candidate rows. Four fifths of the
draws fit, min_{w ≥ 0} ‖b − Σ w_n g_n‖²; the rest judge, ½Var(b − Σ w_n g_n) ≈ KL in nats
(`decoct.stats.divergences`).

With an expansion of the table the vectors are remainders f_n − q_n in place of potentials, so that
the rows fit what a quadratic cannot, and a solution is completed by the site Σ q_n − Σ w_m q_m.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from decoct.constructions.base import (
    Problem,
    Selection,
    SizedSelection,
    central_draw,
    equal_weight_rows,
)
from decoct.constructions.iterated_hilbert.expansion import ExpandedTable
from decoct.constructions.iterated_hilbert.proper_weights import (
    INSIDE,
    WholeCurvature,
    proper_weights,
)
from decoct.passes.pools import Pool
from decoct.runtime.resources import few_threads
from decoct.samplers.laplace import find_mode, gaussian_at
from decoct.solvers.nnls import SparseWeights, row_norms
from decoct.solvers.orthogonal_pursuit import orthogonal_pursuit, refine
from decoct.stats.chains import USABLE_RHAT
from decoct.stats.divergences import Gaussian, Tangent, kl_from_log_ratios, kl_gaussian, tangent

REFUTED = 4.0
"""Times what is expected that a KL from few draws must be before a prediction counts as wrong."""

CONSTRAINED_EXCHANGES = 3
"""Times that exchanges choose rows again for the constraints that the last ones violate."""

CONSTRAINTS_COST = 1.1
"""Times the KL without the constraints up to which the rows stay."""

CURVATURE = 0.1
"""Part of the norm of all remainders that a constraint weighs as an equation: it has to be all but
kept, and what is left of the remainders, far smaller, still counts."""

FLAT = 1e-12
"""½Var in nats of the totals at the draws below which the data say nothing there."""


class EvaluatedDraws(NamedTuple):
    """Draws of a reference posterior, and Σ_n f_n there up to a constant."""

    draws: Float[np.ndarray, "S d"]
    totals: Float[np.ndarray, " S"]


@dataclass(frozen=True)
class SplitTangent:
    """The pool in the tangent space, at draws for fitting and held-out draws."""

    problem: Problem
    draws: Float[np.ndarray, "S d"]  # θ_s, in random order
    pool: Pool
    fit: Tangent  # of the pool at the draws that fit, those of earlier rounds among them
    held_out: Tangent  # at those that judge
    reference_kl: float  # KL in nats from the posterior that the draws are of to the full one
    reference_kl_upper: float  # the same, two Monte Carlo standard errors added
    totals: Float[np.ndarray, " S"]  # Σ_n f_n at the draws
    potentials: Float[np.ndarray, "P S"]  # f_n of the pool at the draws
    error: float = 0.0  # nats that errors of the totals may add to the KL of what is fitted
    rhat: float = np.nan  # of the draws; NaN where they are independent
    expanded: ExpandedTable | None = None  # whose remainders are fitted; None fits the potentials
    earlier: tuple[EvaluatedDraws, ...] = ()  # of earlier rounds

    @classmethod
    def of(
        cls,
        problem: Problem,
        draws: Float[np.ndarray, "S d"],
        totals: Float[np.ndarray, " S"],
        pool: Pool,
        reference: Selection,
        error: float = 0.0,
        rhat: float = np.nan,
        expanded: ExpandedTable | None = None,
        earlier: tuple[EvaluatedDraws, ...] = (),
    ) -> SplitTangent:
        """Evaluate the pool, which holds the reference's rows, at the draws.

        With ``earlier`` draws the fit minimises the sum of ½Var(b − Σ w_n g_n) at those of each
        round. Draws of a good reference do not reach tails that rows alone keep light.
        """
        values = problem.potentials.vectors(pool.rows, draws)
        at_reference = np.searchsorted(pool.indices, reference.indices)
        approximate = reference.weights @ values[at_reference]
        if reference.site is not None:
            phi = problem.potentials.to_likelihood(draws)
            approximate = approximate + reference.site.log_density(phi)
        kl = kl_from_log_ratios(totals - approximate)
        potentials_alone = cls(
            problem,
            draws,
            pool,
            *_split(values, totals),
            kl.reverse,
            float(kl.reverse + 2.0 * kl.reverse_se),
            totals,
            values,
            error,
            rhat,
            None,
            earlier,
        )
        return potentials_alone if expanded is None else potentials_alone.less(expanded)

    def less(self, expanded: ExpandedTable) -> SplitTangent:
        """Return the problem of what the potentials have beyond an expansion, at the same draws."""
        problem, pool = self.problem, self.pool
        left = _remainders(problem, pool, expanded, self.draws, self.potentials, self.totals)
        fit, held_out = _split(*left)
        parts = [fit]
        for one in self.earlier:
            there = problem.potentials.vectors(pool.rows, one.draws)
            left = _remainders(problem, pool, expanded, one.draws, there, one.totals)
            parts.append(tangent(*left))
        fit = Tangent(*(np.concatenate(part, axis=-1) for part in zip(*parts, strict=True)))
        return replace(self, fit=fit, held_out=held_out, expanded=expanded)

    def rows_only(self) -> SplitTangent:
        """Return the problem of the potentials themselves, at the same draws."""
        fit, held_out = _split(self.potentials, self.totals)
        return replace(self, fit=fit, held_out=held_out, expanded=None)

    def to_second_order(self) -> SplitTangent | None:
        """Return the problem without terms of third order; None where there are none.

        Many rows of a regression correct more than these terms, and need none.
        """
        is_multilevel = self.problem.potentials.has_likelihood_params
        if self.expanded is None or self.expanded.skewness is None or is_multilevel:
            return None
        return self.less(self.expanded._replace(has_third_order=False))

    @property
    def is_informative(self) -> bool:
        """Whether the draws can tell one choice of rows from another.

        They cannot where the data move the log posterior by next to nothing (½Var of the totals
        at most `FLAT` nats), since π may be cut off just beyond them. They cannot where chains
        disagree either.
        """
        varies = 0.5 * float(np.var(self.totals)) > FLAT
        return varies and not self.rhat > USABLE_RHAT

    @cached_property
    def whole_curvature(self) -> WholeCurvature:
        """That of all rows, where they are expanded."""
        assert self.expanded is not None
        return WholeCurvature.of(-self.expanded.sums.hessian, self.expanded.precision)

    @property
    def fitted_draws(self) -> int:
        return self.fit.vectors.shape[1]

    def predict_kl(self, solution: SparseWeights) -> float:
        """Return the predicted KL in nats at the held-out draws."""
        return self.held_out.predicted_kl(solution.indices, solution.weights) + self.error

    def pursue(
        self,
        longest: int,
        *,
        sizes: Sequence[int] = (),
        stop: Callable[[SparseWeights], bool] | None = None,
        exchanges: int = 0,
        draws: np.ndarray | slice = slice(None),
    ) -> PathFit:
        """Return orthogonal pursuit's solution at every size, judged; see `orthogonal_pursuit`.

        ``draws`` are those of the fitted draws to use.
        """
        vectors, target = self.fit.vectors[:, draws], self.fit.target[draws]
        path = orthogonal_pursuit(
            vectors, target, longest, sizes=sizes, stop=stop, exchanges=exchanges
        )
        return PathFit(self, path, {m: self.predict_kl(one) for m, one in path.items()}, exchanges)


def _split(
    vectors: Float[np.ndarray, "P S"], target: Float[np.ndarray, " S"]
) -> tuple[Tangent, Tangent]:
    """Return the tangent space at the draws that fit, and at those that judge."""
    fit = _count_fitting(len(target))
    return tangent(vectors[:, :fit], target[:fit]), tangent(vectors[:, fit:], target[fit:])


def _count_fitting(draws: int) -> int:
    """Return how many draws of a round are for fitting."""
    return max(2, (4 * draws) // 5)


def _remainders(
    problem: Problem,
    pool: Pool,
    expanded: ExpandedTable,
    draws: Float[np.ndarray, "S d"],
    values: Float[np.ndarray, "P S"],
    totals: Float[np.ndarray, " S"],
) -> tuple[Float[np.ndarray, "P S"], Float[np.ndarray, " S"]]:
    """Return f_n − q_n of the pool, less terms of third order, and their sum over all rows."""
    potentials = problem.potentials
    phi = potentials.to_likelihood(draws)
    basis = expanded.basis(phi)
    vectors = values - potentials.quadratics(pool.rows, expanded.at, draws, basis)
    return vectors, totals - expanded.quadratic(phi) - basis @ expanded.sums.thirds


@dataclass(frozen=True)
class PathFit:
    """Weights on the pool, and predicted KL in nats, at every size of one pursuit.

    ``exchanges`` is how many sweeps refine a solution at most.
    """

    tangent: SplitTangent
    path: dict[int, SparseWeights]
    predicted_kl: dict[int, float]
    exchanges: int

    def best(self, most: float = np.inf) -> SizedSelection:
        """Return the solution of at most ``most`` rows that is predicted to be nearest."""
        judged = {m: kl for m, kl in self.predicted_kl.items() if m <= most}
        nearest = min(judged, key=lambda m: judged[m], default=None)
        problem, pool = self.tangent.problem, self.tangent.pool
        if self.tangent.expanded is not None:
            found = [self.alone()]
            if nearest is not None:
                found.append(self.with_site(self.path[nearest]))
            return min(found, key=nats)
        if nearest is None:
            return SizedSelection(equal_weight_rows(problem, pool, problem.size), None)
        return SizedSelection(_selection(self.tangent, self.path[nearest]), judged[nearest])

    def refined(self, size: int, exchanges: int) -> PathFit:
        """Return the solution of one size alone, refined by exchanges."""
        fit, size = self.tangent.fit, max(m for m in self.path if m <= size)
        found = refine(fit.vectors, fit.target, self.path[size], exchanges)
        kl = {size: self.tangent.predict_kl(found)}
        return PathFit(self.tangent, {size: found}, kl, exchanges)

    def alone(self) -> SizedSelection:
        """Return the site of all rows, without any row."""
        return self.with_site(SparseWeights(np.zeros(0, dtype=np.int64), np.zeros(0), np.inf))

    def with_site(self, solution: SparseWeights) -> SizedSelection:
        """Complete weighted rows by the site of all others, and judge both together.

        Where the rows take more curvature than there is, and less weight costs much, those found by
        exchanges with the constraints of `proper_weights` as equations beside those of the draws
        may be nearer.
        """
        found, (vectors, target) = [self._complete(solution)], self.tangent.fit
        acceptable = CONSTRAINTS_COST * self.tangent.predict_kl(solution)
        for _ in range(CONSTRAINED_EXCHANGES if self.exchanges else 0):
            if min(map(nats, found)) <= acceptable:
                break
            directions, most = self._find_violated(solution)
            if not len(most):
                break
            unit = CURVATURE * np.linalg.norm(self.tangent.fit.target) / most
            vectors = np.concatenate([vectors, unit * self._bends(directions)], axis=1)
            target = np.concatenate([target, unit * most])
            solution = replace(solution, residual_norm=np.inf)  # that of other equations
            solution = refine(vectors, target, solution, self.exchanges)
            found.append(self._complete(solution))
        return min(found, key=nats)

    def equations(
        self, solution: SparseWeights
    ) -> tuple[Float[np.ndarray, "m S"], Float[np.ndarray, " S"]]:
        """Return vectors of a solution's rows, and what they should add up to."""
        return self.tangent.fit.vectors[solution.indices], self.tangent.fit.target

    def _find_violated(
        self, solution: SparseWeights
    ) -> tuple[Float[np.ndarray, "k d"], Float[np.ndarray, " k"]]:
        """Return directions v in which the rows take more curvature than they may, and how much."""
        tangent, expanded = self.tangent, self.tangent.expanded
        assert expanded is not None
        potentials, rows = tangent.problem.potentials, tangent.pool.some(solution.indices).rows
        of_rows = potentials.expand_rows(rows, solution.weights, expanded.at)
        directions = tangent.whole_curvature.improper_directions(-of_rows.hessian)
        most = ((directions @ tangent.whole_curvature.hessian) * directions).sum(axis=1)
        return directions[most > 0.0], (1.0 - INSIDE) * most[most > 0.0]

    def _bends(self, directions: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "P k"]:
        """Return vᵀH_nv of the pool; 0 for rows without a remainder, which have no place."""
        tangent, expanded = self.tangent, self.tangent.expanded
        assert expanded is not None
        potentials = tangent.problem.potentials
        bends = -potentials.bends(tangent.pool.rows, expanded.at, directions)
        least = np.finfo(float).eps * np.linalg.norm(tangent.fit.target)
        bends[row_norms(tangent.fit.vectors) <= least] = 0.0
        return bends

    def _complete(self, solution: SparseWeights) -> SizedSelection:
        tangent, expanded = self.tangent, self.tangent.expanded
        assert expanded is not None
        potentials, at = tangent.problem.potentials, expanded.at
        places, weights = solution.indices, solution.weights
        rows = tangent.pool.some(places).rows

        def curvature_of(weights: np.ndarray) -> np.ndarray:
            return -potentials.expand_rows(rows, weights, at).hessian

        def along(directions: np.ndarray) -> np.ndarray:
            return -potentials.bends(rows, at, directions)

        if len(places):
            vectors, target = self.equations(solution)
            with few_threads(vectors.nbytes):
                weights = proper_weights(
                    vectors, target, weights, curvature_of, along, tangent.whole_curvature
                )
        of_rows = potentials.expand_rows(rows, weights, at)
        share = tangent.whole_curvature.largest_factor(-of_rows.hessian)
        site, weights = expanded.site(of_rows.scaled(share)), share * weights
        places, weights = places[weights > 0.0], weights[weights > 0.0]
        kept = tangent.pool.some(places)
        rest = slice(_count_fitting(len(tangent.draws)), None)
        phi = potentials.to_likelihood(tangent.draws[rest])
        left = tangent.totals[rest] - site.log_density(phi)
        left = left - weights @ tangent.potentials[places, rest]
        start = central_draw(tangent.draws) if potentials.has_likelihood_params else None
        selection = Selection(kept.indices, weights, kept.rows, site, start)
        return SizedSelection(selection, 0.5 * float(np.var(left, ddof=1)) + tangent.error)


def nats(one: SizedSelection) -> float:
    """Return the predicted KL, infinite where there is none."""
    return np.inf if one.predicted_kl is None else one.predicted_kl


def quadratic_size(problem: Problem) -> int:
    """Return the d(d+3)/2 numbers of a quadratic, which as many positive weights reproduce."""
    return problem.dim * (problem.dim + 3) // 2


def check_at_its_draws(
    key: jax.Array, tangent: SplitTangent, found: SizedSelection, reference: Selection
) -> float | None:
    """Return the predicted KL, corrected if the coreset's own draws refute it.

    ½Var(b − Σ w_n g_n) at draws of π_ref ignores regions that only π_w reaches: without the one row
    of a level, half of π_w lies where that row's likelihood is 0. KL(π_w‖π_ref) at draws of π_w
    includes them, and needs the kept rows only. It should be at most about
    (√KL(π_w‖π) + √KL(π_ref‖π))², the triangle inequality of the local norm; beyond `REFUTED` times
    that, it replaces the prediction. Where the chains disagree, no KL is predicted.
    """
    assert found.predicted_kl is not None
    problem, n, start = tangent.problem, len(tangent.draws), tangent.draws.mean(axis=0)
    padded_as = max(found.selection.size, reference.size)
    draws = problem.draw(key, found.selection, n, start, padded_as)
    if draws.info.get("rhat", 1.0) > USABLE_RHAT:
        return None
    at = draws.flat[:n]
    log_ratios = problem.log_likelihood(reference, at) - problem.log_likelihood(found.selection, at)
    kl = kl_from_log_ratios(log_ratios).reverse
    explained = (np.sqrt(found.predicted_kl) + np.sqrt(max(0.0, tangent.reference_kl))) ** 2
    return found.predicted_kl if kl <= REFUTED * explained else kl


def smallest(fits: PathFit, goal: float, best: SizedSelection, exchanges: int) -> SizedSelection:
    """Search for the smallest size that is predicted to reach the goal after exchanges.

    The next size to try is where that of the path does, if exchanges always help as much as they
    did at the last; after one that fails at least halfway up.
    """
    low, high = max(1, best.selection.size // 2), best.selection.size
    size, step = (low + high) // 2, max(1, high // 50)
    while low + step <= size <= high - step:
        refined = fits.refined(size, exchanges)
        attempt, size = refined.best(), max(refined.path)
        helps = refined.predicted_kl[size] / fits.predicted_kl[size]
        short = (m for m, kl in fits.predicted_kl.items() if helps * kl > goal)
        if nats(attempt) <= goal:
            best, high = attempt, min(size, attempt.selection.size)
            size = max(low + step, max(short, default=0) + 1)
        else:
            low = size
            size = max((low + high) // 2, max(short, default=0) + 1)
    return best


def best_of_restarts(
    tangent: SplitTangent, found: SizedSelection, size: int, restarts: int, exchanges: int
) -> SizedSelection:
    """Where the quadratic model has broken down, compare several local optima by Gaussian KL.

    With too few rows for the dimension ½Var saturates near ¼ nat per direction missed, however
    wide π_w is there. KL between the Laplace fit of π_w and the moments of the draws does not, and
    needs the M rows only.
    """
    covariance = np.atleast_2d(np.cov(tangent.draws, rowvar=False))
    target = Gaussian(tangent.draws.mean(axis=0), covariance)
    best, best_kl = found.selection, _gaussian_kl(tangent.problem, found.selection, target)
    rng = np.random.default_rng(len(tangent.pool.indices))
    for _ in range(restarts):
        half = rng.permutation(tangent.fitted_draws)[: max(2, tangent.fitted_draws // 2)]
        path = tangent.pursue(size, sizes=(size,), exchanges=exchanges, draws=half).path
        if not path:
            continue
        attempt = _selection(tangent, path[max(path)])
        kl = _gaussian_kl(tangent.problem, attempt, target)
        if kl < best_kl:
            best, best_kl = attempt, kl
    return found if np.isinf(best_kl) else SizedSelection(best, best_kl)


def _gaussian_kl(problem: Problem, selection: Selection, target: Gaussian) -> float:
    """Return KL from the Laplace fit of π_w to a Gaussian; infinite where there is no fit."""
    mode = find_mode(problem.density(selection))
    return kl_gaussian(gaussian_at(mode), target) if mode.status.ok else np.inf


def _selection(tangent: SplitTangent, solution: SparseWeights) -> Selection:
    """Return rows alone. Their posterior may have other modes than that near the draws."""
    chosen = Selection.of(tangent.pool.some(solution.indices), solution.weights)
    return chosen._replace(start=central_draw(tangent.draws))
