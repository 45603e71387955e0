"""Rows chosen group by group, for multilevel models.

The remainder r_n = f_n − q_n of a row moves with the effects of the row's own group. Remainders of
different groups are nearly uncorrelated under the posterior, so that

    ½Var(Σ_n r_n − Σ w_m r_m)  ≈  Σ_g ½Var(Σ_{n in g} r_n − Σ_{m in g} w_m r_m).

One fit of all rows estimates these correlations from S draws, with errors of about 1/√S, which hide
what is left of a group among a thousand others. Here each group has a fit of its own, by orthogonal
pursuit on a few hundred draws. Groups get rows in the order of the nats that a row takes off.
Ensemble Kalman filters leave out correlations known to be small for the same reason (localisation:
Houtekamer & Mitchell 2001). Where the site's precision ⪰ 0 then costs much, groups whose rows take
most of their curvature get others, which leave some of it to the site.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import block_diag

from decoct.constructions.base import SizedSelection
from decoct.constructions.iterated_hilbert.tangent_problem import (
    PathFit,
    SplitTangent,
    nats,
)
from decoct.data.base import Columns
from decoct.solvers.nnls import SparseWeights, UnitVectors
from decoct.solvers.orthogonal_pursuit import pursue
from decoct.stats.divergences import tangent

DRAWS = 400
"""Draws that a group is fitted to: far more than it gets rows."""

MOST_ROWS = 8
"""Most rows of a group."""

ROWS_AT_ONCE = 4096
"""Rows whose remainders are in memory at once."""

LONGER = 1.2
"""Factor on the size where the site's precision keeps a selection from the KL it would have."""

LOST = 1.5
"""Times the KL it would have from which on a longer selection does not make up for that."""

MOST_CURVATURE = 0.8
"""About the part of its curvature that a group's rows may take then. The rest bounds what the site
can have between the group and the coefficients."""


class Step(NamedTuple):
    """A group gets other rows and weights, and the size is then that of the whole selection."""

    group: int
    solution: SparseWeights
    size: int


@dataclass(frozen=True)
class FitByGroup(PathFit):
    """The path on which one group after the other gets rows."""

    vectors: Float[np.ndarray, "P S"]  # remainders of the pool, centred, in nats; see `Tangent`
    totals: Float[np.ndarray, "G S"]  # their sums over all rows of each group, or a sample of them
    groups: Int[np.ndarray, " P"]  # of the rows of the pool
    steps: tuple[Step, ...]
    is_bounded: bool = False  # whether a group's rows take about `MOST_CURVATURE` at most

    @classmethod
    def of(cls, split: SplitTangent) -> FitByGroup:
        """Fit every group of the finest grouping; the rows of the model pick effects."""
        problem, expanded = split.problem, split.expanded
        assert expanded is not None
        potentials = problem.potentials
        picks = potentials.picks(split.pool.rows)
        slot = int(np.argmax([len(np.unique(places)) for places in picks.T]))
        fitted = len(split.draws) - split.held_out.vectors.shape[1]
        draws = split.draws[: min(DRAWS, fitted)]
        n = len(draws)
        totals = np.zeros((problem.likelihood_dim, n))
        basis = expanded.basis(potentials.to_likelihood(draws))

        def remainders(rows: Columns, values: Any) -> Any:
            return values - potentials.quadratics(rows, expanded.at, draws, basis)

        for rows, weights in _all_rows(split):
            left = remainders(rows, potentials.vectors(rows, draws))
            np.add.at(totals, potentials.picks(rows)[:, slot], weights[:, None] * left)
        vectors = _centre(remainders(split.pool.rows, split.potentials[:, :n]))
        groups = picks[:, slot]
        totals = _centre(totals)
        unbounded = np.zeros(len(groups)), np.full(len(totals), np.inf)
        steps = tuple(_steps(vectors, totals, groups, *unbounded))
        return cls(split, {}, {}, 0, vectors, totals, groups, steps)

    def solution(self, n_steps: int) -> SparseWeights:
        """Return the rows and weights of all groups after so many steps."""
        last = {step.group: step.solution for step in self.steps[:n_steps]}
        places = np.concatenate([one.indices for one in last.values()])
        weights = np.concatenate([one.weights for one in last.values()])
        left = self.totals.copy()
        for group, one in last.items():
            left[group] -= one.weights @ self.vectors[one.indices]
        order = np.argsort(places)
        return SparseWeights(places[order], weights[order], float(np.linalg.norm(left)))

    @cached_property
    def bounded(self) -> FitByGroup:
        """The path on which the rows of a group leave some of its curvature to the site."""
        split = self.tangent
        assert split.expanded is not None
        along = np.zeros((1, split.problem.likelihood_dim))
        along[0, self.groups] = 1.0
        picks = split.problem.potentials.picks(split.pool.rows)
        is_in_one = np.isin(picks, self.groups).sum(axis=1) == 1
        bends = np.where(is_in_one, self._bends(along)[:, 0], 0.0)
        most = -MOST_CURVATURE * np.diag(split.expanded.sums.hessian)
        steps = _steps(self.vectors, self.totals, self.groups, bends, most)
        return replace(self, steps=tuple(steps), is_bounded=True)

    def equations(
        self, solution: SparseWeights
    ) -> tuple[Float[np.ndarray, "m m"], Float[np.ndarray, " m"]]:
        """Return the problems of all groups as one, with other groups uncorrelated.

        The weights given, for which some groups had a bound, solve them.
        """
        groups, order, blocks = self.groups[solution.indices], [], []
        for group in np.unique(groups):
            own = np.flatnonzero(groups == group)
            order.append(own)
            blocks.append(np.linalg.qr(self.vectors[solution.indices[own]].T).R.T)
        vectors = np.empty((len(groups), len(groups)))
        vectors[np.concatenate(order)] = block_diag(*blocks)
        return vectors, solution.weights @ vectors

    def best(self, most: float = np.inf) -> SizedSelection:
        """Return the longest selection of at most ``most`` rows, or the site alone if better."""
        found, steps = [self.alone()], sum(step.size <= most for step in self.steps)
        if steps:
            solution = self.solution(steps)
            found.append(self.with_site(solution))
            if self._has_lost(found[-1], solution):
                found.append(self.bounded.best(most))
        return min(found, key=nats)

    def _has_lost(self, found: SizedSelection, solution: SparseWeights) -> bool:
        """Return whether the site costs much, and other rows may cost less."""
        return not self.is_bounded and nats(found) > LOST * self.tangent.predict_kl(solution)

    def smallest(self, goal: float, most: int) -> SizedSelection:
        """Return the first selection tried that is predicted to reach a KL, or the nearest."""
        steps = sum(step.size <= most for step in self.steps)
        best = self.alone()
        if not steps or nats(best) <= goal:
            return best
        low, high = 0, steps
        while high - low > 1:
            middle = (low + high) // 2
            reached = self.tangent.predict_kl(self.solution(middle)) <= goal
            low, high = (low, middle) if reached else (middle, high)
        while True:
            solution = self.solution(high)
            found = self.with_site(solution)
            best = min(best, found, key=nats)
            if nats(best) > goal and self._has_lost(found, solution):
                return min(best, self.bounded.smallest(goal, most), key=nats)
            if nats(best) <= goal or high == steps:
                return best
            high = min(steps, int(LONGER * high) + 1)


def _centre(values: Float[np.ndarray, "n S"]) -> Float[np.ndarray, "n S"]:
    return tangent(values, values[0]).vectors


def _all_rows(split: SplitTangent) -> Iterator[tuple[Columns, Float[np.ndarray, " n"]]]:
    """Yield encoded rows, with weights, that stand for all of them."""
    assert split.expanded is not None
    sample = split.expanded.sample
    if sample is None:
        with closing(split.problem.potentials.rows.chunks(ROWS_AT_ONCE)) as chunks:
            for chunk in chunks:
                yield chunk.columns, np.ones(chunk.n_rows)
        split.problem.potentials.counts.passes += 1
        return
    for half in sample:
        for begin in range(0, len(half.indices), ROWS_AT_ONCE):
            some = slice(begin, begin + ROWS_AT_ONCE)
            yield {name: c[some] for name, c in half.rows.items()}, 0.5 * half.weights[some]


def _steps(
    vectors: Float[np.ndarray, "P S"],
    totals: Float[np.ndarray, "G S"],
    groups: Int[np.ndarray, " P"],
    bends: Float[np.ndarray, " P"],
    most: Float[np.ndarray, " G"],
) -> Iterator[Step]:
    """Fit every group, and yield the steps with the most nats a row first.

    ``bends`` are the curvatures of rows along their group, of which they take about ``most``.
    """
    paths: dict[int, list[SparseWeights]] = {}
    heap: list[tuple[float, int, int]] = []

    def push(group: int, done: int) -> None:
        """Add the size of a group that takes the most nats a row off those of one before."""
        now, *later = paths[group][done:]
        nats_off = [0.5 * (now.residual_norm**2 - one.residual_norm**2) for one in later]
        more = [len(one.indices) - len(now.indices) for one in later]
        rates = np.divide(nats_off, more)
        if rates.max(initial=0.0) > 0.0:
            best = int(np.argmax(rates))
            heapq.heappush(heap, (-rates[best], group, done + 1 + best))

    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        found = _pursue(vectors[rows], totals[group], bends[rows], float(most[group]))
        fits = [replace(found[m], indices=rows[found[m].indices]) for m in sorted(found)]
        nothing = SparseWeights(rows[:0], np.zeros(0), float(np.linalg.norm(totals[group])))
        paths[int(group)] = [nothing, *fits]
        push(int(group), 0)
    taken = dict.fromkeys(paths, 0)
    while heap:
        _, group, at = heapq.heappop(heap)
        taken[group] = len(paths[group][at].indices)
        yield Step(group, paths[group][at], sum(taken.values()))
        push(group, at)


def _pursue(
    vectors: Float[np.ndarray, "n S"],
    total: Float[np.ndarray, " S"],
    bends: Float[np.ndarray, " n"],
    most: float,
) -> dict[int, SparseWeights]:
    """Return the solutions of one group; where they take too much curvature, others."""
    found = pursue(UnitVectors.scaled(vectors, total), MOST_ROWS)
    excessive = [m for m, one in found.items() if one.weights @ bends[one.indices] > most > 0.0]
    if not excessive:
        return found
    # an equation as heavy as all others
    unit = float(np.linalg.norm(total)) / most
    vectors, total = np.column_stack([vectors, unit * bends]), np.append(total, unit * most)
    again = pursue(UnitVectors.scaled(vectors, total), MOST_ROWS)
    kept = {m: one for m, one in found.items() if m not in excessive}
    for m, one in again.items():
        left = (total - one.weights @ vectors[one.indices])[:-1]
        kept.setdefault(m, replace(one, residual_norm=float(np.linalg.norm(left))))
    return kept
