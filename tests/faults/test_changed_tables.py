"""Files that change while they are in use, or between a build and its resumption."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import decoct
from decoct.constructions import Uniform
from decoct.data.base import fingerprint
from decoct.errors import RequestError, RowsError

MODEL = decoct.models.GaussianMean(np.eye(2))


def write(path, x):
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 2)
    pq.write_table(pa.table({"x": vectors}), path, row_group_size=500)
    return path


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(4000, 2))


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """Start a build that is interrupted in its only round; return the checkpoint it leaves."""

    def interrupt(*_):
        raise KeyboardInterrupt

    def start(table, model=MODEL):
        monkeypatch.setattr(Uniform, "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            decoct.build(model, table, size=5, method=Uniform(), checkpoint=tmp_path / "saved")
        monkeypatch.undo()
        return tmp_path / "saved"

    return start


def test_a_changed_table_is_not_gone_on_with(tmp_path, x, interrupted):
    saved = interrupted(write(tmp_path / "t.parquet", x))
    x[7, 0] += 5.0
    write(tmp_path / "t.parquet", x)
    with pytest.raises(RequestError, match="of another build: its table is"):
        decoct.resume(saved, MODEL, tmp_path / "t.parquet", method=Uniform())
    x[7, 0] -= 5.0
    write(tmp_path / "t.parquet", x)  # at another time, but the same
    assert decoct.resume(saved, MODEL, tmp_path / "t.parquet", method=Uniform()).size <= 5


def opened(path, values):
    """Write a table whose middle lies far from both ends of the file, and open it."""
    table = pa.table({"a": values[:, 0], "b": values[:, 1]})
    if path.suffix == ".csv":
        pc.write_csv(table, path)
    else:
        pq.write_table(table, path, row_group_size=5000)
    if path.suffix == ".filtered":
        return decoct.rows(ds.dataset(path, format="parquet").filter(ds.field("a") > -9.0))
    return decoct.rows(path)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "filtered"])
def test_one_changed_row_in_the_middle_of_a_file(tmp_path, suffix, interrupted):
    values = np.random.default_rng(1).normal(size=(40_000, 2))
    path = tmp_path / f"t.{suffix}"
    table = opened(path, values)
    model = decoct.models.from_formula("b ~ a", table, "gaussian")
    saved = interrupted(table, model)
    changed = values.copy()
    changed[20_001, 0] += 1e-9
    with pytest.raises(RequestError, match="of another build: its table is"):
        decoct.resume(saved, model, opened(path, changed), method=Uniform())
    assert decoct.resume(saved, model, opened(path, values), method=Uniform()).size <= 5


def test_a_changed_table_in_memory_is_not_gone_on_with(x, interrupted):
    saved = interrupted({"x": x})
    with pytest.raises(RequestError, match="of another build: its table is"):
        decoct.resume(saved, MODEL, {"x": x + 1.0}, method=Uniform())
    assert decoct.resume(saved, MODEL, {"x": x.copy()}, method=Uniform()).size <= 5


def test_one_changed_row_in_the_middle_of_a_table_in_memory(x, interrupted):
    saved = interrupted({"x": x})
    changed = x.copy()
    changed[2001, 1] = np.nextafter(x[2001, 1], 9.0)
    with pytest.raises(RequestError, match="of another build: its table is"):
        decoct.resume(saved, MODEL, {"x": changed}, method=Uniform())
    for same in (np.asfortranarray(x), np.repeat(x, 2, axis=0)[::2]):
        assert fingerprint(decoct.rows({"x": same})) == fingerprint(decoct.rows({"x": x}))


def test_every_string_counts():
    words = np.array(["a", "b"] * 50_000, dtype=object)
    changed = words.copy()
    changed[70_001] = "c"
    one, other = ({"w": column} for column in (words, changed))
    assert fingerprint(decoct.rows(one)) != fingerprint(decoct.rows(other))


def test_one_changed_row_on_a_cluster(x):
    pytest.importorskip("distributed")
    import dask.array as da

    from tests.dask_cluster import local_client

    changed = x.copy()
    changed[2001, 1] += 1e-9
    with local_client(1, processes=False):
        one, cut, other = (
            fingerprint(decoct.rows({"x": da.from_array(values, chunks=(rows, 2))}))
            for values, rows in ((x, 700), (x, 1900), (changed, 700))
        )
    assert one == cut == fingerprint(decoct.rows({"x": x}))
    assert one != other


def put(path, values):
    table = pa.table({"y": values})
    pc.write_csv(table, path) if path.suffix == ".csv" else pq.write_table(table, path)
    return path


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("n", [8, 10])
def test_a_file_written_anew(tmp_path, suffix, n):
    path = put(tmp_path / f"t.{suffix}", np.arange(10))
    table = decoct.rows(path)
    assert table.n_rows == 10
    put(path, np.arange(n)[::-1])
    for read in (lambda: list(table.chunks()), lambda: table.take([0])):
        with pytest.raises(RowsError, match=rf"t\.{suffix} changed while it was in use; open"):
            read()
    path.unlink()
    with pytest.raises(RowsError, match=rf"t\.{suffix} was removed after the table was opened"):
        list(table.chunks())
    put(path, np.arange(n))
    assert decoct.rows(path).n_rows == n


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_file_of_a_filtered_data_set_written_anew(tmp_path, suffix):
    path = put(tmp_path / f"t.{suffix}", np.arange(10))
    plain = ds.dataset(str(path), format=suffix)
    tables = [decoct.rows(one) for one in (plain, plain.filter(ds.field("y") > 4))]
    before = [[chunk.columns["y"].tolist() for chunk in table.chunks()] for table in tables]
    assert before == [[list(range(10))], [list(range(5, 10))]]
    put(path, np.arange(10)[::-1])
    for table in tables:
        for read in (lambda t: list(t.chunks()), lambda t: t.take([0])):
            with pytest.raises(RowsError, match=rf"t\.{suffix} changed while it was in use; open"):
                read(table)


def test_a_filtered_data_set_in_no_file_has_nothing_to_watch():
    table, sink = pa.table({"y": np.arange(10)}), pa.BufferOutputStream()
    pq.write_table(table, sink)
    form = ds.ParquetFileFormat()
    whole = ds.FileSystemDataset([form.make_fragment(sink.getvalue())], table.schema, form)
    some = decoct.rows(whole.filter(ds.field("y") > 4))
    assert [chunk.columns["y"].tolist() for chunk in some.chunks()] == [list(range(5, 10))]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_file_written_to_while_it_is_read(tmp_path, suffix):
    path = put(tmp_path / f"t.{suffix}", np.arange(200_000))
    table = decoct.rows(path)
    assert table.n_rows == 200_000

    def write_to_it(chunk):
        if chunk.start == 5000:
            with open(path, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"?")
        return 0

    with pytest.raises(RowsError, match="changed while it was in use"):
        table.map_reduce(write_to_it, max, size=1000)


def test_fingerprints(tmp_path):
    frame = pd.DataFrame({"a": np.arange(5.0), "b": list("vwxyz")})
    frame.to_parquet(tmp_path / "1.parquet")
    frame.to_parquet(tmp_path / "2.parquet")
    one, two = (decoct.rows(tmp_path / f"{i}.parquet") for i in (1, 2))
    assert fingerprint(one) == fingerprint(two) != fingerprint(one, ["a"])
    assert fingerprint(decoct.rows(tmp_path)) != fingerprint(one)
    memory = decoct.rows(frame)
    assert fingerprint(memory) == fingerprint(one)
    assert fingerprint(memory) == fingerprint(decoct.rows(frame.copy()))
    assert fingerprint(memory, ["a"]) == fingerprint(decoct.rows(frame[["a"]]))
    for changed in (frame.assign(a=frame["a"] + 1), frame.assign(b="v"), frame[:4]):
        assert fingerprint(decoct.rows(changed)) != fingerprint(memory)
