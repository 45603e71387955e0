"""Likelihood parameters in units of the noise.

The potentials of a location-scale family, y = η + σε, are with their weight w_n

    f_n = w_n (g_n((y_n − η_n)/σ) − log σ),     η_n = B_n α,     σ = exp(c t).

With Gaussian noise they are quadratic in α, but σ multiplies all of it: a site in (α, t) lacks
about d/(2N) nats. In (α/σ, 1/σ) they are quadratic but for log σ (Olsen 1978), whatever d is. At
every η and t

    ∂f_n/∂t = c y_n ∂f_n/∂η − c η_n ∂f_n/∂η − c w_n,

and a likelihood for which this holds, with the same c in all rows, is of such a family.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.models.base import Params
from decoct.models.parameters import NoiseScale, ParameterSpace
from decoct.passes.predictors import Predictors
from decoct.passes.traced_predictors import trace_predictors

Trace = Callable[[Any, dict[str, Array]], Predictors | None]
"""From φ and rows to the predictors of a likelihood."""

POINTS, SPREAD = 8, 0.5
"""Points at which the equation is tried, normal about the start with this standard deviation."""

TOLERANCE = 1e-6
"""Largest relative error of the equation, and difference of c between rows."""


def find_noise_scale(
    potentials: Callable[[Params, Mapping[str, Any]], Array],
    phi: Mapping[str, Any],
    rows: Mapping[str, Any],
) -> NoiseScale | None:
    """Return the scale of a likelihood's noise, or None where it has none.

    ``potentials`` of φ and encoded rows; ``phi`` has any values at which they are finite.
    """
    space, names = ParameterSpace.of(dict(phi)), sorted(phi)
    flat = jnp.asarray(space.flatten(phi))

    def trace(z: Float[Array, " d"], rows: dict[str, Array]) -> Predictors | None:
        return trace_predictors(lambda z, r: potentials(space.unflatten(z), r), z, rows)

    used = _arrays_of(trace, space, flat, dict(rows))
    numbers = [arrays[0] for arrays in used if [space.shapes[a] for a in arrays] == [()]]
    others = [j for j, arrays in enumerate(used) if not set(arrays) & set(numbers)]
    if len(others) != 1 or len(numbers) + 1 != len(used):
        return None
    (location,) = others
    # a column may be 0 in these rows: all other arrays are of the location
    scaled = tuple(name for a, name in enumerate(names) if a not in numbers)
    for a in numbers:
        place = sum(math.prod(shape) for shape in space.shapes[:a])
        power = _power(trace, flat, dict(rows), location, place)
        if power is not None:
            return NoiseScale(names[a], power, scaled)
    return None


def _arrays_of(
    trace: Trace, space: ParameterSpace, phi: Float[Array, " d"], rows: dict[str, Array]
) -> list[list[int]]:
    """Return for each predictor the numbers of the arrays of φ that it depends on."""

    @jax.jit
    def coefficients(z, rows):
        found = trace(z, rows)
        return found and (found.shared, found.dense, found.picked, found.sparse)

    found = coefficients(phi, rows)
    if found is None:
        return []
    shared, dense, picked, sparse = map(np.asarray, found)
    array = np.repeat(np.arange(len(space.shapes)), [math.prod(s) for s in space.shapes])
    return [
        sorted({*array[shared[dense[:, i].any(axis=0)]], *array[picked[sparse[:, i] != 0.0]]})
        for i in range(dense.shape[1])
    ]


def _power(
    trace: Trace, phi: Float[Array, " d"], rows: dict[str, Array], location: int, place: int
) -> float | None:
    """Return c if a predictor is the location of a family and φ has t at a place; else None."""
    rng = np.random.default_rng(0)
    points = phi + SPREAD * jnp.asarray(rng.standard_normal((POINTS, len(phi))))

    @jax.jit
    def slopes(points, rows):
        found = trace(phi, rows)
        assert found is not None

        def at_point(z):
            eta, along = found.at(z), jnp.zeros_like(z).at[place].set(1.0)
            ones = jnp.zeros_like(eta).at[:, location].set(1.0)
            in_location = jax.jvp(found.potentials, (eta,), (ones,))[1]
            in_scale = jax.jvp(lambda z: found.potentials(found.at(z)), (z,), (along,))[1]
            return eta[:, location], in_location, in_scale

        return jax.lax.map(at_point, points)

    powers = []
    for eta, own, wanted in np.stack(slopes(points, rows), axis=1).transpose(2, 1, 0):
        terms = np.column_stack([own, -eta * own, -np.ones(POINTS)])
        size = np.abs(terms).max(axis=0)
        if not (np.isfinite(terms).all() and np.isfinite(wanted).all() and size.all()):
            return None
        solution = np.linalg.lstsq(terms / size, wanted)[0]
        if np.abs(wanted - terms / size @ solution).max() > TOLERANCE * np.abs(wanted).max():
            return None
        powers.append(solution[1] / size[1])
    if not powers[0] or not np.allclose(powers, powers[0], rtol=TOLERANCE, atol=0.0):
        return None
    return float(f"{powers[0]:.4g}")
