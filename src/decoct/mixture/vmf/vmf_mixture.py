"""Mixture of von Mises-Fisher clusters of one known concentration.

x_n ~ Σ_k ω_k vMF(μ_k, τ), μ_k ~ Unif(S^{D−1}), ω ~ Dir(1, ..., 1) (Campbell & Broderick 2019,
Eq. 7.4-7.5; vMF as in Eq. 7.3).

The unconstrained parameters are free of Jacobians because both priors are images of simpler ones:
μ_k = v_k/‖v_k‖ with v_k ~ N(0, I) is uniform on the sphere, and ω = softmax(ℓ) with e^{ℓ_k} ~
Gamma(1, 1) is Dir(1, ..., 1). The likelihood does not see ‖v_k‖ ~ chi_D nor Σ_k e^{ℓ_k} ~ Gamma(K),
which a posteriori are independent of everything else and distributed as a priori.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp

from decoct.data.base import Rows
from decoct.errors import ModelError, RowsError
from decoct.mixture.vmf.von_mises_fisher import check_directions, log_normaliser
from decoct.models.base import AbstractModel, EncodedColumns, Params, RawRows, numeric
from decoct.runtime.checks import is_whole
from decoct.stats.divergences import HALF_LOG_2PI


class VonMisesFisherMixture(AbstractModel):
    """Clusters of directions; rows ``{"x": (N, D)}`` of unit vectors.

    f_n(θ) = log Σ_k ω_k C_D(τ) exp(τ x_n·μ_k) (Campbell & Broderick 2019, Eq. 7.3-7.5), with
    unconstrained parameters ``{"modes": (K, D), "logits": (K,)}``: μ_k = modes_k/‖modes_k‖ and
    ω = softmax(logits).

    Parameters
    ----------
    n_components
        K, the number of clusters.
    dim
        D ≥ 2, numbers per row.
    concentration
        τ > 0, the same for all clusters; a cluster's angular spread is about τ^{−½} radians.

    Raises
    ------
    ModelError
        K < 1, D < 2, or τ is not positive and finite.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> from decoct.mixture import VonMisesFisherMixture, sample_vmf
    >>> x = sample_vmf(np.random.default_rng(0), np.repeat(np.eye(3)[:2], 200, axis=0), 50.0)
    >>> model = VonMisesFisherMixture(n_components=2, dim=3, concentration=50.0)
    >>> decoct.build(model, {"x": x}, size=20, method=decoct.constructions.Uniform()).size <= 20
    True
    """

    n_components: int = eqx.field(static=True)
    dim: int = eqx.field(static=True)
    concentration: np.ndarray
    log_normaliser: np.ndarray

    kind: ClassVar[str] = "vmf_mixture"

    def __init__(self, n_components: int, dim: int, concentration: float = 50.0) -> None:
        for name, value in {"n_components": n_components, "dim": dim}.items():
            if not is_whole(value, 1):
                raise ModelError(f"{name} must be a whole number, at least 1, not {value!r}.")
        self.n_components, self.dim = int(n_components), int(dim)
        self.log_normaliser = np.asarray(log_normaliser(self.dim, concentration))
        self.concentration = np.asarray(float(concentration))

    @property
    def columns(self) -> tuple[str, ...]:
        return ("x",)

    def init(self, rows: RawRows) -> Params:
        """Return equal weights and modes that all differ: equal ones would never part."""
        normals = np.random.default_rng(0).standard_normal((self.n_components, self.dim))
        modes = normals / np.linalg.norm(normals, axis=1, keepdims=True)
        logits = np.full(self.n_components, -np.log(self.n_components))
        return {"modes": modes, "logits": logits}

    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        """Return log Σ_k ω_k C_D(τ) exp(τ x_n·μ_k), in nats."""
        return jax.scipy.special.logsumexp(self.log_joint(params, rows), axis=0)

    def log_joint(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, "K n"]:
        """Return log ω_k + log f_vMF(x_n; μ_k, τ); normalised over k, the assignments."""
        log_weights = jax.nn.log_softmax(params["logits"])
        cosines = _directions(params["modes"]) @ jnp.asarray(rows["x"]).T
        return log_weights[:, None] + self.log_normaliser + self.concentration * cosines

    def log_prior(self, params: Params) -> Float[Array, ""]:
        """Return Σ_k log N(modes_k | 0, I) + Σ_k (logits_k − exp(logits_k))."""
        modes, logits = params["modes"], params["logits"]
        normals = -0.5 * jnp.sum(modes**2) - self.n_components * self.dim * HALF_LOG_2PI
        return normals + jnp.sum(logits - jnp.exp(logits))

    def constrain(self, params: Params) -> dict[str, Array]:
        """Return ``{"modes": (K, D) unit vectors, "weights": (K,) summing to 1}``."""
        weights = jax.nn.softmax(params["logits"])
        return {"modes": _directions(params["modes"]), "weights": weights}

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        """Return ``{"x": (n, D) float64}``.

        Raises
        ------
        RowsError
            The column is missing, not numeric or not D wide, a value is not finite, or a norm
            differs from 1 by more than 1e-6; the message names the row.
        """
        x = numeric(rows, "x", start).astype(np.float64, copy=False)
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise RowsError(
                f"Column 'x' has the shape {x.shape}; the model wants {self.dim} numbers per row."
            )
        check_directions(x, start)
        return {"x": x}

    def check(self, rows: Rows) -> None:
        """Refuse fewer rows than clusters."""
        if rows.n_rows < self.n_components:
            raise RowsError(
                f"The table has {rows.n_rows} rows, fewer than the {self.n_components} clusters; "
                "ask for fewer clusters."
            )

    def relabelled(
        self, z: Float[np.ndarray, "S d"], like: Float[np.ndarray, " d"]
    ) -> Float[np.ndarray, "S d"]:
        """Return draws whose clusters are in the order of those of ``like``.

        One order for all draws: the one by which the mean directions are closest in all.
        """
        # logits, then modes: the order in which `ParameterSpace` flattens `init`
        K = self.n_components
        logits, modes = z[:, :K], z[:, K:].reshape(len(z), K, self.dim)
        there = like[K:].reshape(K, self.dim)
        means = (modes / np.linalg.norm(modes, axis=2, keepdims=True)).mean(axis=0)
        closeness = there / np.linalg.norm(there, axis=1, keepdims=True) @ means.T
        order = linear_sum_assignment(-closeness)[1]
        return np.concatenate([logits[:, order], modes[:, order].reshape(len(z), -1)], axis=1)

    def coords(self, rows: RawRows) -> dict[str, tuple[str, list[str]]]:
        return {"weights": ("cluster", [str(k + 1) for k in range(self.n_components)])}

    def to_dict(self) -> dict[str, Any]:
        """Return ``{"kind": ..., hyper-parameter: value, ...}``, ready for JSON."""
        sizes = {"n_components": self.n_components, "dim": self.dim}
        return {"kind": self.kind, **sizes, "concentration": float(self.concentration)}

    def to_unconstrained(
        self,
        modes: Float[np.ndarray, "S K D"],
        weights: Float[np.ndarray, "S K"],
        rng: np.random.Generator | None = None,
    ) -> Float[np.ndarray, "S d"]:
        """Return flat unconstrained parameters z with the given modes and weights.

        Parameters
        ----------
        modes : (S, K, D)
            Unit vectors.
        weights : (S, K)
            Positive, each row summing to 1.
        rng
            With a generator ‖v_k‖ ~ chi_D and Σ_k e^{ℓ_k} ~ Gamma(K) are drawn, so that z is a draw
            of the unconstrained posterior if modes and weights are one of theirs. Without, ‖v_k‖ =
            Σ_k e^{ℓ_k} = 1.

        Raises
        ------
        ModelError
            The shapes do not fit the model, or a weight is not positive (its logit would be −∞).
        """
        modes, weights = np.asarray(modes, np.float64), np.asarray(weights, np.float64)
        S, K, D = len(weights), self.n_components, self.dim
        if modes.shape != (S, K, D) or weights.shape != (S, K):
            raise ModelError(
                f"modes and weights have the shapes {modes.shape} and {weights.shape}; the model "
                f"wants (S, {K}, {D}) and (S, {K})."
            )
        if not (weights > 0.0).all():
            raise ModelError("A weight is not positive, so it has no logit.")
        log_weights = np.log(weights)
        logits = log_weights - logsumexp(log_weights, axis=1, keepdims=True)
        if rng is not None:
            modes = modes * np.sqrt(rng.chisquare(D, size=(S, K, 1)))
            logits = logits + np.log(rng.gamma(K, size=(S, 1)))
        # in the order in which `ParameterSpace` flattens `init`
        return np.concatenate([logits, modes.reshape(S, -1)], axis=1)


def _directions(modes: Float[Array, "K D"]) -> Float[Array, "K D"]:
    return modes / jnp.linalg.norm(modes, axis=1, keepdims=True)
