"""Weight updates of SparseVI: how the active weights move towards min KL(π_w‖π) after a pick.

At a view of the manifold (`sparse_vi.manifold`) with vectors g_n and target b whose inner
products are covariances under π_w (Campbell & Beronov 2019):

    gradient        D = −G(b − Gᵀw) on the support,  w ← max(0, w − γ_t D)    (Eq. 9, 13; Alg. 1)
    quadratic       v = argmin_{v ≥ 0} (v − w)ᵀD + ½(v − w)ᵀH(v − w),
                    w ← (1 − γ)w + γv                                         (Eq. 90-94)
    single update   the same over (α, β) ≥ 0 with v = βw + α1_n               (Eq. 85-89)

H = Cov_w[f] gives min ‖b − Gᵀv‖², plain non-negative least squares; the Monte Carlo Hessian
H = (1/S)Σ g_s g_sᵀ(1 − g_sᵀ(1 − w)) of Eq. 91 has a third-order term that need not be positive, so
its eigenvalues are raised to a small part of the largest.

A full quadratic step from the prior overshoots by orders of magnitude. So γ is shortened until the
KL falls: by quarters with new draws where the current draws no longer represent π_v, otherwise by
halves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float

from decoct.constructions.sparse_vi.gradient_update import Gradient, basis_of, slope_of
from decoct.constructions.sparse_vi.manifold.base import LocalView, Manifold
from decoct.errors import ModelError, RequestError, SamplerError
from decoct.runtime.checks import checked_whole, is_positive
from decoct.solvers.nnls import ActiveSet, SparseWeights, UnitVectors, fill
from decoct.stats.divergences import Tangent

__all__ = ["Gradient", "Quadratic", "WeightUpdate", "least_missed"]

TRUSTED = 0.25
"""Effective share of the draws that must stand behind the weights a step goes to."""


@runtime_checkable
class WeightUpdate(Protocol):
    """A way to move the weights of the support; hyper-parameters only."""

    @property
    def steps(self) -> int:
        """T, the most steps it takes."""
        ...

    def run(self, key: jax.Array, manifold: Manifold, view: LocalView, picked: int) -> LocalView:
        """Return the view at the new weights; ``picked`` is the position of the new row."""
        ...


@dataclass(frozen=True)
class Quadratic:
    """Damped minimisers of the quadratic expansion of KL (Appendix D.2).

    Attributes
    ----------
    steps
        Most expansions after a pick; fewer if a full step gains little.
    single
        Move only the scale of the old weights and the new one (Appendix D.1); else all of them
        (fully corrective).
    third_order
        Use the Monte Carlo Hessian of Eq. 91, not only its leading term Cov_w[f]. Needs draws.
    damped
        Shorten γ until the KL falls; False takes γ_t = 1/(1 + t), the paper's schedule.
    heaviest
        Most that Σ v_n may be, in units of N; None for no limit. π_w with Σ w_n ≫ N is much
        narrower than π, and its draws no longer show its error: with fewer rows than parameters
        the weights can diverge to such a posterior and not return. Fully corrective updates only.

    Raises
    ------
    RequestError
        ``steps`` below 1, or ``heaviest`` not positive.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> from decoct.constructions import Quadratic, SparseVI
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> method = SparseVI(update=Quadratic(steps=1))
    >>> decoct.build(model, rows, size=5, method=method).size <= 5
    True
    """

    steps: int = 2
    single: bool = False
    third_order: bool = False
    damped: bool = True
    heaviest: float | None = 2.0

    def __post_init__(self) -> None:
        checked_whole("steps", self.steps, 1)
        if self.heaviest is not None and not is_positive(self.heaviest):
            raise RequestError(f"heaviest must be positive or None, not {self.heaviest!r}.")

    def run(self, key: jax.Array, manifold: Manifold, view: LocalView, picked: int) -> LocalView:
        """Return the view at the new weights; ``picked`` is the position of the new row."""
        longest = 1.0
        for t in range(self.steps):
            step_key = jax.random.fold_in(key, t)
            weights = view.selection.weights
            tangent = view.tangent()
            goal = self._minimiser(manifold, view, tangent, picked)
            if not self.damped:
                view = manifold.moved(step_key, view, weights + (goal - weights) / (1.0 + t))
                continue
            moved = _stepped(step_key, manifold, view, goal, longest)
            if moved is None:
                return view
            left = tangent.predicted_kl(np.arange(len(goal)), goal)
            view, longest = moved.view, min(1.0, 4.0 * moved.gamma)
            if moved.gain <= 0.1 * left:  # of the KL that is left: not worth another
                return view
        return view

    def _minimiser(
        self, manifold: Manifold, view: LocalView, tangent: Tangent, picked: int
    ) -> Float[np.ndarray, " m"]:
        """Return v, the minimiser of the quadratic expansion over v ≥ 0 (Eq. 94)."""
        weights, n = view.selection.weights, manifold.n_rows
        if self.third_order:
            tangent = _with_third_order(view, tangent, weights)
        vectors, target = tangent
        if self.single:
            basis = basis_of(weights, picked)
            return _nnls(basis @ vectors, target, np.array([1.0, 0.0])) @ basis
        # (10⁻³‖b‖/N)²‖v − w‖² keeps v near w where draws say little: a potential that hardly
        # varies over them would otherwise take a weight without bound. The minimum KL stays.
        hold = 1e-3 * float(np.linalg.norm(target)) / n
        vectors = np.hstack([vectors, hold * np.eye(len(weights))])
        target = np.append(target, hold * weights)
        goal = _nnls(vectors, target, weights)
        if self.heaviest is None or goal.sum() <= self.heaviest * n:
            return goal
        # Σv is pinned to its bound, where the minimum of a convex KL lies, with weight 10³‖b‖
        stiff = 1e3 * float(np.linalg.norm(target)) / (self.heaviest * n)
        vectors = np.column_stack([vectors, np.full(len(vectors), stiff)])
        return _nnls(vectors, np.append(target, stiff * (self.heaviest * n)), weights)


def least_missed(tangent: Tangent, weights: Float[np.ndarray, " m"]) -> int:
    """Return the row whose loss raises ‖b − Gᵀw‖² least when the others are solved again.

    With H the Gram matrix of the support that is w_k²/(H⁻¹)_kk.
    """
    used = np.flatnonzero(weights > 0.0)
    unit = UnitVectors.scaled(tangent.vectors[used], tangent.target)
    active = ActiveSet.spanned_by(unit, range(len(used)))
    outside = np.setdiff1d(np.arange(len(used)), active.support)
    if len(outside):  # in the span of the others, or without weight once they are solved
        return int(used[outside[0]])
    missed = active.weights**2 / np.diag(active.inverse_gram())
    return int(used[active.support[int(np.argmin(missed))]])


def _nnls(vectors: np.ndarray, target: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return argmin_{v ≥ 0} ‖b − Gᵀv‖, from the support that ``start`` has."""
    unit = UnitVectors.scaled(vectors, target)
    begin = np.flatnonzero((start > 0.0) & unit.usable)
    return SparseWeights.of(fill(ActiveSet.spanned_by(unit, begin.tolist()))).dense(len(start))


def _with_third_order(view: Any, tangent: Tangent, weights: np.ndarray) -> Tangent:
    """Return vectors whose Gram matrix is H of Eq. 91, and the target of Eq. 94."""
    vectors, left = view.third_moments()  # of draws, which `require_start` has asked for
    hessian = (vectors * (1.0 - left)) @ vectors.T
    values, basis = np.linalg.eigh(hessian)
    root = np.sqrt(np.maximum(values, 1e-6 * np.abs(values).max()))
    slope = slope_of(tangent, weights)
    lower = basis * root
    return Tangent(lower, weights @ lower - (basis.T @ slope) / root)


class Step(NamedTuple):
    """Where a step of length γ led."""

    view: LocalView
    gamma: float
    gain: float  # in nats; infinite where no draws can tell


def _stepped(
    key: jax.Array, manifold: Manifold, view: LocalView, goal: np.ndarray, longest: float
) -> Step | None:
    """Step from w towards ``goal``: the whole way, or as far as the KL is known to fall."""
    weights = view.selection.weights
    here, there = view.local_kl(weights), view.local_kl(goal)
    if there.share >= TRUSTED * here.share and there.kl < here.kl:
        return Step(manifold.moved(key, view, goal), 1.0, here.kl - there.kl)
    if there.share < TRUSTED * here.share:
        step = _try_lengths(key, manifold, view, goal, longest)
        if step is not None:
            return step
    gamma = 0.5
    while gamma >= 1e-8:  # below, the direction counts as not descending
        closer = weights + gamma * (goal - weights)
        there = view.local_kl(closer)
        if there.share >= TRUSTED * here.share and there.kl < here.kl:
            return Step(manifold.moved(key, view, closer), gamma, np.inf)
        gamma *= 0.5
    return None


def _try_lengths(
    key: jax.Array, manifold: Manifold, view: LocalView, goal: np.ndarray, longest: float
) -> Step | None:
    """Try γ = ``longest``, a quarter of it, … until KL still falls there along the step.

    Draws are made at every trial; those of the one that is taken are the next view's.
    """
    weights, gamma = view.selection.weights, longest
    for trial in range(8):
        there, trial_key = weights + gamma * (goal - weights), jax.random.fold_in(key, trial)
        seen = try_step(trial_key, manifold, view, there, goal - weights)
        if seen is not None:
            return Step(seen, gamma, np.inf)
        gamma *= 0.25
    return None


def try_step(
    key: jax.Array,
    manifold: Manifold,
    view: LocalView,
    weights: Float[np.ndarray, " m"],
    direction: Float[np.ndarray, " m"],
    penalty: float = 0.0,
) -> LocalView | None:
    """Return the view from new draws at other weights; None where the way there was too long.

    The slope along a direction d is −Cov_w[dᵀf, fᵀ(1 − w)], and the penalty's rise; divided by the
    standard deviations it has no scale, and turns positive once the step is too long; below
    0.1 it is noise.
    """
    try:
        near = manifold.warm_started(view.origin)
        seen = near.at(key, view.selection._replace(weights=weights))
    except SamplerError:
        raise
    except ModelError:  # no posterior the sampler can draw from: the step is too long
        return None
    tangent = seen.tangent()
    along = direction @ tangent.vectors
    residual = tangent.target - weights @ tangent.vectors
    scale = float(np.linalg.norm(along) * np.linalg.norm(residual))
    slope = float(penalty - along @ residual)
    return None if scale > 0.0 and slope / scale > 0.1 else seen
