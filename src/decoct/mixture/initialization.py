"""Start of a fit: distinct rows, and counts, means and scatters of first groups of them.

Equal rows become one row with the sum of their weights, in an order the values alone decide. So a
fit gives a row of weight 2 and the row twice the same random numbers, and does not depend on the
order of the table.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from sklearn.cluster import KMeans, kmeans_plusplus

from decoct.mixture.cavi import group_rows
from decoct.mixture.normal_wishart import Statistics

ODD, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(29)


def find_representatives(
    x: Float[np.ndarray, "N D"], weights: Float[np.ndarray, " N"]
) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return where each distinct finite row of positive weight is first, and its summed weight."""
    used = np.flatnonzero(weights > 0.0)
    # 64 bits of every row; rows that differ share them once in 2^64
    mixed = np.zeros(len(used), dtype=np.uint64)
    for column in (x[used] if len(used) < len(x) else x).T:
        bits = (column + 0.0).view(np.uint64)  # −0 becomes 0
        mixed = (mixed ^ (mixed >> SHIFT) ^ bits) * ODD
    mixed ^= mixed >> SHIFT
    order = np.argsort(mixed, kind="stable")
    used, mixed = used[order], mixed[order]
    new = np.ones(len(used), dtype=bool)
    same = np.flatnonzero(mixed[1:] == mixed[:-1])
    new[same + 1] = (x[used[same + 1]] != x[used[same]]).any(axis=1)
    return used[new], np.bincount(np.cumsum(new) - 1, weights=weights[used])


def merge_equal_rows(
    x: Float[np.ndarray, "N D"], weights: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, "n D"], Float[np.ndarray, " n"]]:
    """Return the distinct finite rows of positive weight, and the sum of the weights of each."""
    where, sums = find_representatives(x, weights)
    return x[where], sums


def compute_start_statistics(
    how: str,
    x: Float[np.ndarray, "n D"],
    gamma: Float[np.ndarray, " n"],
    T: int,
    rng: np.random.RandomState,
) -> Statistics:
    """Return N_t, x̄_t, S_t to start from; with fewer distinct rows than T, some are of no row."""
    if how == "random":
        share = rng.uniform(size=(len(x), T))
        return group_rows(x, gamma, share / share.sum(axis=1, keepdims=True))
    groups = min(T, len(x))
    if how == "kmeans":
        clusters = KMeans(groups, n_init=1, random_state=rng)  # pyright: ignore[reportArgumentType]
        labels = clusters.fit(x, sample_weight=gamma).labels_
        return group_rows(x, gamma, np.eye(T)[labels])
    if how == "k-means++":
        chosen = kmeans_plusplus(x, groups, sample_weight=gamma, random_state=rng)[1]
    else:
        chosen = rng.choice(len(x), size=groups, replace=False, p=gamma / gamma.sum())
    # one row each, whatever its weight, as scikit-learn does
    D = x.shape[1]
    counts, means = np.zeros(T), np.zeros((T, D))
    counts[:groups], means[:groups] = 1.0, x[chosen]
    return Statistics(counts, means, np.zeros((T, D, D)))
