"""Lightweight coresets: rows drawn half uniformly, half by their squared distance to the mean.

Bachem, Lucic & Krause (2017); for Gaussian mixtures Borsos, Bachem & Krause (2017), Alg. 1. With
μ = (1/N)Σx_n and the spread Σ_n‖x_n − μ‖²,

    q_n = 1/(2N) + ‖x_n − μ‖²/(2Σ_m‖x_m − μ‖²),   γ_n = 1/(M q_n)                        (Alg. 1)

for each of M draws with replacement, so that E[Σγ_n f_n] = Σf_n for any f. Theorem 3.1: let φ_n(θ)
be the negative log-likelihood of row n under a mixture θ of T Gaussians, shifted to be positive.
With M = Ω((D⁴T⁴ + ln(1/δ))/ε²), with probability 1 − δ and for all θ at once,

    |Σφ_n(θ) − Σγ_nφ_n(θ)| ≤ ε Σφ_n(θ) + ε Σ_t Tr(Λ_t) Σ_n‖x_n − μ‖².                    (Thm 3.1)

The theorem's constant is unknown; `theorem_3_1` solves for ε with the constant 1, which shows
how ε grows with D, T and M, not its size. The possible gain over uniform rows is shown by the
normalised entropy −Σq_n ln q_n/ln N: at 1 the draws are uniform; the paper calls 0.98 almost so.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from decoct.constructions.base import Chosen, OneStep, Plan, Problem, Selection
from decoct.constructions.sampling.weighted_sampling import (
    CHUNK,
    Spread,
    drawn,
    row_draws,
    sampling_bytes,
    squares_from,
)
from decoct.data.base import Chunk, Columns, Rows
from decoct.data.tables import rows as as_rows
from decoct.errors import RequestError, RowsError
from decoct.models.base import numeric
from decoct.runtime.checks import check_whole, checked_whole

NEAR_UNIFORM = 0.98
"""The normalised entropy from which draws are almost uniform, by the paper."""


@dataclass(frozen=True)
class LightweightCoreset(OneStep):
    """The lightweight coreset: rows drawn with replacement by q, a row drawn c times weighs c/(Mq).

    The M draws of a smaller size are the first M of a larger one. Takes two passes over the data,
    and memory for M rows, whatever their number. The model plays no part.

    Parameters
    ----------
    columns
        Names of the encoded columns that make up x, side by side; None for all of them.
    components
        T of Theorem 3.1, for the report; None takes that of the mixture that `decoct.build` was
        given, and leaves ε out for other models.
    delta
        δ of Theorem 3.1.

    Raises
    ------
    RequestError
        No columns, components below 1, or delta not between 0 and 1.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> method = decoct.constructions.LightweightCoreset()
    >>> decoct.build(model, rows, size=10, method=method).size <= 10
    True
    """

    columns: tuple[str, ...] | None = None
    components: int | None = None
    delta: float = 0.05

    def __post_init__(self) -> None:
        if self.columns is not None and (isinstance(self.columns, str) or not self.columns):
            raise RequestError(f"columns must be a tuple of names or None, not {self.columns!r}.")
        check_whole(self, components=1)
        if not 0.0 < self.delta < 1.0:
            raise RequestError(f"delta must be between 0 and 1, not {self.delta}.")

    def plan(self, problem: Problem) -> Plan:
        """Two passes that read the rows; no potential is evaluated."""
        return Plan((2, 2), (0.0, 0.0), sampling_bytes(problem.size))

    def choose(self, key: jax.Array, problem: Problem) -> Chosen:
        potentials = problem.potentials
        chosen, numbers = self._draw(key, potentials.rows, problem.sizes)
        potentials.counts.passes += 2
        return drawn(chosen, numbers)

    def _draw(
        self, key: jax.Array, rows: Rows, sizes: tuple[int, ...]
    ) -> tuple[list[Selection], dict[str, Any]]:
        """Draw rows by q, in two passes, for the mean and the spread, and for the draws."""
        how, M = {"size": CHUNK, "columns": self.columns}, sizes[-1]
        with np.errstate(over="ignore", invalid="ignore"):
            spread = rows.map_reduce(_spread_of, operator.add, **how)
        if not np.isfinite(spread.squares):
            raise RowsError(
                "The squared distances to the mean overflow; rescale the columns, for example in "
                "other units."
            )
        draws = row_draws(key, rows, partial(_compute_odds, spread=spread), M, **how)
        chosen = draws.selections(rows, sizes)
        numbers = {"repeated_picks": M - chosen[-1].size, **entropy_figures(draws.entropy)}
        numbers["spread"] = spread.squares
        if self.components is not None:
            numbers["epsilon"] = theorem_3_1(M, len(spread.mean), self.components, self.delta)
        return chosen, numbers


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """A coreset of a table, without a model.

    Attributes
    ----------
    indices : (m,)
        Global row numbers, ascending.
    weights : (m,)
        γ > 0; on average they sum to N.
    rows
        The kept rows as the table had them.
    n_rows
        N.
    numbers
        Normalised entropy, whether that is near uniform, the spread, ε where asked for.
    """

    indices: Int[np.ndarray, " m"]
    weights: Float[np.ndarray, " m"]
    rows: Columns
    n_rows: int
    numbers: dict[str, Any]

    @property
    def size(self) -> int:
        """The number of rows kept."""
        return len(self.indices)


def lightweight_coreset(
    rows: Rows | Any,
    size: int,
    *,
    seed: int = 0,
    columns: Sequence[str] | None = None,
    components: int | None = None,
    delta: float = 0.05,
) -> WeightedRows:
    """Return the lightweight coreset of a table of numbers (Alg. 1), without a model.

    Parameters
    ----------
    rows
        Anything `decoct.rows` accepts; files are streamed, twice.
    size
        M ≥ 1, draws with replacement; the rows kept may be fewer.
    seed
        The same seed on the same rows gives the same coreset.
    columns, components, delta
        As in `LightweightCoreset`.

    Returns
    -------
    WeightedRows
        ``rows``, the kept ones, with their ``indices`` and ``weights``.

    Raises
    ------
    RequestError
        An option is out of range.
    RowsError
        A column is missing or not numeric, or a value is not finite; the message names the row.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.constructions.sampling.lightweight import lightweight_coreset
    >>> x = np.random.default_rng(0).normal(size=(10_000, 3))
    >>> coreset = lightweight_coreset({"x": x}, 500)
    >>> coreset.size <= 500, coreset.numbers["near_uniform"]
    (True, True)
    """
    size = checked_whole("size", size, 1)
    if isinstance(columns, str):
        raise RequestError(f"columns is a list of names: write ['{columns}'], not '{columns}'.")
    method = LightweightCoreset(None if columns is None else tuple(columns), components, delta)
    table = as_rows(rows)
    (picked,), numbers = method._draw(jax.random.key(seed), table, (size,))
    return WeightedRows(picked.indices, picked.weights, picked.rows, table.n_rows, numbers)


def theorem_3_1(size: int, dim: int, components: int, delta: float = 0.05) -> float:
    """Return ε = √((D⁴T⁴ + ln(1/δ))/M): Theorem 3.1 with the constant of its Ω set to 1."""
    return float(np.sqrt(((dim * components) ** 4 + np.log(1.0 / delta)) / size))


def entropy_figures(entropy: float) -> dict[str, Any]:
    """Return the report's figures of H(q)/ln N, with a note where the draws gain nothing."""
    numbers: dict[str, Any] = {"normalised_entropy": entropy, "near_uniform": False}
    if entropy >= NEAR_UNIFORM:
        note = f"The draws are nearly uniform (normalised entropy {entropy:.3f}, at least "
        note += f"{NEAR_UNIFORM}): as many rows drawn uniformly would do about as well."
        numbers |= {"near_uniform": True, "note": note}
    return numbers


def _points(chunk: Chunk) -> Float[np.ndarray, "n D"]:
    """Return the columns side by side, or name what is not a number."""
    parts = [
        np.asarray(numeric(chunk.columns, name, chunk.start), dtype=np.float64)
        for name in chunk.columns
    ]
    together = np.concatenate([part.reshape(chunk.n_rows, -1) for part in parts], axis=1)
    # rounding depends on the order in memory, which must not depend on the source of the rows
    return np.ascontiguousarray(together)


@np.errstate(over="ignore", invalid="ignore")  # on workers too
def _spread_of(chunk: Chunk) -> Spread:
    return Spread.of(_points(chunk))


def _compute_odds(chunk: Chunk, spread: Spread) -> Float[np.ndarray, " n"]:
    """Return q_n of a chunk's rows (Alg. 1)."""
    if spread.squares == 0.0:  # all rows are one row, and count alike
        return np.full(chunk.n_rows, 1.0 / spread.count)
    return 0.5 / spread.count + 0.5 * squares_from(_points(chunk), spread.mean) / spread.squares
