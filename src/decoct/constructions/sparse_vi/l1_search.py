"""The search for the λ of an ℓ1 penalty that keeps M rows (Campbell & Beronov 2019, Appendix D.3).

From λ_max = max_n |Cov_0[f_n, fᵀ1]|/f̃_n upwards w = 0 is stationary. Between 0 and λ_max a λ with
‖w‖₀ just below M is sought by bisection, in the logarithm of λ: between the prior and the posterior
the curvature of KL, and with it the λ of interest, falls by orders of magnitude. Two
assumptions of the paper do not hold. At λ → 0 not all rows have weight: a minimiser has no more
rows than the potentials have dimensions. And ‖w‖₀ falls with λ only where π_w is near π; the search
takes smaller λ until it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decoct.constructions.base import Selection
from decoct.constructions.sparse_vi.manifold.base import Origin

DESCENT = 4.0
"""λ is divided by this, then by its square, fourth power, … to the 2⁵th at most, as long as there
are too few rows."""

SMALL_PENALTY = 1.0
"""Penalty λ Σu in nats above which π_w is far from π."""


class Stage(NamedTuple):
    """Result of minimising Eq. 95 at one λ."""

    penalty: float  # λ
    cost: float  # λ Σu at its end, in nats
    rows: int  # ‖w‖₀ at its end
    complete: bool  # False if it returned early
    # Whether it started from a λ not much larger. Early returns of others prove nothing: far from
    # its minimum the expansion can have many more rows than the minimum has.
    near: bool
    selection: Selection  # one row of weight 0, for the shapes, where w = 0
    stiffness: float  # c of its last step
    origin: Origin | None  # of its draws; None in closed form, or if it returned early


class Bounds(NamedTuple):
    """What the stages so far say about the λ of one size.

    ‖w‖₀ falls with λ only near the posterior. While λ Σu is above `SMALL_PENALTY` nats, π_w is far
    from π, and a smaller λ may need fewer rows.
    """

    best: Stage  # of the smallest λ that has few enough rows
    # where the next one starts, λ_u: ``best``, or one of smaller λ that has too many rows, far from
    # the posterior
    start: Stage
    lower: float  # λ_l, the largest λ below λ_u that has too many rows; 0 before there is one
    doubtful: float  # the same, with the λ that were left early after a start from far away
    refuted: bool  # whether such a λ could be passed after all, once it was reached from nearby

    @classmethod
    def of(cls, stages: tuple[Stage, ...], size: int) -> Bounds:
        whole = [stage for stage in stages if stage.complete]
        best = min((one for one in whole if one.rows <= size), key=lambda one: one.penalty)
        front = min(whole, key=lambda one: one.penalty)
        many = [stage for stage in stages if stage.rows > size]
        left = [stage for stage in many if not stage.complete]
        stuck = any(one.near and one.penalty < front.penalty for one in left)
        start = front if front.cost > SMALL_PENALTY and not stuck else best
        below = [one for one in many if one.penalty < start.penalty]
        doubtful = [one.penalty for one in below]
        sure = [one.penalty for one in below if one.complete or one.near]
        refuted = any(not one.near for one in left if one.penalty >= start.penalty)
        return cls(best, start, max(sure, default=0.0), max(doubtful, default=0.0), refuted)

    def middle(self, searched: int) -> float:
        """Return the next λ."""
        upper, below = self.start.penalty, max(self.lower, self.doubtful)
        if below == 0.0:
            return upper / DESCENT ** (2 ** min(searched, 1 if self.refuted else 5))
        if self.lower < below and upper <= below * DESCENT**2:
            return max(upper / DESCENT, float(np.sqrt(self.lower) * np.sqrt(upper)))
        return float(np.sqrt(below) * np.sqrt(upper))

    def settled(self, size: int, tolerance: float) -> bool:
        """Whether the search ends: another λ would not lower the KL enough."""
        if self.start is not self.best or not self.best.rows:
            return False
        near = self.best.rows >= (1.0 - tolerance) * size
        if near and (self.lower > 0.0 or self.best.cost <= SMALL_PENALTY):
            return True
        # λ_l and λ_u are as good as one, or more rows cannot lower the KL by anything that counts
        closed = self.lower > 0.0 and np.log(self.best.penalty / self.lower) < 1e-2
        return bool(closed or self.best.cost < 1e-12)
