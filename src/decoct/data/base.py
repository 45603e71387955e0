"""The interface of tables of rows, and what all engines share.

Its main method is `Rows.map_reduce`: a function of one chunk and small shared arguments, and an
associative reduction of small results. In-memory arrays, Parquet folders and clusters differ only
in where ``fn`` runs, so everything above this layer is written once.
"""

from __future__ import annotations

import hashlib
import operator
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from decoct.errors import RequestError, RowError, RowsError
from decoct.runtime.checks import checked_whole
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

    Examples
    --------
    >>> import numpy as np
    >>> from decoct.data import Chunk
    >>> chunk = Chunk(100, {"x": np.arange(5.0)})
    >>> chunk.n_rows, chunk.piece(1, 3).start, chunk.piece(1, 3).columns["x"]
    (5, 101, array([1., 2.]))
    """

    start: int
    columns: Columns

    @property
    def n_rows(self) -> int:
        """Number of rows in the chunk."""
        return columns_length(self.columns)

    def piece(self, begin: int, end: int) -> Chunk:
        """Return rows ``begin:end`` of this chunk, with their global numbers."""
        return Chunk(self.start + begin, {k: v[begin:end] for k, v in self.columns.items()})


Chunks = Generator[Chunk, None, None]
Names = Sequence[str] | None
"""Names of columns; None for all of them."""


@runtime_checkable
class Rows(Protocol):
    """A table of rows, in memory, in files or on a cluster.

    Row numbers are global, start at 0 and never depend on the chunking. The type of a column is
    the same in every chunk and in `take`: floats, integers, booleans, datetimes, strings (from a
    table or file: an object array of `str`). A missing value is NaN, NaT or None; one of them turns
    a whole integer or boolean column into float64.

    Examples
    --------
    >>> import decoct
    >>> isinstance(decoct.rows({"x": [1.0, 2.0]}), decoct.data.Rows)
    True
    """

    @property
    def n_rows(self) -> int:
        """N, the number of rows; at least 1."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        ...

    def chunks(self, size: int | None = None, columns: Names = None) -> Chunks:
        """Yield consecutive chunks in row order, every one but the last of exactly ``size`` rows.

        Only ``columns`` come back (None: all of them), in that order. Bad arguments raise at the
        call, not at the first chunk. Closing the generator frees its memory and files.
        """
        ...

    def take(self, indices: np.ndarray, columns: Names = None) -> Columns:
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
        columns: Names = None,
    ) -> T:
        """Return the reduction of ``fn(chunk, *broadcast)`` over all chunks.

        ``reduce`` must be associative; results are combined in row order. An error of ``fn`` about
        a row says in which file the row is. Engines whose chunks come to this process inherit this.
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


class RowsProxy(Rows):
    """The rows of another table; a derived class extends `map_reduce`."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    @property
    def n_rows(self) -> int:
        return self._rows.n_rows

    @property
    def columns(self) -> tuple[str, ...]:
        return self._rows.columns

    def chunks(self, *args: Any, **options: Any) -> Chunks:
        return self._rows.chunks(*args, **options)

    def take(self, *args: Any, **options: Any) -> Columns:
        return self._rows.take(*args, **options)


@contextmanager
def name_files(rows: object) -> Iterator[None]:
    """Within this, an error about a row says in which file of ``rows`` the row is.

    Errors stay as they are if the table is not in several files, or if it has no such row.
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


def check_size(size: int | None) -> int:
    """Return the number of rows a chunk shall have."""
    return DEFAULT_CHUNK if size is None else checked_whole("size", size, 1)


def check_columns(asked: Names, have: Sequence[str]) -> tuple[str, ...]:
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


def fingerprint(rows: Rows, columns: Names = None) -> str:
    """Return a digest of a table's values in these columns (None: all), which takes a pass.

    Sizes, times and ends of files may not change with the data. Equal values have equal digests in
    memory, streamed and on a cluster.
    """
    names = check_columns(columns, rows.columns)
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
    by exhaustion, an error, a Ctrl-C (or several), or the end of the interpreter. One that is still
    inside a native reader while the interpreter shuts down can crash the process.
    """
    pool, items = ThreadPoolExecutor(1, "decoct-reader"), iter(source())
    end: Any = object()
    interrupt: KeyboardInterrupt | None = None
    try:
        ahead = deque(pool.submit(next, items, end) for _ in range(depth))
        while (item := ahead.popleft().result()) is not end:
            ahead.append(pool.submit(next, items, end))
            yield item
    finally:
        while True:
            try:
                pool.shutdown(cancel_futures=True)
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if isinstance(items, Generator):
            items.close()
        if interrupt is not None:
            raise interrupt
