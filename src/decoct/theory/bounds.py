"""Bounds on the error of Hilbert coresets, next to the error achieved.

The equations are those of Campbell & Broderick (2019), in the constants σ, η, η̄, ν and dim of
`alignment`: E‖L(W) − L‖² = σ²η²/M for importance sampling (Eq. 4.1), L(w) = Σ w_n L_n,
and the bounds on ‖L(w) − L‖ of Theorems 3.2, 4.1, 4.4 and 5.2 and Corollaries 4.2, 4.5 and 4.6,
each with its equation number below. M counts draws or greedy steps: the coreset has at most M rows.

H(y) = (1 + y) log(1 + y) − y (Eq. 4.4) is ½y² for small y, so that η_M of Eq. 4.3 falls to √2 η as
M grows; the remark after Theorem 4.1 takes H(y) for y² and so has η for the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import lambertw

from decoct.errors import RequestError
from decoct.runtime.text import text_table
from decoct.theory.alignment import Geometry

SERIES = 0.1
"""Below this y, H(y) is summed as a power series: the closed form cancels."""

Sizes = int | Sequence[int] | np.ndarray
Bound = float | np.ndarray


def bennett(y: float | np.ndarray) -> Bound:
    """Return H(y) = (1 + y) log(1 + y) − y (Eq. 4.4), to full relative accuracy.

    Parameters
    ----------
    y
        ≥ 0, one or several.

    Returns
    -------
    float or ndarray
        H ≥ 0, of the shape of ``y``.

    Examples
    --------
    >>> from decoct.theory.bounds import bennett
    >>> round(float(bennett(1.0)), 3)
    0.386
    """
    y = np.asarray(y, dtype=np.float64)
    small = np.minimum(y, SERIES)
    series = np.zeros_like(small)
    for k in range(17, 1, -1):  # Σ_{k≥2} (−y)^k/(k(k−1))
        series = 1.0 / (k * (k - 1)) - small * series
    closed = (1.0 + y) * np.log1p(y) - y
    return np.where(y < SERIES, small**2 * series, closed)[()]


def inverse_bennett(x: float | np.ndarray) -> Bound:
    """Return the y ≥ 0 with H(y) = x, to full relative accuracy.

    y = exp(1 + W((x − 1)/e)) − 1 with Lambert's W, from √(2x) + x/3 − … where x is small, both
    polished by Newton steps (H′(y) = log(1 + y)).

    Parameters
    ----------
    x
        ≥ 0, one or several.

    Returns
    -------
    float or ndarray
        y, of the shape of ``x``.

    Raises
    ------
    RequestError
        x is negative or NaN.

    Examples
    --------
    >>> from decoct.theory.bounds import bennett, inverse_bennett
    >>> round(float(inverse_bennett(bennett(2.0))), 6)
    2.0
    """
    x = np.asarray(x, dtype=np.float64)
    if not (x >= 0.0).all():
        raise RequestError(f"H has an inverse only at x ≥ 0; give such an x, not {x}.")
    root = np.sqrt(2.0 * x)
    start = root + root**2 / 6.0 - root**3 / 72.0
    y = np.where(root < 0.3, start, np.expm1(1.0 + lambertw((x - 1.0) / np.e).real))
    for _ in range(3):
        slope = np.where(y > 0.0, np.log1p(y), 1.0)
        y = y - (bennett(y) - x) / slope
    return y[()]


def eta_m(geometry: Geometry, size: Sizes, delta: float = 0.05) -> Bound:
    """Return η_M (Eq. 4.3), which falls from at most η̄ to √2 η as M grows.

    η_M = min(η̄, η x^(−½) H⁻¹(x)) with x = η̄² log(1/δ)/(2Mη²).

    Parameters
    ----------
    geometry, size, delta
        As for `uniform_coreset_bound`, like errors.

    Returns
    -------
    float or ndarray
        η_M, without unit, of the shape of ``size``.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import geometry
    >>> from decoct.theory.bounds import eta_m
    >>> at = geometry(np.eye(2))
    >>> bool(eta_m(at, 4) <= at.etabar)
    True
    """
    sizes, log_odds = _sizes(size), _log_inverse(delta)
    if geometry.eta == 0.0:
        return np.zeros_like(sizes)[()]
    x = geometry.etabar**2 * log_odds / (2.0 * sizes * geometry.eta**2)
    return np.minimum(geometry.etabar, geometry.eta * inverse_bennett(x) / np.sqrt(x))[()]


def uniform_coreset_bound(geometry: Geometry, size: Sizes, delta: float = 0.05) -> Bound:
    """Return (σ/√M)(3/2 dim + η̄√(2 log 1/δ)), with probability 1 − δ (Theorem 3.2, Eq. 3.5).

    Holds in any norm: Algorithm 1 and the uniform coreset (Eq. 2.5) draw alike.

    Parameters
    ----------
    geometry
        From `geometry`.
    size
        M ≥ 1, one or several.
    delta
        δ ∈ (0, 1), the probability that the bound may fail.

    Returns
    -------
    float or ndarray
        On ‖L(w) − L‖, in the units of the vectors, of the shape of ``size``.

    Raises
    ------
    RequestError
        M below 1 or no whole number, δ not in (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import geometry
    >>> from decoct.theory.bounds import uniform_coreset_bound
    >>> at = geometry(np.eye(2))
    >>> bool(uniform_coreset_bound(at, 16) < uniform_coreset_bound(at, 4))
    True
    """
    sizes, log_odds = _sizes(size), _log_inverse(delta)
    spread = 1.5 * geometry.dim + geometry.etabar * np.sqrt(2.0 * log_odds)
    return geometry.sigma / np.sqrt(sizes) * spread


def importance_sampling_bound(geometry: Geometry, size: Sizes, delta: float = 0.05) -> Bound:
    """Return (σ/√M)(η + η_M √(2 log 1/δ)), with probability 1 − δ (Theorem 4.1, Eq. 4.2-4.3).

    Parameters
    ----------
    geometry, size, delta
        As for `uniform_coreset_bound`, like errors.

    Returns
    -------
    float or ndarray
        On ‖L(w) − L‖, in the units of the vectors, of the shape of ``size``.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import geometry
    >>> from decoct.theory.bounds import importance_sampling_bound
    >>> at = geometry(np.eye(2))
    >>> bool(importance_sampling_bound(at, 16) < importance_sampling_bound(at, 4))
    True
    """
    sizes, log_odds = _sizes(size), _log_inverse(delta)
    spread = geometry.eta + eta_m(geometry, size, delta) * np.sqrt(2.0 * log_odds)
    return geometry.sigma / np.sqrt(sizes) * spread


def importance_sampling_simple_bound(geometry: Geometry, size: Sizes, delta: float = 0.05) -> Bound:
    """Return (ση̄/√M)(1 + √(2 log 1/δ)), with probability 1 − δ (Corollary 4.2, Eq. 4.5).

    Parameters
    ----------
    geometry, size, delta
        As for `uniform_coreset_bound`, like errors.

    Returns
    -------
    float or ndarray
        On ‖L(w) − L‖, in the units of the vectors, of the shape of ``size``.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import geometry
    >>> from decoct.theory.bounds import importance_sampling_simple_bound
    >>> at = geometry(np.eye(2))
    >>> round(float(importance_sampling_simple_bound(at, 4)), 2)
    4.88
    """
    return merged_importance_sampling_bound(geometry, size, 1, delta)


def expected_importance_sampling_error(geometry: Geometry, size: Sizes) -> Bound:
    """Return √(E‖L(W) − L‖²) = ση/√M of importance sampling, an equality (Eq. 4.1).

    Parameters
    ----------
    geometry, size
        As for `uniform_coreset_bound`, like errors.

    Returns
    -------
    float or ndarray
        In the units of the vectors, of the shape of ``size``.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import geometry
    >>> from decoct.theory.bounds import expected_importance_sampling_error
    >>> at = geometry(np.eye(2))
    >>> round(float(expected_importance_sampling_error(at, 4)), 3)
    0.707
    """
    return geometry.sigma * geometry.eta / np.sqrt(_sizes(size))


def frank_wolfe_bound(geometry: Geometry, size: Sizes) -> Bound:
    """Return the bound on Frank-Wolfe with exact line search (Theorem 4.4, Eq. 4.11, left side).

    σηη̄ν / √(η̄²ν^(−2(M−2)) + η²(M−1)). It grows with ν, so that 1 can stand in for a ν that is not
    known.

    Parameters
    ----------
    geometry, size
        As for `uniform_coreset_bound`, like errors.

    Returns
    -------
    float or ndarray
        On ‖L(w) − L‖, in the units of the vectors, of the shape of ``size``.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import geometry
    >>> from decoct.theory.bounds import frank_wolfe_bound
    >>> at = geometry(np.eye(2))
    >>> bool(frank_wolfe_bound(at, 4) <= 2.0)
    True
    """
    sizes = _sizes(size)
    if geometry.eta == 0.0:
        return np.zeros_like(sizes)[()]
    squared = 1.0 if geometry.nu is None else geometry.nu**2
    steps = sizes - 1.0
    # Multiplied out by ν^(M−1), which underflows to the right limit where ν^(−M) would overflow.
    tail = (geometry.eta / geometry.etabar) ** 2 * steps * squared ** np.maximum(steps - 1.0, 0.0)
    return geometry.sigma * geometry.eta * np.sqrt(squared**steps / (1.0 + tail))


def frank_wolfe_simple_bound(geometry: Geometry, size: Sizes) -> Bound:
    """Return ση̄/√M for Frank-Wolfe with exact line search (Theorem 4.4, Eq. 4.11, right side).

    Parameters
    ----------
    geometry, size
        As for `uniform_coreset_bound`, like errors.

    Returns
    -------
    float or ndarray
        On ‖L(w) − L‖, in the units of the vectors, of the shape of ``size``.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import geometry
    >>> from decoct.theory.bounds import frank_wolfe_simple_bound
    >>> at = geometry(np.eye(2))
    >>> round(float(frank_wolfe_simple_bound(at, 4)), 3)
    1.414
    """
    return geometry.sigma * geometry.etabar / np.sqrt(_sizes(size))


def fixed_step_bound(geometry: Geometry, size: Sizes) -> Bound:
    """Return 2ση̄/√(3M + 1) for Frank-Wolfe with the steps γ_t = 2/(3t + 4) (Eq. 4.12).

    Parameters
    ----------
    geometry, size
        As for `uniform_coreset_bound`, like errors.

    Returns
    -------
    float or ndarray
        On ‖L(w) − L‖, in the units of the vectors, of the shape of ``size``.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import geometry
    >>> from decoct.theory.bounds import fixed_step_bound
    >>> at = geometry(np.eye(2))
    >>> round(float(fixed_step_bound(at, 4)), 3)
    1.569
    """
    return 2.0 * geometry.sigma * geometry.etabar / np.sqrt(3.0 * _sizes(size) + 1.0)


def merged_importance_sampling_bound(
    geometry: Geometry, size: Sizes, parts: int, delta: float = 0.05
) -> Bound:
    """Return (ση̄/√M)(1 + √(2 log C/δ)), with probability 1 − δ (Corollary 4.5, Eq. 4.13).

    Parameters
    ----------
    geometry
        The geometry of all vectors together.
    size
        M draws on *each* part; the union has at most M·C rows.
    parts
        C, the number of parts that coresets were built of apart and merged.
    delta
        δ, for all parts at once.

    Returns
    -------
    float or ndarray
        On ‖L(w) − L‖, in the units of the vectors, of the shape of ``size``.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import geometry
    >>> from decoct.theory.bounds import merged_importance_sampling_bound
    >>> at = geometry(np.eye(2))
    >>> round(float(merged_importance_sampling_bound(at, 4, 2)), 2)
    5.26
    """
    sizes, log_odds = _sizes(size), _log_inverse(delta) + np.log(_count("parts", parts))
    spread = 1.0 + np.sqrt(2.0 * log_odds)
    return geometry.sigma * geometry.etabar / np.sqrt(sizes) * spread


def merged_frank_wolfe_bound(geometry: Geometry, size: Sizes) -> Bound:
    """Return ση̄/√M for the union of Frank-Wolfe coresets of M steps each (Corollary 4.6, Eq. 4.14).

    The number of parts does not enter; the geometry is that of all vectors together.

    Parameters
    ----------
    geometry, size
        As for `uniform_coreset_bound`, like errors.

    Returns
    -------
    float or ndarray
        On ‖L(w) − L‖, in the units of the vectors, of the shape of ``size``.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import geometry
    >>> from decoct.theory.bounds import merged_frank_wolfe_bound
    >>> at = geometry(np.eye(2))
    >>> round(float(merged_frank_wolfe_bound(at, 4)), 3)
    1.414
    """
    return frank_wolfe_simple_bound(geometry, size)


def projection_bound(
    projected_error: float | np.ndarray,
    weight_distance: float | np.ndarray,
    *,
    xi2: float,
    draws: int,
    n_rows: int,
    delta: float = 0.05,
) -> Bound:
    """Bound the true error from that of the random projection (Theorem 5.2, Eq. 5.13).

    √(‖L̂ − L̂(w)‖² + ‖w − 1‖₁² √((2ξ²/J) log(2N²/δ))), with probability 1 − δ. It is loose: ‖w − 1‖₁
    is near 2N for a small coreset.

    Parameters
    ----------
    projected_error
        ‖L̂ − L̂(w)‖, the error at the J draws.
    weight_distance
        ‖w − 1‖₁ over all N rows.
    xi2
        ξ², the sub-Gaussian constant of the products L_n(μ)L_m(μ) under the weighting distribution.
    draws
        J.
    n_rows
        N.
    delta
        δ.

    Returns
    -------
    float or ndarray
        In the units of the vectors, of the shape of the errors.

    Raises
    ------
    RequestError
        J or N below 1, δ not in (0, 1), or another number that is negative.

    Examples
    --------
    >>> from decoct.theory.bounds import projection_bound
    >>> bool(projection_bound(0.1, 3.0, xi2=1.0, draws=100, n_rows=50) >= 0.1)
    True
    """
    error, distance = np.asarray(projected_error), np.asarray(weight_distance)
    for name, value in (("xi2", xi2), ("projected_error", error), ("weight_distance", distance)):
        if not (np.asarray(value) >= 0.0).all():
            raise RequestError(f"{name} must not be negative or NaN, but it is {value}.")
    log_odds = np.log(2.0) + 2.0 * np.log(_count("n_rows", n_rows)) + _log_inverse(delta)
    slack = np.sqrt(2.0 * xi2 / _count("draws", draws) * log_odds)
    return np.sqrt(error**2 + distance**2 * slack)


class BoundRow(NamedTuple):
    """One line of the table.

    Attributes
    ----------
    size
        M.
    method
        The key of the achieved error that the bound is about.
    name
        The theorem and its equation.
    bound
        On ‖L(w) − L‖, in the units of the vectors.
    achieved
        ‖L(w) − L‖, or None if it was not given.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import bounds_report, geometry
    >>> len(bounds_report(geometry(np.eye(2)), 4).rows) > 0
    True
    """

    size: int
    method: str
    name: str
    bound: float
    achieved: float | None


@dataclass(frozen=True)
class BoundsTable:
    """Bounds next to achieved errors; prints as aligned text.

    Attributes
    ----------
    geometry
        The constants.
    delta
        The probability with which a bound on importance sampling may fail, each for itself.
    rows
        By size, then in the order of the paper.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import bounds_report, geometry
    >>> table = bounds_report(geometry(np.random.default_rng(0).normal(size=(20, 3))), [5, 10])
    >>> sorted({row.size for row in table.rows}), all(row.bound > 0.0 for row in table.rows)
    ([5, 10], True)
    """

    geometry: Geometry
    delta: float
    rows: tuple[BoundRow, ...]

    def __str__(self) -> str:
        cells = [("M", "method", "bound", "at most", "achieved")]
        for row in self.rows:
            achieved = "" if row.achieved is None else f"{row.achieved:.4g}"
            cells.append((str(row.size), row.method, row.name, f"{row.bound:.4g}", achieved))
        return f"{self.geometry}; δ = {self.delta:g}\n{text_table(cells, '><<>>')}"


def bounds_report(
    geometry: Geometry,
    sizes: Sizes,
    achieved: Mapping[str, Sequence[float] | np.ndarray] | None = None,
    delta: float = 0.05,
    parts: int = 1,
) -> BoundsTable:
    """Return all bounds at some sizes, next to the errors achieved.

    Parameters
    ----------
    geometry
        From `geometry`.
    sizes
        M, one or several.
    achieved
        Method -> ‖L(w) − L‖ at each size. Methods: ``importance_sampling`` (Algorithm 1),
        ``frank_wolfe`` (Algorithm 2), ``fixed_step`` (its steps 2/(3t + 4)) and, if there are
        several parts, ``merged_importance_sampling`` and ``merged_frank_wolfe``.
    delta
        δ.
    parts
        C, for the merged bounds; 1 leaves them out.

    Returns
    -------
    BoundsTable
        One `BoundRow` for each size and theorem; it prints as a table.

    Raises
    ------
    RequestError
        An unknown method, not one error per size, or a bad size, δ or number of parts.

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.theory import bounds_report, geometry
    >>> table = bounds_report(geometry(np.random.default_rng(0).normal(size=(20, 3))), [5, 10])
    >>> sorted({row.size for row in table.rows}), all(row.bound > 0.0 for row in table.rows)
    ([5, 10], True)
    """
    whole = [int(size) for size in np.atleast_1d(_sizes(sizes))]
    table = _bounds(geometry, delta, _count("parts", parts))
    achieved = achieved or {}
    for method, errors in achieved.items():
        known = sorted({method for method, _, _ in table})
        if method not in known:
            raise RequestError(
                f"There is no bound for the method '{method}'; choose from {', '.join(known)}."
            )
        if np.shape(errors) != (len(whole),):
            raise RequestError(
                f"'{method}' has errors of shape {np.shape(errors)} for {len(whole)} sizes; "
                "give one error per size."
            )
    rows = (
        BoundRow(
            M, method, name, float(bound(M)),
            float(achieved[method][at]) if method in achieved else None,
        )
        for at, M in enumerate(whole)
        for method, name, bound in table
    )  # fmt: skip
    return BoundsTable(geometry, delta, tuple(rows))


def _bounds(g: Geometry, delta: float, parts: int) -> list[tuple[str, str, Callable[[int], Bound]]]:
    sampling, greedy = "importance_sampling", "frank_wolfe"
    simple = importance_sampling_simple_bound
    table: list[tuple[str, str, Callable[[int], Bound]]] = [
        (sampling, "Theorem 3.2 (Eq. 3.5)", lambda M: uniform_coreset_bound(g, M, delta)),
        (sampling, "expected (Eq. 4.1)", lambda M: expected_importance_sampling_error(g, M)),
        (sampling, "Theorem 4.1 (Eq. 4.2)", lambda M: importance_sampling_bound(g, M, delta)),
        (sampling, "Corollary 4.2 (Eq. 4.5)", lambda M: simple(g, M, delta)),
        (greedy, "Theorem 4.4 (Eq. 4.11 left)", lambda M: frank_wolfe_bound(g, M)),
        (greedy, "Theorem 4.4 (Eq. 4.11 right)", lambda M: frank_wolfe_simple_bound(g, M)),
        ("fixed_step", "fixed steps (Eq. 4.12)", lambda M: fixed_step_bound(g, M)),
    ]
    if parts > 1:
        name = f"Corollary 4.5 (Eq. 4.13), {parts} parts"
        merged = merged_importance_sampling_bound
        table.append((f"merged_{sampling}", name, lambda M: merged(g, M, parts, delta)))
        name = f"Corollary 4.6 (Eq. 4.14), {parts} parts"
        table.append((f"merged_{greedy}", name, lambda M: merged_frank_wolfe_bound(g, M)))
    return table


def _sizes(size: Sizes) -> np.ndarray:
    sizes = np.asarray(size)
    if sizes.dtype.kind not in "iu" or not sizes.size or sizes.min() < 1:
        raise RequestError(f"The size M must be a whole number, at least 1, not {size!r}.")
    return sizes.astype(np.float64)


def _count(name: str, value: int) -> int:
    if value < 1:
        raise RequestError(f"{name} must be at least 1, not {value}.")
    return int(value)


def _log_inverse(delta: float) -> float:
    if not 0.0 < delta < 1.0:
        raise RequestError(
            f"delta, the probability that a bound may fail, is between 0 and 1, not {delta}."
        )
    return -float(np.log(delta))
