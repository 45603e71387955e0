"""One process at a time: a lock that its holder's death opens, however it died."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from decoct.errors import RequestError
from decoct.files import unwritable

if sys.platform == "win32":
    import msvcrt

    _BEHIND = 1 << 30  # Windows bars others from reading a locked byte

    def _try_lock(handle: int) -> None:
        os.lseek(handle, _BEHIND, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)
else:
    import fcntl

    def _try_lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextlib.contextmanager
def sole_user(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Hold a file for this process alone while the block runs.

    Beside it lies ``PATH.lock``, which says who holds it. The operating system lets go of the lock
    when the process ends, so that what a killed one leaves bars nobody.

    Parameters
    ----------
    path
        The file; it need not exist.
    what
        What it is, for the message.

    Raises
    ------
    RequestError
        Another process, or another thread of this one, holds it; the message says which. Or the
        file system cannot lock files.
    """
    lock = Path(f"{os.fspath(path)}.lock")
    handle = _acquired(lock, path, what)
    try:
        yield
    finally:
        # its name first: whoever comes now makes a lock of their own, and none meets a closed one
        with contextlib.suppress(OSError):
            lock.unlink()
        os.close(handle)


def _acquired(lock: Path, path: str | os.PathLike[str], what: str) -> int:
    while True:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise RequestError(f"{lock} cannot be written ({unwritable(error)}).") from error
        try:
            _try_lock(handle)
            # its name first: whoever took the last holder for dead may just be removing the file
            os.ftruncate(handle, 0)
            os.write(handle, json.dumps(_myself()).encode())
            if _is_still(lock, handle):
                return handle
        except BlockingIOError as error:
            holder = _holder(lock)
            orphaned = _is_orphaned(holder)
            if orphaned and _is_still(lock, handle) and _holder(lock) == holder:
                # its holder is dead, but a process forked from it keeps the lock open
                lock.unlink(missing_ok=True)
            os.close(handle)
            if not orphaned:
                raise RequestError(_refusal(path, what, holder)) from error
            continue
        except OSError as error:
            with contextlib.suppress(OSError):
                lock.unlink()
            os.close(handle)
            raise RequestError(
                f"{lock} cannot be locked ({unwritable(error)}); put the {what} on a disk that can "
                "lock files and has room."
            ) from error
        os.close(handle)


def _is_still(lock: Path, handle: int) -> bool:
    """Whether the open file is the one of that name; its last holder may have removed it."""
    try:
        return os.path.samestat(os.stat(lock), os.fstat(handle))
    except FileNotFoundError:
        return False


def _place() -> str | None:
    """Return where process numbers mean what they mean here; None if that cannot be told.

    Containers may share a host name, machines too, and each counts its processes from 1. The
    kernel's number for this start of the machine, and its name for this process's own count of
    processes, are the same together only where one process can see another.
    """
    if sys.platform == "darwin":  # one count of processes a machine
        node = uuid.getnode()
        made_up = bool(node >> 40 & 1)  # for want of a network card, anew in every process
        return None if made_up else f"{socket.gethostname()} {node:012x}"
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _myself() -> dict[str, Any]:
    return {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "place": _place(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": " ".join(sys.argv)[:100],
    }


def _holder(lock: Path) -> dict[str, Any]:
    """Return what the holder wrote of itself; nothing, if it has not come to that yet."""
    try:
        said = json.loads(lock.read_text())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _is_orphaned(holder: dict[str, Any]) -> bool:
    """Whether the holder is known to be dead; not seeing a process elsewhere says nothing."""
    place = _place()
    if sys.platform == "win32" or place is None or holder.get("place") != place:
        return False
    try:
        os.kill(int(holder["process"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, KeyError, ValueError, TypeError):
        return False
    return False


def _refusal(path: str | os.PathLike[str], what: str, holder: dict[str, Any]) -> str:
    who = "another process"
    if "process" in holder:
        who = f"process {holder['process']} on {holder.get('host')} since {holder.get('since')}"
        who += f" ({holder.get('command')})"
    return (
        f"The {what} {path} is in use by {who}; wait until that has ended, or give another {what}."
    )
