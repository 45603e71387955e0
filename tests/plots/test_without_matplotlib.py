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
    assert "install decoct[plots]" in run(HIDDEN)


def test_nothing_is_imported_early_and_pyplot_never():
    pytest.importorskip("matplotlib")
    run(QUIET)
