"""``decoct compare`` and ``decoct report``: what is printed, what is written, what is refused."""

import csv
import html

import pytest

FORMULA = ("--formula", "late ~ temp + C(origin)", "--family", "bernoulli")


@pytest.fixture(scope="module")
def compared(data, tmp_path_factory):
    from decoct.cli import main

    folder = tmp_path_factory.mktemp("compared") / "new"
    words = ["compare", data / "flights.parquet", *FORMULA, "--sizes", 8, 20, "--draws", 50]
    assert main([str(word) for word in [*words, "-o", folder]]) == 0
    return folder


def test_compare_writes_a_line_a_method_and_size(compared):
    with (compared / "compared.csv").open() as file:
        lines = list(csv.DictReader(file))
    methods = {line["method"] for line in lines}
    assert {"uniform", "sensitivity", "GIGA", "SparseVI", "moment matching"} <= methods
    assert [line["size"] for line in lines if line["method"] == "uniform"] == ["8", "20"]
    assert all(float(line["kl"]) >= 0.0 for line in lines)
    assert (compared / "compared.png").stat().st_size > 10_000


def test_compare_refuses_before_any_work(decoct, data, tmp_path):
    table = data / "flights.parquet"
    result = decoct("compare", table, *FORMULA, "--sizes=-1")
    assert result.code == 2
    assert "--sizes" in result.err
    assert "must be >= 0" in result.err
    (tmp_path / "file").write_text("")
    result = decoct("compare", table, *FORMULA, "--sizes", 5, "-o", tmp_path / "file")
    assert result.code == 2
    assert "is a file; give a folder" in result.err
    result = decoct("compare", table, *FORMULA, "--sizes", 5000)
    assert result.code == 2
    assert "sizes has 5000 but the table has 600 rows" in result.err


def test_report_with_the_table_certifies(decoct, data, late, tmp_path):
    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    result = decoct("report", late, data / "flights.parquet", "-o", page)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{page}: good")
    written = page.read_text()
    assert "Pareto k-hat" in written
    words = html.unescape(written)
    assert "--formula 'late ~ temp + C(origin)' --family bernoulli --size 25" in words
    assert "origin)[T.LGA]" in written


def test_report_without_the_table_says_that_nothing_is_certified(decoct, late, tmp_path):
    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    result = decoct("report", late, "-o", page)
    assert result.code == 0
    assert "not certified" in result.out
    assert "Not certified." in page.read_text()


def test_report_refuses_another_table_and_writes_nothing(decoct, data, late, tmp_path):
    page = tmp_path / "report.html"
    result = decoct("report", late, data / "parts" / "a.parquet", "-o", page)
    assert result.code == 2
    assert "built from 600 rows" in result.err
    assert not page.exists()
    result = decoct("report", late, "-o", late)
    assert result.code == 2


def test_ctrl_c_between_two_files_does_not_say_that_there_are_none(
    decoct, data, tmp_path, monkeypatch
):
    def interrupted(self, *_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("decoct.plots.comparison", interrupted)
    words = ("compare", data / "flights.parquet", *FORMULA, "--sizes", 8, "--draws", 50)
    result = decoct(*words, "-o", tmp_path / "new")
    assert result.code == 130
    assert "interrupted; not all files were written" in result.err
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["compared.csv"]
