"""Memory does not grow with the table."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

PEAK = """
import re
def peak():
    with open("/proc/self/status") as file:  # ru_maxrss would start at that of the parent
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", file.read())[1]) // 1024
"""

WALK = """
import sys, decoct
table = decoct.rows(sys.argv[1])
for _ in range(2):
    table.map_reduce(lambda c: c.columns["a"].sum() + c.columns["b"].sum(), float.__add__,
                     columns=["a", "b"])
table.take(range(0, table.n_rows, table.n_rows // 50), ["a"])
print(peak())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_walks_and_takes_in_bounded_memory(tmp_path, users_environment):
    """A folder of 320 MB takes as much memory as one of 20 MB."""
    values = np.random.default_rng(0).normal(size=10**6)
    table = pa.table(dict.fromkeys(("a", "b", "unused", "unused too"), values))
    for folder, n_files in (("small", 1), ("large", 10)):
        (tmp_path / folder).mkdir()
        for i in range(n_files):
            part = table if folder == "large" else table.slice(0, 600_000)
            path = tmp_path / folder / f"{i}.parquet"
            pq.write_table(part, path, use_dictionary=False, compression="none")
    peaks = []
    for folder in ("small", "large"):
        words = [sys.executable, "-c", PEAK + WALK, str(tmp_path / folder)]
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, env=users_environment, timeout=600
        )
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 30


BUILD = """
import sys
import numpy as np
import decoct
from decoct.constructions import IteratedHilbert, LightweightCoreset, Sensitivity
from decoct.samplers import Laplace
def told():
    print(peak())
table, model = decoct.rows(sys.argv[1]), decoct.models.LogisticRegression()
few = {"draws": 60, "pool": 300}
methods = IteratedHilbert(**few), IteratedHilbert(site=False, **few), LightweightCoreset()
methods = *methods, Sensitivity()
for method in methods:
    coreset = decoct.build(model, table, size=50, method=method, sampler=Laplace(), seed=1)
    told()
draws = np.random.default_rng(0).normal(size=(60, 2))
decoct.check(coreset, table, draws)
told()
table.take(np.linspace(0, table.n_rows - 1, 500).astype(int))
told()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_builds_checks_and_takes_in_bounded_memory(tmp_path, users_environment):
    """6.5 million rows take what half a million take: not even a number a row is held."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(250_000, 2))
    y = (rng.random(250_000) < 1.0 / (1.0 + np.exp(-x[:, 0]))).astype(float)
    columns = {"x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 2), "y": pa.array(y)}
    peaks = []
    for n_files in (2, 26):
        folder = tmp_path / str(n_files)
        folder.mkdir()
        for i in range(n_files):
            pq.write_table(pa.table(columns), folder / f"{i:02}.parquet", row_group_size=50_000)
        words = [sys.executable, "-c", PEAK + BUILD, str(folder)]
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, env=users_environment, timeout=1500
        )
        peaks.append([int(word) for word in done.stdout.split()])
    grown = np.diff(peaks, axis=0)[0]
    assert len(grown) == 6
    # a double for each further row is 48 MB; one run differs from the next by up to 30
    assert (grown < 40).all(), peaks
