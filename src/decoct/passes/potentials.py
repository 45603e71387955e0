"""Model × rows at draws of θ: the only code that passes over the data.

One pass gives the totals Σ_n f_n(θ_s) at the draws, the norms ‖g_n‖ of the rows' vectors there
(`passes.chunk_sums`) and a pool of candidate rows; the N×S matrix is never stored.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from decoct.data.arrays import ArrayRows
from decoct.data.base import Chunk, Columns, Rows, columns_length
from decoct.errors import PotentialError
from decoct.models.base import AbstractModel, is_of_functions
from decoct.models.parameters import ParameterSpace
from decoct.passes import chunk_sums, expansions, model_checks
from decoct.passes.chunk_sums import LEAST_PADDED, Embedding, as_embedding
from decoct.passes.expansions import BLOCK, Expansion, to_second_order
from decoct.passes.pools import EMPTY_POOL, Pool, Reservoir, merge_pools
from decoct.runtime.precision import compile_quickly, float64
from decoct.runtime.progress import count_rows_of
from decoct.stats.summation import Associative

POTENTIALS_PER_CHUNK = 4_100_000
"""Potentials in memory at once: 33 MB, the most that `runtime.resources` keeps for the next chunk.
Smaller chunks are no faster: each costs a millisecond, however small."""

MOST_ROWS = 65_536
"""Rows of a chunk."""

DIRECTIONS = 8
"""Directions that fewer are padded to, so that one program serves them."""


class Curvature(NamedTuple):
    """Value, gradient and Hessian of Σ w_n f_n at one point.

    Then Σ w_n ∂³f_n/∂φ_j³ and those of pairs (`Predictors.thirds`), 0 where they are not known.
    """

    value: float
    gradient: Float[np.ndarray, " d"]
    hessian: Float[np.ndarray, "d d"]
    thirds: Float[np.ndarray, "*T"] = np.zeros(())

    @classmethod
    def of(cls, parts: Iterable[Any]) -> Curvature:
        """Return them as NumPy's, from NumPy or JAX."""
        value, *arrays = parts
        return cls(float(value), *map(np.asarray, arrays))

    def at(self, delta: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " S"]:
        """Return the quadratic with these derivatives, δ away from the point."""
        bent = ((delta @ self.hessian) * delta).sum(axis=1)
        return self.value + delta @ self.gradient + 0.5 * bent

    def moved(self, delta: Float[np.ndarray, " d"]) -> Curvature:
        """Return those of the same quadratic at another point, δ away."""
        value = self.value + self.gradient @ delta + 0.5 * delta @ self.hessian @ delta
        gradient = self.gradient + self.hessian @ delta
        return self._replace(value=float(value), gradient=gradient)

    def scaled(self, factor: float) -> Curvature:
        """Return those of a multiple of the sum."""
        return Curvature.of(factor * part for part in self)

    def plus(self, other: Curvature) -> Curvature:
        """Return those of the sum of two functions."""
        return Curvature.of(one + its for one, its in zip(self, other, strict=True))


class PassResult(NamedTuple):
    """Result of a pass over the data, exact or estimated from a subsample."""

    totals: Float[np.ndarray, " S"]  # Σ_n f_n(θ_s) over all N rows, centred if they are estimated
    pool: Pool = EMPTY_POOL  # candidate rows; none where none were asked for
    error: float = 0.0  # ½Var in nats of the error of the totals; 0 where they are exact
    exact_draws: int = 0  # draws at which all rows were evaluated
    is_corrected: bool = True  # whether control variates made the estimate better
    norm_sum: float = np.nan  # Σ_n ‖g_n‖ of an exact pass, from the first `NORM_DRAWS` draws


@dataclass
class Counts:
    """Cost so far: passes over all rows, and potentials evaluated."""

    passes: int = 0
    evaluations: int = 0


@dataclass
class Potentials:
    """The potentials f_n(θ) of a model over rows, wherever the rows live."""

    model: AbstractModel
    rows: Rows  # encoded by the model already
    counts: Counts = field(default_factory=Counts)
    numbers: Int[np.ndarray, " N"] | None = None  # of the rows in errors; None: their places

    def __post_init__(self) -> None:
        examples = self.rows.take(np.arange(min(model_checks.EXAMPLES, self.n_rows)))
        first = self.first = {name: column[:1] for name, column in examples.items()}
        self.initial = self.model.init(first)
        self.space = ParameterSpace.of(self.initial)
        model_checks.check_shape(self.model, self.space, first)
        self.likelihood_space = ParameterSpace.of(self.model.to_likelihood_params(self.initial))
        arrays = {name: jnp.asarray(column) for name, column in first.items()}
        self.is_regression = self.model.design_matrix(arrays) is not None
        self.predictors = expansions.predictor_shape(*self._likelihood, examples)
        model_checks.check_start(self.model, self.space, self.initial)
        if is_of_functions(self.model.to_dict()):
            model_checks.check_rows_apart(self.model, self.space, self.initial, examples)

    @property
    def n_rows(self) -> int:
        return self.rows.n_rows

    @property
    def dim(self) -> int:
        """Number of parameters θ."""
        return self.space.dim

    @property
    def likelihood_dim(self) -> int:
        """d, the number of likelihood parameters φ, in which expansions and sites are."""
        return self.likelihood_space.dim

    @property
    def has_predictors(self) -> bool:
        """Whether potentials depend on φ through a few linear predictors."""
        return self.predictors is not None

    @property
    def has_likelihood_params(self) -> bool:
        """Whether φ is anything else than θ."""
        return self.model.to_likelihood_params(self.initial) is not self.initial

    @float64
    def to_likelihood(self, z: Float[np.ndarray, "S D"]) -> Float[np.ndarray, "S d"]:
        """Return φ(θ_s), flat."""
        if not self.has_likelihood_params:
            return np.asarray(z, dtype=np.float64)
        return np.asarray(to_likelihood(self.model, self.space, jnp.asarray(z)))

    def restrict(self, some: Pool) -> Potentials:
        """Return the potentials of some of the rows; their evaluations are counted here.

        Passes over them do not count as passes; errors use the row numbers of this table.
        """
        rows, numbers = ArrayRows(some.rows), self.named(some.indices)
        return Potentials(self.model, rows, self.counts, numbers)

    @property
    def _likelihood(self) -> tuple[AbstractModel, ParameterSpace]:
        """The model, and the shape of the φ that its likelihood takes."""
        return self.model, self.likelihood_space

    def named(self, places: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the row numbers that errors use for these places."""
        return places if self.numbers is None else self.numbers[places]

    def totals(
        self, at: Float[np.ndarray, "S d"] | Embedding, finite: int | None = None
    ) -> Float[np.ndarray, " S"]:
        """Return Σ_n f_n(θ_s) over all rows, or Σ_n of an embedding's coordinates, in one pass.

        A total that is not finite is an error that names the row; with ``finite``, only among the
        first so many, as later points are no draws.
        """
        fn = chunk_sums.TotalsOf(*self._likelihood, finite)
        return self._pass_over(fn, self._embedding(at)).rounded()

    def one_pass(
        self,
        at: Float[np.ndarray, "S d"] | Embedding,
        pool_size: int,
        key: jax.Array,
        expansion: Expansion | None = None,
    ) -> PassResult:
        """Return exact totals, Σ_n ‖g_n‖ and a pool of ``pool_size`` candidate rows.

        Half of its places go to the smallest E_n/‖g_n‖², half to the smallest E'_n, with E, E'
        standard exponential numbers of the key and the global row number alone: to rows drawn
        without replacement by ‖g_n‖², and uniformly (Efraimidis & Spirakis 2006). ‖g_n‖² is S times
        the posterior variance of f_n, for smooth potentials the statistical leverage of the row, so
        that the pool has rows for a coefficient that only few inform. With an ``expansion`` the
        norms are those of the remainders f_n − q_n.
        """
        places = self.n_rows if pool_size >= self.n_rows else max(1, pool_size // 2)
        fn = chunk_sums.PassOf(*self._likelihood, places)
        partial = self._pass_over(fn, self._embedding(at), key, expansion)
        totals, norm_sum = partial.rounded()
        pool = merge_pools(*(one.pool for one in partial.reservoirs))
        return PassResult(totals, pool, exact_draws=len(totals), norm_sum=float(norm_sum))

    def sampling_pass(
        self,
        at: Float[np.ndarray, "S d"],
        size: int,
        key: jax.Array,
        expansion: Expansion,
        scale: float,
        cut: float,
    ) -> tuple[Float[np.ndarray, " S"], Curvature, tuple[Reservoir, Reservoir]]:
        """Return exact totals at a few draws, Σ_n q_n, and two reservoirs of ``size`` rows.

        Scores from ``cut`` on are left out. The odds are 1/10 + 9/10 √Var(r_n)/scale, with Var(r_n)
        as in `remainder_deviations`; see `passes.row_samples`. The caller checks that the sums are
        finite.
        """
        places = min(size, self.n_rows)
        fn = chunk_sums.SampleOf(*self._likelihood, places, scale, cut, self.has_predictors)
        cost = self._sampling_cost(expansion, len(at))
        partial = self._pass_over(fn, self._embedding(at), key, expansion, evaluations=cost)
        totals, *sums = partial.rounded()
        return totals, Curvature.of(sums), partial.reservoirs

    def by_row(self, at: Float[np.ndarray, "S d"], statistic: Any) -> tuple[np.ndarray, ...]:
        """Return Σ_n f_n at the draws, and a `by_row.RowStatistic` of every row, in one pass."""
        from decoct.passes.by_row import ByRowOf

        fn = ByRowOf(*self._likelihood, statistic)
        return self._pass_over(fn, self._embedding(at)).joined()

    @float64
    def remainder_deviations(
        self, rows: Columns, at: Expansion, draws: Float[np.ndarray, "S d"]
    ) -> Float[np.ndarray, " n"]:
        """Return √Var(f_n − q_n) of a few encoded rows.

        Under the Gaussian of the expansion, or over the draws where there is no linear predictor.
        """
        n, few = columns_length(rows), draws[:0] if self.has_predictors else draws
        # the program of `sampling_pass` serves again
        size = self._chunk_size(len(few), self._sampling_cost(at, len(few)))
        columns, mask = chunk_sums.pad(Chunk(0, rows), size, whole=True)
        few = jnp.asarray(self.to_likelihood(few))
        found = expansions.sums_and_variances(*self._likelihood, at, columns, mask, few)
        self.counts.evaluations += n * self._expansion_cost(at)
        return np.sqrt(np.asarray(found[1])[:n])

    @float64
    def totals_of(
        self, rows: Columns, weights: Float[np.ndarray, " n"], draws: Float[np.ndarray, "S d"]
    ) -> Float[np.ndarray, " S"]:
        """Return Σ w_n f_n(θ_s) over a few encoded rows."""
        at = self._embedding(draws)
        kernel = lambda *given: [chunk_sums.chunk_totals(*given)]  # noqa: E731
        return self._sum(kernel, rows, weights, at.size, at, [np.zeros(at.size)])[0]

    @float64
    def vectors(
        self, rows: Columns, at: Float[np.ndarray, "S d"] | Embedding
    ) -> Float[np.ndarray, "n S"]:
        """Return the potentials of a few encoded rows at the draws, not centred."""
        at = self._embedding(at)
        return self._of_rows(chunk_sums.row_potentials, rows, at.size, at)

    @float64
    def all_vectors(
        self, at: Float[np.ndarray, "S d"] | Embedding, dtype: type[np.floating] = np.float64
    ) -> tuple[Float[np.ndarray, "N S"], Float[np.ndarray, " S"]]:
        """Return the embedded vectors of *every* row, as ``dtype``, and their sum, in one pass.

        The only N×S array: for constructions whose pool is the whole table.
        """
        at = self._embedding(at)
        size = chunk_rows(at.size)
        count = count_rows_of(self)
        vectors, total = np.empty((self.n_rows, at.size), dtype=dtype), np.zeros(at.size)
        with closing(self.rows.chunks(size)) as chunks, _renumber(self.numbers):
            for chunk in chunks:
                padded, _ = chunk_sums.pad(chunk, size)
                values = np.asarray(chunk_sums.row_potentials(*self._likelihood, at, padded))
                values = at.vectors(values[: chunk.n_rows])
                part = values.sum(axis=0)
                chunk_sums.require_finite(*self._likelihood, chunk, at, part)
                vectors[chunk.start : chunk.start + chunk.n_rows] = values
                total += part
                count(chunk.n_rows)
        self.counts.passes += 1
        self.counts.evaluations += self.n_rows * at.size
        return vectors, total

    @float64
    def curvature(self, z: Float[np.ndarray, " d"], strict: bool = True) -> Curvature:
        """Return value, gradient and Hessian of Σ_n f_n in θ at ``z``, in one pass.

        With ``strict`` a value that is not finite is an error that names the row.
        """
        at = Expansion.taylor(self.to_likelihood(np.asarray(z)[None])[0])
        return self._in_parameters(self.expand(at, strict), z)

    @float64
    def curvature_of(self, some: Pool, z: Float[np.ndarray, " d"]) -> Curvature:
        """Return value, gradient and Hessian in θ of the sum over a few encoded rows at ``z``."""
        at = Expansion.taylor(self.to_likelihood(np.asarray(z)[None])[0])
        found = self.expand_rows(some.rows, np.ones(len(some.indices)), at)
        with _renumber(self.named(some.indices)):
            whole, draw = Chunk(0, some.rows), as_embedding(at.centre[None])
            chunk_sums.require_finite(*self._likelihood, whole, draw, found.value)
        return self._in_parameters(found, z)

    def _in_parameters(self, found: Curvature, z: Float[np.ndarray, " d"]) -> Curvature:
        """Return value, gradient and Hessian in θ of what has these in φ at φ(z)."""
        if not self.has_likelihood_params:
            return Curvature(*found[:3])
        return Curvature.of(compose(self.model, self.space, found, jnp.asarray(z)))

    def value_and_gradient(
        self, phi: Float[np.ndarray, " d"]
    ) -> tuple[float, Float[np.ndarray, " d"]]:
        """Return Σ_n f_n and its gradient at φ, in one pass; not finite where a row's is not."""
        fn = chunk_sums.GradientOf(*self._likelihood)
        value, gradient = self._pass_over(fn, as_embedding(phi[None]), evaluations=2).rounded()
        return float(value), gradient

    def expand(self, at: Expansion, strict: bool = True) -> Curvature:
        """Return Σ_n q_n over all rows, in one pass; ``strict`` as for `curvature`."""
        fn = chunk_sums.ExpansionOf(*self._likelihood, strict)
        centre = as_embedding(np.asarray(at.centre)[None])
        cost = self._expansion_cost(at)
        return Curvature.of(self._pass_over(fn, centre, at, evaluations=cost).rounded())

    @float64
    def row_not_finite(self, at: Expansion) -> int | None:
        """Return the first row whose second derivatives there are not finite, in one pass."""
        fn = chunk_sums.NotFiniteOf(*self._likelihood)
        centre = as_embedding(np.asarray(at.centre)[None])
        return min(self._pass_over(fn, centre, at, evaluations=at.points), default=None)

    @float64
    def expand_rows(
        self, rows: Columns, weights: Float[np.ndarray, " n"], at: Expansion
    ) -> Curvature:
        """Return Σ w_n q_n over a few encoded rows."""
        d, cost = self.likelihood_dim, self._expansion_cost(at)
        pairs = () if self.predictors is None else self.predictors.pairs
        none = 0.0, np.zeros(d), np.zeros((d, d)), np.zeros((1 + 2 * len(pairs)) * d)
        kernel = expansions.expand_chunk
        return Curvature.of(self._sum(kernel, rows, weights, cost, at, none))

    @float64
    def quadratics(
        self,
        rows: Columns,
        at: Expansion,
        draws: Float[np.ndarray, "S D"],
        basis: Float[np.ndarray, "S T"] | None = None,
    ) -> Float[np.ndarray, "n S"]:
        """Return q_n − c_n of a few encoded rows at the draws.

        With terms of third order that have a ``basis`` (`Skewness.basis`).
        """
        delta = self.to_likelihood(draws) - at.centre
        basis, cost = np.zeros(delta.shape) if basis is None else basis, len(delta) * at.points
        return self._of_rows(expansions.quadratics_at, rows, cost, at, delta, basis)

    @float64
    def picks(self, rows: Columns) -> Int[np.ndarray, "n K"]:
        """Return the places in φ of the effects that each of a few encoded rows picks."""
        return self._of_rows(expansions.picked_by, rows, 1, None)

    @cached_property
    def pair_offsets(self) -> tuple[int, ...]:
        """j − i of each pair of effects (i, j) that rows pick by the same index."""
        if self.predictors is None or not self.predictors.pairs:
            return ()
        picks = self.picks(self.rows.take(np.arange(1)))[0]
        return tuple(int(picks[q] - picks[p]) for p, q in self.predictors.pairs)

    @float64
    def bends(
        self, rows: Columns, at: Expansion, directions: Float[np.ndarray, "k d"]
    ) -> Float[np.ndarray, "n k"]:
        """Return vᵀH_nv of a few encoded rows for each direction v."""
        k = len(directions)
        padded = np.concatenate([directions, np.zeros((-k % DIRECTIONS, self.likelihood_dim))])
        cost = len(padded) * at.points
        return self._of_rows(expansions.bends_along, rows, cost, at, padded)[:, :k]

    def _sum(
        self, kernel: Any, rows: Columns, weights: np.ndarray, cost: int, at: Any, none: Any
    ) -> list[Any]:
        """Return what a kernel adds up over a few weighted rows; ``none`` is that of no row."""
        size, parts = chunk_rows(cost), []
        for piece in _pieces(rows, size):
            padded, mask = chunk_sums.pad(piece, size)
            part = np.zeros(len(mask))
            part[: piece.n_rows] = weights[piece.start :][: piece.n_rows]
            sums = kernel(*self._likelihood, at, padded, jax.device_put(part))
            parts.append(chunk_sums.Partial.of(sums))
        self.counts.evaluations += columns_length(rows) * cost
        return reduce(operator.add, parts or [chunk_sums.Partial.of(none)]).rounded()

    def _of_rows(
        self, kernel: Any, rows: Columns, cost: int, at: Any, *points: np.ndarray
    ) -> np.ndarray:
        """Return the numbers of a few encoded rows, for each of which ``cost`` potentials count."""
        parts, size = [], chunk_rows(cost)
        for piece in _pieces(rows, size):
            padded, _ = chunk_sums.pad(piece, size)
            values = np.asarray(kernel(*self._likelihood, at, padded, *points))
            parts.append(values[: piece.n_rows])
        self.counts.evaluations += columns_length(rows) * cost
        return np.concatenate(parts)

    def _expansion_cost(self, at: Expansion) -> int:
        return self.expansion_cost(at.points, at.covariance is not None)

    def expansion_cost(self, points: int, smoothed: bool = True) -> int:
        """Return what an expansion of a row costs, in potentials.

        Averaged over so many points, where there are no predictors.
        """
        if self.predictors is None:
            return points * (1 + 2 * self.likelihood_dim)
        k = self.predictors.predictors
        nodes = len(expansions.node_rule(k)[1]) if smoothed else 1
        return nodes * (k * k + 1) // 2 + self.predictors.width

    def _sampling_cost(self, at: Expansion, n_draws: int) -> int:
        return self._expansion_cost(at) + n_draws * (1 if self.has_predictors else 1 + at.points)

    @float64
    def log_prior(self, draws: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " S"]:
        """Return log π₀ at the draws."""
        return np.asarray(model_checks.log_priors(self.model, self.space, jnp.asarray(draws)))

    def _embedding(self, at: Float[np.ndarray, "S D"] | Embedding) -> Embedding:
        """Return an embedding; draws of θ stand for potentials at their φ."""
        return at if isinstance(at, Embedding) else as_embedding(self.to_likelihood(at))

    def _chunk_size(self, n_draws: int, evaluations: int | None) -> int:
        """Return the rows of a chunk of a pass with so many draws, or evaluations, a row."""
        # wide rows are large themselves, however few potentials are evaluated of each
        d = self.likelihood_dim
        width = d if self.predictors is None else self.predictors.width
        size = chunk_rows(max(n_draws, evaluations or 1, width))
        if evaluations is not None and evaluations > width:
            # d × d sums of a chunk take as long as 16 d rows
            size = max(size, min(MOST_ROWS, 2 ** int(np.ceil(np.log2(16 * d)))))
        return even_size(self.n_rows, size)

    def _pass_over(
        self, fn: Any, at: Embedding, *broadcast: Any, evaluations: int | None = None
    ) -> Any:
        """One pass: ``fn(chunk, at, *broadcast)`` over all chunks, added up in any order."""
        with jax.enable_x64(True), _renumber(self.numbers):
            size = self._chunk_size(at.size, evaluations)
            # The chunk's jitted function pads to ``size``; engines may use smaller chunks.
            fn = replace(fn, size=size)
            result = self.rows.map_reduce(fn, Associative(), at, *broadcast, size=size)
        self.counts.passes += self.numbers is None
        self.counts.evaluations += self.n_rows * (evaluations or at.size)
        return result


def chunk_rows(n_draws: int) -> int:
    """Return a power of two of rows whose potentials at ``n_draws`` draws stay near the caches."""
    rows = max(1, POTENTIALS_PER_CHUNK // max(1, n_draws))
    return int(np.clip(2 ** int(np.log2(rows)), 256, MOST_ROWS))


def even_size(n: int, size: int) -> int:
    """Return at most ``size`` rows, for n of them to make chunks alike: one program for all."""
    count, unit = -(-n // size), LEAST_PADDED if size <= BLOCK else BLOCK
    return size if count == 1 else min(size, -(-n // (count * unit)) * unit)


def _pieces(rows: Columns, size: int) -> list[Chunk]:
    """Return a few encoded rows, at most ``size`` at a time."""
    starts = range(0, columns_length(rows), size)
    return [Chunk(0, rows).piece(start, start + size) for start in starts]


def flat_likelihood_params(
    model: AbstractModel, space: ParameterSpace, z: Float[Array, " D"]
) -> Float[Array, " d"]:
    """Return φ(θ) as one vector, of flat θ; pure JAX."""
    return space.ravel(model.to_likelihood_params(space.unflatten(z)))


@compile_quickly
def to_likelihood(model: AbstractModel, space: ParameterSpace, z: Float[Array, "S D"]):
    """Return φ(θ_s), flat."""
    return jax.vmap(lambda one: flat_likelihood_params(model, space, one))(z)


@compile_quickly
def compose(model: AbstractModel, space: ParameterSpace, outer: Curvature, z: Float[Array, " D"]):
    """Return value, gradient and Hessian of F(φ(θ)) at z, given those of F at φ(z)."""
    centre = flat_likelihood_params(model, space, z)

    def total(z):
        delta = flat_likelihood_params(model, space, z) - centre
        return outer.value + delta @ outer.gradient + 0.5 * delta @ outer.hessian @ delta

    return to_second_order(total, z)


@contextmanager
def _renumber(numbers: Int[np.ndarray, " n"] | None) -> Iterator[None]:
    """Name rows in errors by these numbers, not by their places."""
    try:
        yield
    except PotentialError as error:
        if numbers is not None:
            error.at(row=int(numbers[error.row]))
        raise
