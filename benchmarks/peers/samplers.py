"""Samplers on all rows, and on subsamples: NUTS, HMCECS, stochastic gradients."""

from __future__ import annotations

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.sgmcmc.gradients import control_variates
from numpyro.infer import HMCECS, MCMC, NUTS
from nutpie import sample as nutpie_sample
from nutpie.compiled_pyfunc import from_pyfunc

from benchmarks.peers.method import Found, Method, batch_of
from benchmarks.peers.posteriors import Problem

MOST_KEPT = 20_000
"""Draws of a stochastic-gradient chain that are kept, evenly spaced."""

LANGEVIN = tuple((count, (0.003, 0.03, 0.2)) for count in (2000, 10_000, 50_000))
LANGEVIN += ((200_000, (0.0003, 0.003, 0.03)),)
"""Of SGLD: iterations, and step sizes where the Laplace approximation has unit covariance."""

SECOND_ORDER = 150
"""Parameters up to which HMCECS has a proxy of second order: of more, the Hessians of a subsample
take gigabytes."""


def run_numpyro(problem: Problem, budget: tuple[int, int], seed: int) -> Found:
    """Run NumPyro's NUTS as it comes: one chain, diagonal mass matrix, target 0.8."""
    warmup, draws = budget
    kernel = NUTS(potential_fn=lambda z: -problem.log_density(z))
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=draws, progress_bar=False)
    key, fields = jax.random.key(seed), ("num_steps",)
    start = jnp.asarray(problem.start)
    mcmc.warmup(key, init_params=start, extra_fields=fields, collect_warmup=True)
    steps = mcmc.get_extra_fields()["num_steps"].sum()
    mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=fields)
    steps = int(steps + mcmc.get_extra_fields()["num_steps"].sum())
    return Found(np.asarray(mcmc.get_samples()), steps * problem.n_rows)


def run_nutpie(problem: Problem, budget: tuple[int, int], seed: int) -> Found:
    """Run nutpie's NUTS as it comes: one chain, its own adaptation of a diagonal mass matrix."""
    warmup, draws = budget

    def log_density(z, **shared):
        value, gradient = problem.value_and_grad(z)
        return float(value), np.asarray(gradient)

    compiled = from_pyfunc(
        problem.dim,
        lambda: log_density,
        lambda *seeds: lambda z, **shared: {"z": z},
        [np.dtype(np.float64)],
        [(problem.dim,)],
        ["z"],
        make_initial_point_fn=lambda seed: problem.start,
    )
    problem.value_and_grad(problem.start)
    settings = {"chains": 1, "cores": 1, "progress_bar": False, "save_warmup": True}
    trace = nutpie_sample(compiled, draws=draws, tune=warmup, seed=seed, **settings)
    stats = (trace.sample_stats, trace.warmup_sample_stats)
    steps = sum(int(np.asarray(one["n_steps"]).sum()) for one in stats)
    return Found(np.asarray(trace.posterior["z"])[0], steps * problem.n_rows)


def run_hmcecs(problem: Problem, budget: tuple[int, int, int], seed: int) -> Found:
    """Run NumPyro's HMC with energy-conserving subsampling, Taylor's proxy at the mode.

    The proxy needs derivatives of all rows once, and of a block of rows every step; a step
    evaluates the whole subsample once more, to accept the block.
    """
    warmup, draws, size = budget
    blocks, degree = size // 10, 2 if problem.dim <= SECOND_ORDER else 1
    mode, used = problem.find_mode()
    inner = NUTS(problem.numpyro_model(size), init_strategy=problem.init_at(mode.mean))
    proxy = HMCECS.taylor_proxy(problem.named(mode.mean), degree)
    kernel = HMCECS(inner, num_blocks=blocks, proxy=proxy)
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=draws, progress_bar=False)
    rows = {k: jnp.asarray(v) for k, v in problem.rows.items()}
    key, fields = jax.random.key(seed), ("hmc_state.num_steps",)
    mcmc.warmup(key, extra_fields=fields, collect_warmup=True, **rows)
    steps = mcmc.get_extra_fields()["hmc_state.num_steps"].sum()
    mcmc.run(mcmc.post_warmup_state.rng_key, extra_fields=fields, **rows)
    steps = int(steps + mcmc.get_extra_fields()["hmc_state.num_steps"].sum())
    derivatives = 1 + (problem.width if degree == 2 else 0)
    used += problem.n_rows * derivatives + steps * size
    used += (warmup + draws) * (size + size // blocks * derivatives)
    return Found(problem.flat(mcmc.get_samples()), used)


def run_langevin(problem: Problem, budget: tuple[int, float, int], seed: int) -> Found:
    """Run BlackJAX's SGLD with control variates, in coordinates of the Laplace approximation.

    There the posterior has unit covariance, and one step size suits all parameters. A tenth of the
    iterations is thrown away.
    """
    iterations, step_size, size = budget
    mode, used = problem.find_mode()
    factor, mean = jnp.asarray(np.linalg.cholesky(mode.cov)), jnp.asarray(mode.mean)
    rows = {k: jnp.asarray(v) for k, v in problem.rows.items()}

    def estimate(u, batch):
        z = mean + factor @ u
        return problem.log_prior(z) + problem.n_rows * problem.row_log_likelihoods(z, batch).mean()

    gradient = control_variates(jax.grad(estimate), jnp.zeros(problem.dim), rows)
    kernel = blackjax.sgld(gradient)
    thin = -(-iterations // MOST_KEPT)

    def thinned(u, key):
        def one(u, key):
            pick, noise = jax.random.split(key)
            chosen = jax.random.randint(pick, (size,), 0, problem.n_rows)
            return kernel.step(noise, u, {k: v[chosen] for k, v in rows.items()}, step_size), None

        u, _ = jax.lax.scan(one, u, jax.random.split(key, thin))
        return u, u

    keys = jax.random.split(jax.random.key(seed), iterations // thin)
    chain = jax.jit(lambda keys: jax.lax.scan(thinned, jnp.zeros(problem.dim), keys)[1])(keys)
    z = np.asarray(mean + chain[len(chain) // 10 :] @ factor.T)
    if not np.isfinite(z).all():
        raise ValueError("The chain left for infinity.")
    # the gradient at the centre too, of all rows once and of every batch
    return Found(z, used + problem.n_rows + 2 * size * len(keys) * thin)


def _on_all_rows(problem: Problem) -> list[tuple[int, int]]:
    """Return warm-up and draws of NUTS on all rows: one budget more where it takes seconds."""
    full = [(100, 100), (300, 300), (1000, 1000)]
    return [*full, (1000, 10_000)] if problem.n_rows < 10_000 and problem.dim < 20 else full


METHODS = {
    "numpyro_nuts": Method(_on_all_rows, run_numpyro),
    "nutpie": Method(_on_all_rows, run_nutpie),
    "hmcecs": Method(
        lambda problem: [(200, 300, 100), (1000, 3000, 1000), (1000, 8000, 1000)], run_hmcecs
    ),
    "sgld_cv": Method(
        lambda problem: [
            (count, step, batch_of(problem)) for count, steps in LANGEVIN for step in steps
        ],
        run_langevin,
    ),
}
