"""Symmetric matrices with small blocks on the diagonal, as multilevel models have.

Effects of two schools, or of two counties, have a precision of 0 between them where no row depends
on both. With few other coordinates x_r beside the blocks,

    P = [[D, F], [Fᵀ, G]],    D block-diagonal, n blocks of b,  F (n b, r),  G (r, r),

a product takes n b² + 2 n b r + r² multiplications. Of two kinds of crossed groups, as students and
lecturers, one is D and the other G, which is such a matrix again: fewer still. With
S = G − FᵀD⁻¹F = K Kᵀ and D = R⁻ᵀR⁻¹,

    x_b = R v_b − D⁻¹F x_r,    x_r = K⁻ᵀ v_r,    gives vᵀv = xᵀP x.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from decoct.models.site import GaussianSite, ThirdOrder

LEAST = 1e-3
"""Least precision, relative to that of each coordinate, that a direction is taken to have."""

BLOCK_SIZES = (1, 2, 4, 8, 16, 32)
"""Sizes that blocks may have at most."""

SAME = 1e-9
"""Relative difference that counts as rounding."""

PANELS, PANELLED = 4, 256
"""Panels of a triangular matrix, and its least size: 3/8 of the matrix, zeros, is not read."""

FULL = 0.05
"""Part of a column, or of a row, that makes it full: single numbers take longer to gather."""


class Blocks(eqx.Module):
    """Which coordinates are in blocks, and which are the rest.

    Attributes
    ----------
    members : (b, n)
        Places of each block's coordinates, filled up with D, the place of none. Blocks are the
        last axis, so that products over small blocks run along it.
    rest : (r,)
        Places of the others.
    order : (D,)
        Places of all coordinates in ``concatenate([members.ravel(), rest])``.
    """

    members: Int[Any, "b n"]
    rest: Int[Any, " r"]
    order: Int[Any, " D"]

    @classmethod
    def of(cls, members: Int[np.ndarray, "b n"], dim: int) -> Blocks:
        rest = np.setdiff1d(np.arange(dim), members)
        everything = np.concatenate([members.ravel(), rest])
        order = np.argsort(everything, kind="stable")[:dim]
        return cls(members, rest, order)

    def and_alone(self, places: Int[np.ndarray, " m"]) -> Blocks:
        """Return these blocks, and one for each of some places that are in none."""
        alone = np.full((len(self.members), len(places)), len(self.order))
        alone[0] = places
        return Blocks.of(np.concatenate([self.members, alone], axis=1), len(self.order))

    def hold(self, matrix: Float[np.ndarray, "D D"]) -> bool:
        """Whether a matrix is 0 between blocks."""
        of_block = np.full(len(self.order) + 1, -1)
        of_block[self.members] = np.arange(self.members.shape[1])
        scale = np.sqrt(np.abs(np.diag(matrix)))
        i, j = np.nonzero(np.abs(matrix) > SAME * scale[:, None] * scale)
        one, other = of_block[i], of_block[j]
        return bool(((one == other) | (one < 0) | (other < 0)).all())

    def split(self, x: Float[Array, "... D"]) -> tuple[Float[Array, "... b n"], Any]:
        """Return the coordinates in blocks, and the others."""
        extended = jnp.concatenate([x, jnp.zeros((*x.shape[:-1], 1))], axis=-1)
        return extended[..., self.members], x[..., self.rest]

    def join(self, inside: Float[Array, "... b n"], rest: Float[Array, "... r"]) -> Any:
        flat = inside.reshape(*inside.shape[:-2], self.members.size)
        return jnp.concatenate([flat, rest], axis=-1)[..., self.order]


class Coupling(eqx.Module):
    """A matrix F (m, r) of which some columns are full and the others hold little.

    Effects of schools depend on all coefficients and scales, and on one of many areas.

    Attributes
    ----------
    full : (f,)
        Places of the full columns, which ``dense`` holds.
    values, rows, columns : (k,)
        What the other columns hold, row by row, and where.
    width
        r.
    """

    full: Int[Any, " f"]
    dense: Float[Any, "m f"]
    values: Float[Any, " k"]
    rows: Int[Any, " k"]
    columns: Int[Any, " k"]
    width: int = eqx.field(static=True)

    @classmethod
    def of(cls, matrix: Float[np.ndarray, "m r"]) -> Coupling:
        is_set = matrix != 0.0
        is_full = is_set.sum(axis=0) > FULL * len(matrix)
        if is_set[:, ~is_full].sum() >= FULL * is_set[:, ~is_full].size:
            is_full[:] = True
        rows, columns = np.nonzero(is_set & ~is_full)
        parts = matrix[:, is_full], matrix[rows, columns], rows, columns
        return cls(np.flatnonzero(is_full), *parts, matrix.shape[1])

    def to_array(self) -> Float[np.ndarray, "m r"]:
        """Return F."""
        matrix = np.zeros((len(self.dense), self.width))
        matrix[self.rows, self.columns] = self.values
        matrix[:, self.full] = self.dense
        return matrix

    def product(self, x: Float[Array, " r"]) -> Float[Array, " m"]:
        """Return F x; pure JAX."""
        few = self.values * x[self.columns]
        found = self.dense @ x[self.full]
        return found.at[self.rows].add(few, indices_are_sorted=True)

    def transposed_product(self, v: Float[Array, " m"]) -> Float[Array, " r"]:
        """Return Fᵀ v; pure JAX."""
        whole = jnp.zeros(self.width).at[self.full].set(v @ self.dense)
        return whole.at[self.columns].add(self.values * v[self.rows])


class Arrow(eqx.Module):
    """Such a matrix: D (b, b, n), F (b n, r) and G."""

    blocks: Blocks
    diagonal: Float[Any, "b b n"]
    coupling: Float[Any, "bn r"]
    dense: Float[Any, "r r"]

    @classmethod
    def of(cls, matrix: Float[np.ndarray, "D D"], blocks: Blocks) -> Arrow:
        """Return a matrix without what is between blocks."""
        members, rest = blocks.members, blocks.rest
        extended = np.pad(matrix, (0, 1))
        columns = extended[:, rest]
        diagonal = extended[members[:, None], members[None]]
        return cls(blocks, diagonal, columns[members.ravel()], columns[rest])

    def to_array(self) -> Float[np.ndarray, "D D"]:
        """Return P."""
        members, rest = self.blocks.members, self.blocks.rest
        dim, inside = len(self.blocks.order), members.ravel()
        matrix = np.zeros((dim + 1, dim + 1))
        matrix[members[:, None], members[None]] = self.diagonal
        matrix[inside[:, None], rest] = self.coupling
        matrix[rest[:, None], inside] = self.coupling.T
        matrix[rest[:, None], rest] = self.dense
        return matrix[:dim, :dim]

    def factor(self) -> ArrowFactor:
        """Return L with LLᵀ = P⁻¹, directions of no precision given a little."""
        inside = factor_of(self._fill)
        lean = -self._flat(inside @ (inside.transpose(0, 2, 1) @ self._coupling))
        left = self.dense + self.coupling.T @ lean
        root = factor_of(0.5 * (left + left.T))
        parts = inside.transpose(1, 2, 0), Coupling.of(lean), Triangle.of(root)
        return ArrowFactor(self.blocks, *parts)

    def inverse_diagonal(self) -> Float[np.ndarray, " D"]:
        """Return the diagonal of P⁻¹."""
        inverse = np.linalg.inv(self._fill)
        lean = self._flat(inverse @ self._coupling)
        rest = np.linalg.inv(self.dense - self.coupling.T @ lean)
        alone = np.diagonal(inverse, axis1=1, axis2=2).T.ravel()
        inside = alone + ((lean @ rest) * lean).sum(axis=1)
        return np.concatenate([inside, np.diag(rest)])[self.blocks.order]

    @property
    def _fill(self) -> Float[np.ndarray, "n b b"]:
        """D, with ones in places of none."""
        members = self.blocks.members.T
        is_none = members == len(self.blocks.order)
        return self.diagonal.transpose(2, 0, 1) + is_none[:, :, None] * np.eye(members.shape[1])

    @property
    def _coupling(self) -> Float[np.ndarray, "n b r"]:
        shape = *self.blocks.members.shape, len(self.blocks.rest)
        return self.coupling.reshape(shape).swapaxes(0, 1)

    def _flat(self, coupling: Float[np.ndarray, "n b r"]) -> Float[np.ndarray, "bn r"]:
        return coupling.swapaxes(0, 1).reshape(self.coupling.shape)


class Triangle(eqx.Module):
    """An upper triangular matrix, as panels of rows without the zeros before them.

    With one panel it may be any matrix.
    """

    panels: tuple[Float[Any, "_ _"], ...]

    @classmethod
    def of(cls, matrix: Float[np.ndarray, "r r"]) -> Triangle:
        r = len(matrix)
        edges = np.linspace(0, r, PANELS + 1 if r >= PANELLED else 2).astype(np.int64)
        return cls(tuple(matrix[a:b, a:] for a, b in pairwise(edges)))

    def to_array(self) -> Float[np.ndarray, "r r"]:
        """Return the matrix."""
        r = self.panels[0].shape[1]
        return np.concatenate([np.pad(p, ((0, 0), (r - p.shape[1], 0))) for p in self.panels])

    def product(self, x: Float[Array, " r"]) -> Float[Array, " r"]:
        """Return this times x; pure JAX."""
        return jnp.concatenate([panel @ x[len(x) - panel.shape[1] :] for panel in self.panels])


class ArrowFactor(eqx.Module):
    """L with LLᵀ = P⁻¹: R (b, b, n), −D⁻¹F (b n, r) and K⁻ᵀ."""

    blocks: Blocks
    inside: Float[Any, "b b n"]
    lean: Coupling
    root: Triangle

    @classmethod
    def of_root(cls, root: Float[np.ndarray, "D D"]) -> ArrowFactor:
        """Return a factor that is given as a matrix."""
        dim = len(root)
        blocks = Blocks.of(np.zeros((1, 0), dtype=np.int64), dim)
        lean = Coupling.of(np.zeros((0, dim)))
        return cls(blocks, np.zeros((1, 1, 0)), lean, Triangle((root,)))

    def product(self, v: Float[Array, " D"]) -> Float[Array, " D"]:
        """Return L v; pure JAX."""
        inside, rest = self.blocks.split(v)
        rest = self.root.product(rest)
        above = _multiply(self.inside, inside) + self.lean.product(rest).reshape(inside.shape)
        return self.blocks.join(above, rest)

    def solve(self, x: Float[np.ndarray, "S D"]) -> Float[np.ndarray, "S D"]:
        """Return L⁻¹ x of several vectors."""
        blocks = self.blocks
        inside, rest = np.pad(x, ((0, 0), (0, 1)))[:, blocks.members], x[:, blocks.rest]
        above = inside - (rest @ self.lean.to_array().T).reshape(inside.shape)
        matrices = np.asarray(self.inside).transpose(2, 0, 1)
        above = np.linalg.solve(matrices, above.swapaxes(1, 2)[..., None])[..., 0].swapaxes(1, 2)
        below = np.linalg.solve(self.root.to_array(), rest.T).T
        return np.concatenate([above.reshape(len(x), -1), below], axis=1)[:, blocks.order]


class ArrowProduct(eqx.Module):
    """Products with such a matrix: D (b, b, n), F (b n, r) and G, which may be another."""

    blocks: Blocks
    diagonal: Float[Any, "b b n"]
    coupling: Coupling
    dense: Float[Any, "r r"] | ArrowProduct

    @classmethod
    def of(cls, precision: Arrow) -> ArrowProduct:
        dense: Any = precision.dense
        members = find_blocks(dense != 0.0)
        if _cost(members, len(dense)) < 0.5 * dense.size:
            dense = cls.of(Arrow.of(dense, Blocks.of(members, len(dense))))
        coupling = Coupling.of(precision.coupling)
        return cls(precision.blocks, precision.diagonal, coupling, dense)

    def __matmul__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        inside, rest = self.blocks.split(x)
        above = _multiply(self.diagonal, inside) + self.coupling.product(rest).reshape(inside.shape)
        below = self.coupling.transposed_product(inside.ravel()) + self.dense @ rest
        return self.blocks.join(above, below)


class ArrowSite(eqx.Module):
    """A Gaussian site whose precision is such a matrix; see `GaussianSite`."""

    centre: Float[Any, " d"]
    linear: Float[Any, " d"]
    constant: Float[Any, ""]
    precision: ArrowProduct
    third_order: ThirdOrder | None

    @classmethod
    def of(cls, site: GaussianSite, blocks: Blocks) -> ArrowSite:
        precision = ArrowProduct.of(Arrow.of(site.precision, blocks))
        return cls(site.centre, site.linear, site.constant, precision, site.third_order)

    def quadratic(self) -> ArrowSite:
        """Return the site without terms of third order."""
        return ArrowSite(self.centre, self.linear, self.constant, self.precision, None)

    def log_density(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        delta = z - self.centre
        total = self.constant + delta @ self.linear
        if self.third_order is None:
            return total + _quadratic(delta, self.precision)
        product = self.precision @ delta
        return total - 0.5 * delta @ product + self.third_order.of(product)


@jax.custom_jvp
def _quadratic(delta: Float[Array, " d"], precision: ArrowProduct) -> Float[Array, ""]:
    """Return −½ δᵀPδ. Its gradient takes no product of its own."""
    return -0.5 * delta @ (precision @ delta)


@_quadratic.defjvp
def _(primals, tangents):
    delta, precision = primals
    gradient = -(precision @ delta)
    return 0.5 * delta @ gradient, tangents[0] @ gradient


def _multiply(blocks: Float[Any, "b b n"], x: Float[Array, "b n"]) -> Float[Array, "b n"]:
    """Return each block times its vector, a sum of products: blocks are small."""
    return (blocks * x[None]).sum(axis=1)


def find_blocks(adjacent: Bool[np.ndarray, "d d"]) -> Int[np.ndarray, "b n"]:
    """Return places in blocks with no neighbours in other blocks, filled up with d.

    Coordinates with few neighbours come first; one that would bind too many stays outside. Of
    several sizes and two orders those are taken at which a product costs least.
    """
    fewest_first = np.argsort(adjacent.sum(axis=1), kind="stable")
    orders = fewest_first, _most_last(adjacent)
    found = [_blocks_of(adjacent, most, order) for order in orders for most in BLOCK_SIZES]
    return min(found, key=lambda members: _cost(members, len(adjacent)))


def _most_last(adjacent: Bool[np.ndarray, "d d"]) -> Int[np.ndarray, " d"]:
    """Return the places, that with most neighbours last, then that with most without it, etc."""
    edges = adjacent & ~np.eye(len(adjacent), dtype=bool)
    left, last = edges.sum(axis=1), []
    while left.max(initial=0) > 0:
        place = int(left.argmax())
        left -= edges[place]
        left[place] = -len(left)
        last.append(place)
    return np.append(np.setdiff1d(np.arange(len(left)), last), last[::-1]).astype(np.int64)


def _cost(members: Int[np.ndarray, "b n"], d: int) -> int:
    """Return the multiplications of a product with a matrix of such blocks."""
    inside, rest = members.size, d - int((members < d).sum())
    return inside * len(members) + 2 * inside * rest + rest**2


def _blocks_of(
    adjacent: Bool[np.ndarray, "d d"], most: int, order: Int[np.ndarray, " d"]
) -> Int[np.ndarray, "b n"]:
    d = len(adjacent)
    block_of, blocks = np.full(d, -1), {}
    for place in order:
        near = np.unique(block_of[adjacent[place]])
        near = near[near >= 0]
        joined = [int(place), *(one for number in near for one in blocks[number])]
        if len(joined) <= most:
            for number in near:
                del blocks[number]
            blocks[place] = joined
            block_of[joined] = place
    members = np.full((max(map(len, blocks.values()), default=1), len(blocks)), d)
    for i, block in enumerate(blocks.values()):
        members[: len(block), i] = sorted(block)
    return members


def factor_of(precision: Float[np.ndarray, "... D D"]) -> Float[np.ndarray, "... D D"]:
    """Return L with LLᵀ the inverse of a precision, directions of no precision given a little."""
    diagonal = np.abs(np.diagonal(precision, axis1=-2, axis2=-1))
    scale = np.sqrt(np.maximum(diagonal, 1e-300))
    relative = precision / (scale[..., :, None] * scale[..., None, :])
    try:
        np.linalg.cholesky(relative - LEAST * np.eye(scale.shape[-1]))
        root = np.linalg.cholesky(relative)
    except np.linalg.LinAlgError:
        values, basis = np.linalg.eigh(relative)
        values = np.maximum(np.abs(values), LEAST)
        root = np.linalg.cholesky((basis * values[..., None, :]) @ basis.swapaxes(-1, -2))
    return np.linalg.inv(root).swapaxes(-1, -2) / scale[..., :, None]
