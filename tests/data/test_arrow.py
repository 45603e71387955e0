"""Files as rows: what is found, in which order, how little is read, and what goes wrong."""

from __future__ import annotations

import itertools
import pickle
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoct.data import ArrowRows, rows
from decoct.data.arrow_parts import IpcPart
from decoct.errors import BadValueError, PotentialError, RowsError


def write(path: Path, columns: dict, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


def column(table, name: str, size: int | None = None) -> np.ndarray:
    return np.concatenate([chunk.columns[name] for chunk in table.chunks(size, [name])])


def damage(path: Path, group: int, name: str) -> None:
    """Overwrite one column of one row group with noise."""
    meta = pq.read_metadata(path).row_group(group)
    chunk = next(
        meta.column(i)
        for i in range(meta.num_columns)
        if meta.column(i).path_in_schema.split(".")[0] == name
    )
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)


# --- what is found, in which order -------------------------------------------------------------


def test_files_are_ordered_by_path(tmp_path):
    for name, value in (("b", 2), ("a/z", 1), ("c", 3)):
        write(tmp_path / f"{name}.parquet", {"y": [value]})
    expected = [1, 2, 3]
    assert column(rows(tmp_path), "y").tolist() == expected
    assert column(rows(f"{tmp_path}/**/*.parquet"), "y").tolist() == expected
    listed = [tmp_path / "c.parquet", tmp_path / "a/z.parquet", str(tmp_path / "b.parquet")]
    assert column(rows(listed), "y").tolist() == expected


def test_pattern_may_match_folders(tmp_path):
    for name, value in (("run1/a", 1), ("run2/a", 2), ("other/a", 3)):
        write(tmp_path / f"{name}.parquet", {"y": [value]})
    assert column(rows(f"{tmp_path}/run*"), "y").tolist() == [1, 2]


@pytest.mark.parametrize("pattern", ["", "/year=*", "/**/*.parquet"])
def test_hive_folders_add_columns(tmp_path, pattern):
    for year, word in ((2013, "a"), (2014, "b")):
        write(tmp_path / f"year={year}" / f"word={word}" / "0.parquet", {"y": [year, -year]})
        write(tmp_path / f"year={year}" / "word=c" / "0.parquet", {"y": [0]})
    table = rows(
        f"{tmp_path}{pattern}" if pattern != "/*/*.parquet" else f"{tmp_path}/**/*.parquet"
    )
    assert table.columns == ("y", "year", "word")
    assert column(table, "year", 4).tolist() == [2013, 2013, 2013, 2014, 2014, 2014]
    assert column(table, "word").tolist() == ["a", "a", "c", "b", "b", "c"]
    picked = table.take([5, 0])
    assert picked["y"].tolist() == [0, 2013]
    assert picked["word"].tolist() == ["c", "a"]


def test_hive_folders_of_csv(tmp_path):
    for k in (1, 2):
        (tmp_path / f"k={k}").mkdir()
        (tmp_path / f"k={k}" / "t.csv").write_text(f"y\n{k * 10}\n")
    assert rows(tmp_path).take([1, 0])["k"].tolist() == [2, 1]


def test_a_folder_named_like_a_file(tmp_path):
    write(tmp_path / "t.parquet" / "part.0.parquet", {"y": [1, 2]})
    assert rows(tmp_path / "t.parquet").n_rows == 2


def test_home_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "t.parquet", {"y": [1, 2]})
    assert rows("~/t.parquet").n_rows == 2


def test_relative_pattern(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "k=1" / "t.parquet", {"y": [1, 2]})
    assert rows("*/t.parquet").columns == ("y", "k")
    assert rows(".").columns == ("y", "k")


def test_user_dataset_keeps_its_order_and_schema(tmp_path):
    one = write(tmp_path / "1.parquet", {"y": [1, 2], "only": [5, 6]})
    two = write(tmp_path / "2.parquet", {"y": [3]})
    schema = pa.schema([("y", pa.float32()), ("only", pa.int64())])
    table = rows(ds.dataset([two, one], schema=schema))
    data = ds.dataset([two, one], schema=schema).to_table()
    for name in ("y", "only"):
        expected = data[name].to_numpy()
        np.testing.assert_array_equal(column(table, name), expected)
        assert column(table, name, 1).dtype == expected.dtype


# --- types ------------------------------------------------------------------------------------


def test_vectors_become_a_matrix(tmp_path):
    x = np.arange(20.0).reshape(10, 2)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 2)
    table = rows(write(tmp_path / "t.parquet", {"x": vectors, "y": range(10)}, row_group_size=3))
    np.testing.assert_array_equal(column(table, "x", 4), x)
    np.testing.assert_array_equal(table.take([9, 0, 9], ["x"])["x"], x[[9, 0, 9]])
    assert table.take([], ["x"])["x"].shape == (0, 2)


def test_missing_vectors_are_nan():
    kind = pa.list_(pa.float64(), 2)
    x = pa.chunked_array([pa.array([[1, 2], None], kind), pa.array([[3, None]], kind)])
    table = rows(pa.table({"x": x, "y": [1, 2, 3]}).slice(1))
    np.testing.assert_array_equal(table.take([0, 1])["x"], [[np.nan, np.nan], [3, np.nan]])


def test_missing_integer_vectors_are_refused():
    x = pa.array([[1, 2], None], pa.list_(pa.int64(), 2))
    with pytest.raises(RowsError, match="'x' has missing values in lists of int64"):
        rows(pa.table({"x": x}))


def test_numbers_widen_across_files(tmp_path):
    write(tmp_path / "a.parquet", {"y": pa.array([1, 2], pa.int32()), "z": pa.nulls(2)})
    write(tmp_path / "b.parquet", {"y": [0.5], "z": ["word"]})
    table = rows(tmp_path)
    assert column(table, "y", 2).dtype == np.float64
    assert table.take([0, 2])["z"].tolist() == [None, "word"]


def test_dictionaries_and_strings_mix_across_files(tmp_path):
    write(tmp_path / "a.parquet", {"z": pa.array(["u", None, "v"]).dictionary_encode()})
    write(tmp_path / "b.parquet", {"z": ["v"]})
    assert column(rows(tmp_path), "z", 4).tolist() == ["u", None, "v", "v"]


def test_decimals_are_floats():
    prices = pa.array([1, None], pa.decimal128(5, 2))
    assert rows(pa.table({"price": prices})).take([0])["price"].dtype == np.float64


def test_an_unusable_column_hurts_only_whoever_asks(tmp_path):
    table = rows(write(tmp_path / "t.parquet", {"y": [1], "list": [["a"]]}))
    assert table.take([0], ["y"])["y"].tolist() == [1]
    with pytest.raises(RowsError, match=r"Column 'list' has type list<.*>; make it numbers"):
        list(table.chunks())


def test_csv_missing_values(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('n,word\n1,oak\nNA,\n,"NA"\n4,"two\nlines"\n')
    table = rows(path)
    np.testing.assert_array_equal(column(table, "n"), [1, np.nan, np.nan, 4])
    assert column(table, "word").tolist() == ["oak", None, "NA", "two\nlines"]


def test_a_row_is_located_in_its_file(tmp_path):
    one = write(tmp_path / "1.parquet", {"y": range(5)}, row_group_size=2)
    write(tmp_path / "2.parquet", {"y": pa.array([], pa.int64())})
    three = write(tmp_path / "3.parquet", {"y": range(3)})
    table = rows(tmp_path)
    places = [table.locate(row) for row in range(8)]
    assert places == [(str(one), i) for i in range(5)] + [(str(three), i) for i in range(3)]
    with pytest.raises(RowsError, match="no row 8"):
        table.locate(8)


def test_an_error_that_names_a_row_names_its_file(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.parquet", {"y": range(10)})

    def refuse(chunk):
        if chunk.start <= 14 < chunk.start + chunk.n_rows:
            raise BadValueError("has NaN", 14, "; drop or impute such rows.", "y")
        return 0

    with pytest.raises(RowsError) as caught:
        rows(tmp_path).map_reduce(refuse, max, size=4)
    assert str(caught.value) == (
        f"Column 'y' has NaN in row 14 (row 4 of {tmp_path / 'b.parquet'}); "
        "drop or impute such rows."
    )


def test_errors_about_rows_travel_with_what_they_know():
    errors = [
        BadValueError("has NaN", 14, "; drop it.", "y").at(14, "b.parquet", 4),
        PotentialError(3, "nan", "draw 7").at(30),
    ]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
    assert str(errors[0]) == "Column 'y' has NaN in row 14 (row 4 of b.parquet); drop it."
    assert str(errors[1]).startswith("The log-likelihood of row 30 is nan at draw 7; ")


# --- how little is read, and how little is kept -------------------------------------------------


@pytest.fixture
def grouped(tmp_path):
    columns = {"y": np.arange(9000), "z": np.random.default_rng(0).normal(size=9000)}
    return write(tmp_path / "t.parquet", columns, row_group_size=3000)


def test_take_reads_only_groups_with_wanted_rows(grouped):
    damage(grouped, 1, "y")
    table = rows(grouped)
    wanted = [8999, 0, 6000, 2999, 0]
    assert table.take(wanted)["y"].tolist() == wanted
    with pytest.raises(RowsError, match=r"t\.parquet could not be read as Parquet"):
        table.take([3000])


@pytest.fixture
def groups_read(monkeypatch):
    """The row groups that are read, file by file."""
    read = []
    whole = pq.ParquetFile.iter_batches

    def noted(self, *args, row_groups, **options):
        read.append(list(row_groups))
        return whole(self, *args, row_groups=row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    return read


def test_take_out_of_a_thousand_groups_reads_one_group_a_row(tmp_path, groups_read):
    y = np.arange(20_000)
    table = rows(write(tmp_path / "t.parquet", {"y": y, "z": -y}, row_group_size=20))
    wanted = np.array([19_999, 40, 41, 7_013, 40])
    assert table.take(wanted, ["z"])["z"].tolist() == (-wanted).tolist()
    assert sorted(itertools.chain(*groups_read)) == [2, 350, 999]  # by several threads, perhaps


def test_take_opens_only_files_with_wanted_rows(tmp_path, groups_read):
    for i in range(300):
        write(tmp_path / f"{i:03}.parquet", {"y": range(10 * i, 10 * i + 10)}, row_group_size=4)
    assert rows(tmp_path).take([2995, 17, 3])["y"].tolist() == [2995, 17, 3]
    assert sorted(groups_read) == [[0], [1], [1]]


def test_take_reads_only_record_batches_with_wanted_rows(tmp_path, monkeypatch):
    pyarrow.feather.write_feather(pa.table({"y": range(1000)}), tmp_path / "t", chunksize=10)
    table, read = rows(ds.dataset(tmp_path / "t", format="feather")), []
    assert table.n_rows == 1000
    batches = IpcPart.read_batches

    def noted(self, schema, size, groups=None):
        read.extend(groups)
        return batches(self, schema, size, groups)

    monkeypatch.setattr(IpcPart, "read_batches", noted)
    assert table.take([999, 0, 55])["y"].tolist() == [999, 0, 55]
    assert read == [0, 5, 99]


def test_only_columns_asked_for_are_read(grouped):
    damage(grouped, 0, "z")
    table = rows(grouped)
    assert column(table, "y").sum() == 9000 * 8999 // 2
    with pytest.raises(RowsError, match=r"t\.parquet could not be read as Parquet"):
        list(table.chunks(100))


def test_a_large_row_group_is_streamed(tmp_path):
    n = 400_000
    values = np.random.default_rng(0).normal(size=n)
    columns = dict.fromkeys("abcd", values)
    table = rows(write(tmp_path / "t.parquet", columns, row_group_size=n, use_dictionary=False))
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in table.chunks(8192)]
    assert max(held) < n * 8 * 4 * 0.6


# Arrow reads CSV about 40 MB ahead, of 2e7 rows (320 MB) as of 5e6, and a filtered table up to
# 17 MB on a busy machine: tables have to be large
@pytest.mark.parametrize(
    ("kind", "n", "share"),
    [("filtered", 10**7, 0.2), ("feather", 10**6, 0.5), ("csv", 10**7, 0.5)],
)
def test_other_files_are_streamed_too(tmp_path, kind, n, share):
    if kind == "csv":
        (tmp_path / "t.csv").write_text("a,b\n" + "1.5,2.5\n" * n)
        table = rows(tmp_path / "t.csv")
    else:
        whole = pa.table(dict.fromkeys("ab", np.random.default_rng(0).normal(size=n)))
        pq.write_table(whole, tmp_path / "t.parquet", row_group_size=20_000, use_dictionary=False)
        pyarrow.feather.write_feather(whole, tmp_path / "t.feather", chunksize=8192)
        del whole
        files = {"filtered": "parquet", "feather": "feather"}[kind]
        found = ds.dataset(tmp_path / f"t.{files}", format=files)
        table = rows(found.filter(ds.field("a") < 9.0) if kind == "filtered" else found)
    assert table.n_rows == n
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in table.chunks(8192, ["a", "b"])]
    assert max(held) < share * n * 8 * 2


def test_a_filtered_data_set_waits_for_whoever_reads_it(tmp_path):
    """A scanner with threads of its own runs ahead of a slow reader, up to the whole table."""
    n = 10_000_000  # on a busy machine Arrow may hold 17 MB without them, however long the table
    whole = pa.table(dict.fromkeys("ab", np.random.default_rng(0).normal(size=n)))
    pq.write_table(whole, tmp_path / "t.parquet", row_group_size=20_000, use_dictionary=False)
    del whole
    table = rows(ds.dataset(tmp_path / "t.parquet").filter(ds.field("a") < 9.0))
    before, held = pa.total_allocated_bytes(), []
    for chunk in table.chunks(8192, ["a", "b"]):
        time.sleep(0.02)
        held.append(pa.total_allocated_bytes() - before)
        if chunk.start > 300_000:
            break
    assert max(held) < n * 8 * 2 / 4


def test_an_early_end_of_a_csv_file_reads_no_further(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("y\n" + "1\n" * 4_000_000 + "no number\n")
    chunks = ArrowRows(path).parts[0].read_batches(pa.schema([("y", pa.int64())]), 100)
    assert len(next(chunks)) == 100
    chunks.close()


def test_chunks_of_whole_batches_are_not_copied(grouped):
    chunk = next(rows(grouped).chunks(1000))
    assert not chunk.columns["z"].flags.owndata


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=5).filter(sum),
    group=st.integers(1, 6),
    size=st.integers(1, 40),
    data=st.data(),
)
def test_cutting_and_taking_whatever_the_layout(lengths, group, size, data):
    n = sum(lengths)
    numbers = np.arange(n)
    ends = np.cumsum(lengths)
    indices = data.draw(st.lists(st.integers(0, n - 1), max_size=15))
    with tempfile.TemporaryDirectory() as folder:
        for i, (length, end) in enumerate(zip(lengths, ends, strict=True)):
            part = pa.table({"y": numbers[end - length : end]})
            pq.write_table(part, f"{folder}/{i}.parquet", row_group_size=group)
        table = rows(folder)
        chunks = list(table.chunks(size))
        taken = table.take(indices)["y"]
    assert [c.n_rows for c in chunks] == [min(size, n - s) for s in range(0, n, size)]
    assert [c.start for c in chunks] == list(range(0, n, size))
    np.testing.assert_array_equal(np.concatenate([c.columns["y"] for c in chunks]), numbers)
    np.testing.assert_array_equal(taken, np.array(indices, dtype=int))


# --- what goes wrong ----------------------------------------------------------------------------


def test_missing_file(tmp_path):
    with pytest.raises(RowsError, match=r"There is no file or folder .*gone\.parquet"):
        rows(tmp_path / "gone.parquet")


def test_folder_without_data(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RowsError, match=r"has no data files \(\.parquet, \.pq, \.csv, \.csv\.gz\)"):
        rows(tmp_path)


def test_pattern_without_match(tmp_path):
    with pytest.raises(RowsError, match=r"No data file matches .*\*\.parquet; check the pattern"):
        rows(f"{tmp_path}/*.parquet")


def test_unknown_suffix(tmp_path):
    (tmp_path / "t.xlsx").touch()
    with pytest.raises(
        RowsError, match=r"t\.xlsx ends neither in .* \(Parquet\) nor in .* \(CSV\)"
    ):
        rows(tmp_path / "t.xlsx")


def test_remote_address():
    with pytest.raises(RowsError, match=r"nowhere://bucket/t\.parquet cannot be read"):
        rows("nowhere://bucket/t.parquet")


def test_empty_list():
    with pytest.raises(RowsError, match="list of files is empty"):
        ArrowRows([])


def test_listed_twice(tmp_path):
    path = write(tmp_path / "t.parquet", {"y": [1]})
    with pytest.raises(RowsError, match="listed twice"):
        rows([path, path])


def test_mixed_kinds(tmp_path):
    write(tmp_path / "a.parquet", {"y": [1]})
    (tmp_path / "b.csv").write_text("y\n1\n")
    with pytest.raises(RowsError, match="mixes Parquet and CSV"):
        rows(tmp_path)


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.csv.gz"])
def test_not_what_its_name_says(tmp_path, name):
    (tmp_path / name).write_bytes(b"a,b\n1,2,3\n" if name == "t.csv" else b"nonsense")
    with pytest.raises(RowsError, match=r"t\.\S+ could not be read as (Parquet|CSV) \(.+\); check"):
        rows(tmp_path / name)


@pytest.mark.parametrize("kept", [0.3, 0.99])
def test_truncated_parquet(grouped, kept):
    data = grouped.read_bytes()
    grouped.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(RowsError, match=r"t\.parquet could not be read as Parquet"):
        rows(grouped)


def test_second_file_is_named(tmp_path):
    write(tmp_path / "a.parquet", {"y": [1]})
    (tmp_path / "b.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(RowsError, match=r"b\.parquet could not be read as Parquet"):
        rows(tmp_path)


def test_empty_tables(tmp_path):
    write(tmp_path / "p" / "t.parquet", {"y": pa.array([], pa.int64())})
    (tmp_path / "header.csv").write_text("x,y\n")
    (tmp_path / "void.csv").touch()
    (tmp_path / "none").mkdir()
    for source in ("p", "header.csv", "void.csv"):
        with pytest.raises(RowsError, match=r"The table is empty: .*\.(parquet|csv) has no rows"):
            rows(tmp_path / source)
    with pytest.raises(RowsError, match="The table is empty: the data set has no files"):
        rows(ds.dataset(tmp_path / "none"))


def test_columns_differ_between_files(tmp_path):
    write(tmp_path / "a.parquet", {"y": [1], "z": [1]})
    write(tmp_path / "b.parquet", {"y": [1]})
    with pytest.raises(RowsError, match=r"'z' is in .*a\.parquet but not in .*b\.parquet"):
        rows(tmp_path)


def test_types_differ_between_files(tmp_path):
    write(tmp_path / "a.parquet", {"y": [1]})
    write(tmp_path / "b.parquet", {"y": ["one"]})
    with pytest.raises(
        RowsError, match=r"'y' is int64 in .*a\.parquet but string in .*b\.parquet; write it"
    ):
        rows(tmp_path)


def test_repeated_column(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["y", "y"])
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(RowsError, match=r"t\.parquet has two columns of the same name; rename one"):
        rows(tmp_path / "t.parquet")
    write(tmp_path / "a.parquet", {"y": [1]})
    with pytest.raises(RowsError, match=r"t\.parquet has two columns 'y'; rename one"):
        rows(tmp_path)


@pytest.fixture
def changing(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("y,rain\n" + "1,0\n" * 300_000 + "2,0.5\n")
    return path


def test_csv_column_that_changes_its_type(changing):
    message = r"Column 'rain' of .*t\.csv was read as int64 .* has '0\.5' in line 300002; fix"
    table = rows(changing)
    with pytest.raises(RowsError, match=message):
        list(table.chunks())
    with pytest.raises(RowsError, match=message):
        table.take([300_000])


def test_csv_column_that_changes_its_type_but_is_not_needed(changing):
    table = rows(changing)
    assert table.n_rows == 300_001
    assert column(table, "y").sum() == 300_002


def test_csv_file_cut_in_a_row(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "1,0\n" * 300_000 + "2")
    with pytest.raises(RowsError, match=r"t\.csv could not be read as CSV \(.*Expected 2 columns"):
        ArrowRows(path).chunks()


@pytest.mark.parametrize("source", [5, None, [1.0, 2.0], [], np.ones(3), b"t.parquet"])
def test_what_is_no_table(source):
    with pytest.raises(RowsError, match="is not a table; give a dict of arrays, a NumPy"):
        rows(source)


def test_rows_are_returned_as_they_are():
    table = rows({"y": [1]})
    assert rows(table) is table


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.large_list(pa.int64())])
def test_lists_of_one_length_are_a_matrix(tmp_path, kind):
    """As pandas and polars write them: of variable length by their type."""
    matrix = np.arange(30.0).reshape(10, 3)
    table = pa.table({"x": pa.array(matrix.tolist(), kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    for source in (table, tmp_path / "a.parquet", table.to_pandas()):
        np.testing.assert_array_equal(column(rows(source), "x", size=3), matrix)
    np.testing.assert_array_equal(rows(tmp_path / "a.parquet").take([7, 2])["x"], matrix[[7, 2]])


@pytest.mark.parametrize("size", [4, 100])
def test_ragged_lists_are_refused_by_row(tmp_path, size):
    lists = [[1.0, 2.0]] * 8 + [[1.0, 2.0, 3.0]] + [[1.0, 2.0]]
    table = pa.table({"x": lists, "y": np.arange(10)})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(RowsError, match=r"'x' has a list of 3 numbers in row 8 .*of 2 before"):
        column(rows(tmp_path / "a.parquet"), "x", size)
    with pytest.raises(RowsError, match="3 numbers in row 8 and of 2 before"):
        rows(table)


def test_string_views_are_text(tmp_path):
    table = pa.table({"y": np.arange(3), "origin": pa.array(["a", "b", "a"], pa.string_view())})
    pq.write_table(table, tmp_path / "a.parquet")
    for source in (table, tmp_path / "a.parquet"):
        found = rows(source).take([2, 1])["origin"]
        assert found.tolist() == ["a", "b"]


def test_text_that_is_not_utf8_is_named_by_its_byte(tmp_path):
    (tmp_path / "a.csv").write_bytes("name,y\nfoo,1\ncaf\xe9,2\n".encode("latin-1"))
    with pytest.raises(RowsError, match=r"'name' .*is not UTF-8 in row 1 .*\(byte 3 is 0xe9\)"):
        column(rows(tmp_path / "a.csv"), "name")
