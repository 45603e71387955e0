"""Sums that do not depend on the order of their terms.

A sum is kept as an unevaluated pair high + low of doubles, about 106 bits. Two pairs are added by
error-free transformations: with s = fl(a + b) and b' = fl(s − a),

    TwoSum      a + b = s + e,  e = fl((a − fl(s − b')) + (b − b'))         (Knuth; Møller 1965)
    Fast2Sum    the same for |a| ≥ |b|:  e = fl(b − fl(s − a))              (Dekker 1971)

and the accurate sum of double words, whose relative error is below 3·2^−106 (Joldes, Muller &
Popescu 2017, Algorithm 6). A different order of addition therefore changes the pair by some 1e-32
of the terms' size, and the double it is rounded to at the end not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

IN_CACHE = 16_384
"""Numbers that are added at once: what lies between the steps stays in the caches."""


@dataclass(frozen=True)
class Sum:
    """A running sum of arrays (or numbers), high + low.

    Where a term is infinite or NaN, so is the sum, as in ordinary addition.

    Attributes
    ----------
    high, low
        The sum rounded to doubles, and what is left of it.

    Examples
    --------
    >>> terms = [Sum.of(x) for x in (1e16, 1.0, -1e16, 1.0)]
    >>> float((terms[0] + terms[1] + terms[2] + terms[3]).rounded())
    2.0
    >>> float((terms[3] + (terms[0] + terms[2]) + terms[1]).rounded())
    2.0
    """

    high: np.ndarray
    low: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray | float) -> Sum:
        """Return the sum of one term."""
        high = np.asarray(values, dtype=np.float64)
        return cls(high, np.zeros_like(high))

    def __add__(self, other: Sum) -> Sum:
        plain = np.asarray(self.high + other.high)
        if not np.isfinite(plain).all():
            return self._with_infinities(other, plain)
        if plain.size <= IN_CACHE:
            return Sum(*_add_pairs(self.high, self.low, other.high, other.low))
        parts = np.broadcast_arrays(self.high, self.low, other.high, other.low)
        flat = [part.ravel() for part in parts]
        found = np.empty((2, plain.size))
        for first in range(0, plain.size, IN_CACHE):
            some = slice(first, first + IN_CACHE)
            found[:, some] = _add_pairs(*(part[some] for part in flat))
        return Sum(*found.reshape(2, *plain.shape))

    def _with_infinities(self, other: Sum, plain: np.ndarray) -> Sum:
        fine = np.isfinite(plain)
        left, right = (
            Sum(np.where(fine, one.high, 0.0), np.where(fine, one.low, 0.0))
            for one in (self, other)
        )
        total = left + right
        return Sum(np.where(fine, total.high, plain), total.low)

    def rounded(self) -> Any:
        """Return the sum as doubles."""
        return self.high + self.low


class Associative:
    """Addition of terms whose ``+`` is associative to the last bit, such as `Sum`.

    `Rows.map_reduce` with it may add terms in any order, and so where the rows are. Any other
    reduction runs in row order, so that its rounding does not depend on the engine.
    """

    def __call__(self, left: Any, right: Any) -> Any:
        return left + right


def _add_pairs(
    high: np.ndarray, low: np.ndarray, other_high: np.ndarray, other_low: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    high, rest = _two_sum(high, other_high)
    low, lowest = _two_sum(low, other_low)
    high, rest = _fast_two_sum(high, rest + low)
    return _fast_two_sum(high, rest + lowest)


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _fast_two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    return total, b - (total - a)
