"""Gibbs sampling of von Mises-Fisher mixtures with weighted rows.

One step draws assignments, then modes and weights (Campbell & Broderick 2019, Eq. 7.7 and 7.6):

    z_n ~ Multi(⌈w_n⌉, γ_n) with γ_nk ∝ ω_k f_vMF(x_n; μ_k, τ),   z_n ← (w_n/⌈w_n⌉) z_n,
    x̄_k = Σ_n z_nk x_n,   μ_k ~ vMF(x̄_k/‖x̄_k‖, τ‖x̄_k‖),   ω ~ Dir(1 + Σ_n z_n1, ..., 1 + Σ_n z_nK).

Whole weights make this the Gibbs sampler of rows repeated w_n times, which is exact. Fractional
weights do not: the rescaled assignments are no auxiliary variable of f_n^{w_n}, and what the chain
converges to is near π_w where weights are large or rows clearly belong to one cluster, but is not
π_w. Metropolis or NUTS have no such error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from decoct.errors import ModelError
from decoct.mixture.vmf.vmf_fit import directions_of, independent_conditionals, vmf_em
from decoct.mixture.vmf.vmf_mixture import VonMisesFisherMixture
from decoct.mixture.vmf.von_mises_fisher import vmf_draws
from decoct.runtime.checks import check_whole
from decoct.runtime.precision import float64
from decoct.runtime.randomness import host_rng
from decoct.samplers.base import Draws, Sampler, WeightedDensity
from decoct.stats.convergence import convergence

DRAWS_A_CALL = 500
"""Draws between two ticks of the progress bar."""

FEW_COUNTS = 100.0
"""Mean count up to which a binomial is drawn by summing its probabilities."""

UNROLLED = 8
"""Probabilities summed per turn of that loop."""


@dataclass(frozen=True)
class Gibbs(Sampler):
    """Gibbs sampling of a `VonMisesFisherMixture`, with the assignments as auxiliary variables.

    Exact for whole weights, an approximation for fractional ones (see the module). Chains start
    at draws of the conditionals (Eq. 7.6) around the maximum-likelihood fit of the weighted rows,
    with the same labels in all chains: R-hat tells whether they mix within that labelling.

    Attributes
    ----------
    warmup
        Steps per chain, thrown away.
    steps
        Steps per chain that follow, for `sample` without a number of draws.
    thin
        Every how many of those steps a draw is kept.
    chains
        Number of chains.

    Raises
    ------
    RequestError
        A count is too small.

    Examples
    --------
    >>> import jax, numpy as np
    >>> from decoct.mixture import Gibbs, VonMisesFisherMixture
    >>> from decoct.samplers import WeightedDensity
    >>> model = VonMisesFisherMixture(n_components=2, dim=3)
    >>> density = WeightedDensity.of(model, model.encode({"x": np.eye(3)}), np.ones(3))
    >>> Gibbs(warmup=5, steps=50).sample(jax.random.key(0), density, draws=10).z.shape
    (1, 10, 8)
    """

    warmup: int = 50_000
    steps: int = 50_000
    thin: int = 5
    chains: int = 1

    def __post_init__(self) -> None:
        check_whole(self, warmup=0, thin=1, steps=self.thin, chains=1)

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
        """Return ``draws`` draws per chain, ``thin`` steps apart.

        Parameters
        ----------
        key
            A typed JAX key.
        density
            π_w of a `VonMisesFisherMixture`.
        draws
            Draws per chain, after warm-up; the sampler's ``steps // thin`` by default.
        on_block
            Called after every block with its number of warm-up steps, or of draws.

        Returns
        -------
        Draws
            ``info`` has ``modes`` (chains, draws, K, D) and ``weights`` (chains, draws, K), of
            which ``z`` is the unconstrained form with norms and totals drawn from their prior;
            ``rhat`` and ``ess``, the worst over modes and weights.

        Raises
        ------
        ModelError
            The model is not a `VonMisesFisherMixture`.
        """
        model = density.model
        if not isinstance(model, VonMisesFisherMixture):
            raise ModelError(
                f"{type(model).__name__} is not a VonMisesFisherMixture, the one model Gibbs "
                "samples; use decoct.samplers.NUTS()."
            )
        draws = self.steps // self.thin if draws is None else draws
        start_key, run_key, norm_key = jax.random.split(key, 3)
        rows = _Replicas.of(density)
        states = _start_chains(host_rng(start_key), model, rows, self.chains)
        keys = jax.random.split(run_key, self.chains)
        tick = on_block or (lambda done: None)

        def advance(steps: int) -> list[tuple[Array, Array]]:
            steps_per_draw = np.clip(steps - self.thin * np.arange(DRAWS_A_CALL), 0, self.thin)
            kept = []
            # one chain after another: side by side, rare branches would be taken at every step
            for i, one in enumerate(keys):
                states[i], mixtures = _run(model, rows, one, states[i], jnp.asarray(steps_per_draw))
                kept.append(mixtures)
            return kept

        for begin in range(0, self.warmup, DRAWS_A_CALL * self.thin):
            steps = min(DRAWS_A_CALL * self.thin, self.warmup - begin)
            advance(steps)
            tick(steps)
        blocks = []
        for begin in range(0, draws, DRAWS_A_CALL):
            count = min(DRAWS_A_CALL, draws - begin)
            chains = advance(count * self.thin)
            blocks.append([np.stack(parts)[:, :count] for parts in zip(*chains, strict=True)])
            tick(count)
        modes, weights = (np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True))
        return _as_draws(host_rng(norm_key), model, modes, weights)


class _State(NamedTuple):
    """Where a chain is: modes are unit vectors, weights are softmax(logits)."""

    step: Int[Array, ""]
    modes: Float[Array, "K D"]
    logits: Float[Array, " K"]


class _Replicas(eqx.Module):
    """Weighted rows as ⌈w_n⌉ replicas of the weight w_n/⌈w_n⌉ each, padded with none."""

    columns: Float[Array, "D n"]  # side by side in memory a step runs four times as fast
    count: Float[Array, " n"]  # ⌈w_n⌉
    scale: Float[Array, " n"]  # w_n/⌈w_n⌉
    single: bool = eqx.field(static=True)  # no row has more than one replica

    @classmethod
    def of(cls, density: WeightedDensity) -> _Replicas:
        w = np.asarray(density.weights)
        w = w[w > 0.0]
        x = np.asarray(density.rows["x"])[np.asarray(density.weights) > 0.0]
        # at most an eighth more rows: few sizes to compile for, little work thrown away
        grain = max(16, 2 ** (max(1, len(w)).bit_length() - 4))
        padding = -len(w) % grain
        count = np.pad(np.ceil(w), (0, padding))
        scale = np.pad(w / np.ceil(w), (0, padding))
        # copies of a row's direction do no harm at a count of 0
        x = np.concatenate([x, np.broadcast_to(np.eye(1, x.shape[1]), (padding, x.shape[1]))])
        arrays = (jnp.asarray(a) for a in (x.T, count, scale))
        return cls(*arrays, single=bool((count <= 1.0).all()))


def _start_chains(
    rng: np.random.Generator, model: VonMisesFisherMixture, rows: _Replicas, chains: int
) -> list[_State]:
    x, w = np.asarray(rows.columns).T, np.asarray(rows.count * rows.scale)
    z = np.zeros((len(x), model.n_components))
    tau = float(model.concentration)
    # clusters beyond the number of rows start anywhere: their assignments are 0
    fitted = min(model.n_components, int((w > 0.0).sum()))
    if fitted:
        seed = int(rng.integers(2**31))
        fit = vmf_em(x, w, n_components=fitted, concentration=tau, seed=seed, tolerance=1e-6)
        z[:, :fitted] = fit.responsibilities
    modes, weights = independent_conditionals(rng, x, z, tau, chains, w)
    zero = jnp.zeros((), dtype=jnp.int64)
    return [
        _State(zero, jnp.asarray(m), jnp.asarray(np.log(p)))
        for m, p in zip(modes, weights, strict=True)
    ]


def _as_draws(
    rng: np.random.Generator,
    model: VonMisesFisherMixture,
    modes: Float[np.ndarray, "chains draws K D"],
    weights: Float[np.ndarray, "chains draws K"],
) -> Draws:
    chains, draws, K, D = modes.shape
    flat = modes.reshape(-1, K, D), weights.reshape(-1, K)
    z = model.to_unconstrained(*flat, rng).reshape(chains, draws, -1)
    seen = modes.reshape(chains, draws, -1)
    # a single cluster has the weight 1, and a constant has no ESS
    seen = np.concatenate([seen, weights], axis=2) if K > 1 else seen
    return Draws(z, "gibbs", {**convergence(seen), "modes": modes, "weights": weights})


@eqx.filter_jit
def _run(
    model: VonMisesFisherMixture,
    rows: _Replicas,
    key: Array,
    state: _State,
    steps_per_draw: Int[Array, " block"],
) -> tuple[_State, tuple[Array, Array]]:
    def one_draw(state: _State, steps: Array):
        state = jax.lax.fori_loop(0, steps, lambda _, s: _step(model, rows, key, s), state)
        return state, (state.modes, jax.nn.softmax(state.logits))

    return jax.lax.scan(one_draw, state, steps_per_draw)


def _step(model: VonMisesFisherMixture, rows: _Replicas, key: Array, state: _State) -> _State:
    # the key depends on the number of the step, not on blocks
    key = jax.random.fold_in(key, state.step)
    assign_key, mode_key, weight_key = jax.random.split(key, 3)
    params = {"modes": state.modes, "logits": state.logits}
    joint = model.log_joint(params, {"x": rows.columns.T})
    probabilities = jnp.exp(joint - joint.max(axis=0)[None, :])
    if rows.single:
        z = _categorical(assign_key, rows.count, probabilities)
    else:
        z = multinomial(assign_key, rows.count, probabilities)
    z = z * rows.scale[None, :]
    # an empty cluster's mode is uniform, whatever direction is named
    directions, lengths = directions_of(jnp, z @ rows.columns.T)
    modes = vmf_draws(mode_key, directions, model.concentration * lengths)
    return _State(state.step + 1, modes, jax.random.loggamma(weight_key, 1.0 + z.sum(axis=1)))


def _categorical(
    key: Array, counts: Float[Array, " n"], p: Float[Array, "K n"]
) -> Float[Array, "K n"]:
    """Return Multi(counts, p/Σp) for counts of 0 and 1, by inversion."""
    cumulative = jnp.cumsum(p, axis=0)
    height = jax.random.uniform(key, counts.shape, p.dtype) * cumulative[-1]
    chosen = (height[None, :] >= cumulative[:-1]).sum(axis=0)
    return jnp.where(chosen[None, :] == jnp.arange(len(p))[:, None], counts[None, :], 0.0)


def multinomial(
    key: Array, counts: Float[Array, " n"], p: Float[Array, "K n"]
) -> Float[Array, "K n"]:
    """Return counts of Multi(counts_n, p_n/Σ_k p_kn), by K − 1 conditional binomials; pure JAX.

    Counts are whole numbers ≥ 0; the p ≥ 0 of each n are not all 0.
    """
    binomial_key, uniform_key = jax.random.split(key)
    uniforms = jax.random.uniform(uniform_key, (len(p) - 1, len(counts)), p.dtype)
    tail = jnp.cumsum(p[::-1], axis=0)[::-1]
    # where nothing is left of p, nothing is left of the counts
    shares = (p / jnp.where(tail > 0.0, tail, 1.0))[:-1]

    def next_component(left, one):
        key, u, share = one
        drawn = _binomial(key, u, left, share)
        return left - drawn, drawn

    keys = jax.random.split(binomial_key, len(p) - 1)
    last, drawn = jax.lax.scan(next_component, counts, (keys, uniforms, shares))
    return jnp.concatenate([drawn, last[None, :]])


def _binomial(
    key: Array, u: Float[Array, " n"], counts: Float[Array, " n"], p: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Return Bin(counts, p): by inversion at u for small means, else by `jax.random.binomial`.

    JAX's own costs two random loops whatever the counts; rows that clearly belong to one cluster,
    which are most, need neither.
    """
    flipped = p > 0.5
    rare = jnp.where(flipped, 1.0 - p, p)
    many = counts * rare > FEW_COUNTS
    few = jnp.where(many, 0.0, counts)
    drawn = _invert_binomial(u, few, rare)
    drawn = jnp.where(flipped, few - drawn, drawn)
    return jax.lax.cond(
        many.any(),
        lambda: jnp.where(many, jax.random.binomial(key, counts, p, dtype=p.dtype), drawn),
        lambda: drawn,
    )


def _invert_binomial(
    u: Float[Array, " n"], counts: Float[Array, " n"], p: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Return the smallest k with P(Bin(counts, p) ≤ k) > u; p ≤ ½ and counts p ≤ FEW_COUNTS.

    P(k + 1) = P(k) (counts − k)/(k + 1) p/(1 − p) from P(0) = (1 − p)^counts ≥ e^{−139}.
    """
    odds = p / (1.0 - p)
    none = jnp.exp(counts * jnp.log1p(-p))

    def unfinished(carry):
        k, _, cumulative, _ = carry
        return ((u >= cumulative) & (k < counts)).any()

    def some_more(carry):
        k, mass, cumulative, found = carry
        for _ in range(UNROLLED):
            going = k < counts
            found = found + (going & (u >= cumulative))
            mass = jnp.where(going, mass * odds * (counts - k) / (k + 1.0), 0.0)
            cumulative = cumulative + mass
            k = k + 1.0
        return k, mass, cumulative, found

    start = (jnp.zeros((), u.dtype), none, none, jnp.zeros_like(u))
    return jax.lax.while_loop(unfinished, some_more, start)[3]
