"""Options, checks and costs that `SparseVI` and `L1Path` share."""

from __future__ import annotations

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from decoct.constructions.base import Construction, Plan, Problem
from decoct.constructions.sparse_vi.manifold.base import Manifold
from decoct.constructions.sparse_vi.manifold.gaussian import GaussianManifold
from decoct.constructions.sparse_vi.manifold.linear import LinearManifold
from decoct.constructions.sparse_vi.manifold.sampled import SampledManifold
from decoct.constructions.sparse_vi.weight_updates import Quadratic
from decoct.errors import ModelError, RequestError
from decoct.models.gaussian import GaussianMean
from decoct.models.linear import LinearRegression
from decoct.passes.potentials import Potentials
from decoct.report import Status
from decoct.runtime.checks import check_whole
from decoct.runtime.precision import float64

DISTANCE = 1e9
"""Distance from the start at which the prior must have fallen."""


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
        if third_order and self.has_closed_form(problem):
            raise RequestError("third_order=True needs draws; set exact=False on the construction.")
        require_proper_prior(problem.potentials, type(self).__name__)

    def status(self, problem: Problem, state: Any) -> Status:
        return Status[state.outcome]

    def has_closed_form(self, problem: Problem) -> bool:
        """Whether covariances are in closed form: ``exact``, and every π_w a known Gaussian."""
        model = problem.potentials.model
        conjugate = isinstance(model, LinearRegression) and model.is_conjugate
        return self.exact and (conjugate or isinstance(model, GaussianMean))

    @abc.abstractmethod
    def count_draws(self, problem: Problem) -> int:
        """Return S."""

    def make_manifold(
        self, problem: Problem, subsample: int | None, candidates: Int[np.ndarray, " C"] | None
    ) -> Manifold:
        """Return the manifold, with rows to choose from that are drawn at every view, or fixed.

        Closed forms choose among all rows.
        """
        if self.has_closed_form(problem):
            is_mean = isinstance(problem.potentials.model, GaussianMean)
            return GaussianManifold(problem) if is_mean else LinearManifold(problem)
        return SampledManifold(
            problem,
            self.count_draws(problem),
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


def require_proper_prior(potentials: Potentials, name: str) -> None:
    """Refuse a prior that does not fall fast enough along some direction.

    Along the axes, the eigenvectors of its curvature and, up to 40 parameters, the diagonals of
    all pairs, a proper density must fall faster than 1/r; in directions in which all parameters
    grow, faster than r^−d, whether its tails are round or a product.
    """
    start = potentials.space.flatten(potentials.initial)
    dim = len(start)
    here = float(potentials.log_prior(start[None])[0])
    unit = np.eye(dim)
    first, second = np.triu_indices(dim if dim <= 40 else 0, 1)
    pairs = np.concatenate([unit[first] + unit[second], unit[first] - unit[second]])
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(15, dim))
    generic = np.concatenate([np.ones((1, dim)), signs]) / np.sqrt(dim)
    curved = _find_curvature_axes(potentials, start)
    axes = np.concatenate([unit, curved, pairs / np.sqrt(2.0), generic])
    dims = np.concatenate([np.ones(len(axes) - len(generic)), np.full(len(generic), dim)])
    there = potentials.log_prior(start + DISTANCE * np.concatenate([axes, -axes]))
    # NaN, as of 0/0 where a scale has become 0, says nothing either way
    flat = there - here >= -np.log(DISTANCE) * np.concatenate([dims, dims])
    if not flat.any():
        return
    worst = int(np.argmax(flat))
    axis = worst % len(axes)
    along = f"parameter {axis}"
    if axis >= len(start):
        along = f"the direction {np.array2string(axes[axis], precision=2, threshold=8)}"
    raise ModelError(
        f"The prior does not fall along {along}: its log density is {here:.4g} at the start and "
        f"{there[worst]:.4g} at a distance of {DISTANCE:g}. {name} starts from the prior, which "
        "must be proper; give a proper prior, or use IteratedHilbert, which starts from a "
        "subsample."
    )


@float64
def _find_curvature_axes(potentials: Potentials, start: np.ndarray) -> Float[np.ndarray, "d d"]:
    """Return the eigenvectors of the prior's Hessian at the start, one a row."""
    model, space = potentials.model, potentials.space
    hessian = np.asarray(
        jax.hessian(lambda z: model.log_prior(space.unflatten(z)))(jnp.asarray(start))
    )
    if not np.isfinite(hessian).all():
        return np.eye(len(start))
    return np.linalg.eigh(0.5 * (hessian + hessian.T))[1].T
