"""What a build loads: its own modules, and no library that it does not use."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

LOADED = """
import ast, json, sys
from pathlib import Path

DOCUMENTED = ast.Module, ast.ClassDef, ast.FunctionDef


def count_lines(module):
    text = Path(module.__file__).read_text()
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, DOCUMENTED)]
    docs = [n.body[0] for n in nodes if ast.get_docstring(n) is not None]
    return len(text.splitlines()) - sum(d.end_lineno - d.lineno + 1 for d in docs)


import decoct
decoct.build
first = sorted(sys.modules)
coreset = decoct.build(decoct.models.LogisticRegression(), sys.argv[1], size=3)
ours = [m for n, m in sys.modules.items() if n.split(".")[0] == "decoct"]
print(json.dumps([first, len(ours), sum(map(count_lines, ours))]))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "t.parquet"
    pq.write_table(pa.table({"x": [0.0, 1.0, 2.0, 4.0], "y": [0, 1, 0, 1]}), path)
    words = [sys.executable, "-c", LOADED, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_the_door_loads_no_library_it_does_not_use(loaded):
    heavy = {"pandas", "xarray", "arviz_base", "arviz_stats", "blackjax", "pyarrow.dataset"}
    heavy |= {"formulaic", "matplotlib", "scipy.linalg", "scipy.special"}
    heavy |= {"scipy.integrate", "scipy.spatial", "scipy.stats"}
    heavy |= {"pyarrow", "narwhals", "rich"}
    assert not heavy & set(loaded[0])


def test_a_build_loads_few_of_our_modules(loaded):
    """Logistic regression on a Parquet file; lines without docstrings."""
    assert loaded[1] <= 60
    assert loaded[2] <= 8_500
