"""Weighted rows: uniform, quasi-Newton coresets, Coreset MCMC, and decoct.

All but the last start from M rows drawn uniformly (Coreset MCMC by class, as its authors do), and
decoct's NUTS draws from what they end with.
With g_n the potentials of row n at S draws of π_w, centred over the draws, G those of the coreset
and b the sum of all, the gradient of KL(π_w‖π) in w is −G (b − Gᵀw)/(S − 1).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import decoct
from benchmarks.peers.method import CHAINS, WARMUP, Found, Method, draw_weighted, draws_from
from benchmarks.peers.posteriors import Problem
from decoct.constructions import IteratedHilbert
from decoct.samplers import Automatic
from decoct.samplers.base import WeightedDensity
from decoct.samplers.laplace import find_mode, gaussian_at

NEWTON_DRAWS, NEWTON_STEPS, NEWTON_TRIALS, NEWTON_SHRINK = 500, 20, 10, 1.5
"""Of quasi-Newton coresets: draws an iteration, most iterations, and of the first step how often it
is tried, by what it is divided for the next trial."""

CHAINS_OF_WEIGHTS, DIRECTIONS = 2, 3
"""Of Coreset MCMC: chains, slice moves an iteration."""

HOT_EVERY, HOT_MOST, HOT_DRIFT = 30, 10_000, 0.5
"""Of its hot start: iterations between tests, most iterations, the drift at which it ends."""


def uniform_rows(problem: Problem, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers, ascending, and weights N/M."""
    size = min(size, problem.n_rows)
    chosen = np.sort(np.random.default_rng(seed).permutation(problem.n_rows)[:size])
    return chosen, np.full(size, problem.n_rows / size)


def rows_by_class(problem: Problem, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return as many rows with y = 1 as with y = 0, weighted to the sizes of the classes.

    Uniform rows where y is not binary.
    """
    if not problem.posterior.is_logistic:
        return uniform_rows(problem, size, seed)
    generator, chosen, weights = np.random.default_rng(seed), [], []
    for value in (0, 1):
        members = np.flatnonzero(problem.rows["y"] == value)
        chosen.append(generator.permutation(members)[: size // 2])
        weights.append(np.full(len(chosen[-1]), len(members) / len(chosen[-1])))
    order = np.argsort(np.concatenate(chosen))
    return np.concatenate(chosen)[order], np.concatenate(weights)[order]


def run_weighed(
    problem: Problem, budget: tuple[float, ...], seed: int, weigh: Any, choose: Any = uniform_rows
) -> Found:
    """Draw from M random rows, M the first of the budget, after a method has weighed them."""
    chosen, start = choose(problem, int(budget[0]), seed)
    weights, used = weigh(problem, chosen, start, *budget[1:], seed)
    found = draw_weighted(problem, chosen, weights, seed)
    return found._replace(evaluations=found.evaluations + used)


def leave(problem: Problem, chosen: np.ndarray, start: np.ndarray, seed: int) -> Any:
    """Return weights as they are, and no evaluations."""
    return start, 0.0


def weigh_quasi_newton(
    problem: Problem,
    chosen: np.ndarray,
    start: np.ndarray,
    damping: float,
    is_relative: bool,
    seed: int,
) -> tuple[np.ndarray, float]:
    """Run quasi-Newton coresets (Naik, Rousseau & Campbell 2022, Algorithm 1).

    Steps d = (GGᵀ/S + τ)⁻¹ G (b − Gᵀw)/S, projected to w ≥ 0, until the gradient falls by less than
    a tenth. τ is absolute, or in units of the mean diagonal of GGᵀ/S. The first step is shortened
    until 0 < φ'(a)/φ'(0) < 0.9, φ'(a) the directional derivative at w + a d; if it never is, the
    weights stay uniform. Laplace draws where they fit, else NUTS. Returns the weights with the
    smallest gradient, and evaluations.
    """
    rows = problem.bridge.encode({k: v[chosen] for k, v in problem.rows.items()}, chosen)
    used, calls = 0.0, iter(range(1000))

    def derivatives(weights):
        nonlocal used
        density = WeightedDensity.of(problem.bridge, rows, weights, padded_as=len(chosen))
        key = jax.random.fold_in(jax.random.key(seed), next(calls))
        drawn = Automatic().draw(key, density, NEWTON_DRAWS)
        z = drawn.flat[:NEWTON_DRAWS]
        steps = float(np.mean(drawn.info.get("n_steps", 1.0)))
        used += NEWTON_DRAWS * (problem.n_rows + len(chosen) * (1.0 + steps))
        centre = lambda values: values - values.mean(axis=-1, keepdims=True)  # noqa: E731
        g = centre(problem.potentials.vectors(rows, z))
        gradient = g @ (centre(problem.potentials.totals(z)) - weights @ g) / NEWTON_DRAWS
        gram = g @ g.T / NEWTON_DRAWS
        ridge = damping * (np.trace(gram) / len(gram) if is_relative else 1.0)
        return gradient, np.linalg.solve(gram + ridge * np.eye(len(gram)), gradient)

    def first_step():
        for trial in range(NEWTON_TRIALS):
            there = np.maximum(0.0, start + direction / NEWTON_SHRINK**trial)
            if there.any():
                found = derivatives(there)
                if 0.0 < found[0] @ direction / (gradient @ direction) < 0.9:
                    return there, *found
        return None

    gradient, direction = derivatives(start)
    best, least = start, np.linalg.norm(gradient)
    size, found = least, first_step()
    for _ in range(NEWTON_STEPS):
        if found is None:
            break
        there, gradient, direction = found
        size, before = np.linalg.norm(gradient), size
        if size < least:
            best, least = there, size
        there = np.maximum(0.0, there + direction)
        found = None
        if size <= 0.9 * before and there.any():
            found = there, *derivatives(there)
    return best, used


def weigh_coreset_mcmc(
    problem: Problem,
    chosen: np.ndarray,
    start: np.ndarray,
    iterations: int,
    first: float,
    seed: int,
) -> tuple[np.ndarray, float]:
    """Run Coreset MCMC (Chen & Campbell 2024) with the tuning-free steps of Chen et al. (2024).

    Two chains of hit-and-run slice moves on π_w, each iteration followed by a step of the weights
    along the gradient from these two draws and M rows of the table, by their Eq. for "Hot DoG" with
    first step r. Directions are those of the Laplace approximation of the first weights, which
    costs M rows alone. Chains are warm before weights move (`is_hot`). Returns weights and
    evaluations.
    """
    encoded = problem.bridge.encode({k: v[chosen] for k, v in problem.rows.items()}, chosen)
    mode = find_mode(WeightedDensity.of(problem.bridge, encoded, start))
    if not mode.status.ok:
        raise ValueError(f"The first weights have no Laplace approximation: {mode.status.value}")
    factor = jnp.asarray(np.linalg.cholesky(gaussian_at(mode).cov))
    kept = {k: jnp.asarray(v[chosen]) for k, v in problem.rows.items()}
    rows = {k: jnp.asarray(v) for k, v in problem.rows.items()}

    def log_density(z, weights):
        return problem.log_prior(z) + weights @ problem.row_log_likelihoods(z, kept)

    def move_one(key, z, weights):
        keys = jax.random.split(key, DIRECTIONS)
        z, counts = jax.lax.scan(
            lambda z, key: slice_move(key, z, factor, lambda z: log_density(z, weights)), z, keys
        )
        return z, counts.sum()

    def move(key, z, weights):
        keys = jax.random.split(key, CHAINS_OF_WEIGHTS)
        z, counts = jax.vmap(move_one, in_axes=(0, 0, None))(keys, z, weights)
        return z, counts.sum()

    @jax.jit
    def warm(z, keys):
        def once(z, key):
            z, count = move(key, z, start)
            return z, (jax.vmap(lambda z: log_density(z, start))(z), count)

        return jax.lax.scan(once, z, keys)

    def gradient(key, z, weights):
        picked = jax.random.randint(key, (len(chosen),), 0, problem.n_rows)
        batch = {k: v[picked] for k, v in rows.items()}
        at = lambda some: jax.vmap(lambda z: problem.row_log_likelihoods(z, some))(z)  # noqa: E731
        g, b = at(kept), problem.n_rows * at(batch).mean(axis=1)
        g, b = g - g.mean(axis=0, keepdims=True), b - b.mean()
        return -g.T @ (b - g @ weights) / (CHAINS_OF_WEIGHTS - 1)

    def iterate(carry, step):
        z, weights, m, v, reach, cost = carry
        t, key = step
        move_key, batch_key = jax.random.split(key)
        z, count = move(move_key, z, weights)
        d = gradient(batch_key, z, weights)
        b1, b2 = 0.9, 0.999
        m, v = b1 * m + (1 - b1) * d, b2 * v + (1 - b2) * d**2
        reach = b1 * reach + (1 - b1) * jnp.maximum(jnp.abs(weights - start), reach)
        so_far = jnp.where(t == 1, first, reach / (1 - b1**t))
        slope = m / (1 - b1**t) / (jnp.sqrt(t * v / (1 - b2**t)) + 1e-8)
        moved = jnp.maximum(0.0, weights - so_far * slope)
        return (z, moved, m, v, reach, cost + count), None

    hot_key, key = jax.random.split(jax.random.key(seed))
    z, cost = jnp.tile(jnp.asarray(mode.z), (CHAINS_OF_WEIGHTS, 1)), jnp.zeros((), dtype=int)
    trace = np.empty((0, CHAINS_OF_WEIGHTS))
    while len(trace) < HOT_MOST and not (len(trace) >= 3 * problem.dim and is_hot(trace)):
        hot_key, use = jax.random.split(hot_key)
        z, (values, counts) = warm(z, jax.random.split(use, HOT_EVERY))
        trace, cost = np.concatenate([trace, values]), cost + counts.sum()
    zeros = jnp.zeros(len(chosen))
    run = jax.jit(lambda carry, steps: jax.lax.scan(iterate, carry, steps)[0])
    steps = jnp.arange(1.0, iterations + 1.0), jax.random.split(key, iterations)
    _, weights, *_, moves = run((z, jnp.asarray(start), zeros, zeros, zeros, cost), steps)
    used = CHAINS_OF_WEIGHTS * 2 * len(chosen) * iterations
    return np.asarray(weights), used + float(moves) * len(chosen)


def is_hot(trace: np.ndarray) -> bool:
    """Return whether chains have left where they began (Chen et al. 2024).

    ``trace`` (T, K) is the log density along K chains. Its first third is left out. The drift of a
    chain is the difference of the means of the two halves of the rest, over the larger sd of a half
    about its own straight line; chains are hot if the median drift is at most 1/2.
    """
    half = len(trace) // 3
    halves = [trace[-2 * half : -half], trace[-half:]]
    time = np.column_stack([np.ones(half), np.arange(half)])
    rests = [part - time @ np.linalg.lstsq(time, part)[0] for part in halves]
    gap = np.abs(halves[0].mean(axis=0) - halves[1].mean(axis=0))
    return bool(np.median(gap / np.max([rest.std(axis=0) for rest in rests], axis=0)) <= HOT_DRIFT)


def slice_move(key, z, factor, log_density):
    """Make a slice move along a random direction (Neal 2003): step out, then shrink.

    Returns the new point and the evaluations of the density that it took.
    """
    direct, level, place, shrink = jax.random.split(key, 4)
    direction = factor @ jax.random.normal(direct, z.shape)
    direction = direction / jnp.sqrt(len(z)) * 2.0
    height = log_density(z) - jax.random.exponential(level)
    left = -jax.random.uniform(place)
    above = lambda t: log_density(z + t * direction) > height  # noqa: E731

    def step_out(t, side):
        inside = lambda carry: (carry[1] < 10) & above(carry[0])  # noqa: E731
        return jax.lax.while_loop(inside, lambda c: (c[0] + side, c[1] + 1), (t, 0))

    (low, first), (high, second) = step_out(left, -1.0), step_out(left + 1.0, 1.0)

    def shrunk(carry):
        low, high, t, key, count = carry
        low, high = jnp.where(t < 0.0, t, low), jnp.where(t < 0.0, high, t)
        key, use = jax.random.split(key)
        return low, high, jax.random.uniform(use, minval=low, maxval=high), key, count + 1

    key, use = jax.random.split(shrink)
    t = jax.random.uniform(use, minval=low, maxval=high)
    carry = (low, high, t, key, 1)
    _, _, t, _, third = jax.lax.while_loop(lambda c: (c[4] < 50) & ~above(c[2]), shrunk, carry)
    return z + jnp.where(third < 50, t, 0.0) * direction, first + second + third + 3


def run_decoct(problem: Problem, budget: tuple[int], seed: int, site: bool = True) -> Found:
    """Build a coreset with decoct's defaults and draw from it; its report counts evaluations."""
    method = IteratedHilbert(site=site)
    coreset = decoct.build(
        problem.bridge, problem.bridge.rows, size=budget[0], seed=seed, method=method
    )
    count = draws_from(coreset.size)
    drawn = coreset.sample(count, CHAINS, seed=seed, warmup=WARMUP)
    z = drawn["unconstrained_posterior"]["z"].to_numpy().reshape(-1, problem.dim)
    steps = float(drawn["sample_stats"]["n_steps"].mean()) * (len(z) + CHAINS * WARMUP)
    return Found(z, coreset.report.evaluations + steps * coreset.size)


SIZES = (100, 1000, 4000)
"""Rows of peers' coresets."""

DAMPINGS = ((0.01, False), (0.01, True), (1.0, True))
"""Of quasi-Newton coresets, and whether they are in units of the mean diagonal; the authors' first.
"""

ITERATIONS, FIRST = (25_000, 200_000), 1e-3
"""Of Coreset MCMC: iterations, the longer ones of few rows alone, and the authors' first step."""


def _sizes(problem: Problem) -> list[int]:
    return [size for size in SIZES if size < problem.n_rows]


METHODS = {
    "uniform": Method(
        lambda problem: [(size,) for size in _sizes(problem)], partial(run_weighed, weigh=leave)
    ),
    "quasi_newton": Method(
        lambda problem: [(size, *some) for size in _sizes(problem) for some in DAMPINGS],
        partial(run_weighed, weigh=weigh_quasi_newton),
    ),
    "coreset_mcmc": Method(
        lambda problem: [(s, t, FIRST) for s in _sizes(problem)[:2] for t in ITERATIONS][:3],
        partial(run_weighed, weigh=weigh_coreset_mcmc, choose=rows_by_class),
    ),
    "decoct": Method(lambda problem: [(0,), (10,), (100,)], run_decoct),
    "decoct_rows": Method(lambda problem: [(30,), (100,), (300,)], partial(run_decoct, site=False)),
}
