"""A Gaussian site: a quadratic that stands for the log-likelihood of many rows.

    s(θ) = c + hᵀ(θ − μ) − ½ (θ − μ)ᵀ A (θ − μ),     A ⪰ 0

The term is that of expectation propagation (Minka 2001): an unnormalised Gaussian factor in place
of likelihood terms. A coreset with a site has log π_w = log π₀ + s + Σ w_m f_m + constant.

Where rows depend on linear predictors it has terms of third order as well, `ThirdOrder`.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

BOUND = 64.0
"""z² at which the cubic of a bounded one is halved; far beyond it grows linearly."""

CUBE, SLOPE = 0.19258643921647325, 0.5369641243218337
"""Those for which E β(z) z = 0 and E β(z) (z³ − 3z) = 1 under N(0, 1), as for (z³ − 3z)/6."""


def bounded_cubic(z: Any) -> Any:
    """Return β(z) = a z³/(1 + z²/64) − b z: (z³ − 3z)/6 nearby, linear far out.

    It is orthogonal to quadratics under N(0, 1). Arrays, JAX tracers and PyTensor's alike.
    """
    squared = z * z
    return z * (CUBE * squared / (1.0 + squared / BOUND) - SLOPE)


class ThirdOrder(eqx.Module):
    """Terms of third order: Σ_i γ_i β(((A δ)_{j_i} + f_i (A δ)_{l_i})/v_i).

    Of the effect of a group, (A δ)_j/A_jj is the mean linear predictor of its rows, less that at
    δ = 0, weighted by −f_n''. With s = v/A_jj its standard deviation, γ is s³ times the sum of
    third derivatives (`passes.third_order`). A group's intercept and slope have terms together.

    Attributes
    ----------
    effects : (k,)
        j, places in the parameters.
    scales : (k,)
        v, standard deviations of (A δ)_j + f (A δ)_l.
    sizes : (k,)
        γ, in nats.
    partners, factors : (k,)
        l and f, of effects of the same groups, such as slopes; None where f = 0.
    """

    effects: Int[np.ndarray, " k"]
    scales: Float[np.ndarray, " k"]
    sizes: Float[np.ndarray, " k"]
    partners: Int[np.ndarray, " k"] | None = None
    factors: Float[np.ndarray, " k"] | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the attributes that are not None."""
        return {name: part for name, part in vars(self).items() if part is not None}

    def of(self, product: Float[Any, "... d"]) -> Float[Any, "..."]:
        """Return the terms, given A δ."""
        along = product[..., self.effects]
        if self.factors is not None:
            along = along + self.factors * product[..., self.partners]
        return (bounded_cubic(along / self.scales) * self.sizes).sum(-1)


class GaussianSite(eqx.Module):
    """A quadratic in the model's flat unconstrained parameters θ, in nats.

    Sites of parts of a table add: ``site + other`` is the site of both. Terms of third order do not
    add, and a sum is without them.

    Attributes
    ----------
    centre : (d,)
        μ, where the log-likelihood was expanded.
    linear : (d,)
        h, the gradient of the site at μ.
    precision : (d, d)
        A, minus the Hessian; symmetric, no eigenvalue below 0.
    constant
        c, the value of the quadratic at μ.
    third_order
        Terms of parameters along which the likelihood is skewed; None if it is along none.

    Examples
    --------
    >>> import numpy as np
    >>> site = GaussianSite(np.zeros(1), np.ones(1), 2.0 * np.eye(1), 0.5)
    >>> float(site.log_density(np.array([1.0])))
    0.5
    >>> (site + site.move_to(np.ones(1))).linear
    array([2.])
    """

    centre: Float[np.ndarray, " d"]
    linear: Float[np.ndarray, " d"]
    precision: Float[np.ndarray, "d d"]
    # an array: a Python number would be part of the program, which is then compiled again for each
    constant: Float[np.ndarray, ""] = eqx.field(converter=lambda c: np.asarray(c, dtype=np.float64))
    third_order: ThirdOrder | None = None

    @property
    def dim(self) -> int:
        """d, the number of parameters."""
        return len(self.centre)

    def log_density(self, z: Float[Any, "... d"]) -> Float[Any, "..."]:
        """Return s at z, or at each of several; NumPy arrays and JAX tracers alike."""
        delta = z - self.centre
        product = delta @ self.precision
        total = self.constant + delta @ self.linear - 0.5 * (product * delta).sum(-1)
        return total if self.third_order is None else total + self.third_order.of(product)

    def quadratic(self) -> GaussianSite:
        """Return the site without terms of third order."""
        return GaussianSite(self.centre, self.linear, self.precision, self.constant)

    def move_to(self, centre: Float[np.ndarray, " d"]) -> GaussianSite:
        """Return the same quadratic, written about another point, without terms of third order."""
        centre = np.asarray(centre, dtype=np.float64)
        linear = self.linear - self.precision @ (centre - self.centre)
        value = float(self.quadratic().log_density(centre))
        return GaussianSite(centre, linear, self.precision, value)

    def __add__(self, other: GaussianSite) -> GaussianSite:
        moved = other.move_to(self.centre)
        return GaussianSite(
            self.centre,
            self.linear + moved.linear,
            self.precision + moved.precision,
            self.constant + moved.constant,
        )
