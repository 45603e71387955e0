"""The manifold at π_w from draws (Campbell & Beronov 2019, Eq. 11 and 13), reused while they last.

S draws θ_s of π_{w₀} with self-normalised importance weights r_s(w) ∝ exp((w − w₀)ᵀf(θ_s)) stand
for π_w as long as their effective number is at least S/2. The potentials of the support and Σ_n f_n
at the draws are kept, so that a weight step costs O(M S), not O(N S). With

    g_ns = √r_s (f_n(θ_s) − Σ_t r_t f_n(θ_t)),     ⟨g_n, g_m⟩ = Cov_r[f_n, f_m]

and, up to a constant shared by all v (Eq. 6),

    KL(π_v‖π) = −log Σ_s r_s exp((v − w)ᵀf(θ_s)) − E_v[Σ_n f_n − vᵀf].
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.special import logsumexp

from decoct.constructions.base import Problem, Selection
from decoct.constructions.sparse_vi.manifold.base import (
    LocalKL,
    LocalView,
    Manifold,
    Origin,
    prune,
    require_room,
    row_bytes,
)
from decoct.data.base import Columns
from decoct.errors import ModelError, SamplerError
from decoct.passes.control_variates import subsampled_totals
from decoct.passes.pools import Pool
from decoct.runtime import progress
from decoct.runtime.randomness import host_rng
from decoct.stats.divergences import Tangent


@dataclass
class Cloud:
    """Draws z of π_{w₀} and what is known at them."""

    z: Float[np.ndarray, "S d"]
    total: Float[np.ndarray, " S"]  # Σ_n f_n(θ_s) over all rows, centred over the draws
    origin: Origin
    # candidates and their potentials, centred over the draws; None until they are needed
    choice: tuple[Int[np.ndarray, " C"], Float[np.ndarray, "C S"]] | None = None


@dataclass(frozen=True)
class SampledView(LocalView):
    """Draws with importance weights at w, and the support's potentials at them."""

    manifold: SampledManifold
    cloud: Cloud
    selection: Selection
    support: Float[np.ndarray, "m S"]  # f_n(θ_s), centred over the draws
    log_weights: Float[np.ndarray, " S"]  # log r_s(w), normalised

    @property
    def origin(self) -> Origin:
        return self.cloud.origin

    @property
    def share(self) -> float:
        """Effective share of the draws."""
        return float(1.0 / np.exp(2.0 * self.log_weights).sum() / len(self.log_weights))

    def covariances(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        candidates, potentials = self.manifold.choice(self.cloud)
        r = np.exp(self.log_weights)
        residual = self.cloud.total - self.selection.weights @ self.support
        residual = r * (residual - r @ residual)
        means = potentials @ r
        variances = np.square(potentials) @ r - means**2
        target = self.cloud.total - r @ self.cloud.total
        return candidates, potentials @ residual, variances, float(np.sqrt(r @ target**2))

    def tangent(self) -> Tangent:
        r, root = np.exp(self.log_weights), np.exp(0.5 * self.log_weights)
        vectors = (self.support - (self.support @ r)[:, None]) * root
        return Tangent(vectors, (self.cloud.total - r @ self.cloud.total) * root)

    def full_tangent(self) -> Tangent:
        _, potentials = self.manifold.choice(self.cloud)
        return replace(self, support=potentials).tangent()

    def with_support(self, selection: Selection) -> SampledView:
        candidates, potentials = self.manifold.choice(self.cloud)
        support = potentials[np.searchsorted(candidates, selection.indices)]
        return replace(self, selection=selection, support=support)

    def local_kl(self, weights: Float[np.ndarray, " m"]) -> LocalKL:
        logits = self.log_weights + (weights - self.selection.weights) @ self.support
        log_z = float(np.asarray(logsumexp(logits)))
        p = np.exp(logits - log_z)
        expected = float(p @ (self.cloud.total - weights @ self.support))
        return LocalKL(-log_z - expected, float(1.0 / (p @ p) / len(p)))

    def third_moments(self) -> tuple[Float[np.ndarray, "m S"], Float[np.ndarray, " S"]]:
        """Return √r_s g_n(θ_s) and (1 − w)ᵀg(θ_s), one entry per draw."""
        vectors, target = self.tangent()
        root = np.exp(0.5 * self.log_weights)
        left = target - self.selection.weights @ vectors
        return vectors, np.divide(left, root, out=np.zeros_like(left), where=root > 0.0)

    def predicted_kl(self) -> float:
        weights = self.selection.weights
        return self.tangent().predicted_kl(np.arange(len(weights)), weights)


class SampledManifold(Manifold):
    """Views from draws of the problem's sampler, with the options of `SparseVI`.

    ``subsample`` rows (U of §3.2) are drawn again at every view; ``candidates`` (C,), global row
    numbers, ascending, are the same at every view, in its place.
    """

    def __init__(
        self,
        problem: Problem,
        draws: int,
        subsample: int | None = None,
        subsample_totals: bool = False,
        reuse: bool = True,
        candidates: Int[np.ndarray, " C"] | None = None,
        control_variates: bool = True,
    ) -> None:
        super().__init__(problem)
        self.draws, self.reuse = draws, reuse
        self.subsample = None if subsample is None else min(subsample, problem.n_rows)
        self.subsample_totals, self.control_variates = subsample_totals, control_variates
        self.start = problem.potentials.space.flatten(problem.potentials.initial)
        self._fixed: Pool | None = None
        if self.subsample is None:
            if candidates is None:
                require_room(
                    problem.n_rows * (row_bytes(problem) + 8 * draws),
                    f"All {problem.n_rows} rows and their potentials at {draws} draws",
                    "give subsample=, the rows to choose from at each pick",
                )
                candidates = np.arange(problem.n_rows)
            self._fixed = Pool(candidates, problem.potentials.rows.take(candidates))

    @property
    def everything(self) -> Columns | None:
        """All encoded rows where the manifold holds them and sums over them; else None."""
        if self._fixed is None or self.subsample_totals or len(self._fixed.indices) < self.n_rows:
            return None
        return self._fixed.rows

    def warm_started(self, origin: Origin | None) -> SampledManifold:
        if origin is None:
            return self
        there = copy.copy(self)
        there.start = origin.centre
        return there

    def at(self, key: jax.Array, selection: Selection) -> SampledView:
        start = self.start
        return self._drawn(Origin(np.asarray(jax.random.key_data(key)), selection, start, start))

    def _drawn(self, origin: Origin) -> SampledView:
        selection, potentials = origin.selection, self.problem.potentials
        key = jax.random.fold_in(_key(origin), 0)
        drawn = self.problem.draw(key, selection, self.draws, origin.start)
        z = drawn.flat[: self.draws]
        if len(z) < self.draws:
            raise SamplerError(
                f"The sampler '{drawn.sampler}' returned {len(z)} draws of the {self.draws} it was "
                "asked for; use another sampler (sampler=NUTS())."
            )
        if not np.isfinite(z).all():
            bad = int(np.argmin(np.isfinite(z).all(axis=1)))
            raise SamplerError(
                f"Draw {bad} of the sampler '{drawn.sampler}' is not finite; use another sampler "
                "(sampler=NUTS()), or check the prior."
            )
        cloud = Cloud(z, np.zeros(len(z)), origin._replace(centre=z.mean(axis=0)))
        if self.subsample_totals:
            numbers, values = self.choice(cloud)
            chosen = np.isin(numbers, self._subset(origin))
            few = Pool(numbers[chosen], potentials.rows.take(numbers[chosen]))
            cloud.total = subsampled_totals(
                potentials, z, few, values[chosen], self.control_variates
            ).totals
        else:
            total = potentials.totals(z)
            cloud.total = total - total.mean()
        support = _centre(potentials.vectors(selection.rows, z))
        seen = np.square(cloud.total) + np.square(support).sum(axis=0)
        if not np.isfinite(seen).all():
            bad = int(np.argmax(np.abs(z).max(axis=1)))
            raise ModelError(
                f"The log-likelihoods at draw {bad} of the sampler '{drawn.sampler}' are too large "
                f"to be squared ({z[bad]} …); use another sampler (sampler=NUTS()), or a "
                "narrower prior."
            )
        return SampledView(self, cloud, selection, support, np.full(len(z), -np.log(len(z))))

    def choice(self, cloud: Cloud) -> tuple[Int[np.ndarray, " C"], Float[np.ndarray, "C S"]]:
        """Return the rows to choose from and their potentials at the draws.

        They are U and the rows at which the draws were made, whatever has lost its weight since: a
        resumed build has the same.
        """
        if cloud.choice is None:
            potentials, used = self.problem.potentials, cloud.origin.selection.indices
            pool = self._fixed
            if pool is None or not np.isin(used, pool.indices).all():
                numbers = np.union1d(self._subset(cloud.origin), used)
                pool = Pool(numbers, potentials.rows.take(numbers))
            if len(pool.indices) == self.n_rows:
                potentials.counts.passes += 1
            cloud.choice = pool.indices, _centre(potentials.vectors(pool.rows, cloud.z))
        return cloud.choice

    def moved(
        self, key: jax.Array, view: SampledView, weights: Float[np.ndarray, " m"]
    ) -> SampledView:
        selection = view.selection._replace(weights=weights)
        if self.reuse:
            logits = view.log_weights + (weights - view.selection.weights) @ view.support
            there = replace(view, selection=selection, log_weights=logits - logsumexp(logits))
            if there.share >= 0.5:
                return there
        return self.warm_started(view.origin).at(key, selection)

    def count(self, views: int, support: int) -> None:
        """Count the potentials of views that were made elsewhere, a pass over all rows each."""
        potentials = self.problem.potentials
        potentials.counts.passes += views
        potentials.counts.evaluations += views * (self.n_rows + support) * self.draws
        progress.advance(views * self.n_rows)

    def prune(self, view: SampledView) -> SampledView:
        selection = prune(view.selection)
        kept = np.searchsorted(view.selection.indices, selection.indices)
        return replace(view, selection=selection, support=view.support[kept])

    def restored(self, origin: Origin, selection: Selection) -> SampledView:
        view = self._drawn(origin)
        support = _centre(self.problem.potentials.vectors(selection.rows, view.cloud.z))
        logits = view.log_weights + selection.weights @ support
        logits = logits - origin.selection.weights @ view.support
        logits = logits - logsumexp(logits)
        return replace(view, selection=selection, support=support, log_weights=logits)

    def _subset(self, origin: Origin) -> Int[np.ndarray, " u"]:
        """Return U, the same for the same draws."""
        if self._fixed is not None:
            return self._fixed.indices
        assert self.subsample is not None
        key = jax.random.fold_in(_key(origin), 1)
        return np.unique(host_rng(key).integers(self.problem.n_rows, size=self.subsample))


def _key(origin: Origin) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(origin.key_data))


def _centre(values: Float[np.ndarray, "n S"]) -> Float[np.ndarray, "n S"]:
    return values - values.mean(axis=1, keepdims=True)
