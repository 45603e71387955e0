"""Equal rows become one row with the sum of their weights, in an order the values alone decide.

A fit to the result gives a row of weight 2 and the row twice the same random numbers, and does not
depend on the order of the table.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, UInt64

ODD = np.uint64(0x9E3779B97F4A7C15)
SHIFT = np.uint64(29)


def merge_equal_rows(
    x: Float[np.ndarray, "N D"], weights: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "n D"], Float[np.ndarray, " n"]]:
    """Return the distinct rows of positive weight, and the sum of the weights of each.

    Parameters
    ----------
    x : (N, D)
        Finite rows.
    weights : (N,)
        w ≥ 0.
    """
    where, sums = find_representatives(x, weights)
    return x[where], sums


def find_representatives(
    x: Float[np.ndarray, "N D"], weights: Float[np.ndarray, " N"]
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return where each of `merge_equal_rows` is first in the table, and its weight there."""
    used = np.flatnonzero(weights > 0.0)
    mixed = _compute_hashes(x[used] if len(used) < len(x) else x)
    order = np.argsort(mixed, kind="stable")
    used, mixed = used[order], mixed[order]
    new = np.ones(len(used), dtype=bool)
    same = np.flatnonzero(mixed[1:] == mixed[:-1])
    new[same + 1] = (x[used[same + 1]] != x[used[same]]).any(axis=1)
    groups = np.cumsum(new) - 1
    return used[new], np.bincount(groups, weights=weights[used])


def _compute_hashes(x: Float[np.ndarray, "N D"]) -> UInt64[np.ndarray, " N"]:
    """Return 64 bits of every row; rows that differ share them once in 2^64."""
    mixed = np.zeros(len(x), dtype=np.uint64)
    for column in x.T:
        bits = (column + 0.0).view(np.uint64)  # −0 becomes 0
        mixed = (mixed ^ (mixed >> SHIFT) ^ bits) * ODD
    return mixed ^ (mixed >> SHIFT)
