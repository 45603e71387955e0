"""What a build loads: its own modules, and no library that it does not use."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

LOADED = """
import json, sys
from pathlib import Path
import decoct
decoct.build
first = sorted(sys.modules)
coreset = decoct.build(decoct.models.LogisticRegression(), sys.argv[1], size=3)
ours = [m for n, m in sys.modules.items() if n.split(".")[0] == "decoct"]
lines = sum(len(Path(m.__file__).read_text().splitlines()) for m in ours)
print(json.dumps([first, len(ours), lines]))
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
    heavy |= {"formulaic", "matplotlib", "scipy.integrate", "scipy.spatial", "scipy.stats"}
    heavy |= {"pyarrow", "narwhals", "rich"}
    assert not heavy & set(loaded[0])


def test_a_build_loads_few_of_our_modules(loaded):
    """Logistic regression on a Parquet file."""
    assert loaded[1] <= 77
    assert loaded[2] <= 11_250
