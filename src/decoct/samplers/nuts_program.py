"""The compiled steps of NUTS: BlackJAX's kernel, step sizes and mass matrices, in one program."""

from __future__ import annotations

from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.adaptation.mass_matrix import mass_matrix_adaptation
from blackjax.adaptation.step_size import dual_averaging_adaptation
from blackjax.adaptation.window_adaptation import build_schedule
from jaxtyping import Int

from decoct.runtime.precision import compile_quickly
from decoct.runtime.resources import default_device

STEPS_A_CALL = 100
"""Steps between two ticks of the progress bar, and in one call of the compiled program."""

STEP_SIZES, SAMPLING, NOTHING = 0, 2, 3
"""Stages of a step: BlackJAX's first, without mass matrices; no adaptation; and no step."""

RESONANT = 0.06
"""Nearest that the time between the ends of a tree comes to a period, relative to it."""


class Adapted(NamedTuple):
    """Step size and inverse mass matrix, and what BlackJAX learns them from."""

    step_size: Any
    inverse_mass: Any
    steps: Any
    masses: Any

    def finished(self) -> Adapted:
        """Return the averaged step size, and the mass matrix of the last window."""
        return self._replace(step_size=np.exp(self.steps.log_step_size_avg))

    def pooled(self) -> Adapted:
        """Return one step size for all chains, for units in which the posterior is near N(0, I).

        It is the median, for a short warm-up gives single ones noise.
        """
        common = shorten_resonant(float(np.median(self.step_size)))
        return self._replace(step_size=np.full_like(self.step_size, common))


def shorten_resonant(step_size: float) -> float:
    """Return a step size with which no tree of 2^k points ends where it began.

    On N(0, I) every coordinate has the period 2π. If the ends of a tree are one period apart, its
    momenta add up to nearly 0, no U-turn is seen, and the tree grows on: up to 1,023 steps in place
    of 15. BlackJAX tests the ends of trees alone.
    """
    gaps = 2.0 ** np.round(np.log2(2.0 * np.pi / step_size + 1.0)) - 1.0
    periods = gaps * step_size / (2.0 * np.pi)
    is_resonant = abs(periods - 1.0) < RESONANT
    return step_size * (1.0 - RESONANT) / periods if is_resonant else step_size


def _adaptation(target, diagonal):
    """Return BlackJAX's parts of Stan's warm-up: of step sizes, and of mass matrices."""
    return dual_averaging_adaptation(target), mass_matrix_adaptation(diagonal)


def plan_stages(steps: int) -> Int[np.ndarray, "n 2"]:
    """Return Stan's windows, a stage and whether a window ends, in full blocks."""
    windows = np.asarray(build_schedule(steps), dtype=np.int64).reshape(-1, 2)
    return _in_blocks(windows)


def repeat_stage(stage: int, steps: int) -> Int[np.ndarray, "n 2"]:
    """Return the same stage for all steps, in full blocks."""
    return _in_blocks(np.full((steps, 2), [stage, 0]))


def _in_blocks(stages: Int[np.ndarray, "steps 2"]) -> Int[np.ndarray, "n 2"]:
    return np.concatenate([stages, np.full((-len(stages) % STEPS_A_CALL, 2), [NOTHING, 0])])


def _in_threads() -> bool:
    """Return whether each chain runs by itself, as on a processor.

    A chain of a batch waits for the longest tree, and copies its state at every step: four chains
    of 779 parameters take half the time, or a third, one after another.
    """
    device = default_device()
    platform = jax.default_backend() if device is None else getattr(device, "platform", device)
    return platform == "cpu"


def group_chains(chains: int) -> list[slice]:
    """Return which chains a call of `begin` or `run` is to take."""
    size = 1 if _in_threads() else chains
    return [slice(first, first + size) for first in range(0, chains, size)]


def _for_chains(one, *given):
    if _in_threads():
        return jax.lax.map(lambda chain: one(*chain), given)
    return jax.vmap(one)(*given)


@compile_quickly
def begin(density, starts, target, diagonal, step_size):
    """Return first states; ``step_size`` None lets BlackJAX find one."""
    (init_steps, _, _), (init_masses, _, _) = _adaptation(target, diagonal)
    # BlackJAX adapts step sizes to about ten times the first
    first, before = (1.0, 1.0) if step_size is None else (step_size, 0.1 * step_size)

    def one(start):
        masses = init_masses(len(start))
        steps, inverse = init_steps(before), masses.inverse_mass_matrix
        adapted = Adapted(jnp.asarray(first), inverse, steps, masses)
        return blackjax.nuts.init(start, density.log_density), adapted

    # constants have no type of their own, as the results of a block have: one program for both
    typed = lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype)  # noqa: E731
    return jax.tree.map(typed, _for_chains(one, starts))


@compile_quickly
def run(density, keys, states, adapted, stages, target, diagonal):
    """Make a block of steps, of the warm-up or after it: one program for both.

    ``keys`` are as numbers, and of what kind.
    """
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
        return Adapted(jnp.exp(steps.log_step_size), masses.inverse_mass_matrix, steps, masses)

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
            kept = {"diverging": False, "acceptance_rate": 0.0, "n_steps": 0, "energy": 0.0}
            kept = {name: jnp.asarray(none) for name, none in kept.items()}
            return (state, adapted), (jnp.zeros_like(state.position), kept)

        return jax.lax.cond(stage != NOTHING, move, stay, *carry)

    def one(key, state, adapted):
        steps = jax.random.split(key, STEPS_A_CALL), stages
        (state, adapted), kept = jax.lax.scan(step, (state, adapted), steps)
        return state, adapted, kept

    given = jax.random.wrap_key_data(keys[0], impl=keys[1]), states, adapted
    return _for_chains(one, *given)
