"""Weighting distributions π̂ of Hilbert norms (Campbell & Broderick 2019, Section 5).

A norm compares potentials where π̂ has mass. Ideally π̂ = π; the paper names
affordable choices: the Laplace approximation, the prior, a sampler on a random subset of the rows,
or given draws. Those of a mixture on the sphere are `decoct.mixture.Conditionals` (Eq. 7.6).
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float

from decoct.constructions.base import no_weight
from decoct.errors import ModelError, RequestError
from decoct.passes.potentials import Potentials
from decoct.runtime.checks import checked_whole
from decoct.runtime.randomness import host_rng, uniform_sample
from decoct.samplers.base import Sampler, WeightedDensity
from decoct.samplers.laplace import Laplace, find_full_mode, find_mode, gaussian_at
from decoct.samplers.nuts import NUTS
from decoct.samplers.pathfinder import Pathfinder
from decoct.stats.chains import USABLE_KHAT
from decoct.stats.divergences import Gaussian

__all__ = ["FullLaplace", "Given", "Prior", "Subsample"]

WARM_START = 20_000
"""Rows above which the mode is first sought on that many of them."""


@runtime_checkable
class Weighting(Protocol):
    """A source of draws from π̂; hyper-parameters only.

    Examples
    --------
    >>> import decoct, jax, numpy as np
    >>> class Standard:
    ...     def draw(self, key, potentials, n):
    ...         return np.asarray(jax.random.normal(key, (n, potentials.dim)))
    >>> isinstance(Standard(), decoct.weighting.Weighting)
    True
    """

    def draw(self, key: jax.Array, potentials: Potentials, n: int) -> Float[np.ndarray, "n d"]:
        """Return n draws in flat unconstrained space."""
        ...


@dataclass(frozen=True)
class FullLaplace(Weighting):
    """The Laplace approximation of the full posterior; one pass over the data a Newton step.

    Examples
    --------
    >>> import decoct
    >>> method = decoct.constructions.Hilbert(weighting=decoct.weighting.FullLaplace())
    >>> method.weighting
    FullLaplace()
    """

    def draw(self, key: jax.Array, potentials: Potentials, n: int) -> Float[np.ndarray, "n d"]:
        return self.gaussian(key, potentials).sample(host_rng(key), n)

    def gaussian(self, key: jax.Array, potentials: Potentials) -> Gaussian:
        """Return the approximation.

        Raises
        ------
        ModelError
            There is no strict maximum; the message says what to try.
        """
        start = None
        if potentials.n_rows > WARM_START:
            near = find_mode(_subset(key, potentials, WARM_START))
            start = near.z if near.status.ok else None
        mode = find_full_mode(potentials, start)
        if not mode.status.ok:
            raise ModelError(
                f"{mode.status.value} Alternatively use a weighting distribution other than the "
                "Laplace approximation, such as Subsample()."
            )
        return gaussian_at(mode)


@dataclass(frozen=True)
class Prior(Weighting):
    """The prior: no pass over the data, but far from the posterior when N is large.

    Exact where the log prior is quadratic, by NUTS elsewhere.

    Attributes
    ----------
    nuts
        The sampler elsewhere.

    Examples
    --------
    >>> import decoct
    >>> method = decoct.constructions.Hilbert(weighting=decoct.weighting.Prior())
    >>> method.weighting.nuts.chains
    4
    """

    nuts: NUTS = field(default_factory=NUTS)

    def draw(self, key: jax.Array, potentials: Potentials, n: int) -> Float[np.ndarray, "n d"]:
        nothing = no_weight(potentials)
        density = WeightedDensity.of(potentials.model, nothing.rows, nothing.weights)
        with suppress(ModelError):
            draws = Laplace().draw(key, density, n)
            if draws.info["khat"] == -np.inf:  # constant ratios: the prior is that Gaussian
                return draws.flat
        return self.nuts.draw(key, density, n).flat[:n]


@dataclass(frozen=True)
class Subsample(Weighting):
    """Draws of a sampler on a uniformly random subset of the rows.

    Attributes
    ----------
    rows
        Rows in the subset, each of weight N/rows; None for all of them.
    sampler
        Any sampler of `decoct.samplers`; `NUTS` by default.

    Raises
    ------
    RequestError
        ``rows`` is below 1.

    Warns
    -----
    UserWarning
        The sampler approximates, and its k-hat says that it does not fit (above 0.7).

    Examples
    --------
    >>> import decoct
    >>> method = decoct.constructions.Hilbert(weighting=decoct.weighting.Subsample(500))
    >>> method.weighting.rows
    500
    """

    rows: int | None = 1000
    sampler: Sampler = field(default_factory=NUTS)

    def __post_init__(self) -> None:
        if self.rows is not None:
            checked_whole("rows", self.rows, 1)

    def draw(self, key: jax.Array, potentials: Potentials, n: int) -> Float[np.ndarray, "n d"]:
        subset_key, draw_key = jax.random.split(key)
        density = _subset(subset_key, potentials, self.rows or potentials.n_rows)
        drawn = self.sampler.draw(draw_key, density, n)
        khat = float(drawn.info.get("khat", -np.inf))
        if khat > USABLE_KHAT:
            warnings.warn(
                f"The weighting draws of {drawn.sampler} do not fit the posterior of the subset "
                f"(k-hat {khat:.2f}); use Subsample(sampler=NUTS()).",
                stacklevel=2,
            )
        return drawn.flat[:n]


@dataclass(frozen=True, eq=False)
class Given(Weighting):
    """Draws from anywhere.

    Attributes
    ----------
    draws : (S, d)
        In flat unconstrained space.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> draws = np.random.default_rng(0).normal(size=(400, 3))
    >>> method = decoct.constructions.Hilbert(weighting=decoct.weighting.Given(draws))
    >>> method.weighting.draws.shape
    (400, 3)
    """

    draws: Float[np.ndarray, "S d"]

    def draw(self, key: jax.Array, potentials: Potentials, n: int) -> Float[np.ndarray, "n d"]:
        """Return all of them, however many are asked for."""
        draws = np.asarray(self.draws, dtype=np.float64)
        if draws.ndim != 2 or draws.shape[1] != potentials.dim:
            raise RequestError(
                f"The weighting draws have shape {draws.shape}; the model has {potentials.dim} "
                f"parameters, so they must be (S, {potentials.dim})."
            )
        if len(draws) < 2:
            raise RequestError(
                "Give at least two weighting draws: potentials are centred over them."
            )
        if not np.isfinite(draws).all():
            bad = int(np.argmin(np.isfinite(draws).all(axis=1)))
            raise RequestError(f"Weighting draw {bad} has NaN or infinite entries.")
        return draws


NAMED = {
    "laplace": FullLaplace(),
    "prior": Prior(),
    "subsample": Subsample(),
    "pathfinder": Subsample(None, Pathfinder()),
}


def as_weighting(value: Any) -> Weighting:
    """Return a weighting distribution from its name, an array of draws, or itself."""
    weighting: Any = NAMED.get(value) if isinstance(value, str) else value
    if hasattr(weighting, "draw"):
        return weighting
    if isinstance(value, (np.ndarray, jax.Array, list)):
        return Given(np.asarray(value, dtype=np.float64))
    raise RequestError(
        f"weighting must be one of {', '.join(NAMED)}, an array of draws or a weighting "
        f"distribution, not {value!r}."
    )


def _subset(key: jax.Array, potentials: Potentials, size: int) -> WeightedDensity:
    """Return the posterior of uniformly random rows, each of weight N/size."""
    indices = uniform_sample(key, potentials.n_rows, size)
    weights = np.full(len(indices), potentials.n_rows / len(indices))
    return WeightedDensity.of(potentials.model, potentials.rows.take(indices), weights)
