"""The machine: precision, threads, caches, files, locks, progress.

`lazy_names` is for packages whose names are imported when they are first used (PEP 562).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    ``homes`` has, for each name, the module of the package that defines it; for a module itself it
    has the empty string.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        home = f"{package}.{homes[name]}" if homes[name] else package
        value = getattr(importlib.import_module(home), name, None) if homes[name] else None
        if value is None:  # a module of that package
            value = importlib.import_module(f"{home}.{name}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
