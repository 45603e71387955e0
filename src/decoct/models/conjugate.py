"""Models whose posterior is a known Gaussian, whatever the weights.

log π_w(θ) = Σ_n w_n f_n(θ) + log π₀(θ) + const is then a quadratic in θ that depends on rows and
weights only through a few weighted sums. It is the reference for every approximation (as in
Campbell & Beronov 2019, Section 5.1 and Appendix B).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float

from decoct.models.base import AbstractModel, PerRow

Statistics = Any
"""A pytree of weighted sums over rows."""

MeanAndCov = tuple[Float[Array, " d"], Float[Array, "d d"]]


class AbstractConjugate(AbstractModel):
    """A model with an exact Gaussian posterior.

    A class may be conjugate for some of its hyper-parameters only: ask `is_conjugate`.
    """

    @property
    def is_conjugate(self) -> bool:
        """Whether `sufficient` and `exact_posterior` apply to these hyper-parameters."""
        return True

    @abc.abstractmethod
    def sufficient(self, rows: Mapping[str, Array], weights: PerRow) -> Statistics:
        """Return the weighted sums over *encoded* rows that the posterior needs; pure JAX.

        Additive: the statistics of two chunks add up, leaf by leaf, to those of both, and a row of
        weight 2 counts as two rows. Raises `ModelError` where the model is not conjugate.
        """

    @abc.abstractmethod
    def exact_posterior(self, stats: Statistics) -> MeanAndCov:
        """Return mean and covariance of π_w over the flat parameters; pure JAX.

        ``stats`` is the sum of `sufficient` over all rows; the order of the parameters is that of
        `jax.flatten_util.ravel_pytree`. Raises `ModelError` where the model is not conjugate.
        """


def gaussian_from_information(
    precision: Float[Array, "d d"], shift: Float[Array, " d"]
) -> MeanAndCov:
    """Return mean P⁻¹h and covariance P⁻¹ of the density ∝ exp(−½θᵀPθ + hᵀθ)."""
    factor = cho_factor(precision)
    cov = cho_solve(factor, jnp.eye(len(shift), dtype=precision.dtype))
    return cho_solve(factor, shift), 0.5 * (cov + cov.T)
