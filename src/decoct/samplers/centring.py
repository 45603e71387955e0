"""Centring of group effects: parameters x in which the posterior is nearly Gaussian.

Multilevel models are often written with z_j ~ N(0, 1) and u_j = a + b z_j, b the scale of the
effects. Where data inform u_j, the posterior of (z_j, log b) is a curved ridge; where they do not,
that of (u_j, log b) is a funnel. So x has, in place of z_j, an interpolation by a degree λ_j,

    x_j = λ_j a + b^λ_j z_j,    log π(x) = log π(z) − Σ_j λ_j log|b|:

z_j at λ_j = 0 and u_j at 1 (Gorinova, Moore & Hoffman 2020, Eq. 4). Effects are found from the map
θ → φ alone, φ in its own units: entries of φ that are affine functions of one parameter. The others
that a and b depend on are no effects, or effects of an earlier level: a random walk has a level for
each step, effects with a correlation matrix one for each row of its Cholesky factor, and most
others have one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from decoct.models.base import AbstractModel
from decoct.models.parameters import ParameterSpace
from decoct.passes.potentials import flat_likelihood_params
from decoct.runtime.precision import compiled_quickly, float64

SAME_VALUE = 1e-9
"""Relative error that counts as rounding."""

MOST_LEVELS = 32
"""Most levels: each costs two evaluations of φ at every step of a sampler."""

MOST_UNROLLED = 4
"""Most levels that are compiled one by one."""


class Effects(NamedTuple):
    """Places in θ of parameters z, and in φ of the entries u = a + b z that they determine.

    ``levels`` says which effects are in which level; a and b depend on earlier levels alone.
    """

    places: Int[np.ndarray, " m"]
    entries: Int[np.ndarray, " m"]
    levels: Bool[np.ndarray, "L m"]

    def some(self, wanted: Bool[np.ndarray, " m"]) -> Effects:
        """Return some of the effects."""
        return Effects(self.places[wanted], self.entries[wanted], self.levels[:, wanted])


class Centring(eqx.Module):
    """The map between θ and x.

    Attributes
    ----------
    selection
        Places in x of the entries of φ where all effects are centred, so that φ, in its own units,
        is x[selection]; None where φ has other entries.
    """

    model: AbstractModel
    space: ParameterSpace
    effects: Effects
    selection: Int[np.ndarray, " d"] | None

    @classmethod
    @float64
    def of(cls, model: AbstractModel, space: ParameterSpace, start: np.ndarray) -> Centring:
        """Find the effects of a model, from φ and its derivatives at a few points."""
        rng = np.random.default_rng(0)
        points = start + 0.5 * rng.standard_normal((3, space.dim))
        phi, slopes, bends = map(np.asarray, _derivatives(model, space, jnp.asarray(points)))
        known = {}
        for entry, moves in enumerate(np.abs(slopes).max(axis=0) > 0.0):
            inside = np.flatnonzero(moves)
            if len(inside) == 1 and np.ptp(slopes[:, entry, inside[0]]) == 0.0:
                known[entry] = inside[0]
        effects = _find_effects(slopes, (bends == 0.0).all(axis=(0, 2)), list(known))
        if len(effects.places):
            found = affine_at(cls(model, space, effects, None), jnp.asarray(points))
            shift, scale = map(np.asarray, found)
            expected = shift + scale * points[:, effects.places]
            size = np.abs(phi[:, effects.entries]) + np.abs(shift) + 1e-300
            good = (np.abs(phi[:, effects.entries] - expected) <= SAME_VALUE * size).all(axis=0)
            effects = effects.some(good & (scale != 0.0).all(axis=0))
        selection = np.full(phi.shape[1], -1)
        for entry, place in known.items():
            if (np.abs(phi[:, entry] - points[:, place]) <= SAME_VALUE).all():
                selection[entry] = place
        selection[effects.entries] = effects.places
        return cls(model, space, effects, None if (selection < 0).any() else selection)

    @property
    def everywhere(self) -> Float[np.ndarray, " m"]:
        """Degrees at which x holds all effects."""
        return np.ones(len(self.effects.places))

    def affine(self, z: Float[Array, " D"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Return a and b of u = a + b z, which depend on the other parameters."""

        def add_level(total, level):
            shift, scale = self._affine_in(level, z)
            return (total[0] + jnp.where(level, shift, 0.0), total[1] * scale), None

        none = jnp.zeros(len(self.effects.places))
        return self._over_levels(add_level, (none, none + 1.0))

    def likelihood(self, z: Float[Array, " D"]) -> Float[Array, " d"]:
        """Return φ(θ), flat; pure JAX."""
        return flat_likelihood_params(self.model, self.space, z)

    def entries(self, z: Float[Array, " D"]) -> Float[Array, " d"]:
        """Return φ(θ) in its own units, flat; pure JAX."""
        return _flat_effects(self.model, self.space, z)

    @property
    def exact(self) -> Int[np.ndarray, " d"] | None:
        """`selection` where φ is in its own units, so that it is x[selection]; else None."""
        return self.selection if self.model.noise_scale is None else None

    def to_parameters(
        self, x: Float[Array, " D"], degree: Float[Any, " m"]
    ) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        """Return θ and log |dθ/dx|; pure JAX."""
        places = self.effects.places
        if not len(places):
            return x, jnp.zeros(())

        def add_level(total, level):
            z, volume = total
            shift, scale = self._affine_in(level, z)
            power, size = _powers(scale, degree)
            inside = (x[places] - degree * shift) / power
            z = z.at[places].set(jnp.where(level, inside, z[places]))
            return (z, volume - (degree * size).sum()), None

        return self._over_levels(add_level, (x, jnp.zeros(())))

    def from_parameters(
        self, z: Float[Array, " D"], degree: Float[Any, " m"]
    ) -> Float[Array, " D"]:
        """Return x; pure JAX."""
        places = self.effects.places
        if not len(places):
            return z
        shift, scale = self.affine(z)
        return z.at[places].set(degree * shift + _powers(scale, degree)[0] * z[places])

    def _affine_in(self, level: Bool[Array, " m"], z: Float[Array, " D"]):
        """Return a and b of the effects of one level; of others b is 1."""
        places, entries, _ = self.effects
        at = [
            self.entries(z.at[places].set(jnp.where(level, value, z[places])))[entries]
            for value in (0.0, 1.0)
        ]
        return at[0], jnp.where(level, at[1] - at[0], 1.0)

    def _over_levels(self, add_level: Callable[..., Any], start: Any) -> Any:
        levels = self.effects.levels
        return jax.lax.scan(add_level, start, levels, unroll=min(len(levels), MOST_UNROLLED))[0]


def _powers(
    scale: Float[Array, " m"], degree: Float[Any, " m"]
) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """Return b to the power λ, of the sign of b, and log |b|."""
    size = jnp.log(jnp.abs(scale))
    return jnp.sign(scale) * jnp.exp(degree * size), size


def _find_effects(
    slopes: Float[np.ndarray, "n d D"], is_linear: Bool[np.ndarray, " D"], known: list[int]
) -> Effects:
    """Return entries of φ that each are linear in a parameter that no earlier entry depends on.

    The last level comes first: a parameter on which one entry alone depends. Of several, it is one
    with a slope that depends on other parameters, such as a scale. The last level alone is returned
    where there are more than `MOST_LEVELS`.
    """
    moves, varies = np.abs(slopes).max(axis=0) > 0.0, np.ptp(slopes, axis=0)
    is_left = np.ones(len(moves), dtype=bool)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    while True:
        alone = is_linear & (moves[is_left].sum(axis=0) == 1)
        candidates = np.where(moves & alone & is_left[:, None], 1.0 + varies, 0.0)
        candidates[known] = 0.0
        entries = np.flatnonzero(candidates.any(axis=1))
        if not len(entries):
            break
        if len(found) == MOST_LEVELS:  # the last alone
            del found[:-1]
            break
        found.insert(0, (candidates[entries].argmax(axis=1), entries))
        is_left[entries] = False
    sizes = [len(entries) for _, entries in found]
    levels = np.repeat(np.eye(len(found), dtype=bool), sizes, axis=1)
    places, entries = np.concatenate([np.zeros((2, 0), dtype=np.int64), *found], axis=1)
    return Effects(places, entries, levels)


def _flat_effects(model: AbstractModel, space: ParameterSpace, z: Float[Array, " D"]):
    return space.ravel(model.to_effects(space.unflatten(z)))


@compiled_quickly
def _derivatives(model: AbstractModel, space: ParameterSpace, points: Float[Array, "n D"]):
    """Return φ at several points, and its first and second derivatives in each parameter alone."""
    entries = partial(_flat_effects, model, space)

    def at(z):
        def along(direction):
            def slope(z):
                return jax.jvp(entries, (z,), (direction,))[1]

            return jax.jvp(slope, (z,), (direction,))

        slopes, bends = jax.vmap(along)(jnp.eye(len(z)))
        return entries(z), slopes.T, bends

    return jax.lax.map(at, points)


@compiled_quickly
def affine_at(centring: Centring, points: Float[Array, "n D"]):
    """Return a and b of u = a + b z at several points θ."""
    return jax.vmap(centring.affine)(points)
