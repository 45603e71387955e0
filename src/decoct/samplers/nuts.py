"""NUTS on the coreset posterior (BlackJAX, window adaptation)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from decoct.errors import ModelError
from decoct.passes.newton import Mode
from decoct.runtime.precision import float64
from decoct.runtime.randomness import host_rng
from decoct.samplers.base import Draws, WeightedDensity
from decoct.samplers.laplace import JUDGED_AT, Laplace, find_mode, gaussian_at
from decoct.stats.chains import GOOD_KHAT, convergence

FITS = 0.1
"""KL in nats from the Laplace approximation, in whose units a full mass matrix learns nothing."""

STEPS_A_PARAMETER = 10
"""Warm-up steps a parameter from which on a full mass matrix is adapted by default.

The last window, half of the warm-up, then has five draws a parameter. With fewer draws than
parameters the matrix is all but singular, and every trajectory runs into the depth limit."""


@dataclass(frozen=True)
class NUTS:
    """Hamiltonian Monte Carlo without turns, all chains at once.

    Chains start from draws of the Laplace approximation, spread twice as wide, or around the
    model's init where there is none; the mass matrix and step size are adapted in warm-up, as by
    Stan. With a site the parameters are measured in units of that approximation, and where it fits
    the mass matrix is diagonal.

    Attributes
    ----------
    chains
        Number of chains.
    warmup
        Adaptation steps per chain, thrown away.
    target_acceptance
        Mean acceptance probability aimed at.
    dense_mass
        Adapt a full mass matrix instead of a diagonal one; None: where the warm-up has
        `STEPS_A_PARAMETER` steps a parameter.
    """

    chains: int = 4
    warmup: int = 500
    target_acceptance: float = 0.8
    dense_mass: bool | None = None

    def draw(self, key: jax.Array, density: WeightedDensity, n: int) -> Draws:
        return self.sample(key, density, -(-n // self.chains))

    @float64
    def sample(
        self,
        key: jax.Array,
        density: WeightedDensity,
        draws: int,
        on_block: Callable[[int], None] | None = None,
    ) -> Draws:
        """Return ``draws`` draws per chain.

        Parameters
        ----------
        key
            A typed JAX key.
        density
            π_w.
        draws
            Draws per chain, after warm-up.
        on_block
            Told the number of steps done, warm-up included, after every block.
        """
        # here, because importing BlackJAX puts arrays on a device
        from decoct.samplers.nuts_program import BLOCK, SAMPLING, begin, plan_stages, run

        start_key, warm_key, run_key = jax.random.split(key, 3)
        mode = find_mode(density)
        starts = self._starts(start_key, density, mode)
        space, is_dense = density, self._is_dense(density.dim)
        if density.site is not None and mode.status.ok:
            factor = np.linalg.cholesky(gaussian_at(mode).cov)
            space = _Whitened(density, mode.z, factor)
            found = Laplace().draw(start_key, density, JUDGED_AT).info
            if found["khat"] <= GOOD_KHAT and found["kl"] <= FITS:
                is_dense = bool(self.dense_mass)
            starts = np.linalg.solve(factor, (starts - mode.z).T).T
        target, diagonal = self.target_acceptance, not is_dense
        states, adapted = begin(space, starts, target, diagonal)
        stages, positions, infos = plan_stages(self.warmup), [], []
        for first in range(0, len(stages), BLOCK):
            keys = jax.random.split(jax.random.fold_in(warm_key, first), self.chains)
            block = stages[first : first + BLOCK]
            states, adapted, _ = run(space, keys, states, adapted, block, target, diagonal)
        adapted = adapted.finished()
        if on_block is not None:
            on_block(self.warmup)
        sampling = np.full((BLOCK, 2), [SAMPLING, 0])
        for first in range(0, draws, BLOCK):
            keys = jax.random.split(jax.random.fold_in(run_key, first), self.chains)
            states, adapted, (position, info) = run(
                space, keys, states, adapted, sampling, target, diagonal
            )
            positions.append(np.asarray(position))
            infos.append({name: np.asarray(value) for name, value in info.items()})
            if on_block is not None:
                on_block(min(BLOCK, draws - first))
        z = np.concatenate(positions, axis=1)[:, :draws]
        if isinstance(space, _Whitened):
            z = space.centre + z @ space.factor.T
        stats = {k: np.concatenate([i[k] for i in infos], axis=1)[:, :draws] for k in infos[0]}
        if not np.isfinite(z).all():
            raise ModelError(
                "NUTS left the region where the log density is finite; check the model for NaN "
                "and the prior for parameters it does not bound."
            )
        return Draws(z, "nuts", {**convergence(z), **stats})

    def _is_dense(self, dim: int) -> bool:
        if self.dense_mass is None:
            return self.warmup >= STEPS_A_PARAMETER * dim
        return self.dense_mass

    def _starts(
        self, key: jax.Array, density: WeightedDensity, mode: Mode
    ) -> Float[np.ndarray, "chains d"]:
        rng = host_rng(key)
        noise = rng.standard_normal((self.chains, density.dim))
        if not mode.status.ok:
            return density.start + 0.1 * noise
        factor = np.linalg.cholesky(gaussian_at(mode).cov)
        return mode.z + 2.0 * noise @ factor.T


class _Whitened(eqx.Module):
    """A density in units of its Laplace approximation: z = centre + L u.

    With a site the posterior is near that Gaussian, so that trajectories are short in u.
    """

    density: WeightedDensity
    centre: Float[np.ndarray, " d"]
    factor: Float[np.ndarray, "d d"]

    def log_density(self, u):
        return self.density.log_density(self.centre + self.factor @ u)
