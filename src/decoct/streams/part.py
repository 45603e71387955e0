"""Weighted rows that stand for a stretch of a stream, and what is known of their error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from decoct.constructions.base import Selection
from decoct.data.base import Columns
from decoct.stats.divergences import Gaussian
from decoct.streams.drift import DRIFTED, distance
from decoct.streams.error_sum import ErrorSum
from decoct.streams.remainder import Growth, remainder_order


@dataclass(frozen=True)
class Part:
    """A coreset of a stretch of the stream.

    Attributes
    ----------
    selection
        Numbers in the stream, weights, encoded rows.
    raw
        The same rows as they came.
    error
        Of all compressions that led here.
    seen
        The draws at which the last of them looked; None for rows never compressed.
    drift
        Most that the draws had moved between one compression of these rows and the next, in sd.
    """

    selection: Selection
    raw: Columns
    error: ErrorSum
    seen: Gaussian | None = None
    drift: float = 0.0

    @property
    def size(self) -> int:
        return self.selection.size

    def drift_to(self, mean: Float[np.ndarray, " d"]) -> float:
        """Return the drift when these rows are looked at around ``mean``."""
        return self.drift if self.seen is None else max(self.drift, distance(self.seen, mean))

    def error_at(self, place: Gaussian) -> ErrorSum:
        """Return the error of these rows as it has grown where draws now are.

        That of rows that have drifted is nowhere told, and left as it is.
        """
        if self.seen is None or not self.drift_to(place.mean) <= DRIFTED:
            return self.error
        order = remainder_order(self.size, place.dim)
        return self.error.grown(*Growth.of(self.seen, place, order))

    @classmethod
    def uncompressed(cls, start: int, raw: Columns, rows: Columns) -> Part:
        """Return consecutive rows, each with weight 1."""
        n = len(next(iter(raw.values())))
        indices = np.arange(start, start + n, dtype=np.int64)
        return cls(Selection(indices, np.ones(n), rows), raw, ErrorSum())


def joined(selections: Sequence[Selection]) -> Selection:
    """Return the weighted rows of several parts, in their order."""
    return Selection(
        np.concatenate([one.indices for one in selections]),
        np.concatenate([one.weights for one in selections]),
        joined_columns([one.rows for one in selections]),
    )


def joined_columns(tables: Sequence[Columns]) -> Columns:
    """Return tables of the same columns laid end to end; types are promoted as NumPy does."""
    return {name: np.concatenate([one[name] for one in tables]) for name in tables[0]}
