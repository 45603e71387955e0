"""Terms of third order: the skewness of the likelihood along each parameter, in a site.

With A the precision of a site and P that of the prior, C = (A + P)⁻¹ and δ ~ N(0, C), let
u_j = (Aδ)_j/A_jj, the mean linear predictor of the rows with parameter j, s_j its sd and
ρ_ij = Cor(u_i, u_j). Sizes γ of terms β(u_j/s_j), which are the third Hermite polynomial nearby,
are those nearest to the third derivatives of the likelihood:

    Σ_j ρ_ij³ γ_j = s_i³ Σ_n E ∂³f_n/∂φ_i³,

if all rows that parameter i belongs to vary together with u_i. A parameter most of whose curvature
is in kept rows has γ = 0. Sizes are bounded so that each term alone leaves the site concave.

Two parameters i, j that rows pick by the same index, such as the intercept and the slope of a
group, have four terms, as many as cubics of two variables have coefficients: along z = (Aδ)_i/v_i,
along r, which is what of (Aδ)_j is uncorrelated with z, and along (r ± z)/√2, all of variance 1.
Covariances of a direction wᵀ(Aδ) with linear predictors of the group's rows, B_ni φ_i + B_nj φ_j
and what others add, are about p B_ni + q B_nj, by least squares

    (p, q) = A₂⁻¹ Cov(Aδ)₂ w,

of which A₂ and Cov(Aδ)₂ have the rows and columns i and j; of one parameter p is s_i. Then

    Σ_l ρ_kl³ γ_l = Σ_n E (p³ ∂_iii + 3 p² q ∂_iij + 3 p q² ∂_ijj + q³ ∂_jjj) f_n.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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

LEAST_APART = 1e-2
"""1 − ρ² of two parameters from which on they count as a pair."""

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
        sd = np.sqrt(np.diag(np.asarray(self.at.covariance)))
        return np.abs(self.sums.thirds[: len(sd)]) * sd**3

    def third_order(
        self, precision: Float[np.ndarray, "d d"], kept: Curvature
    ) -> ThirdOrder | None:
        """Return the terms of a site of all rows but the kept ones; None if none is large."""
        terms = self._terms(precision)
        sizes = terms.bounded(terms.sizes(self.sums.thirds - kept.thirds))
        sizes[np.abs(sizes) <= NO_SKEWNESS] = 0.0
        return terms.directions.third_order(sizes) if sizes.any() else None

    def basis(self, phi: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "S T"]:
        """Return what a unit of each third derivative adds to the terms, at draws."""
        terms = self._terms(-self.sums.hessian)
        sizes = terms.sizes(self.sums.thirds)
        part = terms.bounded(sizes) / np.where(sizes == 0.0, 1.0, sizes)
        product = (self.at.centre - phi) @ self.sums.hessian[:, terms.directions.effects]
        values = (bounded_cubic(terms.directions.along(product)) * part) @ terms.inverse
        basis = np.zeros((len(self.sums.thirds), len(phi)))
        for places, cubes in zip(terms.places, terms.cubes, strict=True):
            if cubes.any():
                np.add.at(basis, places, (values * cubes).T)
        return basis.T

    def _pairs(self) -> tuple[Int[np.ndarray, "3 P"], Float[np.ndarray, " P"]]:
        """Return i and j of the pairs that matter and the number of their offset; their sizes.

        Sizes are about the largest of their terms.
        """
        sd = np.sqrt(np.diag(np.asarray(self.at.covariance)))
        d, is_free = len(sd), np.ones(len(sd), dtype=bool)
        pairs, sizes = [np.zeros((3, 0), dtype=np.int64)], [np.zeros(0)]
        for number, offset in enumerate(self.offsets):
            i = np.arange(max(0, -offset), min(d, d - offset))
            j = i + offset
            mixed = np.abs(self.sums.thirds[_place(number, d) :][: 2 * d].reshape(2, d)[:, i])
            size = np.sqrt(3.0) * sd[i] * sd[j] * np.maximum(mixed[0] * sd[i], mixed[1] * sd[j])
            matters = (size >= NO_SKEWNESS) & is_free[i] & is_free[j]
            if np.isin(i[matters], j[matters]).any():  # neighbours, such as u[g] and u[g + 1]
                continue
            is_free[i[matters]] = is_free[j[matters]] = False
            pairs.append(np.stack([i, j, np.full(len(i), number)])[:, matters])
            sizes.append(size[matters])
        return np.concatenate(pairs, axis=1), np.concatenate(sizes)

    def _terms(self, precision: Float[np.ndarray, "d d"]) -> _Terms:
        """Return what the terms of a site with this precision are made of."""
        pairs, _ = self._pairs()
        is_skewed = self.largest >= NO_SKEWNESS
        is_skewed[pairs[:2]] = True
        effects = np.flatnonzero(is_skewed)
        rows, none = precision[effects], np.eye(len(effects))
        is_left = np.diag(rows[:, effects]) > -LEAST_LEFT * np.diag(self.sums.hessian)[effects]
        are_left, covariance = np.outer(is_left, is_left), np.asarray(self.at.covariance)
        among = np.where(are_left, (rows @ covariance) @ rows.T, none)
        within = np.where(are_left, rows[:, effects], none)
        scales = np.sqrt(np.maximum(np.diag(among), 0.0))
        correlations = among / np.outer(scales, scales)
        np.fill_diagonal(correlations, 1.0)
        first, second = np.searchsorted(effects, pairs[:2])
        own = np.diag(within)
        common = within[first, second] ** 2 / (own[first] * own[second])
        apart = 1.0 - np.maximum(correlations[first, second] ** 2, common)
        is_pair = is_left[first] & is_left[second] & (apart > LEAST_APART)
        first, second, begins = first[is_pair], second[is_pair], _place(pairs[2], len(precision))
        along = _Directions.of(effects, scales, correlations, first, second)
        # of each pair once, and again for the directions halfway
        begin = np.zeros(len(effects), dtype=np.int64)
        begin[first] = begin[second] = begins[is_pair]
        begin = np.concatenate([begin, begin[first], begin[first]])
        i, j = along.i, along.j
        is_one = i == j
        mixed = np.where(is_one, 0, begin + effects[i] + np.array([[0], [len(precision)]]))
        places = np.concatenate([effects[i][None], mixed, effects[j][None]])
        w, its = along.alpha / scales[i], along.beta / scales[j]
        between = np.where(is_one, 0.0, within[i, j])
        with_i = among[i, i] * w + among[i, j] * its
        with_j = np.where(is_one, 0.0, among[i, j] * w + among[j, j] * its)
        determinant = own[i] * own[j] - between**2
        p = (own[j] * with_i - between * with_j) / determinant
        p = np.where(is_one, scales[i] / own[i], p)
        q = (own[i] * with_j - between * with_i) / determinant
        cubes = is_left[i] * np.stack([p**3, 3.0 * p * p * q, 3.0 * p * q * q, q**3])
        bent = own[i] * w * w + 2.0 * between * w * its + own[j] * its * its
        most = CONCAVE * np.minimum(1.0, np.where(is_one, scales[i] ** 2 / own[i], 1.0 / bent))
        directions = along.matrix()
        cubed = (directions @ correlations @ directions.T) ** 3
        inverse = np.linalg.inv(cubed + RIDGE * np.eye(len(cubed)))
        return _Terms(along, inverse, places, cubes, most)


def _place(number: Any, d: int) -> Any:
    """Return where the third derivatives of pairs begin: ∂_iij, and ∂_ijj after them."""
    return (1 + 2 * number) * d


class _Directions(NamedTuple):
    """Directions α(Aδ)_i/v_i + β(Aδ)_j/v_j of variance 1; i and j are places among the effects."""

    effects: Int[np.ndarray, " k"]
    scales: Float[np.ndarray, " k"]  # v, sd of (Aδ)_i
    i: Int[np.ndarray, " t"]
    j: Int[np.ndarray, " t"]
    alpha: Float[np.ndarray, " t"]
    beta: Float[np.ndarray, " t"]

    @classmethod
    def of(
        cls,
        effects: Int[np.ndarray, " k"],
        scales: Float[np.ndarray, " k"],
        correlations: Float[np.ndarray, "k k"],
        first: Int[np.ndarray, " P"],
        second: Int[np.ndarray, " P"],
    ) -> _Directions:
        """Return those of each parameter, r of the second of a pair; then (r ± z)/√2 of pairs."""
        k = len(effects)
        i, j, alpha, beta = np.arange(k), np.arange(k), np.ones(k), np.zeros(k)
        i[second], j[first] = first, second
        root = np.sqrt(1.0 - correlations[first, second] ** 2)
        alpha[second], beta[second] = -correlations[first, second] / root, 1.0 / root
        half = np.sqrt(0.5)
        shared, beside = half * alpha[second], half * beta[second]
        i, j = np.concatenate([i, first, first]), np.concatenate([j, second, second])
        alpha = np.concatenate([alpha, shared + half, shared - half])
        return cls(effects, scales, i, j, alpha, np.concatenate([beta, beside, beside]))

    def matrix(self) -> Float[np.ndarray, "t k"]:
        """Return the coefficients of (Aδ)_i/v_i."""
        found = np.zeros((len(self.i), len(self.effects)))
        found[np.arange(len(self.i)), self.j] = self.beta
        found[np.arange(len(self.i)), self.i] += self.alpha
        return found

    def along(self, product: Float[np.ndarray, "S k"]) -> Float[np.ndarray, "S t"]:
        """Return them, given (Aδ)_i."""
        own = product / self.scales
        return self.alpha * own[:, self.i] + self.beta * own[:, self.j]

    def third_order(self, sizes: Float[np.ndarray, " t"]) -> ThirdOrder:
        """Return terms of these sizes."""
        if not self.beta.any():
            return ThirdOrder(self.effects, self.scales, sizes)
        has_both = self.beta != 0.0  # above 0, and α may be 0
        lead, partner = np.where(has_both, self.j, self.i), np.where(has_both, self.i, self.j)
        scales = self.scales[lead] / np.where(has_both, self.beta, self.alpha)
        factors = np.where(has_both, self.alpha * scales / self.scales[partner], 0.0)
        return ThirdOrder(self.effects[lead], scales, sizes, self.effects[partner], factors)


class _Terms(NamedTuple):
    directions: _Directions
    inverse: Float[np.ndarray, "t t"]  # of ρ³
    places: Int[np.ndarray, "4 t"]  # of third derivatives
    cubes: Float[np.ndarray, "4 t"]  # what each term has of them
    most: Float[np.ndarray, " t"]  # nats

    def sizes(self, thirds: Float[np.ndarray, " T"]) -> Float[np.ndarray, " t"]:
        return self.inverse @ (self.cubes * thirds[self.places]).sum(axis=0)

    def bounded(self, sizes: Float[np.ndarray, " t"]) -> Float[np.ndarray, " t"]:
        return np.clip(sizes, -self.most, self.most)
