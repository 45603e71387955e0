"""The coreset posterior π_w as a density, and the interface of samplers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.data.base import Columns, columns_length
from decoct.errors import ModelError, RequestError
from decoct.models.base import AbstractModel
from decoct.models.parameters import ParameterSpace
from decoct.models.site import GaussianSite
from decoct.passes.chunk_sums import LEAST_PADDED
from decoct.runtime.precision import compile_quickly, float64


class WeightedDensity(eqx.Module):
    """log π_w(θ) = log π₀(θ) + s(φ(θ)) + Σ w_n f_n(φ(θ)), unnormalised, over a few encoded rows.

    Rows are padded with copies of the first kept row up to a power of two (in finer steps above
    1024 rows), so that one compilation serves many coresets. The copies share that row's weight:
    with no weight of 0 the sum needs no select, which would keep XLA from vectorising it.

    Attributes
    ----------
    model, space
        What to evaluate, and the shape of its parameters.
    rows
        Encoded rows, padded.
    weights
        w ≥ 0, padded with zeros: one entry per kept row, for samplers that need the rows.
    shares
        The same weights, the first one shared by the padding; all zero only without any row.
    start : (d,)
        Where samplers start: a point of large density, where one is known; else the centre of a
        site in the model's own parameters, or the model's init.
    site
        s, the quadratic that stands for all other rows, if there is one.
    draws : (n, D)
        Draws of a posterior nearby, if there are any, that samplers may learn from.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> from decoct.samplers import WeightedDensity
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> density = WeightedDensity.of(model, model.encode({"x": np.ones((3, 2))}), np.ones(3))
    >>> density.dim
    2
    """

    model: AbstractModel
    space: ParameterSpace
    rows: dict[str, Array]
    weights: Float[Array, " m"]
    shares: Float[Array, " m"]
    start: Float[np.ndarray, " d"]
    site: GaussianSite | None = None
    draws: Float[np.ndarray, "n D"] | None = None

    @classmethod
    @float64
    def of(
        cls,
        model: AbstractModel,
        rows: Columns,
        weights: Float[np.ndarray, " m"],
        padded_as: int = 0,
        site: GaussianSite | None = None,
        start: Float[np.ndarray, " d"] | None = None,
    ) -> WeightedDensity:
        """Build the density from encoded rows; weight-0 rows are left out, as if absent.

        It is padded as if there were at least ``padded_as`` rows.

        Raises
        ------
        ModelError
            The site or the start has another number of parameters than the model.
        """
        weights = np.asarray(weights, dtype=np.float64)
        initial = model.init(rows)
        space = ParameterSpace.of(initial)
        known, start = start, space.flatten(initial)
        if known is not None and known.shape != start.shape:
            raise ModelError(
                f"The start has {len(known)} parameters and the model has {len(start)}; they do "
                "not belong together."
            )
        if site is not None:
            phi = model.to_likelihood_params(initial)
            if site.dim != ParameterSpace.of(phi).dim:
                raise ModelError(
                    f"The site is a quadratic in {site.dim} parameters and the model has "
                    f"{ParameterSpace.of(phi).dim}; they do not belong together."
                )
            if phi is initial:
                start = site.centre
        start = start if known is None else known
        if not columns_length(rows):
            none = jnp.zeros(0)
            return cls(model, space, {}, none, none, start, site)
        kept = np.flatnonzero(weights > 0.0)
        capacity = _capacity(max(len(kept), padded_as))
        source = np.full(capacity, kept[0] if len(kept) else 0)
        source[: len(kept)] = kept
        padded = np.zeros(capacity)
        padded[: len(kept)] = weights[kept]
        shares = padded.copy()
        if len(kept):
            copies = np.r_[0, len(kept) : capacity]
            shares[copies] = padded[0] / len(copies)
        taken = {name: column[source] for name, column in rows.items()}
        taken, padded, shares = jax.device_put((taken, padded, shares))
        return cls(model, space, taken, padded, shares, start, site)

    @property
    def dim(self) -> int:
        """d, the number of unconstrained parameters."""
        return self.space.dim

    @property
    @float64
    def has_likelihood_params(self) -> bool:
        """Whether rows and site depend on φ(θ) other than θ."""
        params = self.space.unflatten(jnp.asarray(self.start))
        return self.model.to_likelihood_params(params) is not params

    def log_density(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        """Return log π_w(z) up to a constant; pure JAX."""
        params = self.space.unflatten(z)
        phi, total = self.model.to_likelihood_params(params), 0.0
        if len(self.shares):
            values = self.model.log_likelihood(phi, self.rows)
            # Without any row this is the prior, also where the row kept for its shapes is
            # impossible.
            total = jnp.where(self.shares[0] > 0.0, (self.shares * values).sum(), 0.0)
        total = total + self.model.log_prior(params)
        return total if self.site is None else total + self.site.log_density(self.space.ravel(phi))


def _capacity(n: int) -> int:
    """Return a power of two up to 1024, then eight steps an octave: at most 1/8 is padding.

    Below `LEAST_PADDED` rows a program of its own would cost more to compile than padding to run.
    """
    if n <= 1024:
        return max(LEAST_PADDED, 2 ** int(np.ceil(np.log2(max(1, n)))))
    step = 2 ** (int(np.log2(n)) - 3)
    return -(-n // step) * step


@compile_quickly
def _log_densities(density: WeightedDensity, draws):
    return jax.vmap(density.log_density)(draws)


@float64
def log_densities(
    density: WeightedDensity, draws: Float[np.ndarray, "S d"]
) -> Float[np.ndarray, " S"]:
    """Return log π_w at each draw, up to a constant."""
    return np.asarray(_log_densities(density, draws))


@dataclass(frozen=True)
class Draws:
    """Draws from π_w in unconstrained space.

    Attributes
    ----------
    z : (chains, draws, d)
        The draws; independent draws have one chain.
    sampler
        Name of the sampler.
    info
        Diagnostics: divergences, R-hat, k-hat ... NumPy values only.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.samplers import Draws
    >>> Draws(np.zeros((2, 100, 3)), "mine", {}).flat.shape
    (200, 3)
    """

    z: Float[np.ndarray, "chains draws d"]
    sampler: str
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def flat(self) -> Float[np.ndarray, "n d"]:
        """The draws of all chains, one chain after the other."""
        return self.z.reshape(-1, self.z.shape[-1])


@runtime_checkable
class Sampler(Protocol):
    """Draws from a weighted density; a frozen configuration without key or data.

    Examples
    --------
    >>> import decoct
    >>> isinstance(decoct.samplers.NUTS(), decoct.samplers.Sampler)
    True
    """

    def draw(self, key: jax.Array, density: WeightedDensity, n: int) -> Draws:
        """Return at least n draws in all; the caller uses the first n of `Draws.flat`."""
        ...


def require_sampler(given: object) -> None:
    """Refuse anything but a sampler, a class instead of an instance included."""
    if isinstance(given, type) or not hasattr(given, "draw"):
        raise RequestError(f"sampler must be a sampler such as Laplace(), not {given!r}.")
