"""Files that are cut, overwritten or wrong in one row: a sentence that names the file."""

from __future__ import annotations

import random
import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import decoct
from decoct.building.checkpoint import FORMAT, read_checkpoint, write_checkpoint
from decoct.cli import main
from decoct.errors import CoresetFileError, DecoctError, RequestError, RowsError
from decoct.formats.site import site_to_dict

N = 4000


@pytest.fixture
def parts(tmp_path):
    """Two files with checksums; row numbers 0 to 3999."""
    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(size=N), "y": np.arange(N) % 2, "word": ["x", "yy"] * (N // 2)}
    table = pa.table(columns)
    for name, begin in (("1", 0), ("2", N // 2)):
        pq.write_table(
            table.slice(begin, N // 2),
            tmp_path / f"{name}.parquet",
            row_group_size=500,
            write_page_checksum=True,
        )
    return tmp_path


def read_all(folder):
    table = decoct.rows(folder)
    columns = {}
    for chunk in table.chunks(700):
        for name, values in chunk.columns.items():
            columns.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in columns.items()}


def test_a_cut_footer(parts):
    path = parts / "2.parquet"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RowsError, match=r"2\.parquet could not be read as Parquet \(.*\); check"):
        decoct.rows(parts)


def test_a_copy_that_stopped_halfway(parts):
    path = parts / "2.parquet"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(RowsError, match=r"2\.parquet could not be read as Parquet"):
        decoct.rows(parts)
    # a copy into a file of the right length, as torrents and some mounts leave it
    path.write_bytes(data[: len(data) // 2].ljust(len(data) - 3000, b"\0") + data[-3000:])
    with pytest.raises(RowsError, match=r"2\.parquet could not be read as Parquet"):
        read_all(parts)


def test_one_flipped_bit_is_found_wherever_it_is(parts):
    """With checksums in the file no damage passes for data, and none ends the process."""
    path, whole = parts / "1.parquet", read_all(parts)
    data, rng = path.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(150):
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        try:
            found = read_all(parts)
        except RowsError as error:
            assert "parquet" in str(error)  # noqa: PT017
            refused += 1
            continue
        for name, values in whole.items():
            np.testing.assert_array_equal(found[name], values)
    assert refused > 140


BAD = {
    "NaN": ("a", 2345, np.nan, r"Column 'a' has .*NaN.* in row 2345 \(row 345 of \S*2\.parquet\)"),
    "missing": ("a", 2345, None, r"row 2345 \(row 345 of \S*2\.parquet\)"),
    "infinite": ("a", 1999, np.inf, r"row 1999 \(row 1999 of \S*1\.parquet\)"),
    "label": ("y", 2000, 7, r"Column 'y' has the label 7 in row 2000"),
    "text": (
        "a",
        2345,
        "n/a",
        r"Column 'a' is double in \S*1\.parquet but string in \S*2\.parquet",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_named_with_its_file(parts, capsys, case):
    column, row, value, message = BAD[case]
    number = row // (N // 2) + 1
    frame = pd.read_parquet(parts / f"{number}.parquet")
    if isinstance(value, str):
        frame[column] = frame[column].astype(str)
    frame[column] = frame[column].astype(object).where(frame.index != row % (N // 2), value)
    if not isinstance(value, str):
        frame[column] = frame[column].astype(float if column == "a" else int)
    frame.to_parquet(parts / f"{number}.parquet")
    words = ["build", parts, "--formula", "y ~ a", "--family", "bernoulli", "--size", 5]
    assert main([str(word) for word in [*words, "-o", parts.parent / "c", "--quiet"]]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert re.search(message, told), told
    assert not (parts.parent / "c").exists()


def test_a_bad_row_of_a_model_of_ones_own(parts):
    model = decoct.Model(
        lambda p, r: -0.5 * (r["a"] - p["m"]) ** 2 + (0 * r["a"]) / (r["a"] - 9.0),
        lambda p: -0.5 * p["m"] ** 2,
        {"m": 0.0},
    )
    frame = pd.read_parquet(parts / "2.parquet", columns=["a"])
    frame.loc[10, "a"] = 9.0
    frame.to_parquet(parts / "2.parquet")
    pd.read_parquet(parts / "1.parquet", columns=["a"]).to_parquet(parts / "1.parquet")
    with pytest.raises(DecoctError, match=r"row 2010 \(row 10 of \S*2\.parquet\) is nan"):
        decoct.build(model, parts, size=5)


def test_a_coreset_with_a_flipped_bit_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(300, 2)), "y": np.arange(300) % 2}
    coreset = decoct.build(decoct.models.LogisticRegression(), rows, size=4)
    assert coreset.size > 0
    assert coreset.site is not None
    path = tmp_path / "c.parquet"
    coreset.save(path)
    data, flips = path.read_bytes(), random.Random(1)
    for _ in range(200):
        changed = bytearray(data)
        changed[flips.randrange(len(data))] ^= 1 << flips.randrange(8)
        path.write_bytes(changed)
        try:
            loaded = decoct.load(path)
        except CoresetFileError:
            continue
        np.testing.assert_array_equal(loaded.weights, coreset.weights)
        np.testing.assert_array_equal(loaded.rows["x"], coreset.rows["x"])
        assert site_to_dict(loaded.site) == site_to_dict(coreset.site)
        assert loaded.model.to_dict() == coreset.model.to_dict()


CONTENT = {"request": {"size": 4}, "state": {"w": np.arange(50.0), "done": True}, "infos": []}


def same(one, two):
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
    return np.array_equal(one, two)


def test_a_checkpoint_with_a_flipped_bit_is_refused(tmp_path):
    path = tmp_path / "saved"
    write_checkpoint(path, CONTENT)
    data, flips = path.read_bytes(), random.Random(2)
    refused = 0
    for _ in range(400):
        changed = bytearray(data)
        changed[flips.randrange(len(data))] ^= 1 << flips.randrange(8)
        path.write_bytes(changed)
        try:
            assert same(read_checkpoint(path), CONTENT)
        except RequestError as error:
            assert str(path) in str(error)  # noqa: PT017
            assert "remove it to start again" in str(error)  # noqa: PT017
            refused += 1
    assert refused > 200


@pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY", b"no checkpoint at all"])
def test_what_is_no_checkpoint(tmp_path, content):
    (tmp_path / "saved").write_bytes(content)
    with pytest.raises(RequestError, match="saved is not a readable checkpoint"):
        read_checkpoint(tmp_path / "saved")


def test_a_checkpoint_of_another_version(tmp_path, monkeypatch):
    monkeypatch.setattr("decoct.building.checkpoint.FORMAT", 7)
    write_checkpoint(tmp_path / "saved", CONTENT)
    monkeypatch.undo()
    sentence = f"format 7 and this decoct writes {FORMAT}; finish it"
    with pytest.raises(RequestError, match=sentence):
        read_checkpoint(tmp_path / "saved")
