"""Rows on the workers of a Dask cluster, where the functions run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from dask.array import Array
from dask.delayed import delayed
from dask.utils import is_dataframe_like

from decoct.data.base import (
    Chunk,
    Chunks,
    Columns,
    Names,
    Rows,
    check_columns,
    check_size,
    checked_indices,
    name_files,
)
from decoct.data.dask_cluster import Cluster, Traffic
from decoct.data.dask_layout import Block
from decoct.data.dask_sources import ArraySource, FrameSource, Source, View
from decoct.data.dask_tasks import (
    call,
    cut_piece,
    evaluate,
    join,
    mark_done,
    merge,
    pack,
    unpack,
)
from decoct.data.dask_types import empty_columns
from decoct.errors import RowsError
from decoct.runtime.progress import count_rows_of
from decoct.stats.summation import Associative

T = TypeVar("T")

FAN_IN = 8
"""Partial results merged at a time."""


class DaskRows(Rows):
    """Rows of a Dask DataFrame, of Dask arrays, or of Parquet files that the workers read.

    `map_reduce` runs where the partitions are; only the function, the draws and the results
    are sent, and at every border of two partitions at most one chunk of rows. Results have the bits
    they have in one process, however the table is partitioned.

    Parameters
    ----------
    source
        The table in partitions.

    Attributes
    ----------
    traffic
        Bytes and rows sent and received so far.

    Raises
    ------
    RowsError
        A column of several kinds, an empty table, workers that die repeatedly, a scheduler that
        stops.

    Notes
    -----
    A collection that is not persisted is computed again on every pass, as Dask does: persist what
    fits into the workers' memory. Lengths and types of a DataFrame's partitions are found in one
    pass over it, those of Parquet files in their footers.

    Examples
    --------
    >>> import dask.array as da, decoct
    >>> from dask.distributed import Client
    >>> with Client(processes=False, dashboard_address=None) as client:
    ...     rows = decoct.rows({"x": da.ones((1000, 2), chunks=(250, 2))}, dask=client)
    >>> type(rows).__name__, rows.n_rows
    ('DaskRows', 1000)
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._cluster = source.cluster
        self._views: dict[tuple[str, ...], View] = {}

    @classmethod
    def of_collection(cls, collection: Any, cluster: Cluster) -> DaskRows:
        """Return the rows of a Dask DataFrame, a Dask matrix, or a mapping of Dask arrays."""
        if isinstance(collection, Array) and collection.ndim == 2:
            collection = {"x": collection}
        if isinstance(collection, Mapping):
            return cls(ArraySource(collection, cluster))
        if is_dataframe_like(collection):
            return cls(FrameSource(collection, cluster))
        raise RowsError(
            f"A Dask object of type {type(collection).__qualname__} is not a table; give a "
            "dask.dataframe, a matrix, or a dict of Dask arrays."
        )

    @property
    def traffic(self) -> Traffic:
        return self._cluster.traffic

    @property
    def n_rows(self) -> int:
        return self._source.n_rows

    @property
    def columns(self) -> tuple[str, ...]:
        return self._source.columns

    def chunks(self, size: int | None = None, columns: Names = None) -> Chunks:
        """Yield consecutive chunks of ``size`` rows, which come here partition by partition.

        Rows that are not yet needed stay with the workers: a few chunks are here at a time.
        """
        return self._stream(self._get_view(columns), check_size(size))

    def take(self, indices: np.ndarray | Sequence[int], columns: Names = None) -> Columns:
        """Return the rows with these global numbers, in the order asked for; only they are sent."""
        view = self._get_view(columns)
        rows, places = np.unique(checked_indices(indices, self.n_rows), return_inverse=True)
        wanted = list(view.layout.split_rows(rows))
        parts = self._cluster.gather([view.pick(p, local) for p, local in wanted])
        found = join(*parts) if parts else empty_columns(view.types)
        return {name: values[places] for name, values in found.items()}

    def map_reduce(
        self,
        fn: Callable[..., T],
        reduce: Callable[[T, T], T],
        *broadcast: object,
        size: int | None = None,
        columns: Names = None,
    ) -> T:
        """Return the reduction of ``fn(chunk, *broadcast)`` over all chunks.

        ``fn`` runs on the workers. Results are added up there, in a tree, if ``reduce`` is a
        `summation.Associative`; any other reduction runs here, from the first chunk to the
        last, so that its rounding is the same as in one process.

        Raises
        ------
        Exception
            What ``fn`` raised, for the first chunk in row order that it failed on.
        """
        step = check_size(size)
        view = self._get_view(columns)
        is_associative = isinstance(reduce, Associative)
        head = delayed(pack((fn, reduce if is_associative else None)))
        draws = delayed(pack(broadcast))
        blocks = list(view.layout.cut_blocks(step))
        parts = [
            call(evaluate, head, draws, is_associative, *_place(view, block), block.start, step)
            for block in blocks
        ]
        count = count_rows_of(self)

        def count_block(i: int) -> None:
            for begin in range(0, blocks[i].n_rows, step):
                count(min(step, blocks[i].n_rows - begin))

        with name_files(self):
            if is_associative:
                total = self._merge(parts, head, count_block)
            else:
                total = self._fold(parts, reduce, count_block)
        self.traffic.passes += 1
        self.traffic.rows_moved += sum(one.rows_moved for one in blocks)
        return total

    def find_file(self, row: int) -> tuple[str, int] | None:
        """Return the file of a row, and its number in that file, if there are several files."""
        return self._source.find_file(row)

    def close(self) -> None:
        """Close the connection to the cluster, if it was opened for these rows."""
        self._cluster.close()

    def __enter__(self) -> DaskRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _get_view(self, columns: Names) -> View:
        names = check_columns(columns, self.columns)
        if names not in self._views:
            self._views[names] = self._source.view(names)
        return self._views[names]

    def _merge(self, parts: list[Any], head: Any, count_block: Callable[[int], None]) -> Any:
        """Add up on the workers; only the total comes here, and which parts are done."""
        marks = [call(mark_done, part) for part in parts]
        while len(parts) > 1:
            groups = [parts[i : i + FAN_IN] for i in range(0, len(parts), FAN_IN)]
            parts = [call(merge, head, *group) if len(group) > 1 else group[0] for group in groups]
        packed = b""
        futures = self._cluster.start([*marks, call(pack, parts[0])])
        for i, result in self._cluster.collect(futures):
            if i < len(marks):
                count_block(i)
            else:
                packed = result
        return unpack(packed)

    def _fold(
        self, parts: list[Any], reduce: Callable[[T, T], T], count_block: Callable[[int], None]
    ) -> T:
        """Add up here, in row order, the results of single chunks."""
        waiting: dict[int, bytes] = {}
        total: list[T] = []
        upto = 0
        for i, packed in self._cluster.collect(self._cluster.start(parts)):
            count_block(i)
            waiting[i] = packed
            while upto in waiting:
                for result in unpack(waiting.pop(upto)):
                    total = [reduce(total[0], result)] if total else [result]
                upto += 1
        return total[0]

    def _stream(self, view: View, size: int) -> Chunks:
        blocks = view.layout.cut_blocks(size)
        loaded: dict[int, Any] = {}  # the partitions that blocks are being cut from, and no others
        ahead: deque[tuple[int, list[Any]]] = deque()
        try:
            while True:
                for block in islice(blocks, 3 - len(ahead)):
                    for partition in {one.partition for one in block.slices} - loaded.keys():
                        loaded[partition] = self._cluster.persist(view.partitions[partition])
                    ahead.append((block.start, self._cluster.start(_cut_pieces(loaded, block))))
                    for partition in [p for p in loaded if p < block.slices[-1].partition]:
                        del loaded[partition]
                if not ahead:
                    return
                start, futures = ahead.popleft()
                whole = Chunk(start, join(*self._cluster.wait(futures)))
                for begin in range(0, whole.n_rows, size):
                    yield whole.piece(begin, begin + size)
        finally:  # closed before the end, or an error
            for _, futures in ahead:
                self._cluster.drop(futures)


def _cut_pieces(partitions: Any, block: Block) -> list[Any]:
    return [call(cut_piece, partitions[one.partition], one.begin, one.end) for one in block.slices]


def _place(view: View, block: Block) -> tuple[Any, int, int]:
    """Return delayed columns that have the rows of a block, and its first and last there.

    A worker makes them where (most of) the rows are.
    """
    first = block.slices[0]
    if len(block.slices) == 1:
        return view.partitions[first.partition], first.begin, first.end
    pieces = _cut_pieces(view.partitions, block)
    return call(join, *pieces), 0, block.n_rows
