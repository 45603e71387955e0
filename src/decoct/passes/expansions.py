"""Second-order expansions of potentials, smoothed over a Gaussian.

    q_n(θ) = c_n + g_nᵀδ + ½ δᵀH_nδ,   δ = θ − μ,   g_n = E ∇f_n,  H_n = E ∇²f_n,
    c_n = E f_n − ½ tr(C H_n),                       E over N(μ, C),  C = LLᵀ.

By Stein's lemma g_n and H_n are the coefficients of f_n on the first two Hermite polynomials, so
that q_n is the quadratic nearest to f_n in L2 under that Gaussian. Where q = Σ q_n and C is the
inverse of −Σ H_n − ∇²log π₀, N(μ, C) is the Gaussian of least KL(·‖π): the fixed point of Gaussian
variational inference (Opper & Archambeau 2009, Eq. 8). With L = 0 it is Taylor's expansion.

Models with one linear predictor need a one-dimensional Gauss–Hermite rule of `NODES` nodes a row:
f_n(θ) = ℓ_n(x_nᵀθ), x_nᵀθ ~ N(x_nᵀμ, ‖Lᵀx_n‖²). The same nodes give the variance of the remainder
r_n = f_n − q_n. For others derivatives are averaged over points μ + L e_k, K of them in pairs ±e.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.models.base import AbstractModel
from decoct.models.parameters import ParameterSpace
from decoct.runtime.precision import compiled_quickly

NODES = 9
"""Nodes of the Gauss–Hermite rule."""

_AT, _WEIGHTS = np.polynomial.hermite_e.hermegauss(NODES)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


class Expansion(NamedTuple):
    """Where potentials are expanded, and over what Gaussian they are smoothed.

    Attributes
    ----------
    centre : (d,)
        μ.
    factor : (d, d)
        L, lower triangular; zeros for Taylor's expansion.
    offsets : (K, d)
        L e_k, for models without a linear predictor.
    """

    centre: Float[Any, " d"]
    factor: Float[Any, "d d"]
    offsets: Float[Any, "K d"]

    @property
    def dim(self) -> int:
        return len(self.centre)

    @property
    def points(self) -> int:
        """K."""
        return len(self.offsets)

    @classmethod
    def over(
        cls, centre: np.ndarray, factor: np.ndarray, directions: Float[np.ndarray, "K d"]
    ) -> Expansion:
        """Return the expansion smoothed over N(centre, LLᵀ), at points L e_k away from it."""
        return cls(np.asarray(centre), np.asarray(factor), directions @ np.asarray(factor).T)

    def moved(self, centre: np.ndarray, factor: np.ndarray) -> Expansion:
        """Return the same expansion over another Gaussian N(centre, LLᵀ)."""
        directions = np.zeros_like(self.offsets)
        if np.any(self.offsets):
            directions = np.linalg.solve(np.asarray(self.factor), np.asarray(self.offsets).T).T
        return Expansion.over(centre, factor, directions)


def antithetic(rng: np.random.Generator, count: int, dim: int) -> Float[np.ndarray, "K d"]:
    """Return pairs ±e of directions, orthogonal as far as there are dimensions, of length √d.

    Such points integrate all odd functions, and with 2 d of them all quadratics, as N(0, I) does.
    """
    half, blocks = count // 2, []
    while sum(len(block) for block in blocks) < half:
        basis, triangular = np.linalg.qr(rng.standard_normal((dim, dim)))
        blocks.append((basis * np.sign(np.diag(triangular))).T)
    directions = np.sqrt(dim) * np.concatenate(blocks)[:half]
    return np.concatenate([directions, -directions])


def sum_expansions(
    model: AbstractModel, space: ParameterSpace, at: Expansion, rows, weights
) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, "d d"]]:
    """Return Σ w_n q_n over a chunk: constant, gradient and Hessian."""
    x = model.design_matrix(rows)
    if x is not None:
        value, slope, bend = _along_predictor(model, at, x, rows)
        hessian = x.T @ ((weights * bend)[:, None] * x)
        value, gradient = weights @ value, x.T @ (weights * slope)
        covariance = at.factor @ at.factor.T
    else:

        def total(z):
            return weights @ model.log_likelihood(space.unflatten(z), rows)

        def at_point(offset):
            return to_second_order(total, at.centre + offset)

        value, gradient, hessian = jax.tree.map(
            lambda part: part.mean(axis=0), jax.lax.map(at_point, at.offsets)
        )
        # that of the points, so that a quadratic is its own expansion, constant included
        covariance = at.offsets.T @ at.offsets / at.points
    return value - 0.5 * (covariance * hessian).sum(), gradient, hessian


expand_chunk = compiled_quickly(sum_expansions)
"""`sum_expansions`, compiled."""


def remainder_variances(
    model: AbstractModel, space: ParameterSpace, at: Expansion, rows, draws: Float[Array, "S d"]
) -> Float[Array, " n"]:
    """Return Var r_n of every row, under N(μ, C) where there is a predictor, else over draws."""
    x = model.design_matrix(rows)
    if x is None:
        values = jax.vmap(lambda z: model.log_likelihood(space.unflatten(z), rows))(draws)
        moved = draws - at.centre[None]
        return jnp.var(values - quadratics_of(model, space, at, rows, moved).T, axis=0)
    spread, values, slopes, bends = _at_nodes(model, at, x, rows)
    weights = jnp.asarray(_WEIGHTS)
    slope, bend = weights @ slopes, weights @ bends

    def left_at(node, value):
        moved = node * spread
        return value - moved * (slope + 0.5 * bend * moved)

    left = jax.vmap(left_at)(jnp.asarray(_AT), values)
    mean = weights @ left
    return weights @ jax.vmap(lambda one: jnp.square(one - mean))(left)


def quadratics_of(
    model: AbstractModel, space: ParameterSpace, at: Expansion, rows, delta: Float[Array, "S d"]
) -> Float[Array, "n S"]:
    """Return q_n − c_n of every row at μ + δ_s: g_nᵀδ + ½ δᵀH_nδ."""
    x = model.design_matrix(rows)
    if x is not None:
        _, slope, bend = _along_predictor(model, at, x, rows)
        moved = x @ delta.T
        return moved * (slope[:, None] + 0.5 * bend[:, None] * moved)

    def potentials(z):
        return model.log_likelihood(space.unflatten(z), rows)

    def at_point(total, offset):
        z = at.centre + offset

        def along(direction):
            first = lambda z: jax.jvp(potentials, (z,), (direction,))[1]  # noqa: E731
            slope, bend = jax.jvp(first, (z,), (direction,))
            return slope + 0.5 * bend

        return total + jax.vmap(along)(delta), None

    zero = jnp.zeros((len(delta), len(next(iter(rows.values())))))
    total, _ = jax.lax.scan(at_point, zero, at.offsets)
    return total.T / at.points


quadratics_at = compiled_quickly(quadratics_of)
"""`quadratics_of`, compiled."""


@compiled_quickly
def bends_along(
    model: AbstractModel,
    space: ParameterSpace,
    at: Expansion,
    rows,
    directions: Float[Array, "k d"],
) -> Float[Array, "n k"]:
    """Return vᵀH_nv of every row for each direction v: what δ and −δ have in common."""
    both = [quadratics_of(model, space, at, rows, sign * directions) for sign in (1.0, -1.0)]
    return both[0] + both[1]


def _along_predictor(model, at: Expansion, x, rows) -> tuple[Array, Array, Array]:
    """Return E ℓ_n, E ℓ_n' and E ℓ_n'' over x_nᵀθ, θ ~ N(μ, LLᵀ)."""
    _, *at_nodes = _at_nodes(model, at, x, rows)
    value, slope, bend = (jnp.asarray(_WEIGHTS) @ part for part in at_nodes)
    return value, slope, bend


def _at_nodes(model, at: Expansion, x, rows) -> tuple[Array, Array, Array, Array]:
    """Return the sd of x_nᵀθ, and ℓ_n, ℓ_n' and ℓ_n'' (`NODES`, n) at the nodes."""
    centre = x @ at.centre
    spread = jnp.sqrt(jnp.square(x @ at.factor).sum(axis=1))

    def potential(predictor):
        return model.log_likelihood_at(predictor, rows)

    def slope(predictor):
        return jax.jvp(potential, (predictor,), (jnp.ones_like(predictor),))[1]

    def at_node(node):
        predictor = centre + node * spread
        first, second = jax.jvp(slope, (predictor,), (jnp.ones_like(predictor),))
        return potential(predictor), first, second

    return spread, *jax.vmap(at_node)(jnp.asarray(_AT))


def to_second_order(
    function: Callable[[Float[Array, " d"]], Float[Array, ""]], z: Float[Array, " d"]
) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, "d d"]]:
    """Return f(z), ∇f(z) and ∇²f(z), forward over reverse.

    One trace holds all three, which compiles faster than one each.
    """

    def gradient_first(z: Float[Array, " d"]) -> tuple[Array, tuple[Array, Array]]:
        value, gradient = jax.value_and_grad(function)(z)
        return gradient, (value, gradient)

    hessian, (value, gradient) = jax.jacfwd(gradient_first, has_aux=True)(z)
    return value, gradient, hessian
