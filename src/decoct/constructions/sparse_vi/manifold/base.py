"""The coreset posteriors π_w form a manifold with metric G(w) = Cov_w[f] (Campbell & Beronov 2019).

A `LocalView` answers, at one point w with a small support, all that Riemannian constructions ask:

    Corr_w[f_n, fᵀ(1 − w)] for every candidate row      the greedy choice (Eq. 10-11)
    vectors g_n of the support and b = Σ_n g_n whose inner products are covariances under π_w,
        so that ∇KL = −G(b − Gᵀw) (Eq. 9, 13)           the weight updates (Eq. 12, 94)
    KL(π_v‖π) for other weights v of the support (Eq. 6, up to a constant)

The methods of the base classes that are not abstract are those of the closed forms.
"""

from __future__ import annotations

import abc
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from decoct.constructions.base import Problem, Selection, no_weight
from decoct.data.base import Columns
from decoct.errors import RequestError
from decoct.passes.pools import Pool
from decoct.stats.divergences import Tangent

WHOLE_BYTES = 2**30
"""Most memory that all rows may take, with what is kept of each."""


class Origin(NamedTuple):
    """Where draws came from: enough to make them again."""

    key_data: np.ndarray
    selection: Selection  # rows and weights w₀
    start: Float[np.ndarray, " d"]  # where the sampler started
    centre: Float[np.ndarray, " d"]  # the mean of the draws: where it starts next


class LocalKL(NamedTuple):
    """KL(π_v‖π) in nats up to a constant that all v at one view share."""

    kl: float
    share: float  # of the draws, effectively, that stand behind it; 1 in closed form


class LocalView(abc.ABC):
    """The manifold at w, seen from the rows of a support; some of them may have no weight."""

    manifold: Any
    selection: Selection

    @property
    def origin(self) -> Origin | None:
        return None

    @abc.abstractmethod
    def covariances(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """Return the candidates, their Cov_w[f_n, fᵀ(1 − w)] and Var_w[f_n], and ‖b‖."""

    def best_row(self, blocked: Int[np.ndarray, " k"]) -> int | None:
        """Return the row of Eq. 10, not one of ``blocked``; None if no row lowers the KL.

        On rows that have weight the absolute value of the correlation counts.
        """
        if self.origin is None and self.predicted_kl() <= 1e-12:  # exact, in nats
            return None
        candidates, products, variances, length = self.covariances()
        varies = variances > np.finfo(float).tiny
        scores = np.full(len(products), -np.inf)
        scores[varies] = products[varies] / np.sqrt(variances[varies])
        active = self.selection.indices[self.selection.weights > 0.0]
        scores = np.where(np.isin(candidates, active) & varies, np.abs(scores), scores)
        scores[np.isin(candidates, blocked)] = -np.inf
        best = int(np.argmax(scores))
        promising = scores[best] > 1e-10 * length  # above round-off
        return int(candidates[best]) if promising else None

    @abc.abstractmethod
    def tangent(self) -> Tangent:
        """Return the support's vectors and the target; inner products are Cov_w."""

    @abc.abstractmethod
    def full_tangent(self) -> Tangent:
        """Return the vectors of every candidate row, and the target."""

    def with_support(self, selection: Selection) -> Any:
        """Return the view at the same weights, with other candidates for its support."""
        return replace(self, selection=selection)  # pyright: ignore

    def local_kl(self, weights: Float[np.ndarray, " m"]) -> LocalKL:
        """Return KL(π_v‖π)."""
        return LocalKL(self.manifold.kl(self.selection._replace(weights=weights)), 1.0)

    def predicted_kl(self) -> float:
        """Return KL(π_w‖π) in nats: exact, or ½Var_w[fᵀ(1 − w)] from the draws."""
        return self.manifold.kl(self.selection)


class Manifold(abc.ABC):
    """Supplies views; stores the problem, never a weight. Its methods take its own views only."""

    reuse = True
    """Whether a view may be made from the draws of another."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @property
    def n_rows(self) -> int:
        return self.problem.n_rows

    @abc.abstractmethod
    def at(self, key: jax.Array, selection: Selection) -> Any:
        """Return the view at these weights; in closed form the key decides nothing."""

    def with_row(self, view: Any, row: int) -> Any:
        """Return the view at the same weights with one more row in the support, at weight 0."""
        selection = view.selection
        if has_row(selection, row):
            return view
        columns = self.problem.potentials.rows.take(np.array([row]))
        kept = selection.weights > 0.0
        indices, weights = selection.indices[kept], selection.weights[kept]
        place = int(np.searchsorted(indices, row))
        rows = {
            name: np.insert(values[kept], place, columns[name][0], axis=0)
            for name, values in selection.rows.items()
        }
        return view.with_support(
            Selection(np.insert(indices, place, row), np.insert(weights, place, 0.0), rows)
        )

    def moved(self, key: jax.Array, view: Any, weights: Float[np.ndarray, " m"]) -> Any:
        """Return the view at other weights of the same support."""
        return self.at(key, view.selection._replace(weights=weights))

    def prune(self, view: Any) -> Any:
        """Return the view without the support's rows that have no weight."""
        return view.with_support(prune(view.selection))

    def restored(self, origin: Origin, selection: Selection) -> Any:
        """Return the view at these weights from the draws of ``origin``."""
        return self.at(jax.random.key(0), selection)

    def warm_started(self, origin: Origin | None) -> Manifold:
        """Return the manifold whose sampler starts from the draws of ``origin``."""
        return self


def require_room(size: float, what: str, instead: str) -> None:
    """Refuse what would take more than `WHOLE_BYTES`."""
    if size > WHOLE_BYTES:
        raise RequestError(f"{what} would take {size / 2**30:.1f} GB; {instead}.")


def row_bytes(problem: Problem) -> int:
    """Return what one encoded row takes, by which to judge all before they are asked for."""
    return sum(column.nbytes for column in no_weight(problem.potentials).rows.values())


def take_all_rows(problem: Problem) -> Columns:
    """Return every encoded row, for a closed form that keeps its coordinates as well."""
    require_room(
        problem.n_rows * (row_bytes(problem) + 8 * (problem.dim + 1)),
        f"The closed form needs all {problem.n_rows} rows in this process, where they",
        "choose among some of them at draws instead: exact=False with subsample=, the number of "
        "rows to choose from",
    )
    problem.potentials.counts.passes += 1
    return problem.potentials.rows.take(np.arange(problem.n_rows))


def prune(selection: Selection) -> Selection:
    """Return the rows that have weight; one without, for the shapes, if none has."""
    return some_rows(selection.pool, selection.weights, selection.weights > 0.0)


def some_rows(
    pool: Pool, weights: Float[np.ndarray, " n"], which: Bool[np.ndarray, " n"]
) -> Selection:
    """Return the rows of a mask; the first, for the shapes, if that is none."""
    kept = np.flatnonzero(which) if which.any() else np.zeros(1, dtype=np.int64)
    return Selection.of(pool.some(kept), weights[kept])


def has_row(selection: Selection, row: int) -> bool:
    """Whether the row has weight already."""
    return bool((selection.weights[selection.indices == row] > 0.0).any())
