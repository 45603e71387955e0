"""All candidate rows at once, for steps that use every one of them (Campbell & Beronov 2019, D.3).

A view of the manifold has the vectors of a small support; proximal gradients need those of all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from decoct.constructions.base import Selection
from decoct.constructions.sparse_vi.manifold import Manifold, Origin
from decoct.data.base import Columns

Dense = Float[np.ndarray, " C"]
"""A number for every candidate row."""


@dataclass(frozen=True)
class CandidateSet:
    """The rows among which to choose, and dense weights of theirs.

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
    scales: Dense

    def warm_started(self, origin: Origin | None) -> CandidateSet:
        """Return the candidates with samplers that start where the draws of ``origin`` lie."""
        return replace(self, manifold=self.manifold.warm_started(origin))

    def selection(self, weights: Dense, which: np.ndarray | None = None) -> Selection:
        """Return the candidates that have weight, or those of a mask; one, if that is none."""
        used = np.flatnonzero(weights if which is None else which)
        if not len(used):
            used = np.zeros(1, dtype=np.int64)
        rows = {name: column[used] for name, column in self.rows.items()}
        return Selection(self.candidates[used], weights[used], rows)

    def places(self, selection: Selection) -> Int[np.ndarray, " m"]:
        """Return where a selection's rows are among the candidates."""
        return np.searchsorted(self.candidates, selection.indices)

    def dense(self, selection: Selection) -> Dense:
        """Return the weights of all candidates."""
        weights = np.zeros(len(self.candidates))
        weights[self.places(selection)] = selection.weights
        return weights

    def sum_of_scaled(self, selection: Selection) -> float:
        """Return Σ f̃_n w_n."""
        return float(self.scales @ self.dense(selection))

    def spanning(self, view: Any, which: np.ndarray) -> Any:
        """Return the view at the same weights with the candidates of a mask for its support."""
        return view.supported_by(self.selection(self.dense(view.selection), which))
