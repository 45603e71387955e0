"""Gradient steps with new draws of π_w at every step, in one compiled loop.

Algorithm 1 of Campbell & Beronov (2019) makes S draws of π_w for each of its T gradient steps
(line 11). Where π_w is fitted by a Gaussian N(μ_w, C_w C_wᵀ), by `Laplace` or in closed form, and
all rows are in memory,

    θ_s = μ_w + C_w ε_s,    D = −G(b − Gᵀw),    G = (f_n(θ_s) − mean over s)/√S         (Eq. 9, 13)

are functions of w and of standard normal ε_s alone. The ε_s are those that the sampler would take
from the same key, so that the draws are its draws up to round-off.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from decoct.models.base import AbstractModel
from decoct.models.conjugate import AbstractConjugate
from decoct.models.parameters import ParameterSpace
from decoct.passes.potentials import chunk_rows
from decoct.runtime.precision import float64
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import WeightedDensity
from decoct.samplers.exact import Exact
from decoct.samplers.laplace import ROUNDED_DECREMENT, SINGULAR, Laplace, ascend


class Fresh(NamedTuple):
    """What draws at some weights say."""

    slope: Float[Array, " m"]  # D on the support
    centre: Float[Array, " d"]  # μ_w
    found: Bool[Array, ""]  # whether they hold: the fit converged and everything is finite


class FreshDraws(eqx.Module):
    """A table, the rows of a support, and how π_w is fitted; pure JAX."""

    model: AbstractModel
    space: ParameterSpace
    rows: dict[str, Array]  # all N
    support: dict[str, Array]  # those of the support, padded with copies of the first
    exact: bool = eqx.field(static=True)  # fit in closed form; else at the mode

    @classmethod
    @float64
    def of(cls, manifold: Any, view: Any) -> FreshDraws | None:
        """Return the fresh draws of a manifold for a view's support; None where a loop has none.

        It has them where every view has draws of its own, all rows fit into one chunk in memory,
        and the sampler is `Laplace`, or `Exact` or `Automatic` of a conjugate model.
        """
        if manifold.reuse:
            return None
        rows, potentials = manifold.everything, manifold.problem.potentials
        model, sampler = potentials.model, type(manifold.problem.sampler)
        conjugate = isinstance(model, AbstractConjugate) and model.is_conjugate
        exact = conjugate and sampler in (Exact, Automatic)
        known = exact or sampler is Laplace
        if not known or rows is None or manifold.n_rows > chunk_rows(manifold.draws):
            return None
        m = len(view.selection.weights)
        places = np.zeros(padded_size(m), dtype=np.int64)
        places[:m] = np.arange(m)
        return cls(
            model,
            potentials.space,
            {name: jnp.asarray(column) for name, column in rows.items()},
            {name: jnp.asarray(column[places]) for name, column in view.selection.rows.items()},
            exact,
        )

    @property
    def size(self) -> int:
        return len(next(iter(self.support.values())))

    def at(
        self,
        weights: Float[Array, " m"],
        start: Float[Array, " d"],
        normals: Float[Array, "S d"],
    ) -> Fresh:
        """Return the gradient at the weights from draws of their own; it fits the padding too."""
        mean, factor, fitted = self._fit(weights, start)
        # The barriers keep XLA from mixing the two evaluations with what is done to them, without
        # which the logarithms of the potentials are not vectorised, at 3 times the cost.
        z = jax.lax.optimization_barrier(mean[None, :] + normals @ factor.T)
        total, support = jax.lax.optimization_barrier(
            (self._potentials(self.rows, z).sum(axis=1), self._potentials(self.support, z))
        )
        total, support = total - total.mean(), support - support.mean(axis=0)[None, :]
        seen = jnp.square(total) + jnp.square(support).sum(axis=1)
        slope = -(total - support @ weights) @ support / len(total)
        found = fitted & jnp.isfinite(seen).all() & jnp.isfinite(z).all()
        return Fresh(slope, mean, found)

    def _potentials(self, rows: dict[str, Array], z: Float[Array, "S d"]) -> Float[Array, "S n"]:
        return jax.vmap(lambda one: self.model.potentials(self.space.unflatten(one), rows))(z)

    def _fit(
        self, weights: Float[Array, " m"], start: Float[Array, " d"]
    ) -> tuple[Float[Array, " d"], Float[Array, "d d"], Bool[Array, ""]]:
        """Return mean and Cholesky factor of the Gaussian that is fitted to π_w, and whether."""
        if self.exact:
            assert isinstance(self.model, AbstractConjugate)
            mean, cov = self.model.exact_posterior(self.model.sufficient(self.support, weights))
            return mean, jnp.linalg.cholesky(cov), jnp.isfinite(mean).all()
        unused = np.zeros(self.space.dim)  # a density's own start
        density = _ZeroWeights(self.model, self.space, self.support, weights, weights, unused)
        mode = ascend(density, start)
        precision = -mode.point[2]
        scale = jnp.sqrt(jnp.diagonal(precision))
        pivots = jnp.diagonal(jnp.linalg.cholesky(precision / jnp.outer(scale, scale)))
        root = jnp.linalg.cholesky(precision)
        inverse = solve_triangular(root, jnp.eye(len(start)), lower=True)
        fitted = (mode.decrement <= ROUNDED_DECREMENT) & (jnp.square(pivots).min() >= SINGULAR)
        return mode.z, jnp.linalg.cholesky(inverse.T @ inverse), fitted


class _ZeroWeights(WeightedDensity):
    """log π_w where weights come and go: any may be 0, also the first."""

    def log_density(self, z: Float[Array, " d"]) -> Float[Array, ""]:
        params = self.space.unflatten(z)
        values = self.model.potentials(params, self.rows)
        return (self.weights * values).sum() + self.model.log_prior(params)


def padded_size(m: int) -> int:
    """Return how many rows a support of m is padded to, so that few loops are compiled."""
    return max(32, 1 << (m - 1).bit_length())


@float64
def normals_of(
    key: jax.Array, first: int, last: int, shape: tuple[int, int, int]
) -> Float[np.ndarray, "T S d"]:
    """Return the ε of steps ``first`` to ``last`` − 1, and zeros where there is room for more."""
    seeds = np.asarray(_seeds_of(key, jnp.asarray(first + np.arange(shape[0]))))
    values = np.zeros(shape)
    for place in range(min(shape[0], last - first)):
        values[place] = np.random.default_rng(seeds[place]).standard_normal(shape[1:])
    return values


@eqx.filter_jit
def _seeds_of(key, steps):
    """Return what `host_rng` seeds from in `SampledManifold.at(fold_in(key, t), …)`."""

    def seed(t):
        return jax.random.key_data(jax.random.fold_in(jax.random.fold_in(key, t), 0))

    return jax.vmap(seed)(steps)
