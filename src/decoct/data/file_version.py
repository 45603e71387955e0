"""What tells a file written anew from the one that was opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from decoct.data.arrow_schema import reading
from decoct.errors import RowsError

VERSIONS = (
    "ETag",
    "etag",
    "generation",
    "md5Hash",
    "Content-MD5",
    "Digest",
    "LastModified",
    "Last-Modified",
    "last_modified",
    "updated",
    "mtime",
    "modified",
    "modify",
    "created",
)
"""What stores behind a URL call the version of a file, or the time when it was written."""


class Stamp(NamedTuple):
    """A file as it was at one time; what is not known is None.

    Attributes
    ----------
    size
        Bytes.
    written
        Time of the last change, ns.
    version
        The first of `VERSIONS` that the store behind a URL tells.
    """

    size: int | None
    written: int | None = None
    version: str | None = None


def stamp(filesystem: fs.FileSystem, path: str) -> Stamp | None:
    """Return the stamp of a file as it is now, or None if there is none."""
    if isinstance(filesystem, fs.SubTreeFileSystem):
        return stamp(filesystem.base_fs, filesystem.base_path + path)
    handler = getattr(filesystem, "handler", None)
    if isinstance(handler, fs.FSSpecHandler):
        return _remote_stamp(handler.fs, path)
    found = filesystem.get_file_info(path)
    if found.type is fs.FileType.NotFound:
        return None
    return Stamp(found.size, found.mtime_ns)


def _remote_stamp(remote: Any, path: str) -> Stamp | None:
    for known in (path, remote._parent(path)):  # it may remember listings from before
        remote.invalidate_cache(known)
    try:
        info: Mapping[str, Any] = remote.info(path)
    except FileNotFoundError:
        return None
    told = ((name, info.get(name)) for name in VERSIONS)
    version = next((f"{name} {value}" for name, value in told if value is not None), None)
    return Stamp(info.get("size"), None, version)


def files_of(source: ds.Dataset | ds.Fragment) -> list[tuple[fs.FileSystem, str]]:
    """Return the files that a data set reads, filtered or not, each with its file system."""
    found: Any = source
    if isinstance(source, ds.UnionDataset):
        return [file for child in found.children for file in files_of(child)]
    if isinstance(source, ds.FileSystemDataset):
        # as the child of another it has lost its filter, with which it would name no fragments
        (bare,) = ds.UnionDataset(source.schema, [source]).children
        return [file for one in bare.get_fragments() for file in files_of(one)]
    if isinstance(source, ds.FileFragment) and found.filesystem is not None:
        return [(found.filesystem, found.path)]
    return []


class Watch:
    """Files as they were when this was made.

    Parameters
    ----------
    source
        What reads them; rows that are in no file are not watched.
    kind
        What they are, for messages.
    """

    def __init__(self, source: ds.Dataset | ds.Fragment, kind: str) -> None:
        files = files_of(source)
        self._kind = kind
        self._files = [(*file, self._now(*file)) for file in files]

    @property
    def size(self) -> int:
        """Bytes in all, where they are known."""
        return sum(found.size or 0 for *_, found in self._files if found is not None)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Read within this; a file written anew since it was opened, or meanwhile, is an error.

        Two passes over different data would make a coreset of neither.
        """
        self._require_same()
        try:
            yield
        except (pa.ArrowException, OSError):
            self._require_same()  # no wonder, then
            raise
        self._require_same()

    def _require_same(self) -> None:
        for filesystem, path, written in self._files:
            if self._now(filesystem, path) not in (written, None):
                raise RowsError(
                    f"{path} changed while it was in use; open the table again and start afresh."
                )

    def _now(self, filesystem: fs.FileSystem, path: str) -> Stamp | None:
        with reading(path, self._kind):
            return stamp(filesystem, path)
