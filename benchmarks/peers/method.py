"""What every method answers: draws, and how many evaluations of rows they took.

An evaluation is the log-likelihood of one row at one point, with or without its gradient. A Hessian
counts as one more for every likelihood parameter that the row depends on. Priors, and quadratics
that stand for rows, are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.peers.posteriors import Problem
from decoct.models.site import GaussianSite
from decoct.samplers import NUTS
from decoct.samplers.base import WeightedDensity

DRAWS = 20_000
"""Of methods whose draws cost little."""

CHAINS, WARMUP = 4, 500
"""Of decoct's NUTS on weighted rows."""

EVALUATED = 2_000_000
"""Rows times draws from which on fewer draws are made, 2,000 at least."""


class Found(NamedTuple):
    """Draws of a method.

    Attributes
    ----------
    z : (S, d)
        In flat unconstrained parameters.
    evaluations
        Of rows, everything included.
    weights : (S,)
        Importance weights, if the draws have any.
    """

    z: np.ndarray
    evaluations: float
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Method:
    """A method and its budgets.

    Attributes
    ----------
    budgets
        Problem -> budgets, from small to large; each is a tuple of numbers.
    run
        Problem, budget, seed -> draws and evaluations.
    """

    budgets: Callable[[Problem], Sequence[tuple[Any, ...]]]
    run: Callable[[Problem, Any, int], Found]


def batch_of(problem: Problem) -> int:
    """Return rows of a minibatch: a fiftieth of the table, 100 to 1,000."""
    return min(1000, max(100, problem.n_rows // 50))


def draws_from(size: int) -> int:
    """Return how many draws a chain makes from so many rows."""
    return min(DRAWS, max(2000, EVALUATED // max(1, size))) // CHAINS


def draw_weighted(
    problem: Problem,
    indices: np.ndarray,
    weights: np.ndarray,
    seed: int,
    site: GaussianSite | None = None,
) -> Found:
    """Draw from the posterior of weighted rows, by decoct's NUTS.

    Its warm-up is taken to make as many steps a draw as are made afterwards.
    """
    rows = {k: v[indices] for k, v in problem.rows.items()}
    encoded = problem.bridge.encode(rows, indices)
    density = WeightedDensity.of(problem.bridge, encoded, weights, site=site)
    sampler = NUTS(chains=CHAINS, warmup=WARMUP)
    count = draws_from(len(indices))
    drawn = sampler.sample(jax.random.key(seed), density, count)
    steps = CHAINS * (count + WARMUP) * float(drawn.info["n_steps"].mean())
    return Found(drawn.flat, steps * len(indices))
