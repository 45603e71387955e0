"""The code blocks of the pages on samplers and Stan, run as they stand."""

import re
from pathlib import Path

import jax
import pytest

DOCS = Path(__file__).parents[2] / "docs"


def run(page, monkeypatch, folder):
    """Run a page's Python blocks one after another, as a reader would."""
    monkeypatch.chdir(folder)
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    names = {}
    for block in blocks:
        exec(compile(block, f"{page}: {block.splitlines()[0]}", "exec"), names)
    return names, len(blocks)


def test_samplers(monkeypatch, tmp_path):
    pytest.importorskip("emcee")
    names, blocks = run("samplers.md", monkeypatch, tmp_path)
    assert blocks == 6
    assert names["check"].ok
    laplace = names["decoct"].laplace(
        names["model"], names["coreset"].rows, names["coreset"].weights
    )
    assert names["best"].x == pytest.approx(laplace.mean, abs=1e-3)
    assert -0.7 < names["per_row"] < -0.4
    assert not jax.config.read("jax_enable_x64")


def test_stan(monkeypatch, tmp_path):
    pytest.importorskip("stanli")
    names, blocks = run("stan.md", monkeypatch, tmp_path)
    assert blocks == 3
    assert names["check"].ok
    text = (DOCS / "stan.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```stan\n(data.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert [names["program"].strip()] == [one.strip() for one in shown]
