"""The maximum of a smooth log density by a damped Newton method.

Each step maximises the quadratic model with curvature −H + λI; λ grows until the density rises and
falls when the model is accurate (Levenberg-Marquardt). Curvature that is not negative definite is
handled by λ above its most positive eigenvalue, so a saddle or a minimum is never an answer.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from decoct.passes.potentials import Curvature

ROUNDED_DECREMENT = 1e-12
"""Decrement, in nats, from which on round-off may keep it from falling."""

SINGULAR = 1e-14
"""Pivot of −H, scaled to a unit diagonal, below which a direction counts as flat."""

MOST_EVALUATIONS = 200
"""Evaluations of a search, if nothing else is asked for."""


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
    for _ in range(max_evaluations - 1):
        decrement = decrement_of(here)
        if decrement is not None:
            if decrement <= tolerance or (best <= ROUNDED_DECREMENT and decrement >= 0.25 * best):
                return Mode(z, here, ModeStatus.CONVERGED)
            best = min(best, decrement)
        step = _damped_step(here, damping, decrement is not None)
        there = evaluate(z + step)
        expected = here.gradient @ step + 0.5 * step @ here.hessian @ step
        gained = there.value - here.value
        noise = 1e-13 * (1.0 + abs(here.value))
        if _finite(there) and (gained >= 0.1 * expected or abs(expected) <= noise):
            z, here = z + step, there
            damping = 0.0 if damping < 1e-6 else damping / 10.0
        else:
            damping = max(10.0 * damping, 1e-3)
            if damping > 1e15:
                break
    flat = np.abs(here.gradient).max(initial=0.0) < 1e-6 * (1.0 + abs(here.value))
    status = ModeStatus.NO_CONVERGENCE
    if flat and decrement_of(here) is None:
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
    scaled = np.linalg.solve(factor, point.gradient / scale)
    return float(scaled @ scaled)


def _damped_step(point: Curvature, damping: float, is_definite: bool) -> np.ndarray:
    """Solve (−H scaled by its diagonal, shifted to be positive, + λ) step = gradient."""
    scale = np.sqrt(np.maximum(np.abs(np.diag(point.hessian)), 1e-12))
    scaled = -point.hessian / np.outer(scale, scale)
    if is_definite:
        shifted = scaled + damping * np.eye(len(scale))
        return np.linalg.solve(shifted, point.gradient / scale) / scale
    curvature, basis = np.linalg.eigh(scaled)
    floor = max(0.0, -1.5 * float(curvature.min()))
    shifted = curvature + floor + damping
    shifted = np.maximum(shifted, 1e-14 * max(1.0, float(curvature.max())))
    return (basis @ ((basis.T @ (point.gradient / scale)) / shifted)) / scale
