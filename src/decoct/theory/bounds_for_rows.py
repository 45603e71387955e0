"""Bounds on the error of a Hilbert coreset of given rows, next to the error achieved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from decoct.constructions.base import Problem
from decoct.constructions.hilbert.hilbert import Hilbert
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import RequestError
from decoct.models.base import AbstractModel
from decoct.passes.potentials import Potentials
from decoct.runtime.randomness import host_rng
from decoct.samplers.automatic import Automatic
from decoct.solvers.base import Budget
from decoct.solvers.frank_wolfe import FrankWolfe
from decoct.solvers.importance_sampling import ImportanceSampling
from decoct.solvers.nnls import UnitVectors
from decoct.theory.alignment import geometry
from decoct.theory.bounds import BoundsTable, bounds_report


def hilbert_bounds(
    model: AbstractModel,
    rows: Any,
    sizes: Sequence[int],
    *,
    method: Hilbert,
    seed: int = 0,
    delta: float = 0.05,
    parts: int = 1,
) -> BoundsTable:
    """Return σ, η, η̄, ν and the bounds of the theorems next to the error achieved.

    Parameters
    ----------
    model, rows
        As for `decoct.build`; all rows must be candidates.
    sizes
        M, numbers of draws or greedy steps.
    method
        `Hilbert` with the solver `FrankWolfe` (Algorithm 2, exact or fixed step) or
        `ImportanceSampling`, those of the theorems, with M iterations.
    seed
        The space and the coresets are those of ``decoct.path(..., seed=seed)``.
    delta
        Probability that a bound on a random coreset may fail.
    parts
        C > 1 cuts the table in C parts, builds M steps on each and merges (Corollaries 4.5, 4.6).

    Returns
    -------
    BoundsTable
        Prints as a table. Errors are ‖Σ f_n − Σ w_n f_n‖ in the norm of ``method``, which for L2
        is the square root of twice the predicted KL in nats.

    Raises
    ------
    RequestError
        The theorems do not cover the method, a size or number of parts is invalid, or the table is
        too large to be embedded whole.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> from decoct import constructions, solvers
    >>> x = np.random.default_rng(0).normal(size=(300, 2))
    >>> method = constructions.Hilbert(solvers.FrankWolfe(), norm="fisher", exact=True)
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> table = decoct.hilbert_bounds(model, {"x": x}, [5, 50], method=method)
    >>> all(row.achieved <= row.bound for row in table.rows if row.achieved is not None)
    True
    """
    kind = _name_method(method)
    potentials = Potentials(model, encoded(as_rows(rows), model))
    budget = Budget(tuple(np.unique(sizes).tolist()))
    wanted = budget.sizes
    if not 1 <= parts <= potentials.n_rows:
        raise RequestError(f"parts must be between 1 and {potentials.n_rows}, not {parts}.")
    key = jax.random.fold_in(jax.random.key(seed), 1)  # the driver's first step
    space, _ = method.space(key, Problem(potentials, Automatic(), wanted))
    if len(space.vectors) < potentials.n_rows:
        raise RequestError(
            f"Only {len(space.vectors)} of {potentials.n_rows} rows are candidates; the theorems "
            "are about all of them. Lower draws, raise pool, or use a sample of the rows."
        )
    rng = host_rng(jax.random.fold_in(key, 1))
    residuals = {m: np.zeros_like(space.target) for m in wanted}
    for vectors in np.array_split(space.vectors, parts):
        target = vectors.sum(axis=0) if parts > 1 else space.target
        path = method.solver.solve(UnitVectors.scaled(vectors, target), budget, rng)
        for m in wanted:
            fitted = path[m].weights @ vectors[path[m].indices] if m in path else 0.0
            residuals[m] += target - fitted
    achieved = [float(np.linalg.norm(residuals[m])) for m in wanted]
    kind = kind if parts == 1 else f"merged_{kind}"
    return bounds_report(geometry(space.vectors), wanted, {kind: achieved}, delta, parts)


def _name_method(method: Hilbert) -> str:
    solver = getattr(method, "solver", None)
    if getattr(method, "iterations", None) is not None:
        raise RequestError("The bounds are for M iterations; leave out iterations=.")
    if isinstance(solver, ImportanceSampling):
        return "importance_sampling"
    if isinstance(solver, FrankWolfe) and solver.variant == "vanilla":
        return "fixed_step" if solver.step == "fixed" else "frank_wolfe"
    raise RequestError(
        "The theorems are about Hilbert(FrankWolfe()) with the vanilla variant and "
        f"Hilbert(ImportanceSampling()), not {method!r}."
    )
