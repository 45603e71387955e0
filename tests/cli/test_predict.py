"""``decoct predict``: a coreset file and new rows to predictions, against Python's own."""

import io

import numpy as np
import pandas as pd
import pytest

import decoct as package
from decoct.cli import main
from tests.cli.test_app_bad_input import files, require_refusal


@pytest.fixture(scope="module")
def posterior(late, tmp_path_factory):
    path = tmp_path_factory.mktemp("posterior") / "posterior.nc"
    words = ["sample", late, "-o", path, "--draws", 100, "--chains", 2, "--warmup", 200]
    assert main([str(word) for word in words]) == 0
    return path


@pytest.fixture(scope="module")
def new(data, tmp_path_factory):
    """New rows without the response."""
    path = tmp_path_factory.mktemp("new") / "new.csv"
    pd.read_csv(data / "flights.csv")[["origin", "temp"]][:100].to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def wanted(late, new, posterior):
    from decoct.cli.output import read_posterior

    coreset = package.load(late)
    draws = read_posterior(posterior)
    return lambda **options: coreset.predict(str(new), draws, **options)


def test_lines_go_to_stdout_as_csv(decoct, late, new, posterior, wanted):
    result = decoct("predict", late, new, "--posterior", posterior)
    assert (result.code, result.err) == (0, "")
    heading, *lines = result.out.splitlines()
    assert heading == "mean,sd,q5,q50,q95"
    np.testing.assert_array_equal([[float(x) for x in one.split(",")] for one in lines], wanted())


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_files_hold_the_same(decoct, late, new, posterior, wanted, tmp_path, monkeypatch, ending):
    monkeypatch.setattr("decoct.passes.potentials.MOST_ROWS", 32)  # several chunks
    path = tmp_path / f"p.{ending}"
    words = ["--posterior", posterior, "--kind", "response", "--seed", 3, "-o", path]
    result = decoct("predict", late, new, *words, "--quantiles", 0.1, 0.9)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{path}: 100 rows predicted\n"
    read = {"parquet": pd.read_parquet, "csv": pd.read_csv}[ending]
    same = wanted(kind="response", seed=3, quantiles=(0.1, 0.9))
    assert list(read(path).columns) == ["mean", "sd", "q10", "q90"]
    np.testing.assert_allclose(read(path), same, rtol=1e-15)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_without_draws_the_coreset_is_sampled(decoct, late, new, wanted, monkeypatch):
    sample = package.Coreset.sample
    monkeypatch.setattr(
        package.Coreset,
        "sample",
        lambda self, **options: sample(self, sampler=package.samplers.Laplace(), **options),
    )
    result = decoct("predict", late, new)
    assert result.code == 0
    lines = pd.read_csv(io.StringIO(result.out))
    # the same posterior: within five errors of the mean of 200 correlated draws
    assert (np.abs(lines["mean"] - wanted()["mean"]) < 0.7 * wanted()["sd"]).all()


def test_a_reader_who_has_gone_ends_the_work(decoct, late, new, posterior, monkeypatch):
    monkeypatch.setattr("decoct.passes.potentials.MOST_ROWS", 32)
    printed = []
    monkeypatch.setattr("decoct.cli.output.put", printed.append)  # None: nobody reads on
    assert decoct("predict", late, new, "--posterior", posterior).code == 0
    assert len(printed) == 1


REFUSED = {
    "ending": (["{new}", "-o", "{tmp}/p.txt"], "must end in .parquet, .pq, .csv"),
    "onto the table": (["{new}", "-o", "{new}"], "part of the table"),
    "onto the coreset": (["{new}", "-o", "{late}.csv"], "is the coreset file"),
    "kind": (["{new}", "--kind", "epred"], "epred"),
    "quantiles": (["{new}", "--posterior", "{posterior}", "--quantiles", "2"], "between 0 and 1"),
    "seed": (["{new}", "--seed", "-1"], "--seed"),
    "no table": ([], "TABLE"),
    "no posterior": (["{new}", "--posterior", "{tmp}/none.nc"], "none.nc"),
    "column": (["{tmp}/narrow.csv", "--posterior", "{posterior}"], "no column 'temp'"),
    "level": (
        ["{tmp}/level.csv", "--posterior", "{posterior}", "-o", "{tmp}/p.parquet"],
        "Column 'origin' has the value 'BOS' in row 1",
    ),
    "empty": (["{tmp}/empty.csv", "--posterior", "{posterior}"], "empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input(decoct, late, new, posterior, tmp_path, case):
    words, named = REFUSED[case]
    table = pd.DataFrame({"origin": ["JFK", "BOS"], "temp": [1.0, 2.0]})
    table.to_csv(tmp_path / "level.csv", index=False)
    table[["origin"]].to_csv(tmp_path / "narrow.csv", index=False)
    table[:0].to_csv(tmp_path / "empty.csv", index=False)
    (tmp_path / "late.csv").write_bytes(late.read_bytes())
    known = {"new": new, "tmp": tmp_path, "posterior": posterior, "late": tmp_path / "late"}
    file = tmp_path / "late.csv" if case == "onto the coreset" else late
    before = files(tmp_path)
    require_refusal(decoct("predict", file, *(word.format(**known) for word in words)), named)
    assert files(tmp_path) == before
