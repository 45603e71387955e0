"""How a build ended. Each member is the sentence the user reads."""

from __future__ import annotations

import enum


class Status(enum.Enum):
    """Outcome of a build; `ok` says whether it did what was asked."""

    RUNNING = "Still running."
    DONE = "The coreset has the size asked for, or fewer rows that already fit."
    REACHED = "The KL asked for was reached and certified."
    SHORT_SIZE = (
        "The KL asked for was not reached at max_size; raise max_size, ask for a larger kl, or "
        "check whether the posterior has more parameters than rows kept."
    )
    SHORT_ROUNDS = (
        "The KL asked for was not certified within the allowed rounds; raise max_rounds, or more "
        "draws per round (draws=), or ask for a larger kl."
    )
    MORE_ROUNDS = (
        "The rounds ran out before the draws settled at the coreset posterior; raise max_rounds, "
        "or a larger size."
    )
    DRIFTED = (
        "The posterior moved away while the rows of the stream arrived, or from a merged part to "
        "all of them, so nobody knows how close the coreset is; shuffle the rows if you can, or in "
        "a stream raise node= and leaf=, and run decoct.check."
    )

    @property
    def ok(self) -> bool:
        return self in (Status.DONE, Status.REACHED)
