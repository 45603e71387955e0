"""Uniform subsampling with weights N/M: the baseline.

M row numbers are drawn with replacement; a row drawn c times has weight c·N/M, so that
E[Σ w_n f_n] = Σ f_n (Campbell & Broderick 2019, §2.3 with equal sensitivities).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax

from decoct.constructions.base import Chosen, OneStep, Plan, Problem, register
from decoct.constructions.sampling.weighted_sampling import drawn, select_rows
from decoct.runtime.randomness import host_rng


@dataclass(frozen=True)
class Uniform(OneStep):
    """Rows drawn uniformly with replacement, weight (times drawn)·N/M.

    The M draws of a smaller size are the first M of a larger one.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> method = decoct.constructions.Uniform()
    >>> decoct.build(model, rows, size=10, method=method).size <= 10
    True
    """

    def choose(self, key: jax.Array, problem: Problem) -> Chosen:
        n = problem.n_rows
        picks = host_rng(key).integers(n, size=problem.size)
        chosen = select_rows(
            problem.potentials.rows, picks, problem.sizes, lambda size, times, _: times * (n / size)
        )
        return drawn(chosen, {"repeated_picks": problem.size - chosen[-1].size})

    def plan(self, problem: Problem) -> Plan:
        """Nothing is evaluated; the rows drawn are read."""
        return Plan((0, 0), (0.0, 0.0), 16 * problem.size)


register("uniform", Uniform, compared_as="uniform")
