"""Optional packages: the releases decoct works with, and what to install."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from packaging.requirements import Requirement

from decoct.errors import RequestError

MISFITS = (ImportError, AttributeError, TypeError)
"""Errors of an import of incompatible packages."""


@dataclass(frozen=True)
class Package:
    """An optional package by its import name, the extra that brings it, and the releases that work.

    ``releases`` is as pip writes it: ``pymc>=5.28,<7``.
    """

    name: str
    extra: str
    releases: str

    @property
    def install(self) -> str:
        """The command that brings a release that works."""
        return f"pip install --upgrade 'decoct[{self.extra}]'"


def require(package: Package) -> ModuleType:
    """Import an optional package; a `RequestError` says what to install."""
    with fitting(package):
        module = importlib.import_module(package.name)
    version = module.__version__
    if not Requirement(package.releases).specifier.contains(version, prereleases=True):
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
