"""The manifold of coreset posteriors at one point: from draws or in closed form."""

from typing import Any

from decoct.constructions.base import Problem
from decoct.constructions.sparse_vi.manifold.base import LocalView, Manifold, Origin
from decoct.constructions.sparse_vi.manifold.gaussian import GaussianManifold
from decoct.constructions.sparse_vi.manifold.linear import LinearManifold
from decoct.constructions.sparse_vi.manifold.prior import require_proper_prior
from decoct.constructions.sparse_vi.manifold.sampled import SampledManifold
from decoct.models.gaussian import GaussianMean
from decoct.models.linear import LinearRegression

__all__ = [
    "GaussianManifold",
    "LinearManifold",
    "LocalView",
    "Manifold",
    "Origin",
    "SampledManifold",
    "has_closed_form",
    "manifold_of",
    "require_proper_prior",
]


def has_closed_form(problem: Problem) -> bool:
    """Whether every π_w is a known Gaussian."""
    model = problem.potentials.model
    conjugate = isinstance(model, LinearRegression) and model.is_conjugate
    return conjugate or isinstance(model, GaussianMean)


def manifold_of(problem: Problem, draws: int, *, exact: bool = True, **options: Any) -> Manifold:
    """Return the closed form where there is one and ``exact``, else a `SampledManifold`.

    Closed forms choose among all rows and need no draws; ``options`` are those of the latter.
    """
    if not (exact and has_closed_form(problem)):
        return SampledManifold(problem, draws, **options)
    is_mean = isinstance(problem.potentials.model, GaussianMean)
    return GaussianManifold(problem) if is_mean else LinearManifold(problem)
