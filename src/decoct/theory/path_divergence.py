"""KL divergences as averages along the path from the coreset to all rows.

With γ(t) = (1 − t)w + t 1, h(t) = log Z(γ(t)) and D(θ) = Σ_n (1 − w_n) f_n(θ),

    h″(t) = (1 − w)ᵀG(γ(t))(1 − w) = Var_γ(t)[D],

and by Taylor's theorem with the remainder as an integral

    KL(π_w‖π) = ∫ (1 − t) h″(t) dt = ½ E h″(T),  T ~ Beta(1, 2)
    KL(π‖π_w) = ∫ t h″(t) dt       = ½ E h″(T),  T ~ Beta(2, 1)
    their sum = ∫ h″(t) dt         =   E h″(U),  U ~ Unif[0, 1]

(Campbell & Beronov 2019, Lemma 3). The factor of the first two is ½, since the densities are
2(1 − t) and 2t; the paper prints 2 in its place (Eq. 47, 48), which exact Gaussian divergences
refute. No factor belongs to the third (Eq. 49), as printed.

h″ is estimated by the sample variance of D at draws of π_γ(t), so that every estimate is ≥ 0, and
unbiased where the draws are independent and exact. Every π_γ(t) is a posterior over all N rows:
this is for tables where sampling from it is affordable. Unlike estimates from draws of π_w alone,
it needs no importance weights, and so works however far π_w is from π.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float

from decoct.data.base import Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.data.verified_rows import differs, other_table
from decoct.errors import RequestError
from decoct.models.base import AbstractModel
from decoct.runtime.precision import float64
from decoct.samplers.base import Sampler
from decoct.stats.chains import MIXED_RHAT, USABLE_KHAT
from decoct.theory.posterior_path import Kind, PosteriorPath, paired_error

FACTOR: dict[Kind, float] = {"reverse": 0.5, "forward": 0.5, "symmetrised": 1.0}
"""What E Var_γ(T)[D] is multiplied by: the mass of 1 − t, t and 1 on [0, 1]."""


@dataclass(frozen=True, eq=False)
class PathEstimate:
    """One divergence of Lemma 3.

    Attributes
    ----------
    value
        The divergence in nats, never negative.
    se
        Its Monte Carlo standard error, from the spread over the points of the path.
    times : (P,)
        T_i, in pairs that share a stratum.
    variances : (P,)
        Sample variances of D under π_γ(T_i), in nats².
    draws
        Draws at each point.
    samplers
        Names of the samplers that were used.
    khat, rhat
        The worst that a sampler reported at any point; None where none did.
    """

    value: float
    se: float
    times: Float[np.ndarray, " P"]
    variances: Float[np.ndarray, " P"]
    draws: int
    samplers: tuple[str, ...]
    khat: float | None
    rhat: float | None

    @property
    def points(self) -> int:
        return len(self.times)

    @property
    def doubt(self) -> str | None:
        """Why the draws may not be draws of π_γ(t); None if the samplers saw no reason."""
        if self.khat is not None and self.khat > USABLE_KHAT:
            return f"k-hat is {self.khat:.2f} at a point of the path: the approximation is poor"
        if self.rhat is not None and self.rhat > MIXED_RHAT:
            return f"R-hat is {self.rhat:.2f} at a point of the path: the chains have not mixed"
        return None

    def __str__(self) -> str:
        return f"{self.value:.4g} ± {self.se:.2g} nats{_doubt(self)}"


@dataclass(frozen=True, eq=False)
class PathDivergences:
    """All three divergences of Lemma 3, from separate draws, in nats.

    Attributes
    ----------
    reverse, reverse_se
        KL(π_w‖π) and its standard error.
    forward, forward_se
        KL(π‖π_w) and its standard error.
    symmetrised, symmetrised_se
        KL(π_w‖π) + KL(π‖π_w) and its standard error.
    estimates
        Where they come from, by name.
    """

    estimates: Mapping[Kind, PathEstimate]

    @property
    def reverse(self) -> float:
        return self.estimates["reverse"].value

    @property
    def reverse_se(self) -> float:
        return self.estimates["reverse"].se

    @property
    def forward(self) -> float:
        return self.estimates["forward"].value

    @property
    def forward_se(self) -> float:
        return self.estimates["forward"].se

    @property
    def symmetrised(self) -> float:
        return self.estimates["symmetrised"].value

    @property
    def symmetrised_se(self) -> float:
        return self.estimates["symmetrised"].se

    def __str__(self) -> str:
        parts = self.estimates
        doubts = {_doubt(part) for part in parts.values()} - {""}
        return (
            f"KL(coreset‖full) = {self.reverse:.4g} ± {self.reverse_se:.2g} nats, "
            f"KL(full‖coreset) = {self.forward:.4g} ± {self.forward_se:.2g}, "
            f"their sum = {self.symmetrised:.4g} ± {self.symmetrised_se:.2g} "
            f"({parts['reverse'].points} points of the path each, {parts['reverse'].draws} draws "
            f"a point){''.join(sorted(doubts))}"
        )


@runtime_checkable
class WeightedRows(Protocol):
    """What is asked of a `decoct.Coreset` here (it lives a floor above)."""

    @property
    def model(self) -> AbstractModel: ...
    @property
    def indices(self) -> Any: ...
    @property
    def weights(self) -> Any: ...
    @property
    def rows(self) -> Mapping[str, Any]: ...
    @property
    def n_rows(self) -> int: ...


@float64
def path_divergences(
    model: AbstractModel,
    rows: Rows | object,
    weights: np.ndarray,
    *,
    key: jax.Array,
    sampler: Sampler | None = None,
    points: int = 20,
    draws: int = 200,
) -> PathDivergences:
    """Estimate KL(π_w‖π), KL(π‖π_w) and their sum along the path from w to 1 (Lemma 3).

    Costs 3 ``points`` runs of the sampler on all N rows, and as many passes over them at ``draws``
    draws. The sum is estimated on its own, from a third of the points; `path_divergence` computes
    that one alone.

    Parameters
    ----------
    model
        A model of `decoct.models` or `decoct.Model`.
    rows
        All N rows, held in memory encoded: anything `decoct.rows` accepts.
    weights : (N,)
        w ≥ 0, 0 for the rows left out.
    key
        A typed JAX key.
    sampler
        Any sampler of `decoct.samplers`; None for `Automatic`: exact, else Laplace while its
        k-hat is at most 0.7, else NUTS.
    points
        Points of the path for each divergence: two in each of ``points / 2`` strata of equal
        probability.
    draws
        S, draws at each point.

    Raises
    ------
    RequestError
        The weights do not fit, ``points`` is odd or below 4, or there are fewer than two draws.
    ModelError
        The sampler fails, or a potential is not finite; the message names the row.
    RowsError
        The rows cannot be used.

    Notes
    -----
    Standard errors are those of the mean of a stratified sample with two points a stratum, from
    their differences: unbiased (squared), with ``points / 2`` degrees of freedom. Draws of a Markov
    chain with an effective size S′ make the sample variance too small by about 1/S′ − 1/S of
    itself, which no standard error shows; nor does it show how far a Laplace approximation is off.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> import decoct
    >>> from decoct.theory.path_divergence import path_divergences
    >>> rows = {"x": np.random.default_rng(0).normal(size=40)}
    >>> w = np.where(np.arange(40) < 10, 4.0, 0.0)
    >>> found = path_divergences(decoct.models.GaussianMean(1.0), rows, w, key=jax.random.key(0))
    >>> found.symmetrised >= 0.0
    True
    """
    path = PosteriorPath.of(model, rows, weights, sampler)
    return _divergences(path, key, points, draws)


@float64
def path_divergence(
    model: AbstractModel,
    rows: Rows | object,
    weights: np.ndarray,
    kind: Kind = "symmetrised",
    *,
    key: jax.Array,
    sampler: Sampler | None = None,
    points: int = 20,
    draws: int = 200,
) -> PathEstimate:
    """Estimate one divergence of Lemma 3; "symmetrised" is the paper's monitor of performance.

    Parameters
    ----------
    kind
        "reverse" for KL(π_w‖π), "forward" for KL(π‖π_w), "symmetrised" for their sum.

    Other parameters, errors and notes as for `path_divergences`.
    """
    if kind not in FACTOR:
        raise RequestError(f"kind must be one of {', '.join(FACTOR)}, not {kind!r}.")
    return _estimate(PosteriorPath.of(model, rows, weights, sampler), kind, key, points, draws)


@float64
def coreset_path_divergences(
    coreset: WeightedRows,
    rows: Rows | object,
    *,
    key: jax.Array,
    sampler: Sampler | None = None,
    points: int = 20,
    draws: int = 200,
) -> PathDivergences:
    """Estimate the divergences of Lemma 3 for a `decoct.Coreset` and the table it comes from.

    Parameters
    ----------
    coreset
        What `decoct.build` or `decoct.load` returned.
    rows
        The table it was built from.

    Other parameters, errors and notes as for `path_divergences`; a table that lacks the coreset's
    rows is a `RequestError`.
    """
    table = encoded(as_rows(rows), coreset.model)
    _require_same_rows(coreset, table)
    weights = np.zeros(table.n_rows)
    weights[coreset.indices] = coreset.weights
    return _divergences(
        PosteriorPath.of(coreset.model, table, weights, sampler), key, points, draws
    )


def _divergences(path: PosteriorPath, key: jax.Array, points: int, draws: int) -> PathDivergences:
    keys = zip(FACTOR, jax.random.split(key, len(FACTOR)), strict=True)
    return PathDivergences({kind: _estimate(path, kind, k, points, draws) for kind, k in keys})


def _estimate(
    path: PosteriorPath, kind: Kind, key: jax.Array, points: int, draws: int
) -> PathEstimate:
    times, variances, names, infos = [], [], set(), []
    for t, drawn in path.points(kind, key, points, draws):
        times.append(t)
        variances.append(path.difference(drawn.flat[:draws]).var(ddof=1))
        names.add(drawn.sampler)
        infos.append(drawn.info)
    found = np.array(variances)
    return PathEstimate(
        FACTOR[kind] * float(found.mean()),
        FACTOR[kind] * paired_error(found),
        np.array(times),
        found,
        draws,
        tuple(sorted(names)),
        _worst(infos, "khat"),
        _worst(infos, "rhat"),
    )


def _worst(infos: list[dict[str, Any]], name: str) -> float | None:
    reported = [float(info[name]) for info in infos if name in info]
    return max(reported, default=None)


def _doubt(estimate: PathEstimate) -> str:
    return "" if estimate.doubt is None else f"; doubtful: {estimate.doubt}"


def _require_same_rows(coreset: WeightedRows, table: Rows) -> None:
    if coreset.n_rows != table.n_rows:
        raise RequestError(
            f"The coreset was built from {coreset.n_rows} rows, this table has {table.n_rows}."
        )
    kept = coreset.model.encode(coreset.rows, coreset.indices)
    for name, column in table.take(coreset.indices).items():
        if not np.array_equal(column, kept[name]):
            raise RequestError(other_table(differs(name)))
