"""Constructions: a frozen configuration, a state, and a step.

A construction never sees the table or the sampler directly: `Problem` bundles the potentials
(model × rows), the sampler of π_w and what was asked for. The driver owns the loop.

A construction registers its name where it is defined, for the command line and for comparisons:

    register("sparse-vi", lambda: SparseVI(subsample=2000), compared_as="SparseVI")

Its module is found in this package; no list names it.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float, Int

from decoct.data.base import Columns
from decoct.errors import RequestError
from decoct.models.site import GaussianSite
from decoct.passes.chunk_sums import LEAST_PADDED
from decoct.passes.pools import Pool
from decoct.passes.potentials import Potentials
from decoct.report import Status
from decoct.runtime.randomness import uniform_sample
from decoct.samplers.base import Draws, Sampler, WeightedDensity

NEARBY_DRAWS = 100
"""Draws of a nearby posterior that a sampler may learn from."""


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
    site
        The quadratic that stands for all other rows; None where the rows stand for themselves.
    start : (d,)
        A point of large density, where samplers start; None starts at the centre of the site, or
        where the model does.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.constructions import Selection
    >>> Selection(np.array([3, 7]), np.array([50.0, 50.0]), {"x": np.zeros((2, 1))}).size
    2
    """

    indices: Int[np.ndarray, " m"]
    weights: Float[np.ndarray, " m"]
    rows: Columns
    site: GaussianSite | None = None
    start: Float[np.ndarray, " d"] | None = None

    @property
    def size(self) -> int:
        """Number of weighted rows."""
        return len(self.indices)

    @property
    def pool(self) -> Pool:
        """The rows and their numbers, without weights."""
        return Pool(self.indices, self.rows)

    @classmethod
    def of(cls, pool: Pool, weights: Float[np.ndarray, " m"]) -> Selection:
        """Return the rows of a pool with these weights, and no site."""
        return cls(pool.indices, weights, pool.rows)


def central_draw(draws: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " d"]:
    """Return the draw nearest to the mean, in standard deviations; the mean may be impossible."""
    off, scale = draws - draws.mean(axis=0), draws.std(axis=0)
    return draws[np.square(off / np.where(scale > 0.0, scale, 1.0)).sum(axis=1).argmin()]


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
        allowed, unless many groups are fitted one by one.
    kl
        KL(π_w‖π) to reach in nats, or None.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> from decoct.passes.potentials import Potentials
    >>> table = decoct.data.encoded(decoct.rows(rows), model)
    >>> sampler = decoct.samplers.Exact()
    >>> problem = decoct.constructions.Problem(Potentials(model, table), sampler, (5, 10))
    >>> problem.size, problem.n_rows, problem.dim
    (10, 500, 2)
    """

    potentials: Potentials
    sampler: Sampler
    sizes: tuple[int, ...]
    kl: float | None = None

    has_third_order: ClassVar[bool] = True
    """Whether sites may have terms of third order, which do not add."""

    @property
    def size(self) -> int:
        """The largest size asked for."""
        return self.sizes[-1]

    @property
    def n_rows(self) -> int:
        """N, the number of rows of the table."""
        return self.potentials.n_rows

    @property
    def dim(self) -> int:
        """Number of parameters θ."""
        return self.potentials.dim

    @property
    def likelihood_dim(self) -> int:
        """d, the number of likelihood parameters φ."""
        return self.potentials.likelihood_dim

    def density(self, selection: Selection, padded_as: int = 0) -> WeightedDensity:
        """Return π_w for these weighted rows, padded as if there were at least ``padded_as``."""
        _, weights, rows, site, start = selection
        if padded_as and not selection.size:
            _, weights, rows, *_ = no_weight(self.potentials)
        return WeightedDensity.of(self.potentials.model, rows, weights, padded_as, site, start)

    def log_likelihood(
        self, selection: Selection, at: Float[np.ndarray, "S d"]
    ) -> Float[np.ndarray, " S"]:
        """Return s + Σ w_m f_m of weighted rows and their site at some points."""
        total = np.zeros(len(at))
        if selection.size:
            total = selection.weights @ self.potentials.vectors(selection.rows, at)
        if selection.site is None:
            return total
        return total + selection.site.log_density(self.potentials.to_likelihood(at))

    def draw(
        self,
        key: jax.Array,
        selection: Selection,
        n: int,
        start: Float[np.ndarray, " d"] | None = None,
        padded_as: int = 0,
        near: Float[np.ndarray, "k d"] | None = None,
    ) -> Draws:
        """Return n draws from π_w; ``start`` is near its mode, for samplers that search for it.

        ``near`` are draws of a posterior nearby, for samplers that learn from them. With
        ``padded_as`` rows of an earlier selection, the programs compiled for it serve again.
        """
        if self.kl is None and self.size <= LEAST_PADDED:
            padded_as = max(padded_as, self.size)  # one program, for the site alone and with rows
        selection = selection if start is None else selection._replace(start=start)
        density = self.density(selection, padded_as)
        if near is not None:
            places = np.linspace(0, len(near) - 1, NEARBY_DRAWS).astype(np.int64)
            density = dataclasses.replace(density, draws=near[places])
        return self.sampler.draw(key, density, n)


class SizedSelection(NamedTuple):
    """The selection for one requested size.

    Attributes
    ----------
    selection
        The weighted rows.
    predicted_kl
        KL(π_w‖π) in nats; None where it is not predicted.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.constructions import Selection, SizedSelection
    >>> selection = Selection(np.array([3]), np.array([100.0]), {"x": np.zeros((1, 1))})
    >>> SizedSelection(selection, predicted_kl=0.01).predicted_kl
    0.01
    """

    selection: Selection
    predicted_kl: float | None


class StepInfo(NamedTuple):
    """What a step says of itself.

    Attributes
    ----------
    message
        One line.
    numbers
        Figures for the report, JSON-ready.

    Examples
    --------
    >>> from decoct.constructions import StepInfo
    >>> StepInfo("10 rows", {"predicted_kl": 0.01}).message
    '10 rows'
    """

    message: str
    numbers: dict[str, Any]


class Plan(NamedTuple):
    """Predicted cost of a construction: least and most."""

    passes: tuple[int, int]  # over all rows
    evaluations: tuple[float, float]  # potentials, f_n(θ) counted one by one
    array_bytes: int  # its largest arrays, all in memory at once
    fits: PlannedFits | None = None  # work besides the passes; None where it is small or not known


class PlannedFits(NamedTuple):
    """Predicted work of a construction that solves on a pool of rows."""

    passes: float  # over all rows
    evaluations: float  # potentials evaluated in them
    reference: int  # rows of the first posterior that is drawn from
    draws: int  # of each posterior
    shape: tuple[int, int]  # rows and draws of the pool's matrix
    products: float  # times that the matrix is multiplied by a vector, or as much work


@runtime_checkable
class Construction(Protocol):
    """A way to choose rows and weights; frozen hyper-parameters, never a key, never the data.

    These four methods are all it needs. ``steps(problem)``, the most steps there can be, and
    ``plan(problem)``, a `Plan`, let the driver say how long it takes; with ``certifies = True`` a
    KL may be asked for, with ``site = True`` no row. Its state is a NamedTuple,
    named as what `init` returns, of arrays, numbers, text, rows (`Selection`), and tuples of these:
    `pack_state` writes it to a checkpoint, fields of type `NotSaved` left out.

    Examples
    --------
    >>> import decoct
    >>> isinstance(decoct.constructions.Uniform(), decoct.constructions.Construction)
    True
    """

    @abstractmethod
    def init(self, key: jax.Array, problem: Problem) -> Any:
        """Return the first state."""
        ...

    @abstractmethod
    def step(self, key: jax.Array, problem: Problem, state: Any) -> tuple[Any, StepInfo]:
        """Return the next state; one step is worth a progress tick and a checkpoint."""
        ...

    @abstractmethod
    def status(self, problem: Problem, state: Any) -> Status:
        """Return `Status.RUNNING` while steps are left."""
        ...

    @abstractmethod
    def path(self, state: Any) -> tuple[SizedSelection, ...]:
        """Return what was chosen for each of the requested sizes, in their order."""
        ...


def plan_of(method: Construction, problem: Problem) -> Plan | None:
    """Return what a construction says of its cost, or None if it says nothing."""
    plan = getattr(method, "plan", None)
    return None if plan is None else plan(problem)


class OneStepState(NamedTuple):
    """What was chosen; nothing before the step."""

    chosen: tuple[SizedSelection, ...]


Chosen = tuple[tuple[SizedSelection, ...], StepInfo]
"""What is chosen for each of the requested sizes, and what to say of it."""


class OneStep(Construction):
    """Base of the constructions that are done after one step: they define what it chooses."""

    @abstractmethod
    def choose(self, key: jax.Array, problem: Problem) -> Chosen:
        """Return what is chosen."""

    def step(
        self, key: jax.Array, problem: Problem, state: OneStepState
    ) -> tuple[OneStepState, StepInfo]:
        chosen, info = self.choose(key, problem)
        return OneStepState(chosen), info

    def init(self, key: jax.Array, problem: Problem) -> OneStepState:
        return OneStepState(())

    def status(self, problem: Problem, state: OneStepState) -> Status:
        return Status.DONE if state.chosen else Status.RUNNING

    def path(self, state: OneStepState) -> tuple[SizedSelection, ...]:
        return state.chosen

    def steps(self, problem: Problem) -> int:
        """Return the most steps there can be."""
        return 1


T = TypeVar("T")

NotSaved = Annotated[T | None, "not saved"]
"""Type of a field of a state that a checkpoint leaves out; it is None after a resume."""


def uniform_selection(key: jax.Array, problem: Problem, size: int) -> Selection:
    """Return ``size`` rows drawn uniformly, with the weight of the whole table between them."""
    indices = uniform_sample(key, problem.n_rows, size)
    rows = problem.potentials.rows.take(indices)
    return Selection(indices, np.full(size, problem.n_rows / size), rows)


def equal_weight_rows(problem: Problem, pool: Pool, size: int) -> Selection:
    """Return evenly spaced rows of a pool, with the weight of the whole table between them.

    Where no potential varies over the draws, no draw prefers any weights; these depend on no
    single row.
    """
    m = min(size, len(pool.indices))
    places = np.linspace(0, len(pool.indices) - 1, m).round().astype(np.int64)
    return Selection.of(pool.some(places), np.full(m, problem.n_rows / max(1, m)))


def no_weight(potentials: Potentials, rows: int = 1) -> Selection:
    """Return a row or none, without weight: the prior, with the shapes of the table."""
    few = {name: column[:rows] for name, column in potentials.first.items()}
    return Selection(np.arange(rows), np.zeros(rows), few)


class Entry(NamedTuple):
    """A construction with the options that its name stands for."""

    make: Callable[[], Construction]
    compared_as: str | None  # in `decoct.compare`; None if it is not compared unless asked for


_ENTRIES: dict[str, Entry] = {}


def register(
    name: str, make: Callable[[], Construction], *, compared_as: str | None = None
) -> None:
    """Offer a construction on the command line (``--method name``), and for comparisons."""
    _ENTRIES[name] = Entry(make, compared_as)


def entries() -> dict[str, Entry]:
    """Return all registered constructions, by name in alphabetical order."""
    package = importlib.import_module("decoct.constructions")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return dict(sorted(_ENTRIES.items()))


def make_construction(name: str) -> Construction:
    """Return the construction of that name."""
    # what is loaded already, such as the default, needs no search
    known = _ENTRIES if name in _ENTRIES else entries()
    if name not in known:
        raise RequestError(f"There is no method '{name}'; choose one of {', '.join(known)}.")
    return known[name].make()
