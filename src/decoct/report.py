"""What a build cost and how it ended: the provenance of a coreset."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from decoct.status import Status


@dataclass(frozen=True)
class Report:
    """How a coreset came about.

    Attributes
    ----------
    method
        Name and hyper-parameters of the construction.
    seed
        The seed; the same seed on the same rows gives the same coreset.
    status
        How the build ended.
    size_asked, kl_asked
        What was asked for.
    rounds
        One dict per step of the construction, in order.
    passes
        Passes over all N rows.
    evaluations
        Potentials evaluated, f_n(θ) counted one by one.
    seconds
        Wall time by phase.
    predicted_kl
        KL(π_w‖π) in nats as predicted at held-out draws, or None; `decoct.check` certifies.
    """

    method: dict[str, Any]
    seed: int
    status: Status
    size_asked: int | None
    kl_asked: float | None
    rounds: list[dict[str, Any]]
    passes: int
    evaluations: int
    seconds: dict[str, float] = field(default_factory=dict)
    predicted_kl: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "status": self.status.name}

    @classmethod
    def from_dict(cls, packed: dict[str, Any]) -> Report:
        return cls(**{**packed, "status": Status[packed["status"]]})
