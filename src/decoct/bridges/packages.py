"""Optional packages: the releases decoct works with, and what to install."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from decoct.errors import RequestError

MISFITS = (ImportError, AttributeError, TypeError)
"""Errors of an import of incompatible packages."""


@dataclass(frozen=True)
class Package:
    """An optional package, and the releases of it that a bridge works with.

    Attributes
    ----------
    name
        Its import name, also its name on the package index.
    extra
        The extra of decoct that brings it.
    oldest
        Oldest release that works.
    below
        First release that does not, if one is known.
    """

    name: str
    extra: str
    oldest: str
    below: str = ""

    @property
    def releases(self) -> str:
        """What works, as pip writes it: ``pymc>=5.28,<7``."""
        return f"{self.name}>={self.oldest}" + (f",<{self.below}" if self.below else "")

    @property
    def install(self) -> str:
        """The command that brings a release that works."""
        return f"pip install --upgrade 'decoct[{self.extra}]'"


def require(package: Package) -> ModuleType:
    """Import an optional package; a `RequestError` says what to install."""
    with fitting(package):
        module = importlib.import_module(package.name)
    version = module.__version__
    is_old = _numbers(version) < _numbers(package.oldest)
    if is_old or (package.below and _numbers(version) >= _numbers(package.below)):
        raise RequestError(
            f"{package.name} {version} is installed; decoct works with {package.releases}. "
            f"Install such a release with: {package.install}."
        )
    return module


@contextmanager
def fitting(package: Package) -> Iterator[None]:
    """Turn an import that fails, of an optional package or inside it, into a `RequestError`."""
    try:
        yield
    except MISFITS as error:
        if isinstance(error, ModuleNotFoundError) and error.name == package.name:
            raise RequestError(
                f"This needs {package.name}, which is not installed; install it with: "
                f"{package.install}."
            ) from None
        raise RequestError(
            f"{package.name} is installed but does not work with the other packages here "
            f"({type(error).__name__}: {error}); decoct works with {package.releases}. Install "
            f"versions that fit with: {package.install}."
        ) from error


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers in a version: (0, 18, 1) of ``0.18.dev1``."""
    return tuple(map(int, re.findall(r"\d+", version)))
