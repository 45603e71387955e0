"""Terms of third order of two parameters together, such as the intercept and slope of a group.

Two parameters i, j that rows pick by the same index have four terms, as many as cubics of two
variables have coefficients: along z = (Aδ)_i/v_i, along r, which is what of (Aδ)_j is uncorrelated
with z, and along (r ± z)/√2, all of variance 1 (`passes.third_order` has the notation).
Covariances of a direction wᵀ(Aδ) with linear predictors of the group's rows, B_ni φ_i + B_nj φ_j
and what others add, are about p B_ni + q B_nj, by least squares

    (p, q) = A₂⁻¹ Cov(Aδ)₂ w,

of which A₂ and Cov(Aδ)₂ have the rows and columns i and j; of one parameter p is s_i. Then

    Σ_l ρ_kl³ γ_l = Σ_n E (p³ ∂_iii + 3 p² q ∂_iij + 3 p q² ∂_ijj + q³ ∂_jjj) f_n.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array

from decoct.models.site import ThirdOrder

LEAST_APART = 1e-2
"""1 − ρ² of two parameters from which on they count as a pair."""


def find_pairs(
    thirds: Float[np.ndarray, " T"],
    sd: Float[np.ndarray, " d"],
    offsets: tuple[int, ...],
    least: float,
) -> tuple[Int[np.ndarray, "3 P"], Float[np.ndarray, " P"]]:
    """Return i and j of pairs, no parameter in two, and the number of their offset; their sizes.

    Sizes are about the largest of their terms, at ``least`` so many nats.
    """
    d, is_free = len(sd), np.ones(len(sd), dtype=bool)
    pairs, sizes = [np.zeros((3, 0), dtype=np.int64)], [np.zeros(0)]
    for number, offset in enumerate(offsets):
        i = np.arange(max(0, -offset), min(d, d - offset))
        j = i + offset
        mixed = np.abs(thirds[_place(number, d) :][: 2 * d].reshape(2, d)[:, i])
        size = np.sqrt(3.0) * sd[i] * sd[j] * np.maximum(mixed[0] * sd[i], mixed[1] * sd[j])
        matters = (size >= least) & is_free[i] & is_free[j]
        if np.isin(i[matters], j[matters]).any():  # neighbours, such as u[g] and u[g + 1]
            continue
        is_free[i[matters]] = is_free[j[matters]] = False
        pairs.append(np.stack([i, j, np.full(len(i), number)])[:, matters])
        sizes.append(size[matters])
    return np.concatenate(pairs, axis=1), np.concatenate(sizes)


def _place(number: Any, d: int) -> Any:
    """Return where the third derivatives of pairs begin: ∂_iij, and ∂_ijj after them."""
    return (1 + 2 * number) * d


class PairedTerms(NamedTuple):
    """Terms along α(Aδ)_i/v_i + β(Aδ)_j/v_j; as `passes.third_order.Terms`."""

    effects: Int[np.ndarray, " k"]
    scales: Float[np.ndarray, " k"]  # v, sd of (Aδ)_i
    i: Int[np.ndarray, " t"]  # places among the effects
    j: Int[np.ndarray, " t"]
    alpha: Float[np.ndarray, " t"]
    beta: Float[np.ndarray, " t"]
    correlations: Float[np.ndarray, "t t"]
    among: Float[np.ndarray, "t t"]  # WᵀAW
    places: Int[np.ndarray, "4 t"]  # of third derivatives
    cubes: Float[np.ndarray, "4 t"]  # what each term has of them
    widths: Float[np.ndarray, " t"]  # 1/(wᵀAw)

    @classmethod
    def of(
        cls,
        effects: Int[np.ndarray, " k"],
        scales: Float[np.ndarray, " k"],
        correlations: Float[np.ndarray, "k k"],
        within: Float[np.ndarray, "k k"],
        is_left: Bool[np.ndarray, " k"],
        pairs: Int[np.ndarray, "3 P"],
        d: int,
    ) -> PairedTerms:
        """Return terms along single parameters and pairs of them, of d.

        ``within`` has the rows and columns of A of the effects, those of the identity where little
        is left, and ``pairs`` are of `find_pairs`.
        """
        k, own = len(effects), np.diag(within)
        first, second = np.searchsorted(effects, pairs[:2])
        common = within[first, second] ** 2 / (own[first] * own[second])
        apart = 1.0 - np.maximum(correlations[first, second] ** 2, common)
        is_pair = is_left[first] & is_left[second] & (apart > LEAST_APART)
        first, second, begins = first[is_pair], second[is_pair], _place(pairs[2], d)[is_pair]
        # z of each parameter, r of the second of a pair; then (r ± z)/√2
        i, j, alpha, beta = np.arange(k), np.arange(k), np.ones(k), np.zeros(k)
        i[second], j[first] = first, second
        rho = correlations[first, second]
        root, half = np.sqrt(1.0 - rho**2), np.sqrt(0.5)
        alpha[second], beta[second] = -rho / root, 1.0 / root
        shared, beside = half * alpha[second], half * beta[second]
        i, j = np.concatenate([i, first, first]), np.concatenate([j, second, second])
        alpha = np.concatenate([alpha, shared + half, shared - half])
        beta = np.concatenate([beta, beside, beside])
        lines = np.arange(len(i))
        at = np.append(lines, lines), np.append(i, j)
        along = csr_array((np.append(alpha, beta), at), (len(i), k))
        # p and q, by the covariances of w with (Aδ)_i and (Aδ)_j
        is_one, w, its = i == j, alpha / scales[i], beta / scales[j]
        between = np.where(is_one, 0.0, within[i, j])
        among = correlations[i, j] * scales[i] * scales[j]
        with_i, with_j = scales[i] ** 2 * w + among * its, among * w + scales[j] ** 2 * its
        determinant = own[i] * own[j] - between**2
        p = (own[j] * with_i - between * with_j) / determinant
        q = np.where(is_one, 0.0, (own[i] * with_j - between * with_i) / determinant)
        cubes = is_left[i] * np.stack([p**3, 3.0 * p * p * q, 3.0 * p * q * q, q**3])
        begin = np.zeros(k, dtype=np.int64)
        begin[first] = begin[second] = begins
        begin = np.concatenate([begin, begins, begins]) + effects[i]
        mixed = np.where(is_one, 0, begin + np.array([[0], [d]]))
        places = np.concatenate([effects[i][None], mixed, effects[j][None]])
        widths = 1.0 / (own[i] * w * w + 2.0 * between * w * its + own[j] * its * its)
        correlations = along @ correlations @ along.T
        among = along @ (within / np.outer(scales, scales)) @ along.T
        return cls(effects, scales, i, j, alpha, beta, correlations, among, places, cubes, widths)

    def right_side(self, thirds: Float[np.ndarray, " T"]) -> Float[np.ndarray, " t"]:
        return (self.cubes * thirds[self.places]).sum(axis=0)

    def along(self, product: Float[np.ndarray, "S k"]) -> Float[np.ndarray, "S t"]:
        own = product / self.scales
        return self.alpha * own[:, self.i] + self.beta * own[:, self.j]

    def third_order(self, sizes: Float[np.ndarray, " t"]) -> ThirdOrder:
        has_both = self.beta != 0.0  # above 0, and α may be 0
        lead, partner = np.where(has_both, self.j, self.i), np.where(has_both, self.i, self.j)
        scales = self.scales[lead] / np.where(has_both, self.beta, self.alpha)
        factors = np.where(has_both, self.alpha * scales / self.scales[partner], 0.0)
        return ThirdOrder(self.effects[lead], scales, sizes, self.effects[partner], factors)

    def by_third(self, values: Float[np.ndarray, "S t"], n: int) -> Float[np.ndarray, "S T"]:
        basis = np.zeros((n, len(values)))
        for places, cubes in zip(self.places, self.cubes, strict=True):
            np.add.at(basis, places, (values * cubes).T)
        return basis.T
