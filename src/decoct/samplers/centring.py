"""Centring of group effects: parameters x in which the posterior is nearly Gaussian.

Multilevel models are often written with z_j ~ N(0, 1) and u_j = a + b z_j, b the scale of the
effects. Where data inform u_j, the posterior of (z_j, log b) is a curved ridge; where they do not,
that of (u_j, log b) is a funnel. Both meet in one posterior where a scale may be near 0. So x has,
in place of z_j, what is N(0, 1) given a and b if the log-likelihood is r_j u_j − ½ K_j u_j² + c:

    x_j = s z_j − b (r_j − K_j a) / s,    s = √(1 + b² K_j),    log π(x) = log π(z) − Σ_j log s.

Near b = 0 that is z_j, and for large b it is √K_j (u_j − r_j/K_j). Degrees between z_j and u_j that
do not depend on b (Gorinova, Moore & Hoffman 2020) suit one scale alone. Others write the effects
u_j themselves, with a prior log N(u_j; a, b²). With q = 1/b² and g = a/b², minus its second
derivative and its first at u_j = 0, the same x is

    x_j = √(q + K_j) (u_j − (g + r_j)/(q + K_j)).

Standardised effects are found from the map θ → φ alone, φ in its own units: entries of φ that are
affine functions of one parameter. The others that a and b depend on are no effects, or effects of
an earlier level: a random walk has a level for each step, effects with a correlation matrix one for
each row of its Cholesky factor, and most others have one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from decoct.models.base import AbstractModel
from decoct.models.parameters import ParameterSpace
from decoct.passes.expansions import DIRECTIONS
from decoct.passes.potentials import flat_likelihood_params
from decoct.runtime.precision import compile_quickly, float64

SAME_VALUE = 1e-9
"""Relative error that counts as rounding."""

SAME_SLOPE = 1e-6
"""The same, of differences between slopes."""

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


class Centred(NamedTuple):
    """Places in θ of effects u that are parameters, and the entries of φ that they are."""

    places: Int[np.ndarray, " k"]
    entries: Int[np.ndarray, " k"]


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
    centred
        Effects that are parameters, none of which the prior of another depends on.
    """

    model: AbstractModel
    space: ParameterSpace
    effects: Effects
    sources: Int[np.ndarray, " d"]
    targets: Int[np.ndarray, " D"]
    levels: _Levels
    selection: Int[np.ndarray, " d"] | None
    centred: Centred

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
            found = _affine_at(cls._with(model, space, effects, sources), jnp.asarray(points))
            shift, scale = (np.asarray(part)[:, effects.entries] for part in found)
            expected = shift + scale * points[:, effects.places]
            size = np.abs(phi[:, effects.entries]) + np.abs(shift) + 1e-300
            good = (np.abs(phi[:, effects.entries] - expected) <= SAME_VALUE * size).all(axis=0)
            effects = effects.some(good & (scale != 0.0).all(axis=0))
        for entry, place in known.items():
            if (np.abs(phi[:, entry] - points[:, place]) <= SAME_VALUE).all():
                sources[entry] = place
        found = cls._with(model, space, effects, sources)
        entries = np.flatnonzero(found.targets[sources] < 0)
        if found.selection is None or not len(entries):
            return found
        return replace(found, centred=_find_centred(found, points, entries))

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
        selection, none = sources if are_apart else None, np.zeros(0, dtype=np.int64)
        centred = Centred(none, none)
        return cls(model, space, effects, sources, targets, levels, selection, centred)

    @property
    def standardised(self) -> Int[np.ndarray, " n"]:
        """Entries of φ that x has standardised."""
        return np.concatenate([self.effects.entries, self.centred.entries])

    def scales(self, z: Float[Array, " D"]) -> Float[Array, " n"]:
        """Return |b| of each of these effects; pure JAX."""
        of_effects = jnp.abs(self.affine(z)[1][self.effects.entries])
        return jnp.concatenate([of_effects, self._prior_of_centred(z)[0] ** -0.5])

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
        x, volume = self._undo_centred(x, known)
        entries = x[self.sources]

        def add_level(total, level):
            z, volume, phi = total
            shift, scale = self._affine_in(level, z)
            spread, move = _standardisation(shift, scale, known)
            inside = (entries + move) / spread
            z = jnp.where(level.places, inside[self.targets], z)
            phi = jnp.where(level.entries, shift + scale * inside, phi)
            return Placed(z, volume - jnp.log(jnp.abs(spread)) @ level.entries, phi), None

        found = self._over_levels(add_level, Placed(x, volume, entries))
        phi = self.likelihood(found.z) if self.selection is None else self.standardise(found.phi)
        return found._replace(phi=phi)

    def from_parameters(
        self, z: Float[Array, " D"], known: Information | None
    ) -> Float[Array, " D"]:
        """Return x; pure JAX."""
        spread, move = _standardisation(*self.affine(z), known)
        inside = spread * z[self.sources] - move
        x = jnp.where(self.targets >= 0, inside[self.targets], z)
        if known is None:
            return x
        mean, precision = self._condition_on_rest(z, known)
        values = jnp.sqrt(precision) * (z[self.centred.places] - mean)
        return x.at[self.centred.places].set(values)

    def _undo_centred(
        self, x: Float[Array, " D"], known: Information | None
    ) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        """Return x with effects u in place of what they are standardised, and log |du/dx|."""
        if known is None:
            return x, jnp.zeros(())
        mean, precision = self._condition_on_rest(x, known)
        values = mean + x[self.centred.places] / jnp.sqrt(precision)
        return x.at[self.centred.places].set(values), -0.5 * jnp.log(precision).sum()

    def _condition_on_rest(
        self, z: Float[Array, " D"], known: Information
    ) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """Return mean and precision of effects that are parameters, given data and the others."""
        precision, linear = self._prior_of_centred(z)
        precision += known.precision[self.centred.entries]
        return (linear + known.linear[self.centred.entries]) / precision, precision

    def _prior_of_centred(
        self, z: Float[Array, " D"]
    ) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """Return q and g of effects that are parameters."""
        if not len(self.centred.places):
            return jnp.zeros(0), jnp.zeros(0)

        def slope_at(value):
            there = z.at[self.centred.places].set(value)
            slope = jax.grad(lambda z: self.model.log_prior(self.space.unflatten(z)))(there)
            return slope[self.centred.places]

        # the derivative is linear, and two values of it are less to compile than its own derivative
        linear, after = jax.vmap(slope_at)(jnp.arange(2.0))
        return linear - after, linear

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


@eqx.filter_jit  # so that programs which contain it trace it once
def _flat_effects(model: AbstractModel, space: ParameterSpace, z: Float[Array, " D"]):
    return space.ravel(model.to_effects(space.unflatten(z)))


def _find_centred(
    centring: Centring, points: Float[np.ndarray, "n D"], entries: Int[np.ndarray, " k"]
) -> Centred:
    """Return which parameters are normal given the others, with a scale that depends on these.

    No two of them depend on each other, or on standardised effects.
    """
    places, effects = centring.sources[entries], centring.effects.places
    others = points.copy()
    changed = np.concatenate([places, effects])
    others[:, changed] = np.roll(points[:, changed], 1, axis=0)
    both = jnp.asarray(np.concatenate([points, others]))
    derivatives = _derivatives_of_prior(centring.model, centring.space, both, places)
    slopes, bends, couplings = map(np.asarray, derivatives)
    here, there = np.split(bends, 2)
    size = np.abs(bends).max(axis=0)
    found = (bends < 0.0).all(axis=0) & (np.ptp(here, axis=0) > SAME_VALUE * size)
    found &= (np.abs(here - there) <= SAME_VALUE * size).all(axis=0)
    is_coupled = couplings > SAME_VALUE * size[:, None]
    found &= ~is_coupled[:, effects].any(axis=1)
    neighbours = is_coupled[:, places]
    neighbours |= neighbours.T
    np.fill_diagonal(neighbours, False)
    # of groups within groups the smaller, and of a chain its ends
    found &= (neighbours & found).sum(axis=1) <= 1
    for place in np.flatnonzero(found):
        found[place] = not (neighbours[place] & found).any()
    kept = Centred(places[found], entries[found])
    if not found.any():
        return kept
    # what is normal nearby may have a bound elsewhere
    parts = _prior_at(replace(centring, centred=kept), both)
    precision, linear = map(np.asarray, parts)
    size = np.abs(linear) + np.abs(precision * both[:, kept.places])
    is_same = np.abs(precision + bends[:, found]) <= SAME_SLOPE * np.abs(precision)
    expected = linear - precision * both[:, kept.places]
    is_same &= np.abs(slopes[:, found] - expected) <= SAME_SLOPE * size
    is_same = is_same.all(axis=0)
    return Centred(kept.places[is_same], kept.entries[is_same])


@compile_quickly
def _derivatives_of_prior(
    model: AbstractModel, space: ParameterSpace, points: Float[Array, "n D"], places: Any
):
    """Return first and second derivatives of the log prior in some parameters, at several points.

    Then, the largest second ones in each of them and any other parameter.
    """
    directions = jnp.eye(points.shape[1])[places]
    slope = jax.grad(lambda z: model.log_prior(space.unflatten(z)))

    def at(largest, z):
        slopes, product = jax.linearize(slope, z)
        found = jax.vmap(product)(directions)
        bends = found[jnp.arange(len(places)), places]
        return jnp.maximum(largest, jnp.abs(found)), (slopes[places], bends)

    largest, (slopes, bends) = jax.lax.scan(at, jnp.zeros_like(directions), points)
    return slopes, bends, largest


@compile_quickly
def _prior_at(centring: Centring, points: Float[Array, "n D"]):
    """Return q and g of effects that are parameters, at several points θ."""
    return jax.vmap(centring._prior_of_centred)(points)


@compile_quickly
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

    slopes, bends = jax.lax.map(along, jnp.eye(len(z)), batch_size=DIRECTIONS)
    return slopes.T, bends.T


@compile_quickly
def _affine_at(centring: Centring, points: Float[Array, "n D"]):
    """Return a and b of u = a + b z at several points θ."""
    return jax.vmap(centring.affine)(points)


@compile_quickly
def scales_at(centring: Centring, points: Float[Array, "n D"]):
    """Return |b| of all effects that are standardised, at several points θ."""
    return jax.vmap(centring.scales)(points)
