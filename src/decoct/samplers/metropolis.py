"""Random-walk Metropolis-Hastings on the coreset posterior.

The sampler of Campbell & Broderick (2019, Section 7.3): from z, propose z' ~ N(z, s²I) and move
there with probability min{1, π_w(z')/π_w(z)}. While warming up, after step t,

    log s ← log s + (1 + t)^(−3/5) (α_t − α*)

(Robbins & Monro 1951) with α_t the acceptance probability of the step, averaged over the chains,
and α* = 0.234 the one aimed at (Roberts, Gelman & Gilks 1997). From then on s is frozen, at the
mean of log s over the second half of the warm-up (Polyak & Juditsky 1992).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from decoct.errors import ModelError, RequestError
from decoct.runtime.checks import check_whole
from decoct.runtime.precision import float64
from decoct.runtime.randomness import host_rng
from decoct.samplers.base import Draws, Sampler, WeightedDensity, log_densities
from decoct.samplers.laplace import find_mode
from decoct.stats.convergence import convergence

BLOCK_STEPS = 5_000
"""Most steps between two ticks of the progress bar; their random numbers are drawn at once."""

BLOCK_NUMBERS = 4_000_000
"""Most random numbers in memory at once: 32 MB."""

BEST_SCALE = 2.38
"""s √(tr P) at an acceptance of 0.234, for a Gaussian with precision P (Roberts et al. 1997)."""


@dataclass(frozen=True)
class Metropolis(Sampler):
    """Random-walk Metropolis-Hastings with an isotropic proposal, all chains at once.

    Chains start from draws of the Laplace approximation, spread twice as wide, or around the
    density's start where there is none. All chains share one step size s; it is adapted while they
    warm up and frozen thereafter.

    Attributes
    ----------
    warmup
        Adaptation steps per chain, thrown away.
    steps
        Steps per chain that follow, for `sample` without a number of draws.
    thin
        Every how many of those steps a draw is kept.
    target_acceptance
        Mean acceptance probability aimed at.
    chains
        Number of chains.

    Raises
    ------
    RequestError
        A count is too small, or the target no probability.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=5)
    >>> sampler = decoct.samplers.Metropolis(warmup=1000)
    >>> coreset.sample(draws=1000, chains=2, sampler=sampler)["posterior"]["mean"].shape
    (2, 1000, 2)
    """

    warmup: int = 50_000
    steps: int = 50_000
    thin: int = 5
    target_acceptance: float = 0.234
    chains: int = 1

    def __post_init__(self) -> None:
        check_whole(self, warmup=0, thin=1, steps=self.thin, chains=1)
        if not 0.0 < self.target_acceptance < 1.0:
            raise RequestError(
                f"target_acceptance is {self.target_acceptance}; it must lie between 0 and 1."
            )

    def draw(self, key: jax.Array, density: WeightedDensity, n: int) -> Draws:
        return self.sample(key, density, -(-n // self.chains))

    @float64
    def sample(
        self,
        key: jax.Array,
        density: WeightedDensity,
        draws: int | None = None,
        on_block: Callable[[int], None] | None = None,
    ) -> Draws:
        """Return ``draws`` draws from π_w per chain, ``thin`` steps apart.

        Parameters
        ----------
        draws
            Draws per chain, after warm-up; ``steps // thin`` of them by default.
        on_block
            Called after every block with its number of warm-up steps, or of draws.

        Returns
        -------
        Draws
            ``info`` has ``acceptance_rate`` (chains, draws), the share of the ``thin`` proposals
            behind each draw that were accepted; ``step_size``, s; ``rhat`` and ``ess``.

        Raises
        ------
        ModelError
            The log density was NaN or +inf somewhere (−inf is a rejection), or no chain ever came
            to where it is finite.
        """
        draws = self.steps // self.thin if draws is None else draws
        start_key, warm_key, run_key = jax.random.split(key, 3)
        tick = on_block or (lambda done: None)
        state = self._start(start_key, density)
        block = self._block_steps(density.dim)
        for begin, steps in _blocks(self.warmup, block):
            rates = _adaptation(begin + np.arange(block), self.warmup)
            state, _ = self._block(density, state, warm_key, rates, begin, steps)
            tick(steps)
        stuck = ~np.isfinite(np.asarray(state.log_density))
        if stuck.any():
            raise ModelError(
                f"After the warm-up, chain {int(np.argmax(stuck))} is still where the log density "
                "is -inf; give the model an init where it is finite, or warm up for longer."
            )
        state = state._replace(log_step=state.mean_log_step)
        frozen = np.zeros((block, 2))
        z, accepted = [], []
        for begin, steps in _blocks(draws * self.thin, block):
            state, kept = self._block(density, state, run_key, frozen, begin, steps)
            z.append(np.asarray(kept.z)[: steps // self.thin])
            accepted.append(np.asarray(kept.accepted)[: steps // self.thin])
            tick(steps // self.thin)
        positions = np.concatenate(z).swapaxes(0, 1)
        info = {
            **convergence(positions),
            "acceptance_rate": np.concatenate(accepted).T / self.thin,
            "step_size": float(np.exp(state.log_step)),
        }
        return Draws(positions, "metropolis", info)

    def _block_steps(self, dim: int) -> int:
        """Steps of a block: whole draws, and few enough for the random numbers to fit."""
        steps = min(BLOCK_STEPS, BLOCK_NUMBERS // (self.chains * dim))
        return self.thin * max(1, steps // self.thin)

    def _block(
        self,
        density: WeightedDensity,
        state: _Chains,
        key: jax.Array,
        rates: Float[np.ndarray, "block 2"],
        begin: int,
        steps: int,
    ) -> tuple[_Chains, _Kept]:
        key = jax.random.fold_in(key, begin)
        normals, uniforms = _random_numbers(key, len(rates), self.chains, density.dim)
        gains, count, target = map(jnp.asarray, (rates, steps, self.target_acceptance))
        state, kept = _run(density, state, normals, uniforms, gains, count, target, self.thin)
        if state.invalid > 0:
            at, bad = np.asarray(state.invalid_at), int(state.invalid)
            _refuse_not_finite(density, at, bad, steps * self.chains)
        return state, kept

    def _start(self, key: jax.Array, density: WeightedDensity) -> _Chains:
        noise = host_rng(key).standard_normal((self.chains, density.dim))
        at_init = log_densities(density, density.start[None])[0]
        if np.isnan(at_init) or at_init == np.inf:
            raise ModelError(f"The log density is {at_init} at its start; fix the model.")
        mode = find_mode(density)
        if mode.status.ok:
            precision = -mode.curvature.hessian
            centre, scale = mode.z, BEST_SCALE / np.sqrt(np.trace(precision))
            noise = 2.0 * np.linalg.solve(np.linalg.cholesky(precision).T, noise.T).T
        else:
            centre, scale = density.start, 0.1
            noise = scale * noise
        z = centre + noise
        at_start = log_densities(density, z)
        invalid = np.isnan(at_start) | (at_start == np.inf)
        if invalid.any():
            _refuse_not_finite(density, z[np.argmax(invalid)], int(invalid.sum()), self.chains)
        # a chain outside the support may never enter it: it starts at the centre instead
        z = np.where(np.isfinite(at_start)[:, None], z, centre)
        heights, log_step = log_densities(density, z), jnp.asarray(np.log(scale))
        none, nowhere = jnp.zeros((), dtype=jnp.int64), jnp.zeros(density.dim)
        return _Chains(jnp.asarray(z), jnp.asarray(heights), log_step, log_step, none, nowhere)


class _Chains(NamedTuple):
    """Points, log s, its mean over the second half of the warm-up, and bad proposals so far."""

    z: Float[Array, "chains d"]
    log_density: Float[Array, " chains"]
    log_step: Float[Array, ""]
    mean_log_step: Float[Array, ""]
    invalid: Int[Array, ""]
    invalid_at: Float[Array, " d"]


class _Kept(NamedTuple):
    """The thinned draws of a block, and how many of the proposals behind each were accepted."""

    z: Float[Array, "draws chains d"]
    accepted: Float[Array, "draws chains"]


@eqx.filter_jit
def _random_numbers(key, steps, chains, dim):
    """Return normals and log uniforms; apart from `_run`, to compile once for all coresets."""
    normal_key, uniform_key = jax.random.split(key)
    normals = jax.random.normal(normal_key, (steps, chains, dim))
    return normals, -jax.random.exponential(uniform_key, (steps, chains))


@eqx.filter_jit
def _run(density, state, normals, log_uniforms, rates, steps, target, thin):
    """Do ``steps`` steps, at most ``len(rates)``: one compilation serves blocks of any length."""
    chains, dim = state.z.shape
    places = len(rates) // thin
    kept = _Kept(jnp.zeros((places, chains, dim)), jnp.zeros((places, chains)))

    def step(t, carry):
        state, kept = carry
        proposed = state.z + jnp.exp(state.log_step) * normals[t]
        there = jax.vmap(density.log_density)(proposed)
        # only a finite value is accepted: −inf is a rejection, anything else an error
        log_ratio = jnp.where(jnp.isfinite(there), there - state.log_density, -jnp.inf)
        accept = log_uniforms[t] < log_ratio
        invalid = jnp.isnan(there) | (there == jnp.inf)
        probability = jnp.exp(jnp.minimum(log_ratio, 0.0)).mean()
        log_step = state.log_step + rates[t, 0] * (probability - target)
        state = _Chains(
            jnp.where(accept[:, None], proposed, state.z),
            jnp.where(accept, there, state.log_density),
            log_step,
            state.mean_log_step + rates[t, 1] * (log_step - state.mean_log_step),
            state.invalid + invalid.sum(),
            jnp.where(invalid.any(), proposed[jnp.argmax(invalid)], state.invalid_at),
        )
        # a draw's place is written at each of its steps; the last one stays
        place = t // thin
        return state, _Kept(kept.z.at[place].set(state.z), kept.accepted.at[place].add(accept))

    return jax.lax.fori_loop(0, steps, step, (state, kept))


def _adaptation(t: Int[np.ndarray, " n"], warmup: int) -> Float[np.ndarray, "n 2"]:
    """Return the gain of log s at step t, and the share of log s in its mean."""
    place = t - warmup // 2
    return np.stack([(1.0 + t) ** -0.6, np.where(place >= 0, 1.0 / (1.0 + abs(place)), 0.0)], 1)


def _blocks(steps: int, block: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, steps, block):
        yield begin, min(block, steps - begin)


def _refuse_not_finite(
    density: WeightedDensity, z: Float[np.ndarray, " d"], count: int, points: int
) -> None:
    value = float(log_densities(density, z[None])[0])
    with np.printoptions(precision=4, threshold=8):
        raise ModelError(
            f"The log density was NaN or +inf at {count} of {points} points, among them "
            f"{value} at the parameters {z}; fix the model or the prior: decoct does not "
            "ignore a NaN."
        )
