"""Pages of tables say what the committed CSV files say."""

import re

import pytest

from benchmarks import pages


@pytest.mark.parametrize("name", list(pages.texts()))
def test_the_committed_page_is_what_the_command_writes(name):
    committed = (pages.DOCS / name).read_text(encoding="utf-8")
    assert committed == pages.texts()[name], "run `python -m benchmarks.pages`"


def test_the_figures_of_the_readme_are_those_of_the_demo():
    committed = (pages.ROOT / "README.md").read_text(encoding="utf-8")
    assert committed == pages.readme(), "run `python -m benchmarks.pages`"


def test_no_page_is_left_over():
    assert {path.name for path in pages.DOCS.glob("*.md")} == set(pages.texts())


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        ("", "2", ""),
        ("0.0", "2", "0"),
        ("-inf", "2", "–"),
        ("0.00012345", "2", "1.2e-4"),
        ("0.0449", "2", "0.045"),
        ("0.99996", "2", "1.0"),
        ("606.9", "2", "607"),
        ("244502.1", "2", "2.4e5"),
        ("291140", "count", "291,140"),
        ("185.5", "count", "185.5"),
        ("a|b", "text", "a\\|b"),
    ],
)
def test_values_are_shown_with_the_digits_asked_for(value, kind, shown):
    assert pages.show(value, kind) == shown


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_every_line_of_a_table_has_as_many_cells_as_its_head(page):
    for table in page.tables:
        head, *body = table.lines()
        assert body
        assert {len(line) for line in body} == {len(head)}
        assert any(any(re.search(r"\d", cell) for cell in line) for line in body)
