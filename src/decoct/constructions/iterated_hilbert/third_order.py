"""Terms of third order of a site: the skewness of the groups of a multilevel model.

Terms of groups that share rows, as classes and their schools do, are correlated. With
ρ_ij = Cor((Aδ)_i, (Aδ)_j), A the site's precision, and s_j the sd of (Aδ)_j/A_jj,

    Σ_j ρ_ij³ γ_j = s_i³ Σ E ∂³ℓ_n    over the rows of group i.

A group of which kept rows have most of the curvature has γ = 0. Sizes γ are bounded so that each
term alone leaves the site concave.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from decoct.data.base import Columns
from decoct.models.site import ThirdOrder, bounded_cubic
from decoct.passes.expansions import Expansion
from decoct.passes.potentials import Curvature, Potentials

CONCAVE = 0.44
"""Largest γ, in nats and of v²/A_jj, with which the term alone leaves the site concave."""

NO_SKEWNESS = 1e-5
"""Size in nats below which there is no such term: 1e-11 nats of KL, or rounding."""

LEAST_LEFT = 0.1
"""Part of the curvature of a group that the site must have for a term of third order."""

RIDGE = 1e-6
"""Added to the correlations: groups of the same rows have the same terms."""


class SkewedGroups(NamedTuple):
    """Groups of rows, by the effects that these add, and Σ E ∂³ℓ_n over each."""

    at: Expansion
    sums: Curvature  # of all rows
    is_indicator: Bool[np.ndarray, " K"]  # places of a row that pick effects of groups, not slopes

    @classmethod
    def of(cls, at: Expansion, sums: Curvature) -> SkewedGroups | None:
        """Return them; None where all that is skew is rounding."""
        found = cls(at, sums, sums.thirds[:, -1] == 0.0)
        largest = np.abs(found.thirds(sums)) * np.diag(np.asarray(at.covariance)) ** 1.5
        return found if largest.max() >= NO_SKEWNESS else None

    def thirds(self, some: Curvature) -> Float[np.ndarray, " d"]:
        """Return Σ E ∂³ℓ_n of some rows over those of each group, 0 for other entries of φ."""
        return some.thirds[self.is_indicator, :-1].sum(axis=0)

    def third_order(
        self, precision: Float[np.ndarray, "d d"], kept: Curvature
    ) -> ThirdOrder | None:
        """Return the terms of a site of all rows but the kept ones; None if none is skew."""
        terms = self._terms(precision)
        sizes = terms.bounded(terms.sizes(self.thirds(self.sums) - self.thirds(kept)))
        sizes[np.abs(sizes) <= NO_SKEWNESS] = 0.0
        return ThirdOrder(terms.effects, terms.scales, sizes) if sizes.any() else None

    def basis(self, phi: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "S d"]:
        """Return the terms of all rows at draws, a unit of `thirds` each."""
        terms = self._terms(-self.sums.hessian)
        sizes = terms.sizes(self.thirds(self.sums))
        part = terms.bounded(sizes) / np.where(sizes == 0.0, 1.0, sizes)
        product = (self.at.centre - phi) @ self.sums.hessian[:, terms.effects]
        basis = np.zeros(phi.shape)
        values = bounded_cubic(product / terms.scales) * part
        basis[:, terms.effects] = (values @ terms.inverse) * terms.cubes
        return basis

    def vectors(
        self, potentials: Potentials, rows: Columns, basis: Float[np.ndarray, "S d"]
    ) -> Float[np.ndarray, "n S"]:
        """Return the part of each of some rows in the terms of a `basis`."""
        picks, thirds = potentials.picks(rows), potentials.thirds(rows, self.at)
        places = np.flatnonzero(self.is_indicator)
        return np.sum([thirds[:, a, None] * basis.T[picks[:, a]] for a in places], axis=0)

    def _terms(self, precision: Float[np.ndarray, "d d"]) -> _Terms:
        """Return what the terms of a site with this precision are made of."""
        # the same effects whatever rows are kept, for one program of the sampler
        effects = np.flatnonzero(self.thirds(self.sums))
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
