"""Writing files so that nothing half-written is ever seen."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from decoct.errors import RequestError


def require_writable(path: str | os.PathLike[str], option: str) -> Path:
    """Return the path if a file can be created there; say why not, before any work is done."""
    target = Path(path)
    folder = target.parent
    if target.is_dir():
        raise RequestError(f"{option} is a folder ({target}); give a file name.")
    if not folder.is_dir():
        raise RequestError(f"{option} cannot be written: there is no folder {folder}.")
    try:
        handle, probe = tempfile.mkstemp(prefix=".decoct-", dir=folder)
    except OSError as error:
        raise RequestError(f"{option} cannot be written to {folder}: {error.strerror}.") from None
    os.close(handle)
    os.unlink(probe)
    return target


def write_atomically(path: str | os.PathLike[str], write: Callable[[str], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then move it into place.

    On any failure, an interrupt included, the temporary file is removed and an older file at
    ``path`` stays as it was.
    """
    target = Path(path)
    handle, temporary = tempfile.mkstemp(
        prefix=f".{target.name}-", suffix=target.suffix, dir=target.parent
    )
    os.close(handle)
    try:
        write(temporary)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
