"""One step of merge-and-reduce: a leaf of raw rows and some parts become one part.

All rows held (parts, with weights; the leaf, each row once) have a posterior: the best that is
known of the final one. At S of its draws the rows to be compressed add up to

    b = Σ_leaf g_n + Σ_parts w_n g_n,

and min_{v ≥ 0, ‖v‖₀ ≤ m} ‖b − Σ v_n g_n‖² is solved by orthogonal pursuit over the
rows of the parts and a pool of the leaf. Held-out draws judge: ½‖residual‖² is in nats.

More than d(d+3)/2 rows fit the draws far better than anybody needs. What they have to spare goes
into places where the posterior may wander: further coordinates at *far* draws, the same ones flung
out from their mean by factors up to ``reach``. What a good fit leaves is of third order, so it
grows as the cube of the distance; the weight of a far draw, (1 + 2|Δ|/d)^(−3/2), with Δ the change
of the log-likelihood of all rows held, falls as fast (|Δ| ≈ ½ d u² at u posterior sd).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float, Int

from decoct.constructions.base import Selection
from decoct.data.base import Columns
from decoct.errors import ModelError, PotentialError
from decoct.models.base import AbstractModel
from decoct.passes.pools import Pool
from decoct.passes.potentials import Potentials
from decoct.solvers.nnls import SparseWeights
from decoct.solvers.orthogonal_pursuit import orthogonal_pursuit
from decoct.stats.tangent import Tangent, tangent
from decoct.streams.drift import moments
from decoct.streams.error_sum import ErrorSum
from decoct.streams.incoming import Stretch
from decoct.streams.part import Part, joined_columns


@dataclass(frozen=True)
class Leaf:
    """Consecutive rows of the stream, each with weight 1.

    Attributes
    ----------
    raw
        As they came.
    rows
        As the model sees them.
    """

    raw: Columns
    rows: Stretch

    @property
    def n_rows(self) -> int:
        return self.rows.n_rows

    def part(self) -> Part:
        """Return the rows as a part, nothing compressed."""
        rows = next(self.rows.chunks(self.n_rows)).columns
        return Part.uncompressed(self.rows.start, self.raw, rows)

    def take_raw(self, numbers: Int[np.ndarray, " n"]) -> Columns:
        """Return rows by their numbers in the stream."""
        return {name: column[numbers - self.rows.start] for name, column in self.raw.items()}


@dataclass(frozen=True)
class Values:
    """Potentials at one set of draws.

    Attributes
    ----------
    leaf_totals : (S,)
        Σ f_n(θ_s) over the leaf.
    pool : (P, S)
        Of the candidate rows of the leaf.
    parts
        (m, S), of the rows of each part.
    weights
        (m,), the weights of each part.
    """

    leaf_totals: Float[np.ndarray, " S"]
    pool: Float[np.ndarray, "P S"]
    parts: tuple[Float[np.ndarray, "m S"], ...]
    weights: tuple[Float[np.ndarray, " m"], ...]

    def totals(self, which: Sequence[int]) -> Float[np.ndarray, " S"]:
        """Return the log-likelihood of the leaf and the parts ``which`` at the draws."""
        total = self.leaf_totals
        for i in which:
            total = total + self.weights[i] @ self.parts[i]
        return total

    def candidates(self, which: Sequence[int]) -> Float[np.ndarray, "n S"]:
        """Return the potentials of the rows that may be kept."""
        return np.concatenate([self.pool, *(self.parts[i] for i in which)])


@dataclass(frozen=True)
class Look:
    """The rows of a leaf and of parts, seen at draws.

    Attributes
    ----------
    leaf
        The leaf.
    parts
        What else is held.
    pool
        Candidate rows of the leaf, with their numbers in the stream.
    draws : (S, d)
        θ_s of the posterior, in random order.
    near
        Potentials at them.
    far
        Potentials at draws flung out from their mean; None where some potential is not finite.
    evaluations
        Potentials evaluated for this.
    """

    leaf: Leaf
    parts: tuple[Part, ...]
    pool: Pool
    draws: Float[np.ndarray, "S d"]
    near: Values
    far: Values | None
    evaluations: int

    @classmethod
    def at(
        cls,
        key: jax.Array,
        model: AbstractModel,
        leaf: Leaf,
        parts: Sequence[Part],
        draws: Float[np.ndarray, "S d"],
        far: Float[np.ndarray, "T d"],
        pool: int,
    ) -> Look:
        """Evaluate the leaf, in a pass that fills a pool of ``pool`` rows, and the parts."""
        potentials = Potentials(model, leaf.rows)
        found = potentials.one_pass(draws, pool, key)
        near = _values(potentials, found.pool, found.totals, parts, draws)
        for part, values in zip(parts, near.parts, strict=True):
            _require_finite(part, values)
        away = _far_values(potentials, found.pool, parts, far) if len(far) else None
        evaluations = potentials.counts.evaluations
        return cls(leaf, tuple(parts), found.pool, draws, near, away, evaluations)

    @property
    def everything(self) -> range:
        """Positions of all parts."""
        return range(len(self.parts))

    def compressed(self, which: Sequence[int], size: int, exchanges: int) -> tuple[Part, float]:
        """Return the leaf and the parts ``which`` as one part, and its predicted KL in nats.

        Parameters
        ----------
        which
            Positions in ``parts``.
        size
            Most rows to keep.
        exchanges
            Most sweeps of swaps.
        """
        values, totals = self.near.candidates(which), self.near.totals(which)
        fit = max(2, 4 * len(self.draws) // 5)
        space = self._with_far(which, tangent(values[:, :fit], totals[:fit]))
        held_out = tangent(values[:, fit:], totals[fit:])
        path = orthogonal_pursuit(
            space.vectors, space.target, size, sizes=(size,), exchanges=exchanges
        )
        judged = {m: held_out.predicted_kl(one.indices, one.weights) for m, one in path.items()}
        found = path[min(judged, key=lambda m: judged[m])] if path else self._any(which, size)
        kl = held_out.predicted_kl(found.indices, found.weights)
        return self._part(which, found, kl), kl

    def _with_far(self, which: Sequence[int], near: Tangent) -> Tangent:
        """Return the vectors with coordinates for the far draws, of weight (1 + 2|Δ|/d)^(−3/2)."""
        if self.far is None:
            return near
        at_mean = self.near.totals(self.everything).mean()
        change = np.abs(self.far.totals(self.everything) - at_mean)
        weight = (1.0 + 2.0 * change / self.draws.shape[1]) ** -1.5 / np.sqrt(len(self.draws) - 1)
        vectors = self.far.candidates(which)
        vectors = vectors - self.near.candidates(which).mean(axis=1, keepdims=True)
        target = self.far.totals(which) - self.near.totals(which).mean()
        return Tangent(
            np.hstack([near.vectors, vectors * weight]), np.append(near.target, target * weight)
        )

    def _any(self, which: Sequence[int], size: int) -> SparseWeights:
        """Return evenly spaced candidates: no potential varies, so that any weights will do."""
        candidates = len(self.pool.indices) + sum(self.parts[i].size for i in which)
        mass = self.leaf.n_rows + sum(self.parts[i].selection.weights.sum() for i in which)
        m = min(size, candidates)
        places = np.linspace(0, candidates - 1, m).round().astype(np.int64)
        return SparseWeights(places, np.full(m, mass / m), 0.0)

    def _part(self, which: Sequence[int], found: SparseWeights, kl: float) -> Part:
        """Return the candidates found, in the order of the stream, with all that is known."""
        parts = [self.parts[i] for i in which]
        numbers = np.concatenate([self.pool.indices, *(one.selection.indices for one in parts)])
        rows = joined_columns([self.pool.rows, *(one.selection.rows for one in parts)])
        raw = joined_columns([self.leaf.take_raw(self.pool.indices), *(one.raw for one in parts)])
        order = found.indices[np.argsort(numbers[found.indices])]
        weights = found.weights[np.argsort(numbers[found.indices])]
        seen = moments(self.draws)
        error = ErrorSum.of_parts(one.error_at(seen) for one in parts).with_step(kl)
        assert error is not None
        return Part(
            Selection(numbers[order], weights, {name: one[order] for name, one in rows.items()}),
            {name: one[order] for name, one in raw.items()},
            error,
            seen,
            max((one.drift_to(seen.mean) for one in parts), default=0.0),
        )


def _values(
    potentials: Potentials,
    pool: Pool,
    leaf_totals: Float[np.ndarray, " S"],
    parts: Sequence[Part],
    draws: Float[np.ndarray, "S d"],
) -> Values:
    return Values(
        leaf_totals,
        potentials.vectors(pool.rows, draws),
        tuple(potentials.vectors(part.selection.rows, draws) for part in parts),
        tuple(part.selection.weights for part in parts),
    )


def _far_values(
    potentials: Potentials, pool: Pool, parts: Sequence[Part], draws: Float[np.ndarray, "T d"]
) -> Values | None:
    """Return potentials where no posterior draw lies; None if the model is not finite there."""
    try:
        values = _values(potentials, pool, potentials.totals(draws), parts, draws)
    except ModelError:
        return None
    return values if all(np.isfinite(one).all() for one in values.parts) else None


def _require_finite(part: Part, values: Float[np.ndarray, "m S"]) -> None:
    bad = ~np.isfinite(values).all(axis=1)
    if bad.any():
        row = part.selection.indices[np.argmax(bad)]
        raise PotentialError(int(row), "not finite", "a draw of the posterior of all rows so far")
