"""Centring of group effects: parameters x in which the posterior is nearly Gaussian.

Multilevel models are often written with z_j ~ N(0, 1) and u_j = a + b z_j, b the scale of the
effects. Where data inform u_j, the posterior of (z_j, log b) is a curved ridge; where they do not,
that of (u_j, log b) is a funnel. Both meet in one posterior where a scale may be near 0. So x has,
in place of z_j, what is N(0, 1) given a and b if the log-likelihood is r_j u_j − ½ K_j u_j² + c:

    x_j = s z_j − b (r_j − K_j a) / s,    s = √(1 + b² K_j),    log π(x) = log π(z) − Σ_j log s.

Near b = 0 that is z_j, and for large b it is √K_j (u_j − r_j/K_j). Degrees between z_j and u_j that
do not depend on b (Gorinova, Moore & Hoffman 2020) suit one scale alone.

Effects are found from the map θ → φ alone, φ in its own units: entries of φ that are affine
functions of one parameter. The others that a and b depend on are no effects, or effects of an
earlier level: a random walk has a level for each step, effects with a correlation matrix one for
each row of its Cholesky factor, and most others have one.
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


class Information(NamedTuple):
    """K and r of what the data say of each entry u of φ alone, r u − ½ K u²; K is 0 if nothing."""

    precision: Float[Any, " d"]
    linear: Float[Any, " d"]


class _Levels(NamedTuple):
    """Which entries of φ are in which level, and which places in θ."""

    entries: Bool[np.ndarray, "L d"]
    places: Bool[np.ndarray, "L D"]


class Placed(NamedTuple):
    """A point x: θ, log |dθ/dx|, and φ."""

    z: Float[Array, " D"]
    volume: Float[Array, ""]
    phi: Float[Array, " d"]


class Centring(eqx.Module):
    """The map between θ and x.

    Attributes
    ----------
    sources
        Place in θ of each entry of φ that is one parameter, or an effect; else −1.
    targets
        Entry of φ of each effect's place in θ; else −1.
    selection
        `sources`, where they give all of φ and differ, else None.
    """

    model: AbstractModel
    space: ParameterSpace
    effects: Effects
    sources: Int[np.ndarray, " d"]
    targets: Int[np.ndarray, " D"]
    levels: _Levels
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
        effects = _find_effects(slopes, (bends == 0.0).all(axis=(0, 1)), list(known))
        sources = np.full(phi.shape[1], -1)
        if len(effects.places):
            found = affine_at(cls._with(model, space, effects, sources), jnp.asarray(points))
            shift, scale = (np.asarray(part)[:, effects.entries] for part in found)
            expected = shift + scale * points[:, effects.places]
            size = np.abs(phi[:, effects.entries]) + np.abs(shift) + 1e-300
            good = (np.abs(phi[:, effects.entries] - expected) <= SAME_VALUE * size).all(axis=0)
            effects = effects.some(good & (scale != 0.0).all(axis=0))
        for entry, place in known.items():
            if (np.abs(phi[:, entry] - points[:, place]) <= SAME_VALUE).all():
                sources[entry] = place
        return cls._with(model, space, effects, sources)

    @classmethod
    def _with(
        cls, model: AbstractModel, space: ParameterSpace, effects: Effects, known: np.ndarray
    ) -> Centring:
        """Return the map with these effects; ``known`` has places of entries that are none."""
        places, entries, of_effects = effects
        sources, targets = known.copy(), np.full(space.dim, -1)
        sources[entries], targets[places] = places, entries
        levels = _Levels(*(np.zeros((len(of_effects), n), bool) for n in (len(known), space.dim)))
        levels.entries[:, entries] = levels.places[:, places] = of_effects
        are_apart = len(np.unique(sources)) == len(sources) and (sources >= 0).all()
        selection = sources if are_apart else None
        return cls(model, space, effects, sources, targets, levels, selection)

    def affine(self, z: Float[Array, " D"]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
        """Return a and b of u = a + b z, which depend on the other parameters.

        They are 0 and 1 where φ has no effect.
        """

        def add_level(total, level):
            shift, scale = self._affine_in(level, z)
            return (total[0] + shift, total[1] * scale), None

        none = jnp.zeros(len(self.sources))
        return self._over_levels(add_level, (none, none + 1.0))

    def likelihood(self, z: Float[Array, " D"]) -> Float[Array, " d"]:
        """Return φ(θ), flat; pure JAX."""
        return flat_likelihood_params(self.model, self.space, z)

    def standardise(self, phi: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return φ from φ in its own units; pure JAX."""
        noise, space = self.model.noise_scale, self.likelihood_space
        return phi if noise is None else space.ravel(noise.standardise(space.unflatten(phi)))

    def undo(self, phi: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return φ in its own units; pure JAX."""
        noise, space = self.model.noise_scale, self.likelihood_space
        return phi if noise is None else space.ravel(noise.undo(space.unflatten(phi)))

    @property
    def likelihood_space(self) -> ParameterSpace:
        """The shape of φ."""
        params = self.space.unflatten(jnp.zeros(self.space.dim))
        return ParameterSpace.of(jax.eval_shape(self.model.to_likelihood_params, params))

    def entries(self, z: Float[Array, " D"]) -> Float[Array, " d"]:
        """Return φ(θ) in its own units, flat; pure JAX."""
        return _flat_effects(self.model, self.space, z)

    def to_parameters(self, x: Float[Array, " D"], known: Information | None) -> Placed:
        """Return θ, log |dθ/dx| and φ; pure JAX. ``known`` None: x holds the effects u."""
        entries = x[self.sources]

        def add_level(total, level):
            z, volume, phi = total
            shift, scale = self._affine_in(level, z)
            spread, move = _standardisation(shift, scale, known)
            inside = (entries + move) / spread
            z = jnp.where(level.places, inside[self.targets], z)
            phi = jnp.where(level.entries, shift + scale * inside, phi)
            return Placed(z, volume - jnp.log(jnp.abs(spread)) @ level.entries, phi), None

        found = self._over_levels(add_level, Placed(x, jnp.zeros(()), entries))
        phi = self.likelihood(found.z) if self.selection is None else self.standardise(found.phi)
        return found._replace(phi=phi)

    def from_parameters(
        self, z: Float[Array, " D"], known: Information | None
    ) -> Float[Array, " D"]:
        """Return x; pure JAX."""
        spread, move = _standardisation(*self.affine(z), known)
        inside = spread * z[self.sources] - move
        return jnp.where(self.targets >= 0, inside[self.targets], z)

    def _affine_in(self, level: _Levels, z: Float[Array, " D"]):
        """Return a and b of the effects of one level; of others, 0 and 1."""
        at = jax.vmap(lambda value: self.entries(jnp.where(level.places, value, z)))
        none, one = at(jnp.arange(2.0))
        return jnp.where(level.entries, none, 0.0), jnp.where(level.entries, one - none, 1.0)

    def _over_levels(self, add_level: Callable[..., Any], start: Any) -> Any:
        count = len(self.levels.entries)
        if not count:
            return start
        return jax.lax.scan(add_level, start, self.levels, unroll=min(count, MOST_UNROLLED))[0]


def _standardisation(
    shift: Float[Array, " d"], scale: Float[Array, " d"], known: Information | None
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Return s and t of x = s z − t."""
    if known is None:
        return scale, -shift
    spread = jnp.sqrt(1.0 + scale**2 * known.precision)
    return spread, scale * (known.linear - known.precision * shift) / spread


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
    return jax.lax.map(lambda z: (entries(z), *derivatives_along(entries, z)), points)


def derivatives_along(
    entries: Callable[[Any], Any], z: Float[Array, " D"]
) -> tuple[Float[Array, "d D"], Float[Array, "d D"]]:
    """Return first and second derivatives in each coordinate alone; pure JAX."""

    def along(direction):
        def slope(z):
            return jax.jvp(entries, (z,), (direction,))[1]

        return jax.jvp(slope, (z,), (direction,))

    slopes, bends = jax.vmap(along)(jnp.eye(len(z)))
    return slopes.T, bends.T


@compiled_quickly
def affine_at(centring: Centring, points: Float[Array, "n D"]):
    """Return a and b of u = a + b z at several points θ."""
    return jax.vmap(centring.affine)(points)
