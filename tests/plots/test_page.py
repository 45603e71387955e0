"""The report: one page that stands alone, says what is known, and shows it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import decoct
import decoct.plots
from decoct.constructions import Uniform
from decoct.models.formula.model import from_formula
from decoct.plots.page import MOST_ROWS, Parameter, report_page

pytest.importorskip("matplotlib")

N = 2000
HOSTILE = "<script>alert(1)</script>&"


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    port = np.array(["here", HOSTILE], dtype=object)[rng.integers(2, size=N)]
    a = rng.normal(size=N)
    return {"y": (rng.random(N) < 1 / (1 + np.exp(-a))).astype(int), "a": a, "port": port}


@pytest.fixture(scope="module")
def coreset(table):
    model = from_formula("y ~ a + C(port)", decoct.rows(table), "bernoulli")
    return decoct.build(model, table, size=30)


@pytest.fixture(scope="module")
def check(coreset, table):
    return decoct.check(coreset, table, coreset.sample(draws=100, warmup=200))


PARAMETERS = [Parameter("a", 1.0, 0.1, 0.8, 1.2, 1.001, 900.0)]


class Page(HTMLParser):
    """Tags, their attributes, and the words between them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def attributes(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def test_it_needs_nothing_but_itself_and_every_tag_is_closed(coreset, table, check):
    page = Page(report_page(coreset, table, check=check, parameters=PARAMETERS))
    assert page.open == []
    assert not page.attributes("script")
    assert not page.attributes("link")
    assert all(one["src"].startswith("data:image/png;base64,") for one in page.attributes("img"))
    assert [one["alt"] for one in page.attributes("img")] == [
        "Posterior intervals",
        "Weights of the kept rows",
        "Kept rows among all rows",
    ]


def test_the_figures_are_the_certificate_s(coreset, check):
    text = Page(report_page(coreset, check=check)).text
    assert check.verdict[1:] in text
    assert f"{check.kl:.2g} KL(coreset‖full), nats" in text
    assert f"{check.khat:.2f} Pareto k-hat" in text
    assert "all rows evaluated at the draws" in text
    sampled = Page(report_page(coreset, check=replace(check, sampled_rows=99))).text
    assert "99, and second-order sums of all rows evaluated at the draws" in sampled
    assert f"{coreset.size} of {N:,} rows, LogisticRegression on y ~ a + C(port)" in text
    heaviest = coreset.indices[np.argmax(coreset.weights)]
    assert re.search(rf"\b{heaviest} {coreset.weights.max():,.4g}\b", text)


def test_without_a_certificate_it_says_so(coreset):
    text = Page(report_page(coreset)).text
    assert "Not certified." in text
    assert f"predicted at {coreset.report.predicted_kl:.2g} nats" in text
    assert "k-hat" not in text


def test_a_bad_certificate_is_no_green_page(table):
    model = from_formula("y ~ a + C(port)", decoct.rows(table), "bernoulli")
    poor = decoct.build(model, table, size=4, method=Uniform())
    check = decoct.check(poor, table, poor.sample(draws=100, warmup=200))
    page = Page(report_page(poor, check=check))
    assert not check.ok
    assert check.khat >= 0.7
    assert "verdict bad" in {one.get("class") for one in page.attributes("p")}
    assert f"at least {check.kl_interval[0]:.2g} KL(coreset‖full), nats" in page.text
    assert "Monte Carlo interval" not in page.text
    assert "KL(full‖coreset)" not in page.text


@pytest.mark.parametrize(
    ("kl", "khat", "kind"),
    [(0.01, 0.1, "good"), (0.3, 0.1, "usable"), (0.7, 0.1, "bad"), (1.2, 0.1, "bad")],
)
def test_the_colour_is_the_verdict_s(coreset, check, kl, khat, kind):
    page = Page(report_page(coreset, check=replace(check, kl=kl, khat=khat)))
    assert f"verdict {kind}" in {one.get("class") for one in page.attributes("p")}
    assert check.caveat in page.text


def test_words_of_the_table_are_words_on_the_page(coreset):
    page = report_page(coreset)
    assert "<script>" not in page
    assert HOSTILE in Page(page).text


def test_a_model_without_a_design_says_why_there_is_no_picture():
    rng = np.random.default_rng(0)

    def log_likelihood(params, rows):
        return -0.5 * (rows["y"] - params["m"]) ** 2

    model = decoct.Model(log_likelihood, lambda params: -0.5 * params["m"] ** 2, {"m": 0.0})
    rows = {"y": rng.normal(size=20_000)}
    many = decoct.build(model, rows, size=MOST_ROWS + 50, method=Uniform())
    page = Page(report_page(many, rows, title="A & B"))
    assert "No picture of the kept rows among all" in page.text
    assert f"The {MOST_ROWS} heaviest are listed." in page.text
    assert "A & B" in page.text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the program chromium")
def test_a_browser_shows_it(coreset, table, check, tmp_path):
    file, shot = tmp_path / "report.html", tmp_path / "report.png"
    file.write_text(report_page(coreset, table, check=check, parameters=PARAMETERS))
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    options = ["--window-size=1100,2400", f"--user-data-dir={tmp_path}/profile"]
    subprocess.run(
        [*browser, *options, f"--screenshot={shot}", file.as_uri()],
        check=True,
        capture_output=True,
        timeout=120,
    )
    from matplotlib.image import imread

    picture = imread(shot)
    assert picture.shape[:2] == (2400, 1100)
    colours = picture[..., :3].reshape(-1, 3)
    green = np.abs(colours - np.array([0, 0x9E, 0x73]) / 255).max(axis=1) < 0.02
    blue = np.abs(colours - np.array([0, 0x72, 0xB2]) / 255).max(axis=1) < 0.02
    assert green.sum() > 200  # the bar of the verdict
    assert blue.sum() > 500  # the pictures


def test_weights_are_drawn_largest_first(coreset):
    figure = decoct.plots.kept_weights(coreset)
    left, right = figure.axes
    drawn = left.lines[0].get_ydata()
    np.testing.assert_allclose(drawn, np.sort(coreset.weights)[::-1])
    share = right.lines[0].get_ydata()
    assert (np.diff(share) > 0).all()
    assert share[-1] == pytest.approx(100.0)
