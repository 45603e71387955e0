"""Files that are many, tiny, empty, oddly named, linked in circles, or not to be read."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.dataset as ds
import pyarrow.feather as pf
import pyarrow.parquet as pq
import pytest

import decoct
from decoct.errors import RowsError
from decoct.models.formula.model import from_formula


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def total(table, name="y"):
    return table.map_reduce(lambda chunk: chunk.columns[name].sum(), lambda a, b: a + b)


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_five_thousand_tiny_files(tmp_path):
    n, before, most = 5000, open_files(), []
    first = write(tmp_path / "0000.parquet", y=np.arange(10)).read_bytes()
    for i in range(1, n):
        (tmp_path / f"{i:04}.parquet").write_bytes(first)
    table = decoct.rows(tmp_path)
    assert table.n_rows == 10 * n
    assert open_files() <= before + 5
    result = table.map_reduce(
        lambda chunk: most.append(open_files()) or chunk.columns["y"].sum(), lambda a, b: a + b
    )
    assert result == 45 * n
    assert max(most) <= before + 10
    assert table.take([49_999, 0, 25_005])["y"].tolist() == [9, 0, 5]
    assert table.locate(25_005) == (str(tmp_path / "2500.parquet"), 5)
    assert open_files() <= before + 5


def test_one_row(tmp_path):
    for path in (write(tmp_path / "p.parquet", y=[3]), tmp_path / "c.csv"):
        if path.suffix == ".csv":
            path.write_text("y\n3")
        table = decoct.rows(path)
        assert (table.n_rows, total(table), table.take([0])["y"].tolist()) == (1, 3, [3])


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.csv.gz"])
def test_no_bytes_at_all(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(RowsError, match=rf"{name}( could not be read as Parquet| has no rows)"):
        decoct.rows(tmp_path / name)
    with pytest.raises(RowsError, match=name):
        decoct.rows(tmp_path)


def test_empty_files_among_others(tmp_path):
    write(tmp_path / "1.parquet", y=pa.array([], pa.int64()))
    write(tmp_path / "2.parquet", y=[5])
    write(tmp_path / "3.parquet", y=pa.array([], pa.int64()))
    table = decoct.rows(tmp_path)
    assert (table.n_rows, total(table), table.take([0])["y"].tolist()) == (1, 5, [5])


NAMES = ["with space.parquet", "Größe=π.parquet", "100%.parquet", "a#b?.parquet", "[1].parquet"]


@pytest.mark.parametrize(
    "name", [*NAMES, "new\nline.parquet", "quo'te\".parquet", "a+b&c;d.parquet"]
)
def test_odd_names(tmp_path, name):
    path = write(tmp_path / "Ordner mit Ä" / name, y=[1, 2])
    for source in (path, path.parent, [path], str(path)):
        table = decoct.rows(source)
        assert (table.n_rows, total(table), table.take([1])["y"].tolist()) == (2, 3, [2])


def test_links_in_a_circle(tmp_path):
    write(tmp_path / "data" / "t.parquet", y=[1, 2])
    (tmp_path / "data" / "again").symlink_to(tmp_path / "data", target_is_directory=True)
    assert decoct.rows(tmp_path / "data").n_rows == 2
    (tmp_path / "self.parquet").symlink_to(tmp_path / "self.parquet")
    with pytest.raises((RowsError, OSError), match=r"self\.parquet"):
        decoct.rows(tmp_path / "self.parquet")


def test_a_pattern_does_not_count_rows_twice_through_a_link(tmp_path):
    write(tmp_path / "data" / "t.parquet", y=[1, 2])
    (tmp_path / "data" / "again").symlink_to(tmp_path / "data", target_is_directory=True)
    assert decoct.rows(f"{tmp_path}/data/**/*.parquet").n_rows == 2


def test_links_are_followed(tmp_path):
    write(tmp_path / "elsewhere" / "t.parquet", y=[1, 2])
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "more").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    write(tmp_path / "data" / "1.parquet", y=[3])
    assert decoct.rows(tmp_path / "data").n_rows == 3


def test_two_names_of_one_file(tmp_path):
    path = write(tmp_path / "1.parquet", y=[1])
    (tmp_path / "2.parquet").symlink_to(path)
    with pytest.raises(RowsError, match=r"2\.parquet is \S*1\.parquet by another name"):
        decoct.rows(tmp_path)


def test_a_hard_link_is_another_name_too(tmp_path):
    os.link(write(tmp_path / "1.parquet", y=[1]), tmp_path / "2.parquet")
    with pytest.raises(RowsError, match=r"2\.parquet is \S*1\.parquet by another name"):
        decoct.rows(tmp_path)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("", "The path is empty"),
        ("~no such user/t.parquet", "cannot be a path here"),
        ("a" * 300 + ".parquet", "cannot be a path here|There is no file"),
    ],
)
def test_what_can_be_no_path(path, sentence):
    with pytest.raises(RowsError, match=sentence):
        decoct.rows(path)


def test_names_that_are_not_utf8(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv")
    try:
        with open(path, "w") as file:
            file.write("a,b\n1,2\n")
    except (OSError, UnicodeError):
        pytest.skip("the file system takes UTF-8 names alone")
    for source in (path, tmp_path, str(tmp_path / "*.csv")):
        with pytest.raises(RowsError, match="is not UTF-8; rename the file"):
            decoct.rows(source)
    model = decoct.models.GaussianMean(np.eye(1))
    coreset = decoct.build(model, {"x": np.ones((5, 1))}, size=2)
    with pytest.raises(decoct.RequestError, match="is not UTF-8; choose another name"):
        coreset.save(path.replace(".csv", ".parquet"))
    (tmp_path / "header.csv").write_bytes(b"\xe9,b\n1,2\n")
    with pytest.raises(RowsError, match=r"header\.csv could not be read as CSV \('utf-8' codec"):
        decoct.rows(tmp_path / "header.csv").take([0])


def test_a_column_of_the_folders_in_the_files_too(tmp_path):
    write(tmp_path / "k=1" / "t.parquet", y=[1.0], k=[1])
    with pytest.raises(RowsError, match="Column 'k' is both in the files and in the names"):
        decoct.rows(tmp_path)


@pytest.mark.parametrize("kind", ["dangling", "circle"])
def test_a_linked_file_that_cannot_be_read_is_no_silence(tmp_path, kind):
    write(tmp_path / "1.parquet", y=[1])
    aim = tmp_path / ("gone" if kind == "dangling" else "2.parquet")
    (tmp_path / "2.parquet").symlink_to(aim)
    with pytest.raises(RowsError, match=r"2\.parquet"):
        decoct.rows(tmp_path)


def test_columns_of_odd_types_hurt_only_whoever_asks(tmp_path):
    n = 10
    odd = {
        "list": pa.array([["a", "b"]] * n),
        "struct": pa.array([{"a": 1, "y": 99}] * n),
        "map": pa.array([[("k", 1)]] * n, pa.map_(pa.string(), pa.int64())),
        "bytes": pa.array([b"\x00\xff"] * n),
        "deep": pa.array([[{"x": [1.0]}]] * n),
        "time": pa.array([1] * n, pa.time64("us")),
    }
    table = decoct.rows(write(tmp_path / "t.parquet", y=np.arange(n), **odd))
    assert table.n_rows == n
    summed = table.map_reduce(lambda c: c.columns["y"].sum(), lambda a, b: a + b, columns=["y"])
    assert summed == 45
    assert table.take([4], ["y"])["y"].tolist() == [4]
    for name in odd:
        with pytest.raises(RowsError, match=f"Column '{name}' has type"):
            table.take([0], [name])


def test_odd_columns_do_not_hinder_a_model(tmp_path):
    x = np.random.default_rng(0).normal(size=2000)
    write(tmp_path / "t.parquet", x=x, y=2 * x, tags=[["a", "b"]] * 2000)
    rows = decoct.rows(tmp_path)
    model = from_formula("y ~ x", rows)
    model.check(rows)
    assert model.design.names == ("Intercept", "x")


def test_odd_columns_do_not_hinder_a_model_on_a_cluster(tmp_path):
    pytest.importorskip("distributed")
    import dask.config
    import dask.dataframe as dd
    from dask.delayed import delayed

    from tests.dask_cluster import local_client

    x = np.random.default_rng(0).normal(size=2000)
    table = pa.table({"x": x, "s": [{"a": 1}] * 2000})
    pq.write_table(table, tmp_path / "t.parquet")
    parts = [table.slice(i, 1000).to_pandas() for i in (0, 1000)]
    with dask.config.set({"dataframe.convert-string": False}):  # dictionaries would be text
        frame = dd.from_delayed([delayed(one) for one in parts], meta=parts[0], verify_meta=False)
    model = decoct.Model(
        lambda p, rows: -0.5 * (rows["x"] - p["mu"]) ** 2,
        lambda p: -0.5 * p["mu"] ** 2,
        {"mu": 0.0},
        columns=("x",),
    )
    want = decoct.build(model, tmp_path, size=2, seed=1)
    with local_client(1, processes=False) as client:
        for rows in (decoct.rows(tmp_path, dask=client), decoct.rows(frame, dask=client)):
            assert rows.n_rows == 2000
            got = decoct.build(model, rows, size=2, seed=1)
            np.testing.assert_array_equal(got.indices, want.indices)
            np.testing.assert_array_equal(got.weights, want.weights)
            assert from_formula("x ~ 1", rows).design.names == ("Intercept",)
            for ask in (lambda rows: rows.take([0], ["s"]), lambda rows: rows.take([0])):
                with pytest.raises(RowsError, match="Column 's' has type struct<a: int64>"):
                    ask(rows)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no user identities here")
def test_files_that_may_not_be_read(nobody):
    path = write(nobody / "data" / "t.parquet", y=[1, 2])
    write(nobody / "data" / "more" / "u.parquet", y=[3])
    table = decoct.rows(nobody / "data")
    if os.geteuid() == 0:
        os.seteuid(65534)
    path.chmod(0) if os.geteuid() == path.stat().st_uid else _as_root(path.chmod, 0)
    with pytest.raises(RowsError, match=r"t\.parquet cannot be read \(permission denied\); ask"):
        list(table.chunks())
    with pytest.raises(RowsError, match=r"t\.parquet cannot be read"):
        decoct.rows(path)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="no user identities here")
def test_a_folder_that_may_not_be_read_is_no_silence(nobody):
    write(nobody / "data" / "t.parquet", y=[1, 2])
    closed = write(nobody / "data" / "more" / "u.parquet", y=[3]).parent
    closed.chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    with pytest.raises(RowsError, match=r"more cannot be listed \(Permission denied\)"):
        decoct.rows(nobody / "data")


def _as_root(act, *arguments):
    mine = os.geteuid()
    os.seteuid(0)
    act(*arguments)
    os.seteuid(mine)


LEFT_OPEN = """
import sys, decoct
table = decoct.rows(sys.argv[1])
walks = [table.chunks(10) for _ in range(8)]
for walk in walks:
    next(walk)
sys.stdout.write("left")
"""


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_process_may_end_in_the_middle_of_walks(tmp_path, suffix):
    frame = pd.DataFrame({"y": np.arange(300_000), "w": "word"})
    path = tmp_path / f"t.{suffix}"
    frame.to_parquet(path) if suffix == "parquet" else frame.to_csv(path, index=False)
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, str(path)], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "left", "")


def test_walks_in_many_threads_at_once(tmp_path):
    """Short-lived threads that stop early, on every kind of file."""
    n = 20_000
    table = pa.table({"y": np.arange(n), "w": ["word"] * n})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1000)
    pc.write_csv(table, tmp_path / "t.csv")
    pf.write_feather(table, tmp_path / "t.feather", chunksize=1000)
    tables = [
        decoct.rows(tmp_path / "t.parquet"),
        decoct.rows(tmp_path / "t.csv"),
        decoct.rows(ds.dataset(tmp_path / "t.feather", format="feather")),
        decoct.rows(ds.dataset(tmp_path / "t.parquet").filter(ds.field("y") >= 0)),
    ]
    wrong = []

    def walk(one):
        for _ in range(5):
            chunks = one.chunks(700)
            first = next(chunks)
            chunks.close()
            if first.columns["y"].tolist() != list(range(700)) or total_of(one) != n * (n - 1) // 2:
                wrong.append(one)

    def total_of(one):
        return one.map_reduce(lambda c: int(c.columns["y"].sum()), int.__add__, columns=["y"])

    threads = [threading.Thread(target=walk, args=(one,)) for one in tables * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not [t for t in threading.enumerate() if t.name.startswith("decoct-reader")]
