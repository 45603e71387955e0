"""How well aligned a set of vectors is: the constants of the bounds on Hilbert coresets.

For vectors L_n with sum L, norms σ_n = ‖L_n‖ and σ = Σσ_n (Campbell & Broderick 2019):

    η̄ = max_{n,m} ‖L_n/σ_n − L_m/σ_m‖                                        (Eq. 3.3)
    dim, the approximate dimension                                           (Eq. 3.4)
    η² = 1 − ‖L‖²/σ²                                                         (Eq. 4.1)
    ν² = 1 − r²/(σ²η̄²), r the distance from L to the boundary of
         the convex hull of {σ L_n/σ_n}                                      (Eq. 4.10)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.spatial import ConvexHull, QhullError

from decoct.errors import RequestError
from decoct.solvers.nnls import UnitVectors

MAX_PAIRS = 20_000
"""Directions between which every distance is computed for η̄; of more, an upper bound is given."""

MAX_HULL_DIM = 7
"""Dimension of the affine hull of the directions above which ν is not computed."""

MAX_FACETS = 100_000
"""Facets after which the convex hull stops growing; r is then a lower bound."""

NUMBERS_AT_ONCE = 8_000_000
"""Numbers in a block of a matrix that is too large to store whole: 64 MB."""

SAME_SUM = 1e-8
"""‖target − ΣL_n‖/σ up to which a target counts as the sum of the vectors."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """The constants that the bounds are made of; zero vectors enter `n_vectors` alone.

    Attributes
    ----------
    n_vectors
        N, zero vectors included.
    norms : (N,)
        σ_n = ‖L_n‖; 0 for a zero vector.
    sigma
        σ = Σσ_n, in the units of the vectors.
    eta
        η ∈ [0, 1] (Eq. 4.1); 0 if all vectors point the same way, or are zero.
    etabar
        η̄ ∈ [0, 2] (Eq. 3.3), or an upper bound, with which all bounds still hold; 0 as for η.
    etabar_exact
        Whether ``etabar`` is the maximum itself.
    nu
        ν ∈ [√¾, 1] (Eq. 4.10), or an upper bound; None where it is not known: the directions
        span too many dimensions, the hull could not be computed, or there is only one direction.
    nu_exact
        Whether ``nu`` is exact; an upper bound comes from an inexact η̄ or an unfinished hull.
    dim
        Upper bound on the approximate dimension (Definition 3.1): the fewest leading principal
        directions that come within d/√N of every unit vector. At most the rank.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import geometry
    >>> found = geometry(np.array([[1.0, 0.0], [0.0, 1.0]]))
    >>> round(found.sigma, 3), round(found.etabar, 3), round(found.eta, 3)
    (2.0, 1.414, 0.707)
    """

    n_vectors: int
    norms: Float[np.ndarray, " N"]
    sigma: float
    eta: float
    etabar: float
    etabar_exact: bool
    nu: float | None
    nu_exact: bool
    dim: int

    def __str__(self) -> str:
        nu = "unknown" if self.nu is None else f"{'' if self.nu_exact else '≤ '}{self.nu:.6g}"
        return (
            f"N = {self.n_vectors} vectors, σ = {self.sigma:.4g}, η = {self.eta:.4g}, "
            f"η̄ {'=' if self.etabar_exact else '≤'} {self.etabar:.4g}, "
            f"ν = {nu}, dimension ≤ {self.dim}"
        )


def geometry(
    vectors: Float[np.ndarray, "N S"], target: Float[np.ndarray, " S"] | None = None
) -> Geometry:
    """Return σ, η, η̄, ν and the dimension of a set of vectors.

    η̄ takes O(N²S) operations up to `MAX_PAIRS` directions that can matter, in blocks; ν a convex
    hull where the directions span at most `MAX_HULL_DIM` dimensions.

    Parameters
    ----------
    vectors : (N, S)
        All the vectors L_n: the theorems are about a whole data set, not about a pool from it.
    target : (S,)
        L, if it is at hand; it must be the sum of the vectors, which is the default.

    Returns
    -------
    Geometry
        The constants of the bounds, in the units of the vectors.

    Raises
    ------
    RequestError
        The target is not the sum of the vectors, or the vectors are not (N, S), at least (1, 1).
    ValueError
        The target has another shape, or entries are NaN or infinite; the message names the row.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import geometry
    >>> found = geometry(np.array([[1.0, 0.0], [0.0, 1.0]]))
    >>> round(found.sigma, 3), round(found.etabar, 3), round(found.eta, 3)
    (2.0, 1.414, 0.707)
    """
    vectors = np.asarray(vectors, dtype=np.float64)
    if vectors.ndim != 2 or not vectors.size:
        raise RequestError(f"The vectors must be (N, S), at least (1, 1), not {vectors.shape}.")
    total = vectors.sum(axis=0)
    scaled = UnitVectors.scaled(vectors, total if target is None else target)
    norms = np.where(scaled.usable, scaled.norms, 0.0)
    sigma = float(norms.sum())
    if np.linalg.norm(scaled.target - total) > SAME_SUM * sigma:
        raise RequestError(
            "The target is not the sum of the vectors; the bounds hold for all rows at once, so "
            "give the vectors of every row, not of a pool."
        )
    if not scaled.usable.any():
        return Geometry(len(vectors), norms, 0.0, 0.0, 0.0, True, None, False, 0)
    units = scaled.vectors if scaled.usable.all() else scaled.vectors[scaled.usable]
    shares = norms[scaled.usable] / sigma
    # From here L/σ is the origin: 1 − ‖L‖²/σ² would lose the digits that aligned vectors leave.
    points = units - shares @ units
    squares = np.square(points).sum(axis=1)
    etabar, exact = _diameter(points, np.sqrt(squares))
    # Lemma A.4, but for rounding
    eta = min(float(np.sqrt(shares @ squares)), etabar / np.sqrt(2.0))
    radius, whole = _inner_radius(points)
    nu, nu_exact = None, False
    if radius is not None and etabar > 0.0:
        nu, nu_exact = float(np.sqrt(1.0 - (radius / etabar) ** 2)), whole and exact
    return Geometry(len(vectors), norms, sigma, eta, etabar, exact, nu, nu_exact, _dim(units))


def _diameter(
    points: Float[np.ndarray, "n S"], radii: Float[np.ndarray, " n"]
) -> tuple[float, bool]:
    """Return the largest distance between two points and True, or an upper bound and False."""
    lower, at = 0.0, int(np.argmax(radii))
    for _ in range(4):
        distances = np.linalg.norm(points - points[at], axis=1)
        at = int(np.argmax(distances))
        lower = max(lower, float(distances[at]))
    candidate = radii + radii.max() >= lower * (1.0 - 1e-9)  # the others are in no longest pair
    candidates = np.unique(points[candidate], axis=0)
    if len(candidates) > MAX_PAIRS:
        return min(2.0, float(np.partition(radii, -2)[-2:].sum())), False
    return min(2.0, max(lower, _longest(candidates))), True


def _longest(points: Float[np.ndarray, "n S"]) -> float:
    squares = np.square(points).sum(axis=1)
    longest, step = 0.0, max(1, NUMBERS_AT_ONCE // len(points))
    for begin in range(0, len(points), step):
        block, rest = points[begin : begin + step], points[begin:]
        found = squares[begin : begin + step, None] + squares[None, begin:] - 2.0 * block @ rest.T
        i, j = np.unravel_index(np.argmax(found), found.shape)
        longest = max(longest, float(np.linalg.norm(block[i] - rest[j])))
    return longest


def _inner_radius(points: Float[np.ndarray, "n S"]) -> tuple[float | None, bool]:
    """Return the distance from the origin to the relative boundary of conv(points), or None.

    The second value tells whether it is exact; otherwise it is a lower bound. Directions in which
    unit vectors differ by rounding alone do not count as dimensions.
    """
    n, S = points.shape
    reduced = np.linalg.qr(points, mode="r") if n > S else points
    _, singular, axes = np.linalg.svd(reduced, full_matrices=False)
    rank = int((singular > max(n, S) * np.finfo(float).eps * np.sqrt(n)).sum())
    if not 1 <= rank <= MAX_HULL_DIM:
        return None, False
    inside = points @ axes[:rank].T
    if rank == 1:
        radius, whole = float(min(inside.max(), -inside.min())), True
    else:
        try:
            radius, whole = _hull_radius(np.unique(inside, axis=0))
        except QhullError:
            return None, False
    if not whole and radius <= 0.0:
        return None, False
    # L is inside the hull (Lemma A.5): a negative distance is rounding
    return max(0.0, radius), whole


def _hull_radius(points: Float[np.ndarray, "n k"]) -> tuple[float, bool]:
    """Grow the hull point by point, in an order without pattern, until it is whole or too large."""
    order = np.random.default_rng(0).permutation(len(points))
    done = min(len(points), 4 * points.shape[1])
    hull = ConvexHull(points[order[:done]], incremental=True)
    while done < len(points) and len(hull.equations) <= MAX_FACETS:
        more = order[done : done + max(8, done // 4)]
        hull.add_points(points[more])
        done += len(more)
    radius = float(-hull.equations[:, -1].max())
    hull.close()
    return radius, done == len(points)


def _dim(units: Float[np.ndarray, "n S"]) -> int:
    """Return the fewest principal directions that come within d/√n of every unit vector."""
    n, S = units.shape
    if n > S:
        axes = np.linalg.eigh(units.T @ units)[1][:, ::-1]
    else:
        axes = np.linalg.svd(units, full_matrices=False)[2].T
    left = np.zeros(axes.shape[1])  # left[d]: the largest squared distance from the first d
    step = max(1, NUMBERS_AT_ONCE // S)
    for begin in range(0, n, step):
        squares = np.square(units[begin : begin + step] @ axes)
        tails = np.cumsum(squares[:, ::-1], axis=1)[:, ::-1]
        left = np.maximum(left, tails.max(axis=0))
    near = np.sqrt(left) <= np.arange(len(left)) / np.sqrt(n)
    return int(np.argmax(near)) if near.any() else len(left)
