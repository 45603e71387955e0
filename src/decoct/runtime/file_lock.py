"""One process at a time: a lock that opens when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from decoct.errors import RequestError
from decoct.runtime.files import unwritable

_BEGINNING = b'{"decoct lock": '
"""First bytes of a lock file; other files are not decoct's."""


@contextlib.contextmanager
def exclusive_lock(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Lock a file, which need not exist, for this process alone while the block runs.

    ``.NAME.decoct-lock`` in the same folder names the process that has the lock. The operating
    system releases the lock when the process ends. A `RequestError` says which process, or thread
    of this one, has the lock; or that the lock file is a link or another program's, or that the
    file system cannot lock files. ``what`` the file is goes into its message.
    """
    target = Path(path)
    place = target.with_name(f".{target.name}.decoct-lock")
    lock = FileLock(place, blocking=False, fallback_to_soft=False, on_acquired=_sign)
    try:
        lock.acquire()
    except Timeout as error:
        raise RequestError(_refusal(target, what, place)) from error
    except OSError as error:
        with contextlib.suppress(OSError):
            if place.lstat().st_size == 0:  # the disk is full: the new lock file is empty
                place.unlink()
        raise RequestError(
            f"{place} cannot be written or locked ({unwritable(error)}); put the {what} on a disk "
            "that can lock files and has free space."
        ) from error
    try:
        yield
    finally:
        # the name first: a process that comes now makes a file of its own
        with contextlib.suppress(OSError):
            place.unlink()
        lock.release()


def _sign(handle: int) -> None:
    """Write this process into the lock file, unless the file is another program's."""
    found = os.read(handle, len(_BEGINNING))
    if found and found != _BEGINNING:
        raise RequestError("The lock file was not written by decoct; remove it or rename it.")
    holder = {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": " ".join(sys.argv)[:100],
    }
    os.ftruncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, _BEGINNING + json.dumps(holder).encode() + b"}")


def _refusal(path: Path, what: str, place: Path) -> str:
    try:
        holder: dict[str, Any] = json.loads(place.read_text())["decoct lock"]
        who = "process {process} on {host} since {since} ({command})".format(**holder)
    except (OSError, ValueError, KeyError, TypeError):  # the holder has not signed yet
        who = "another process"
    return f"The {what} {path} is in use by {who}; wait until it has ended, or give another {what}."
