"""The report of a build: cost, outcome and provenance of a coreset."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from decoct.status import Status


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
