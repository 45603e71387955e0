"""One latent value per row behind an index column: a model that no coreset of rows can carry.

A plate of N groups with ``ids = arange(N)`` looks like any plate of groups, and yet every row has
an unknown of its own. Such a model has a latent array with N entries, and no two rows have the same
whole numbers in their columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoct.data.base import DEFAULT_CHUNK, Chunk, Rows
from decoct.errors import ModelError
from decoct.models.base import AbstractModel


def check_latents(
    model: AbstractModel, params: Mapping[str, Any], rows: Rows, inputs: tuple[str, ...]
) -> None:
    """Refuse a model with a latent array of as many entries as there are rows.

    Tables in which two rows have the same whole numbers are allowed: these rows can share an entry.
    One pass where an array has N entries, in all or along an axis, else none.

    Parameters
    ----------
    model
        Its `encode` is applied to the rows.
    params
        Latent name -> an array of its shape.
    rows, inputs
        The table, and the columns that the model needs.

    Raises
    ------
    ModelError
        Names the latent array.
    """
    n = rows.n_rows
    found = [name for name, value in params.items() if n in (*np.shape(value), np.size(value))]
    if n < 2 or not found:
        return
    size = min(DEFAULT_CHUNK, n)
    if len(rows.map_reduce(_WholeNumbers(model), _join, size=size, columns=inputs)) == n:
        raise ModelError(
            f"'{found[0]}' has a latent value for every one of the {n:,} rows. One unknown per row "
            "cannot be kept by a coreset of rows. Marginalise it, or give it groups of several "
            "rows each, of which there may be many."
        )


@dataclass(frozen=True)
class _WholeNumbers:
    """Chunk -> the distinct rows of its integer columns; all its rows if there are none."""

    model: AbstractModel

    def __call__(self, chunk: Chunk) -> np.ndarray:
        encoded = self.model.encode(chunk.columns, chunk.start)
        columns = [v.reshape(len(v), -1) for v in encoded.values() if v.dtype.kind in "iu"]
        places = chunk.start + np.arange(chunk.n_rows)[:, None]
        return np.unique(np.hstack(columns) if columns else places, axis=0)


def _join(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.unique(np.concatenate([first, second]), axis=0)
