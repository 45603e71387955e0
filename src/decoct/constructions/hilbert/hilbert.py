"""Hilbert coresets (Campbell & Broderick 2019, Algorithm 3).

    1. draw μ_1..μ_S from a weighting distribution π̂                       (`decoct.weighting`)
    2. embed every row: v_n in R^S, ⟨v_n, v_m⟩ ≈ ⟨f_n, f_m⟩_π̂, Eq. 5.7, 5.10  (`.norms`)
    3. min ‖Σ v_n − Σ w_n v_n‖ over w ≥ 0, at most M of them positive, Eq. 3.2   (`decoct.solvers`)

The tangent space is fixed by π̂; `IteratedHilbert` updates it.

At held-out draws of π̂, ½Var[Σ(1 − w_n)f_n] predicts KL(π_w‖π) in nats, as far as π̂ resembles π,
whatever the norm that was minimised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from decoct.constructions.base import (
    Chosen,
    OneStep,
    Plan,
    Problem,
    Selection,
    SizedSelection,
    StepInfo,
    equal_weight_rows,
    register,
)
from decoct.constructions.hilbert.norms import ExactGaussian, Scores
from decoct.constructions.hilbert.weighting import FullLaplace, Given, Weighting, as_weighting
from decoct.errors import RequestError
from decoct.passes.chunk_sums import Embedding, as_embedding
from decoct.passes.pools import Pool
from decoct.runtime import progress
from decoct.runtime.checks import check_whole
from decoct.runtime.precision import float64
from decoct.runtime.randomness import host_rng
from decoct.solvers.base import Budget, Path, Solver
from decoct.solvers.frank_wolfe import FrankWolfe
from decoct.solvers.giga import GIGA
from decoct.solvers.importance_sampling import ImportanceSampling
from decoct.solvers.nnls import UnitVectors
from decoct.solvers.orthogonal_pursuit import OrthogonalPursuit
from decoct.stats.divergences import tangent

POOL_BYTES = 2**31
"""Most memory the pool's vectors may take unless ``pool`` says otherwise."""

DOUBLE_BYTES = 2**30
"""Pools whose vectors take more than this in double precision are stored in single."""

HELD_OUT = 100
"""Fewest draws at which the KL is predicted."""


class Space(NamedTuple):
    """The candidate rows as vectors v_n, and the sum over all rows."""

    pool: Pool  # the candidates; without their columns if they are all rows
    vectors: Float[np.ndarray, "P S"]  # v_n, centred (L2) and scaled to the norm's inner products
    target: Float[np.ndarray, " S"]  # Σ_n v_n over all N rows
    sum_of_norms: float | None  # Σ_n ‖v_n‖ over all rows where ``vectors`` has only some of them


@dataclass(frozen=True)
class Hilbert(OneStep):
    """Sparse approximation of Σ f_n in a Hilbert space of log-likelihoods.

    Attributes
    ----------
    solver
        `FrankWolfe`, `GIGA`, `ImportanceSampling`, `OrthogonalPursuit` or `IterativeThresholding`
        of `decoct.solvers`.
    norm
        "l2", the weighted L2 norm of centred log-likelihoods (Eq. 5.3), or "fisher", the weighted
        Fisher information norm of their gradients (Eq. 5.1).
    weighting
        π̂: "laplace", "prior", "subsample" (NUTS on 1,000 rows), "pathfinder", an array of
        draws (S, d), or a distribution of `decoct.weighting`.
    draws
        S, the dimension of the projection; the paper's J. Ignored for given draws.
    exact
        Use the inner product in closed form in place of the projection (`GaussianMean` with
        weighting="laplace" only; Eq. 6.5).
    pool
        Most candidate rows, at least as many as are kept; None for all of them as long as their
        vectors take at most 2 GB. A pool smaller than the table is drawn with probability ∝ ‖v_n‖²
        and uniformly, half each.
    iterations
        Most iterations of the solver; None for as many as rows are asked for, the paper's M (the
        coreset then often has fewer rows). Not for pursuit and importance sampling.

    Raises
    ------
    RequestError
        The solver, norm or weighting is unknown, a count is too small, or ``exact`` has no Gaussian
        weighting.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> method = decoct.constructions.Hilbert(decoct.solvers.GIGA(), draws=100)
    >>> decoct.build(model, rows, size=10, method=method).size <= 10
    True
    """

    solver: Solver = field(default_factory=OrthogonalPursuit)
    norm: str = "l2"
    weighting: Any = "laplace"
    draws: int = 500
    exact: bool = False
    pool: int | None = None
    iterations: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.solver, type) or not hasattr(self.solver, "solve"):
            raise RequestError(f"solver must be one of decoct.solvers, not {self.solver!r}.")
        if self.norm not in ("l2", "fisher"):
            raise RequestError(f"norm must be one of l2, fisher, not {self.norm!r}.")
        check_whole(self, draws=2, pool=1, iterations=1)
        object.__setattr__(self, "weighting", as_weighting(self.weighting))
        if self.exact and not isinstance(self.weighting, FullLaplace):
            raise RequestError(
                "exact=True needs a Gaussian weighting distribution; use weighting='laplace'."
            )

    def choose(self, key: jax.Array, problem: Problem) -> Chosen:
        space, held_out = self.space(key, problem)
        unit = UnitVectors.scaled(
            space.vectors, space.target, overwrite=True, sum_of_norms=space.sum_of_norms
        )
        progress.begin("solving", self.iterations or problem.size, "picks")
        budget = Budget(problem.sizes, self.iterations)
        path = self.solver.solve(unit, budget, host_rng(jax.random.fold_in(key, 1)))
        chosen = predict_kls(problem, space.pool, path, held_out)
        last, length = chosen[-1], float(np.linalg.norm(space.target))
        known = problem.size in path and length > 0.0
        numbers = {
            "draws": space.vectors.shape[1],
            "pool": len(space.pool.indices),
            "rows": last.selection.size,
            # ‖Σ f_n − Σ w_n f_n‖/‖Σ f_n‖ in the norm, for the largest size
            "relative_error": path[problem.size].residual_norm / length if known else None,
            "predicted_kl": last.predicted_kl,
        }
        return chosen, StepInfo(f"{last.selection.size} rows", numbers)

    def plan(self, problem: Problem) -> Plan:
        """One pass that embeds, one that judges, and those of the weighting distribution."""
        n, judged = problem.n_rows, max(HELD_OUT, self.draws // 5)
        fewest, most = (3, 30) if isinstance(self.weighting, FullLaplace) else (0, 0)
        newton = 1 + 2 * problem.dim
        held_out = not isinstance(self.weighting, Given)
        known = n * (self.draws + (judged if held_out else 0))
        rows = min(n, max(problem.size, self.pool or POOL_BYTES // (4 * self.draws)))
        itemsize = 8 if 8 * rows * self.draws <= DOUBLE_BYTES else 4
        return Plan(
            (1 + held_out + fewest, 1 + held_out + most),
            (float(known + fewest * newton * n), float(known + most * newton * n)),
            2 * itemsize * rows * self.draws,
        )

    def space(
        self, key: jax.Array, problem: Problem
    ) -> tuple[Space, Float[np.ndarray, "T d"] | None]:
        """Return the rows as vectors, and held-out draws."""
        weighting_key, pool_key = jax.random.split(key)
        weighting: Weighting = self.weighting
        if isinstance(weighting, Given):
            fit, held_out = weighting.draw(weighting_key, problem.potentials, self.draws), None
        else:
            extra = max(HELD_OUT, self.draws // 5)
            draws = weighting.draw(weighting_key, problem.potentials, self.draws + extra)
            # Chains come one after the other; mixed up, both parts see all of them.
            order = host_rng(jax.random.fold_in(weighting_key, 1)).permutation(len(draws))
            fit, held_out = draws[order[: self.draws]], draws[order[self.draws :]]
        at = self._embedding(weighting_key, problem, fit)
        return self._embed(pool_key, problem, at), held_out

    @float64
    def _embedding(
        self, key: jax.Array, problem: Problem, draws: Float[np.ndarray, "S d"]
    ) -> Embedding:
        if self.exact:
            gaussian = self.weighting.gaussian(key, problem.potentials)
            return ExactGaussian.of(problem.potentials.model, gaussian, self.norm)
        if self.norm == "fisher":
            rng = host_rng(jax.random.fold_in(key, 2))
            return Scores.at(problem.potentials.space, draws, rng)
        return as_embedding(draws)

    def _embed(self, key: jax.Array, problem: Problem, at: Embedding) -> Space:
        potentials, n = problem.potentials, problem.n_rows
        most = max(problem.size, self.pool or POOL_BYTES // (4 * at.size))
        dtype = np.float64 if 8 * min(n, most) * at.size <= DOUBLE_BYTES else np.float32
        if most >= n:
            progress.begin("embedding rows", n)
            vectors, target = potentials.all_vectors(at, dtype)
            return Space(Pool(np.arange(n), {}), vectors, target, None)
        if isinstance(self.solver, ImportanceSampling):
            raise RequestError(
                f"Importance sampling needs every row as a candidate; pool allows {most} of {n}. "
                "Raise pool, lower draws, or take FrankWolfe or GIGA."
            )
        found = potentials.one_pass(at, most, key)
        vectors = at.vectors(potentials.vectors(found.pool.rows, at)).astype(dtype, copy=False)
        return Space(found.pool, vectors, at.vectors(found.totals), found.norm_sum * at.scale)


def predict_kls(
    problem: Problem, pool: Pool, path: Path, held_out: Float[np.ndarray, "T d"] | None
) -> tuple[SizedSelection, ...]:
    """Return the rows of a solver's path, with ½Var[Σ(1 − w_n)f_n] at held-out draws, in nats.

    A size that no iterate fits into is left to the smallest that has one; without any, rows have
    equal weight.
    """
    potentials, chosen = problem.potentials, []
    if not path:
        pool = Pool(pool.indices, pool.rows or potentials.rows.take(pool.indices))
        chosen = [equal_weight_rows(problem, pool, m) for m in problem.sizes]
    for solution in [path.get(m, path[min(path)]) for m in problem.sizes] if path else []:
        indices, rows = pool.some(solution.indices)
        rows = rows or potentials.rows.take(indices)
        chosen.append(Selection(indices, solution.weights, rows))
    if held_out is None:
        return tuple(SizedSelection(one, None) for one in chosen)
    totals, sized = potentials.totals(held_out), []
    for one in chosen:
        at = tangent(potentials.vectors(one.rows, held_out), totals)
        sized.append(SizedSelection(one, at.predicted_kl(np.arange(one.size), one.weights)))
    return tuple(sized)


register("pursuit", lambda: Hilbert(OrthogonalPursuit()))
register("giga", lambda: Hilbert(GIGA()), compared_as="GIGA")
register("frank-wolfe", lambda: Hilbert(FrankWolfe()))
register("importance-sampling", lambda: Hilbert(ImportanceSampling()))
