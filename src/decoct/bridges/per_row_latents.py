"""One latent value per row behind an index column: a model that no coreset of rows can carry.

A plate of N groups with ``ids = arange(N)`` has the form of any plate of groups, yet every row has
an unknown of its own. Let g be the derivative of f_n in the entries e = 1, ..., K of a latent
array, and u random in it. If row n depends on one entry e(n) alone, then

    Σ_e g_e u_e e / Σ_e g_e u_e = e(n),   Σ_e g_e u_e e² / Σ_e g_e u_e = e(n)²,

so that three derivatives along fixed directions give the entry of every row, whatever index, offset
or table of indices led there. Rows whose entries are all different have a latent each. An array of
fewer than N entries cannot be one, and costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from decoct.data.base import DEFAULT_CHUNK, Chunk, Rows
from decoct.errors import ModelError
from decoct.models.base import AbstractModel, Params

PER_ROW = (
    "A coreset of rows cannot represent one unknown per row. Marginalise it, or give it groups of "
    "several rows each, with the group number as data."
)

WHOLE = 1e-6
"""How far from a whole number an entry may come out, by rounding."""


def check_latents(model: AbstractModel, start: Params, rows: Rows) -> None:
    """Refuse a model in which each of the rows has an entry of some latent array to itself.

    Groups of several rows are allowed, however many groups there are. One pass where a latent
    array has at least as many entries as there are rows, else none. Arrays of which a row uses
    several entries, such as the steps of a random walk, are not recognised. ``start`` has the
    latent arrays by name, anywhere.
    """
    n = rows.n_rows
    for name, value in start.items():
        shape = np.shape(value)
        for axis in _wide(shape, n):
            entries, size = _Entries(model, start, name, axis), min(DEFAULT_CHUNK, n)
            seen = rows.map_reduce(entries, _both, size=size, columns=model.columns)
            if seen is not None and seen.max() == 1 and seen.sum() >= n / 2:
                every = "every one" if seen.sum() == n else f"{seen.sum():,}"
                raise ModelError(
                    f"'{name}' has a latent value for {every} of the {n:,} rows: its index is "
                    f"different in each of these. {PER_ROW}"
                )


def _wide(shape: tuple[int, ...], n_rows: int) -> list[int | None]:
    """Return the axes with as many entries as there are rows; None for all axes as one."""
    axes: list[int | None] = [axis for axis, size in enumerate(shape) if size >= n_rows > 1]
    return [*axes, None] if len(shape) > 1 and math.prod(shape) >= n_rows > 1 else axes


@dataclass(frozen=True)
class _Entries:
    """Chunk -> how many of its rows depend on each entry; None if one depends on several.

    Rows that depend on none, because their derivative is 0 there, are not counted. If ``axis`` of
    the latent array ``name`` is None, the entries of the whole array are numbered.
    """

    model: AbstractModel
    start: Params
    name: str
    axis: int | None

    def __call__(self, chunk: Chunk) -> np.ndarray | None:
        shape = np.shape(self.start[self.name])
        size = math.prod(shape) if self.axis is None else shape[self.axis]
        aligned = [size if self.axis in (None, i) else 1 for i in range(len(shape))]
        places = np.arange(1.0, size + 1.0) / size
        along = places.reshape(shape if self.axis is None else aligned)
        weights = np.random.default_rng(0).uniform(0.5, 1.5, shape)
        with jax.enable_x64(True):
            rows = self.model.encode(chunk.columns, chunk.start)
            directions = np.stack([weights, weights * along, weights * along**2])
            taken = {key: jnp.asarray(values) for key, values in rows.items()}
            given = self.model, self.start, taken, self.name, directions
            once, first, second = np.asarray(_derivatives(*given))
        if not np.isfinite(once).all():
            return None
        counted = once != 0.0
        once, first, second = once[counted], first[counted], second[counted]
        entry = first / once
        number = np.rint(entry * size)
        single = np.abs(entry * size - number) < WHOLE
        single &= np.abs(second / once - entry**2) < WHOLE / size
        single &= (number >= 1) & (number <= size)
        return np.bincount(number.astype(np.int64) - 1, minlength=size) if single.all() else None


@eqx.filter_jit
def _derivatives(
    model: AbstractModel, start: Params, rows: Mapping[str, Array], name: str, directions: Any
) -> Array:
    def potentials(value: Array) -> Array:
        return model.potentials({**start, name: value}, rows)

    value = jnp.asarray(start[name])
    return jax.vmap(lambda direction: jax.jvp(potentials, (value,), (direction,))[1])(directions)


def _both(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    return None if first is None or second is None else first + second
