"""Logistic regression, and the logistic function with derivatives accurate in the tails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from decoct.errors import RowsError
from decoct.models.base import EncodedColumns, Params, PerDraw, PerRow
from decoct.models.regression import AbstractRegression, number_text

LABELS = "a logistic regression needs the labels 0 and 1, or -1 and 1"


@jax.custom_jvp
def sigmoid(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return 1/(1 + e⁻ˣ), with relative accuracy in both tails and in all derivatives."""
    small = jnp.exp(-jnp.abs(x))
    return jnp.where(x >= 0, 1.0, small) / (1.0 + small)


@sigmoid.defjvp
def _sigmoid_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    value = sigmoid(x)
    # not value (1 − value): that is zero for x > 37, where the true slope is e⁻ˣ
    return value, value * sigmoid(-x) * dx


@jax.custom_jvp
def log_sigmoid(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return −log(1 + e⁻ˣ), with relative accuracy in both tails and in all derivatives.

    One exp and one log1p. Inside a reduction XLA on CPU turns them into vector code, which makes
    this about five times as fast there as `jax.nn.log_sigmoid`.
    """
    return jnp.minimum(x, 0.0) - jnp.log1p(jnp.exp(-jnp.abs(x)))


@log_sigmoid.defjvp
def _log_sigmoid_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # by hand: the second derivative of min and |·| at 0 is 0, where it should be −1/4
    (x,), (dx,) = primals, tangents
    return log_sigmoid(x), sigmoid(-x) * dx


class LogisticRegression(AbstractRegression):
    """Logistic regression: y_n = ±1 with P(y_n = 1) = 1/(1 + exp(−x_n·β)).

    f_n = −log(1 + exp(−y_n x_n·β)) (Campbell & Broderick 2019, Eq. 7.1), with parameters
    ``{"beta": (D,)}``. Labels may be given as {0, 1} or {−1, 1}.

    Parameters
    ----------
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
    >>> rows = {"x": np.array([-1.0, -0.5, 0.5, 1.0]), "y": np.array([0, 1, 0, 1])}
    >>> bool(decoct.laplace(decoct.models.LogisticRegression(), rows).mean[0] > 0.0)
    True
    """

    kind: ClassVar[str] = "logistic_regression"
    refusal: ClassVar[tuple[str, str]] = ("has the label {}", f"; {LABELS}.")

    def log_likelihood_at(self, predictor: PerRow, rows: Mapping[str, Array]) -> PerRow:
        return log_sigmoid(rows["y"] * predictor)

    def predict(self, params: Params, rows: Mapping[str, Array]) -> PerRow:
        """Return P(y_n = 1)."""
        return sigmoid(rows["x"] @ params["beta"])

    def simulate(
        self, rng: np.random.Generator, expected: PerDraw, params: Params, rows: EncodedColumns
    ) -> PerDraw:
        """Return 1 with the expected probability, else 0."""
        return (rng.random(expected.shape) < expected).astype(np.float64)

    def code_response(self, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Return ±1."""
        return np.where(y > 0, 1.0, -1.0)

    def refused(self, y: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        return (y != 1) & (y != 0) & (y != -1)

    def check_values(self, values: Sequence[float], name: str = "y") -> None:
        if len(values) > 1 and tuple(values) not in ((0.0, 1.0), (-1.0, 1.0)):
            labels = ", ".join(map(number_text, values))
            raise RowsError(f"The response '{name}' has the labels {labels}; {LABELS}.")
