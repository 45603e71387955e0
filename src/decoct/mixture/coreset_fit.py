"""How `DPGaussianMixture` uses coresets: it makes its own, and is fitted to given ones.

A variational mixture has no potentials at parameters. A construction that needs none chooses among
the rows, and the mixture is fitted to them (`decoct.mixture.build`).

The estimator's own coreset is of rows that have weights already: Borsos, Bachem & Krause (2017),
Alg. 1, of the table in which row n is there γ_n times. With Γ = Σγ_n, μ = Σγ_n x_n/Γ and the spread
Σγ_n‖x_n − μ‖², M rows are drawn by

    q_n = γ_n [1/(2Γ) + ‖x_n − μ‖²/(2Σ_m γ_m‖x_m − μ‖²)],   weight γ_n/(M q_n) each.          (W1)

The normalised entropy −Σq_n ln(q_n/γ_n)/ln Γ is that of the repeated rows. All γ_n = 1 gives the
algorithm as printed (`decoct.constructions.sampling.lightweight`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int
from sklearn.base import clone
from sklearn.utils import check_random_state

from decoct.constructions.sampling.lightweight import (
    LightweightCoreset,
    entropy_figures,
    theorem_3_1,
)
from decoct.constructions.sampling.weighted_sampling import describe_draws
from decoct.coreset import Coreset
from decoct.data.base import Chunk, Columns, Rows
from decoct.errors import CoresetFileError, RequestError
from decoct.mixture.cavi import Fit, Mixture
from decoct.mixture.estimator_input import (
    LARGEST_SEED,
    Moments,
    check_values,
    count_moment_passes,
)
from decoct.mixture.initialization import merge_equal_rows
from decoct.mixture.normal_wishart import NormalWishart
from decoct.mixture.posterior import draw_parameters
from decoct.models.base import AbstractModel, Params, RawRows
from decoct.report import Report, Status, described
from decoct.runtime.checks import checked_whole
from decoct.runtime.randomness import host_rng
from decoct.samplers.base import Sampler, WeightedDensity

PRIORS = (
    "weight_concentration_prior_",
    "mean_precision_prior_",
    "degrees_of_freedom_prior_",
    "mean_prior_",
    "covariance_prior_",
)


class MixtureCoreset(Coreset):
    """A coreset whose ``model`` is a mixture fitted to it by variational inference.

    No sampler can be used, as there is no density over parameters: `sample` draws from the fit.

    Examples
    --------
    >>> import decoct.mixture, numpy as np
    >>> x = np.random.default_rng(0).normal(size=(500, 2))
    >>> estimator = decoct.mixture.DPGaussianMixture(n_components=2, max_iter=1000)
    >>> coreset = decoct.mixture.build(estimator, {"x": x}, size=50)
    >>> coreset.sample(draws=10, chains=1)["posterior"]["means"].shape
    (1, 10, 2, 2)
    """

    @cached_property
    def density(self) -> WeightedDensity:
        """Raise an error: see ``model.score_samples`` for the log density of rows."""
        raise RequestError(
            f"A {type(self.model).__name__} is fitted by variational inference: there is no "
            "density over its parameters. sample() draws from the fit, and model.score_samples "
            "is the log density of rows."
        )

    def sample(
        self,
        draws: int = 1000,
        chains: int = 4,
        *,
        seed: int = 0,
        warmup: int = 1000,
        sampler: Sampler | None = None,
        progress: bool | None = None,
    ) -> xr.DataTree:
        """Draw from the variational posterior; it takes no sampler. See `Coreset.sample`."""
        for option, value in {"draws": draws, "chains": chains}.items():
            checked_whole(option, value, 1)
        if sampler is not None:
            raise RequestError(
                f"The draws of a {type(self.model).__name__} are of its variational posterior "
                "and need no sampler; leave sampler=None."
            )
        return cast(Any, self.model).draw_posterior(draws, chains, seed)

    def description(self) -> dict[str, Any]:
        return {**super().description(), "fitted": cast(Any, self.model).fitted_state()}


class FittedOnCoresets:
    """How `DPGaussianMixture` is fitted to the rows of a coreset, and brought back from a file."""

    kind: ClassVar[str] = "dp_gaussian_mixture"

    def fit_to_coreset(self: Any, coreset: Coreset, table: Rows) -> MixtureCoreset:
        """Return the coreset with a copy of this estimator, fitted on it, as its model.

        Default priors are those of the whole table, which costs a pass. Without a
        ``random_state`` the coreset's seed is taken, modulo 2³².
        """
        began = time.perf_counter()
        mixture: Any = clone(self)
        if mixture.random_state is None:
            mixture.set_params(random_state=coreset.report.seed % (LARGEST_SEED + 1))
        rows = stack_columns(coreset.rows)
        check_values(rows, coreset.indices)
        x, gamma = merge_equal_rows(rows, coreset.weights)
        mixture.n_features_in_ = x.shape[1]
        if all(np.ndim(column) == 1 for column in coreset.rows.values()):
            mixture.feature_names_in_ = np.asarray(list(coreset.rows), dtype=object)
        priors = mixture._set_priors(
            x.shape[1], lambda: table.map_reduce(_compute_chunk_moments, Moments.joined)
        )
        mixture._fit_rows(x, gamma, priors)
        passes = coreset.report.passes + count_moment_passes(mixture)
        seconds = {**coreset.report.seconds, "fit": round(time.perf_counter() - began, 3)}
        report = dataclasses.replace(coreset.report, passes=passes, seconds=seconds, sampler=None)
        return mixture._become_model_of(dataclasses.replace(coreset, report=report))

    def draw_posterior(self: Any, draws: int, chains: int, seed: int) -> xr.DataTree:
        """Return independent draws of the variational posterior, as `Coreset.sample` gives them.

        The axes chain and draw only shape the answer.
        """
        from arviz_base import from_dict

        rng, prior = np.random.default_rng(seed), self._make_weight_prior()
        drawn = draw_parameters(rng, self._get_posterior(), prior, draws * chains)
        T, D = self.means_.shape
        features = getattr(self, "feature_names_in_", np.arange(D))
        axes = ["component", "feature", "other_feature"]
        tree = from_dict(
            {"posterior": {k: v.reshape(chains, draws, *v.shape[1:]) for k, v in drawn.items()}},
            dims={"weights": axes[:1], "means": axes[:2], "covariances": axes},
            coords={"component": np.arange(T), "feature": features, "other_feature": features},
        )
        tree["posterior"].attrs["sampler"] = "variational posterior"
        return tree

    def to_dict(self: Any) -> dict[str, Any]:
        """Return the parameters and a digest of the fit, ready for JSON."""
        parameters = {name: _to_plain(value) for name, value in self.get_params().items()}
        try:
            json.dumps(parameters)
        except TypeError as error:
            raise CoresetFileError(
                f"A file cannot hold the mixture's parameters ({error}); give random_state as a "
                "whole number, and priors as numbers, arrays or lists."
            ) from error
        digest = hashlib.sha256(json.dumps(self.fitted_state()).encode()).hexdigest()
        return {"kind": self.kind, **parameters, "fit": f"sha256 {digest[:12]}"}

    def fitted_state(self: Any) -> dict[str, Any]:
        """Return what the fit found, ready for JSON, to the last bit."""
        shares, components = self._get_posterior()
        lower = np.tril_indices(components.mean.shape[1])
        arrays = {**components._asdict(), "chol": components.chol[:, *lower], "shares": shares}
        return {
            **{name: array.tolist() for name, array in arrays.items()},
            **{name: _to_plain(getattr(self, name)) for name in PRIORS},
            "bounds": [float(one) for one in self.lower_bounds_],
            "converged": bool(self.converged_),
            "feature_names": [str(one) for one in getattr(self, "feature_names_in_", ())],
        }

    @classmethod
    def from_state(cls, spec: Mapping[str, Any], state: Mapping[str, Any]) -> Any:
        """Return the estimator that `to_dict` and `fitted_state` describe, fitted as it was."""
        mixture: Any = cls(**{name: spec[name] for name in spec if name not in ("kind", "fit")})
        components = NormalWishart(
            **{name: np.asarray(state[name], np.float64) for name in NormalWishart._fields}
        )
        T, D = components.mean.shape
        chol = np.zeros((T, D, D))
        chol[:, *np.tril_indices(D)] = components.chol
        for name in PRIORS:
            value = state[name]
            setattr(mixture, name, np.asarray(value) if isinstance(value, list) else value)
        shares = np.asarray(state["shares"], np.float64)
        posterior = Mixture(shares, components._replace(chol=chol))
        mixture._set_fit(Fit(posterior, list(state["bounds"]), state["converged"]))
        mixture.n_features_in_ = D
        if state["feature_names"]:
            mixture.feature_names_in_ = np.asarray(state["feature_names"], dtype=object)
        return mixture

    def _become_model_of(self: Any, coreset: Coreset) -> MixtureCoreset:
        """Return the coreset with this estimator as its model; no other fit will change it."""
        parts = (coreset.indices, coreset.weights, coreset.rows, coreset.n_rows)
        self.coreset_ = MixtureCoreset(*parts, self, coreset.report)
        return self.coreset_

    def _make_own_coreset(
        self: Any,
        X: Float[np.ndarray, "N D"],
        where: Int[np.ndarray, " n"],
        gamma: Float[np.ndarray, " n"],
    ) -> Coreset:
        """Return the coreset of distinct rows X[where] that count γ times, yet without a fit."""
        began = time.perf_counter()
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        size = int(self.coreset_size)
        places, weights, numbers = draw_weighted_rows(X[where], gamma, size, seed)
        method = LightweightCoreset(components=int(self.n_components))
        if size < len(where):
            numbers["epsilon"] = theorem_3_1(size, X.shape[1], int(self.n_components), method.delta)
        if self.verbose:
            print(f"Coreset: {describe_draws(len(places), numbers)}")
        order = np.argsort(where[places])
        indices = where[places][order].astype(np.int64)
        names = getattr(self, "feature_names_in_", ())
        rows: Columns = {str(name): X[indices, j] for j, name in enumerate(names)}
        report = Report(
            described(method), seed, Status.DONE, size, None,
            [numbers], 2, 0, {"coreset": round(time.perf_counter() - began, 3)},
        )  # fmt: skip
        return Coreset(indices, weights[order], rows or {"x": X[indices]}, len(X), self, report)


def draw_weighted_rows(
    x: Float[np.ndarray, "n D"], gamma: Float[np.ndarray, " n"], size: int, seed: int
) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"], dict[str, Any]]:
    """Return M draws by (W1) of distinct rows, or all as they are if there are no more than M.

    Places, ascending; weights, cγ/(Mq) of a row drawn c times; and numbers for the report.
    """
    total = gamma.sum()
    away = x - (gamma / total) @ x
    squares = np.einsum("nd,nd->n", away, away)
    spread = float(gamma @ squares)
    each = np.full(len(x), 0.5 / total)
    each += 0.5 * squares / spread if spread > 0.0 else 0.5 / total
    q = gamma * each
    numbers: dict[str, Any] = {"repeated_picks": 0, "spread": spread}
    if total > 1.0:
        entropy = float(-(q @ np.log(each)) / np.log(total))
        numbers |= entropy_figures(entropy)
    if len(x) <= size:
        return np.arange(len(x)), gamma, numbers
    upto = np.cumsum(q)
    rng = host_rng(jax.random.key(seed))
    picks = np.searchsorted(upto, rng.random(size) * upto[-1], side="right")
    places, counts = np.unique(picks, return_counts=True)
    numbers["repeated_picks"] = size - len(places)
    return places, counts / (size * each[places]), numbers


class NumericTable(AbstractModel):
    """Columns of finite numbers, and no model of them: every potential is 0."""

    needs: tuple[str, ...] | None  # names of the columns; None for all of them

    def init(self, rows: RawRows) -> Params:
        return {"nothing": np.zeros(1)}

    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        return jnp.zeros(len(next(iter(rows.values()))))

    def log_prior(self, params: Params) -> Float[Array, ""]:
        return jnp.zeros(())

    @property
    def columns(self) -> tuple[str, ...] | None:
        return self.needs


def stack_columns(columns: Mapping[str, np.ndarray]) -> Float[np.ndarray, "n D"]:
    """Return columns of numbers side by side."""
    parts = [np.asarray(column, dtype=np.float64) for column in columns.values()]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _compute_chunk_moments(chunk: Chunk) -> Moments:
    x = stack_columns(chunk.columns)
    check_values(x, chunk.start)
    return Moments.of(x, np.ones(chunk.n_rows))


def _to_plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
