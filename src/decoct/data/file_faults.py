"""What can go wrong with a file in use: it cannot be read, or it changes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from decoct.errors import RowsError

_CHANGE = re.compile(
    r"CSV column #(?P<column>\d+): (?:Row #(?P<row>\d+): )?"
    r"CSV conversion error to (?P<type>.+): invalid value '(?P<value>.*)'"
)
_DOUBLE = re.compile(r"Unable to merge: Field (?P<name>.+) has incompatible types")
_PREAMBLE = re.compile(r"^.*Could not open \w+ input source '.*?': (?:\w+: )?", re.DOTALL)


@contextmanager
def explain_errors(path: str, kind: str, names: Sequence[str] = ()) -> Iterator[None]:
    """Turn a reader's failure into an error that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise RowsError(_explain(path, kind, names, error)) from error


def _explain(path: str, kind: str, names: Sequence[str], error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{path} cannot be read (permission denied); ask its owner for read permission."
    if isinstance(error, FileNotFoundError):
        return f"{path} was removed after the table was opened; open it again."
    if isinstance(error, OSError) and error.errno:
        return f"{path} cannot be read ({os.strerror(error.errno)}); fix that and try again."
    message = str(error)
    if "Empty CSV file" in message:
        return f"The table is empty: {path} has no rows."
    if "duplicate field names" in message:
        return f"{path} has two columns of the same name; rename one."
    double = _DOUBLE.search(message)
    if double:
        return (
            f"Column '{double['name']}' is both in the files and in the names of their folders, "
            "with different types; remove it from the files, or pass the files, not the folder."
        )
    column, change = find_changed_column(error, names), _CHANGE.search(message)
    if column and change:
        line = f" in line {change['row']}" if change["row"] else ""
        return (
            f"Column '{column}' of {path} was read as {change['type']} from its first rows but has "
            f"'{change['value']}'{line}; fix the value, or convert the file to Parquet with one "
            "type."
        )
    reason = (_PREAMBLE.sub("", message).splitlines() or ["no reason given"])[0][:200]
    reason = "".join(c if c.isprintable() and c != "\ufffd" else "?" for c in reason)
    return (
        f"{path} could not be read as {kind} ({reason.rstrip('. ')}); "
        "check that the file is complete and really of that kind."
    )


def find_changed_column(error: BaseException | None, names: Sequence[str]) -> str | None:
    """Return the CSV column whose type changed midway, if that is what went wrong."""
    change = _CHANGE.search(str(error))
    return names[int(change["column"])] if change and int(change["column"]) < len(names) else None


_HEADERS = ("size", "ETag", "Content-MD5", "Digest", "Last-Modified")
_WRITTEN = ("size", "mtime")
_PROPERTIES = {
    "http": _HEADERS,  # fsspec's ukey is the same after a change
    "sftp": _WRITTEN,  # fsspec's ukey changes when the file is read
    "smb": _WRITTEN,
    "abfs": ("size", "etag"),
}
"""By protocol: the properties of a file that make its version where fsspec's ``ukey`` does not."""


def find_version(filesystem: fs.FileSystem, path: str) -> str | None:
    """Return what differs between two states of a file, as it is now; None if it is not there."""
    handler = getattr(filesystem, "handler", None)
    if isinstance(handler, fs.FSSpecHandler):
        return _find_remote_version(handler.fs, path)
    found = filesystem.get_file_info(path)
    if found.type is fs.FileType.NotFound:
        return None
    return f"{found.size} bytes, {found.mtime_ns} ns"


def _find_remote_version(remote: Any, path: str) -> str | None:
    for known in (path, remote._parent(path)):  # it may have cached earlier listings
        remote.invalidate_cache(known)
    protocols = [remote.protocol] if isinstance(remote.protocol, str) else remote.protocol
    names = next((_PROPERTIES[one] for one in protocols if one in _PROPERTIES), None)
    try:
        if names is None:
            return str(remote.ukey(path))
        info = remote.info(path)
    except FileNotFoundError:
        return None
    return repr([info.get(name) for name in names])


def _list_files(source: ds.Dataset | ds.Fragment) -> list[tuple[fs.FileSystem, str]]:
    """Return the files that a data set reads, filtered or not, each with its file system."""
    found: Any = source
    if isinstance(source, ds.UnionDataset):
        return [file for child in found.children for file in _list_files(child)]
    if isinstance(source, ds.FileSystemDataset):
        # as the child of another it has lost its filter, with which it would name no fragments
        (bare,) = ds.UnionDataset(source.schema, [source]).children
        return [file for one in bare.get_fragments() for file in _list_files(one)]
    if isinstance(source, ds.FileFragment) and found.filesystem is not None:
        return [(found.filesystem, found.path)]
    return []


class ChangeGuard:
    """The files that ``source`` reads, in the versions that they have when this is made."""

    def __init__(self, source: ds.Dataset | ds.Fragment, kind: str) -> None:
        self._kind = kind
        self.files = [(*file, self._find_version(*file)) for file in _list_files(source)]

    @property
    def n_bytes(self) -> int:
        """Size of all files together, where it is known."""
        total = 0
        for filesystem, path, _ in self.files:
            with explain_errors(path, self._kind):
                total += filesystem.get_file_info(path).size or 0
        return total

    @contextmanager
    def require_unchanged(self) -> Iterator[None]:
        """Read within this: a file that has changed, or changes meanwhile, is an error.

        Two passes over different data would make a coreset of neither.
        """
        self._require_same()
        try:
            yield
        except (pa.ArrowException, OSError):
            self._require_same()  # a change explains the failure
            raise
        self._require_same()

    def _require_same(self) -> None:
        for filesystem, path, version in self.files:
            if self._find_version(filesystem, path) not in (version, None):
                raise RowsError(
                    f"{path} changed while it was in use; open the table again and start again."
                )

    def _find_version(self, filesystem: fs.FileSystem, path: str) -> str | None:
        with explain_errors(path, self._kind):
            return find_version(filesystem, path)
