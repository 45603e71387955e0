"""Uniform coresets: rows drawn by sensitivity; weights correct for the sampling probabilities.

The construction of Huggins, Campbell & Broderick (2016), as Campbell & Broderick (2019, §2.3) use
it. The sensitivity of row n over a set Θ of parameters, with f_n ≤ 0,

    σ_n = sup_{θ∈Θ} f_n(θ)/Σ_m f_m(θ),    σ = Σσ_n,

or an upper bound m_n ≥ Nσ_n, sets the odds σ_n/σ of M draws with replacement; a row drawn M_n times
has the weight W_n = (σ/σ_n)(M_n/M) (Eq. 2.5), so that E[ΣW_n f_n] = Σf_n. Known in closed form for

- `GaussianMean`, Θ = R^d: Nσ_n = 1 + ‖y_n − ȳ‖²/((1/N)Σ‖y_m‖² − ‖ȳ‖²) for whitened rows y
  (Eq. 6.3, derived in Appendix C; exact, without the constant of f_n);
- `LogisticRegression`, Θ = {‖θ‖ ≤ R}: with Z_n = y_n x_n in clusters G_1..G_K with the means Z̄_k,
  and ^(−n) for a cluster without row n,

      m_n = N / (1 + Σ_k |G_k^(−n)| exp(−R ‖Z̄_k^(−n) − Z_n‖))    (Huggins et al. 2016, Lemma 3.1),

  a bound for any clustering. R is given, or a/√((1/N)Σ‖Z_n − Z̄_k(n)‖²): a is the length of the
  largest θ in units of the root mean square distance to the cluster means.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.cluster.vq import kmeans
from scipy.linalg import solve_triangular

from decoct.constructions.base import Chosen, OneStep, Plan, Problem, register
from decoct.constructions.sampling.weighted_sampling import (
    CHUNK,
    Spread,
    drawn,
    row_draws,
    sampling_bytes,
    squares_from,
)
from decoct.data.base import Chunk
from decoct.errors import ModelError, RequestError
from decoct.models.base import AbstractModel
from decoct.models.gaussian import GaussianMean
from decoct.models.logistic import LogisticRegression
from decoct.runtime.checks import check_whole, is_positive
from decoct.runtime.randomness import host_rng, uniform_sample


class Sensitivities(NamedTuple):
    """How much each row can matter."""

    values: Float[np.ndarray, " N"]  # Nσ_n or its upper bound m_n, between 1 and N
    numbers: dict[str, Any]  # for the report


@dataclass(frozen=True)
class Sensitivity(OneStep):
    """The uniform coreset: rows drawn with replacement by their sensitivity.

    The M draws of a smaller size are the first M of a larger one. Takes two passes over the data,
    and memory for M rows, whatever their number.

    Parameters
    ----------
    clusters
        K, the most clusters of the y_n x_n; logistic regression only. The papers' is 4.
    scale
        a, the radius of the parameter ball in units of 1/(root mean square distance of the y_n x_n
        to their cluster's mean); logistic regression only. The papers' is 3.
    radius
        R itself, in place of ``scale``; in units of the coefficients.

    Raises
    ------
    RequestError
        ``clusters`` below 1 or above the number of rows, ``scale`` or ``radius`` not positive.
    ModelError
        The model's sensitivities are not known.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> method = decoct.constructions.Sensitivity()
    >>> decoct.build(model, rows, size=10, method=method).size <= 10
    True
    """

    clusters: int = 4
    scale: float = 3.0
    radius: float | None = None

    def __post_init__(self) -> None:
        check_whole(self, clusters=1)
        for name, value in (("scale", self.scale), ("radius", self.radius)):
            if value is not None and not is_positive(value):
                raise RequestError(f"{name} must be positive and finite, not {value}.")

    def choose(self, key: jax.Array, problem: Problem) -> Chosen:
        for_clusters, for_picks = jax.random.split(key)
        potentials, rows = problem.potentials, problem.potentials.rows
        bound, figures = self._bound(for_clusters, problem)
        draws = row_draws(for_picks, rows, bound, problem.size, size=CHUNK)
        potentials.counts.passes += 1
        chosen = draws.selections(rows, problem.sizes)
        numbers = {
            "repeated_picks": problem.size - chosen[-1].size,
            "mean_sensitivity": draws.total / problem.n_rows,
            **figures,
        }
        return drawn(chosen, numbers)

    def plan(self, problem: Problem) -> Plan:
        """Two passes that read the rows; no potential is evaluated."""
        return Plan((2, 2), (0.0, 0.0), sampling_bytes(problem.size))

    def sensitivities(self, key: jax.Array, problem: Problem) -> Sensitivities:
        """Return Nσ_n or m_n of every row, in two passes; a build itself never holds them.

        The key seeds the clustering.
        """
        bound, numbers = self._bound(key, problem)
        # of lists of one chunk each, + makes that of all rows
        values = _pass_over(problem, lambda chunk: [bound(chunk)])
        return Sensitivities(np.concatenate(values), numbers)

    def _bound(self, key: jax.Array, problem: Problem) -> tuple[_Bound, dict[str, Any]]:
        """Return what bounds a chunk's Nσ_n, and figures for the report, in one pass."""
        model = _known(problem.potentials.model)
        if isinstance(model, GaussianMean):
            chol = np.linalg.cholesky(model.covariance)
            spread = _pass_over(problem, _spread_of, chol)
            return partial(_bound_gaussian, chol=chol, spread=spread), {}
        if self.clusters > problem.n_rows:
            raise RequestError(
                f"clusters is {self.clusters} but the table has {problem.n_rows} rows; ask for "
                "fewer clusters."
            )
        centres = _centres(key, problem, self.clusters)
        found, N = _pass_over(problem, _cluster, centres), problem.n_rows
        counts = found.counts
        means = found.sums / np.maximum(counts, 1)[:, None]  # an empty cluster counts for nothing
        within = (found.squares - counts * np.square(means - centres).sum(axis=1)).sum()
        spread = float(np.sqrt(max(0.0, within) / N))  # √((1/N)Σ‖Z_n − Z̄_k(n)‖²)
        touching = 1e-12 * float(np.sqrt(found.total / N))  # distances below are rounding
        radius = self.radius or (self.scale / spread if spread > touching else np.inf)
        bound = partial(
            _bound_logistic,
            centres=centres,
            counts=counts,
            means=means,
            radius=radius,
            touching=touching,
        )
        return bound, {
            "clusters": int((counts > 0).sum()),
            "radius": float(radius) if np.isfinite(radius) else None,
        }


def _known(model: AbstractModel) -> GaussianMean | LogisticRegression:
    """Return the model behind a formula, or say for which models sensitivities are known."""
    base = getattr(model, "base", model)  # a formula's own
    if isinstance(base, GaussianMean | LogisticRegression):
        return base
    raise ModelError(
        f"Sensitivity knows how much a row can matter for GaussianMean and LogisticRegression, "
        f"not for {type(base).__name__}; use IteratedHilbert or Hilbert, which fit any model."
    )


def _pass_over(problem: Problem, fn: Callable[..., Any], *broadcast: object) -> Any:
    """Sum a function of the chunks in one counted pass."""
    potentials = problem.potentials
    result = potentials.rows.map_reduce(fn, operator.add, *broadcast, size=CHUNK)
    potentials.counts.passes += 1
    return result


def _spread_of(chunk: Chunk, chol: Float[np.ndarray, "d d"]) -> Spread:
    return Spread.of(_white(chol, chunk))


def _bound_gaussian(
    chunk: Chunk, chol: Float[np.ndarray, "d d"], spread: Spread
) -> Float[np.ndarray, " n"]:
    """Return Nσ_n = 1 + ‖y_n − ȳ‖²/mean_m ‖y_m − ȳ‖² (Eq. 6.3), y whitened."""
    typical = spread.squares / spread.count
    if typical == 0.0:  # all rows are one row: each can matter as much as its share
        return np.ones(chunk.n_rows)
    return 1.0 + squares_from(_white(chol, chunk), spread.mean) / typical


def _white(chol: Float[np.ndarray, "d d"], chunk: Chunk) -> Float[np.ndarray, "n d"]:
    return np.ascontiguousarray(solve_triangular(chol, chunk.columns["x"].T, lower=True).T)


def _centres(key: jax.Array, problem: Problem, clusters: int) -> Float[np.ndarray, "K D"]:
    """Return at most ``clusters`` centres: k-means of a uniform subsample of the y_n x_n."""
    sample_key, start_key = jax.random.split(key)
    # any clustering gives a valid bound
    rows = uniform_sample(sample_key, problem.n_rows, 1000 * clusters)
    signed = _sign(problem.potentials.rows.take(rows))
    distinct = np.unique(signed, axis=0)
    if len(distinct) <= clusters:
        return distinct
    # distinct starts: each a point drawn by its squared distance from those before (k-means++)
    rng = host_rng(start_key)
    starts = [int(rng.integers(len(signed)))]
    nearest = np.full(len(signed), np.inf)
    while len(starts) < clusters:
        nearest = np.minimum(nearest, squares_from(signed, signed[starts[-1]]))
        upto = np.cumsum(nearest)
        starts.append(int(np.searchsorted(upto, rng.random() * upto[-1], side="right")))
    return kmeans(signed, signed[starts])[0]


def _sign(columns: dict[str, np.ndarray]) -> Float[np.ndarray, "n D"]:
    """Return Z_n = y_n x_n; y is ±1 and x has the intercept's ones after encoding."""
    return np.ascontiguousarray(columns["x"] * columns["y"][:, None])


def _distances(
    points: Float[np.ndarray, "n D"], centres: Float[np.ndarray, "K D"]
) -> Float[np.ndarray, "K n"]:
    """Return ‖Z_n − c_k‖, for each row alike however the rows are cut into chunks."""
    # A matrix product would round a row by its place in the block, and ties between clusters,
    # which tables of counts have, would fall by chance.
    return np.stack([np.sqrt(squares_from(points, centre)) for centre in centres])


@dataclass(frozen=True)
class _Clusters:
    """|G_k|, ΣZ and Σ‖Z − c_k‖² of every cluster, and Σ‖Z‖²."""

    counts: Int[np.ndarray, " K"]
    sums: Float[np.ndarray, "K D"]
    squares: Float[np.ndarray, " K"]
    total: float

    def __add__(self, other: _Clusters) -> _Clusters:
        return _Clusters(*map(operator.add, vars(self).values(), vars(other).values()))


def _cluster(chunk: Chunk, centres: Float[np.ndarray, "K D"]) -> _Clusters:
    """Put each row into the cluster of its nearest centre."""
    signed = _sign(chunk.columns)
    distances = _distances(signed, centres)
    member = np.arange(len(centres))[:, None] == distances.argmin(axis=0)
    return _Clusters(
        member.sum(axis=1),
        member.astype(np.float64) @ signed,
        np.where(member, np.square(distances), 0.0).sum(axis=1),
        float(np.square(signed).sum()),
    )


def _bound_logistic(
    chunk: Chunk,
    centres: Float[np.ndarray, "K D"],
    counts: Int[np.ndarray, " K"],
    means: Float[np.ndarray, "K D"],
    radius: float,
    touching: float,
) -> Float[np.ndarray, " n"]:
    """Return m_n (Huggins et al. 2016, Lemma 3.1)."""
    signed = _sign(chunk.columns)
    own = np.arange(len(centres))[:, None] == _distances(signed, centres).argmin(axis=0)
    others = counts[:, None] - own
    # Z̄^(−n) − Z_n = |G|/(|G| − 1) (Z̄ − Z_n) for the row's own cluster
    inflation = np.where(own, counts[:, None] / np.maximum(others, 1), 1.0)
    distances = inflation * _distances(signed, means)
    reach = np.zeros_like(distances)
    np.multiply(radius, distances, out=reach, where=distances > touching)
    return counts.sum() / (1.0 + (others * np.exp(-reach)).sum(axis=0))


_Bound = Callable[[Chunk], Float[np.ndarray, " n"]]
"""Function of a chunk that returns Nσ_n of its rows, or a bound."""


register("sensitivity", Sensitivity, compared_as="sensitivity")
