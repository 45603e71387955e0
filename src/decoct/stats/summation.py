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
        high, rest = _two_sum(self.high, other.high)
        low, lowest = _two_sum(self.low, other.low)
        high, rest = _fast_two_sum(high, rest + low)
        return Sum(*_fast_two_sum(high, rest + lowest))

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


def _two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _fast_two_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    return total, b - (total - a)
