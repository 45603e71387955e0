"""Parquet behind URLs, read here: fsspec's memory and local file systems; and a missing Dask."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest

from decoct.data import rows
from decoct.data.file_faults import find_version
from decoct.errors import RequestError, RowsError
from tests.data.test_base import TABLE, N, RowsContract

fsspec = pytest.importorskip("fsspec")


def put(path: str, table: pa.Table, protocol: str = "memory") -> None:
    with fsspec.filesystem(protocol, auto_mkdir=True).open(path, "wb") as file:
        pq.write_table(table, file, row_group_size=7)


@pytest.fixture(autouse=True)
def empty_memory():
    yield
    fsspec.filesystem("memory").store.clear()


@pytest.fixture(scope="class")
def table(request, tmp_path_factory):
    return request.cls().make(tmp_path_factory.mktemp("rows"))


class TestPatternOfLocalUrl(RowsContract):
    def make(self, folder):
        for name, begin, end in (("a", 0, 20), ("b", 20, 20), ("c", 20, N)):
            put(str(folder / f"{name}.parquet"), TABLE.slice(begin, end - begin), "file")
        return rows(f"file://{folder}/*.parquet")


@pytest.mark.parametrize(
    "source",
    [
        "memory://b/part",
        "memory://b/part/",
        "memory://b/*",
        "memory://b/part/*.parquet",
        ["memory://b/part/2.parquet", "memory://b/part/1.parquet"],
    ],
)
def test_files_of_a_bucket_in_the_order_of_their_paths(source):
    put("/b/part/2.parquet", pa.table({"y": [3.5, 4.0]}))
    put("/b/part/1.parquet", pa.table({"y": [1, 2]}))
    put("/b/part/_tmp/0.parquet", pa.table({"y": [9]}))
    fsspec.filesystem("memory").pipe("/b/part/_SUCCESS", b"")
    table = rows(source)
    assert next(table.chunks()).columns["y"].tolist() == [1.0, 2.0, 3.5, 4.0]
    assert table.take([3, 0])["y"].tolist() == [4.0, 1.0]


def test_folders_named_by_value_are_a_column():
    for year in (2024, 2025):
        put(f"/h/year={year}/a.parquet", pa.table({"y": [0.5, 1.5]}))
    for source in ("memory://h", "memory://h/*/*.parquet"):
        chunk = next(rows(source).chunks())
        assert chunk.columns["year"].tolist() == [2024, 2024, 2025, 2025]


def test_a_table_behind_a_url_is_the_table(tmp_path):
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.normal(size=500), "n": rng.integers(0, 9, 500)})
    put("/t/a.parquet", table)
    pq.write_table(table, tmp_path / "a.parquet")
    one, two = (
        rows(where).map_reduce(lambda c: float(c.columns["x"].sum()), lambda a, b: a + b, size=64)
        for where in ("memory://t/a.parquet", tmp_path / "a.parquet")
    )
    assert one == two


def test_a_file_behind_a_url_written_anew_in_the_same_size():
    put("/t/a.parquet", pa.table({"x": np.arange(10) % 2}))
    table = rows("memory://t/a.parquet")
    assert table.take([0])["x"].tolist() == [0]
    size = fsspec.filesystem("memory").size("/t/a.parquet")
    put("/t/a.parquet", pa.table({"x": np.arange(1, 11) % 2}))
    assert fsspec.filesystem("memory").size("/t/a.parquet") == size
    for read in (lambda: table.take([0]), lambda: list(table.chunks())):
        with pytest.raises(RowsError, match=r"a\.parquet changed while it was in use"):
            read()


@pytest.mark.parametrize(
    ("protocol", "read", "written"),
    [
        (("http", "https"), "url", "ETag"),
        (("sftp", "ssh"), "time", "mtime"),
        ("smb", "time", "mtime"),
        ("abfs", "last_accessed_on", "etag"),
    ],
)
def test_the_version_of_a_file_changes_when_it_is_written_alone(protocol, read, written):
    class Store(fsspec.get_filesystem_class("memory")):
        def info(self, path, **options):
            return {**super().info(path, **options), **told}

    Store.protocol = protocol
    store = fs.PyFileSystem(fs.FSSpecHandler(Store(skip_instance_cache=True)))
    put("/t/a.parquet", pa.table({"x": [1]}))
    told = {read: 1, written: 1}
    version = find_version(store, "/t/a.parquet")
    told = {read: 2, written: 1}
    assert find_version(store, "/t/a.parquet") == version
    told = {read: 2, written: 2}
    assert find_version(store, "/t/a.parquet") != version
    assert find_version(store, "/t/b.parquet") is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("memory://nowhere", r"no file at memory://nowhere"),
        ("memory://nowhere/*.parquet", r"no file at memory://nowhere/\*\.parquet"),
        ("memory://csv/t.csv", "has no Parquet files"),
        ("memory://broken", r"/broken/a\.parquet could not be read as Parquet"),
        ("memory://differ", "files differ in their columns"),
        ("bogus://b/x.parquet", "Protocol not known: bogus"),
        (["memory://b/1.parquet", "file:///b/2.parquet"], "different protocols"),
        (["memory://b/1.parquet", "b/2.parquet"], "URLs and local paths"),
        (["memory://differ/a.parquet"] * 2, "listed twice"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(source, message):
    memory = fsspec.filesystem("memory")
    memory.pipe("/csv/t.csv", b"y\n1\n")
    memory.pipe("/broken/a.parquet", b"PAR1, honestly")
    put("/differ/a.parquet", pa.table({"y": [1]}))
    put("/differ/b.parquet", pa.table({"z": [1]}))
    with pytest.raises(RowsError, match=message):
        rows(source)


@pytest.mark.parametrize(
    ("url", "package"), [("s3://b/x", "s3fs"), ("gs://b/x", "gcsfs"), ("abfs://b/x", "adlfs")]
)
def test_a_missing_package_is_named(url, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RowsError, match=package):
        rows(url)


def test_a_file_system_that_refuses_is_a_sentence(monkeypatch):
    def refuse(self, path, **options):
        raise PermissionError("no credentials")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.isdir", refuse)
    with pytest.raises(RowsError, match=r"could not be listed \(PermissionError: no credentials\)"):
        rows("memory://b")


HIDDEN = """
import sys
import numpy as np
sys.modules["fsspec"] = sys.modules["dask"] = sys.modules["distributed"] = None
import decoct
assert decoct.rows({"x": np.ones(3)}).n_rows == 3
for source, options in (("s3://b/x", {}), ("table.parquet", {"dask": "tcp://host:8786"})):
    try:
        decoct.rows(source, **options)
    except decoct.DecoctError as error:
        print(error)
"""

QUIET = """
import sys
import numpy as np
import decoct
table = {"x": np.random.default_rng(0).normal(size=(200, 2))}
decoct.build(decoct.models.GaussianMean(covariance=np.eye(2)), table, size=3,
             method=decoct.constructions.Uniform())
loaded = {"dask", "distributed"} & set(sys.modules)
assert not loaded, loaded
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_missing_is_told_when_it_is_asked_for():
    said = run(HIDDEN).splitlines()
    assert "pip install fsspec" in said[0]
    assert "pip install 'decoct[dask]'" in said[1]


def test_nothing_imports_dask_unless_it_is_asked_for():
    run(QUIET)


def test_dask_is_for_files_and_dask_collections():
    pytest.importorskip("distributed")
    with pytest.raises(RequestError, match="in this process's memory already"):
        rows(np.ones((3, 2)), dask="tcp://127.0.0.1:9")
