"""How the error of a coreset grows from one posterior to another.

M weights fitted at a Gaussian π_0 match a log-likelihood to about the order p − 1, where p is the
lowest with more than M polynomials of degree 1 to p in d variables, C(d + p, p) − 1 > M. What is
left is of order p and, if the weights match some of that too, in part of order p + 1. In the
whitened coordinates x of π_0 the remainder is orthogonal to polynomials of lower degree, to leading
order r = Σ_{|α|=p} c_α He_α(x)/√α!; without a preferred direction the c_α are uncorrelated and of
one variance. At another Gaussian, of mean u and covariance S in the same coordinates, the mean over
c of the variance of r, over that at π_0, is

    g = Σ_{|α|=p} (E He_α(x)² − (E He_α(x))²)/α! / C(d + p − 1, p).

Along the principal axes of S the coordinates are independent, so that both sums are coefficients of
t^p in products of d series, Π_i Σ_k t^k E He_k(x_i)²/k! and Π_i Σ_k t^k (E He_k(x_i))²/k!. In one
dimension, for S = 1 and p = 3, that is g = 1 + 3u² + 3u⁴/2. The derivation is decoct's own.
"""

from __future__ import annotations

from math import comb, factorial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.polynomial.hermite_e import hermegauss, hermevander

from decoct.stats.divergences import Gaussian

LOWEST, HIGHEST = 3, 10
"""Between these p is taken to be. Fits of few rows, which miss the first two orders, leave some of
the third too; a fit to the tenth leaves rounding."""

SMALLEST = 1e-12
"""Variance along a principal axis of the correlations below which it is rounding."""


def remainder_order(size: int, dim: int) -> int:
    """Return p, the lowest order that so many rows need not match."""
    orders = range(LOWEST, HIGHEST)
    return next((p for p in orders if comb(dim + p, p) - 1 > size), HIGHEST)


def whitening(place: Gaussian) -> Float[np.ndarray, "d d"]:
    """Return W, so that (z − mean) W has as its coordinates those along the principal axes.

    The axes are those of the correlations, and the coordinates of variance one.
    """
    variances, axes = np.linalg.eigh(place.cov / np.outer(place.sd, place.sd))
    return axes / np.sqrt(np.maximum(variances, SMALLEST)) / place.sd[:, None]


class Growth(NamedTuple):
    """By how much the square of an error is larger at one posterior than at another; at least 1.

    An error that would become smaller is not counted on to do so.

    Attributes
    ----------
    expected
        Of a remainder of order p.
    bound
        Of a remainder of any order from 1 to p + 1, whichever grows most.
    """

    expected: float
    bound: float

    @classmethod
    def of(cls, start: Gaussian, end: Gaussian, order: int) -> Growth:
        """Return the growth of a remainder of order p, measured at one posterior, at another."""
        found = np.maximum(1.0, growths(start, end, order + 1))  # which keeps a NaN
        return cls(float(found[order - 1]), float(found.max()))


def growths(start: Gaussian, end: Gaussian, orders: int) -> Float[np.ndarray, " p"]:
    """Return g for the remainders of order 1 to ``orders``.

    Parameters
    ----------
    start
        Where the error was measured; its covariance has an inverse.
    end
        Where it is asked for.
    orders
        The highest order.
    """
    w = whitening(start)
    variances, axes = np.linalg.eigh(w.T @ end.cov @ w)
    u = (end.mean - start.mean) @ w @ axes
    squares, means = _moments(u, np.maximum(variances, 0.0), orders)
    numbers = [comb(start.dim + k - 1, k) for k in range(1, orders + 1)]
    return (_product(squares) - _product(means))[1:] / numbers


def _moments(
    u: Float[np.ndarray, " d"], variances: Float[np.ndarray, " d"], orders: int
) -> tuple[Float[np.ndarray, "d k"], Float[np.ndarray, "d k"]]:
    """Return E He_k(x)²/k! and (E He_k(x))²/k! of each coordinate, k from 0, by quadrature."""
    nodes, weights = hermegauss(orders + 1)
    values = hermevander(u[:, None] + np.sqrt(variances)[:, None] * nodes, orders)
    weights, scale = weights / weights.sum(), [float(factorial(k)) for k in range(orders + 1)]
    mean, square = (np.einsum("n,ink->ik", weights, v) for v in (values, values**2))
    return square / scale, mean**2 / scale


def _product(series: Float[np.ndarray, "d k"]) -> Float[np.ndarray, " k"]:
    """Return the product of power series, cut off where they are."""
    product = series[0]
    for one in series[1:]:
        product = np.convolve(product, one)[: len(one)]
    return product
