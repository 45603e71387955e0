"""How many cores there are to use."""

from __future__ import annotations

import os


def cores() -> int:
    """Return the number of cores this process may run on."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
