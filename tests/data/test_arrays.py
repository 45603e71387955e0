"""Rows in memory: conversions, views, refusals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import xarray as xr

from decoct.data import ArrayRows, rows
from decoct.errors import RowsError


def test_arrays_are_neither_copied_nor_changed():
    x = np.arange(12.0).reshape(6, 2)
    table = ArrayRows({"x": x})
    for chunk in table.chunks(4):
        assert np.shares_memory(chunk.columns["x"], x)
    assert not np.shares_memory(table.take([0])["x"], x)


def test_pandas_numbers_are_not_copied():
    frame = pd.DataFrame({"x": np.arange(5.0), "y": np.arange(5)})
    chunk = next(rows(frame).chunks())
    assert np.shares_memory(chunk.columns["x"], frame["x"].to_numpy())


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([1, None], dtype="Int64"),
        pl.Series([1, None]),
        pa.array([1, None]),
        pa.chunked_array([[1], [None]]),
        np.ma.masked_array([1, 2], mask=[False, True]),
    ],
)
def test_missing_numbers_in_a_mapping_are_nan(values):
    column = rows({"y": values}).take([0, 1])["y"]
    np.testing.assert_array_equal(column, [1.0, np.nan])


def test_masked_strings_are_none():
    words = np.ma.masked_array(["a", "b"], mask=[False, True])
    assert rows({"w": words}).take([0, 1])["w"].tolist() == ["a", None]


def test_mixed_pandas_objects_are_left_alone():
    frame = pd.DataFrame({"odd": pd.Series([1, "x"], dtype=object)})
    assert rows(frame).take([1, 0])["odd"].tolist() == ["x", 1]


def test_pandas_names_become_strings():
    assert rows(pd.DataFrame(np.ones((2, 2)))).columns == ("0", "1")


def test_time_zones_become_utc():
    when = pd.to_datetime(["2020-01-01T12:00+02:00"]).tz_convert("Europe/Helsinki")
    column = rows(pd.DataFrame({"when": when})).take([0])["when"]
    assert column[0] == np.datetime64("2020-01-01T10:00")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "no columns"),
        ({"x": [1.0, 2.0], "y": [1]}, r"differ in length \('x' 2, 'y' 1\)"),
        ({"x": []}, "The table is empty"),
        ({"x": 3.0}, "'x' is a single float"),
        ({"x": [[1.0], [1.0, 2.0]]}, "'x' is ragged"),
        ({1: [1.0]}, "Column names are strings; 1 is not"),
        ({"x": pa.array([[1], [1, 2]])}, "'x' has a list of 2 numbers in row 1 and of 1 before"),
        ({"x": pa.array([["a"], ["b"]])}, "'x' has type list<item: string>"),
    ],
)
def test_bad_mappings(columns, message):
    with pytest.raises(RowsError, match=message):
        rows(columns)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns of the same name"),
        (pl.LazyFrame({"a": [1]}), r"LazyFrame is not a table; .*a lazy one after \.collect"),
        (pd.DataFrame({"a": np.empty(0)}), "The table is empty"),
        (pl.DataFrame({"a": []}), "The table is empty"),
        (pd.DataFrame(), "no columns"),
        (pl.DataFrame({"a": [[1], [1, 2]]}), "'a' has a list of 2 numbers in row 1"),
    ],
)
def test_bad_frames(frame, message):
    with pytest.raises(RowsError, match=message):
        rows(frame)


def test_an_xarray_dataset_is_sent_to_its_data_frame():
    with pytest.raises(RowsError, match=r"xarray Dataset is not a table; .*to_dataframe"):
        rows(xr.Dataset({"y": ("row", np.arange(3.0))}))


def test_a_matrix_is_one_column():
    matrix = np.arange(6.0).reshape(3, 2)
    table = rows(matrix)
    assert table.n_rows == 3
    np.testing.assert_array_equal(table.take(np.array([2]))["x"], matrix[2:])
