"""NUTS on the coreset posterior (BlackJAX, window adaptation)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float, Int

from decoct.errors import ModelError, RequestError
from decoct.runtime.checks import checked_whole, is_finite
from decoct.runtime.precision import float64
from decoct.runtime.randomness import host_rng
from decoct.runtime.resources import cores, default_device
from decoct.samplers.base import Draws, Sampler, WeightedDensity
from decoct.samplers.laplace import JUDGED_AT, Laplace, Mode, find_mode, gaussian_at
from decoct.stats.chains import GOOD_KHAT

if TYPE_CHECKING:
    from decoct.samplers.units import Units

FITS = 0.1
"""KL in nats from the Laplace approximation, in whose units a full mass matrix is not needed."""

TARGET, MULTILEVEL_TARGET = 0.8, 0.9
"""Acceptance aimed at by default, without and with a site in likelihood parameters."""

STEPS_A_PARAMETER = 10
"""Warm-up steps a parameter from which on a full mass matrix is adapted by default.

The last window, half of the warm-up, then has five draws a parameter. With fewer draws than
parameters the matrix is all but singular, and every trajectory runs into the depth limit."""


SHORT_RUNS = (100, 50, 50)
"""Steps of the runs that learn the units of a multilevel posterior."""

LEARNT, FEW_POINTS = 25, 16
"""Draws of each chain that units are learnt from, in the second half of a run, and at how many of
all of them a precision is averaged before the last run."""

IN_UNITS = 50
"""Most warm-up steps in units that fit, where only the step size is adapted."""

STEP = 1.6
"""Step size in units that fit, times D^¼ of D parameters, that is accepted four times in five:
leapfrog errors of a Gaussian add up so (Beskos et al. 2013)."""


@dataclass(frozen=True)
class NUTS(Sampler):
    """The No-U-Turn Sampler.

    Chains run side by side: on a processor one on each core, elsewhere as one program.
    They start from draws of the Laplace approximation, spread twice as wide, or around the
    model's init where there is none; the mass matrix and step size are adapted in warm-up, as by
    Stan. With a site the parameters are measured in units of that approximation, and where it fits
    only the step size is adapted. With a site in likelihood parameters the units come from short
    runs, and effects are standardised given their scale and the site
    (`decoct.samplers.units`). The draws are of the model's own parameters.

    Attributes
    ----------
    chains
        Number of chains.
    warmup
        Adaptation steps per chain, thrown away; at most 50 where a site gives units that fit.
    target_acceptance
        Mean acceptance probability aimed at. None: 0.9 with a site in likelihood parameters, as
        scales of effects bend the posterior, else 0.8.
    dense_mass
        Adapt a full mass matrix (True) or a diagonal one (False). None: a full one where the
        warm-up has 10 steps a parameter. Models with likelihood parameters never adapt a full
        matrix.

    Raises
    ------
    RequestError
        A count is too small, or ``target_acceptance`` is not between 0 and 1.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=5)
    >>> sampler = decoct.samplers.NUTS(warmup=200)
    >>> coreset.sample(draws=200, chains=2, sampler=sampler)["posterior"]["mean"].shape
    (2, 200, 2)
    """

    chains: int = 4
    warmup: int = 500
    target_acceptance: float | None = None
    dense_mass: bool | None = None

    def __post_init__(self) -> None:
        checked_whole("chains", self.chains, 1)
        checked_whole("warmup", self.warmup, 1)
        target = self.target_acceptance
        if target is not None and not (is_finite(target) and 0.0 < target < 1.0):
            raise RequestError(f"target_acceptance is {target!r}; it must lie between 0 and 1.")

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
        """Return ``draws`` draws from π_w per chain.

        Parameters
        ----------
        draws
            Draws per chain, after warm-up.
        on_block
            Called after every block with the number of steps done, warm-up included.
        """
        # here, because importing BlackJAX puts arrays on a device
        from decoct.samplers.nuts_program import SAMPLING, STEP_SIZES, plan_stages, repeat_stage
        from decoct.samplers.units import Units
        from decoct.stats.convergence import convergence

        start_key, warm_key, run_key = jax.random.split(key, 3)
        space, starts, is_dense, fits = self._begin(start_key, density)
        stages = plan_stages(self.warmup)
        if fits:
            stages = repeat_stage(STEP_SIZES, min(IN_UNITS, self.warmup))
        states, adapted, _ = self._adapt(warm_key, space, starts, stages, is_dense, fits)
        if fits:
            adapted = adapted.pooled()
        tick = on_block or (lambda done: None)
        tick(self.warmup)
        stages = repeat_stage(SAMPLING, draws)
        z, stats = self._run(run_key, space, states, adapted, stages, is_dense, tick)[2]
        if isinstance(space, Units):
            z = space.parameters_of(z)
        if not np.isfinite(z).all():
            raise ModelError(
                "NUTS left the region where the log density is finite; check the model for NaN "
                "and the prior for parameters it does not bound."
            )
        return Draws(z, "nuts", {**convergence(z), **stats})

    def _begin(
        self, key: jax.Array, density: WeightedDensity
    ) -> tuple[WeightedDensity | Units, Float[np.ndarray, "chains D"], bool, bool]:
        """Return the density to sample, and where its chains start.

        Then, whether a full mass matrix pays, and whether the density is near N(0, I).
        """
        if density.site is not None and density.has_likelihood_params:
            return (*self._learn_units(key, density), bool(self.dense_mass), True)
        mode, is_dense = find_mode(density), self._is_dense(density.dim)
        starts = self._starts(key, density, mode)
        if density.site is None or not mode.status.ok:
            return density, starts, is_dense, False
        from decoct.samplers.arrow import ArrowFactor
        from decoct.samplers.units import Units

        factor = ArrowFactor.of_root(np.linalg.cholesky(gaussian_at(mode).cov))
        units = Units(density, mode.z, factor)
        # as much a property of the density as its mode: with any seed the same program
        found = Laplace().draw(jax.random.key(0), density, JUDGED_AT).info
        fits = found["khat"] <= GOOD_KHAT and found["kl"] <= FITS and not self.dense_mass
        return units, units.units_of(starts), is_dense and not fits, fits

    def _learn_units(
        self, key: jax.Array, density: WeightedDensity
    ) -> tuple[Units, Float[np.ndarray, "chains D"]]:
        """Return units learnt from short runs, and where these ended."""
        from decoct.samplers.centred_density import POINTS
        from decoct.samplers.centring import Centring
        from decoct.samplers.nuts_program import STEP_SIZES, plan_stages, repeat_stage
        from decoct.samplers.units import start_of, units_at

        centring = Centring.of(density.model, density.space, density.start)
        if density.draws is not None:
            units, v = units_at(density, centring, density.draws)
            return units, v[np.arange(self.chains) % len(v)]
        # as many draws every time, for one program
        z = np.tile(start_of(density, centring), (self.chains * LEARNT, 1))
        units, v = units_at(density, centring, z, 1)
        v = v[:1] + 0.1 * host_rng(key).standard_normal((self.chains, density.dim))
        for short, steps in enumerate(SHORT_RUNS):
            run_key = jax.random.fold_in(key, short + 1)
            stages = repeat_stage(STEP_SIZES, steps) if short else plan_stages(steps)
            _, _, found = self._adapt(run_key, units, v, stages, False, True)
            last = np.linspace(steps // 2, steps - 1, LEARNT).astype(np.int64)
            z = units.parameters_of(found[:, last]).reshape(-1, density.dim)
            points = POINTS if short == len(SHORT_RUNS) - 1 else FEW_POINTS
            units, v = units_at(density, centring, z, points)
            v = v[LEARNT - 1 :: LEARNT]
        return units, v

    def _adapt(
        self,
        key: jax.Array,
        space: WeightedDensity | Units,
        starts: Float[np.ndarray, "chains D"],
        stages: Int[np.ndarray, "n 2"],
        is_dense: bool,
        fits: bool,
    ) -> tuple[Any, Any, Float[np.ndarray, "chains steps D"]]:
        """Return states, what was adapted, and the positions of a warm-up."""
        from decoct.samplers.nuts_program import begin, group_chains

        step_size = STEP * starts.shape[1] ** -0.25 if fits else None
        target = self._target(space)
        groups = (starts[group] for group in group_chains(len(starts)))
        begun = [begin(space, some, target, not is_dense, step_size) for some in groups]
        states, adapted = _join(begun, 0)
        states, adapted, (v, _) = self._run(key, space, states, adapted, stages, is_dense)
        return states, adapted.finished(), v

    def _run(
        self,
        key: jax.Array,
        space: WeightedDensity | Units,
        states: Any,
        adapted: Any,
        stages: Int[np.ndarray, "n 2"],
        is_dense: bool,
        tick: Callable[[int], None] = lambda done: None,
    ) -> tuple[Any, Any, Any]:
        """Return states, what was adapted, and positions and statistics of all steps."""
        from decoct.samplers.nuts_program import NOTHING, STEPS_A_CALL, group_chains, run

        target = self._target(space)
        blocks, steps = [], int((stages[:, 0] != NOTHING).sum())
        groups = group_chains(self.chains)
        ends = [_part((states, adapted), group) for group in groups]

        kind, device = jax.random.key_impl(key), default_device()

        @float64
        def make_block(keys: np.ndarray, end: tuple[Any, Any], block: np.ndarray) -> Any:
            with jax.default_device(device):  # JAX's switches are a thread's own
                found = run(space, (keys, kind), end[0], end[1], block, target, not is_dense)
                return jax.tree.map(np.asarray, found)

        with ThreadPoolExecutor(min(cores(), len(groups)), "decoct-chain") as pool:
            for first in range(0, len(stages), STEPS_A_CALL):
                keys = jax.random.split(jax.random.fold_in(key, first), self.chains)
                keys = np.asarray(jax.random.key_data(keys))
                block = stages[first : first + STEPS_A_CALL]
                of_groups = [keys[group] for group in groups]
                found = list(pool.map(make_block, of_groups, ends, repeat(block)))
                ends = [one[:2] for one in found]
                blocks.append(_join([one[2] for one in found], 0))
                tick(min(STEPS_A_CALL, steps - first))
        return *_join(ends, 0), jax.tree.map(lambda a: a[:, :steps], _join(blocks, 1))

    def _target(self, space: WeightedDensity | Units) -> np.ndarray:
        """Return the acceptance aimed at, not as a constant, to compile once for all."""
        from decoct.samplers.units import Units

        is_multilevel = isinstance(space, Units) and space.is_centred
        default = MULTILEVEL_TARGET if is_multilevel else TARGET
        return np.asarray(self.target_acceptance or default)

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


def _part(tree: Any, group: slice) -> Any:
    """Return some of the chains."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[group], tree)


def _join(parts: Sequence[Any], axis: int) -> Any:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=axis), *parts)
