"""Random numbers on the host from explicit JAX keys."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from decoct.errors import RequestError
from decoct.runtime.checks import is_whole

SEEDS = 2**63
"""Seeds are whole numbers from −SEEDS to SEEDS − 1."""


def check_seed(seed: Any) -> int:
    """Return a seed for `jax.random.key`, or raise `RequestError`."""
    if not is_whole(seed, -SEEDS) or seed >= SEEDS:
        raise RequestError(f"seed must be a whole number from −2⁶³ to 2⁶³ − 1, not {seed!r}.")
    return int(seed)


def host_rng(key: jax.Array) -> np.random.Generator:
    """Return a NumPy generator seeded by the key."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def uniform_sample(key: jax.Array, n_rows: int, size: int) -> Int[np.ndarray, " size"]:
    """Return ``size`` different row numbers, all sets equally likely, ascending."""
    if size >= n_rows:
        return np.arange(n_rows)
    return np.sort(host_rng(key).choice(n_rows, size=size, replace=False)).astype(np.int64)
