"""Importing the pictures needs no matplotlib, and drawing them leaves no trace in pyplot."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDDEN = """
import sys
sys.modules["matplotlib"] = None
import decoct.plots
try:
    decoct.plots.kl_against_size({"coreset": ([10], [0.1])})
except decoct.DecoctError as error:
    print(error)
"""

WITHOUT_JINJA = """
import sys
sys.modules["jinja2"] = None
import decoct
rows = {"y": [0.0, 1.0, 2.0]}
model = decoct.Model(lambda p, r: -(r["y"] - p["m"]) ** 2, lambda p: -p["m"] ** 2, {"m": 0.0})
coreset = decoct.build(model, rows, size=2, method=decoct.constructions.Uniform())
try:
    decoct.write_report(coreset, path="report.html")
except decoct.DecoctError as error:
    print(error)
"""

QUIET = """
import sys
import decoct.plots
assert "matplotlib" not in sys.modules
decoct.plots.kl_against_size({"coreset": ([10], [0.1])})
decoct.plots.intervals({"coreset": (["a"], [1.0], [1.0])})
assert "matplotlib.pyplot" not in sys.modules
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_missing_matplotlib_is_told_when_drawing():
    assert "pip install 'decoct[plots]'" in run(HIDDEN)


def test_a_missing_jinja2_is_told_before_any_work():
    pytest.importorskip("matplotlib")
    assert run(WITHOUT_JINJA) == "The report page needs jinja2; pip install 'decoct[plots]'.\n"


def test_nothing_is_imported_early_and_pyplot_never():
    pytest.importorskip("matplotlib")
    run(QUIET)
