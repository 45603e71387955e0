"""Gaussians and their kin: Laplace, Pathfinder, ADVI, surrogate DAIS, PASS-GLM's quadratic."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from blackjax.optimizers.lbfgs import lbfgs_inverse_hessian_formula_1
from blackjax.vi.pathfinder import approximate
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoMultivariateNormal,
    AutoNormal,
    AutoSurrogateLikelihoodDAIS,
)
from scipy.special import logsumexp

from benchmarks.peers.method import DRAWS, Found, Method, batch_of, draw_weighted
from benchmarks.peers.posteriors import Problem
from decoct.models.site import GaussianSite
from decoct.passes.expansions import Expansion
from decoct.stats.chains import smoothed_log_weights
from decoct.stats.divergences import Gaussian

ITERATIONS = 1000
"""Most steps of L-BFGS on a path of Pathfinder."""

RATES = (0.1, 0.02, 0.004)
"""First step sizes of Adam; the last one is a hundredth of it."""

FROM_MODE = ((1, 0.1), (1, 0.02), (1, 0.004), (3, 0.004))
"""Of guides that start at the mode: steps, in units of the longest others, and first step size; of
locations in units of the first sds, the median of the Laplace approximation's."""

INIT_SCALE = 0.01
"""First sds of other guides: a tenth of NumPyro's, for posteriors of many rows are narrow."""

TERMS = 100
"""Degree at which Chebyshev series of the logistic likelihood are exact to rounding."""

SURROGATE_ROWS, HMC_STEPS, DAIS_DRAWS = 200, 4, 2000
"""Of surrogate DAIS: rows of the surrogate likelihood, leapfrog steps on it, and draws, each of
which takes these steps."""


def run_laplace(problem: Problem, budget: tuple[int], seed: int) -> Found:
    """Draw from the Laplace approximation, as often as the budget says."""
    mode, used = problem.find_mode()
    return Found(mode.sample(np.random.default_rng(seed), *budget), used)


def run_weighted_laplace(problem: Problem, budget: tuple[int], seed: int) -> Found:
    """Weight so many draws of the Laplace approximation on all rows."""
    (weighted,) = budget
    mode, used = problem.find_mode()
    z = mode.sample(np.random.default_rng(seed), weighted)
    weights = _importance(problem, z, mode.log_density(z))
    return Found(z, used + weighted * problem.n_rows, weights)


def run_pathfinder(problem: Problem, budget: tuple[int, int, int], seed: int) -> Found:
    """Run BlackJAX's Pathfinder on paths; weight draws of the mixture, if any, on all rows.

    Evaluations of L-BFGS are counted as they are made; of the evidence bounds those of steps made.
    """
    paths, bound_draws, weighted = budget
    rng, ticks = np.random.default_rng(seed), []

    def counted(z):
        jax.debug.callback(lambda: ticks.append(1))
        return problem.log_density(z)

    @jax.jit
    def one(key, start):
        options = {"maxiter": ITERATIONS, "maxls": 30, "ftol": 1e-12}
        state, info = approximate(key, counted, start, bound_draws, **options)
        cov = lbfgs_inverse_hessian_formula_1(state.alpha, state.beta, state.gamma)
        return state.position - cov @ state.grad_position, cov, jnp.isfinite(info.path.elbo).sum()

    gaussians, bounds = [], 0
    for path in range(paths):
        start = problem.start + (rng.uniform(-1.0, 1.0, problem.dim) if path else 0.0)
        mean, cov, steps = map(np.asarray, one(jax.random.key(seed + path), start))
        gaussians.append(Gaussian(mean, 0.5 * (cov + cov.T)))
        bounds += int(steps) * bound_draws
    jax.effects_barrier()
    used = (len(ticks) + bounds) * problem.n_rows
    each = (weighted or DRAWS) // paths
    z = np.concatenate([gaussian.sample(rng, each) for gaussian in gaussians])
    if not weighted:
        return Found(z, used)
    log_mixture = logsumexp([gaussian.log_density(z) for gaussian in gaussians], axis=0)
    return Found(z, used + len(z) * problem.n_rows, _importance(problem, z, log_mixture))


def _importance(problem: Problem, z: np.ndarray, log_density: np.ndarray) -> np.ndarray:
    """Return Pareto-smoothed importance weights of draws from a density."""
    target = jax.jit(lambda z: jax.lax.map(problem.log_density, z, batch_size=50))(jnp.asarray(z))
    return np.exp(smoothed_log_weights(np.asarray(target) - log_density)[0])


def run_svi(
    problem: Problem, budget: tuple[int, float, int, bool], seed: int, guide, draw_cost=0
) -> Found:
    """Run NumPyro's SVI with a guide on minibatches; a step of the guide may take rows too.

    It starts where every method starts, or at the mode by L-BFGS, whose evaluations are counted.
    """
    steps, rate, size, from_mode = budget
    model = problem.numpyro_model(size)
    at, scale, used = problem.start, INIT_SCALE, steps * (size + draw_cost)
    rates = {"location": rate, "shape": rate}
    if from_mode:
        mode, searched = problem.find_mode()
        at, scale, used = mode.mean, float(np.median(mode.sd)), used + searched
        rates["location"] *= scale
    start = problem.init_at(at)
    made = guide(model, init_loc_fn=start, init_scale=scale)
    adam = {k: optax.adam(optax.exponential_decay(r, steps, 0.01)) for k, r in rates.items()}
    optimiser = numpyro.optim.optax_to_numpyro(optax.multi_transform(adam, _kinds))
    svi = SVI(model, made, optimiser, Trace_ELBO())
    rows = {k: jnp.asarray(v) for k, v in problem.rows.items()}
    found = svi.run(jax.random.key(seed), steps, progress_bar=False, **rows)
    key = jax.random.key(seed + 1)
    draws = DAIS_DRAWS if draw_cost else DRAWS
    samples = made.sample_posterior(key, found.params, sample_shape=(draws,))
    return Found(problem.flat(samples), used + draws * draw_cost)


def _kinds(params: dict[str, Any]) -> dict[str, str]:
    """Return which parameters of a guide are locations; the others have no unit."""
    return {name: "location" if name.endswith("loc") else "shape" for name in params}


def run_dais(problem: Problem, budget: tuple[int, float, int, bool], seed: int) -> Found:
    """Run NumPyro's surrogate-likelihood DAIS: a Gaussian moved by HMC on weighted rows."""
    chosen = np.random.default_rng(seed).permutation(problem.n_rows)[:SURROGATE_ROWS]
    few = {k: jnp.asarray(v[chosen]) for k, v in problem.rows.items()}
    posterior = problem.posterior

    def surrogate():
        found = posterior.latents()
        start = jnp.full(len(chosen), problem.n_rows / len(chosen))
        scale = numpyro.param(
            "weights", start, constraint=numpyro.distributions.constraints.positive
        )
        with numpyro.plate("data", len(chosen)), numpyro.handlers.scale(scale=scale):
            numpyro.sample("y", posterior.likelihood(found, few), obs=few["y"])

    def guide(model, **starts):
        return AutoSurrogateLikelihoodDAIS(
            model,
            surrogate,
            K=HMC_STEPS,
            base_dist="cholesky",
            eta_init=1e-4,
            **starts,
        )

    return run_svi(problem, budget, seed, guide, draw_cost=HMC_STEPS * len(chosen))


def quadratic_of_log_sigmoid(radius: float) -> np.ndarray:
    """Return b of b₀ + b₁ s + b₂ s² ≈ log σ(s): the Chebyshev series on [−R, R] to degree 2."""
    log_sigmoid = lambda t: -np.logaddexp(0.0, -radius * t)  # noqa: E731
    series = np.polynomial.chebyshev.chebinterpolate(log_sigmoid, TERMS)[:3]
    return np.polynomial.chebyshev.cheb2poly(series) / radius ** np.arange(3)


def run_pass_glm(problem: Problem, budget: tuple[float], seed: int) -> Found:
    """Draw with PASS-GLM's quadratic in place of the logistic likelihood (Huggins et al. 2017).

    With s = ±xᵀβ, log σ(s) ≈ b₀ + b₁ s + b₂ s² (`quadratic_of_log_sigmoid`); its sums over rows are
    sufficient statistics of one pass.
    """
    (radius,) = budget
    if not problem.posterior.is_logistic:
        raise ValueError("Implemented here for logistic likelihoods alone.")
    b = quadratic_of_log_sigmoid(radius)
    # at φ = 0 a row has gradient ±x/2 and Hessian −xxᵀ/4, x the design of its logit
    origin = np.zeros(problem.potentials.likelihood_dim)
    sums = problem.potentials.expand(Expansion.taylor(origin))
    site = GaussianSite(origin, 2.0 * b[1] * sums.gradient, 8.0 * b[2] * sums.hessian, 0.0)
    # the same quadratic about its maximum with a little of a prior, where chains can start
    maximum = np.linalg.solve(site.precision + np.eye(site.dim), site.linear)
    site = site.move_to(maximum)
    found = draw_weighted(problem, np.zeros(0, dtype=np.int64), np.zeros(0), seed, site)
    return found._replace(evaluations=problem.n_rows)


def _steps(few: int, many: int):
    grid = [(few, rate, False) for rate in RATES] + [(many, rate, False) for rate in RATES[1:]]
    grid += [(times * many, rate, True) for times, rate in FROM_MODE]
    return lambda problem: [(c, rate, batch_of(problem), mode) for c, rate, mode in grid]


METHODS = {
    "laplace": Method(lambda problem: [(DRAWS,)], run_laplace),
    "laplace_weighted": Method(lambda problem: [(300,), (1000,), (4000,)], run_weighted_laplace),
    "pathfinder": Method(
        lambda problem: [(1, 25, 0), (4, 25, 2000)],
        run_pathfinder,
    ),
    "advi": Method(_steps(5000, 25_000), partial(run_svi, guide=AutoNormal)),
    "advi_full": Method(_steps(5000, 25_000), partial(run_svi, guide=AutoMultivariateNormal)),
    "dais": Method(_steps(5000, 15_000), run_dais),
    "pass_glm": Method(
        lambda problem: [(2.0,), (4.0,), (6.0,)] if problem.posterior.is_logistic else [(0.0,)],
        run_pass_glm,
    ),
}
