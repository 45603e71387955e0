"""One BLAS thread for the solvers' many small products.

A solver makes thousands of products and factorisations that take well under a millisecond each.
BLAS threads that share one wait for each other by spinning; where another process has their core,
every wait lasts until the scheduler moves on, and a fit takes ten times as long. One thread takes
what several take on a machine of one's own. Products that are large enough to pay for waiting
keep their threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import scipy.linalg  # noqa: F401  (its BLAS must be there to be found)
from threadpoolctl import ThreadpoolController

LARGE = 1 << 29
"""Bytes of arrays from which on products with them are left to all threads."""


@contextmanager
def few_threads(array_bytes: int) -> Iterator[None]:
    """Use one BLAS thread inside, unless the arrays at work are large."""
    if array_bytes >= LARGE:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    return ThreadpoolController()
