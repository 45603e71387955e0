"""NUTS on the coreset posterior (BlackJAX, window adaptation)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from decoct.errors import ModelError
from decoct.passes.newton import Mode
from decoct.runtime.precision import float64
from decoct.runtime.randomness import host_rng
from decoct.samplers.base import Draws, WeightedDensity
from decoct.samplers.laplace import find_mode, gaussian_at
from decoct.stats.chains import convergence

BLOCK = 100
"""Draws between two ticks of the progress bar."""

STEPS_A_PARAMETER = 10
"""Warm-up steps a parameter from which on a full mass matrix is adapted by default.

The last window, half of the warm-up, then has five draws a parameter. With fewer draws than
parameters the matrix is all but singular, and every trajectory runs into the depth limit."""


@dataclass(frozen=True)
class NUTS:
    """Hamiltonian Monte Carlo without turns, all chains at once.

    Chains start from draws of the Laplace approximation, spread twice as wide, or around the
    model's init where there is none; the mass matrix and step size are adapted in warm-up. With a
    site the parameters are measured in units of that approximation.

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
        start_key, warm_key, run_key = jax.random.split(key, 3)
        mode = find_mode(density)
        starts = self._starts(start_key, density, mode)
        space, is_dense = density, self._is_dense(density.dim)
        if density.site is not None and mode.status.ok:
            factor = np.linalg.cholesky(gaussian_at(mode).cov)
            space, is_dense = _Whitened(density, mode.z, factor), bool(self.dense_mass)
            starts = np.linalg.solve(factor, (starts - mode.z).T).T
        states, parameters = _warm_up(
            space,
            jax.random.split(warm_key, self.chains),
            jnp.asarray(starts),
            self.warmup,
            self.target_acceptance,
            not is_dense,
        )
        if on_block is not None:
            on_block(self.warmup)
        positions, infos = [], []
        for begin in range(0, draws, BLOCK):
            block_keys = jax.random.split(jax.random.fold_in(run_key, begin), self.chains)
            states, (position, info) = _run(space, block_keys, states, parameters, BLOCK)
            positions.append(np.asarray(position))
            infos.append({name: np.asarray(value) for name, value in info.items()})
            if on_block is not None:
                on_block(min(BLOCK, draws - begin))
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


@eqx.filter_jit
def _warm_up(density, keys, starts, steps, target, diagonal):
    import blackjax  # here, because importing it puts arrays on a device

    adaptation: Any = blackjax.window_adaptation(
        blackjax.nuts,
        density.log_density,
        is_mass_matrix_diagonal=diagonal,
        target_acceptance_rate=target,
        adaptation_info_fn=lambda *_: None,
    )

    def one(key, start):
        (state, parameters), _ = adaptation.run(key, start, num_steps=steps)
        return state, (parameters["step_size"], parameters["inverse_mass_matrix"])

    return jax.vmap(one)(keys, starts)


@eqx.filter_jit
def _run(density, keys, states, parameters, steps):
    import blackjax

    def one(key, state, parameters):
        step_size, inverse_mass = parameters
        kernel: Any = blackjax.nuts(density.log_density, step_size, inverse_mass)

        def step(state, key):
            state, info = kernel.step(key, state)
            kept = {
                "diverging": info.is_divergent,
                "acceptance_rate": info.acceptance_rate,
                "n_steps": info.num_integration_steps,
                "energy": info.energy,
            }
            return state, (state.position, kept)

        return jax.lax.scan(step, state, jax.random.split(key, steps))

    return jax.vmap(one)(keys, states, parameters)
