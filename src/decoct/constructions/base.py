"""What every construction is: a frozen configuration, a state, and a step.

A construction never sees the table or the sampler directly: `Problem` bundles the potentials
(model × rows), the sampler of π_w and what was asked for. The driver owns the loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Int

from decoct.data.base import Columns
from decoct.posteriors.base import Draws, Sampler, WeightedDensity
from decoct.potentials import Pool, Potentials
from decoct.status import Status


class Selection(NamedTuple):
    """Weighted rows: what a coreset is, before it is given to the user.

    Attributes
    ----------
    indices : (m,)
        Global row numbers, ascending.
    weights : (m,)
        w > 0.
    rows
        The encoded rows.
    """

    indices: Int[np.ndarray, " m"]
    weights: Float[np.ndarray, " m"]
    rows: Columns

    @property
    def size(self) -> int:
        return len(self.indices)

    @property
    def pool(self) -> Pool:
        return Pool(self.indices, self.rows)


@dataclass(frozen=True)
class Problem:
    """What a construction works on.

    Attributes
    ----------
    potentials
        Model × rows.
    sampler
        Supplies draws from π_w.
    sizes
        Sizes asked for, ascending; the last one is *the* size. In ``kl`` mode the largest size
        allowed.
    kl
        KL(π_w‖π) to reach in nats, or None.
    """

    potentials: Potentials
    sampler: Sampler
    sizes: tuple[int, ...]
    kl: float | None = None

    @property
    def size(self) -> int:
        return self.sizes[-1]

    @property
    def n_rows(self) -> int:
        return self.potentials.n_rows

    @property
    def dim(self) -> int:
        return self.potentials.dim

    def density(self, selection: Selection) -> WeightedDensity:
        """Return π_w for these weighted rows."""
        return WeightedDensity.of(self.potentials.model, selection.rows, selection.weights)

    def draw(self, key: jax.Array, selection: Selection, n: int) -> Draws:
        """Return n draws from π_w."""
        return self.sampler.draw(key, self.density(selection), n)


class Chosen(NamedTuple):
    """The selection for one requested size, with its predicted KL in nats if there is one."""

    selection: Selection
    predicted_kl: float | None


class StepInfo(NamedTuple):
    """What a person wants to look at after a step.

    Attributes
    ----------
    message
        One line for the progress bar.
    numbers
        Figures for the report, JSON-ready.
    """

    message: str
    numbers: dict[str, Any]


@runtime_checkable
class Construction(Protocol):
    """A way to choose rows and weights; frozen hyper-parameters, never a key, never the data."""

    def init(self, key: jax.Array, problem: Problem) -> Any:
        """Return the first state."""
        ...

    def step(self, key: jax.Array, problem: Problem, state: Any) -> tuple[Any, StepInfo]:
        """Return the next state; one step is worth a progress tick and a checkpoint."""
        ...

    def status(self, problem: Problem, state: Any) -> Status:
        """Return `Status.RUNNING` while steps are left."""
        ...

    def path(self, state: Any) -> tuple[Chosen, ...]:
        """Return what was chosen for each of the requested sizes, in their order."""
        ...

    def steps(self, problem: Problem) -> int:
        """Return the most steps there can be, for the progress bar."""
        ...

    def pack(self, state: Any) -> dict[str, Any]:
        """Return the state as nested dicts of arrays and numbers, for a checkpoint."""
        ...

    def unpack(self, packed: dict[str, Any]) -> Any:
        """Return the state that `pack` packed."""
        ...


def uniform_sample(key: jax.Array, n_rows: int, size: int) -> Int[np.ndarray, " size"]:
    """Return ``size`` different row numbers, all sets equally likely, ascending."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    if size >= n_rows:
        return np.arange(n_rows)
    return np.sort(rng.choice(n_rows, size=size, replace=False)).astype(np.int64)
