"""Units in which a posterior is near N(0, I), so that NUTS needs few leapfrog steps.

x = c + L v with LLᵀ the inverse of a precision. Where the posterior has a mode that fits, that is
the precision there. A multilevel posterior has none: the precision is then the mean of −∇²log π
over draws so far, from short runs that each learn better units than the one before. Two effects are
in different blocks of it where no row depends on both (`decoct.samplers.arrow`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from scipy.sparse import csr_array

from decoct.passes.expansions import Expansion, expand_chunk, to_second_order
from decoct.passes.potentials import Curvature
from decoct.runtime.precision import compile_quickly, float64
from decoct.samplers.arrow import SAME, Arrow, ArrowFactor, ArrowSite, Blocks, find_blocks
from decoct.samplers.base import WeightedDensity
from decoct.samplers.centred_density import POINTS, CentredDensity, mean_precision
from decoct.samplers.centring import Centring, Information, scales_at
from decoct.samplers.laplace import maximise

SCALE_EVALUATIONS, SCALE_DECREMENT = 20, 0.1
"""Most evaluations of the search for scales, and where it ends: twice the nats to the maximum."""

DRAWS_AT_ONCE = 128
"""Draws that are mapped to parameters at once: one program for any number of them."""


class Units(eqx.Module):
    """A density of v, where x = centre + factor v is θ, or θ with effects centred."""

    density: WeightedDensity | CentredDensity
    centre: Float[Any, " D"]
    factor: ArrowFactor

    def log_density(self, v: Float[Array, " D"]) -> Float[Array, ""]:
        """Return log π of v; pure JAX."""
        return self.density.log_density(self.centre + self.factor.product(v))

    def to_parameters(self, v: Float[Array, " D"]) -> Float[Array, " D"]:
        """Return θ; pure JAX."""
        x = self.centre + self.factor.product(v)
        return self.density.to_parameters(x) if isinstance(self.density, CentredDensity) else x

    @property
    def is_centred(self) -> bool:
        """Whether x has effects centred."""
        return isinstance(self.density, CentredDensity)

    @float64
    def parameters_of(self, v: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "... D"]:
        """Return θ of draws."""
        flat = v.reshape(-1, v.shape[-1])
        blocks = -(-len(flat) // DRAWS_AT_ONCE)
        padded = np.resize(flat, (blocks, DRAWS_AT_ONCE, v.shape[-1]))
        found = np.concatenate([_parameters_of(self, jnp.asarray(block)) for block in padded])
        return found[: len(flat)].reshape(v.shape)

    def units_of(self, x: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n D"]:
        """Return v of points x."""
        return self.factor.solve(x - np.asarray(self.centre))


@float64
def start_of(density: WeightedDensity, centring: Centring) -> Float[np.ndarray, " D"]:
    """Return θ with φ at the centre of the site, and the most probable scales given it.

    Where φ is not made of entries of x, return the density's start.
    """
    site, selection = density.site, centring.selection
    if site is None or selection is None:
        return np.asarray(density.start)
    x = np.array(from_parameters(centring, jnp.asarray(density.start)[None], None)[0])
    x[selection] = np.asarray(_undo(centring, jnp.asarray(site.centre)))
    rest = np.setdiff1d(np.arange(len(x)), selection)
    none = jnp.zeros(0)  # φ is fixed, and with it what rows and site say
    prior = replace(density, rows={}, weights=none, shares=none, site=None, draws=None)
    centred = CentredDensity(prior, centring, None)

    def evaluate(y: np.ndarray) -> Curvature:
        return Curvature.of(_at_rest(centred, jnp.asarray(x), rest, jnp.asarray(y)))

    if len(rest):
        x[rest] = maximise(evaluate, x[rest], SCALE_EVALUATIONS, SCALE_DECREMENT).z
    return np.asarray(to_parameters(centring, jnp.asarray(x)[None], None)[0])


@float64
def units_at(
    density: WeightedDensity,
    centring: Centring,
    z: Float[np.ndarray, "n D"],
    points: int = POINTS,
) -> tuple[Units, Float[np.ndarray, "n D"]]:
    """Return units learnt from some draws, and the draws in them.

    The precision is the mean over ``points`` of them.
    """
    assert density.site is not None
    effects, site = centring.effects, density.site
    mean = np.asarray(_mean_entries(centring, jnp.asarray(z)))
    score, precision = _likelihood_at(density, centring, mean)
    standardised = centring.standardised
    scale = np.asarray(scales_at(centring, jnp.asarray(z)))
    entries = effects.entries if centring.selection is None else np.arange(site.dim)
    members = find_blocks((precision != 0.0)[np.ix_(entries, entries)])
    of_site = Blocks.of(np.append(entries, site.dim)[members], site.dim)
    of_effects = _effect_precision(precision, of_site, standardised, scale)
    known = Information(np.zeros(site.dim), np.zeros(site.dim))
    known.precision[standardised] = of_effects
    known.linear[standardised] = of_effects * mean[standardised] + score[standardised]
    x = np.asarray(from_parameters(centring, jnp.asarray(z), known))
    places = effects.places if centring.selection is None else centring.selection
    blocks = Blocks.of(np.append(places, density.dim)[members], density.dim)
    # one program, whether there are draws nearby or not
    bare, of_blocks = replace(density, site=None, draws=None), ArrowSite.of(site, of_site)
    # terms of third order would couple groups that the quadratic does not
    log_density = CentredDensity(bare, centring, known, of_blocks.quadratic())
    some = x[np.linspace(0, len(x) - 1, min(points, len(x))).astype(np.int64)]
    factor = mean_precision(log_density, site, some, blocks).factor()
    units = Units(replace(log_density, site=of_blocks), x.mean(axis=0), factor)
    return units, units.units_of(x)


def _effect_precision(
    precision: Float[np.ndarray, "d d"],
    blocks: Blocks,
    entries: Int[np.ndarray, " m"],
    scale: Float[np.ndarray, "n m"],
) -> Float[np.ndarray, " m"]:
    """Return 1/var(u) − 1/b² of each effect: 0 where the data say nothing of it.

    var(u) is that of a Gaussian with precision P + diag(1/b²), b at its geometric mean. With all
    other effects fixed it says how far log π bends along log b; with them integrated out, how wide
    the funnel is, for effects of crossed and nested groups depend on the same data. This is the
    mean of both.
    """
    prior = np.exp(-2.0 * np.log(scale).mean(axis=0))
    total = precision + SAME * np.diag(precision).max(initial=0.0) * np.eye(len(precision))
    total[entries, entries] += prior
    integrated = Arrow.of(total, blocks).inverse_diagonal()[entries]
    variances = 0.5 * (1.0 / total[entries, entries] + integrated)
    return np.maximum(1.0 / variances - prior, 0.0)


def _likelihood_at(
    density: WeightedDensity, centring: Centring, entries: Float[np.ndarray, " d"]
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """Return gradient and precision of site and rows, in φ in its own units."""
    assert density.site is not None
    phi = np.asarray(_standardise(centring, jnp.asarray(entries)))
    site = density.site.move_to(phi)
    gradient, precision = site.linear, site.precision
    if np.any(density.shares):
        space, at = centring.likelihood_space, Expansion.taylor(phi)
        of_rows = expand_chunk(density.model, space, at, density.rows, density.shares)
        gradient, precision = gradient + np.asarray(of_rows[1]), precision - np.asarray(of_rows[2])
    if density.model.noise_scale is None:
        return gradient, precision
    slopes = csr_array(_slopes_of(centring, jnp.asarray(entries)))
    return slopes.T @ gradient, slopes.T @ (slopes.T @ precision).T


@compile_quickly
def _undo(centring: Centring, phi: Float[Array, " d"]) -> Float[Array, " d"]:
    return centring.undo(phi)


@compile_quickly
def _standardise(centring: Centring, entries: Float[Array, " d"]) -> Float[Array, " d"]:
    return centring.standardise(entries)


@compile_quickly
def _slopes_of(centring: Centring, entries: Float[Array, " d"]) -> Float[Array, "d d"]:
    """Return the derivatives of φ in φ in its own units."""
    return jax.jacfwd(centring.standardise)(entries)


@compile_quickly
def _mean_entries(centring: Centring, z: Float[Array, "n D"]) -> Float[Array, " d"]:
    return jax.vmap(centring.entries)(z).mean(axis=0)


@compile_quickly
def _at_rest(centred: CentredDensity, x, rest, y):
    """Return value, gradient and Hessian of log π in some entries of x."""
    return to_second_order(lambda y: centred.log_density(x.at[rest].set(y)), y)


@compile_quickly
def from_parameters(centring: Centring, z: Float[Array, "n D"], known) -> Float[Array, "n D"]:
    """Return x of several points θ."""
    return jax.vmap(lambda one: centring.from_parameters(one, known))(z)


@compile_quickly
def to_parameters(centring: Centring, x: Float[Array, "n D"], known) -> Float[Array, "n D"]:
    """Return θ of several points x."""
    return jax.vmap(lambda one: centring.to_parameters(one, known).z)(x)


@compile_quickly
def _parameters_of(units: Units, v: Float[Array, "n D"]):
    return jax.vmap(units.to_parameters)(v)
