"""The errors of parts and of compressions, added up.

In the Hilbert norm ‖·‖ of centred log-likelihoods under π̂, errors of parts add by the triangle
inequality (Campbell & Broderick 2019, proof of Corollaries 4.5 and 4.6), and so do those of one
compression after another. With ρ_j the error of part or step j and L the full log-likelihood,

    ‖L − L(w)‖ ≤ Σ_j ρ_j,        E‖L − L(w)‖² = Σ_j ρ_j²  if the errors are independent and centred,

and ½‖L − L(w)‖² ≈ KL(π_w‖π) in nats for π̂ near π_w. Each ρ_j is measured at the draws of its own
time: the sums say nothing of places that none of these draws have seen, unless it is known how an
error grows on the way there (`decoct.streams.remainder`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from decoct.report import Report
from decoct.status import Status

BOUND, INDEPENDENT = "kl_bound", "kl_if_independent"

NOTHING = {BOUND: None, INDEPENDENT: None}
"""What a report says of the sums of errors that were measured elsewhere."""


@dataclass(frozen=True)
class ErrorSum:
    """Σ_j ρ_j and Σ_j ρ_j².

    Attributes
    ----------
    total
        Σ_j ρ_j, in √nats.
    squares
        Σ_j ρ_j², in nats.
    """

    total: float = 0.0
    squares: float = 0.0

    @property
    def kl_bound(self) -> float:
        """½ (Σ ρ_j)², in nats: all errors point the same way."""
        return 0.5 * self.total**2

    @property
    def kl_if_independent(self) -> float:
        """½ Σ ρ_j², in nats."""
        return 0.5 * self.squares

    def grown(self, expected: float, bound: float) -> ErrorSum:
        """Return the sums where every ρ² is so many times as large: in the squares, in the sum."""
        return ErrorSum(self.total * float(np.sqrt(bound)), self.squares * expected)

    def with_step(self, predicted_kl: float | None) -> ErrorSum | None:
        """Return the sum with one more error, given as ½ρ² in nats; None if that is not known."""
        if predicted_kl is None:
            return None
        rho = float(np.sqrt(2.0 * predicted_kl))
        return ErrorSum(self.total + rho, self.squares + rho**2)

    def to_dict(self) -> dict[str, float]:
        """Return both in nats, for a report."""
        return {BOUND: self.kl_bound, INDEPENDENT: self.kl_if_independent}

    @classmethod
    def of_parts(cls, errors: Iterable[ErrorSum]) -> ErrorSum:
        """Return the sum over parts."""
        listed = list(errors)
        return cls(sum(one.total for one in listed), sum(one.squares for one in listed))

    @classmethod
    def of_report(cls, report: Report) -> ErrorSum | None:
        """Return what a report knows: the sums of its last round, or its predicted KL."""
        if report.status is Status.DRIFTED:  # its sums are of another place
            return None
        last = report.rounds[-1] if report.rounds else {}
        if BOUND in last and last[BOUND] is None:
            return None
        if BOUND in last:
            return cls(float(np.sqrt(2.0 * last[BOUND])), 2.0 * last[INDEPENDENT])
        return cls().with_step(report.predicted_kl)
