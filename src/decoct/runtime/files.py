"""Writing files atomically; only regular files are replaced."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from decoct.errors import RequestError

_PART = ".part"
"""Ending of a temporary file, before the suffix of the final file."""


def require_writable(path: str | os.PathLike[str], option: str) -> Path:
    """Return the path if a file can be created there; say why not, before any work is done."""
    if not isinstance(path, (str, os.PathLike)):
        raise RequestError(f"{option} must be a path, not {path!r}.")
    target = Path(path)
    try:
        os.fspath(target).encode()
    except UnicodeEncodeError:
        name = os.fsencode(target).decode(errors="replace")
        raise RequestError(f"{option} ({name}) is not UTF-8; choose another name.") from None
    real = _resolve(target, option)
    folder = real.parent
    if not folder.is_dir():
        raise RequestError(f"{option} cannot be written: there is no folder {folder}.")
    try:
        handle, probe = tempfile.mkstemp(prefix=".decoct-", dir=folder)
    except OSError as error:
        raise RequestError(f"{option} cannot be written to {folder}: {error.strerror}.") from None
    os.close(handle)
    os.unlink(probe)
    return target


def write_atomically(path: str | os.PathLike[str], write: Callable[[str], object]) -> None:
    """Let ``write`` fill a temporary file next to ``path``, then rename it.

    A link is followed: the file that it points to is replaced. On any failure, an interrupt
    included, the temporary file is removed and an older file at ``path`` stays as it was. The
    content is on the disk before it takes the name, so that a power cut does not leave half a file
    either. A `RequestError` says why the file cannot be written.
    """
    target = _resolve(Path(path), "The output")
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(
            prefix=f".{target.name}-", suffix=_PART + target.suffix, dir=target.parent
        )
        os.close(handle)
        write(temporary)
        _settle(temporary)
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
        older = "; the older file is as it was" if target.exists() else ""
        raise RequestError(
            f"{target} could not be written ({unwritable(error)}){older}; free some space "
            "or choose another folder, then try again."
        ) from error


def remove_parts(path: str | os.PathLike[str]) -> None:
    """Remove temporary files of killed writers of ``path``.

    Only while no other process writes it. Temporary files of ``path-2`` stay.
    """
    target = Path(path)
    random = "[a-z0-9_]" * 8  # what `tempfile.mkstemp` puts between its prefix and its suffix
    name = f".{glob.escape(target.name)}-{random}{_PART}{glob.escape(target.suffix)}"
    for part in target.parent.glob(name):
        part.unlink(missing_ok=True)


def _resolve(path: Path, option: str) -> Path:
    """Return the target of links; refuse a target that is no regular file."""
    real = Path(os.path.realpath(path))
    try:
        kind = real.stat().st_mode
    except FileNotFoundError:
        return real
    except OSError as error:
        reason = unwritable(error)
        raise RequestError(f"{option} cannot be written to {path}: {reason}.") from error
    if stat.S_ISDIR(kind):
        raise RequestError(f"{option} is a folder ({path}); give a file name.")
    if not stat.S_ISREG(kind):
        raise RequestError(
            f"{option} ({path}) is a device, pipe or socket, which would be replaced by a file; "
            "give the name of a regular file."
        )
    return real


def unwritable(error: OSError) -> str:
    """Return the operating system's reason, also where a library's words are around it."""
    return os.strerror(error.errno) if error.errno else " ".join(str(error).split())


def _settle(path: str) -> None:
    """Give a file the rights of any new file, and wait until it is on the disk."""
    umask = os.umask(0)
    os.umask(umask)
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    os.chmod(path, 0o666 & ~umask)
