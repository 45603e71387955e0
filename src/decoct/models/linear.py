"""Linear regression with Gaussian noise, known or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.errors import ModelError
from decoct.models.base import EncodedColumns, Params, PerDraw, PerRow, RawRows
from decoct.models.conjugate import AbstractConjugate, MeanAndCov, gaussian_from_information
from decoct.models.regression import AbstractRegression, normal_log_density, positive
from decoct.stats.divergences import HALF_LOG_2PI


class LinearRegression(AbstractRegression, AbstractConjugate):
    """Linear regression: y_n ~ N(x_n·β, σ²).

    f_n = −½((y_n − x_n·β)/σ)² − log σ − ½ log 2π, with parameters ``{"beta": (D,)}`` and, for
    unknown noise, ``"log_noise"``: log σ ~ N(0, 1), a prior that puts σ between 0.14 and 7.1 with
    probability 0.95. Scale the response to match it.

    Parameters
    ----------
    noise_scale
        σ. A number makes the posterior an exact Gaussian; None learns it.
    prior_scale
        Prior standard deviation of the coefficients: a number, or one per coefficient.
    intercept
        Add a column of ones as the last coefficient.

    Raises
    ------
    ModelError
        A scale is not positive and finite.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> x = np.linspace(-1.0, 1.0, 50)
    >>> model = decoct.models.LinearRegression(noise_scale=0.1)
    >>> decoct.laplace(model, {"x": x, "y": 2.0 * x}).mean.round(1)
    array([2.])
    """

    noise_scale: np.ndarray | None = eqx.field(
        default=None, converter=positive("noise_scale", optional=True), kw_only=True
    )

    kind: ClassVar[str] = "linear_regression"

    @property
    def is_conjugate(self) -> bool:
        """Whether the noise is known."""
        return self.noise_scale is not None

    def init(self, rows: RawRows) -> Params:
        start = super().init(rows)
        return start if self.is_conjugate else {**start, "log_noise": np.zeros(())}

    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> PerRow:
        """Return log N(y_n | x_n·β, σ²), in nats."""
        noise = self.noise_scale
        log_noise = params["log_noise"] if noise is None else jnp.log(noise)
        standard = (rows["y"] - rows["x"] @ params["beta"]) * jnp.exp(-log_noise)
        return -0.5 * standard**2 - log_noise - HALF_LOG_2PI

    def design_matrix(self, rows: Mapping[str, Array]) -> Float[Array, "n d"] | None:
        """Return x where the noise is known."""
        return rows["x"] if self.is_conjugate else None

    def log_likelihood_at(self, predictor: PerRow, rows: Mapping[str, Array]) -> PerRow:
        noise = self._known_noise()
        return -0.5 * ((rows["y"] - predictor) / noise) ** 2 - jnp.log(noise) - HALF_LOG_2PI

    def simulate(
        self, rng: np.random.Generator, expected: PerDraw, params: Params, rows: EncodedColumns
    ) -> PerDraw:
        """Return normal numbers with σ about the expected ones."""
        noise = np.exp(params["log_noise"]) if self.noise_scale is None else self.noise_scale
        return rng.normal(expected, noise)

    def log_prior(self, params: Params) -> Float[Array, ""]:
        """Return Σ_d log N(β_d | 0, s_d²) and, for unknown noise, + log N(log σ | 0, 1)."""
        prior = super().log_prior(params)
        if self.is_conjugate:
            return prior
        return prior + normal_log_density(params["log_noise"], 1.0)

    def constrain(self, params: Params) -> dict[str, Array]:
        """Return ``beta`` and, for unknown noise, ``noise_scale`` = σ."""
        if self.is_conjugate:
            return {"beta": params["beta"]}
        return {"beta": params["beta"], "noise_scale": jnp.exp(params["log_noise"])}

    def sufficient(self, rows: Mapping[str, Array], weights: PerRow) -> dict[str, Array]:
        """Return ``{"gram": Σ_n w_n x_n x_nᵀ, "moment": Σ_n w_n y_n x_n}``."""
        self._known_noise()
        weighted = weights[:, None] * rows["x"]
        return {"gram": weighted.T @ rows["x"], "moment": rows["y"] @ weighted}

    def exact_posterior(self, stats: dict[str, Array]) -> MeanAndCov:
        """Return mean and covariance of π_w.

        Σ_w⁻¹ = diag(s⁻²) + σ⁻² Σ_n w_n x_n x_nᵀ and μ_w = Σ_w σ⁻² Σ_n w_n y_n x_n.
        """
        precision = 1.0 / jnp.square(self._known_noise())
        dim = stats["moment"].shape[0]
        prior = jnp.diag(jnp.broadcast_to(1.0 / self.prior_scale**2, (dim,)))
        return gaussian_from_information(
            prior + precision * stats["gram"], precision * stats["moment"]
        )

    def _known_noise(self) -> np.ndarray | Array:
        if self.noise_scale is None:
            raise ModelError(
                "With unknown noise a linear regression has no exact Gaussian posterior; "
                "set noise_scale, or use another sampler."
            )
        return self.noise_scale
