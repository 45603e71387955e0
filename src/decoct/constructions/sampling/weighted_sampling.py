"""Rows drawn with replacement by scores that one pass computes and does not keep.

M independent draws, each of row n with probability s_n/S, S = Σs. The table is cut into blocks of
consecutive rows, at multiples of `DRAWN_AT_ONCE` in global row numbers. In every block b, with the
sum S_b, each draw has a candidate and an arrival time: with V uniform and E standard exponential,

    the candidate is the first row up to which the block's scores sum to more than V S_b,
    the arrival time is E/S_b,

and a draw takes the candidate that arrives first: that of block b with probability S_b/S,
independently of the candidates, so that row n is drawn with probability (S_b/S)(s_n/S_b) = s_n/S.
Minima are associative: partial results are M candidates, however many rows there are, and add up
in any bracketing. V and E depend on the key and the block's number alone, so the draws do not
depend on chunks or workers. The same pass sums what the entropy of q = s/S needs,

    −Σ q_n ln q_n = ln S − (1/S) Σ s_n ln s_n.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int
from scipy.special import xlogy

from decoct.constructions.base import Chosen, Selection, SizedSelection, StepInfo
from decoct.data.base import Chunk, Rows
from decoct.passes.pools import Pool
from decoct.stats.summation import Associative, Sum

DRAWN_AT_ONCE = 16_384
"""Rows whose draws are settled at once. Another number gives other draws."""

CHUNK = 16_384
"""Rows in memory at once."""


class RowDraws(NamedTuple):
    """Rows drawn with replacement."""

    picks: Int[np.ndarray, " M"]  # global row numbers, draw by draw; a row may come several times
    scores: Float[np.ndarray, " M"]  # theirs
    total: float  # S, the sum of all scores
    entropy: float  # −Σ q_n ln q_n/ln N; 1 for a single row

    def selections(self, rows: Rows, sizes: Sequence[int]) -> list[Selection]:
        """Return the weighted rows of the first draws, for each of some numbers of them.

        A row drawn c times of M weighs (S/s_n)(c/M), so that E[Σw_n f_n] = Σf_n.
        """
        odds = self.scores / self.total
        return select_rows(
            rows, self.picks, sizes, lambda size, times, first: times / (size * odds[first])
        )


def select_rows(
    rows: Rows,
    picks: Int[np.ndarray, " M"],
    sizes: Sequence[int],
    weigh: Callable[[int, np.ndarray, np.ndarray], np.ndarray],
) -> list[Selection]:
    """Return the rows of the first draws, for each of some numbers of them.

    ``weigh`` returns weights, given how many draws there are, how often each row kept was drawn,
    and which draw was its first.
    """
    kept, first, where = np.unique(picks, return_index=True, return_inverse=True)
    taken = Pool(kept, rows.take(kept))
    chosen = []
    for size in sizes:
        times = np.bincount(where[:size], minlength=len(kept))
        used = np.flatnonzero(times)
        weights = weigh(size, times[used], first[used])
        chosen.append(Selection.of(taken.some(used), weights))
    return chosen


def drawn(chosen: Sequence[Selection], numbers: dict[str, Any]) -> Chosen:
    """Return selections whose KL is not predicted, and figures for the report."""
    info = StepInfo(describe_draws(chosen[-1].size, numbers), numbers)
    return tuple(SizedSelection(one, None) for one in chosen), info


def describe_draws(size: int, numbers: Mapping[str, Any]) -> str:
    """Describe the drawn rows; ``numbers`` are the report's."""
    if "normalised_entropy" not in numbers:
        return f"{size} rows"
    near = ", nearly uniform" if numbers["near_uniform"] else ""
    return f"{size} rows, normalised entropy {numbers['normalised_entropy']:.3f}{near}"


def row_draws(
    key: jax.Array,
    rows: Rows,
    scores: Callable[[Chunk], Float[np.ndarray, " n"]],
    n_draws: int,
    *,
    size: int = CHUNK,
    columns: Sequence[str] | None = None,
) -> RowDraws:
    """Draw rows with replacement by their scores, in one pass.

    The first draws of a larger number are those of a smaller one. ``scores`` returns s_n ≥ 0 of the
    rows of a chunk, not 0 for all rows, and is sent to workers; ``size`` and ``columns`` are those
    of `Rows.map_reduce`.
    """
    seed = tuple(int(word) for word in np.ravel(np.asarray(jax.random.key_data(key))))
    how = {"size": size, "columns": columns}
    arrivals = _Arrivals(seed, n_draws)
    earliest = rows.map_reduce(_settle_blocks, Associative(), scores, arrivals, **how).finished()
    total, N = float(earliest.total.rounded()), rows.n_rows
    nats = np.log(total) - float(earliest.by_log.rounded()) / total
    entropy = float(nats / np.log(N)) if N > 1 else 1.0
    return RowDraws(earliest.picks, earliest.scores, total, entropy)


def sampling_bytes(n_draws: int) -> int:
    """Return the memory of a pass that draws; it does not grow with the number of rows."""
    return 8 * (12 * n_draws + 4 * DRAWN_AT_ONCE)


@dataclass(frozen=True)
class _Earliest:
    """The candidate of every draw that arrives first, among some blocks; and their sums."""

    times: Float[np.ndarray, " M"]
    picks: Int[np.ndarray, " M"]
    scores: Float[np.ndarray, " M"]
    total: Sum
    by_log: Sum

    def __add__(self, other: _Earliest) -> _Earliest:
        sooner = other.times < self.times
        return _Earliest(
            np.where(sooner, other.times, self.times),
            np.where(sooner, other.picks, self.picks),
            np.where(sooner, other.scores, self.scores),
            self.total + other.total,
            self.by_log + other.by_log,
        )


class _Piece(NamedTuple):
    """Scores of consecutive rows of one block."""

    start: int
    scores: Float[np.ndarray, " n"]

    @property
    def end(self) -> int:
        return self.start + len(self.scores)


@dataclass(frozen=True)
class _Arrivals:
    """Random candidates and arrival times of the draws within a block."""

    seed: tuple[int, ...]
    n_draws: int

    def settle(self, block: _Piece) -> _Earliest:
        rng = np.random.default_rng([*self.seed, block.start // DRAWN_AT_ONCE])
        numbers = rng.random((self.n_draws, 2))
        upto = np.cumsum(block.scores)
        total = upto[-1]
        places = np.searchsorted(upto, numbers[:, 0] * total, side="right")
        # V S_b may round to S_b, which the last row that counts reaches
        places = np.minimum(places, np.searchsorted(upto, total))
        with np.errstate(divide="ignore"):  # a block without score never arrives
            times = -np.log1p(-numbers[:, 1]) / total if total > 0.0 else np.inf
        return _Earliest(
            np.broadcast_to(times, self.n_draws),
            block.start + places,
            block.scores[places],
            Sum.of(total),
            Sum.of(xlogy(block.scores, block.scores).sum()),
        )


@dataclass(frozen=True)
class _BlockResult:
    """Consecutive rows: first arrivals of their whole blocks, and the pieces at both ends."""

    arrivals: _Arrivals
    earliest: _Earliest | None
    pieces: tuple[_Piece, ...]

    def __add__(self, other: _BlockResult) -> _BlockResult:
        parts = [one for one in (self.earliest, other.earliest) if one is not None]
        return _join_pieces(self.arrivals, parts, [*self.pieces, *other.pieces])

    def finished(self) -> _Earliest:
        """Return the first arrivals of all blocks; the last one of a table may be short."""
        parts = [] if self.earliest is None else [self.earliest]
        return reduce(operator.add, [*parts, *map(self.arrivals.settle, self.pieces)])


def _join_pieces(
    arrivals: _Arrivals, parts: list[_Earliest], pieces: Sequence[_Piece]
) -> _BlockResult:
    """Join neighbouring pieces of a block, and settle the blocks that are whole."""
    left: list[_Piece] = []
    for piece in pieces:
        if left and left[-1].end == piece.start and piece.start % DRAWN_AT_ONCE:
            piece = _Piece(left[-1].start, np.concatenate([left.pop().scores, piece.scores]))
        if len(piece.scores) == DRAWN_AT_ONCE:
            parts = [*parts, arrivals.settle(piece)]
        else:
            left.append(piece)
    return _BlockResult(arrivals, reduce(operator.add, parts) if parts else None, tuple(left))


def _settle_blocks(
    chunk: Chunk, scores: Callable[[Chunk], Float[np.ndarray, " n"]], arrivals: _Arrivals
) -> _BlockResult:
    values, start = np.asarray(scores(chunk)), chunk.start
    end = start + len(values)
    cuts = [start, *range((start // DRAWN_AT_ONCE + 1) * DRAWN_AT_ONCE, end, DRAWN_AT_ONCE), end]
    pieces = [_Piece(a, values[a - start : b - start]) for a, b in pairwise(cuts)]
    return _join_pieces(arrivals, [], pieces)


@dataclass(frozen=True)
class Spread:
    """Number, mean and Σ‖x_n − mean‖² of points; of several sets of them, by their differences."""

    count: int
    mean: Float[np.ndarray, " D"]
    squares: float

    @classmethod
    def of(cls, points: Float[np.ndarray, "n D"]) -> Spread:
        mean = points.mean(axis=0)
        return cls(len(points), mean, float(squares_from(points, mean).sum()))

    def __add__(self, other: Spread) -> Spread:
        count, apart = self.count + other.count, other.mean - self.mean
        share = other.count / count
        squares = self.squares + other.squares + self.count * share * float(apart @ apart)
        return Spread(count, self.mean + share * apart, squares)


def squares_from(
    points: Float[np.ndarray, "n D"], centre: Float[np.ndarray, " D"]
) -> Float[np.ndarray, " n"]:
    """Return ‖x_n − centre‖², for each row alike however the rows are cut into chunks."""
    return np.square(points - centre[None, :]).sum(axis=1)
