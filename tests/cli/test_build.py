"""``decoct build``: the four families, the forms a table may have, what is printed."""

import numpy as np
import pyarrow.parquet as pq
import pytest

import decoct as package
from decoct.constructions import IteratedHilbert


@pytest.mark.parametrize(
    ("family", "response", "file"),
    [
        ("gaussian", "delay", "flights.csv"),
        ("bernoulli", "late", "flights.parquet"),
        ("poisson", "trips", "flights.csv"),
        ("student", "wild", "flights.parquet"),
    ],
)
def test_build_writes_a_coreset_of_each_family(decoct, data, tmp_path, family, response, file):
    output, formula = tmp_path / "c.parquet", f"{response} ~ temp + C(origin)"
    result = decoct(
        "build", data / file, "--formula", formula, "--family", family,
        "--size", 30, "-o", output, "--json",
    )  # fmt: skip
    assert result.code == 0
    figures, coreset = result.json, package.load(output)
    assert figures["ok"]
    assert figures["size"] == coreset.size <= 30
    assert figures["n_rows"] == coreset.n_rows == 600
    assert figures["predicted_kl"] < 0.1
    assert figures["family"] == family
    assert figures["formula"] == formula
    assert figures["coefficients"] == ["Intercept", "temp", "C(origin)[T.JFK]", "C(origin)[T.LGA]"]
    assert result.err == ""
    assert set(pq.read_table(output).column_names) >= {"_row", "_weight", response, "temp"}


def test_all_forms_of_a_table_give_the_same_coreset(decoct, data, tmp_path, late):
    parts = data / "parts"
    forms = [
        [parts],
        [parts / "*.parquet"],
        [parts / "a.parquet", parts / "b.parquet"],
    ]
    expected = package.load(late)
    for form in forms:
        output = tmp_path / "c.parquet"
        result = decoct(
            "build", *form, "--formula", "late ~ temp + C(origin)", "--family", "bernoulli",
            "--size", 25, "-o", output, "--quiet",
        )  # fmt: skip
        assert (result.code, result.out, result.err) == (0, "", "")
        coreset = package.load(output)
        np.testing.assert_array_equal(coreset.indices, expected.indices)
        np.testing.assert_allclose(coreset.weights, expected.weights, rtol=1e-6)


def test_kl_builds_certify_and_an_old_output_is_replaced(decoct, data, tmp_path):
    output = tmp_path / "c.parquet"
    output.write_text("old")
    result = decoct(
        "build", data / "flights.csv", "--formula", "late ~ temp + C(origin)",
        "--family", "bernoulli", "--kl", 0.05, "-o", output, "--checkpoint", tmp_path / "saved",
    )  # fmt: skip
    assert result.code == 0
    assert "of 600 rows kept" in result.out
    assert f"decoct sample {output}" in result.out
    assert package.load(output).report.status.name == "REACHED"
    assert [path.name for path in tmp_path.iterdir()] == ["c.parquet"]


def test_no_row_is_a_size_too(decoct, data, tmp_path):
    output = tmp_path / "c.parquet"
    result = decoct(
        "build", data / "flights.csv", "--formula", "late ~ temp + C(origin)",
        "--family", "bernoulli", "--size", 0, "--site", "-o", output, "--json",
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    assert (result.json["size"], result.json["size_asked"], result.json["ok"]) == (0, 0, True)
    coreset = package.load(output)
    assert coreset.size == 0
    assert coreset.site is not None


def test_a_build_that_falls_short_is_written_and_exits_1(decoct, data, tmp_path, monkeypatch):
    """One round from a small pilot cannot tell whether its draws have settled."""
    hasty = IteratedHilbert(site=False, max_rounds=1, pilot=60)
    monkeypatch.setattr("decoct.constructions.base.make_construction", lambda _: hasty)
    output = tmp_path / "c.parquet"
    result = decoct(
        "build", data / "flights.csv", "--formula", "late ~ temp + C(origin)",
        "--family", "bernoulli", "--size", 4, "--prior-scale", 2, "--no-standardize",
        "-o", output, "--json",
    )  # fmt: skip
    coreset = package.load(output)
    assert not coreset.report.status.ok
    assert (result.code, result.json["ok"]) == (1, False)
    assert result.json["status"] == coreset.report.status.name
    assert result.err == f"decoct: {coreset.report.status.value}\n"
    assert (coreset.model.design.scale == 1.0).all()
    assert coreset.model.base.prior_scale == 2.0


@pytest.mark.parametrize(
    ("method", "name"),
    [
        ("pursuit", "Hilbert"),
        ("frank-wolfe", "Hilbert"),
        ("giga", "Hilbert"),
        ("importance-sampling", "Hilbert"),
        ("sparse-vi", "SparseVI"),
        ("sensitivity", "Sensitivity"),
        ("uniform", "Uniform"),
    ],
)
def test_every_method_of_the_papers_by_its_name(decoct, data, tmp_path, method, name):
    output = tmp_path / "c.parquet"
    arguments = (
        "build", data / "flights.parquet", "--formula", "late ~ temp", "--family", "bernoulli",
        "-o", output, "--method", method,
    )  # fmt: skip
    result = decoct(*arguments, "--size", 20, "--json")
    assert result.code == (0 if result.json["ok"] else 1)
    assert result.json["method"] == name
    assert 1 <= package.load(output).size <= 20
    refused = decoct(*arguments, "--kl", 0.1)
    assert refused.code == 2
    assert "takes size=" in refused.err
