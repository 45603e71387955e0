"""The rows contract on a real cluster of worker processes, and what is particular to it."""

from __future__ import annotations

import operator
import os
import pickle
import signal
import time
import uuid
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

pytest.importorskip("distributed")

import dask
import dask.array as da
import dask.dataframe as dd
from dask.delayed import delayed
from distributed import Client

from decoct.data import Rows, rows
from decoct.data.dask_layout import PartitionLengths, coalesce
from decoct.data.dask_rows import DaskRows
from decoct.data.dask_tasks import guarded
from decoct.data.dask_types import ColumnType, cast, find_common_types
from decoct.errors import ModelError, RequestError, RowsError
from decoct.runtime.progress import ProgressBar
from decoct.stats.summation import Associative, Sum
from tests.dask_cluster import local_client
from tests.data.test_base import EXPECTED, TABLE, N, RowsContract, assert_columns

BORDERS = [0, 11, 11, 12, 31, N]
"""PartitionLengths of the contract's table: one empty, one of a single row."""


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[Client]:
    with local_client() as client:
        yield client


@pytest.fixture(scope="class")
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return request.cls().make(tmp_path_factory.mktemp("rows"))


def pieces(table: pa.Table) -> list[pd.DataFrame]:
    """Each partition as pandas makes it of its own rows: types differ where values are missing."""
    return [table.slice(a, b - a).to_pandas(date_as_object=False) for a, b in pairwise(BORDERS)]


def framed(parts: list[pd.DataFrame]) -> dd.DataFrame:
    return dd.from_delayed([delayed(one) for one in parts], meta=parts[0], verify_meta=False)


class TestFrame(RowsContract):
    def make(self, folder):
        parts = pieces(TABLE)
        assert parts[0]["count_gap"].dtype.kind == "i"  # no row is missing in this partition
        assert parts[3]["count_gap"].dtype.kind == "f"
        return rows(framed(parts))


class TestArrays(RowsContract):
    def make(self, folder):
        cut = tuple(np.diff(BORDERS).tolist())
        arrays = {k: da.from_array(v, chunks=(cut,)) for k, v in EXPECTED.items()}
        arrays["real"] = arrays["real"].rechunk((20, 20, 13))
        return rows(arrays)


class TestParquetFolder(RowsContract):
    def make(self, folder):
        for name, (a, b) in zip("abcde", pairwise(BORDERS), strict=True):
            pq.write_table(TABLE.slice(a, b - a), folder / f"{name}.parquet", row_group_size=7)
        return rows(folder, dask=Client.current())


def column(values: np.ndarray, *lengths: int) -> DaskRows:
    return rows({"v": da.from_array(values, chunks=(lengths,))})


def test_any_layout_gives_the_bits_of_one_process():
    """Chunks whose results do depend on their shape, added up in a left fold and in a tree."""
    values = np.random.default_rng(0).normal(size=1000) * 10.0 ** np.arange(1000).clip(0, 15)

    def plain(chunk, power):
        return float(np.sum(chunk.columns["v"] ** power))

    def exact(chunk, power):
        return Sum.of(plain(chunk, power))

    here = rows({"v": values})
    for lengths in ((400, 600), (0, 333, 1, 666), (100,) * 10):
        there = column(values, *lengths)
        for size in (7, 300):
            folds = [t.map_reduce(plain, lambda a, b: a + b, 3, size=size) for t in (here, there)]
            sums = [t.map_reduce(exact, Associative(), 3, size=size) for t in (here, there)]
            assert folds[0] == folds[1]
            assert sums[0].rounded() == sums[1].rounded()


def test_only_the_rows_of_chunks_across_borders_move():
    lengths = (90, 0, 5, 105, 100)
    for size in (10, 30, 64):
        blocks = list(PartitionLengths(lengths).cut_blocks(size))
        assert [block.start % size for block in blocks] == [0] * len(blocks)
        found = [
            (s.partition, row) for b in blocks for s in b.slices for row in range(s.begin, s.end)
        ]
        assert found == [(p, row) for p, n in enumerate(lengths) for row in range(n)]
        across = [block for block in blocks if len(block.slices) > 1]
        assert all(sum(s.n_rows for s in block.slices) <= size for block in across)
        table = column(np.ones(300), *lengths)
        table.map_reduce(lambda chunk: chunk.n_rows, max, size=size)
        assert table.traffic.rows_moved == sum(block.rows_moved for block in blocks)
        assert table.traffic.rows_moved <= len(across) * size // 2 + size


def test_take_brings_only_the_rows_asked_for(tmp_path):
    n = 100_000
    big = pa.table({"x": np.arange(n, dtype=np.float64), "y": np.arange(n)})
    for name, begin in (("a", 0), ("b", n // 2)):
        pq.write_table(big.slice(begin, n // 2), tmp_path / f"{name}.parquet", row_group_size=9000)
    table = rows(tmp_path, dask=Client.current())
    before = table.traffic.received
    assert table.take([n - 1, 5, n // 2], ["y"])["y"].tolist() == [n - 1, 5, n // 2]
    assert table.traffic.received - before == 3 * 8


def test_chunks_stream_with_few_rows_at_a_time():
    table = column(np.arange(3e6), *(500_000,) * 6)
    before = table.traffic.received
    chunks = table.chunks(10_000)
    next(chunks)
    assert table.traffic.received - before <= 8 * 2**18
    chunks.close()


def test_row_groups_keep_their_order_on_the_way_to_a_worker(tmp_path, client, monkeypatch):
    """A fragment of a file that is pickled forgets the order of its row groups."""
    monkeypatch.setattr("decoct.data.dask_sources.FEWEST_ROWS", 100)  # ten groups a partition
    n = 4000
    for name, begin in (("a", 0), ("b", n // 2)):
        part = pa.table({"x": np.arange(begin, begin + n // 2)})
        pq.write_table(part, tmp_path / f"{name}.parquet", row_group_size=50)
    table = rows(tmp_path, dask=client)
    for size in (70, n):
        found = np.concatenate([chunk.columns["x"] for chunk in table.chunks(size)])
        np.testing.assert_array_equal(found, np.arange(n))
    seen = table.map_reduce(lambda c: [(c.start, c.columns["x"][0])], lambda a, b: a + b, size=70)
    assert seen == [(row, row) for row in range(0, n, 70)]
    wanted = np.array([1650, 1700, 3999, 20, 2001])
    np.testing.assert_array_equal(table.take(wanted)["x"], wanted)


def bytes_read(client: Client) -> int:
    """Return what the workers have read from files so far, in bytes."""

    def counted() -> int:
        with open("/proc/self/io") as file:
            return int(next(line for line in file if line.startswith("rchar")).split()[1])

    return sum(client.run(counted).values())


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="bytes read are counted on Linux")
def test_take_reads_the_row_groups_asked_for(tmp_path, client):
    """62 row groups of 24 MB in all, in eight partitions."""
    n, group = 1_000_000, 16_384
    values = np.random.default_rng(0).normal(size=(3, n))
    big = pa.table(dict(zip("xyz", values, strict=True)))
    plain = {"use_dictionary": False, "compression": "none", "row_group_size": group}
    pq.write_table(big, tmp_path / "t.parquet", **plain)
    table = rows(tmp_path, dask=client)
    names, wanted = ["x", "z"], [n - 1, 5, n // 2, 5]
    table.take([0], names)  # whatever is read once
    marks = [bytes_read(client)]
    taken = table.take(wanted, names)
    marks.append(bytes_read(client))
    table.map_reduce(lambda chunk: chunk.n_rows, lambda a, b: a + b, columns=names)
    marks.append(bytes_read(client))
    assert_columns(taken, {name: values["xyz".index(name)][wanted] for name in names})
    by_take, by_pass = np.diff(marks)
    assert by_pass > 2 * n * 8
    assert 3 * 2 * group * 8 <= by_take < 6 * 2 * group * 8 < 0.1 * by_pass


@pytest.mark.parametrize("taken", [1, 60])
def test_what_others_send_is_not_counted(client, taken):
    """After chunks that were read to the end, or given up, nothing of theirs is under way."""
    table = column(np.arange(6e5), *(100_000,) * 6)
    chunks = table.chunks(10_000)
    for _ in range(taken):
        next(chunks)
    if taken == 60:
        assert next(chunks, None) is None
    chunks.close()
    cluster = table._cluster
    assert cluster._running == 0
    before = table.traffic.sent
    assert before > 0
    client.submit(len, bytes(3_000_000)).result()  # somebody else's, by the same connection
    array = da.from_array(np.ones(3), chunks=3)
    DaskRows.of_collection({"v": array}, cluster).take([0])
    assert table.traffic.sent - before < 100_000


def test_wide_and_thin_matrices_and_unknown_lengths():
    x = np.arange(60.0).reshape(20, 3)
    known = da.from_array(x, chunks=(6, 2))
    assert rows(known).take([19])["x"].tolist() == [[57.0, 58.0, 59.0]]
    unknown = known[known[:, 0] >= 15.0]
    table = rows({"x": unknown, "y": unknown[:, 0].astype(int)})
    assert table.n_rows == 15
    np.testing.assert_array_equal(next(table.chunks()).columns["x"], x[5:])
    assert table.take([0])["y"].dtype == np.int64


def test_partitions_that_change_type_have_one_type():
    """As in memory: integers and floats are floats, whole partitions without values follow."""
    parts = [
        pd.DataFrame({"a": [1, 2], "b": [True, False], "c": ["x", "y"], "d": [1, 2]}),
        pd.DataFrame({"a": [0.5], "b": [None], "c": [None], "d": [3]}),
        pd.DataFrame({"a": [None], "b": [True], "c": ["z"], "d": [4]}),
    ]
    whole = pd.concat(parts, ignore_index=True).astype({"b": "boolean", "a": float})
    table, here = rows(framed(parts)), rows(whole)
    for size in (1, 2, 4):
        for one, two in zip(table.chunks(size), here.chunks(size), strict=True):
            assert_columns(one.columns, two.columns)
    kinds = "".join(values.dtype.kind for values in table.take([]).values())
    assert kinds == "ffOi"


def test_partitions_of_different_kinds_are_refused():
    parts = [pd.DataFrame({"a": [1], "b": [2]}), pd.DataFrame({"a": ["x"], "b": [3]})]
    table = rows(framed(parts))
    with pytest.raises(RowsError, match="'a' is numbers in partition 0 but text in partition 1"):
        table.take([0])
    assert table.n_rows == 2
    assert table.take([1, 0], ["b"])["b"].tolist() == [3, 2]


def test_lengths_and_types_of_a_frame_take_one_pass(tmp_path):
    """Whatever is asked first, and also where a column that nobody asks for is of no use."""

    def seen(frame):
        (tmp_path / uuid.uuid4().hex).touch()
        return frame

    def computed():
        return len(os.listdir(tmp_path))

    parts = [pd.DataFrame({"a": [i], "b": [2.0], "odd": [{"k": [1]}]}) for i in range(3)]
    with dask.config.set({"dataframe.convert-string": False}):  # dictionaries would be text
        table = rows(framed(parts).map_partitions(seen, meta=parts[0]))
        assert table.n_rows == 3
        assert table.columns == ("a", "b", "odd")
        table._get_view(("a",))
        table._get_view(("b", "a"))
        assert computed() == 3
        with pytest.raises(RowsError, match="Column 'odd' has type struct"):
            table._get_view(table.columns)
        assert computed() == 3
        assert table.take([2], ["a", "b"])["a"].tolist() == [2]


def test_an_array_that_lies_about_its_type_is_refused():
    lying = da.from_array(np.arange(4), chunks=2).map_blocks(lambda b: b + 0.5, dtype=np.int64)
    with pytest.raises(RowsError, match="int64 by its Dask array but float64"):
        rows({"v": lying}).take([0])


def test_few_columns_of_a_file_that_dask_joins(tmp_path):
    """Dask reads several files as one partition where few of their columns are wanted."""
    wide = pa.table({f"c{i}": np.arange(40.0) + i for i in range(12)})
    for i in range(8):
        pq.write_table(wide.slice(5 * i, 5), tmp_path / f"{i}.parquet")
    table = rows(dd.read_parquet(tmp_path))
    assert table.n_rows == 40
    seen = table.map_reduce(
        lambda c: c.columns["c3"].tolist(), list.__add__, size=7, columns=["c3"]
    )
    assert seen == (np.arange(40.0) + 3).tolist()


@pytest.mark.parametrize("shown", ["/", "file://"])
def test_files_by_url_and_a_file_that_changes(tmp_path, shown):
    pq.write_table(pa.table({"y": [1, 2, 3]}), tmp_path / "t.parquet")
    url = f"file://{tmp_path}" if shown == "file://" else str(tmp_path)
    table = rows(url, dask=Client.current())
    total = {"fn": lambda c: int(c.columns["y"].sum()), "reduce": lambda a, b: a + b}
    assert table.map_reduce(**total) == 6
    pq.write_table(pa.table({"y": [1, 2, 300_000]}), tmp_path / "t.parquet", compression="none")
    with pytest.raises(RowsError, match="changed while it was in use"):
        table.map_reduce(**total)


def test_a_file_cut_short_is_a_sentence(tmp_path):
    pq.write_table(pa.table({"y": np.arange(5000)}), tmp_path / "t.parquet")
    table = rows(tmp_path / "t.parquet", dask=Client.current())
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RowsError, match=r"t\.parquet changed while it was in use"):
        table.take([3])


def test_the_first_error_in_row_order_is_raised_as_it_is():
    table = column(np.arange(400.0), 150, 250)

    def fail(chunk):
        if chunk.start in (100, 200, 390):
            raise ModelError(f"Row {chunk.start} is bad.")
        return Sum.of(0.0)

    for reduce in (Associative(), lambda a, b: a + b):
        with pytest.raises(ModelError, match=r"^Row 100 is bad\.$") as caught:
            table.map_reduce(fail, reduce, size=10)
        assert caught.value.__cause__ is None
        assert not getattr(caught.value, "__notes__", None)


def test_a_bug_in_a_function_tells_where_it_is():
    def buggy(chunk):
        return chunk.columns["w"]

    with pytest.raises(KeyError) as caught:
        column(np.ones(4), 4).map_reduce(buggy, max)
    assert 'return chunk.columns["w"]' in "".join(caught.value.__notes__)


def test_an_error_that_cannot_travel_still_arrives():
    class StubbornError(Exception):
        def __reduce__(self):
            raise TypeError("no")

    def fail(chunk):
        raise StubbornError("so there")

    with pytest.raises(RuntimeError, match="StubbornError: so there"):
        column(np.ones(4), 4).map_reduce(fail, max)


def test_a_table_that_cannot_be_computed_is_a_sentence():
    def broken(block):
        raise OSError("disk on fire")

    array = da.from_array(np.ones(6), chunks=2).map_blocks(broken, dtype=float, meta=np.ones(0))
    with pytest.raises(RowsError, match=r"could not be computed .* \(OSError: disk on fire\)"):
        rows({"v": array}).take([0])


def test_an_interrupt_cancels_what_is_in_flight(client):
    def slow(chunk):
        time.sleep(0.01)
        return Sum.of(1.0)

    class Stop(ProgressBar):
        def advance(self, units, unit=None):
            raise KeyboardInterrupt

    table = column(np.ones(2000), 1000, 1000)
    with Stop(False) as bar:
        bar.begin("adding up", 2000)
        with pytest.raises(KeyboardInterrupt):
            table.map_reduce(slow, Associative(), size=1)
    until = time.monotonic() + 60
    while left := client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)):
        assert time.monotonic() < until, f"{left} tasks are left on the cluster"
        time.sleep(0.05)


def test_a_worker_killed_in_the_middle_of_a_pass(client):
    """SIGKILL, while every worker has chunks to do and results that others wait for."""
    values, done = np.random.default_rng(0).normal(size=6400), []

    def slow(chunk):
        time.sleep(0.005)
        return Sum.of(np.sum(chunk.columns["v"]))

    class Kill(ProgressBar):
        def advance(self, units, unit=None):
            done.append(units)
            if len(done) == 100:
                os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)

    want = rows({"v": values}).map_reduce(slow, Associative(), size=20).rounded()
    table = column(values, 2000, 1200, 3200)
    with Kill(False) as bar:
        bar.begin("adding up", 6400)
        assert table.map_reduce(slow, Associative(), size=20).rounded() == want
    assert sum(done) == 6400
    client.wait_for_workers(2, timeout=180)


def test_workers_that_die_again_and_again_are_a_sentence(client):
    def deadly(chunk):
        os.kill(os.getpid(), signal.SIGKILL)

    def allow(failures, dask_scheduler):
        dask_scheduler.allowed_failures = failures

    client.run_on_scheduler(allow, 0)
    try:
        with pytest.raises(RowsError, match="Workers died repeatedly"):
            column(np.ones(4), 4).map_reduce(deadly, Associative())
    finally:
        client.run_on_scheduler(allow, 3)
        client.wait_for_workers(2, timeout=180)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"x": da.ones(3), "y": np.ones(3)}, "'y' is of type ndarray among Dask arrays"),
        ({"x": da.ones(3), "y": da.ones(4)}, "differ in length"),
        ({"x": da.ones(0)}, "table is empty"),
        ({3: da.ones(3)}, "Column names are strings"),
        (da.ones(3), "is not a table"),
        (delayed(3), "is not a table"),
    ],
)
def test_what_is_no_table_is_refused(source, message):
    with pytest.raises(RowsError, match=message):
        _ = rows(source).n_rows


def test_files_that_the_workers_cannot_read_are_refused(tmp_path, client):
    pc.write_csv(TABLE, tmp_path / "t.csv")
    with pytest.raises(RowsError, match=r"only Parquet.*dask\.dataframe\.read_csv"):
        rows(tmp_path / "t.csv", dask=client)
    pq.write_table(TABLE, tmp_path / "t.parquet")
    dataset = ds.dataset(tmp_path / "t.parquet")
    assert rows(dataset, dask=client).n_rows == N
    with pytest.raises(RowsError, match="only Parquet, unfiltered"):
        rows(dataset.filter(ds.field("count") > 3), dask=client)
    with pytest.raises(RequestError, match="leave dask= out"):
        rows({"x": np.ones(3)}, dask=client)


def test_a_cluster_that_is_not_there(monkeypatch):
    monkeypatch.setattr("decoct.data.dask_cluster.PATIENCE", 0.5)
    with pytest.raises(RequestError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        rows({"x": da.ones(3)}, dask="tcp://127.0.0.1:9")
    with pytest.raises(RequestError, match="No Dask scheduler answers at nonsense"):
        rows({"x": da.ones(3)}, dask="nonsense")


def test_an_address_opens_a_connection_and_close_closes_it(client):
    with rows({"x": da.ones(3)}, dask=client.scheduler.address) as table:
        own = table._cluster.client
        assert own is not client
        assert table.n_rows == 3
    assert own.status == "closed"
    with rows({"x": da.ones(3)}) as table:
        assert table.n_rows == 3
    assert client.status == "running"


def test_small_row_groups_are_read_together():
    assert coalesce([3, 0, 4, 9, 1, 0], 7) == [[0, 2], [3], [4]]
    assert coalesce([0, 0], 7) == []


def test_common_types():
    def of(*values):
        return {"v": ColumnType.of(np.asarray(values))}

    assert find_common_types([of(1), {}, of(2)])["v"].dtype == np.int64
    assert find_common_types([of(np.nan), of(True)])["v"].dtype == np.float64
    assert find_common_types([of(np.nan), of(np.nan)])["v"].dtype == np.float64
    dates = find_common_types([of(np.nan), of(np.datetime64(0, "s")), of(np.datetime64(0, "ms"))])[
        "v"
    ]
    assert dates.dtype == "datetime64[ms]"
    assert np.isnat(dates.cast(np.array([np.nan, np.nan]))).all()
    with pytest.raises(RowsError, match=r"numbers of shape \(2,\) in partition 1"):
        find_common_types([of(1.0), of([1.0, 2.0])])


def test_failures_are_values():
    failed = guarded(operator.truediv, 1, 0)
    assert isinstance(pickle.loads(pickle.dumps(failed)).error(), ZeroDivisionError)
    assert guarded(operator.truediv, failed, 1) is failed


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("late", [False, True])
def test_a_file_of_missing_values_alone_is_of_no_type(tmp_path, client, statistics, late):
    """pandas writes a column of None as Arrow's null; other files say what it would have been."""
    nothing = {"k": [None] * 3, "b": [None] * 3, "z": [0.0, 1.0, 2.0]}
    known = {"k": [1, 2, 3], "b": [True, False, True], "z": [3.0, 4.0, 5.0]}
    typed = pa.schema({"k": pa.int64(), "b": pa.bool_(), "z": pa.float64()})
    for folder, schema in (("typed", typed), ("untyped", None)):
        (tmp_path / folder).mkdir()
        for i, columns in enumerate([known, nothing] if late else [nothing, known]):
            path = tmp_path / folder / f"{i}.parquet"
            pq.write_table(pa.table(columns, schema), path, write_statistics=statistics)
    wanted = rows(tmp_path / "typed").take(np.arange(6))
    assert wanted["k"].dtype == np.float64
    for how in ({}, {"dask": client}):
        table = rows(tmp_path / "untyped", **how)
        for size in (2, 3, 6):
            whole = [chunk.columns for chunk in table.chunks(size)]
            for name, values in wanted.items():
                assert {chunk[name].dtype for chunk in whole} == {values.dtype}
                found = np.concatenate([chunk[name] for chunk in whole])
                np.testing.assert_array_equal(found, values)
        for picked in ([0], [5], [], [4, 1]):
            for name, values in table.take(np.array(picked, dtype=int)).items():
                assert values.dtype == wanted[name].dtype
                np.testing.assert_array_equal(values, wanted[name][picked])


def test_missing_values_that_were_not_there_are_no_numbers():
    whole = ColumnType(np.dtype(np.int64))
    with pytest.raises(RowsError, match=r"Column 'k' .int64. has missing values that were not"):
        cast({"k": np.array([1.0, np.nan])}, {"k": whole})


def test_a_client_that_a_busy_machine_could_not_start_is_started_again(client, monkeypatch):
    asked = []

    class Slow(Client):
        def __new__(cls, *args, **options):
            asked.append(args)
            if len(asked) < 3:
                raise AssertionError  # distributed's thread did not begin within its ten seconds
            return Client(*args, **options)

    monkeypatch.setattr("decoct.data.dask_cluster.Client", Slow)
    with rows({"x": da.ones(3)}, dask=client.scheduler.address) as table:
        assert table.n_rows == 3
    assert len(asked) == 3
