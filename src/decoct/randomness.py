"""Random numbers on the host from explicit JAX keys."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Int


def host_rng(key: jax.Array) -> np.random.Generator:
    """Return a NumPy generator that the key decides."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def uniform_sample(key: jax.Array, n_rows: int, size: int) -> Int[np.ndarray, " size"]:
    """Return ``size`` different row numbers, all sets equally likely, ascending."""
    if size >= n_rows:
        return np.arange(n_rows)
    return np.sort(host_rng(key).choice(n_rows, size=size, replace=False)).astype(np.int64)
