"""The coreset posteriors π_w form a manifold with metric G(w) = Cov_w[f] (Campbell & Beronov 2019).

A `LocalView` answers, at one point w with a small support, all that Riemannian constructions ask:

    Corr_w[f_n, fᵀ(1 − w)] for every candidate row      the greedy choice (Eq. 10-11)
    vectors g_n of the support and b = Σ_n g_n whose inner products are covariances under π_w,
        so that ∇KL = −G(b − Gᵀw) (Eq. 9, 13)           the weight updates (Eq. 12, 94)
    KL(π_v‖π) for other weights v of the support (Eq. 6, up to a constant)
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Int

from decoct.constructions.base import Problem, Selection
from decoct.stats.tangent import Tangent

NOISE = 1e-10
"""Correlation with the residual, relative to ‖b‖, below which a row promises nothing."""


class Origin(NamedTuple):
    """Where draws came from: enough to make them again.

    Attributes
    ----------
    key_data
        The key.
    selection
        Rows and weights w₀.
    start : (d,)
        Where the sampler began to look.
    centre : (d,)
        The mean of the draws: where the sampler begins to look next.
    """

    key_data: np.ndarray
    selection: Selection
    start: Float[np.ndarray, " d"]
    centre: Float[np.ndarray, " d"]


class LocalKL(NamedTuple):
    """KL(π_v‖π) up to a constant that all v at one view share, and how far it can be trusted.

    Attributes
    ----------
    kl
        In nats.
    share
        Effective share of the draws that stand behind it; 1 in closed form.
    """

    kl: float
    share: float


@runtime_checkable
class LocalView(Protocol):
    """The manifold at w, seen from the rows of a support."""

    @property
    def selection(self) -> Selection:
        """The support with its weights; a weight may be 0."""
        ...

    @property
    def origin(self) -> Origin | None:
        """Return what the draws came from; None in closed form."""
        ...

    def best_row(self, blocked: Int[np.ndarray, " k"]) -> int | None:
        """Return the row of Eq. 10, not one of ``blocked``; None if no row promises anything."""
        ...

    def tangent(self) -> Tangent:
        """Return the support's vectors and the target; inner products are Cov_w."""
        ...

    def local_kl(self, weights: Float[np.ndarray, " m"]) -> LocalKL:
        """Return KL(π_v‖π) for other weights of the support, up to a constant."""
        ...

    def third_moments(self) -> tuple[Float[np.ndarray, "m S"], Float[np.ndarray, " S"]] | None:
        """Return √r_s g_n(θ_s) and (1 − w)ᵀg(θ_s), one entry per draw; None in closed form."""
        ...

    def predicted_kl(self) -> float:
        """Return KL(π_w‖π) in nats: exact, or ½Var_w[fᵀ(1 − w)] from the draws."""
        ...


@runtime_checkable
class Manifold(Protocol):
    """Supplies views; holds the problem, never a weight. It is asked about its own views only."""

    @property
    def n_rows(self) -> int:
        """N."""
        ...

    def at(self, key: jax.Array, selection: Selection) -> LocalView:
        """Return the view at these weights."""
        ...

    def with_row(self, view: Any, row: int) -> LocalView:
        """Return the view at the same weights with one more row in the support, at weight 0."""
        ...

    def moved(self, key: jax.Array, view: Any, weights: Float[np.ndarray, " m"]) -> LocalView:
        """Return the view at other weights of the same support."""
        ...

    def pruned(self, view: Any) -> LocalView:
        """Return the view without the support's rows that have no weight."""
        ...

    def restored(self, origin: Origin, selection: Selection) -> LocalView:
        """Return the view at these weights from the draws of ``origin``."""
        ...


def row_bytes(problem: Problem) -> int:
    """Return what one encoded row takes, by which to judge all before they are asked for."""
    one = problem.potentials.rows.take(np.zeros(1, dtype=np.int64))
    return sum(column.nbytes for column in one.values())


def with_row(selection: Selection, row: int, columns: dict[str, np.ndarray]) -> Selection:
    """Return the rows that have weight and one more, at weight 0."""
    kept = selection.weights > 0.0
    indices, weights = selection.indices[kept], selection.weights[kept]
    place = int(np.searchsorted(indices, row))
    rows = {
        name: np.insert(values[kept], place, columns[name][0], axis=0)
        for name, values in selection.rows.items()
    }
    return Selection(np.insert(indices, place, row), np.insert(weights, place, 0.0), rows)


def pruned(selection: Selection) -> Selection:
    """Return the rows that have weight; one without, for the shapes, if none has."""
    kept = np.flatnonzero(selection.weights > 0.0)
    if not len(kept):
        kept = np.zeros(1, dtype=np.int64)
    rows = {name: values[kept] for name, values in selection.rows.items()}
    return Selection(selection.indices[kept], selection.weights[kept], rows)


def has_row(selection: Selection, row: int) -> bool:
    """Whether the row has weight already."""
    return bool((selection.weights[selection.indices == row] > 0.0).any())


def correlations(
    products: Float[np.ndarray, " C"], variances: Float[np.ndarray, " C"]
) -> Float[np.ndarray, " C"]:
    """Return products/√variances, −∞ where a potential does not vary."""
    varies = variances > np.finfo(float).tiny
    scores = np.full(len(products), -np.inf)
    scores[varies] = products[varies] / np.sqrt(variances[varies])
    return scores


def greedy_row(
    scores: Float[np.ndarray, " C"],
    candidates: Int[np.ndarray, " C"],
    selection: Selection,
    blocked: Int[np.ndarray, " k"],
    least: float,
) -> int | None:
    """Return the candidate of Eq. 10: |score| counts on active rows, the score itself on others."""
    active = selection.indices[selection.weights > 0.0]
    scores = np.where(np.isin(candidates, active) & np.isfinite(scores), np.abs(scores), scores)
    scores[np.isin(candidates, blocked)] = -np.inf
    best = int(np.argmax(scores))
    return int(candidates[best]) if scores[best] > least else None
