"""The 1-Wasserstein distance between two samples.

W₁(p, q) = min_Γ Σ_ij Γ_ij ‖x_i − y_j‖₂ over transport plans Γ ≥ 0 with Σ_j Γ_ij = 1/n and
Σ_i Γ_ij = 1/m: the exact linear programme between two empirical distributions. It is one of the two
metrics of posterior quality in Campbell & Broderick (2019, Section 7.3).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist

from decoct.errors import RequestError
from decoct.runtime.checks import checked_whole

MAX_PIVOTS = 10_000_000
"""Network simplex pivots at most; 2,000 against 2,000 draws take about a hundredth of that."""


def wasserstein(
    first: Float[np.ndarray, "..."], second: Float[np.ndarray, "..."], *, max_draws: int = 2000
) -> float:
    """Return the 1-Wasserstein distance between two samples, with Euclidean cost.

    The linear programme takes memory n m and time of about (n + m)³, so that **a sample of more
    than ``max_draws`` draws is thinned**: ``max_draws`` of its draws are kept, evenly spaced in
    the order they come, which suits Markov chains and independent draws alike. Between two finite
    samples of the same distribution the distance is not 0; compare with that of two such samples.

    Parameters
    ----------
    first : (n, d)
        Draws of one distribution; (n,) is read as (n, 1).
    second : (m, d)
        Draws of the other.
    max_draws
        Most draws of either sample that enter the programme.

    Returns
    -------
    float
        In the units of the draws.

    Raises
    ------
    RequestError
        POT is not installed; a sample is empty, not a matrix, or not finite; their numbers of
        columns differ; or the programme did not converge.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory.wasserstein import wasserstein
    >>> cloud = np.random.default_rng(0).normal(size=(300, 2))
    >>> round(wasserstein(cloud, cloud + [3.0, 4.0]), 6)
    5.0
    """
    checked_whole("max_draws", max_draws, 1)
    x, y = _sample(first, "first"), _sample(second, "second")
    if x.shape[1] != y.shape[1]:
        raise RequestError(
            f"The first sample has {x.shape[1]} columns and the second {y.shape[1]}; a distance "
            "needs samples of the same parameters."
        )
    return _transport_cost(cdist(_thin(x, max_draws), _thin(y, max_draws)))


def _sample(values: np.ndarray, name: str) -> Float[np.ndarray, "n d"]:
    sample = np.asarray(values, dtype=np.float64)
    sample = sample[:, None] if sample.ndim == 1 else sample
    if sample.ndim != 2 or not sample.size:
        raise RequestError(
            f"The {name} sample has the shape {np.shape(values)}; give at least one draw, as "
            "(draws, parameters)."
        )
    if not np.isfinite(sample).all():
        row = int(np.argmin(np.isfinite(sample).all(axis=1)))
        raise RequestError(f"Draw {row} of the {name} sample is not finite: {sample[row]}.")
    return sample


def _thin(sample: Float[np.ndarray, "n d"], most: int) -> Float[np.ndarray, "k d"]:
    n = len(sample)
    return sample if n <= most else sample[np.arange(most) * n // most]


def _transport_cost(costs: Float[np.ndarray, "n m"]) -> float:
    try:
        from ot.lp import emd2
    except ImportError:
        raise RequestError(
            "The Wasserstein distance needs POT; install it with: pip install 'decoct[ot]'."
        ) from None
    n, m = costs.shape
    # of order one, because POT's tolerances are absolute
    unit = float(costs.max()) or 1.0
    marginals = np.full(n, 1.0 / n), np.full(m, 1.0 / m)
    cost, log = emd2(*marginals, costs / unit, numItermax=MAX_PIVOTS, log=True)
    if log["warning"] is not None:
        raise RequestError(
            f"The transport between {n} and {m} draws was not solved ({log['warning']}); "
            "lower max_draws."
        )
    return float(cost) * unit
