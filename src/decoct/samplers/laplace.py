"""The Laplace approximation N(z*, (−∇² log π_w(z*))⁻¹) in unconstrained space.

The maximum z* is found by a damped Newton method. Each step maximises the quadratic model with
curvature −H + λI; λ grows until the density rises and falls when the model is accurate
(Levenberg-Marquardt). Curvature that is not negative definite is handled by λ above its most
positive eigenvalue, so a saddle or a minimum is never an answer.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, Float

from decoct.data.base import Rows, name_files
from decoct.data.encoded import encoded
from decoct.data.tables import counted_rows
from decoct.data.tables import rows as as_rows
from decoct.errors import ModelError
from decoct.models.base import AbstractModel, require_model
from decoct.models.parameters import ParameterSpace
from decoct.passes.expansions import to_second_order
from decoct.passes.potentials import Curvature, Potentials
from decoct.runtime.precision import compile_quickly, float64
from decoct.runtime.progress import ProgressBar, begin
from decoct.runtime.randomness import host_rng
from decoct.samplers.base import Draws, Sampler, WeightedDensity, log_densities
from decoct.stats.chains import smoothed_log_weights
from decoct.stats.divergences import Gaussian, kl_from_log_ratios

ROUNDED_DECREMENT = 1e-12
"""Decrement, in nats, from which on round-off may keep it from falling."""

SINGULAR = 1e-14
"""Pivot of −H, scaled to a unit diagonal, below which a direction counts as flat."""

MOST_EVALUATIONS = 200
"""Evaluations of a search, if nothing else is asked for."""

MOST_STEPS = 60
"""Most Newton steps of the compiled loop, halved ones included."""

JUDGED_AT = 100
"""Fewest draws at which k-hat is computed."""

CLOSE, PROPOSALS = 0.02, 8
"""KL(q‖π_w) in nats above which draws are resampled, and of how many for each."""


class ModeStatus(enum.Enum):
    """How the search for the mode ended."""

    CONVERGED = "The gradient vanished at a strict maximum."
    NOT_A_MAXIMUM = (
        "The Hessian is not negative definite where the gradient vanishes; the posterior has a "
        "flat or saddle-shaped point there: use NUTS, or a proper prior on every parameter."
    )
    NO_CONVERGENCE = (
        "Newton's method did not converge; the log density may be unbounded or not smooth: use "
        "NUTS, or start elsewhere (init)."
    )

    @property
    def ok(self) -> bool:
        return self is ModeStatus.CONVERGED


class Mode(NamedTuple):
    """A maximum, with its curvature and how it was found."""

    z: Float[np.ndarray, " d"]
    curvature: Curvature
    status: ModeStatus


def maximise(
    evaluate: Callable[[np.ndarray], Curvature],
    start: Float[np.ndarray, " d"],
    max_evaluations: int = MOST_EVALUATIONS,
    tolerance: float = 1e-20,
) -> Mode:
    """Maximise from ``start`` until the Newton decrement gᵀ(−H)⁻¹g is below ``tolerance``.

    The decrement is twice the distance to the maximum in nats. Below `ROUNDED_DECREMENT` the search
    also stops as soon as round-off keeps the decrement from falling.
    """
    z, here = np.asarray(start, dtype=np.float64), evaluate(start)
    damping, best = 0.0, np.inf
    if not _finite(here):
        return Mode(z, here, ModeStatus.NO_CONVERGENCE)
    decrement, floor = _definiteness(here)
    for _ in range(max_evaluations - 1):
        if decrement is not None:
            if decrement <= tolerance or (best <= ROUNDED_DECREMENT and decrement >= 0.25 * best):
                return Mode(z, here, ModeStatus.CONVERGED)
            best = min(best, decrement)
        step = _solve_damped(here, floor + damping)
        there = evaluate(z + step)
        expected = here.gradient @ step + 0.5 * step @ here.hessian @ step
        gained = there.value - here.value
        noise = 1e-13 * (1.0 + abs(here.value))
        if _finite(there) and (gained >= 0.1 * expected or abs(expected) <= noise):
            z, here = z + step, there
            decrement, floor = _definiteness(here)
            damping = 0.0 if damping < 1e-6 else damping / 10.0
        else:
            damping = max(10.0 * damping, floor, 1e-3)
            if damping > 1e15:
                break
    flat = np.abs(here.gradient).max(initial=0.0) < 1e-6 * (1.0 + abs(here.value))
    status = ModeStatus.NO_CONVERGENCE
    if flat and decrement is None:
        status = ModeStatus.NOT_A_MAXIMUM
    return Mode(z, here, status)


def _finite(point: Curvature) -> bool:
    return all(np.isfinite(part).all() for part in point)


def decrement_of(point: Curvature) -> float | None:
    """Return gᵀ(−H)⁻¹g, or None where −H is not positive definite to the digits it has."""
    bends = -np.diag(point.hessian)
    if not (bends > 0.0).all():
        return None
    scale = np.sqrt(bends)
    try:
        factor = np.linalg.cholesky(-point.hessian / np.outer(scale, scale))
    except np.linalg.LinAlgError:
        return None
    if np.diag(factor).min() ** 2 < SINGULAR:
        return None
    scaled = scipy.linalg.solve_triangular(factor, point.gradient / scale, lower=True)
    return float(scaled @ scaled)


def _definiteness(point: Curvature) -> tuple[float | None, float]:
    """Return the decrement, and by how much −H, scaled by its diagonal, misses being positive."""
    decrement = decrement_of(point)
    if decrement is not None:
        return decrement, 0.0
    scaled, _ = _scale(point)
    return None, max(1e-14, -1.5 * float(np.linalg.eigvalsh(scaled)[0]))


def _solve_damped(point: Curvature, damping: float) -> np.ndarray:
    """Solve (−H scaled by its diagonal + λ) step = gradient."""
    scaled, scale = _scale(point)
    np.fill_diagonal(scaled, np.diag(scaled) + damping)
    return np.linalg.solve(scaled, point.gradient / scale) / scale


def _scale(point: Curvature) -> tuple[np.ndarray, np.ndarray]:
    """Return −H in units of its diagonal, and the roots of that."""
    scale = np.sqrt(np.maximum(np.abs(np.diag(point.hessian)), 1e-12))
    return -point.hessian / np.outer(scale, scale), scale


def gaussian_at(mode: Mode) -> Gaussian:
    """Return the Laplace approximation at a mode, or raise `ModelError`."""
    if not mode.status.ok:
        raise ModelError(mode.status.value)
    precision = -mode.curvature.hessian
    factor = np.linalg.inv(np.linalg.cholesky(precision))
    return Gaussian(mode.z, factor.T @ factor)


@compile_quickly
def _curvature(density: WeightedDensity, z):
    return to_second_order(density.log_density, z)


class _Ascent(NamedTuple):
    z: Array
    point: tuple[Array, Array, Array]
    step: Array
    length: Array
    decrement: Array
    before: Array
    tried: Array


def ascend(density: WeightedDensity, start):
    """Take Newton steps, halved until log π_w rises, in one compiled loop; stop where one fails."""

    def unfinished(here: _Ascent):
        settled = (here.before <= ROUNDED_DECREMENT) & (here.decrement >= 0.25 * here.before)
        done = (here.decrement <= 1e-20) | settled | (here.tried >= MOST_STEPS)
        return (here.tried < 0) | (jnp.isfinite(here.decrement) & ~done)

    def step(here: _Ascent):
        z, tried = here.z + here.length * here.step, here.tried + 1
        point = to_second_order(density.log_density, z)
        factor = jnp.linalg.cholesky(-point[2])
        scaled = jax.scipy.linalg.solve_triangular(factor, point[1], lower=True)
        newton = jax.scipy.linalg.solve_triangular(factor, scaled, lower=True, trans=1)
        there = _Ascent(z, point, newton, one, scaled @ scaled, here.decrement, tried)
        shorter = here._replace(length=0.5 * here.length, tried=tried)
        gained, noise = point[0] - here.point[0], 1e-13 * (1.0 + jnp.abs(here.point[0]))
        fails = ~(gained >= 0.1 * here.length * here.decrement - noise) & (here.length > 1e-6)
        return jax.tree.map(partial(jnp.where, fails & (here.tried >= 0)), shorter, there)

    # a first step of length 0 evaluates the start: derivatives are compiled once
    one, far, nowhere = jnp.ones(()), jnp.full((), jnp.inf), jnp.zeros_like(start)
    point = -far, nowhere, jnp.zeros((len(start), len(start)))
    first = _Ascent(start, point, nowhere, one, far, far, jnp.asarray(-1))
    return jax.lax.while_loop(unfinished, step, first)


_ascend = compile_quickly(ascend)


@float64
def find_mode(
    density: WeightedDensity,
    start: Float[np.ndarray, " d"] | None = None,
    max_evaluations: int = MOST_EVALUATIONS,
) -> Mode:
    """Return the mode of π_w on the rows of a small weighted sample.

    A compiled Newton loop finds it in one call where the log density is concave on the path;
    otherwise the damped search of `maximise` starts again, with at most ``max_evaluations``.
    """
    start = density.start if start is None else start
    density = replace(density, draws=None)  # one program, whether there are any or not
    found = _ascend(density, jax.device_put(start))
    here = Curvature.of(found.point)
    if float(found.decrement) <= ROUNDED_DECREMENT and decrement_of(here) is not None:
        return Mode(np.asarray(found.z), here, ModeStatus.CONVERGED)
    evaluate = lambda z: Curvature.of(_curvature(density, jnp.asarray(z)))  # noqa: E731
    return maximise(evaluate, start, max_evaluations)


@compile_quickly
def _prior_curvature(model: AbstractModel, space: ParameterSpace, z):
    return to_second_order(lambda z: model.log_prior(space.unflatten(z)), z)


@float64
def prior_curvature(
    model: AbstractModel, space: ParameterSpace, z: Float[np.ndarray, " d"]
) -> Curvature:
    """Return value, gradient and Hessian of log π₀ at z."""
    return Curvature.of(_prior_curvature(model, space, jnp.asarray(z)))


@float64
def find_full_mode(potentials: Potentials, start: Float[np.ndarray, " d"] | None = None) -> Mode:
    """Return the mode of the full posterior π; every evaluation is a pass over the data."""
    model, space = potentials.model, potentials.space
    seen = False

    def evaluate(z: np.ndarray) -> Curvature:
        nonlocal seen
        # A step that overflows is too long; a start that does is an error.
        data = potentials.curvature(z, strict=not seen)
        seen = True
        return data.plus(prior_curvature(model, space, z))

    return maximise(evaluate, space.flatten(potentials.initial) if start is None else start)


def laplace(
    model: AbstractModel,
    rows: Rows | object,
    weights: Float[np.ndarray, " N"] | None = None,
    *,
    progress: bool | None = None,
) -> Gaussian:
    """Return the Laplace approximation of the posterior, N(z*, (−∇² log π_w(z*))⁻¹).

    Parameters
    ----------
    model
        A model of `decoct.models` or `decoct.Model`.
    rows
        Anything `decoct.rows` accepts. Without weights a Newton step is one pass over the
        rows, wherever they live.
    weights : (N,), optional
        w ≥ 0; weight 0 is a row left out, weight 2 a row counted twice. All ones by default.
    progress
        Show progress on standard error; None shows it on a terminal.

    Returns
    -------
    Gaussian
        ``.mean`` (d,) and ``.cov`` (d, d) in unconstrained, flattened parameter space.

    Raises
    ------
    ModelError
        Newton's method found no maximum; the message says why and what to try.
    RequestError
        The model has no density over parameters.
    RowsError
        The rows or the weights cannot be used.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> decoct.laplace(model, rows).mean.shape
    (2,)
    """
    require_model(model)
    table = as_rows(rows)
    with ProgressBar(progress), name_files(table):
        n_rows = counted_rows(table)
        table = encoded(table, model)
        begin("finding the mode", n_rows)
        if weights is None:
            mode = find_full_mode(Potentials(model, table))
        else:
            mode = find_mode(_density(model, table, np.asarray(weights, dtype=np.float64)))
    return gaussian_at(mode)


def _density(model: AbstractModel, rows: Rows, weights: np.ndarray) -> WeightedDensity:
    if weights.shape != (rows.n_rows,):
        raise ModelError(f"weights has shape {weights.shape}; there are {rows.n_rows} rows.")
    usable = np.isfinite(weights) & (weights >= 0.0)
    if not usable.all():
        bad = int(np.argmin(usable))
        raise ModelError(f"weights[{bad}] is {weights[bad]}; weights are finite and not negative.")
    kept = np.flatnonzero(weights > 0.0)
    if not len(kept):  # the prior: one row for the shapes, with no weight
        kept = np.zeros(1, dtype=np.int64)
    return WeightedDensity.of(model, rows.take(kept), weights[kept])


@dataclass(frozen=True)
class Laplace(Sampler):
    """Independent draws from the Laplace approximation q of π_w.

    ``info`` has ``khat`` and ``kl``, KL(q‖π_w) in nats, of the log ratios r = log π_w − log q at
    the draws. Both are needed: k-hat depends on the upper tail of r alone, and stays small where
    half of the draws lie where π_w is 0.

    Attributes
    ----------
    judge
        Measure k-hat and KL, at 100 draws or more. Without, a construction that draws hundreds of
        times takes a quarter less time.
    resample
        Where KL(q‖π_w) is above 0.02 nats, draw eight times as many and keep n of them, without
        replacement and in proportion to π_w/q (sampling importance resampling, Rubin 1988). It
        needs ``judge``.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=5)
    >>> sampler = decoct.samplers.Laplace()
    >>> coreset.sample(draws=50, chains=1, sampler=sampler)["posterior"]["mean"].shape
    (1, 50, 2)
    """

    judge: bool = True
    resample: bool = False

    def draw(self, key: jax.Array, density: WeightedDensity, n: int) -> Draws:
        gaussian = gaussian_at(find_mode(density))
        if not self.judge:
            return Draws(gaussian.sample(host_rng(key), n)[None], "laplace")
        # k-hat needs a tail, however few draws are wanted
        rng, most = host_rng(key), max(n, JUDGED_AT)
        z = gaussian.sample(rng, most)
        log_ratios = log_densities(density, z) - gaussian.log_density(z)
        with np.errstate(over="ignore"):
            possible = np.isfinite(log_ratios.sum())
        kl = kl_from_log_ratios(log_ratios).reverse if possible else np.inf
        info = {"khat": smoothed_log_weights(log_ratios)[1], "kl": kl}
        if self.resample and CLOSE < kl < np.inf:
            more = [gaussian.sample(rng, most) for _ in range(PROPOSALS - 1)]
            ratios = [log_densities(density, one) - gaussian.log_density(one) for one in more]
            z = np.concatenate([z, *more])
            log_ratios = np.concatenate([log_ratios, *ratios])
            # the n largest log ratios plus Gumbel noise: a weighted sample without replacement
            z = z[np.argsort(-log_ratios - rng.gumbel(size=len(z)))]
        return Draws(z[None, :n], "laplace", info)
