"""Constructions by name: for the command line and for comparisons.

A construction registers itself where it is defined:

    register("sparse-vi", lambda: SparseVI(subsample=2000), compared_as="SparseVI")

Its module is found in this package; no list names it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import NamedTuple

from decoct.constructions.base import Construction
from decoct.errors import RequestError

PACKAGE = "decoct.constructions"


class Entry(NamedTuple):
    """A construction with the options that its name stands for.

    Attributes
    ----------
    make
        Returns it.
    compared_as
        Its name in `decoct.compare`, or None if it is not compared unless asked for.
    """

    make: Callable[[], Construction]
    compared_as: str | None


_ENTRIES: dict[str, Entry] = {}


def register(
    name: str, make: Callable[[], Construction], *, compared_as: str | None = None
) -> None:
    """Offer a construction on the command line (``--method name``), and for comparisons."""
    _ENTRIES[name] = Entry(make, compared_as)


def entries() -> dict[str, Entry]:
    """Return all registered constructions, by name in alphabetical order."""
    package = importlib.import_module(PACKAGE)
    for module in pkgutil.walk_packages(package.__path__, f"{PACKAGE}."):
        importlib.import_module(module.name)
    return dict(sorted(_ENTRIES.items()))


def make_construction(name: str) -> Construction:
    """Return the construction of that name.

    Raises
    ------
    RequestError
        There is none; the message lists those there are.
    """
    # what is loaded already, such as the default, needs no search
    known = _ENTRIES if name in _ENTRIES else entries()
    if name not in known:
        raise RequestError(f"There is no method '{name}'; choose one of {', '.join(known)}.")
    return known[name].make()
