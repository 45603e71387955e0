"""Poisson regression with a softplus or a logarithmic link."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float

from decoct.errors import ModelError
from decoct.models.base import EncodedColumns, Params, PerDraw, PerRow
from decoct.models.logistic import log_sigmoid
from decoct.models.regression import AbstractRegression

TINY = -37.0
"""Predictor below which softplus(η) is e^η in float64."""

SERIES = -10.0
"""Predictor below which the derivatives of log(softplus) come from a series, exact to 1e-20."""

LARGEST_COUNT = 2.0**53
"""Rate above which float64 cannot represent every count."""


def softplus(eta: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log(1 + e^η), with relative accuracy in both tails and in all derivatives."""
    return -log_sigmoid(-eta)


@jax.custom_jvp
def log_softplus(eta: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log(softplus(η)), also where softplus underflows, with sound derivatives."""
    # no select here: it keeps XLA on CPU from fusing this with a reduction, at 4 times the cost
    least = math.log1p(math.exp(TINY))
    return jnp.log(jnp.maximum(softplus(eta), least)) + jnp.minimum(eta - TINY, 0.0)


@log_softplus.defjvp
def _log_softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return jax.jvp(_log_softplus_in_parts, primals, tangents)


def _log_softplus_in_parts(eta: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log r for r = softplus(η); for small r it is η − log((e^r − 1)/r) as a series."""
    rate, tail = softplus(eta), eta < SERIES
    series = eta - rate / 2.0 - rate**2 / 24.0
    return jnp.where(tail, series, jnp.log(jnp.where(tail, 1.0, rate)))


class PoissonRegression(AbstractRegression):
    """Poisson regression: y_n ~ Poisson(r(x_n·β)).

    f_n = y_n log r_n − r_n − log y_n!, with parameters ``{"beta": (D,)}``.

    Parameters
    ----------
    link
        ``"softplus"``: r(η) = log(1 + e^η) (Campbell & Broderick 2019, Eq. 7.2);
        ``"log"``: r(η) = e^η.
    prior_scale
        Prior standard deviation of the coefficients: a number, or one per coefficient.
    intercept
        Add a column of ones as the last coefficient.

    Raises
    ------
    ModelError
        A scale is not positive and finite, or the link is unknown.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.ones(50), "y": np.tile([2, 4], 25)}
    >>> decoct.laplace(decoct.models.PoissonRegression(link="log"), rows).mean.round(1)
    array([1.1])
    """

    link: str = eqx.field(default="softplus", static=True, kw_only=True)

    kind: ClassVar[str] = "poisson_regression"
    refusal: ClassVar[tuple[str, str]] = (
        "is {}",
        "; a Poisson regression needs the counts 0, 1, 2, …",
    )

    def __check_init__(self) -> None:
        if self.link not in ("softplus", "log"):
            raise ModelError(f"The link {self.link!r} is unknown; use 'softplus' or 'log'.")

    def log_likelihood_at(self, predictor: PerRow, rows: Mapping[str, Array]) -> PerRow:
        if self.link == "log":
            rate, log_rate = jnp.exp(predictor), predictor
        else:
            rate, log_rate = softplus(predictor), log_softplus(predictor)
        return rows["y"] * log_rate - rate - gammaln(rows["y"] + 1.0)

    def predict(self, params: Params, rows: Mapping[str, Array]) -> PerRow:
        """Return the rate r_n."""
        predictor = rows["x"] @ params["beta"]
        return jnp.exp(predictor) if self.link == "log" else softplus(predictor)

    def simulate(
        self, rng: np.random.Generator, expected: PerDraw, params: Params, rows: EncodedColumns
    ) -> PerDraw:
        """Return counts; infinity where the rate is beyond `LARGEST_COUNT`."""
        is_large = expected > LARGEST_COUNT
        counts = rng.poisson(np.where(is_large, 0.0, expected))
        return np.where(is_large, np.inf, counts)

    def refused(self, y: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        return (y < 0) | (y != np.floor(y))
