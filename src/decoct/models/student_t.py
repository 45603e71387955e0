"""Robust regression: Student-t noise, its scale constant or log-linear in the features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.errors import ModelError
from decoct.models.base import EncodedColumns, Params, PerDraw, PerRow, RawRows
from decoct.models.regression import AbstractRegression, normal_log_density, positive

SCALES = ("constant", "log-linear")

NU_RATE = 0.1
"""The prior of free degrees of freedom is ν ~ Gamma(shape 2, rate 0.1)."""

HUGE = 1e20
"""1 + u² = u² and 1 + u = u in float64 beyond this."""


def log_one_plus_square(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return log(1 + u²), also where u² overflows; one log1p."""
    huge = jnp.abs(u) > HUGE
    small = jnp.where(huge, 0.0, u)
    return jnp.where(huge, 2.0, 1.0) * jnp.log1p(jnp.where(huge, jnp.abs(u), small**2))


SHIFT = np.arange(16.0)
SERIES = (-1 / 8, 1 / 192, -1 / 640, 17 / 14336, -31 / 18432)
"""Coefficients of b⁻¹, b⁻³, … in log Γ(b + ½) − log Γ(b) − ½ log b; exact to 1e-15 for b ≥ 16."""


def log_gamma_half_step(a: Float[Array, ""]) -> Float[Array, ""]:
    """Return log Γ(a + ½) − log Γ(a) for a > 0.

    Stirling's series at b = a + 16, brought down by Γ(a + 1) = aΓ(a). The difference of two
    `gammaln` cancels for large a, `jax.scipy.special.betaln` is off by 1e-7, and both take seconds
    to compile once differentiated twice.
    """
    b = a + len(SHIFT)
    series = jnp.zeros_like(b)
    for coefficient in reversed(SERIES):
        series = coefficient / b + series / b**2
    return 0.5 * jnp.log(b) + series - jnp.sum(jnp.log1p(0.5 / (a + SHIFT)))


class StudentTRegression(AbstractRegression):
    """Robust regression: y_n = x_n·β + σ_n t, t ~ Student-t(ν).

    f_n = log Γ(½ν + ½) − log Γ(½ν) − ½ log πν − log σ_n − ½(ν + 1) log(1 + z_n²/ν) for
    z_n = (y_n − x_n·β)/σ_n, with parameters ``"beta"`` (D,) and

    - constant scale: ``"log_scale"``, log σ ~ N(0, 1); scale the response to match;
    - log-linear scale: ``"gamma"`` (D,), log σ_n = x_n·γ, with the prior of β on γ;
    - free ν: ``"log_nu"``, ν ~ Gamma(shape 2, rate 0.1), mean 20.

    Parameters
    ----------
    nu
        ν, the degrees of freedom; None learns them.
    scale
        ``"constant"`` or ``"log-linear"`` (in the columns of x, the intercept's included).
    prior_scale
        Prior standard deviation of β and γ: a number, or one per coefficient.
    intercept
        Add a column of ones as the last coefficient.

    Raises
    ------
    ModelError
        ``nu`` or a scale is not positive and finite, or ``scale`` is unknown.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.ones(51), "y": np.r_[np.linspace(-1.0, 1.0, 50), 1000.0]}
    >>> bool(abs(decoct.laplace(decoct.models.StudentTRegression(nu=4.0), rows).mean[0]) < 0.1)
    True
    """

    nu: np.ndarray | None = eqx.field(
        default=None, converter=positive("nu", optional=True), kw_only=True
    )
    scale: str = eqx.field(default="constant", static=True, kw_only=True)

    kind: ClassVar[str] = "student_t_regression"

    def __check_init__(self) -> None:
        if self.scale not in SCALES:
            raise ModelError(
                f"The scale {self.scale!r} is unknown; use 'constant' or 'log-linear'."
            )

    def init(self, rows: RawRows) -> Params:
        """Return zeros, and the prior's mode of ν."""
        start = super().init(rows)
        if self.scale == "constant":
            start["log_scale"] = np.zeros(())
        else:
            start["gamma"] = np.zeros_like(start["beta"])
        if self.nu is None:
            start["log_nu"] = np.asarray(-math.log(NU_RATE))
        return start

    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> PerRow:
        """Return the log density of (y_n − x_n·β)/σ_n under Student-t(ν), − log σ_n, in nats."""
        x, constant = rows["x"], self.scale == "constant"
        log_scale = params["log_scale"] if constant else x @ params["gamma"]
        nu = self._nu(params)
        u = (rows["y"] - x @ params["beta"]) * jnp.exp(-log_scale) / jnp.sqrt(nu)
        peak = log_gamma_half_step(0.5 * nu) - 0.5 * jnp.log(math.pi * nu)
        return peak - log_scale - 0.5 * (nu + 1.0) * log_one_plus_square(u)

    def simulate(
        self, rng: np.random.Generator, expected: PerDraw, params: Params, rows: EncodedColumns
    ) -> PerDraw:
        """Return Student-t numbers with scale σ_n about the expected ones."""
        constant = self.scale == "constant"
        log_scale = params["log_scale"] if constant else rows["x"] @ params["gamma"].T
        nu = np.exp(params["log_nu"]) if self.nu is None else self.nu
        return expected + np.exp(log_scale) * rng.standard_t(nu, expected.shape)

    def design_matrix(self, rows: Mapping[str, Array]) -> None:
        """Return None: the potentials depend on the scale too."""

    def _nu(self, params: Params) -> Float[Array, ""]:
        return jnp.exp(params["log_nu"]) if self.nu is None else jnp.asarray(self.nu)

    def log_prior(self, params: Params) -> Float[Array, ""]:
        """Return the log prior of all parameters.

        With free ν it includes log Gamma(ν | 2, 0.1) + log ν, the last term the Jacobian of exp.
        """
        prior = super().log_prior(params)
        if self.scale == "constant":
            prior = prior + normal_log_density(params["log_scale"], 1.0)
        else:
            prior = prior + normal_log_density(params["gamma"], self.prior_scale)
        if self.nu is None:
            log_nu = params["log_nu"]
            prior = prior + 2.0 * (math.log(NU_RATE) + log_nu) - NU_RATE * jnp.exp(log_nu)
        return prior

    def constrain(self, params: Params) -> dict[str, Array]:
        """Return ``beta``, then ``scale`` = σ or ``gamma``, and ``nu`` if it is free."""
        named = {"beta": params["beta"]}
        if self.scale == "constant":
            named["scale"] = jnp.exp(params["log_scale"])
        else:
            named["gamma"] = params["gamma"]
        return named if self.nu is not None else {**named, "nu": self._nu(params)}

    def coords(self, rows: RawRows) -> dict[str, tuple[str, list[str]]]:
        """Return the labels of the coefficients; those of γ are those of β."""
        labels = super().coords(rows)["beta"]
        return {"beta": labels} if self.scale == "constant" else {"beta": labels, "gamma": labels}
