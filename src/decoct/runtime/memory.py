"""Freed buffers are kept for the next chunk instead of going back to the system.

Every chunk of a pass needs the same few megabytes for a moment. glibc gives such buffers back as
soon as they are free, and the system hands out zeroed pages anew: in a virtual machine a pass took
four times as long. Workers of Dask do so by Dask's default (``MALLOC_TRIM_THRESHOLD_=65536``).
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

KEPT = 1 << 27
"""Bytes of freed memory that a process may hold on to."""

LARGEST = 1 << 25
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
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST) and mallopt(_TRIM_THRESHOLD, KEPT))
