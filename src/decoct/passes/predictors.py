"""The few linear predictors that a potential depends on.

Most likelihoods depend on the parameters φ through a few numbers a row,

    f_n(φ) = ℓ_n(η_n),     η_n = o_n + B_n φ ∈ R^k,

such as x_nᵀβ + u[g_n] and log σ, and B_n has few entries: those of parameters that all rows share,
and one for every effect that the row picks by an index. Then sums of derivatives over rows are sums
over a few entries a row, and averages over a Gaussian of φ are averages over k dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class PredictorShape(NamedTuple):
    """k predictors, p shared parameters and K picked ones a row, some of them in pairs."""

    predictors: int
    shared: int
    picked: int
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def width(self) -> int:
        """Numbers that B_n has for each row."""
        return self.predictors * (self.shared + self.picked)


@dataclass(frozen=True)
class Predictors:
    """η_n = o_n + D_n φ[shared] + E_n φ[picked_n] of some rows, and ℓ_n.

    Predictors that are the same for all rows come first, and may not differ between rows.
    """

    dim: int  # d, the length of φ
    shared: Int[Array, " p"] | None  # places in φ that all rows share; None for all of φ, in order
    dense: Float[Array, "n k p"]  # D_n
    picked: Int[Array, "n K"]  # places in φ of the row's own
    sparse: Float[Array, "n k K"]  # E_n
    offset: Float[Array, "n k"]  # o_n
    potentials: Any  # from η, (n, k), to ℓ_n(η_n), (n,)
    pairs: tuple[tuple[int, int], ...] = ()  # columns of picked by the same index, such as slopes

    @property
    def shape(self) -> PredictorShape:
        _, k, p = self.dense.shape
        return PredictorShape(k, p, self.picked.shape[1], self.pairs)

    def at(self, phi: Float[Array, " d"]) -> Float[Array, "n k"]:
        """Return η_n."""
        return self.offset + self.along(phi[None])[:, 0]

    def along(self, delta: Float[Array, "S d"]) -> Float[Array, "n S k"]:
        """Return B_n δ_s."""
        shared = delta if self.shared is None else delta[:, self.shared]
        moved = jnp.moveaxis(self.dense @ shared.T, 1, 2)
        if self.shape.picked:
            moved = moved + jnp.einsum("nkj,njs->nsk", self.sparse, delta.T[self.picked])
        return moved

    def covariances(self, covariance: Float[Array, "d d"]) -> Float[Array, "n k k"]:
        """Return B_n C B_nᵀ."""
        among = covariance
        if self.shared is not None:
            among = covariance[self.shared[:, None], self.shared[None]]
        left = self.dense @ among
        found = jnp.einsum("nip,njp->nij", left, self.dense)
        if self.shape.picked:
            places = self.picked
            own = covariance[places[:, :, None], places[:, None]]
            found = found + jnp.einsum("nia,nab,njb->nij", self.sparse, own, self.sparse)
            across = covariance[self._shared[None, :, None], places[:, None]]
            cross = jnp.einsum("nip,npa,nja->nij", self.dense, across, self.sparse)
            found = found + cross + cross.mT
        return found

    def gradient(self, slopes: Float[Array, "n k"]) -> Float[Array, " d"]:
        """Return Σ B_nᵀ slope_n."""
        shared = jnp.einsum("nkp,nk->p", self.dense, slopes)
        if self.shared is None:
            return shared
        total = jnp.zeros(self.dim).at[self.shared].add(shared)
        own = jnp.einsum("nka,nk->na", self.sparse, slopes)
        return total.at[self.picked].add(own)

    def hessian(self, bends: Float[Array, "n k k"]) -> Float[Array, "d d"]:
        """Return Σ B_nᵀ bend_n B_n."""
        n, k, p = self.dense.shape
        bent = (bends @ self.dense).reshape(n * k, p)
        among = self.dense.reshape(n * k, p).T @ bent
        if self.shared is None:
            return among
        K = self.shape.picked
        total = jnp.zeros((self.dim, self.dim))
        own = jnp.einsum("nia,nij,njb->nab", self.sparse, bends, self.sparse)
        for a in range(K):
            for b in range(K):
                total = total.at[self.picked[:, a], self.picked[:, b]].add(own[:, a, b])
        across = jnp.zeros((self.dim, p))
        bent = bent.reshape(n, k, p)
        for a in range(K):
            each = jnp.einsum("nk,nkp->np", self.sparse[:, :, a], bent)
            across = across.at[self.picked[:, a]].add(each)
        total = total.at[:, self.shared].add(across).at[self.shared].add(across.T)
        return total.at[self.shared[:, None], self.shared[None]].add(among)

    def thirds(self, of_rows: Float[Array, "n k k k"]) -> Float[Array, " T"]:
        """Return Σ_n ∂³f_n/∂φ_j³ of each parameter j, then those of pairs.

        ∂³f_n/∂φ_j³ = Σ_abc third_nabc B_naj B_nbj B_ncj. Of pairs (i, j) that rows pick these are
        ∂³f_n/∂φ_i²∂φ_j, at the place of i, then ∂³f_n/∂φ_i∂φ_j²: T = (1 + 2 pairs) d numbers.
        """
        shared = _along_each(of_rows, self.dense).sum(axis=0)
        if self.shared is None:
            return shared
        total = jnp.zeros(self.dim).at[self.shared].add(shared)
        parts = [total.at[self.picked].add(_along_each(of_rows, self.sparse))]
        for places, third in self._of_pairs(of_rows):
            parts.append(jnp.zeros(self.dim).at[places].add(third))
        return jnp.concatenate(parts)

    def weighted_thirds(
        self, of_rows: Float[Array, "n k k k"], weights: Float[Array, "S T"]
    ) -> Float[Array, "n S"]:
        """Return the weighted sums over the T, of each row, in place of the sums over rows."""
        d = self.dim
        pairs = [weights[:, begin : begin + d] for begin in range(d, weights.shape[1], d)]
        weights = weights[:, :d]
        shared = weights if self.shared is None else weights[:, self.shared]
        total = _along_each(of_rows, self.dense) @ shared.T
        if self.shape.picked:
            own = _along_each(of_rows, self.sparse)
            total = total + jnp.einsum("nj,njs->ns", own, weights.T[self.picked])
        for weight, (places, third) in zip(pairs, self._of_pairs(of_rows), strict=False):
            total = total + third[:, None] * weight.T[places]
        return total

    def _of_pairs(
        self, of_rows: Float[Array, "n k k k"]
    ) -> Iterator[tuple[Int[Array, " n"], Float[Array, " n"]]]:
        """Give ∂³f_n/∂φ_i²∂φ_j and ∂³f_n/∂φ_i∂φ_j² of every row, with i, for each pair."""
        for p, q in self.pairs:
            one, other = self.sparse[:, :, p], self.sparse[:, :, q]
            for last in (one, other):
                third = jnp.einsum("nabc,na,nb,nc->n", of_rows, one, other, last)
                yield self.picked[:, p], third

    @property
    def _shared(self) -> Int[Array, " p"]:
        return jnp.arange(self.dim) if self.shared is None else self.shared


def _along_each(
    thirds: Float[Array, "n k k k"], columns: Float[Array, "n k p"]
) -> Float[Array, "n p"]:
    return jnp.einsum("nabc,nap,nbp,ncp->np", thirds, columns, columns, columns)
