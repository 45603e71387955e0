"""Symmetric matrices with a diagonal block, as multilevel models have.

Where no row sees two of m effects, such as those of two schools, the precision between them is 0:

    P = [[D, F], [Fᵀ, G]],    D diagonal (m, m),  F (m, r),  G (r, r).

A product takes m (1 + 2 r) + r² multiplications in place of (m + r)². With S = G − FᵀD⁻¹F = K Kᵀ,

    x_m = D^(−½) v_m − D⁻¹F x_r,    x_r = K⁻ᵀ v_r,    gives vᵀv = xᵀP x.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

LEAST = 1e-3
"""Least precision, relative to that of each coordinate, that a direction is taken to have."""


class Blocks(eqx.Module):
    """Which coordinates the diagonal block has, and which are the rest.

    Attributes
    ----------
    alone, rest : (m,), (r,)
        Places.
    order : (m + r,)
        Places of all coordinates in ``concatenate([alone, rest])``.
    """

    alone: Int[Any, " m"]
    rest: Int[Any, " r"]
    order: Int[Any, " D"]

    @classmethod
    def of(cls, alone: Int[np.ndarray, " m"], dim: int) -> Blocks:
        rest = np.setdiff1d(np.arange(dim), alone)
        return cls(alone, rest, np.argsort(np.concatenate([alone, rest])))

    def join(self, alone: Float[Array, " m"], rest: Float[Array, " r"]) -> Float[Array, " D"]:
        return jnp.concatenate([alone, rest])[self.order]


class Arrow(eqx.Module):
    """Such a matrix: D, F and G."""

    blocks: Blocks
    diagonal: Float[Any, " m"]
    coupling: Float[Any, "m r"]
    dense: Float[Any, "r r"]

    @classmethod
    def of(cls, matrix: Float[np.ndarray, "D D"], blocks: Blocks) -> Arrow:
        """Return a matrix without what is between coordinates that are alone."""
        alone, rest = blocks.alone, blocks.rest
        columns = matrix[:, rest]
        return cls(blocks, np.diag(matrix)[alone], columns[alone], columns[rest])

    def __add__(self, other: Arrow) -> Arrow:
        return Arrow(
            self.blocks,
            self.diagonal + other.diagonal,
            self.coupling + other.coupling,
            self.dense + other.dense,
        )

    def product(self, x: Float[Array, " D"]) -> Float[Array, " D"]:
        """Return P x; pure JAX."""
        alone, rest = x[self.blocks.alone], x[self.blocks.rest]
        above = self.diagonal * alone + self.coupling @ rest
        return self.blocks.join(above, alone @ self.coupling + self.dense @ rest)

    def factor(self) -> ArrowFactor:
        """Return L with LLᵀ = P⁻¹, directions of no precision given a little."""
        diagonal = np.maximum(np.abs(self.diagonal), 1e-300)
        lean = -self.coupling / diagonal[:, None]
        left = self.dense + self.coupling.T @ lean
        root = factor_of(0.5 * (left + left.T))
        return ArrowFactor(self.blocks, 1.0 / np.sqrt(diagonal), lean, root)


class ArrowFactor(eqx.Module):
    """L with LLᵀ = P⁻¹; v holds the coordinates that are alone first."""

    blocks: Blocks
    scale: Float[Any, " m"]
    lean: Float[Any, "m r"]
    root: Float[Any, "r r"]

    @classmethod
    def of_root(cls, root: Float[np.ndarray, "D D"]) -> ArrowFactor:
        """Return a factor that is given as a matrix."""
        dim = len(root)
        none = np.zeros(0, dtype=np.int64)
        return cls(Blocks.of(none, dim), np.zeros(0), np.zeros((0, dim)), root)

    def product(self, v: Float[Array, " D"]) -> Float[Array, " D"]:
        """Return L v; pure JAX."""
        m = len(self.scale)
        rest = self.root @ v[m:]
        return self.blocks.join(self.scale * v[:m] + self.lean @ rest, rest)

    def solve(self, x: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n D"]:
        """Return L⁻¹ x of several vectors."""
        alone, rest = x[:, self.blocks.alone], x[:, self.blocks.rest]
        above = (alone - rest @ np.asarray(self.lean).T) / np.asarray(self.scale)
        below = np.linalg.solve(np.asarray(self.root), rest.T).T
        return np.concatenate([above, below], axis=1)


class ArrowSite(eqx.Module):
    """A Gaussian site whose precision is such a matrix; see `GaussianSite`."""

    centre: Float[Any, " d"]
    linear: Float[Any, " d"]
    precision: Arrow
    constant: Float[Any, ""]

    def log_density(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        delta = z - self.centre
        return self.constant + delta @ self.linear + _quadratic(delta, self.precision)


@jax.custom_jvp
def _quadratic(delta: Float[Array, " d"], precision: Arrow) -> Float[Array, ""]:
    """Return −½ δᵀPδ. Its gradient takes no product of its own."""
    return -0.5 * delta @ precision.product(delta)


@_quadratic.defjvp
def _(primals, tangents):
    delta, precision = primals
    gradient = -precision.product(delta)
    return 0.5 * delta @ gradient, tangents[0] @ gradient


def find_alone(adjacent: Bool[np.ndarray, "d d"]) -> Int[np.ndarray, " m"]:
    """Return places of which no two are adjacent, many of them: those with few neighbours first."""
    blocked, found = np.zeros(len(adjacent), dtype=bool), []
    for place in np.argsort(adjacent.sum(axis=1), kind="stable"):
        if not blocked[place]:
            found.append(place)
            blocked |= adjacent[place]
    return np.sort(np.array(found, dtype=np.int64))


def factor_of(precision: Float[np.ndarray, "D D"]) -> Float[np.ndarray, "D D"]:
    """Return L with LLᵀ the inverse of a precision, directions of no precision given a little."""
    scale = np.sqrt(np.maximum(np.abs(np.diag(precision)), 1e-300))
    relative = precision / np.outer(scale, scale)
    try:
        np.linalg.cholesky(relative - LEAST * np.eye(len(scale)))
        root = np.linalg.cholesky(relative)
    except np.linalg.LinAlgError:
        values, basis = np.linalg.eigh(relative)
        relative = (basis * np.maximum(np.abs(values), LEAST)) @ basis.T
        root = np.linalg.cholesky(relative)
    return np.linalg.inv(root).T / scale[:, None]
