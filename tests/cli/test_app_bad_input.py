"""Bad input ends with code 2, one sentence on stderr, nothing on stdout, nothing written."""

import re

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

FORMULA = ["--formula", "delay ~ temp"]
SIZE = ["--size", 5]

BUILDS = {
    "missing table": ("{data}/none.csv", [*FORMULA, *SIZE], "none.csv"),
    "not a table": ("{data}/late.txt", [*FORMULA, *SIZE], "late.txt"),
    "no match": ("{data}/no*.csv", [*FORMULA, *SIZE], "no*.csv"),
    "empty table": ("{bad}/empty.csv", [*FORMULA, *SIZE], "empty"),
    "empty parquet": ("{bad}/empty.parquet", [*FORMULA, *SIZE], "empty"),
    "zero bytes": ("{bad}/zero.csv", [*FORMULA, *SIZE], "zero.csv"),
    "corrupt parquet": ("{bad}/corrupt.parquet", [*FORMULA, *SIZE], "corrupt.parquet"),
    "missing column": ("{data}/flights.csv", ["--formula", "delay ~ rain", *SIZE], "'rain'"),
    "missing response": ("{data}/flights.csv", ["--formula", "rain ~ temp", *SIZE], "'rain'"),
    "text response": ("{data}/flights.csv", ["--formula", "origin ~ temp", *SIZE], "'origin'"),
    "not numeric": ("{data}/flights.csv", ["--formula", "delay ~ np.log(origin)", *SIZE], "origin"),
    "nan": ("{bad}/nan.parquet", [*FORMULA, *SIZE], "row 41"),
    "nan response": ("{bad}/nan.parquet", ["--formula", "temp ~ origin", *SIZE], "row 41"),
    "infinite": ("{bad}/inf.parquet", [*FORMULA, *SIZE], "row 42"),
    "missing text": ("{bad}/null.parquet", ["--formula", "delay ~ origin", *SIZE], "row 43"),
    "labels": (
        "{data}/flights.csv",
        ["--formula", "trips ~ temp", "--family", "bernoulli", *SIZE],
        "'trips'",
    ),
    "negative counts": (
        "{data}/flights.csv",
        ["--formula", "delay ~ temp", "--family", "poisson", *SIZE],
        "'delay'",
    ),
    "fractional counts": (
        "{data}/flights.csv",
        ["--formula", "half ~ temp", "--family", "poisson", *SIZE],
        "'half'",
    ),
    "constant response": (
        "{data}/flights.csv",
        ["--formula", "constant ~ temp", *SIZE],
        "constant",
    ),
    "formula": ("{data}/flights.csv", ["--formula", "delay ~ (temp", *SIZE], "delay ~ (temp"),
    "no response": ("{data}/flights.csv", ["--formula", "temp", *SIZE], "temp"),
    "family": ("{data}/flights.csv", [*FORMULA, *SIZE, "--family", "cauchy"], "cauchy"),
    "size 0": ("{data}/flights.csv", [*FORMULA, "--size", 0, "--method", "uniform"], "no site"),
    "size negative": ("{data}/flights.csv", [*FORMULA, "--size", -3], "at least 0"),
    "size fractional": ("{data}/flights.csv", [*FORMULA, "--size", 1.5], "--size"),
    "size above N": ("{data}/flights.csv", [*FORMULA, "--size", 601], "601"),
    "kl 0": ("{data}/flights.csv", [*FORMULA, "--kl", 0], "kl"),
    "kl nan": ("{data}/flights.csv", [*FORMULA, "--kl", "nan"], "kl"),
    "kl word": ("{data}/flights.csv", [*FORMULA, "--kl", "small"], "--kl"),
    "both": ("{data}/flights.csv", [*FORMULA, *SIZE, "--kl", 1], "both"),
    "prior scale": ("{data}/flights.csv", [*FORMULA, *SIZE, "--prior-scale", 0], "prior_scale"),
    "seed": ("{data}/flights.csv", [*FORMULA, *SIZE, "--seed", -1], "--seed"),
    "no formula": ("{data}/flights.csv", SIZE, "--formula"),
    "option": ("{data}/flights.csv", [*FORMULA, *SIZE, "--sise", 3], "--sise"),
    "no folder": ("{data}/flights.csv", [*FORMULA, *SIZE, "-o", "{data}/none/c"], "none"),
    "folder": ("{data}/flights.csv", [*FORMULA, *SIZE, "-o", "{data}"], "folder"),
    "onto table": ("{data}/flights.csv", [*FORMULA, *SIZE, "-o", "{data}/flights.csv"], "part"),
    "into table": ("{data}/parts", [*FORMULA, *SIZE, "-o", "{data}/parts/c.parquet"], "part"),
    "among table": ("{data}/*.csv", [*FORMULA, *SIZE, "-o", "{data}/c.csv"], "part"),
    "checkpoint": (
        "{data}/flights.csv",
        [*FORMULA, *SIZE, "--checkpoint", "{data}/none/c"],
        "--checkpoint",
    ),
    "checkpoint foreign": (
        "{data}/flights.csv",
        [*FORMULA, *SIZE, "--checkpoint", "{bad}/zero.csv"],
        "checkpoint",
    ),
}


@pytest.fixture(scope="module")
def bad(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bad")
    table = pd.read_parquet(data / "flights.parquet")
    table[:0].to_csv(folder / "empty.csv", index=False)
    table[:0].to_parquet(folder / "empty.parquet")
    (folder / "zero.csv").touch()
    (folder / "corrupt.parquet").write_bytes(b"PAR1 and so on")
    for name, column, row, value in (
        ("nan", "temp", 41, np.nan),
        ("inf", "temp", 42, np.inf),
        ("null", "origin", 43, None),
    ):
        spoilt = table.copy()
        spoilt.loc[row, column] = value
        spoilt.to_parquet(folder / f"{name}.parquet")
    return folder


def files(*folders):
    return {p: p.stat().st_mtime_ns for folder in folders for p in folder.rglob("*")}


def require_refusal(result, named):
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("decoct: ")
    assert result.err.endswith("\n")
    assert result.err.count("\n") == 1
    assert named in result.err
    assert not re.search(r"[.!?] +[A-Z]", result.err), "more than one sentence"


@pytest.mark.parametrize("case", BUILDS)
@pytest.mark.filterwarnings("default")
def test_build_refuses(decoct, data, bad, tmp_path, case):
    table, options, named = BUILDS[case]
    words = [str(word).format(data=data, bad=bad) for word in (table, *options)]
    if "-o" not in words:
        words += ["-o", tmp_path / "c.parquet"]
    before = files(data, bad, tmp_path)
    require_refusal(decoct("build", *words, "--json"), named)
    assert files(data, bad, tmp_path) == before


def other_tables(folder, data):
    """Tables that differ from the coreset's: in length, in a value, in a column."""
    table = pd.read_parquet(data / "flights.parquet")
    table[:-1].to_parquet(folder / "shorter.parquet")
    table.assign(temp=table["temp"] + 1.0).to_parquet(folder / "warmer.parquet")
    table.drop(columns="temp").to_parquet(folder / "narrower.parquet")
    return {"shorter": "599", "warmer": "'temp'", "narrower": "'temp'"}


def test_check_and_plot_refuse_another_table(decoct, data, late, tmp_path):
    for name, named in other_tables(tmp_path, data).items():
        before = files(tmp_path)
        table = tmp_path / f"{name}.parquet"
        require_refusal(decoct("check", late, table), named)
        require_refusal(decoct("plot", late, table, "-o", tmp_path / "pictures"), named)
        assert files(tmp_path) == before


@pytest.mark.parametrize("command", ["sample", "check", "plot"])
def test_a_file_that_is_no_coreset_is_refused(decoct, data, late, tmp_path, command):
    whole = late.read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text").write_text("not Parquet at all")
    damaged = pq.read_table(late)
    pq.write_table(damaged.replace_schema_metadata({b"decoct": b"{"}), tmp_path / "damaged")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "foreign")
    before = files(tmp_path)
    table = {"sample": [], "check": [data / "flights.csv"], "plot": [data / "flights.csv"]}[command]
    output = [] if command == "check" else ["-o", tmp_path / "output"]
    for name in ("cut", "text", "damaged", "foreign", "none"):
        result = decoct(command, tmp_path / name, *table, *output)
        require_refusal(result, str(tmp_path / name))
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--draws", 0], "--draws"),
        (["--chains", 0], "--chains"),
        (["--warmup", 0], "--warmup"),
        (["--draws", 2.5], "--draws"),
        (["--seed", 2**40], "--seed"),
        (["-o", "{data}/none/p.nc"], "none"),
        (["-o", "{data}/late.coreset"], "late.coreset"),
    ],
)
def test_sample_refuses(decoct, data, late, tmp_path, options, named):
    words = [str(word).format(data=data) for word in options]
    if "-o" not in words:
        words += ["-o", tmp_path / "p.nc"]
    before = files(data, tmp_path)
    require_refusal(decoct("sample", late, *words), named)
    assert files(data, tmp_path) == before


def test_an_unwritable_folder_is_met_before_the_table_is_read(decoct, tmp_path, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    result = decoct("build", "none.csv", *FORMULA, *SIZE, "-o", tmp_path / "c.parquet")
    require_refusal(result, "--output")
    assert "Permission denied" in result.err


@pytest.mark.parametrize(
    "words", [["bild"], ["sample"], ["check", "c.parquet"], ["plot", "a", "b"]]
)
def test_words_that_are_no_command_are_refused(decoct, words):
    require_refusal(decoct(*words), words[0])


def test_missing_matplotlib_names_the_extra(decoct, data, late, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    result = decoct("plot", late, data / "flights.csv", "-o", tmp_path / "pictures")
    require_refusal(result, "decoct[plots]")
    assert not list(tmp_path.iterdir())


def test_an_error_in_decoct_is_no_exit_code_of_the_user(decoct, late, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("decoct.load", broken)
    result = decoct("sample", late, "-o", tmp_path / "p.nc")
    assert result.code == 70
    assert "Traceback" in result.err
