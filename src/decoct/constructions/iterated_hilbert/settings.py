"""Settings of `IteratedHilbert`, the draws and rows they stand for, and what a build costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from decoct.constructions.base import Construction, Plan, PlannedFits, Problem
from decoct.constructions.iterated_hilbert.expansion import MOST_EVALUATIONS, MOST_PASSES, POINTS
from decoct.constructions.iterated_hilbert.tangent_problem import quadratic_size
from decoct.passes.row_samples import EXACT_DRAWS
from decoct.runtime.checks import check_whole

FEWEST_DRAWS, LARGE = 1000, 1_000_000
"""Least default S, and the number of rows from which half of it is enough: KL falls as 1/N, and the
cost of a draw grows as N."""

ROWS_A_PARAMETER = 32
"""Rows a parameter that stand for those of a large table in multilevel models."""

FITTED_A_PARAMETER, CHEAP = 64, 100_000_000
"""Fewest draws a parameter with a site, up to 2,000: remainders have more directions than that. So
many draws in any case as make this many potentials, up to 2,000."""

FITTED_A_ROW, DIRECTIONS, MOST_FITTED = 30, 400, 3000
"""Fewest draws a row of a size that is asked for with a site, up to so many a parameter (remainders
of few parameters have few directions) and up to so many in all; not of multilevel models, whose
draws take long."""

ROWS = 20_480
"""Rows of the subsample, if the pool is not large."""

CHECK_DRAWS = 64
"""Draws at which a checked pass evaluates all rows."""

FEWEST_CHECKED = 4 * CHECK_DRAWS
"""Draws of a round from which on a checked pass is cheaper than a full one."""

MIN_RATIO, MIN_RATIO_WITH_SITE = 10, 4
"""Rows per row of the subsample from which on it pays."""

PER_PARAMETER = 20
"""Fewest rows a parameter of a subsample on which a table is expanded."""

USUAL_ROUNDS = 3
"""Rounds over all rows that a build usually takes."""

USUAL_GRADIENTS = 2
"""Gradients of all rows of a large table that it usually takes first."""

USUAL_EXPANSIONS = 3
"""Passes over all rows that the search for the expansion usually takes."""

EARLIER_ROUNDS = 3
"""Rounds before this one whose draws are fitted too."""

CERTIFYING_DRAWS = 500
"""Draws of a coreset with a site at which its KL is measured; see `Fits`."""


@dataclass(frozen=True)
class Settings(Construction):
    """The fields of `IteratedHilbert`, which describes them, and what follows from them."""

    certifies: ClassVar[bool] = True
    site: bool = True
    max_rounds: int = 4
    subsample_first: bool = True
    draws: int | None = None
    pool: int | None = None
    pilot: int | None = None
    exchanges: int = 40
    restarts: int = 6
    restart_above: float = 0.3
    max_size: int | None = None

    def __post_init__(self) -> None:
        check_whole(self, max_rounds=1, exchanges=0, restarts=0)
        check_whole(self, draws=5, pool=1, pilot=1, max_size=1)

    def steps(self, problem: Problem) -> int:
        """Return the most steps there can be."""
        first = 0 if self.subsample_size_for(problem) is None else self.max_rounds - 2
        return first + self.most_rounds(problem)

    def most_rounds(self, problem: Problem) -> int:
        """Return most rounds over all rows."""
        return self.max_rounds if problem.kl is None else 2 * self.max_rounds

    def subsample_size_for(self, problem: Problem) -> int | None:
        """Return the size of the subsample, or None where no round uses one."""
        if not self.subsample_first or self.max_rounds <= 2:
            return None
        n_draws, pool_size = self.effort_for(problem)
        size = max(ROWS, 4 * pool_size)
        if self.site:
            # the table is expanded, and totals come from rows drawn by remainder
            size = max(size, PER_PARAMETER * problem.dim)
            worth = problem.n_rows >= MIN_RATIO_WITH_SITE * size
        else:
            worth = problem.n_rows >= MIN_RATIO * size and 4 * problem.dim <= n_draws
        return size if worth and size >= self.pilot_size(problem) else None

    def pilot_size(self, problem: Problem) -> int:
        """Return how many rows the uniform pilot has."""
        return min(problem.n_rows, self.pilot or max(1000, 20 * problem.dim))

    def plan(self, problem: Problem) -> Plan:
        """Return what a build costs; with a site the most includes a build of rows alone."""
        rows = _rows_only_plan(self, problem)
        if not self.site:
            return rows
        n, (S, P) = problem.n_rows, _effort(self, problem)
        if not problem.size:
            S, P = min(S, CERTIFYING_DRAWS), 1
        d, sampled, passes = problem.dim, self.subsample_size_for(problem), 2
        has_predictor = problem.potentials.has_predictors
        expansion = problem.potentials.expansion_cost(POINTS)
        judged = CERTIFYING_DRAWS * len(problem.sizes)
        pool = S * (P + 2 * problem.size) * (2 if has_predictor else 1 + POINTS)
        if sampled is None:
            usual = n * (USUAL_EXPANSIONS * expansion + S + judged) + pool
            least, most_passes = float(n * (expansion + S) + pool), MOST_EVALUATIONS
        else:
            if not has_predictor:
                expansion += EXACT_DRAWS * (1 + POINTS)
            all_rows = n * (2 * USUAL_GRADIENTS + expansion)
            usual = all_rows + 2 * sampled * (S + judged + expansion) + pool
            least = float(all_rows + sampled * (S if problem.kl is None else CERTIFYING_DRAWS))
            # where a sample is not enough, all rows are searched, and evaluated in every round
            most_passes, judged = MOST_PASSES + MOST_EVALUATIONS + 1, judged + S
        most = rows.evaluations[1] + n * (most_passes * expansion + self.max_rounds * judged)
        most += (1 + self.most_rounds(problem) * EARLIER_ROUNDS) * pool
        assert rows.fits is not None
        fits = rows.fits._replace(passes=passes + 3, evaluations=float(usual))
        array_bytes = rows.array_bytes + 4 * 8 * d * d + (1 + EARLIER_ROUNDS) * 8 * S * P
        evaluations = min(least, rows.evaluations[0]), float(most)
        passes = min(passes, rows.passes[0]), most_passes + 2 * rows.passes[1]
        return Plan(passes, evaluations, array_bytes, fits)

    @staticmethod
    def planned_size(problem: Problem, so_far: int | None = None) -> int:
        """Return the size that a build is likely to end with; ``so_far`` is the last round's."""
        if problem.kl is None:
            return problem.size
        if so_far is not None:
            return max(50, so_far)
        return min(problem.size, max(50, quadratic_size(problem)))

    @staticmethod
    def longest_path(size: int, fitted_draws: int) -> int:
        """Return the most rows of a path that is cut at ``size``."""
        return max(size, min(2 * size + 200, fitted_draws // 3))

    def effort_for(
        self, problem: Problem, so_far: int | None = None, effort: float = 1.0
    ) -> tuple[int, int]:
        """Return S and P of the next round; see `planned_size`."""
        size = self.planned_size(problem, so_far)
        least = FEWEST_DRAWS if problem.n_rows < LARGE else FEWEST_DRAWS // 2
        if self.site:
            least = max(least, FITTED_A_PARAMETER * problem.dim, CHEAP // problem.n_rows)
        usual = min(2000, max(least, 6 * size))
        if self.site and problem.kl is None and not problem.potentials.has_likelihood_params:
            usual = max(usual, min(MOST_FITTED, FITTED_A_ROW * size, DIRECTIONS * problem.dim))
        S = int(effort * (self.draws or usual))
        return S, int(effort * (self.pool or max(2000, 10 * size)))

    def sampled_rows(self, problem: Problem) -> int:
        """Return how many rows of a large table stand for the remainders of all, twice."""
        rows = max(ROWS // 2, 4 * self.effort_for(problem)[1])
        if problem.potentials.has_likelihood_params:
            return max(rows, ROWS_A_PARAMETER * problem.likelihood_dim)
        return rows


def _rows_only_plan(method: Settings, problem: Problem) -> Plan:
    """One pass at S draws is the least, or one at few and two of 1 + 2 d potentials a row."""
    n, (S, P) = problem.n_rows, _effort(method, problem)
    seen = method.subsample_size_for(problem)
    rounds, pool = method.most_rounds(problem), 2 * S * (P + 2 * problem.size)
    effort = 1 if problem.kl is None else 4
    most = float(effort * rounds * (n * S + pool))
    array_bytes = 4 * 8 * effort**2 * S * (P + 2 * problem.size)
    if seen is None:
        least = float(n * S + pool)
        passes = (1 if problem.kl is None else 2, rounds)
        usual = _usual_rounds(method, problem)
        fits = _plan_fits(method, problem, usual, usual, usual * least)
        return Plan(passes, (least, most), array_bytes, fits)
    corrected = n * (1 + 2 * problem.dim) + seen * S
    subsampled = float(2 * (corrected + pool) + n * CHECK_DRAWS)
    least = subsampled if problem.kl is None else subsampled + n * S + pool
    most += n * CHECK_DRAWS + corrected + (method.max_rounds - 2) * (corrected + pool)
    fits = _plan_fits(method, problem, _usual_rounds(method, problem), 3, least)
    return Plan((2, 2 * rounds + method.max_rounds - 1), (least, most), array_bytes, fits)


def _effort(method: Settings, problem: Problem) -> tuple[int, int]:
    """Return S and P of the first round, P at most N."""
    S, P = method.effort_for(problem)
    return S, min(P, problem.n_rows)


def _usual_rounds(method: Settings, problem: Problem) -> int:
    """Return how many rounds a build usually takes; all of them with too few rows for d."""
    if method.pilot_size(problem) == problem.n_rows:
        return 1
    few = 4 * method.planned_size(problem) < quadratic_size(problem)
    return method.max_rounds if few else min(USUAL_ROUNDS, method.max_rounds)


def _plan_fits(
    method: Settings, problem: Problem, rounds: int, passes: int, evaluations: float
) -> PlannedFits:
    """Count products of the pool and a vector in this many rounds.

    A row takes 1.2 in a pursuit, and 0.6 in a sweep of exchanges, of which there is one a round and
    some five for the final size. Far below the d(d+3)/2 numbers of a quadratic the path is as long
    as it may be, and each restart does the same work at half of the draws.
    """
    (S, P), M = _effort(method, problem), method.planned_size(problem)
    quadratic = quadratic_size(problem)
    picks = M if quadratic <= M else method.longest_path(M, (4 * S) // 5)
    products = rounds * (1.2 * picks + 0.6 * M) + 2.4 * M
    if quadratic > 4 * M:
        products += method.restarts * 1.6 * M
    shape = (P, (4 * S) // 5)
    return PlannedFits(passes, evaluations, method.pilot_size(problem), S, shape, products)
