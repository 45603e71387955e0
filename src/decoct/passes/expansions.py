"""Second-order expansions of potentials, smoothed over a Gaussian of likelihood parameters φ.

    q_n(φ) = c_n + g_nᵀδ + ½ δᵀH_nδ,   δ = φ − μ,   g_n = E ∇f_n,  H_n = E ∇²f_n,
    c_n = E f_n − ½ tr(C H_n),                       E over N(μ, C).

By Stein's lemma g_n and H_n are the coefficients of f_n on the first two Hermite polynomials, so
that q_n is the quadratic nearest to f_n in L2 under that Gaussian. Where q = Σ q_n and C is the
inverse of −Σ H_n − ∇²log π₀, N(μ, C) is the Gaussian of least KL(·‖π): the fixed point of Gaussian
variational inference (Opper & Archambeau 2009, Eq. 8). With C = 0 it is Taylor's expansion.

Where potentials depend on φ through a few linear predictors, f_n(φ) = ℓ_n(o_n + B_n φ)
(`passes.predictors`), averages are sums over a few nodes of N(o_n + B_n μ, B_n C B_nᵀ), and the
same nodes give the variance of the remainder r_n = f_n − q_n. For others derivatives are averaged
over points μ + L e_k, K of them in pairs ±e.

There Σ E ∂³f_n/∂φ_j³ comes along too: what a quadratic lacks of effects of few rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from decoct.models.base import AbstractModel
from decoct.models.parameters import ParameterSpace
from decoct.passes.predictors import Predictors, PredictorShape
from decoct.runtime.precision import compile_quickly, float64

NODES = {1: 9, 2: 5}
"""Nodes of the Gauss–Hermite rule in each of so many dimensions."""

TRACED = 128
"""Rows that a likelihood is traced with to see what its predictors are."""

DIRECTIONS = 128
"""Directions that second derivatives are taken along at once: of more, arrays miss the caches."""

BLOCK = 4096
"""Rows that a kernel takes at once: of more, XLA's sums over draws miss the caches at every step,
of fewer it does not vectorise them. 64 draws of 32,768 rows: 2 and 4.6 times as fast."""


class Expansion(NamedTuple):
    """Where potentials are expanded, and over what Gaussian they are smoothed."""

    centre: Float[Any, " d"]  # μ
    covariance: Float[Any, "d d"] | None  # C; None for Taylor's expansion
    offsets: Float[Any, "K d"]  # L e_k, for models without a few predictors; LLᵀ = C

    @property
    def points(self) -> int:
        """K."""
        return len(self.offsets)

    @property
    def factor(self) -> Float[np.ndarray, "d d"]:
        """L, lower triangular with LLᵀ = C."""
        return np.linalg.cholesky(np.asarray(self.covariance))

    @classmethod
    def over(
        cls, centre: np.ndarray, factor: np.ndarray, directions: Float[np.ndarray, "K d"]
    ) -> Expansion:
        """Return the expansion smoothed over N(centre, LLᵀ), at points L e_k away from it."""
        centre, factor = np.asarray(centre), np.asarray(factor)
        return cls(centre, factor @ factor.T, directions @ factor.T)

    @classmethod
    def taylor(cls, centre: np.ndarray) -> Expansion:
        """Return Taylor's expansion."""
        return cls(np.asarray(centre), None, np.zeros((1, len(centre))))

    def moved(self, centre: np.ndarray, covariance: np.ndarray) -> Expansion:
        """Return the same expansion over another Gaussian."""
        offsets = np.asarray(self.offsets)
        if np.any(offsets):
            offsets = np.linalg.solve(self.factor, offsets.T).T @ np.linalg.cholesky(covariance).T
        return Expansion(np.asarray(centre), covariance, offsets)


@cache
def node_rule(k: int) -> tuple[Float[np.ndarray, "Q k"], Float[np.ndarray, " Q"]]:
    """Return nodes and weights for averages over N(0, I) in k dimensions.

    A product of Gauss–Hermite rules in one and two dimensions; from three on the rule of degree 5
    of McNamee & Stenger (1967): the origin, ±√3 e_i, and √3 (±e_i ± e_j).
    """
    if k in NODES:
        at, weights = np.polynomial.hermite_e.hermegauss(NODES[k])
        weights = weights / weights.sum()
        nodes = np.array(list(itertools.product(at, repeat=k)))
        return nodes, np.prod(list(itertools.product(weights, repeat=k)), axis=1)
    unit = np.sqrt(3.0) * np.eye(k)
    signs = (1.0, -1.0)
    axes = [s * one for one in unit for s in signs]
    pairs = [
        s * unit[i] + t * unit[j]
        for i, j in itertools.combinations(range(k), 2)
        for s in signs
        for t in signs
    ]
    weights = [1.0 + (k * k - 7.0 * k) / 18.0]
    weights += [(4.0 - k) / 18.0] * len(axes) + [1.0 / 36.0] * len(pairs)
    return np.array([np.zeros(k), *axes, *pairs]), np.array(weights)


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


def find_predictors(
    model: AbstractModel, space: ParameterSpace, rows: Mapping[str, Array]
) -> Predictors | None:
    """Return the predictors of a likelihood, or None where there are too many or none.

    ``space`` is the shape of φ; the encoded rows may be traced.
    """
    x = model.design_matrix(rows)
    if x is not None:
        n, d = x.shape
        none = jnp.zeros((n, 0), dtype=jnp.int32)
        return Predictors(
            d,
            None,
            x[:, None],
            none,
            jnp.zeros((n, 1, 0)),
            jnp.zeros((n, 1)),
            lambda eta: model.log_likelihood_at(eta[:, 0], rows),
        )
    from decoct.passes.traced_predictors import trace_predictors

    def potentials(phi: Float[Array, " d"], rows: dict[str, Array]) -> Float[Array, " n"]:
        return model.log_likelihood(space.unflatten(phi), rows)

    return trace_predictors(potentials, jnp.zeros(space.dim), dict(rows))


@compile_quickly
def picked_by(
    model: AbstractModel, space: ParameterSpace, _: None, rows: Mapping[str, Array]
) -> Int[Array, "n K"]:
    """Return `Predictors.picked` of rows."""
    found = find_predictors(model, space, rows)
    assert found is not None
    return jnp.broadcast_to(found.picked, (len(found.dense), found.shape.picked))


@float64
def predictor_shape(
    model: AbstractModel, space: ParameterSpace, examples: Mapping[str, Any]
) -> PredictorShape | None:
    """Return the shape of a model's predictors, or None if there are none."""
    found: list[PredictorShape | None] = [None]

    def trace(rows: Mapping[str, Array]) -> Array:
        predictors = find_predictors(model, space, rows)
        if predictors is not None:
            found[0] = predictors.shape
        return jnp.zeros(())

    n = len(next(iter(examples.values())))
    places = np.arange(max(n, TRACED)) % n
    jax.eval_shape(trace, {name: column[places] for name, column in examples.items()})
    return found[0]


def sum_expansions(
    model: AbstractModel, space: ParameterSpace, at: Expansion, rows, weights
) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, "d d"], Float[Array, " d"]]:
    """Return Σ w_n q_n over a chunk: constant, gradient and Hessian; then Σ w_n E ∂³f_n/∂φ_j³.

    The last is 0 where there are no predictors.
    """
    found = find_predictors(model, space, rows)
    if found is not None:
        return _sum_smoothed(found, _smooth(found, at), weights)

    def total(phi):
        return weights @ model.log_likelihood(space.unflatten(phi), rows)

    parts = jax.lax.map(lambda offset: to_second_order(total, at.centre + offset), at.offsets)
    value, gradient, hessian = (part.mean(axis=0) for part in parts)
    # that of the points, so that a quadratic is its own expansion, constant included
    covariance = at.offsets.T @ at.offsets / at.points
    none = jnp.zeros(space.dim)
    return value - 0.5 * (covariance * hessian).sum(), gradient, hessian, none


expand_chunk = compile_quickly(sum_expansions)
"""`sum_expansions`, compiled."""


def to_blocks(columns: Any) -> Any:
    """Return columns of n rows as (blocks, rows of a block, ...)."""
    n = len(jax.tree.leaves(columns)[0])
    size = BLOCK if n % BLOCK == 0 else n
    return jax.tree.map(lambda column: column.reshape(n // size, size, *column.shape[1:]), columns)


@eqx.filter_jit
def sums_and_variances(
    model: AbstractModel,
    space: ParameterSpace,
    at: Expansion,
    rows,
    weights,
    draws: Float[Array, "S d"],
) -> tuple[tuple[Array, Array, Array, Array], Float[Array, " n"]]:
    """Return `sum_expansions`, and Var r_n of every row; nodes are shared by the two.

    Under N(μ, C) where there are predictors, else over draws of φ.
    """
    found = find_predictors(model, space, rows)
    if found is not None:

        def of_block(rows):
            of_rows = find_predictors(model, space, rows)
            assert of_rows is not None  # as of all rows
            return _smooth(of_rows, at)

        # d × d sums are of all blocks together
        smoothed = jax.lax.map(of_block, to_blocks(rows))
        smoothed = jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:]), smoothed)
        return _sum_smoothed(found, smoothed, weights), smoothed.variance
    moved = draws - at.centre[None]

    def add_block(total, block):
        rows, weights = block
        values = jax.vmap(lambda phi: model.log_likelihood(space.unflatten(phi), rows))(draws)
        variance = jnp.var(values - quadratics_of(model, space, at, rows, moved).T, axis=0)
        sums = sum_expansions(model, space, at, rows, weights)
        return jax.tree.map(jnp.add, total, sums), variance

    d = space.dim
    none = jnp.zeros(()), jnp.zeros(d), jnp.zeros((d, d)), jnp.zeros(d)
    sums, variances = jax.lax.scan(add_block, none, to_blocks((rows, weights)))
    return sums, variances.reshape(-1)


def quadratics_of(
    model: AbstractModel,
    space: ParameterSpace,
    at: Expansion,
    rows,
    delta: Float[Array, "S d"],
    basis: Float[Array, "S d"] | None = None,
) -> Float[Array, "n S"]:
    """Return q_n − c_n of every row at μ + δ_s: g_nᵀδ + ½ δᵀH_nδ.

    With a ``basis`` b its terms of third order are added, Σ_j b_sj E ∂³f_n/∂φ_j³; they are 0 where
    there are no predictors.
    """
    found = find_predictors(model, space, rows)
    if found is not None:
        smoothed, moved = _smooth(found, at), found.along(delta)
        k = found.shape.predictors
        total = jnp.zeros(moved.shape[:2])
        for i in range(k):
            bent = 0.5 * sum(smoothed.bends[:, i, j, None] * moved[:, :, j] for j in range(k))
            total = total + moved[:, :, i] * (smoothed.slopes[:, i, None] + bent)
        return total if basis is None else total + found.weighted_thirds(smoothed.thirds, basis)

    def potentials(phi):
        return model.log_likelihood(space.unflatten(phi), rows)

    def at_point(total, offset):
        phi = at.centre + offset

        def along(direction):
            first = lambda phi: jax.jvp(potentials, (phi,), (direction,))[1]  # noqa: E731
            slope, bend = jax.jvp(first, (phi,), (direction,))
            return slope + 0.5 * bend

        return total + jax.vmap(along)(delta), None

    zero = jnp.zeros((len(delta), len(next(iter(rows.values())))))
    total, _ = jax.lax.scan(at_point, zero, at.offsets)
    return total.T / at.points


quadratics_at = compile_quickly(quadratics_of)
"""`quadratics_of`, compiled."""


@compile_quickly
def bends_along(
    model: AbstractModel,
    space: ParameterSpace,
    at: Expansion,
    rows,
    directions: Float[Array, "k d"],
) -> Float[Array, "n k"]:
    """Return vᵀH_nv of every row for each direction v: what δ and −δ have in common."""
    both = quadratics_of(model, space, at, rows, jnp.concatenate([directions, -directions]))
    return both[:, : len(directions)] + both[:, len(directions) :]


class _Smoothed(NamedTuple):
    """E ℓ_n − ½ tr(B_n C B_nᵀ E ∇²ℓ_n), E ∇ℓ_n, E ∇²ℓ_n in η, Var r_n, E ∇³ℓ_n, of every row."""

    constant: Float[Array, " n"]
    slopes: Float[Array, "n k"]
    bends: Float[Array, "n k k"]
    variance: Float[Array, " n"]
    thirds: Float[Array, "n k k k"]


def _sum_smoothed(
    found: Predictors, smoothed: _Smoothed, weights: Float[Array, " n"]
) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, "d d"], Float[Array, " d"]]:
    gradient = found.gradient(weights[:, None] * smoothed.slopes)
    hessian = found.hessian(weights[:, None, None] * smoothed.bends)
    thirds = found.thirds(weights[:, None, None, None] * smoothed.thirds)
    return weights @ smoothed.constant, gradient, hessian, thirds


def _smooth(found: Predictors, at: Expansion) -> _Smoothed:
    """Average potentials and their derivatives in η over N(o_n + B_n μ, B_n C B_nᵀ)."""
    centre, k = found.at(at.centre), found.shape.predictors
    if at.covariance is None:
        covariance = jnp.zeros((len(centre), k, k))
        at_nodes, weights = np.zeros((1, k)), np.ones(1)
    else:
        covariance = found.covariances(at.covariance)
        at_nodes, weights = node_rule(k)
    factor = _row_factors(covariance)
    nodes, weights = jnp.asarray(at_nodes), jnp.asarray(weights)
    ones = [jnp.zeros_like(centre).at[:, i].set(1.0) for i in range(k)]

    def slopes(eta):
        return [jax.jvp(found.potentials, (eta,), (one,))[1] for one in ones]

    def moved(node):
        return [sum(factor[i][j] * node[j] for j in range(i + 1)) for i in range(k)]

    def at_node(node):
        eta = centre + jnp.stack(moved(node), axis=1)
        first, second = [], []
        for i in range(k):
            slope, bends = jax.jvp(slopes, (eta,), (ones[i],))
            first, second = slope, [*second, jnp.stack(bends, axis=1)]
        return found.potentials(eta), jnp.stack(first, axis=1), jnp.stack(second, axis=1)

    values, first, second = jax.vmap(at_node)(nodes) if k == 1 else jax.lax.map(at_node, nodes)
    value, slope, bend = (jnp.tensordot(weights, part, 1) for part in (values, first, second))

    def left_at(node, value):
        delta = moved(node)
        for i in range(k):
            bent = sum(bend[:, i, j] * delta[j] for j in range(k))
            value = value - delta[i] * (slope[:, i] + 0.5 * bent)
        return value

    left = jax.vmap(left_at)(nodes, values)
    mean = weights @ left
    variance = weights @ jax.vmap(lambda one: jnp.square(one - mean))(left)
    constant = value - 0.5 * (covariance * bend).sum(axis=(1, 2))
    thirds = _smooth_thirds(weights, nodes, second, factor)
    return _Smoothed(constant, slope, bend, jnp.maximum(variance, 0.0), thirds)


def _smooth_thirds(
    weights: Float[Array, " Q"],
    nodes: Float[Array, "Q k"],
    bends: Float[Array, "Q n k k"],
    factor: list[list[Float[Array, " n"]]],
) -> Float[Array, "n k k k"]:
    """Return E ∇³ℓ_n in η, from ∇²ℓ_n at nodes of N(0, LLᵀ); 0 in directions without spread.

    By parts, for g = ∇²ℓ_n at η = o + Bμ + Lξ: E g ξ = Lᵀ E ∇g.
    """
    k = nodes.shape[1]
    moments = jnp.einsum("q,qc,qnab->cnab", weights, nodes, bends)
    gradients: list[Any] = [None] * k
    for i in reversed(range(k)):
        left = moments[i]
        for j in range(i + 1, k):
            left = left - factor[j][i][:, None, None] * gradients[j]
        pivot = factor[i][i][:, None, None]
        gradients[i] = jnp.where(pivot > 0.0, left / jnp.where(pivot > 0.0, pivot, 1.0), 0.0)
    return jnp.stack(gradients, axis=3)


def _row_factors(covariance: Float[Array, "n k k"]) -> list[list[Float[Array, " n"]]]:
    """Return Cholesky factors of k × k matrices, some of which are 0 or all but singular."""
    k = covariance.shape[1]
    factor: list[list[Any]] = [[] for _ in range(k)]
    for i in range(k):
        for j in range(i):
            left = covariance[:, i, j] - sum(factor[i][m] * factor[j][m] for m in range(j))
            pivot = factor[j][j]
            found = left / jnp.where(pivot > 0.0, pivot, 1.0)
            factor[i].append(jnp.where(pivot > 0.0, found, 0.0))
        left = covariance[:, i, i] - sum(factor[i][m] * factor[i][m] for m in range(i))
        factor[i].append(jnp.sqrt(jnp.maximum(left, 0.0)))
    return factor


def to_second_order(
    function: Callable[[Float[Array, " d"]], Float[Array, ""]], z: Float[Array, " d"]
) -> tuple[Float[Array, ""], Float[Array, " d"], Float[Array, "d d"]]:
    """Return f(z), ∇f(z) and ∇²f(z), forward over reverse.

    One trace holds all three, which compiles faster than one each.
    """

    def gradient_first(z: Float[Array, " d"]) -> tuple[Array, tuple[Array, Array]]:
        value, gradient = jax.value_and_grad(function)(z)
        return gradient, (value, gradient)

    if len(z) <= DIRECTIONS:
        hessian, (value, gradient) = jax.jacfwd(gradient_first, has_aux=True)(z)
        return value, gradient, hessian
    gradient, product, (value, _) = jax.linearize(gradient_first, z, has_aux=True)
    hessian = jax.lax.map(product, jnp.eye(len(z)), batch_size=DIRECTIONS)
    return value, gradient, hessian
