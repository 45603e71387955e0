"""The report of a build: outcome, cost and provenance of a coreset."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

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
    DONE = "The coreset has the size asked for, or fewer rows where more came no nearer."
    REACHED = "The KL asked for was reached and certified."
    SHORT_SIZE = (
        "The KL asked for was not reached at max_size; ask for a larger kl, or raise max_size, "
        "which may take far longer."
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

    def with_kl(self, predicted_kl: float | None) -> Status:
        """Return `SHORT_ROWS` in place of `DONE` where the predicted KL is at least `LARGE_KL`."""
        is_large = predicted_kl is not None and not predicted_kl < LARGE_KL
        return Status.SHORT_ROWS if self is Status.DONE and is_large else self


def described(config: Any) -> Any:
    """Return a configuration as its name and hyper-parameters, JSON-ready.

    An array is described by its shape and a digest: a report has no data.
    """
    if config is None or isinstance(config, (bool, int, float, str)):
        return config
    if isinstance(config, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(config).tobytes()).hexdigest()[:12]
        return f"array of shape {config.shape}, sha256 {digest}"
    if is_dataclass(config) and not isinstance(config, type):
        values = {one.name: described(getattr(config, one.name)) for one in fields(config)}
        return {"name": type(config).__name__, **values}
    return repr(config)


@dataclass(frozen=True)
class Report:
    """Provenance and cost of a coreset.

    Attributes
    ----------
    method
        Name and hyper-parameters of the construction.
    seed
        The seed; the same seed on the same rows gives the same coreset.
    status
        How the build ended.
    size_asked, kl_asked
        The request.
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
    traffic
        Traffic to and from a cluster (`decoct.data.dask_cluster.Traffic`); None for rows read
        in this process.
    sampler
        Name and options of the build's sampler; None without a build or a sampler.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> report = decoct.build(decoct.models.GaussianMean(np.eye(2)), rows, size=5).report
    >>> report.method["name"], report.status.ok
    ('IteratedHilbert', True)
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
    traffic: dict[str, int] | None = None
    sampler: dict[str, Any] | None = None

    @property
    def no_site(self) -> str | None:
        """Why a build that allowed a site used weighted rows alone; None with a site."""
        return self.rounds[-1].get("no_site") if self.rounds else None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dict that JSON can hold."""
        return {**asdict(self), "status": self.status.name}

    @classmethod
    def from_dict(cls, packed: dict[str, Any]) -> Report:
        """Return the report that `to_dict` packed."""
        return cls(**{**packed, "status": Status[packed["status"]]})
