"""Outcomes of a build. The value of each member is its message."""

from __future__ import annotations

import enum

LARGE_KL = 0.5
"""Predicted KL in nats from which a coreset of the requested size is not enough."""


class Status(enum.Enum):
    """Outcome of a build; `ok` says whether the request was met.

    Examples
    --------
    >>> import decoct
    >>> decoct.Status.DONE.ok, decoct.Status.DRIFTED.ok
    (True, False)
    """

    RUNNING = "Still running."
    DONE = "The coreset has the size asked for, or fewer rows that already fit."
    REACHED = "The KL asked for was reached and certified."
    SHORT_SIZE = (
        "The KL asked for was not reached at max_size; raise max_size, ask for a larger kl, or "
        "check whether the posterior has more parameters than rows kept."
    )
    SHORT_ROUNDS = (
        "The KL asked for was not certified within the allowed rounds; raise max_rounds, take "
        "more draws per round (draws=), or ask for a larger kl."
    )
    MAX_ROUNDS_REACHED = (
        "The rounds ran out before the draws settled at the coreset posterior; raise max_rounds "
        "or size."
    )
    SHORT_ROWS = (
        "The coreset has the size asked for, but its posterior is predicted to be 0.5 nats or more "
        "from the full one; keep more rows (a larger size), or ask for kl= instead."
    )
    UNKNOWN = (
        "These draws do not tell how close the coreset is: the log-likelihood of all rows does not "
        "vary over them, or the sampler's chains disagree (R-hat above 1.1); centre and scale "
        "the columns, or give the parameters a narrower prior."
    )
    DRIFTED = (
        "The posterior moved away while the rows of the stream arrived, or from a merged part to "
        "all of them, so the KL cannot be estimated; shuffle the rows if you can, or in "
        "a stream raise buffer= and keep=, and run decoct.check."
    )

    @property
    def ok(self) -> bool:
        """Whether the build met the request: `DONE` or `REACHED`."""
        return self in (Status.DONE, Status.REACHED)

    def judged(self, predicted_kl: float | None) -> Status:
        """Return `SHORT_ROWS` in place of `DONE` where the predicted KL is at least `LARGE_KL`."""
        is_large = predicted_kl is not None and not predicted_kl < LARGE_KL
        return Status.SHORT_ROWS if self is Status.DONE and is_large else self
