"""Terms of third order: the skewness of the likelihood along each parameter, in a site.

With A the precision of a site and P that of the prior, C = (A + P)⁻¹ and δ ~ N(0, C), let
u_j = (Aδ)_j/A_jj, the mean linear predictor of the rows with parameter j, s_j its sd and
ρ_ij = Cor(u_i, u_j). Sizes γ of terms β(u_j/s_j), which are the third Hermite polynomial nearby,
are those nearest to the third derivatives of the likelihood:

    Σ_j ρ_ij³ γ_j = s_i³ Σ_n E ∂³f_n/∂φ_i³,

if all rows that parameter i belongs to vary together with u_i. A parameter most of whose curvature
is in kept rows has γ = 0. Sizes are bounded so that each term alone leaves the site concave, and,
where there are pairs, all terms together.

Groups with a slope have terms of two parameters together: `passes.paired_terms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int

from decoct.models.site import ThirdOrder, bounded_cubic
from decoct.passes.expansions import Expansion
from decoct.passes.potentials import Curvature

if TYPE_CHECKING:
    from decoct.passes.paired_terms import PairedTerms

CONCAVE = 0.44
"""Largest γ, in nats and of v²/A_jj, with which the term alone leaves the site concave."""

CONCAVE_WITHIN = 1e-2
"""Most by which the bound on all terms together is exceeded: where its reduction ends."""

NEGLIGIBLE = 1e-5
"""KL in nats, Σ γ²/12, below which a site is without terms: a quadratic is sampled sooner."""

NO_SKEWNESS = 1e-5
"""Size in nats below which there is no such term: 1e-11 nats of KL, or rounding."""

LEAST_LEFT = 0.1
"""Part of the curvature of a parameter that the site must have for a term of third order."""

SPARSE = 0.05
"""Share of entries that are not 0 up to which a sparse product is the quicker one."""

RIDGE = 1e-6
"""Added to the correlations: parameters of the same rows have the same terms."""


class Skewness(NamedTuple):
    """Third derivatives of all rows along each parameter and pair, and terms made of them."""

    at: Expansion
    sums: Curvature  # of all rows
    offsets: tuple[int, ...] = ()  # j − i of pairs (i, j)

    @classmethod
    def of(cls, at: Expansion, sums: Curvature, offsets: tuple[int, ...] = ()) -> Skewness | None:
        """Return it; None where it is not known, or negligible."""
        if at.covariance is None or not sums.thirds.ndim:
            return None
        found = cls(at, sums, offsets)
        squares = (found.largest**2).sum() + (found._pairs()[1] ** 2).sum()
        return found if squares / 12.0 >= NEGLIGIBLE else None

    @property
    def largest(self) -> Float[np.ndarray, " d"]:
        """About the largest size that the term of each parameter may have."""
        return np.abs(self.sums.thirds[: len(self._sd)]) * self._sd**3

    def third_order(
        self, precision: Float[np.ndarray, "d d"], kept: Curvature
    ) -> ThirdOrder | None:
        """Return the terms of a site of all rows but the kept ones; None if none is large."""
        terms = self._terms(precision)
        sizes = _bound(terms, _solve(terms, terms.right_side(self.sums.thirds - kept.thirds)))
        sizes[np.abs(sizes) <= NO_SKEWNESS] = 0.0
        return terms.third_order(sizes) if sizes.any() else None

    def basis(self, phi: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "S T"]:
        """Return what a unit of each third derivative adds to the terms, at draws."""
        terms = self._terms(-self.sums.hessian)
        sizes = _solve(terms, terms.right_side(self.sums.thirds))
        part = _bound(terms, sizes) / np.where(sizes == 0.0, 1.0, sizes)
        product = (self.at.centre - phi) @ self.sums.hessian[:, terms.effects]
        values = _solve(terms, (bounded_cubic(terms.along(product)) * part).T).T
        return terms.by_third(values, len(self.sums.thirds))

    @property
    def _sd(self) -> Float[np.ndarray, " d"]:
        return np.sqrt(np.diag(np.asarray(self.at.covariance)))

    def _pairs(self) -> tuple[Int[np.ndarray, "3 P"], Float[np.ndarray, " P"]]:
        """Return the result of `find_pairs`."""
        if not self.offsets:
            return np.zeros((3, 0), dtype=np.int64), np.zeros(0)
        from decoct.passes.paired_terms import find_pairs  # most models do without

        return find_pairs(self.sums.thirds, self._sd, self.offsets, NO_SKEWNESS)

    def _terms(self, precision: Float[np.ndarray, "d d"]) -> Terms | PairedTerms:
        """Return what the terms of a site with this precision are made of."""
        pairs, _ = self._pairs()
        is_skewed = self.largest >= NO_SKEWNESS
        is_skewed[pairs[:2]] = True
        effects = np.flatnonzero(is_skewed)
        rows, none = precision[effects], np.eye(len(effects))
        is_left = np.diag(rows[:, effects]) > -LEAST_LEFT * np.diag(self.sums.hessian)[effects]
        are_left, covariance = np.outer(is_left, is_left), np.asarray(self.at.covariance)
        among = np.where(are_left, _sandwich(rows, covariance), none)
        within = np.where(are_left, rows[:, effects], none)
        scales, own = np.sqrt(np.maximum(np.diag(among), 0.0)), np.diag(within)
        correlations = among / np.outer(scales, scales)
        np.fill_diagonal(correlations, 1.0)
        if pairs.size:
            from decoct.passes.paired_terms import PairedTerms

            of_effects = effects, scales, correlations, within, is_left
            return PairedTerms.of(*of_effects, pairs, len(precision))
        cubes = is_left * (scales / own) ** 3
        return Terms(effects, scales, correlations, cubes, scales**2 / own)


def _sandwich(
    rows: Float[np.ndarray, "k d"], covariance: Float[np.ndarray, "d d"]
) -> Float[np.ndarray, "k k"]:
    """Return R C Rᵀ."""
    if np.count_nonzero(rows) > SPARSE * rows.size:
        return (rows @ covariance) @ rows.T
    sparse = scipy.sparse.csr_array(rows)
    return sparse @ (sparse @ covariance).T


def _solve(
    terms: Terms | PairedTerms, right: Float[np.ndarray, "t ..."]
) -> Float[np.ndarray, "t ..."]:
    """Return (ρ³)⁻¹ times a vector or columns."""
    cubed = terms.correlations**3
    cubed[np.diag_indices_from(cubed)] += RIDGE
    return scipy.linalg.solve(cubed, right, assume_a="pos")


def _bound(terms: Terms | PairedTerms, sizes: Float[np.ndarray, " t"]) -> Float[np.ndarray, " t"]:
    """Return sizes with which the site is concave: each alone, with pairs all together.

    With terms along Wᵀ(Aδ) and D = diag |γ|/`CONCAVE` it is, if no eigenvalue of √D WᵀAW √D is
    above 1. The sums of its rows' absolute values are not. Terms of single parameters alone leave
    less for kept rows to do where each is bounded by itself.
    """
    most = CONCAVE * np.minimum(1.0, terms.widths)
    sizes = np.clip(sizes, -most, most)
    if isinstance(terms, Terms):
        return sizes
    among = np.abs(terms.among)
    while True:
        root = np.sqrt(np.abs(sizes) / CONCAVE)
        total = root * (among @ root)
        if not (total > 1.0 + CONCAVE_WITHIN).any():
            return sizes
        sizes = sizes / np.maximum(total, 1.0)


class Terms(NamedTuple):
    """Terms along (Aδ)_j of single parameters."""

    effects: Int[np.ndarray, " k"]
    scales: Float[np.ndarray, " k"]  # v, sd of (Aδ)_j
    correlations: Float[np.ndarray, "k k"]
    cubes: Float[np.ndarray, " k"]  # s_j³; 0 where kept rows have the curvature
    widths: Float[np.ndarray, " k"]  # v²/A_jj

    def right_side(self, thirds: Float[np.ndarray, " T"]) -> Float[np.ndarray, " k"]:
        """Return s_i³ Σ_n E ∂³f_n/∂φ_i³."""
        return self.cubes * thirds[self.effects]

    def along(self, product: Float[np.ndarray, "S k"]) -> Float[np.ndarray, "S k"]:
        """Return the directions, of variance 1, given (Aδ)_j."""
        return product / self.scales

    def third_order(self, sizes: Float[np.ndarray, " k"]) -> ThirdOrder:
        """Return terms of these sizes."""
        return ThirdOrder(self.effects, self.scales, sizes)

    def by_third(self, values: Float[np.ndarray, "S k"], n: int) -> Float[np.ndarray, "S T"]:
        """Return what each third derivative has of values of the terms."""
        basis = np.zeros((len(values), n))
        basis[:, self.effects] = values * self.cubes
        return basis
