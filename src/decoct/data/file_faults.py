"""What can go wrong with a file in use: it cannot be read, or it changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from decoct.errors import RowsError


@contextmanager
def explain_errors(path: str, kind: str, names: Sequence[str] = ()) -> Iterator[None]:
    """Turn a reader's failure into an error that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        from decoct.data.file_messages import explain  # few files fail

        raise RowsError(explain(path, kind, names, error)) from error


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
