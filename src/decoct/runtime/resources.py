"""The machine's resources: BLAS threads, cores, freed memory, and JAX's cache of compiled programs.

**BLAS threads.** A solver makes thousands of products and factorisations that take well under a
millisecond each. BLAS threads that share one wait for each other by spinning; where another process
has their core, every wait lasts until the scheduler moves on, and a fit takes ten times as long.
One thread takes what several take on an idle machine. Products that are large enough to pay for
waiting keep their threads.

**Memory.** Every chunk of a pass needs the same few megabytes for a moment. glibc returns such
buffers as soon as they are free, and the system must zero pages again: in a virtual machine a pass
took four times as long. Dask's workers do so by default
(``MALLOC_TRIM_THRESHOLD_=65536``).

**Compiled programs.** Compiling is most of a first run's time; the persistent cache takes a warm
NUTS start from seconds to fractions of one. Nothing is changed when the user has configured a cache
or has set ``DECOCT_COMPILATION_CACHE=0``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import platformdirs
from threadpoolctl import ThreadpoolController

LARGE_ARRAYS = 1 << 29
"""Bytes of arrays from which on products with them are left to all threads."""


@contextmanager
def few_threads(array_bytes: int) -> Iterator[None]:
    """Use one BLAS thread inside, unless the arrays at work are large."""
    if array_bytes >= LARGE_ARRAYS:
        yield
        return
    with _controller().limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  (its BLAS must be there to be found)

    return ThreadpoolController()


def cores() -> int:
    """Return the number of cores this process may run on."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1


def default_device() -> Any:
    """Return the device that the user's ``with jax.default_device(...)`` names, or None."""
    config: Any = jax.config
    return config.jax_default_device


KEPT = 1 << 27
"""Bytes of freed memory that a process may keep."""

LARGEST_BUFFER = 1 << 25
"""Bytes of the largest buffer that is kept: the most that glibc allows."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3


@functools.cache
def keep_buffers() -> bool:
    """Ask the C library to keep freed buffers; return whether it does.

    ``DECOCT_KEEP_BUFFERS=0`` leaves its settings as they are.
    """
    if sys.platform != "linux" or os.environ.get("DECOCT_KEEP_BUFFERS", "1") == "0":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST_BUFFER) and mallopt(_TRIM_THRESHOLD, KEPT))


def use_compilation_cache() -> None:
    """Switch the cache on, once per process, unless the user has decided otherwise."""
    if os.environ.get("DECOCT_COMPILATION_CACHE", "1") == "0":
        return
    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    folder = platformdirs.user_cache_path("decoct", appauthor=False) / "xla"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a read-only home is no reason to fail; compiling again is only slower
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
