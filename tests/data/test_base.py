"""The contract of every kind of rows: the same table, wherever it lives."""

from __future__ import annotations

import abc
import gzip
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from decoct.data import Rows, encoded, rows
from decoct.errors import RequestError, RowsError
from decoct.runtime.progress import ProgressBar

N = 53


def _table() -> pa.Table:
    rng = np.random.default_rng(0)
    words = np.array(["oak", "ash", "yew"])[rng.integers(0, 3, N)]
    seconds = rng.integers(0, 10**9, N).astype("datetime64[s]")
    return pa.table(
        {
            "real": pa.array(rng.normal(size=N)),
            "gap": pa.array([None if i == 40 else v for i, v in enumerate(rng.normal(size=N))]),
            "count": pa.array(np.arange(N) * 3),
            "count_gap": pa.array([None if i == 30 else i for i in range(N)]),
            "yes": pa.array(rng.integers(0, 2, N).astype(bool)),
            "yes_gap": pa.array([None if i == 50 else i % 3 == 0 for i in range(N)]),
            "word": pa.array([None if i == 20 else str(w) for i, w in enumerate(words)]),
            "group": pa.array(words).dictionary_encode(),
            "when": pa.array(seconds),
        }
    )


TABLE = _table()


def _expected() -> dict[str, np.ndarray]:
    columns = {name: TABLE[name].to_pylist() for name in TABLE.column_names}
    floats = ("real", "gap", "count_gap", "yes_gap")
    result = {name: np.array(columns[name], dtype=np.float64) for name in floats}
    result |= {name: np.array(columns[name], dtype=object) for name in ("word", "group")}
    result |= {name: np.array(columns[name]) for name in ("count", "yes")}
    result["when"] = np.array(columns["when"], dtype="datetime64[s]")
    return {name: result[name] for name in TABLE.column_names}


EXPECTED = _expected()


def assert_columns(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(actual) == list(expected)
    for name, values in expected.items():
        assert actual[name].dtype.kind == values.dtype.kind, name
        np.testing.assert_array_equal(actual[name], values, err_msg=name)


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("decoct-reader")]


@pytest.fixture(scope="class")
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    return request.cls().make(tmp_path_factory.mktemp("rows"))


class RowsContract(abc.ABC):
    """What every kind of rows keeps; a sub-class makes one from `TABLE`."""

    @abc.abstractmethod
    def make(self, folder: Path) -> Rows:
        """Write the table to the folder, if it is one of files, and open it."""

    def test_is_rows_of_that_length_and_those_columns(self, table):
        assert isinstance(table, Rows)
        assert table.n_rows == N
        assert table.columns == tuple(EXPECTED)

    @pytest.mark.parametrize("size", [1, 2, 7, 10, N - 1, N, N + 1, 10_000, None])
    def test_chunks_are_the_table(self, table, size):
        chunks = list(table.chunks(size))
        step = size or N
        assert [chunk.start for chunk in chunks] == list(range(0, N, step))
        assert [chunk.n_rows for chunk in chunks[:-1]] == [step] * (len(chunks) - 1)
        joined = {n: np.concatenate([c.columns[n] for c in chunks]) for n in EXPECTED}
        assert_columns(joined, EXPECTED)

    def test_a_column_has_one_type_in_every_chunk(self, table):
        kinds = [{n: v.dtype for n, v in c.columns.items()} for c in table.chunks(4)]
        assert all(kind == kinds[0] for kind in kinds)
        assert {n: v.dtype for n, v in table.take([3]).items()} == kinds[0]

    def test_only_the_columns_asked_for_in_that_order(self, table):
        names = ["word", "count"]
        assert_columns(next(table.chunks(N, names)).columns, {n: EXPECTED[n] for n in names})
        assert list(table.take([1], ["yes"])) == ["yes"]
        seen = table.map_reduce(lambda c: [tuple(c.columns)], list.__add__, size=20, columns=names)
        assert seen == [("word", "count")] * 3

    @pytest.mark.parametrize(
        "indices", [[5], [50, 3, 3, 0, N - 1, 20, 50], list(range(N)), list(range(N))[::-1], []]
    )
    def test_take_keeps_order_and_duplicates(self, table, indices):
        picked = np.array(indices, dtype=np.int64)
        assert_columns(table.take(indices), {n: v[picked] for n, v in EXPECTED.items()})

    @pytest.mark.parametrize("bad", [-1, N, 10**12])
    def test_take_out_of_range(self, table, bad):
        with pytest.raises(RowsError, match=f"no row {bad}: the rows are numbered 0 to {N - 1}"):
            table.take([0, bad])

    @pytest.mark.parametrize("bad", [[0.5], [True], [[1, 2]]])
    def test_take_wants_integers(self, table, bad):
        with pytest.raises(RowsError, match="one-dimensional array of integers"):
            table.take(np.array(bad))

    @pytest.mark.parametrize("size", [1, 9, N, None])
    def test_map_reduce_is_the_sum_whatever_the_chunks(self, table, size):
        done = []

        class Bar(ProgressBar):
            def advance(self, units, unit=None):
                done.append(units)

        with Bar(False) as bar:
            bar.begin("adding up", N)
            total = table.map_reduce(
                lambda chunk, power: np.sum(chunk.columns["count"] ** power),
                lambda one, two: one + two,
                2,
                size=size,
                columns=["count"],
            )
        assert total == np.sum(EXPECTED["count"] ** 2)
        assert sum(done) == N
        assert max(done) == min(size or N, N)

    def test_map_reduce_combines_in_row_order(self, table):
        starts = table.map_reduce(lambda chunk: [chunk.start], list.__add__, size=10)
        assert starts == [0, 10, 20, 30, 40, 50]

    def test_missing_column(self, table):
        message = "no column 'height'; its columns are: count, count_gap, gap"
        for ask in (
            lambda: table.chunks(5, ["real", "height"]),
            lambda: table.take([0], ["height"]),
            lambda: table.map_reduce(len, max, columns=["height"]),
        ):
            with pytest.raises(RowsError, match=message):
                ask()

    @pytest.mark.parametrize(
        ("size", "columns", "message"),
        [(0, None, "at least 1, not 0"), (5, [], "one column"), (5, "real", "list of names")],
    )
    def test_bad_requests(self, table, size, columns, message):
        with pytest.raises(RequestError, match=message):
            table.chunks(size, columns)

    def test_no_reader_is_left_behind(self, table):
        for chunk in table.chunks(2):
            assert chunk.n_rows == 2
            break
        assert not readers()
        chunks = table.chunks(2)
        next(chunks)
        chunks.close()
        assert not readers()

    def test_a_failing_function_is_heard_and_leaves_no_reader(self, table):
        def fail(chunk):
            if chunk.start >= 10:
                raise KeyboardInterrupt
            return 0

        with pytest.raises(KeyboardInterrupt):
            table.map_reduce(fail, max, size=5)
        assert not readers()

    def test_walks_can_overlap(self, table):
        pairs = zip(table.chunks(9), table.chunks(9), strict=True)
        assert all(one.start == two.start for one, two in pairs)
        assert not readers()


class TestMapping(RowsContract):
    def make(self, folder):
        return rows(EXPECTED)


class TestPandas(RowsContract):
    def make(self, folder):
        frame = TABLE.to_pandas(date_as_object=False)
        frame["count_gap"] = frame["count_gap"].astype("Int64")
        frame["yes_gap"] = frame["yes_gap"].astype("boolean")
        return rows(frame.set_index(np.arange(N) + 1000))


class TestPandasOfArrow(RowsContract):
    def make(self, folder):
        return rows(TABLE.to_pandas(types_mapper=pd.ArrowDtype))


class TestPolars(RowsContract):
    def make(self, folder):
        return rows(pl.from_arrow(TABLE))


class TestArrowTable(RowsContract):
    def make(self, folder):
        return rows(pa.concat_tables([TABLE.slice(0, 11), TABLE.slice(11)]))


class TestRecordBatch(RowsContract):
    def make(self, folder):
        return rows(TABLE.combine_chunks().to_batches()[0])


class TestParquetFile(RowsContract):
    def make(self, folder):
        pq.write_table(TABLE, folder / "t.parquet", row_group_size=7)
        return rows(folder / "t.parquet")


class TestParquetWithoutStatistics(RowsContract):
    def make(self, folder):
        pq.write_table(TABLE, folder / "t.pq", row_group_size=20, write_statistics=False)
        return rows(str(folder / "t.pq"))


class TestParquetFolder(RowsContract):
    def make(self, folder):
        for name, begin, end in (("b/1", 20, 21), ("a", 0, 20), ("b/2", 21, 21), ("c", 21, N)):
            path = folder / f"{name}.parquet"
            path.parent.mkdir(exist_ok=True)
            pq.write_table(TABLE.slice(begin, end - begin), path, row_group_size=8)
        (folder / "_SUCCESS").touch()
        (folder / "_old").mkdir()
        pq.write_table(TABLE, folder / "_old" / "z.parquet")
        return rows(folder)


class TestCsvFile(RowsContract):
    def make(self, folder):
        pc.write_csv(TABLE, folder / "t.csv")
        return rows(folder / "t.csv")


class TestGzippedCsvPattern(RowsContract):
    def make(self, folder):
        for number, begin, end in ((1, 0, 25), (2, 25, N)):
            pc.write_csv(TABLE.slice(begin, end - begin), folder / "plain")
            packed = gzip.compress((folder / "plain").read_bytes())
            (folder / f"t{number}.csv.gz").write_bytes(packed)
        return rows(str(folder / "t*.csv.gz"))


class TestParquetDataset(RowsContract):
    def make(self, folder):
        pq.write_table(TABLE, folder / "t.parquet", row_group_size=7)
        return rows(ds.dataset(folder, format="parquet"))


class TestFeatherDataset(RowsContract):
    def make(self, folder):
        pyarrow.feather.write_feather(TABLE, folder / "t.feather", chunksize=9)
        return rows(ds.dataset(folder, format="feather"))


class TestFilteredDataset(RowsContract):
    def make(self, folder):
        twice = pa.concat_tables([TABLE, TABLE]).append_column("half", pa.array([0] * N + [1] * N))
        pq.write_table(twice, folder / "t.parquet", row_group_size=40)
        kept = ds.dataset(folder, format="parquet").filter(ds.field("half") == 1)
        return _WithoutHalf(rows(kept))


class _WithoutHalf:
    """A filter needs its column in the data set; the contract's table has none such."""

    def __init__(self, inner: Rows) -> None:
        self._inner = inner
        self._names = tuple(name for name in inner.columns if name != "half")

    @property
    def n_rows(self):
        return self._inner.n_rows

    @property
    def columns(self):
        return self._names

    def chunks(self, size=None, columns=None):
        return self._inner.chunks(size, self._of(columns))

    def take(self, indices, columns=None):
        return self._inner.take(indices, self._of(columns))

    def map_reduce(self, fn, reduce, *broadcast, columns=None, **options):
        columns = self._of(columns)
        return self._inner.map_reduce(fn, reduce, *broadcast, columns=columns, **options)

    def _of(self, columns):
        return self._names if columns is None else columns


class Identity:
    """A model whose encoding changes nothing."""

    columns = None

    def encode(self, columns, start=0):
        return dict(columns)


class TestEncodedInMemory(RowsContract):
    def make(self, folder):
        return encoded(rows(EXPECTED), Identity())


class TestEncodedStream(RowsContract):
    def make(self, folder):
        pq.write_table(TABLE, folder / "t.parquet", row_group_size=7)
        return encoded(rows(folder / "t.parquet"), Identity())


def test_jax_arrays_and_lists():
    table = rows({"x": jnp.arange(6.0).reshape(3, 2), "y": [1, 0, 1], "z": ("a", "b", "c")})
    assert table.take([2])["x"].tolist() == [[4.0, 5.0]]
    assert table.take([1])["z"].tolist() == ["b"]
