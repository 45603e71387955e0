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
unbiased where the draws are independent and exact. Times are drawn two in each of P/2 strata of
equal probability. Every π_γ(t) is a posterior over all N rows: this is for tables where sampling
from it is affordable. Unlike estimates from draws of π_w alone, it needs no importance weights, and
so works however far π_w is from π.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np
from jaxtyping import Float

from decoct.certificates.certificate import require_same_table
from decoct.coreset import Coreset
from decoct.data.arrays import ArrayRows
from decoct.data.base import Columns, Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import RequestError
from decoct.models.base import AbstractModel
from decoct.passes.potentials import Potentials
from decoct.runtime.checks import checked_whole
from decoct.runtime.precision import float64
from decoct.runtime.randomness import host_rng
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Draws, Sampler, WeightedDensity
from decoct.stats.chains import MIXED_RHAT, USABLE_KHAT
from decoct.theory.information_geometry import nonnegative_weights

Kind = Literal["reverse", "forward", "symmetrised"]
"""Names of the divergences; their times follow Beta(1, 2), Beta(2, 1) and Unif[0, 1]."""

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

    Examples
    --------
    >>> import decoct, jax, numpy as np
    >>> from decoct.theory.path_divergence import path_divergence
    >>> rows = {"x": np.random.default_rng(0).normal(size=40)}
    >>> w = np.where(np.arange(40) < 10, 4.0, 0.0)
    >>> model = decoct.models.GaussianMean(1.0)
    >>> found = path_divergence(model, rows, w, "reverse", key=jax.random.key(0), points=4)
    >>> found.value >= 0.0
    True
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
        """P, the number of points of the path."""
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
        return f"{self.value:.4g} ± {self.se:.2g} nats{_describe_doubt(self)}"


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

    Examples
    --------
    >>> import decoct, jax, numpy as np
    >>> from decoct.theory.path_divergence import path_divergences
    >>> rows = {"x": np.random.default_rng(0).normal(size=40)}
    >>> w = np.where(np.arange(40) < 10, 4.0, 0.0)
    >>> model = decoct.models.GaussianMean(1.0)
    >>> found = path_divergences(model, rows, w, key=jax.random.key(0), points=4)
    >>> found.symmetrised >= 0.0
    True
    """

    reverse: float
    reverse_se: float
    forward: float
    forward_se: float
    symmetrised: float
    symmetrised_se: float
    estimates: Mapping[Kind, PathEstimate]

    def __str__(self) -> str:
        one = self.estimates["reverse"]
        doubts = {_describe_doubt(each) for each in self.estimates.values()}
        return (
            f"KL(coreset‖full) = {self.reverse:.4g} ± {self.reverse_se:.2g} nats, "
            f"KL(full‖coreset) = {self.forward:.4g} ± {self.forward_se:.2g}, "
            f"their sum = {self.symmetrised:.4g} ± {self.symmetrised_se:.2g} "
            f"({one.points} points of the path each, {one.draws} draws a point)"
            f"{''.join(sorted(doubts))}"
        )


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
        All N rows, in memory encoded: anything `decoct.rows` accepts.
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

    Returns
    -------
    PathDivergences
        All three divergences in nats, with their standard errors.

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
    return _estimate_all(path, key, points, draws)


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
    model, rows, weights, key, sampler, points, draws
        As for `path_divergences`, like errors and notes.

    Returns
    -------
    PathEstimate
        The divergence in nats, with its standard error.

    Raises
    ------
    RequestError
        ``kind`` is none of the three; and as for `path_divergences`.

    Examples
    --------
    >>> import decoct, jax, numpy as np
    >>> from decoct.theory.path_divergence import path_divergence
    >>> rows = {"x": np.random.default_rng(0).normal(size=40)}
    >>> w = np.where(np.arange(40) < 10, 4.0, 0.0)
    >>> model = decoct.models.GaussianMean(1.0)
    >>> found = path_divergence(model, rows, w, "reverse", key=jax.random.key(0), points=4)
    >>> found.value >= 0.0
    True
    """
    if kind not in FACTOR:
        raise RequestError(f"kind must be one of {', '.join(FACTOR)}, not {kind!r}.")
    return _estimate(PosteriorPath.of(model, rows, weights, sampler), kind, key, points, draws)


@float64
def coreset_path_divergences(
    coreset: Coreset,
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
    key, sampler, points, draws
        As for `path_divergences`, like errors and notes.

    Returns
    -------
    PathDivergences
        All three divergences in nats, with their standard errors.

    Raises
    ------
    CoresetFileError
        The table is not the one the coreset was built from.

    Examples
    --------
    >>> import decoct, jax, numpy as np
    >>> from decoct.theory import coreset_path_divergences
    >>> rows = {"x": np.random.default_rng(0).normal(size=40)}
    >>> coreset = decoct.build(decoct.models.GaussianMean(1.0), rows, size=5)
    >>> found = coreset_path_divergences(coreset, rows, key=jax.random.key(0), points=4)
    >>> bool(found.reverse >= 0.0)
    True
    """
    table = require_same_table(coreset, rows)
    weights = np.zeros(coreset.n_rows)
    weights[coreset.indices] = coreset.weights
    path = PosteriorPath.of(coreset.model, table, weights, sampler)
    return _estimate_all(path, key, points, draws)


def _estimate_all(path: PosteriorPath, key: jax.Array, points: int, draws: int) -> PathDivergences:
    keys = zip(FACTOR, jax.random.split(key, len(FACTOR)), strict=True)
    found: dict[Kind, PathEstimate] = {
        kind: _estimate(path, kind, k, points, draws) for kind, k in keys
    }
    back, ahead, both = found["reverse"], found["forward"], found["symmetrised"]
    return PathDivergences(back.value, back.se, ahead.value, ahead.se, both.value, both.se, found)


def _estimate(
    path: PosteriorPath, kind: Kind, key: jax.Array, points: int, draws: int
) -> PathEstimate:
    times, variances, drawn = [], [], []
    for t, here in path.points(kind, key, points, draws):
        times.append(t)
        variances.append(path.difference(here.flat[:draws]).var(ddof=1))
        drawn.append(here)
    found = np.array(variances)
    khat, rhat = (
        max((float(one.info[name]) for one in drawn if name in one.info), default=None)
        for name in ("khat", "rhat")
    )
    return PathEstimate(
        FACTOR[kind] * float(found.mean()),
        FACTOR[kind] * paired_error(found),
        np.array(times),
        found,
        draws,
        tuple(sorted({one.sampler for one in drawn})),
        khat,
        rhat,
    )


def _describe_doubt(estimate: PathEstimate) -> str:
    return "" if estimate.doubt is None else f"; doubtful: {estimate.doubt}"


@dataclass(frozen=True, eq=False)
class PosteriorPath:
    """The posteriors between a coreset and all rows, γ(t) = (1 − t)w + t 1."""

    potentials: Potentials
    columns: Columns
    weights: Float[np.ndarray, " N"]
    kept: Columns
    sampler: Sampler

    @classmethod
    def of(
        cls,
        model: AbstractModel,
        rows: Rows | object,
        weights: np.ndarray,
        sampler: Sampler | None,
    ) -> PosteriorPath:
        table = encoded(as_rows(rows), model)
        weights = nonnegative_weights(weights, table.n_rows)
        columns = table.take(np.arange(table.n_rows))
        kept = np.flatnonzero(weights)
        return cls(
            Potentials(model, ArrayRows(columns)),
            columns,
            weights,
            {name: column[kept] for name, column in columns.items()},
            Automatic() if sampler is None else sampler,
        )

    def points(
        self, kind: Kind, key: jax.Array, points: int, draws: int
    ) -> Iterator[tuple[float, Draws]]:
        """Yield each time and draws of π_γ(t)."""
        checked_whole("draws", draws, 2)
        time_key, draw_key = jax.random.split(key)
        for i, t in enumerate(path_times(kind, points, host_rng(time_key))):
            weights = (1.0 - t) * self.weights + t
            density = WeightedDensity.of(self.potentials.model, self.columns, weights)
            yield float(t), self.sampler.draw(jax.random.fold_in(draw_key, i), density, draws)

    def difference(self, z: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " S"]:
        """Return D = Σ (1 − w_n) f_n at draws."""
        totals = self.potentials.totals(z)
        weights = self.weights[self.weights > 0.0]
        return totals - weights @ self.potentials.vectors(self.kept, z) if len(weights) else totals

    def vectors(self, z: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "N S"]:
        return self.potentials.vectors(self.columns, z)


def path_times(kind: Kind, points: int, rng: np.random.Generator) -> Float[np.ndarray, " P"]:
    """Return times of Beta(1, 2), Beta(2, 1) or Unif[0, 1], two in each of P/2 equal strata.

    Each is uniform in its stratum of the distribution function, so that averages over the times
    are unbiased.
    """
    if points < 4 or points % 2:
        raise RequestError(
            f"points is {points}; an even number is wanted, at least 4: two in each stratum."
        )
    strata = points // 2
    u = ((np.arange(strata)[:, None] + rng.random((strata, 2))) / strata).ravel()
    if kind == "reverse":
        return 1.0 - np.sqrt(1.0 - u)
    return np.sqrt(u) if kind == "forward" else u


def paired_error(values: Float[np.ndarray, " P"]) -> float:
    """Return the standard error of the mean of a stratified sample, two values a stratum.

    √(Σ_k (a_k − b_k)²/4)/K over K strata; its square is unbiased.
    """
    differences = values[0::2] - values[1::2]
    return float(np.linalg.norm(differences)) / len(values)
