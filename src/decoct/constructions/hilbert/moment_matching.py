"""MomentMatching: weighted rows with the first two derivatives of the whole table at the mode.

Near the mode θ* a potential is a quadratic, K = d(d + 3)/2 numbers v_n (`embeddings.Moments`), and

    KL(π_w‖π) ≈ ½ ‖Σ v_n − Σ w_n v_n‖²,

to second order, under π ≈ N(θ*, Σ). At most K rows meet the target exactly; what is left is of
third order in the width of the posterior. Two kinds of pass in all, whatever the size: Newton steps
to the mode, and one that sums the v_n and fills a pool of candidates.

It is what `IteratedHilbert` comes to on large tables with a smooth, nearly Gaussian posterior; it
does not see skewness, heavy tails or a second mode.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import numpy as np

from decoct.constructions.base import (
    OneStep,
    OneStepState,
    Plan,
    Problem,
    Selection,
    SizedSelection,
    StepInfo,
    equal_weight_rows,
)
from decoct.constructions.hilbert.hilbert import HELD_OUT, predicted
from decoct.constructions.hilbert.norms import Moments
from decoct.constructions.hilbert.weighting import FullLaplace
from decoct.constructions.registry import register
from decoct.errors import RequestError
from decoct.runtime import progress
from decoct.runtime.precision import float64
from decoct.runtime.randomness import host_rng
from decoct.solvers.orthogonal_pursuit import orthogonal_pursuit

MOST_BYTES = 2**31
"""Most memory the pool's derivatives may take."""


@dataclass(frozen=True)
class MomentMatching(OneStep):
    """Rows and weights that match the gradient and Hessian of Σ f_n at the mode.

    Attributes
    ----------
    pool
        P, candidate rows; default max(2000, 10 M, 6 K) with K = d(d + 3)/2.
    exchanges
        Most sweeps of swaps that refine each requested size.
    """

    pool: int | None = None
    exchanges: int = 40
    _laplace: FullLaplace = field(default_factory=FullLaplace, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, least in (("pool", 1), ("exchanges", 0)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | np.integer) and value >= least):
                raise RequestError(
                    f"{name} must be a whole number, at least {least}, not {value!r}."
                )

    def init(self, key: jax.Array, problem: Problem) -> OneStepState:
        needed = 8 * self._candidates(problem) * _moments(problem)
        if needed > MOST_BYTES:
            raise RequestError(
                f"{problem.dim} parameters have {_moments(problem):,} first and second "
                f"derivatives; those of {self._candidates(problem):,} candidate rows take "
                f"{needed / 1e9:.1f} GB. Give a smaller pool=, or take IteratedHilbert."
            )
        return super().init(key, problem)

    @float64
    def step(
        self, key: jax.Array, problem: Problem, state: OneStepState
    ) -> tuple[OneStepState, StepInfo]:
        mode_key, pool_key, draw_key = jax.random.split(key, 3)
        potentials = problem.potentials
        gaussian = self._laplace.gaussian(mode_key, potentials)
        at = Moments.of(potentials.space, gaussian)
        found = potentials.one_pass(at, self._candidates(problem), pool_key)
        vectors = potentials.vectors(found.pool.rows, at)
        progress.begin("solving", problem.size, "picks")
        path = orthogonal_pursuit(
            vectors,
            found.totals,
            problem.size,
            sizes=problem.sizes,
            stop=lambda solution: bool(progress.advance(1, "picks")),
            exchanges=self.exchanges,
        )
        chosen = []
        for size in problem.sizes:
            fitting = [m for m in path if m <= size]
            if not fitting:
                chosen.append(SizedSelection(equal_weight_rows(problem, found.pool, size), None))
                continue
            best = path[min(fitting, key=lambda m: path[m].residual_norm)]
            rows = {name: column[best.indices] for name, column in found.pool.rows.items()}
            picked = Selection(found.pool.indices[best.indices], best.weights, rows)
            chosen.append(SizedSelection(picked, None))
        draws = gaussian.sample(host_rng(draw_key), HELD_OUT)
        judged = predicted(problem, tuple(chosen), draws)
        last = judged[-1]
        residual = min((one.residual_norm for one in path.values()), default=0.0)
        numbers = {
            "moments": at.size,
            "pool": len(found.pool.indices),
            "rows": last.selection.size,
            "second_order_kl": 0.5 * float(residual) ** 2,
            "predicted_kl": last.predicted_kl,
        }
        return OneStepState(judged), StepInfo(f"{last.selection.size} rows", numbers)

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
