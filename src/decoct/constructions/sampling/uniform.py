"""Uniform subsampling with weights N/M: the baseline everybody knows.

M row numbers are drawn with replacement; a row drawn c times has weight c·N/M, so that
E[Σ w_n f_n] = Σ f_n (Campbell & Broderick 2019, §2.3 with equal sensitivities).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np

from decoct.constructions.base import (
    OneStep,
    OneStepState,
    Plan,
    Problem,
    Selection,
    SizedSelection,
    StepInfo,
)
from decoct.constructions.registry import register
from decoct.runtime.randomness import host_rng


@dataclass(frozen=True)
class Uniform(OneStep):
    """Rows drawn uniformly with replacement, weight (times drawn)·N/M.

    The M draws of a smaller size are the first M of a larger one.
    """

    def step(
        self, key: jax.Array, problem: Problem, state: OneStepState
    ) -> tuple[OneStepState, StepInfo]:
        rng = host_rng(key)
        picks = rng.integers(problem.n_rows, size=problem.size)
        kept, where = np.unique(picks, return_inverse=True)
        rows = problem.potentials.rows.take(kept)
        chosen = []
        for size in problem.sizes:
            counts = np.bincount(where[:size], minlength=len(kept))
            used = np.flatnonzero(counts)
            weights = counts[used] * (problem.n_rows / size)
            columns = {name: column[used] for name, column in rows.items()}
            chosen.append(SizedSelection(Selection(kept[used], weights, columns), None))
        size = chosen[-1].selection.size
        info = StepInfo(f"{size} rows", {"repeated_picks": problem.size - size})
        return OneStepState(tuple(chosen)), info

    def plan(self, problem: Problem) -> Plan:
        """Nothing is evaluated; the rows drawn are read."""
        return Plan((0, 0), (0.0, 0.0), 16 * problem.size)


register("uniform", Uniform, compared_as="uniform")
