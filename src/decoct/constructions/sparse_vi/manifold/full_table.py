"""All rows at once: their vectors at one point of the manifold (Campbell & Beronov 2019, D.3).

A view of the manifold has the vectors of a small support. Methods whose every step uses all
candidate rows, such as proximal gradients, take from a `CandidateSet` the vectors of all of them,
whose inner products are Cov_w[f_n, f_m]: at draws (Eq. 13), and in closed form for conjugate models
(Eq. 21, 24). With β_n, ν_n and σ of `manifold.linear`, the latter are those of

    σ⁻² (ν_nβ_n, β_nβ_nᵀ/√2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from decoct.constructions.base import Problem, Selection
from decoct.constructions.sparse_vi.manifold.base import Manifold, Origin
from decoct.constructions.sparse_vi.manifold.choice import (
    has_closed_form,
    manifold_of,
    warm_started,
)
from decoct.constructions.sparse_vi.manifold.gaussian import GaussianView
from decoct.constructions.sparse_vi.manifold.linear import LinearView
from decoct.constructions.sparse_vi.manifold.sampled import WHOLE_BYTES, SampledView
from decoct.data.base import Columns
from decoct.errors import RequestError
from decoct.stats.tangent import Tangent


@dataclass(frozen=True)
class CandidateSet:
    """All candidates, at any view.

    Attributes
    ----------
    manifold
        Supplies the views.
    candidates : (C,)
        Global row numbers, ascending.
    rows
        Their columns.
    scales : (C,)
        f̃_n, the lengths of their vectors under the prior; zero where a potential does not vary.
    """

    manifold: Manifold
    candidates: Int[np.ndarray, " C"]
    rows: Columns
    scales: Float[np.ndarray, " C"]

    @classmethod
    def of(
        cls,
        problem: Problem,
        draws: int,
        *,
        candidates: Int[np.ndarray, " C"],
        scales: Float[np.ndarray, " C"],
        subsample_totals: bool,
        control_variates: bool,
        reuse: bool,
        exact: bool,
    ) -> CandidateSet:
        """Return the every of a problem; closed forms need all rows for candidates.

        Raises
        ------
        RequestError
            The vectors of a closed form would not fit into memory.
        """
        if exact and has_closed_form(problem):
            _require_room(problem)
        manifold = manifold_of(
            problem,
            draws,
            exact=exact,
            subsample_totals=subsample_totals,
            control_variates=control_variates,
            reuse=reuse,
            candidates=candidates if len(candidates) < problem.n_rows else None,
        )
        return cls(manifold, candidates, problem.potentials.rows.take(candidates), scales)

    def warm_started(self, origin: Origin | None) -> CandidateSet:
        """Return the candidates with samplers that start where the draws of ``origin`` lie."""
        return replace(self, manifold=warm_started(self.manifold, origin))

    def empty_selection(self) -> Selection:
        """Return w = 0; one row gives it its shapes."""
        return Selection(self.candidates[:1], np.zeros(1), self._take(np.zeros(1, dtype=np.int64)))

    def selection(self, weights: Float[np.ndarray, " C"]) -> Selection:
        """Return the candidates that have weight."""
        used = np.flatnonzero(weights)
        if not len(used):
            return self.empty_selection()
        return Selection(self.candidates[used], weights[used], self._take(used))

    def places(self, selection: Selection) -> Int[np.ndarray, " m"]:
        """Return where a selection's rows are among the candidates."""
        return np.searchsorted(self.candidates, selection.indices)

    def dense(self, selection: Selection) -> Float[np.ndarray, " C"]:
        """Return the weights of all candidates."""
        weights = np.zeros(len(self.candidates))
        weights[self.places(selection)] = selection.weights
        return weights

    def sum_of_scaled(self, selection: Selection) -> float:
        """Return Σ f̃_n w_n."""
        return float(self.scales @ self.dense(selection))

    def largest(self, selection: Selection, size: int) -> Selection:
        """Return the rows with the largest f̃_n w_n."""
        weights = self.dense(selection)
        order = np.argsort(-weights * self.scales, kind="stable")
        weights[order[size:]] = 0.0
        return self.selection(weights)

    def tangent(self, view: Any) -> Tangent:
        """Return the vectors of every candidate; inner products are Cov_w."""
        if isinstance(view, SampledView):
            _, potentials = view.manifold.choice(view.cloud)
            return replace(view, support=potentials).tangent()
        if isinstance(view, GaussianView):
            return Tangent(view.vectors(view.manifold.y), view.target)
        return _linear_tangent(view, self.rows)

    def spanning(self, view: Any, which: np.ndarray) -> Any:
        """Return the view at the same weights with these candidates for its support."""
        used = np.flatnonzero(which)
        if not len(used):
            used = np.zeros(1, dtype=np.int64)
        weights = self.dense(view.selection)[used]
        selection = Selection(self.candidates[used], weights, self._take(used))
        if not isinstance(view, SampledView):
            return replace(view, selection=selection)
        _, potentials = view.manifold.choice(view.cloud)
        return replace(view, selection=selection, support=potentials[used])

    def _take(self, places: np.ndarray) -> Columns:
        return {name: column[places] for name, column in self.rows.items()}


def _linear_tangent(view: LinearView, rows: Columns) -> Tangent:
    """Return σ⁻²(νβ, ββᵀ/√2) of every row, and their sum."""
    beta, nu = rows["x"] @ view.root, rows["y"] - rows["x"] @ view.mean
    first, second = np.triu_indices(beta.shape[1])
    twice = np.where(first == second, np.sqrt(0.5), 1.0)  # off the diagonal a product counts twice
    vectors = np.hstack([nu[:, None] * beta, twice * beta[:, first] * beta[:, second]])
    vectors *= view.manifold.precision
    return Tangent(vectors, vectors.sum(axis=0))


def _require_room(problem: Problem) -> None:
    size = 4 * problem.n_rows * problem.dim * (problem.dim + 3)
    if size > WHOLE_BYTES:
        raise RequestError(
            f"The closed form of {problem.n_rows} rows in {problem.dim} dimensions would take "
            f"{size / 2**30:.1f} GB; take draws instead: exact=False."
        )
