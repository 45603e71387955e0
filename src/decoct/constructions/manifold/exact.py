"""What conjugate manifolds share: π_w is a known Gaussian, so that KL(π_v‖π) is exact."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from scipy.linalg import cho_factor, cho_solve

from decoct.constructions.base import Problem, Selection
from decoct.constructions.manifold.base import Height, Origin, has_row, pruned, with_row
from decoct.data.base import Columns
from decoct.diagnostics.divergences import Gaussian, kl_gaussian


@dataclass(frozen=True)
class Information:
    """Precision P and shift h of a Gaussian ∝ exp(−½θᵀPθ + hᵀθ)."""

    precision: Float[np.ndarray, "d d"]
    shift: Float[np.ndarray, " d"]

    def __add__(self, other: Information) -> Information:
        return Information(self.precision + other.precision, self.shift + other.shift)

    def gaussian(self) -> Gaussian:
        factor = cho_factor(self.precision)
        cov = cho_solve(factor, np.eye(len(self.shift)))
        return Gaussian(cho_solve(factor, self.shift), 0.5 * (cov + cov.T))


class ExactManifold(abc.ABC):
    """Base of the conjugate manifolds; holds every encoded row.

    Sub-classes give the prior's information, that of weighted rows, and the view at a Gaussian.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.rows: Columns = problem.potentials.rows.take(np.arange(problem.n_rows))
        problem.potentials.counts.passes += 1
        ones = np.ones(problem.n_rows)
        self.full = (self.prior() + self.information(self.rows, ones)).gaussian()

    @property
    def n_rows(self) -> int:
        return self.problem.n_rows

    @abc.abstractmethod
    def prior(self) -> Information:
        """Return the information of π₀."""

    @abc.abstractmethod
    def information(self, rows: Columns, weights: Float[np.ndarray, " m"]) -> Information:
        """Return what Σ w_n f_n adds to the information."""

    def posterior(self, selection: Selection) -> Gaussian:
        """Return π_w."""
        return (self.prior() + self.information(selection.rows, selection.weights)).gaussian()

    def height(self, selection: Selection) -> Height:
        """Return KL(π_w‖π), exactly."""
        return Height(kl_gaussian(self.posterior(selection), self.full), 1.0)

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
