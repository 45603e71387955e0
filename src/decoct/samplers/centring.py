"""Centring of group effects: parameters x in which the posterior is nearly Gaussian.

Multilevel models are often written with z_j ~ N(0, 1) and u_j = a + b z_j, b the scale of the
effects. Where data inform u_j, the posterior of (z_j, log b) is a curved ridge; where they do not,
that of (u_j, log b) is a funnel. So x has, in place of z_j, an interpolation by a degree λ_j,

    x_j = λ_j a + b^λ_j z_j,    log π(x) = log π(z) − Σ_j λ_j log|b|:

z_j at λ_j = 0 and u_j at 1 (Gorinova, Moore & Hoffman 2020, Eq. 4). Effects are found from the map
θ → φ alone: entries of φ that are affine functions of one parameter, given the parameters that are
no effects.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from decoct.models.base import AbstractModel
from decoct.models.parameters import ParameterSpace
from decoct.passes.potentials import flat_likelihood_params
from decoct.runtime.precision import float64

NEAR = 1e-9
"""Relative error that counts as rounding."""


class Effects(NamedTuple):
    """Places in θ of parameters z, and in φ of the entries u = a + b z that they determine."""

    places: Int[np.ndarray, " m"]
    entries: Int[np.ndarray, " m"]


class Centring(eqx.Module):
    """The map between θ and x.

    Attributes
    ----------
    selection
        Places in x of the entries of φ where all effects are centred, so that φ = x[selection];
        None where φ has other entries.
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
        phi, slopes = map(np.asarray, _linearised(model, space, jnp.asarray(points)))
        # entries that depend on a parameter that no other entry depends on, at all points
        moves = np.abs(slopes).max(axis=0) > 0.0
        moved = moves.sum(axis=0)
        known, places, entries = {}, [], []
        for entry in range(phi.shape[1]):
            inside = np.flatnonzero(moves[entry])
            alone = inside[moved[inside] == 1]
            if len(inside) == 1 and np.ptp(slopes[:, entry, inside[0]]) == 0.0:
                known[entry] = inside[0]
            elif len(alone) == 1:
                places.append(alone[0])
                entries.append(entry)
        effects = Effects(np.array(places, dtype=np.int64), np.array(entries, dtype=np.int64))
        if len(places):
            found = affine_at(cls(model, space, effects, None), jnp.asarray(points))
            shift, scale = map(np.asarray, found)
            expected = shift + scale * points[:, effects.places]
            size = np.abs(phi[:, effects.entries]) + np.abs(shift) + 1e-300
            good = (np.abs(phi[:, effects.entries] - expected) <= NEAR * size).all(axis=0)
            good &= (scale != 0.0).all(axis=0)
            effects = Effects(effects.places[good], effects.entries[good])
        selection = np.full(phi.shape[1], -1)
        for entry, place in known.items():
            if (np.abs(phi[:, entry] - points[:, place]) <= NEAR).all():
                selection[entry] = place
        selection[effects.entries] = effects.places
        return cls(model, space, effects, None if (selection < 0).any() else selection)

    @property
    def everywhere(self) -> Float[np.ndarray, " m"]:
        """Degrees at which x holds all effects."""
        return np.ones(len(self.effects.places))

    def affine(self, z: Float[Array, " D"]) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Return a and b of u = a + b z, which depend on the other parameters."""
        places, entries = self.effects
        at = [self.likelihood(z.at[places].set(value))[entries] for value in (0.0, 1.0)]
        return at[0], at[1] - at[0]

    def likelihood(self, z: Float[Array, " D"]) -> Float[Array, " d"]:
        """Return φ(θ), flat; pure JAX."""
        return flat_likelihood_params(self.model, self.space, z)

    def to_parameters(
        self, x: Float[Array, " D"], degree: Float[Any, " m"]
    ) -> tuple[Float[Array, " D"], Float[Array, ""]]:
        """Return θ and log |dθ/dx|; pure JAX."""
        places = self.effects.places
        if not len(places):
            return x, jnp.zeros(())
        shift, scale = self.affine(x)
        power, size = _powers(scale, degree)
        return x.at[places].set((x[places] - degree * shift) / power), -(degree * size).sum()

    def from_parameters(
        self, z: Float[Array, " D"], degree: Float[Any, " m"]
    ) -> Float[Array, " D"]:
        """Return x; pure JAX."""
        places = self.effects.places
        if not len(places):
            return z
        shift, scale = self.affine(z)
        return z.at[places].set(degree * shift + _powers(scale, degree)[0] * z[places])


def _powers(
    scale: Float[Array, " m"], degree: Float[Any, " m"]
) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """Return b to the power λ, of the sign of b, and log |b|."""
    size = jnp.log(jnp.abs(scale))
    return jnp.sign(scale) * jnp.exp(degree * size), size


@eqx.filter_jit
def _linearised(model: AbstractModel, space: ParameterSpace, points: Float[Array, "n D"]):
    """Return φ and its derivatives at several points."""
    likelihood = partial(flat_likelihood_params, model, space)
    return jax.lax.map(lambda z: (likelihood(z), jax.jacfwd(likelihood)(z)), points)


@eqx.filter_jit
def affine_at(centring: Centring, points: Float[Array, "n D"]):
    """Return a and b of u = a + b z at several points θ."""
    return jax.vmap(centring.affine)(points)
