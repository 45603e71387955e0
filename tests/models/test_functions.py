"""`decoct.Model`: which columns it is given, and what becomes of the others."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import decoct
from decoct.building.checkpoint import read_checkpoint
from decoct.errors import ModelError, RequestError, RowsError
from decoct.samplers import Laplace
from decoct.streams import StreamingCoreset

N, WIDTH = 20_000, 300


def potential(params, rows):
    return -0.5 * (rows["y"] - params["slope"] * rows["x"]) ** 2


def line(columns=("x", "y"), function=potential):
    prior = lambda params: -0.5 * params["slope"] ** 2  # noqa: E731
    return decoct.Model(function, prior, {"slope": 0.0}, columns=columns)


def build(model, rows, **how):
    return decoct.build(model, rows, size=5, sampler=Laplace(), **how)


@pytest.fixture(scope="module")
def table():
    """Two columns that count, one with holes and one of text."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=N)
    y = 2.0 * x + rng.normal(size=N)
    return {"x": x, "y": y, "gaps": np.where(x > 0, x, np.nan), "name": np.repeat("row", N)}


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    path = tmp_path_factory.mktemp("wide")
    columns = {**table, **{f"c{i}": table["x"] for i in range(WIDTH - len(table))}}
    pq.write_table(pa.table(columns), path / "t.parquet", use_dictionary=False, compression="none")
    return path


@pytest.fixture(scope="module")
def coreset(table):
    return build(line(), {name: table[name] for name in ("x", "y")})


def test_other_columns_are_not_looked_at(table, coreset):
    found = build(line(), table)
    np.testing.assert_array_equal(found.indices, coreset.indices)
    np.testing.assert_array_equal(found.weights, coreset.weights)
    assert set(found.rows) == {"x", "y"}
    with pytest.raises(RowsError, match="Column 'gaps' has NaN"):
        build(line(None), table)
    several = {name: table[name][:3] for name in table}
    assert list(line(["y", "x"]).encode(several)) == ["y", "x"]


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="bytes read are counted on Linux")
def test_other_columns_of_a_file_are_not_read(folder, coreset):
    def bytes_read():
        with open("/proc/self/io") as file:
            return int(next(text for text in file if text.startswith("rchar")).split()[1])

    before = bytes_read()
    found = build(line(), folder)
    read = bytes_read() - before
    np.testing.assert_array_equal(found.indices, coreset.indices)
    np.testing.assert_array_equal(found.weights, coreset.weights)
    assert set(found.rows) == {"x", "y"}
    size = (folder / "t.parquet").stat().st_size
    walks = found.report.passes + 5  # rows are taken, too
    assert 2 * N * 8 < read < walks * (2 * N * 8 + 500_000) < size / 2


def test_the_file_and_the_checkpoint_know_the_columns(table, coreset, tmp_path, monkeypatch):
    assert line().to_dict() == {"kind": "custom", "name": "Model", "columns": ["x", "y"]}
    assert "columns" not in line(None).to_dict()
    coreset.save(tmp_path / "c.parquet")
    again = decoct.load(tmp_path / "c.parquet", model=line())
    at = np.array([1.9])
    assert again.log_density(at) == coreset.log_density(at)

    def stopped(*_, **__):
        raise KeyboardInterrupt

    rows, saved = {**table, "z": table["x"]}, tmp_path / "saved"
    with monkeypatch.context() as patch:
        patch.setattr("decoct.building.driver.Report", stopped)
        with pytest.raises(KeyboardInterrupt):
            build(line(), rows, checkpoint=saved)
    assert read_checkpoint(saved)["request"]["columns"] == ["x", "y"]
    with pytest.raises(RequestError, match="is of another build: its model is"):
        build(line(("x", "y", "z")), rows, checkpoint=saved)
    found = build(line(), rows, checkpoint=saved)
    np.testing.assert_array_equal(found.weights, coreset.weights)


def test_a_stream_holds_the_columns_alone(table, tmp_path):
    stream = StreamingCoreset(line(), 5, sampler=Laplace())
    stream.update({name: table[name][:700] for name in table})
    stream.save(tmp_path / "stream.npz")
    again = StreamingCoreset.load(tmp_path / "stream.npz", line(), sampler=Laplace())
    assert set(again.coreset.rows) == {"x", "y"}


def asks_for_more(params, rows):
    return potential(params, rows) + 0.0 * rows["z"]


@pytest.mark.parametrize("function", [asks_for_more, jax.jit(asks_for_more)])
def test_a_column_that_was_not_named_is_a_sentence(table, function):
    rows = {**table, "z": table["x"]}
    sentence = r"asks for 'z', which is neither .* nor among the model's columns \(x, y\); name a"
    with pytest.raises(ModelError, match=sentence):
        build(line(function=function), rows)
    assert build(line(("x", "y", "z"), function), rows).size <= 5


def test_a_bug_of_another_kind_stays_as_it_is(table):
    def buggy(params, rows):
        return {"a": jnp.zeros(len(rows["x"]))}["x"]

    with pytest.raises(KeyError, match=r"^'x'"):
        build(line(function=buggy), table)


@pytest.mark.parametrize("columns", ["xy", ("x", 3), (), ("x", "x"), {"x": 1}])
def test_what_is_no_list_of_names_is_refused(columns):
    with pytest.raises(ModelError, match="columns"):
        line(columns)


def test_a_named_column_that_the_table_lacks(table):
    with pytest.raises(RowsError, match="no column 'w'"):
        build(line(("x", "y", "w")), table)


def divided_by_the_rows(params, rows):
    return potential(params, rows) / rows["x"].shape[0]


def minus_the_mean(params, rows):
    eta = params["slope"] * rows["x"]
    return -0.5 * (rows["y"] - eta + jnp.mean(eta)) ** 2


def ranked(params, rows):
    return potential(params, rows) * jnp.argsort(rows["x"])


@pytest.mark.parametrize("function", [divided_by_the_rows, minus_the_mean, ranked])
def test_a_likelihood_that_mixes_rows_is_refused(table, folder, function):
    model = line(function=function)
    for rows in ({"x": table["x"], "y": table["y"]}, folder):
        wanted = rf"{function.__name__} mixes rows: row \d has log-likelihood"
        with pytest.raises(ModelError, match=wanted):
            build(model, rows)


@pytest.mark.parametrize("name", ["log_likelihood", "log_prior", "likelihood_params"])
def test_what_is_no_function_is_refused(name):
    given = {"log_likelihood": potential, "log_prior": potential, name: ("z",)}
    with pytest.raises(ModelError, match=rf"{name} is \('z',\); give a function of the parameters"):
        decoct.Model(**given, init={"slope": 0.0})


@pytest.mark.parametrize("init", [lambda rows: 0.0, {"slope": "steep"}])
def test_an_init_that_is_no_numbers_is_refused(init):
    with pytest.raises(ModelError, match="init must hold arrays of numbers"):
        decoct.Model(potential, lambda params: 0.0, init)


@pytest.mark.parametrize("option", [{"draws": 1.5}, {"chains": "two"}, {"warmup": 0}])
def test_draws_are_whole_numbers(table, option):
    coreset = build(line(), {"x": table["x"][:100], "y": table["y"][:100]})
    with pytest.raises(RequestError, match=f"{next(iter(option))} must be a whole number"):
        coreset.sample(**option)
