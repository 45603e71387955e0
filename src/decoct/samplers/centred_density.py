"""log π of parameters x with effects centred, and its mean precision over draws.

With few coordinates beside blocks of effects, the Hessian of log π is had from its products with
the members of all blocks at once. With many, the site's part needs less: two coordinates that each
enter one entry of φ, linearly, have s_k s_l P_kl between them, s = ∂φ/∂x.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from decoct.models.site import GaussianSite
from decoct.runtime.precision import compile_quickly
from decoct.samplers.arrow import SAME, Arrow, ArrowSite, Blocks
from decoct.samplers.base import WeightedDensity
from decoct.samplers.centring import Centring, Information, derivatives_along

POINTS = 64
"""Most draws at which a precision is averaged: along scales it has a heavy tail."""

FEW_PRODUCTS = 100
"""Products up to which the site's part is not apart: it takes two more programs."""

SLOPES = 3
"""Points at which derivatives of φ are taken: at one alone some may be 0 by chance."""

PADDED = 16
"""Products with a site are taken of a multiple of so many directions, for few programs."""


class CentredDensity(eqx.Module):
    """log π as a function of x, in which effects are centred as far as the data inform them.

    A site that the density does not have is evaluated apart from it.
    """

    density: WeightedDensity
    centring: Centring
    known: Information | None
    site: ArrowSite | None = None

    def log_density(self, x: Float[Array, " D"]) -> Float[Array, ""]:
        """Return log π of x; pure JAX."""
        z, volume, phi = self.centring.to_parameters(x, self.known)
        total = self.density.log_density(z) + volume
        return total if self.site is None else total + self.site.log_density(phi)

    def site_alone(self, x: Float[Array, " D"]) -> Float[Array, ""]:
        """Return the site's part; pure JAX."""
        assert self.site is not None
        return self.site.log_density(self.likelihood(x))

    def likelihood(self, x: Float[Array, " D"]) -> Float[Array, " d"]:
        """Return φ, flat; pure JAX."""
        return self.centring.to_parameters(x, self.known).phi

    def to_parameters(self, x: Float[Array, " D"]) -> Float[Array, " D"]:
        """Return θ; pure JAX."""
        return self.centring.to_parameters(x, self.known).z


def mean_precision(
    log_density: CentredDensity, site: GaussianSite, x: Float[np.ndarray, "n D"], blocks: Blocks
) -> Arrow:
    """Return the mean of −∇²log π over some points x, in blocks if these hold all of it."""
    points = jnp.asarray(np.resize(x, (POINTS, x.shape[1]))), np.asarray(len(x))  # for one program
    tried = [blocks, Blocks.of(blocks.members[:, :0], x.shape[1])]
    of_site, alone = _site_precision(log_density, site, points, blocks)
    if of_site is not None:
        log_density = replace(log_density, site=None)
        alone = np.setdiff1d(alone, blocks.members)
        if len(alone) and not np.any(log_density.density.shares):
            # the prior binds few effects to each other, and there are no rows that do
            tried.insert(0, blocks.and_alone(alone))
    found = next(filter(None, (_by_products(log_density, points, one) for one in tried)))
    if of_site is None:
        return found
    total = of_site + found.to_array()
    return Arrow.of(total, blocks if blocks.hold(total) else tried[-1])


def _within(blocks: Blocks, values: Float[np.ndarray, " n"]) -> Float[np.ndarray, "b D"]:
    """Return a vector for each place in a block: a value for each block there, and 0 elsewhere."""
    b = len(blocks.members)
    found = np.zeros((b, len(blocks.order) + 1))
    found[np.arange(b)[:, None], blocks.members] = values
    return found[:, :-1]


def _by_products(
    log_density: CentredDensity, points: tuple[Float[Array, "N D"], Any], blocks: Blocks
) -> Arrow | None:
    """Return the mean of −∇²log π over the first points, or None if blocks do not hold all of it.

    What is between blocks would show in the product with a random number for each.
    """
    # products for each place in a block, with 1 and with numbers, and for each other coordinate
    (b, n), r = blocks.members.shape, len(blocks.rest)
    others = np.zeros((r, len(blocks.order)))
    others[np.arange(r), blocks.rest] = 1.0
    numbers = np.random.default_rng(0).uniform(1.0, 2.0, n)
    within = _within(blocks, np.ones(n)), _within(blocks, numbers)
    directions = jnp.asarray(np.concatenate([*within, others]))
    products = _mean_products(log_density, blocks, *points, directions)
    inside, rest = (-np.asarray(part) for part in products)
    columns, numbered, coupling = np.split(inside, [b, 2 * b])
    off = np.abs(numbered - numbers * columns)
    if (off > SAME * np.abs(columns).max(axis=0, initial=0.0)).any():
        return None
    diagonal, dense = 0.5 * (columns + columns.swapaxes(0, 1)), rest[2 * b :]
    return Arrow(blocks, diagonal, coupling.reshape(r, n * b).T, 0.5 * (dense + dense.T))


def _site_precision(
    log_density: CentredDensity,
    site: GaussianSite,
    points: tuple[Float[Array, "N D"], Any],
    blocks: Blocks,
) -> tuple[Float[np.ndarray, "D D"] | None, Int[np.ndarray, " k"]]:
    """Return the site's part of the mean, and coordinates that each enter one entry of φ, linearly.

    The others that φ depends on, such as scales and σ, take a product each. Where `blocks` take few
    products, or no more than these, there is no part of its own.
    """
    dim, most = points[0].shape[1], 2 * len(blocks.members) + len(blocks.rest)
    if most <= FEW_PRODUCTS:
        return None, np.zeros(0, dtype=np.int64)
    noise = 0.5 * np.random.default_rng(0).standard_normal((SLOPES, dim))
    slopes, bends = map(np.asarray, _slopes_and_bends(log_density, points[0][0] + noise))
    floor = SAME * slopes.max(axis=1, initial=0.0)[:, None]
    entries, is_felt = slopes.argmax(axis=0), slopes > floor
    alone = np.flatnonzero((is_felt.sum(axis=0) == 1) & (bends <= floor).all(axis=0))
    alone = alone[np.unique(entries[alone], return_index=True)[1]]  # one for each entry
    others = np.setdiff1d(np.flatnonzero((is_felt | (bends > floor)).any(axis=0)), alone)
    if len(others) >= most:
        return None, alone[:0]
    directions = np.zeros((-(-len(others) // PADDED) * PADDED, dim))
    directions[np.arange(len(others)), others] = 1.0
    along = np.zeros(dim)
    along[alone] = 1.0
    slopes, products = map(np.asarray, _of_site(log_density, *points, along, directions))
    entries, count = entries[alone], int(points[1])
    steep = slopes[:count, entries]
    found = np.zeros((dim, dim))
    squares = steep.T @ steep / count
    found[np.ix_(alone, alone)] = squares * site.precision[np.ix_(entries, entries)]
    found[others] = -products[: len(others)]
    found[:, others] = found[others].T
    return found, alone


@compile_quickly
def _mean_products(
    log_density: CentredDensity,
    blocks: Blocks,
    x: Float[Array, "n D"],
    count: Int[Any, ""],
    directions: Float[Array, "k D"],
) -> tuple[Float[Array, "k b blocks"], Float[Array, "k r"]]:
    """Return the mean over the first points of the Hessian of log π times directions, in blocks."""

    def add_point(i, total):
        _, along = jax.linearize(jax.grad(log_density.log_density), x[i])
        return total + jax.vmap(along)(directions)

    total = jax.lax.fori_loop(0, count, add_point, jnp.zeros_like(directions))
    return blocks.split(total / count)


@compile_quickly
def _slopes_and_bends(log_density: CentredDensity, x: Float[Array, "n D"]):
    """Return the largest first and second derivatives of φ in each coordinate of x alone."""

    def largest(so_far, x):
        found = derivatives_along(log_density.likelihood, x)
        return jax.tree.map(lambda a, b: jnp.maximum(a, jnp.abs(b)), so_far, found), None

    none = jnp.zeros((len(log_density.centring.sources), x.shape[1]))
    return jax.lax.scan(largest, (none, none), x)[0]


@compile_quickly
def _of_site(
    log_density: CentredDensity,
    x: Float[Array, "n D"],
    count: Int[Any, ""],
    along: Float[Any, " D"],
    directions: Float[Any, "k D"],
) -> tuple[Float[Array, "n d"], Float[Array, "k D"]]:
    """Return derivatives of φ along a direction, and the site's mean Hessian times others."""

    def slopes_at(x):
        return jax.jvp(log_density.likelihood, (x,), (along,))[1]

    def add_point(i, total):
        _, product = jax.linearize(jax.grad(log_density.site_alone), x[i])
        return total + jax.vmap(product)(directions)

    total = jnp.zeros_like(directions)
    if len(directions):
        total = jax.lax.fori_loop(0, count, add_point, total) / count
    return jax.lax.map(slopes_at, x), total
