"""Norms of potentials beyond the L2 norm at draws (Campbell & Broderick 2019, Sections 5 and 6).

The weighted Fisher information norm, for draws μ_1..μ_S ~ π̂,

    Fisher  ⟨f_n, f_m⟩ = E_π̂[∇f_nᵀ∇f_m]         ≈ (D/S) Σ_s (∇f_n(μ_s))_{d_s} (∇f_m(μ_s))_{d_s}

(Eq. 5.2 with 5.7; d_s uniform coordinates). One coordinate of a gradient is a directional
derivative, so it costs one JVP per draw, never a full Jacobian; gradients do not see the constant
of a potential.

For a Gaussian location model and π̂ = N(m, C) both norms are exact in D + 1 numbers a row. With
A = Σ⁻¹ and ∇f_n(θ) = A(y_n − θ),

    Fisher  (y_n − m)ᵀA²(y_m − m) + tr(A²C)                     (Eq. 6.5 for Σ = I, C = I/(1 + N))
    L2      (y_n − m)ᵀACA(y_m − m) + ½ tr(ACAC)

Near a mode z with π ≈ N(z, CCᵀ) a potential is its first two derivatives, and the L2 norm of its
second-order expansion is a plain sum of squares of K = d(d + 3)/2 numbers: with g, H the gradient
and Hessian of f_n at z,

    Var[gᵀCu + ½uᵀCᵀHCu] = ‖Cᵀg‖² + ½‖CᵀHC‖²_F,    u ~ N(0, I).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from decoct.errors import ModelError
from decoct.models.base import AbstractModel
from decoct.models.gaussian import GaussianMean
from decoct.models.parameters import ParameterSpace
from decoct.passes.chunk_sums import Embedding
from decoct.stats.divergences import Gaussian


class Scores(Embedding):
    """One coordinate of the gradient per draw: the weighted Fisher information norm (Eq. 5.7)."""

    parameters: ParameterSpace
    draws: Float[Array, "S d"]
    coordinates: Int[Array, " S"]

    @classmethod
    def at(
        cls,
        parameters: ParameterSpace,
        draws: Float[np.ndarray, "S d"],
        rng: np.random.Generator,
    ) -> Scores:
        """Pick a uniform coordinate for every draw of θ (Eq. 5.5)."""
        coordinates = rng.integers(draws.shape[1], size=len(draws))
        return cls(parameters, jnp.asarray(draws), jnp.asarray(coordinates))

    @property
    def size(self) -> int:
        return self.draws.shape[0]

    @property
    def scale(self) -> float:
        return float(np.sqrt(self.draws.shape[1] / self.size))

    def evaluate(self, model: AbstractModel, space: ParameterSpace, rows) -> Float[Array, "S n"]:
        def along(z, coordinate):
            direction = jnp.zeros_like(z).at[coordinate].set(1.0)
            potentials = lambda z: model.potentials(self.parameters.unflatten(z), rows)  # noqa: E731
            return jax.jvp(potentials, (z,), (direction,))[1]

        return jax.vmap(along)(self.draws, self.coordinates)

    def first(self, n: int | None) -> Scores:
        return Scores(self.parameters, self.draws[:n], self.coordinates[:n])

    def describe(self, coordinate: int) -> str:
        with np.printoptions(precision=4, threshold=8):
            return (
                f"draw {coordinate} (slope along coordinate {int(self.coordinates[coordinate])} at "
                f"parameters {np.asarray(self.draws[coordinate])})"
            )


class ExactGaussian(Embedding):
    """(y_n − centre) factor and one shared coordinate: both norms of `GaussianMean`, exactly."""

    centre: Float[Array, " d"]
    factor: Float[Array, "d d"]
    shared: Float[Array, ""]

    @classmethod
    def of(cls, model: AbstractModel, weighting: Gaussian, norm: str) -> ExactGaussian:
        """Return the embedding for π̂ = ``weighting`` and the norm "l2" or "fisher" (Eq. 6.5)."""
        if not isinstance(model, GaussianMean):
            raise ModelError(
                f"{type(model).__name__} has no inner product in closed form; only GaussianMean "
                "has. Leave out exact=True to project on draws."
            )
        precision = np.linalg.inv(np.asarray(model.covariance))
        cov = np.asarray(weighting.cov)
        if norm == "fisher":
            factor, shared = precision, np.trace(precision @ precision @ cov)
        else:
            factor = precision @ np.linalg.cholesky(cov)
            shared = 0.5 * np.trace(precision @ cov @ precision @ cov)
        return cls(jnp.asarray(weighting.mean), jnp.asarray(factor), jnp.asarray(np.sqrt(shared)))

    @property
    def size(self) -> int:
        return self.centre.shape[0] + 1

    def evaluate(self, model: AbstractModel, space: ParameterSpace, rows) -> Float[Array, "S n"]:
        offset = (rows["x"] - self.centre[None, :]) @ self.factor
        shared = jnp.broadcast_to(self.shared, (offset.shape[0], 1))
        return jnp.concatenate([offset, shared], axis=1).T


class Moments(Embedding):
    """The gradient and Hessian of a potential at one point, whitened: K = d(d + 3)/2 numbers.

    v = (Cᵀg; (CᵀHC)_ii/√2; (CᵀHC)_ij, i < j), so that ‖v‖² is the variance of the potential's
    second-order expansion under N(z, CCᵀ).
    """

    parameters: ParameterSpace
    centre: Float[Array, " d"]
    factor: Float[Array, "d d"]

    @classmethod
    def of(cls, parameters: ParameterSpace, gaussian: Gaussian) -> Moments:
        """Return the embedding at the mean of a Gaussian of θ, in units of its spread."""
        factor = np.linalg.cholesky(np.asarray(gaussian.cov))
        return cls(parameters, jnp.asarray(gaussian.mean), jnp.asarray(factor))

    @property
    def size(self) -> int:
        d = self.centre.shape[0]
        return d * (d + 3) // 2

    def evaluate(self, model: AbstractModel, space: ParameterSpace, rows) -> Float[Array, "S n"]:
        def potentials(u):
            z = self.centre + self.factor @ u
            return model.potentials(self.parameters.unflatten(z), rows)

        at = jnp.zeros_like(self.centre)
        slopes = jax.jacfwd(potentials)(at)
        curvatures = jax.jacfwd(jax.jacfwd(potentials))(at)
        i, j = np.triu_indices(len(at), 1)
        diagonal = jnp.diagonal(curvatures, axis1=1, axis2=2) / np.sqrt(2.0)
        return jnp.concatenate([slopes, diagonal, curvatures[:, i, j]], axis=1).T

    def describe(self, coordinate: int) -> str:
        with np.printoptions(precision=4, threshold=8):
            return f"derivative {coordinate} at parameters {np.asarray(self.centre)}"
