"""Terms of third order: the skewness of the likelihood along each parameter, in a site.

With A the precision of a site and P that of the prior, C = (A + P)⁻¹ and δ ~ N(0, C), let
u_j = (Aδ)_j/A_jj, the mean linear predictor of the rows with parameter j, s_j its sd and
ρ_ij = Cor(u_i, u_j). Sizes γ of terms β(u_j/s_j), which are the third Hermite polynomial nearby,
are those nearest to the third derivatives of the likelihood:

    Σ_j ρ_ij³ γ_j = s_i³ Σ_n E ∂³f_n/∂φ_i³,

if all rows that parameter i belongs to vary together with u_i. A parameter most of whose curvature
is in kept rows has γ = 0. Sizes are bounded so that each term alone leaves the site concave.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from decoct.models.site import ThirdOrder, bounded_cubic
from decoct.passes.expansions import Expansion
from decoct.passes.potentials import Curvature

CONCAVE = 0.44
"""Largest γ, in nats and of v²/A_jj, with which the term alone leaves the site concave."""

NEGLIGIBLE = 1e-5
"""KL in nats, Σ γ²/12, below which a site is without terms: a quadratic is sampled sooner."""

NO_SKEWNESS = 1e-5
"""Size in nats below which there is no such term: 1e-11 nats of KL, or rounding."""

LEAST_LEFT = 0.1
"""Part of the curvature of a parameter that the site must have for a term of third order."""

RIDGE = 1e-6
"""Added to the correlations: parameters of the same rows have the same terms."""


class Skewness(NamedTuple):
    """Third derivatives of all rows along each parameter, and terms made of them."""

    at: Expansion
    sums: Curvature  # of all rows

    @classmethod
    def of(cls, at: Expansion, sums: Curvature) -> Skewness | None:
        """Return it; None where it is not known, or negligible."""
        if at.covariance is None:
            return None
        found = cls(at, sums)
        return found if (found.largest**2).sum() / 12.0 >= NEGLIGIBLE else None

    @property
    def largest(self) -> Float[np.ndarray, " d"]:
        """About the largest size that the term of each parameter may have."""
        return np.abs(self.sums.thirds) * np.diag(np.asarray(self.at.covariance)) ** 1.5

    @property
    def effects(self) -> Int[np.ndarray, " k"]:
        """Parameters along which the likelihood is skewed, whatever rows are kept."""
        return np.flatnonzero(self.largest >= NO_SKEWNESS)

    def third_order(
        self, precision: Float[np.ndarray, "d d"], kept: Curvature
    ) -> ThirdOrder | None:
        """Return the terms of a site of all rows but the kept ones; None if none is large."""
        terms = self._terms(precision)
        sizes = terms.bounded(terms.sizes(self.sums.thirds - kept.thirds))
        sizes[np.abs(sizes) <= NO_SKEWNESS] = 0.0
        return ThirdOrder(terms.effects, terms.scales, sizes) if sizes.any() else None

    def basis(self, phi: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "S d"]:
        """Return what a unit of each third derivative adds to the terms, at draws."""
        terms = self._terms(-self.sums.hessian)
        sizes = terms.sizes(self.sums.thirds)
        part = terms.bounded(sizes) / np.where(sizes == 0.0, 1.0, sizes)
        product = (self.at.centre - phi) @ self.sums.hessian[:, terms.effects]
        basis = np.zeros(phi.shape)
        values = bounded_cubic(product / terms.scales) * part
        basis[:, terms.effects] = (values @ terms.inverse) * terms.cubes
        return basis

    def _terms(self, precision: Float[np.ndarray, "d d"]) -> _Terms:
        """Return what the terms of a site with this precision are made of."""
        effects = self.effects
        rows, own = precision[effects], np.diag(precision)[effects]
        is_left = own > -LEAST_LEFT * np.diag(self.sums.hessian)[effects]
        among = (rows @ np.asarray(self.at.covariance)) @ rows.T
        scales = np.where(is_left, np.sqrt(np.maximum(np.diag(among), 0.0)), 1.0)
        own = np.where(is_left, own, 1.0)
        correlations = np.where(np.outer(is_left, is_left), among / np.outer(scales, scales), 0.0)
        np.fill_diagonal(correlations, 1.0)
        inverse = np.linalg.inv(correlations**3 + RIDGE * np.eye(len(effects)))
        most = CONCAVE * np.minimum(1.0, scales**2 / own)
        return _Terms(effects, scales, inverse, is_left * (scales / own) ** 3, most)


class _Terms(NamedTuple):
    effects: Int[np.ndarray, " k"]
    scales: Float[np.ndarray, " k"]  # sd of (Aδ)_j
    inverse: Float[np.ndarray, "k k"]  # of ρ_ij³
    cubes: Float[np.ndarray, " k"]  # s_j³
    most: Float[np.ndarray, " k"]  # nats

    def sizes(self, thirds: Float[np.ndarray, " d"]) -> Float[np.ndarray, " k"]:
        return self.inverse @ (self.cubes * thirds[self.effects])

    def bounded(self, sizes: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        return np.clip(sizes, -self.most, self.most)
