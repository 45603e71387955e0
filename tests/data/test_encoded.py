"""Rows seen through a model's encode."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from decoct.data import encoded, rows
from decoct.data.base import Rows
from decoct.data.encoded import EncodedRows
from decoct.errors import ModelError, RowsError

N = 30
RAW = {"x": np.arange(N) / 10, "word": np.array(["no", "yes"] * (N // 2)), "spare": np.zeros(N)}


class Doubler:
    """Needs two of three columns, doubles one, and notes what it was asked."""

    columns = ("x", "word")

    def __init__(self):
        self.calls = []

    def encode(self, columns, start=0):
        assert set(columns) == set(self.columns)
        self.calls.append(start)
        numbers = np.arange(len(columns["x"])) + start if np.ndim(start) == 0 else start
        yes = np.array([word == "yes" for word in columns["word"]], dtype=float)
        return {"two_x": 2 * columns["x"], "yes": yes, "number": numbers}


@pytest.fixture(params=["memory", "parquet"])
def raw(request, tmp_path):
    if request.param == "memory":
        return rows(RAW)
    pq.write_table(pa.table(RAW), tmp_path / "t.parquet", row_group_size=8)
    return rows(tmp_path)


def test_chunks_take_and_reduce_see_encoded_rows(raw):
    table = encoded(raw, Doubler())
    assert table.columns == ("two_x", "yes", "number")
    for chunk in table.chunks(7):
        np.testing.assert_array_equal(
            chunk.columns["number"], chunk.start + np.arange(chunk.n_rows)
        )
    wanted = [7, 29, 7]
    taken = table.take(wanted)
    np.testing.assert_array_equal(taken["number"], wanted)
    np.testing.assert_array_equal(taken["two_x"], np.array(wanted) / 5)
    total = table.map_reduce(lambda c: c.columns["yes"].sum(), lambda a, b: a + b, size=4)
    assert total == N / 2


def test_raw_rows_can_be_had(raw):
    table = encoded(raw, Doubler())
    assert table.raw is raw
    taken = table.take_raw([3, 0])
    assert list(taken) == ["x", "word"]
    assert taken["word"].tolist() == ["yes", "no"]


def test_memory_is_encoded_once():
    model = Doubler()
    table = encoded(rows(RAW), model)
    list(table.chunks(5))
    table.take([4])
    assert model.calls == [0]


def test_a_stream_is_encoded_as_it_passes(tmp_path):
    pq.write_table(pa.table(RAW), tmp_path / "t.parquet")
    model = Doubler()
    table = encoded(rows(tmp_path), model)
    assert model.calls == []
    list(table.chunks(10))
    assert model.calls == [0, 10, 20]


def test_encoding_again_starts_from_the_raw_rows(raw):
    again = encoded(encoded(raw, Doubler()), Doubler())
    assert again.raw is raw


def test_a_model_without_columns_gets_all():
    class Everything(Doubler):
        columns = None

        def encode(self, columns, start=0):
            return {name: columns[name] for name in ("spare", "x")}

    table = encoded(rows(RAW), Everything())
    assert table.columns == ("spare", "x")
    assert list(table.take_raw([0])) == list(RAW)


def test_columns_the_model_needs_are_asked_for_at_once(raw):
    class Other(Doubler):
        columns = ("x", "height")

    with pytest.raises(RowsError, match="no column 'height'"):
        encoded(raw, Other())


def test_what_the_model_refuses_is_passed_on(raw):
    class Refusing(Doubler):
        def encode(self, columns, start=0):
            raise RowsError("Column 'x' has NaN in row 3; drop or impute such rows.")

    with pytest.raises(RowsError, match="in row 3"):
        list(encoded(raw, Refusing()).chunks())


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({}, "Bad.encode returned no columns"),
        (None, "Bad.encode returned no columns"),
        ({"x": np.zeros(3)}, r"column 'x' of shape \(3,\) for 30 rows"),
        ({"x": 1.0}, r"column 'x' of shape \(\) for 30 rows"),
    ],
)
def test_bad_encodings(raw, result, message):
    class Bad(Doubler):
        def encode(self, columns, start=0):
            return result

    with pytest.raises(ModelError, match=message):
        list(encoded(raw, Bad()).chunks(N))


def _count(chunk):
    return chunk.n_rows


def test_the_function_an_engine_gets_can_be_sent_to_workers():
    sent = []

    class Far(Rows):
        n_rows = N
        columns = tuple(RAW)

        def chunks(self, size=None, columns=None):
            pytest.fail("the rows are far away: only results may come back")

        def take(self, indices, columns=None):
            pytest.fail("no row was asked for")

        def map_reduce(self, fn, reduce, *broadcast, **options):
            sent.append(options["columns"])
            worker = pickle.loads(pickle.dumps(fn))
            return worker(next(rows(RAW).chunks(columns=options["columns"])), *broadcast)

    assert EncodedRows(Far(), Doubler()).map_reduce(_count, max) == N
    assert sent == [("x", "word")]
