"""NUTS on the coreset posterior (BlackJAX, window adaptation)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from decoct.errors import ModelError
from decoct.passes.newton import Mode
from decoct.runtime.precision import compiled_quickly, float64
from decoct.runtime.randomness import host_rng
from decoct.samplers.base import Draws, WeightedDensity
from decoct.samplers.laplace import JUDGED_AT, Laplace, find_mode, gaussian_at
from decoct.stats.chains import GOOD_KHAT, convergence

BLOCK = 100
"""Steps between two ticks of the progress bar, and in one call of the compiled program."""

FITS = 0.1
"""KL in nats from the Laplace approximation, in whose units a full mass matrix learns nothing."""

SAMPLING, NOTHING = 2, 3
"""Stages of a step beside BlackJAX's: no adaptation, and no step."""

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
        states, adapted = _begin(space, starts, target, diagonal)
        stages, positions, infos = _stages(self.warmup), [], []
        for begin in range(0, len(stages), BLOCK):
            keys = jax.random.split(jax.random.fold_in(warm_key, begin), self.chains)
            block = stages[begin : begin + BLOCK]
            states, adapted, _ = _run(space, keys, states, adapted, block, target, diagonal)
        adapted = adapted.finished()
        if on_block is not None:
            on_block(self.warmup)
        sampling = np.full((BLOCK, 2), [SAMPLING, 0])
        for begin in range(0, draws, BLOCK):
            keys = jax.random.split(jax.random.fold_in(run_key, begin), self.chains)
            states, adapted, (position, info) = _run(
                space, keys, states, adapted, sampling, target, diagonal
            )
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


class _Adapted(NamedTuple):
    """Step size and inverse mass matrix, and what BlackJAX learns them from."""

    step_size: Any
    inverse_mass: Any
    steps: Any
    masses: Any

    def finished(self) -> _Adapted:
        """Return the averaged step size, and the mass matrix of the last window."""
        return self._replace(step_size=jnp.exp(self.steps.log_step_size_avg))


def _adaptation(target, diagonal):
    """Return BlackJAX's parts of Stan's warm-up: of step sizes, and of mass matrices."""
    from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
    from blackjax.adaptation.step_size import dual_averaging_adaptation

    return dual_averaging_adaptation(target), mass_matrix_adaptation(diagonal)


def _stages(steps: int) -> Int[np.ndarray, "n 2"]:
    """Return Stan's windows, a stage and whether a window ends, in full blocks."""
    from blackjax.adaptation.window_adaptation import build_schedule

    windows = np.asarray(build_schedule(steps), dtype=np.int64).reshape(-1, 2)
    return np.concatenate([windows, np.full((-steps % BLOCK, 2), [NOTHING, 0])])


@compiled_quickly
def _begin(density, starts, target, diagonal):
    import blackjax  # here, because importing it puts arrays on a device

    (init_steps, _, _), (init_masses, _, _) = _adaptation(target, diagonal)

    def one(start):
        masses = init_masses(len(start))
        adapted = _Adapted(jnp.ones(()), masses.inverse_mass_matrix, init_steps(1.0), masses)
        return blackjax.nuts.init(start, density.log_density), adapted

    # constants have no type of their own, as the results of a block have: one program for both
    typed = lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype)  # noqa: E731
    return jax.tree.map(typed, jax.vmap(one)(starts))


@compiled_quickly
def _run(density, keys, states, adapted, stages, target, diagonal):
    """Make a block of steps, of the warm-up or after it: one program for both."""
    import blackjax

    kernel: Any = blackjax.nuts.build_kernel()
    (init_steps, learn_step, mean_step), (_, learn_mass, end_window) = _adaptation(target, diagonal)

    def fast(state, info, adapted):
        steps = learn_step(adapted.steps, info.acceptance_rate)
        return adapted._replace(steps=steps, step_size=jnp.exp(steps.log_step_size))

    def slow(state, info, adapted):
        masses = learn_mass(adapted.masses, state.position)
        return fast(state, info, adapted)._replace(masses=masses)

    def next_window(adapted):
        masses, steps = end_window(adapted.masses), init_steps(mean_step(adapted.steps))
        return _Adapted(jnp.exp(steps.log_step_size), masses.inverse_mass_matrix, steps, masses)

    def step(carry, key_and_stage):
        key, (stage, ends) = key_and_stage

        def move(state, adapted):
            size, mass = adapted.step_size, adapted.inverse_mass
            state, info = kernel(key, state, density.log_density, size, mass)
            branches = (fast, slow, lambda state, info, adapted: adapted)
            adapted = jax.lax.switch(stage, branches, state, info, adapted)
            adapted = jax.lax.cond(ends == 1, next_window, lambda adapted: adapted, adapted)
            kept = {
                "diverging": info.is_divergent,
                "acceptance_rate": info.acceptance_rate,
                "n_steps": info.num_integration_steps,
                "energy": info.energy,
            }
            return (state, adapted), (state.position, kept)

        def stay(state, adapted):
            shapes = jax.eval_shape(move, state, adapted)[1]
            zeros = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)
            return (state, adapted), zeros

        return jax.lax.cond(stage != NOTHING, move, stay, *carry)

    def one(key, state, adapted):
        steps = jax.random.split(key, BLOCK), stages
        (state, adapted), kept = jax.lax.scan(step, (state, adapted), steps)
        return state, adapted, kept

    return jax.vmap(one)(keys, states, adapted)
