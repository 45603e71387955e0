"""Which manifold a problem has: closed forms where the model has them, draws otherwise."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from decoct.constructions.base import Problem
from decoct.constructions.sparse_vi.manifold.base import Manifold, Origin
from decoct.constructions.sparse_vi.manifold.gaussian import GaussianManifold
from decoct.constructions.sparse_vi.manifold.linear import LinearManifold
from decoct.constructions.sparse_vi.manifold.sampled import SampledManifold
from decoct.models.gaussian import GaussianMean
from decoct.models.linear import LinearRegression


def has_closed_form(problem: Problem) -> bool:
    """Whether every π_w is a known Gaussian."""
    model = problem.potentials.model
    return isinstance(model, GaussianMean) or (
        isinstance(model, LinearRegression) and model.is_conjugate
    )


def manifold_of(
    problem: Problem,
    draws: int,
    *,
    exact: bool = True,
    subsample: int | None = None,
    subsample_totals: bool = False,
    reuse: bool = True,
    candidates: Int[np.ndarray, " C"] | None = None,
    control_variates: bool = True,
) -> Manifold:
    """Return the manifold of a problem.

    Parameters
    ----------
    exact
        Use closed forms where there are any; they choose among all rows and need no draws.
    draws, subsample, subsample_totals, reuse, candidates, control_variates
        As in `SampledManifold`.
    """
    if exact and has_closed_form(problem):
        is_mean = isinstance(problem.potentials.model, GaussianMean)
        return GaussianManifold(problem) if is_mean else LinearManifold(problem)
    return SampledManifold(
        problem, draws, subsample, subsample_totals, reuse, candidates, control_variates
    )


def warm_started(manifold: Manifold, origin: Origin | None) -> Manifold:
    """Return the manifold whose samplers begin to look where the draws of ``origin`` lie.

    Closed forms, whose views have no origin, do not look for anything.
    """
    if origin is None or not isinstance(manifold, SampledManifold):
        return manifold
    return manifold.warm_started(origin)
