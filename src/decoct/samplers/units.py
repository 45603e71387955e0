"""Units in which a posterior is near N(0, I): where NUTS needs few leapfrog steps.

x = c + L v with LLᵀ the inverse of a precision. Where the posterior has a mode that fits, that is
the precision there. A multilevel posterior has none: the precision is then the mean of −∇²log π
over draws so far, from short runs that each learn better units than the one before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from decoct.passes.expansions import to_second_order
from decoct.passes.newton import maximise
from decoct.passes.potentials import Curvature
from decoct.runtime.precision import float64
from decoct.samplers.base import WeightedDensity
from decoct.samplers.centring import Centring

SCALE_EVALUATIONS, SCALE_DECREMENT = 20, 0.1
"""Most evaluations of the search for scales, and where it ends: twice the nats to the maximum."""

LEAST = 1e-3
"""Least precision, relative to that of each coordinate, that a direction is taken to have."""


class Units(eqx.Module):
    """A density of v, where x = centre + factor v holds parameters with some effects centred.

    Attributes
    ----------
    centring, mask
        What x is, and which effects it holds; None where x is θ.
    """

    density: WeightedDensity
    centre: Float[Any, " D"]
    factor: Float[Any, "D D"]
    centring: Centring | None = None
    mask: Bool[Any, " m"] | None = None

    def log_density(self, v: Float[Array, " D"]) -> Float[Array, ""]:
        """Return log π of v; pure JAX."""
        z, volume = self.to_parameters(v)
        return self.density.log_density(z) + volume

    def to_parameters(self, v: Float[Array, " D"]) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        """Return θ and log |dθ/dx|; pure JAX."""
        x = self.centre + self.factor @ v
        if self.centring is None or self.mask is None:
            return x, jnp.zeros(())
        return self.centring.to_parameters(x, self.mask)

    @float64
    def parameters_of(self, v: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "... D"]:
        """Return θ of draws."""
        flat = jnp.asarray(v.reshape(-1, v.shape[-1]))
        return np.asarray(_parameters_of(self, flat)).reshape(v.shape)

    @float64
    def coordinates_of(self, z: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n D"]:
        """Return x of points θ."""
        if self.centring is None:
            return z
        return np.asarray(from_parameters(self.centring, jnp.asarray(z), self.mask))

    def units_of(self, x: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n D"]:
        """Return v of points x."""
        return np.linalg.solve(np.asarray(self.factor), (x - np.asarray(self.centre)).T).T


@float64
def start_of(density: WeightedDensity, centring: Centring) -> Float[np.ndarray, " D"]:
    """Return θ with φ at the centre of the site, and the scales that are likeliest for it.

    Where φ is no entries of x, the start that the density has.
    """
    site, selection = density.site, centring.selection
    if site is None or selection is None:
        return np.asarray(density.start)
    everywhere = centring.everywhere
    x = np.array(from_parameters(centring, jnp.asarray(density.start)[None], everywhere)[0])
    x[selection] = site.centre
    rest = np.setdiff1d(np.arange(len(x)), selection)

    def evaluate(y: np.ndarray) -> Curvature:
        found = _at_rest(density, centring, everywhere, jnp.asarray(x), rest, jnp.asarray(y))
        value, gradient, hessian = (np.asarray(part) for part in found)
        return Curvature(float(value), gradient, hessian)

    if len(rest):
        x[rest] = maximise(evaluate, x[rest], SCALE_EVALUATIONS, SCALE_DECREMENT).z
    return np.asarray(to_parameters(centring, jnp.asarray(x)[None], everywhere)[0])


@float64
def units_at(
    density: WeightedDensity, centring: Centring, z: Float[np.ndarray, "n D"], points: int
) -> tuple[Units, Float[np.ndarray, "n D"]]:
    """Return units learnt from some draws, and the draws in them.

    Effects are centred where the site says more of them than their prior does: where its precision
    times b² is above 1, on average.
    """
    site = density.site
    assert site is not None
    _, scale = (np.asarray(part) for part in _affine_at(centring, jnp.asarray(z)))
    known = np.diag(site.precision)[centring.effects.entries]
    mask = known * np.mean(scale**2, axis=0) > 1.0
    x = np.asarray(from_parameters(centring, jnp.asarray(z), mask))
    precision = precision_at(density, centring, mask, x[:points])
    factor = factor_of(precision)
    units = Units(density, x.mean(axis=0), factor, centring, mask)
    return units, units.units_of(x)


def precision_at(
    density: WeightedDensity, centring: Centring, mask: np.ndarray, x: Float[np.ndarray, "n D"]
) -> Float[np.ndarray, "D D"]:
    """Return the mean of −∇²log π over some points x.

    A site in entries of x adds its precision as it is.
    """
    site, selection, points = density.site, centring.selection, jnp.asarray(x)
    if site is None or selection is None or not mask.all():
        found = -np.asarray(_mean_hessian(density, centring, mask, points))
    else:
        bare = replace(density, site=None)
        found = -np.array(_mean_hessian(bare, centring, mask, points))
        np.add.at(found, (selection[:, None], selection[None]), site.precision)
    return 0.5 * (found + found.T)


def factor_of(precision: Float[np.ndarray, "D D"]) -> Float[np.ndarray, "D D"]:
    """Return L with LLᵀ the inverse of a precision, directions of no precision given a little."""
    scale = np.sqrt(np.maximum(np.abs(np.diag(precision)), 1e-300))
    relative = precision / np.outer(scale, scale)
    try:
        root = np.linalg.cholesky(relative - LEAST * np.eye(len(scale)))
        root = np.linalg.cholesky(relative)
    except np.linalg.LinAlgError:
        values, basis = np.linalg.eigh(relative)
        relative = (basis * np.maximum(np.abs(values), LEAST)) @ basis.T
        root = np.linalg.cholesky(relative)
    return np.linalg.inv(root).T / scale[:, None]


@eqx.filter_jit
def _at_rest(density: WeightedDensity, centring: Centring, mask, x, rest, y):
    """Return value, gradient and Hessian of log π in some entries of x."""

    def log_density(y):
        z, volume = centring.to_parameters(x.at[rest].set(y), mask)
        return density.log_density(z) + volume

    return to_second_order(log_density, y)


@eqx.filter_jit
def _mean_hessian(density: WeightedDensity, centring: Centring, mask, x: Float[Array, "n D"]):
    def log_density(one):
        z, volume = centring.to_parameters(one, mask)
        return density.log_density(z) + volume

    return jax.lax.map(jax.hessian(log_density), x).mean(axis=0)


@eqx.filter_jit
def _affine_at(centring: Centring, z: Float[Array, "n D"]):
    return jax.vmap(centring.affine)(z)


@eqx.filter_jit
def from_parameters(centring: Centring, z: Float[Array, "n D"], mask) -> Float[Array, "n D"]:
    """Return x of several points θ."""
    return jax.vmap(lambda one: centring.from_parameters(one, mask))(z)


@eqx.filter_jit
def to_parameters(centring: Centring, x: Float[Array, "n D"], mask) -> Float[Array, "n D"]:
    """Return θ of several points x."""
    return jax.vmap(lambda one: centring.to_parameters(one, mask)[0])(x)


@eqx.filter_jit
def _parameters_of(units: Units, v: Float[Array, "n D"]):
    return jax.vmap(lambda one: units.to_parameters(one)[0])(v)
