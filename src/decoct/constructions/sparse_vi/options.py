"""Options, checks and costs that `SparseVI` and `L1Path` share."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
from jaxtyping import Int

from decoct.constructions.base import Construction, Plan, Problem
from decoct.constructions.sparse_vi.manifold import (
    Manifold,
    has_closed_form,
    manifold_of,
    require_proper_prior,
)
from decoct.constructions.sparse_vi.weight_updates import Quadratic
from decoct.errors import RequestError
from decoct.report import Status
from decoct.runtime.checks import check_whole


class ManifoldConstruction(Construction):
    """Base of `SparseVI` and `L1Path`, whose fields these are."""

    update: Any
    draws: int | None
    subsample: int | None
    subsample_totals: bool
    control_variates: bool
    reuse: bool
    exact: bool

    def check_options(self, may_be_none: str = "") -> None:
        """Refuse invalid options; ``may_be_none`` says whether the update may be None."""
        is_update = hasattr(self.update, "run") and not isinstance(self.update, type)
        if not is_update and not (may_be_none and self.update is None):
            raise RequestError(
                "update must be Quadratic() or Gradient() of weight_updates"
                f"{may_be_none}, not {self.update!r}."
            )
        check_whole(self, draws=2, subsample=1)
        if self.subsample_totals and self.subsample is None:
            raise RequestError("subsample_totals=True needs subsample=, the rows to estimate from.")

    def require_start(self, problem: Problem) -> None:
        """Refuse an improper prior, and third-order terms in closed form."""
        third_order = isinstance(self.update, Quadratic) and self.update.third_order
        if third_order and self.exact and has_closed_form(problem):
            raise RequestError("third_order=True needs draws; set exact=False on the construction.")
        require_proper_prior(problem.potentials, type(self).__name__)

    def status(self, problem: Problem, state: Any) -> Status:
        return Status[state.outcome]

    @abc.abstractmethod
    def count_draws(self, problem: Problem) -> int:
        """Return S."""

    def make_manifold(
        self, problem: Problem, subsample: int | None, candidates: Int[np.ndarray, " C"] | None
    ) -> Manifold:
        """Return the manifold, with rows to choose from that are drawn at every view, or fixed."""
        return manifold_of(
            problem,
            self.count_draws(problem),
            exact=self.exact,
            subsample=subsample,
            subsample_totals=self.subsample_totals,
            reuse=self.reuse,
            candidates=candidates,
            control_variates=self.control_variates,
        )

    def plan_sets(self, problem: Problem, most: int) -> Plan:
        """Return the cost of one set of S draws, at least, and at most of so many.

        A set sees the candidates and the support; for the totals it passes over all rows at S
        draws, or, with a subsample and control variates, at 1 + 2 d potentials a row. Closed forms
        evaluate none of it and are counted as if they did.
        """
        n, draws = problem.n_rows, self.count_draws(problem)
        seen = min(n, self.subsample or n)
        a_set = float(draws * (seen + problem.size))
        passes = 1
        if not self.subsample_totals:
            a_set += float(draws * n) if self.subsample is not None else 0.0
        elif self.control_variates:
            a_set += float(n * (1 + 2 * problem.dim))
        else:
            passes = 0
        return Plan((passes, most * passes), (a_set, most * a_set), 24 * draws * seen)
