"""MomentMatching: weighted rows with the first two derivatives of the whole table at the mode.

Near the mode θ* a potential is a quadratic, K = d(d + 3)/2 numbers v_n (`norms.Moments`), and

    KL(π_w‖π) ≈ ½ ‖Σ v_n − Σ w_n v_n‖²,

to second order, under π ≈ N(θ*, Σ). At most K rows meet the target exactly; what is left is of
third order in the width of the posterior. Two kinds of pass in all, whatever the size: Newton steps
to the mode, and one that sums the v_n and fills a pool of candidates.

`IteratedHilbert` approaches it on large tables with a smooth, nearly Gaussian posterior. It ignores
skewness, heavy tails and other modes.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax

from decoct.constructions.base import Chosen, OneStep, Plan, Problem, StepInfo, register
from decoct.constructions.hilbert.hilbert import HELD_OUT, predict_kls
from decoct.constructions.hilbert.norms import Moments
from decoct.constructions.hilbert.weighting import FullLaplace
from decoct.errors import RequestError
from decoct.runtime import progress
from decoct.runtime.checks import check_whole
from decoct.runtime.precision import float64
from decoct.runtime.randomness import host_rng
from decoct.solvers.base import Budget
from decoct.solvers.nnls import UnitVectors
from decoct.solvers.orthogonal_pursuit import OrthogonalPursuit


@dataclass(frozen=True)
class MomentMatching(OneStep):
    """Rows and weights that match the gradient and Hessian of Σ f_n at the mode.

    Attributes
    ----------
    pool
        P, candidate rows; default max(2000, 10 M, 6 K) with K = d(d + 3)/2.
    exchanges
        Most sweeps of swaps that refine each requested size.

    Raises
    ------
    RequestError
        A count is too small, or the candidates' derivatives do not fit in memory.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> method = decoct.constructions.MomentMatching()
    >>> decoct.build(model, rows, size=10, method=method).size <= 10
    True
    """

    pool: int | None = None
    exchanges: int = 40

    def __post_init__(self) -> None:
        check_whole(self, exchanges=0, pool=1)

    @float64
    def choose(self, key: jax.Array, problem: Problem) -> Chosen:
        needed = 8 * self._candidates(problem) * _moments(problem)
        if needed > 2**31:
            raise RequestError(
                f"{problem.dim} parameters have {_moments(problem):,} first and second "
                f"derivatives; those of {self._candidates(problem):,} candidate rows take "
                f"{needed / 1e9:.1f} GB. Give a smaller pool=, or take IteratedHilbert."
            )
        mode_key, pool_key, draw_key = jax.random.split(key, 3)
        potentials = problem.potentials
        gaussian = FullLaplace().gaussian(mode_key, potentials)
        at = Moments.of(potentials.space, gaussian)
        found = potentials.one_pass(at, self._candidates(problem), pool_key)
        unit = UnitVectors.scaled(potentials.vectors(found.pool.rows, at), found.totals)
        progress.begin("solving", problem.size, "picks")
        rng = host_rng(draw_key)
        path = OrthogonalPursuit(self.exchanges).solve(unit, Budget(problem.sizes), rng)
        chosen = predict_kls(problem, found.pool, path, gaussian.sample(rng, HELD_OUT))
        last = chosen[-1]
        residual = path[problem.size].residual_norm if path else 0.0
        numbers = {
            "moments": at.size,
            "pool": len(found.pool.indices),
            "rows": last.selection.size,
            "second_order_kl": 0.5 * residual**2,
            "predicted_kl": last.predicted_kl,
        }
        return chosen, StepInfo(f"{last.selection.size} rows", numbers)

    def plan(self, problem: Problem) -> Plan:
        """Newton steps of 1 + 2 d potentials a row, one pass of K, one that judges."""
        n, K = problem.n_rows, _moments(problem)
        fewest, most = (steps * n * (1 + 2 * problem.dim) for steps in (3, 30))
        rest = n * (K + HELD_OUT)
        array_bytes = 3 * 8 * self._candidates(problem) * K
        return Plan((5, 32), (float(fewest + rest), float(most + rest)), array_bytes)

    def _candidates(self, problem: Problem) -> int:
        asked = self.pool or max(2000, 10 * problem.size, 6 * _moments(problem))
        return min(problem.n_rows, asked)


def _moments(problem: Problem) -> int:
    return problem.dim * (problem.dim + 3) // 2


register("moment-matching", MomentMatching, compared_as="moment matching")
