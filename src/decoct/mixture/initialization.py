"""The start of a fit of a Gaussian mixture: counts, means and scatters of first groups."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from sklearn.cluster import KMeans, kmeans_plusplus

from decoct.mixture.cavi import group_rows
from decoct.mixture.normal_wishart import Statistics


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
