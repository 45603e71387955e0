"""What theory promises for a Hilbert coreset of one's own rows, next to what is achieved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from decoct.constructions.base import Problem
from decoct.constructions.hilbert import Hilbert
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.diagnostics.alignment import geometry
from decoct.diagnostics.bounds import BoundsTable, bounds_report
from decoct.errors import RequestError
from decoct.models.base import AbstractModel
from decoct.posteriors.automatic import Automatic
from decoct.potentials import Potentials
from decoct.randomness import host_rng
from decoct.solvers.active_set import UnitVectors
from decoct.solvers.base import Budget
from decoct.solvers.frank_wolfe import FrankWolfe
from decoct.solvers.importance_sampling import ImportanceSampling


def hilbert_bounds(
    model: AbstractModel,
    rows: Any,
    sizes: Sequence[int],
    *,
    method: Hilbert,
    seed: int = 0,
    delta: float = 0.05,
) -> BoundsTable:
    """Return σ, η, η̄, ν and the bounds of the theorems next to the error achieved.

    Parameters
    ----------
    model, rows
        As for `decoct.build`; all rows must be candidates.
    sizes
        M, numbers of draws or greedy steps.
    method
        `Hilbert` with the solver `FrankWolfe` (exact or fixed step) or `ImportanceSampling`, the
        ones the theorems speak of.
    seed
        The space and the coresets are those of ``decoct.path(..., seed=seed)``.
    delta
        Probability that a bound on a random coreset may fail.

    Returns
    -------
    BoundsTable
        Prints as a table. Errors are ‖Σ f_n − Σ w_n f_n‖ in the norm of ``method``, which for L2
        is the square root of twice the predicted KL in nats.

    Raises
    ------
    RequestError
        The solver is not one the theorems speak of, or the table is too large to be embedded whole.

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
    kind = _kind(method)
    potentials = Potentials(model, encoded(as_rows(rows), model))
    wanted = tuple(sorted(set(sizes)))
    problem = Problem(potentials, Automatic(), wanted)
    key = jax.random.fold_in(jax.random.key(seed), 1)  # the driver's first step
    space, _ = method.space(key, problem)
    if len(space.vectors) < potentials.n_rows:
        raise RequestError(
            f"Only {len(space.vectors)} of {potentials.n_rows} rows are candidates; the theorems "
            "speak of all of them. Lower draws, raise pool, or use a sample of the rows."
        )
    unit = UnitVectors.scaled(space.vectors, space.target)
    path = method.solver.solve(
        unit, Budget(wanted, method.iterations), host_rng(jax.random.fold_in(key, 1))
    )
    zero = float(np.linalg.norm(space.target))
    achieved = [path[m].residual_norm if m in path else zero for m in wanted]
    return bounds_report(geometry(space.vectors), wanted, {kind: achieved}, delta)


def _kind(method: Hilbert) -> str:
    if isinstance(method.solver, ImportanceSampling):
        return "importance_sampling"
    if isinstance(method.solver, FrankWolfe):
        return "fixed_step" if method.solver.step == "fixed" else "frank_wolfe"
    raise RequestError(
        f"The theorems are about FrankWolfe and ImportanceSampling, not "
        f"{type(method.solver).__name__}."
    )
