"""Weighted rows to fewer weighted rows.

A coreset is itself a table, of rows with potentials w_n f_n. Compressing it once more is the same
problem with another target, b = Σ w_n g_n in place of Σ g_n:

    min_{v ≥ 0, ‖v‖₀ ≤ M} ‖Σ w_n g_n − Σ v_n g_n‖²,

so any construction does it, on the potentials of `Reweighted` rows. The draws come from the
posterior of the weighted rows, which a sampler can look at directly: they are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from decoct.constructions.base import Problem, Selection, SizedSelection
from decoct.constructions.iterated_hilbert.iterated_hilbert import IteratedHilbert
from decoct.data.arrays import ArrayRows
from decoct.data.base import Columns
from decoct.models.base import AbstractModel, Params, RawRows
from decoct.passes.potentials import Potentials
from decoct.runtime import progress
from decoct.samplers.base import Sampler, WeightedDensity
from decoct.status import Status

ALL_CANDIDATES = 5000
"""Weighted rows up to which all of them are candidates and supply the draws."""


class Reweighted(AbstractModel):
    """A model whose encoded rows carry weights: potentials w_n f_n.

    Attributes
    ----------
    inner
        The model of the rows themselves.
    weight
        The column that holds w_n, which is none of the inner model's.
    """

    inner: AbstractModel
    weight: str = eqx.field(static=True)

    @classmethod
    def of(cls, inner: AbstractModel, rows: Columns) -> Reweighted:
        """Return the model of rows with a column of weights more, by a name they do not have."""
        name = "weight"
        while name in rows:
            name += "_"
        return cls(inner, name)

    def unweighted(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of the inner model."""
        return {name: column for name, column in rows.items() if name != self.weight}

    def init(self, rows: RawRows) -> Params:
        return self.inner.init(self.unweighted(rows))

    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        return rows[self.weight] * self.inner.log_likelihood(params, self.unweighted(rows))

    def log_prior(self, params: Params) -> Float[Array, ""]:
        return self.inner.log_prior(params)


@dataclass(frozen=True)
class WeightedProblem(Problem):
    """A problem on `Reweighted` rows. Samplers see the model itself, which they may know."""

    def density(self, selection: Selection, padded_as: int = 0) -> WeightedDensity:
        """Return π_w, with the two weights of each row multiplied."""
        model: Any = self.potentials.model
        weights = selection.weights * selection.rows[model.weight]
        rows = model.unweighted(selection.rows)
        return WeightedDensity.of(model.inner, rows, weights, padded_as)


class Recompressed(NamedTuple):
    """What came of a compression.

    Attributes
    ----------
    positions : (m,)
        Which of the given rows are kept, ascending.
    chosen
        The rows kept, with the numbers they had, and the predicted KL to the given rows' posterior.
    status
        How it ended.
    rounds
        Figures for the report, one dict a round.
    evaluations
        Potentials evaluated.
    """

    positions: np.ndarray
    chosen: SizedSelection
    status: Status
    rounds: list[dict[str, Any]]
    evaluations: int


def recompress(
    key: jax.Array,
    model: AbstractModel,
    given: Selection,
    size: int,
    sampler: Sampler,
    method: IteratedHilbert | None = None,
) -> Recompressed:
    """Return at most ``size`` of some weighted rows, with new weights, to stand for them all.

    Parameters
    ----------
    key
        Decides the draws.
    model
        The model of the rows.
    given
        Encoded rows, their weights, and their numbers in the table they are from.
    size
        M, fewer than there are rows.
    sampler
        Supplies the draws.
    method
        How; default ``IteratedHilbert()``. Up to `ALL_CANDIDATES` rows its pilot is all of them, so
        that one round at the draws of their own posterior does.
    """
    weighted = Reweighted.of(model, given.rows)
    table = ArrayRows({**given.rows, weighted.weight: given.weights})
    potentials = Potentials(weighted, table, numbers=given.indices)
    problem = WeightedProblem(potentials, sampler, (size,))
    method = IteratedHilbert() if method is None else method
    method = replace(method, pilot=min(given.size, ALL_CANDIDATES))
    progress.begin("preparing", given.size)
    state, rounds = method.init(jax.random.fold_in(key, 0), problem), []
    while method.status(problem, state) is Status.RUNNING:
        progress.begin(f"compressing again, round {len(rounds) + 1}", given.size)
        round_key = jax.random.fold_in(key, len(rounds) + 1)
        state, info = method.step(round_key, problem, state)
        rounds.append(info.numbers)
    chosen = method.path(state)[-1]
    kept = chosen.selection.indices
    selection = Selection(
        given.indices[kept],
        chosen.selection.weights * given.weights[kept],
        weighted.unweighted(chosen.selection.rows),
    )
    return Recompressed(
        kept,
        SizedSelection(selection, chosen.predicted_kl),
        method.status(problem, state),
        rounds,
        problem.potentials.counts.evaluations,
    )
