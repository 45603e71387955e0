"""Projected stochastic gradients (Campbell & Beronov 2019, Algorithm 1, lines 10-15).

`weight_updates` has their equations; here γ_t = rate/(1 + t). Where every step has draws of its own
and can (`manifold.resampled_gradient`), the steps are one compiled loop: the same steps, at a
twentieth of the price for a few hundred rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.constructions.sparse_vi.manifold.base import LocalView, Manifold
from decoct.constructions.sparse_vi.manifold.resampled_gradient import FreshDraws, normals_of
from decoct.errors import RequestError
from decoct.runtime.checks import checked_whole, is_positive
from decoct.runtime.precision import float64
from decoct.stats.divergences import Tangent

FIRST_DECAY, SECOND_DECAY = 0.9, 0.999
"""β₁, β₂ of Adam."""


class OptimizerState(NamedTuple):
    """State of an optimizer over k numbers after t steps."""

    t: Any
    place: Any  # the weights, or (β, α) of a single update
    first: Any  # Adam's moments
    second: Any
    slope: Any  # D at the place


@dataclass(frozen=True)
class Gradient:
    """T projected stochastic gradient steps (Algorithm 1, lines 10-15).

    Attributes
    ----------
    steps
        T, at least 2.
    rate
        γ_t = rate/(1 + t), t = 0, 1, …; with Adam the length of a step instead.
    optimizer
        "sgd", or "adam" (β₁ = 0.9, β₂ = 0.999).
    single
        Move only the scale of the old weights and the new one (Appendix D.1).

    Raises
    ------
    RequestError
        ``steps`` below 2, a rate that is not positive, or an unknown optimizer.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> from decoct.constructions import Gradient, SparseVI
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> method = SparseVI(update=Gradient(steps=200, rate=10.0, optimizer="adam"))
    >>> decoct.build(model, rows, size=20, method=method).size <= 20
    True
    """

    steps: int = 100
    rate: float = 0.5
    optimizer: str = "sgd"
    single: bool = False

    def __post_init__(self) -> None:
        checked_whole("steps", self.steps, 2)
        if not is_positive(self.rate):
            raise RequestError(f"The rate γ must be positive, not {self.rate!r}.")
        if self.optimizer not in ("sgd", "adam"):
            raise RequestError(f"optimizer must be sgd or adam, not {self.optimizer!r}.")

    def run(self, key: jax.Array, manifold: Manifold, view: LocalView, picked: int) -> LocalView:
        """Return the view at the new weights; ``picked`` is the position of the new row."""
        place = weights = view.selection.weights
        basis, adam = np.eye(len(weights)), self.optimizer == "adam"
        if self.single:
            place, basis = np.array([1.0, 0.0]), basis_of(weights, picked)
        if not manifold.reuse:  # the draws that chose the row are not used for its weight
            near = manifold.warm_started(view.origin)
            view = near.at(jax.random.fold_in(key, self.steps), view.selection)
        nothing, slope = np.zeros(len(place)), basis @ slope_of(view.tangent(), weights)
        optimizer = OptimizerState(0, place, nothing, nothing, slope)
        fresh = FreshDraws.of(manifold, view)
        while optimizer.t < self.steps:
            if fresh is not None:
                optimizer, view = self._ahead(key, fresh, view, optimizer, basis)
            place, first, second = stepped(optimizer, self.rate, adam, np)
            weights = place @ basis
            view = manifold.moved(jax.random.fold_in(key, optimizer.t), view, weights)
            slope = basis @ slope_of(view.tangent(), weights)
            optimizer = OptimizerState(optimizer.t + 1, place, first, second, slope)
        return view

    @float64
    def _ahead(
        self,
        key: jax.Array,
        fresh: FreshDraws,
        view: Any,
        optimizer: OptimizerState,
        basis: Float[np.ndarray, "k m"],
    ) -> tuple[OptimizerState, LocalView]:
        """Run compiled loops up to the last step, or one whose draws the loop cannot make.

        The remaining step uses the sampler, with its errors; it starts from the draws of the view
        that is returned.
        """
        k, size, last = len(optimizer.place), fresh.size, self.steps - 1
        shape = view.manifold.draws, len(view.origin.centre)
        # steps whose random numbers are made at once, at most 16 MB of them
        block = int(np.clip(2_000_000 // (shape[0] * shape[1]), 1, 128))
        wide = np.zeros((2 if self.single else size, size))
        wide[:k, : basis.shape[1]] = basis
        padded = (jnp.asarray(np.pad(part, (0, len(wide) - k))) for part in optimizer[1:])
        start = OptimizerState(jnp.asarray(optimizer.t), *padded)
        state = Loop(start, jnp.asarray(view.origin.centre), jnp.asarray(True))
        rate, adam = jnp.asarray(self.rate, dtype=jnp.float64), self.optimizer == "adam"
        while state.optimizer.t < last and state.found:
            first = int(state.optimizer.t)
            normals = jnp.asarray(normals_of(key, first, last, (block, *shape)))
            bounds = jnp.asarray([first, min(first + block, last)])
            state = _run_steps(fresh, state, jnp.asarray(wide), normals, bounds, rate, adam)
        parts = (np.asarray(part)[:k] for part in state.optimizer[1:])
        done = OptimizerState(int(state.optimizer.t), *parts)
        view.manifold.count(done.t - optimizer.t, basis.shape[1])
        origin = view.origin._replace(centre=np.asarray(state.centre))
        return done, replace(view, cloud=replace(view.cloud, origin=origin))


class Loop(NamedTuple):
    """What a compiled loop carries."""

    optimizer: OptimizerState  # padded with zeros
    centre: Array  # (d,), the mean of the last Gaussian
    found: Array  # False once there were no draws at the end of a step, which is then not done


def stepped(optimizer: OptimizerState, rate: Any, adam: bool, numpy: Any) -> tuple[Any, Any, Any]:
    """Return the place after one step, and the moments; ``numpy`` is NumPy or JAX's."""
    t, place, first, second, slope = optimizer
    gamma = rate / (1.0 + t)
    if not adam:
        return numpy.maximum(place - gamma * slope, 0.0), first, second
    first = FIRST_DECAY * first + (1.0 - FIRST_DECAY) * slope
    second = SECOND_DECAY * second + (1.0 - SECOND_DECAY) * slope**2
    spread = numpy.sqrt(second / (1.0 - SECOND_DECAY ** (t + 1.0)))
    unit = (first / (1.0 - FIRST_DECAY ** (t + 1.0))) / (spread + 1e-8)
    return numpy.maximum(place - gamma * unit, 0.0), first, second


@eqx.filter_jit
def _run_steps(fresh: FreshDraws, state: Loop, basis, normals, bounds, rate, adam: bool) -> Loop:
    """Take steps ``bounds[0]`` to ``bounds[1]`` − 1; ``normals`` are their random numbers."""

    def unfinished(state: Loop):
        return (state.optimizer.t < bounds[1]) & state.found

    def step(state: Loop) -> Loop:
        place, first_moment, second_moment = stepped(state.optimizer, rate, adam, jnp)
        seen = fresh.at(place @ basis, state.centre, normals[state.optimizer.t - bounds[0]])
        slope = basis @ seen.slope
        optimizer = OptimizerState(state.optimizer.t + 1, place, first_moment, second_moment, slope)
        ahead = Loop(optimizer, seen.centre, seen.found)
        stopped = state._replace(found=seen.found)
        return jax.tree.map(lambda a, b: jnp.where(seen.found, a, b), ahead, stopped)

    return jax.lax.while_loop(unfinished, step, state)


def slope_of(tangent: Tangent, weights: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """Return ∇KL on the support, −G(b − Gᵀw)."""
    return -tangent.vectors @ (tangent.target - weights @ tangent.vectors)


def basis_of(weights: Float[np.ndarray, " m"], picked: int) -> Float[np.ndarray, "2 m"]:
    """Return w and 1_n: all that a single update can reach."""
    one = np.zeros(len(weights))
    one[picked] = 1.0
    return np.stack([weights, one])
