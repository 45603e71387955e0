"""What conjugate manifolds share: π_w is a known Gaussian, so that KL(π_v‖π) is exact."""

from __future__ import annotations

import abc
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from decoct.constructions.base import Problem, Selection
from decoct.constructions.sparse_vi.manifold.base import (
    LocalKL,
    Origin,
    has_row,
    pruned,
    row_bytes,
    with_row,
)
from decoct.constructions.sparse_vi.manifold.sampled import WHOLE_BYTES
from decoct.data.base import Columns
from decoct.errors import RequestError

CONVERGED = 1e-12
"""KL(π_w‖π) in nats below which no row can help."""


class ExactManifold(abc.ABC):
    """Base of the conjugate manifolds; holds every encoded row.

    Sub-classes give KL(π_w‖π) and the view at a selection.

    Raises
    ------
    RequestError
        The rows would not fit into memory.
    """

    def __init__(self, problem: Problem) -> None:
        _require_room(problem)
        self.problem = problem
        self.rows: Columns = problem.potentials.rows.take(np.arange(problem.n_rows))
        problem.potentials.counts.passes += 1

    @property
    def n_rows(self) -> int:
        return self.problem.n_rows

    @abc.abstractmethod
    def local_kl(self, selection: Selection) -> LocalKL:
        """Return KL(π_w‖π), exactly."""

    def columns(self, row: int) -> Columns:
        return {name: values[row : row + 1] for name, values in self.rows.items()}

    @abc.abstractmethod
    def at(self, key: jax.Array, selection: Selection) -> Any:
        """Return the view at these weights; the key decides nothing."""

    def with_row(self, view: Any, row: int) -> Any:
        if has_row(view.selection, row):
            return view
        return replace(view, selection=with_row(view.selection, row, self.columns(row)))

    def moved(self, key: jax.Array, view: Any, weights: Float[np.ndarray, " m"]) -> Any:
        return self.at(key, view.selection._replace(weights=weights))

    def pruned(self, view: Any) -> Any:
        return replace(view, selection=pruned(view.selection))

    def restored(self, origin: Origin, selection: Selection) -> Any:
        return self.at(jax.random.key(0), selection)


def _require_room(problem: Problem) -> None:
    """Refuse more rows than may be here: each as it is and in the coordinates of the posterior."""
    size = problem.n_rows * (row_bytes(problem) + 8 * (problem.dim + 1))
    if size > WHOLE_BYTES:
        raise RequestError(
            f"The closed form needs all {problem.n_rows} rows in this process, where they would "
            f"take {size / 2**30:.1f} GB; choose among some of them at draws instead: exact=False "
            "with subsample=, the number of rows to choose from."
        )
