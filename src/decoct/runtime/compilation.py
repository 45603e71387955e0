"""JAX's persistent compilation cache, in the user's cache folder, unless they object.

Compiling is most of a first run's time; the cache takes a warm NUTS start from seconds to
fractions of one. Nothing is changed when the user has configured a cache of their own or has set
``DECOCT_COMPILATION_CACHE=0``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax


def cache_folder() -> Path:
    """Return where compiled programs are kept, by the conventions of the platform."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "decoct" / "xla"


def use_compilation_cache() -> None:
    """Switch the cache on, once per process, if nobody has decided otherwise."""
    if os.environ.get("DECOCT_COMPILATION_CACHE", "1") == "0":
        return
    if getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a read-only home is no reason to fail; compiling again is only slower
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
