"""The interface of tables of rows, and what all engines share.

Its main method is `Rows.map_reduce`: a function of one chunk and small shared arguments, and an
associative reduction of small results. In-memory arrays, Parquet folders and clusters differ only
in where ``fn`` runs, so everything above this layer is written once.
"""

from __future__ import annotations

import abc
import atexit
import hashlib
import operator
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from decoct.errors import RequestError, RowError, RowsError
from decoct.runtime.progress import count_rows_of

T = TypeVar("T")

Columns = dict[str, np.ndarray]

DEFAULT_CHUNK = 65_536
"""Rows in a chunk when no size is given."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a table.

    The arrays may be views of the user's own data or of a read buffer: read them, never write.

    Attributes
    ----------
    start
        Global number of the first row.
    columns
        Name -> array, rows on axis 0; at least one column.
    """

    start: int
    columns: Columns

    @property
    def n_rows(self) -> int:
        return columns_length(self.columns)

    def piece(self, begin: int, end: int) -> Chunk:
        """Return rows ``begin:end`` of this chunk, with their global numbers."""
        return Chunk(self.start + begin, {k: v[begin:end] for k, v in self.columns.items()})


@runtime_checkable
class Rows(Protocol):
    """A table of rows, in memory, in files or on a cluster.

    Row numbers are global, start at 0 and never depend on the chunking. The type of a column is
    the same in every chunk and in `take`: floats, integers, booleans, datetimes, strings (from a
    table or file: an object array of `str`). A missing value is NaN, NaT or None; one of them turns
    a whole integer or boolean column into float64.
    """

    @property
    def n_rows(self) -> int:
        """N, the number of rows; at least 1."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        ...

    def chunks(
        self, size: int | None = None, columns: Sequence[str] | None = None
    ) -> Generator[Chunk, None, None]:
        """Yield consecutive chunks in row order, every one but the last of exactly ``size`` rows.

        Only ``columns`` come back (None: all of them), in that order. Bad arguments raise at the
        call, not at the first chunk. Closing the generator frees all it holds.
        """
        ...

    def take(self, indices: np.ndarray, columns: Sequence[str] | None = None) -> Columns:
        """Return the rows with these global numbers, in the order asked for.

        A number may occur several times; a negative one is out of range.
        """
        ...

    def map_reduce(
        self,
        fn: Callable[..., T],
        reduce: Callable[[T, T], T],
        *broadcast: object,
        size: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> T:
        """Return the reduction of ``fn(chunk, *broadcast)`` over all chunks.

        ``reduce`` must be associative; results are combined in row order.

        """
        ...


class SequentialRows(abc.ABC):
    """Base of the engines whose chunks come to this process: `map_reduce` takes them in order."""

    @property
    @abc.abstractmethod
    def n_rows(self) -> int:
        """N, the number of rows."""

    @abc.abstractmethod
    def chunks(
        self, size: int | None = None, columns: Sequence[str] | None = None
    ) -> Generator[Chunk, None, None]:
        """Yield consecutive chunks in row order; see `Rows.chunks`."""

    def map_reduce(
        self,
        fn: Callable[..., T],
        reduce: Callable[[T, T], T],
        *broadcast: object,
        size: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> T:
        """Return the reduction of ``fn(chunk, *broadcast)`` over all chunks, in row order.

        An error of ``fn`` about a row says in which file the row is.
        """
        # closing: a failing fn must end a reader thread now, not when its traceback is collected
        count = count_rows_of(self)
        with name_files(self), closing(self.chunks(size, columns)) as chunks:
            first = next(chunks)
            total = fn(first, *broadcast)
            count(first.n_rows)
            for chunk in chunks:
                total = reduce(total, fn(chunk, *broadcast))
                count(chunk.n_rows)
        return total


@contextmanager
def name_files(rows: object) -> Iterator[None]:
    """Within this, an error about a row says in which file the row is.

    Parameters
    ----------
    rows
        The table. Errors stay as they are if it is not in several files, or if it has no such row.
    """
    try:
        yield
    except RowError as error:
        find_file = getattr(rows, "find_file", None)
        found = find_file(error.row) if find_file is not None and error.file is None else None
        if found is not None:
            error.at(error.row, *found)
        raise


def columns_length(columns: Mapping[str, np.ndarray]) -> int:
    """Return the number of rows of a mapping of equally long arrays."""
    return len(next(iter(columns.values())))


def checked_size(size: int | None) -> int:
    """Return the number of rows a chunk shall have."""
    if size is None:
        return DEFAULT_CHUNK
    if operator.index(size) < 1:
        raise RequestError(f"A chunk needs at least one row, not {size}.")
    return operator.index(size)


def checked_columns(asked: Sequence[str] | None, have: Sequence[str]) -> tuple[str, ...]:
    """Return the columns asked for, or say which ones the table has."""
    if asked is None:
        return tuple(have)
    if isinstance(asked, str):
        raise RequestError(f"Columns are a list of names: write ['{asked}'], not '{asked}'.")
    if not asked:
        raise RequestError("Ask for at least one column.")
    for name in asked:
        if name not in have:
            raise RowsError(
                f"The table has no column '{name}'; its columns are: {', '.join(sorted(have))}."
            )
    return tuple(dict.fromkeys(asked))


def checked_indices(indices: np.ndarray | Sequence[int], n_rows: int) -> np.ndarray:
    """Return row numbers as int64, or name the first one that is out of range."""
    rows = np.asarray(indices)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise RowsError(
            "Row numbers are a one-dimensional array of integers, "
            f"not {rows.ndim}-dimensional of type {rows.dtype}."
        )
    bad = (rows < 0) | (rows >= n_rows)
    if bad.any():
        raise RowsError(
            f"There is no row {rows[np.argmax(bad)]}: the rows are numbered 0 to {n_rows - 1}."
        )
    return rows.astype(np.int64)


def fingerprint(
    rows: Rows,
    columns: Sequence[str] | None = None,
) -> str:
    """Return a digest that identifies a table.

    A resumed build compares it with the one in its checkpoint. Every value counts, which takes a
    pass: sizes, times and ends of files stay the same under changes that matter. Of the same values
    it is the same in memory, streamed and on a cluster.

    Parameters
    ----------
    rows
        The table.
    columns
        Only these columns count (None: all).
    """
    names = checked_columns(columns, rows.columns)
    digest = hashlib.sha256(repr((rows.n_rows, names)).encode())
    digest.update(rows.map_reduce(_chunk_digest, operator.add, columns=names))
    return digest.hexdigest()[:32]


def _chunk_digest(chunk: Chunk) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, values in chunk.columns.items():
        digest.update(repr((name, values.shape[1:], values.dtype.str)).encode())
        plain = values.dtype.kind != "O"
        digest.update(values.tobytes() if plain else repr(values.tolist()).encode())
    return digest.digest()


def read_ahead(source: Callable[[], Iterable[T]], depth: int) -> Generator[T, None, None]:
    """Iterate ``source()`` in a thread, at most ``depth`` items ahead of the consumer.

    What the thread raises is raised here. The thread ends with this generator, however that ends:
    by exhaustion, an error, a Ctrl-C (or several), or the end of the interpreter.
    """
    reader = _Reader(source, depth)
    try:
        reader.thread.start()
        while True:
            more, item = reader.ready.get()
            if more:
                reader.room.release()
                yield item
            elif item is None:
                return
            else:
                raise item
    finally:
        reader.end()


class _Reader(Generic[T]):
    """A thread that iterates ahead of the consumer of its queue."""

    def __init__(self, source: Callable[[], Iterable[T]], depth: int) -> None:
        self.ready: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        self.room = threading.Semaphore(depth)
        self.thread = threading.Thread(target=self._read, name="decoct-reader", daemon=True)
        self._source = source
        self._stop = threading.Event()
        _READERS.add(self)

    def _read(self) -> None:
        try:
            items = iter(self._source())
            while True:
                self.room.acquire()
                if self._stop.is_set():
                    # in this thread: it closes the files that the source has open
                    if isinstance(items, Generator):
                        items.close()
                    return
                self.ready.put((True, next(items)))
        except StopIteration:
            self.ready.put((False, None))
        except BaseException as error:
            self.ready.put((False, error))

    def end(self) -> None:
        """Stop the thread and wait for it, also after an interrupt.

        A thread that is still inside a native reader while the interpreter shuts down can crash the
        process.
        """
        self._stop.set()
        self.room.release()
        interrupt: KeyboardInterrupt | None = None
        while self.thread.is_alive():
            try:
                self.thread.join()
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt


_READERS: weakref.WeakSet[_Reader] = weakref.WeakSet()


@atexit.register
def _end_readers() -> None:
    """End the readers of passes that were begun and never finished or closed."""
    for reader in list(_READERS):
        reader.end()
