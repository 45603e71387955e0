"""Memory does not grow with the table."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

WALK = """
import resource, sys, decoct
table = decoct.rows(sys.argv[1])
for _ in range(2):
    table.map_reduce(lambda c: c.columns["a"].sum() + c.columns["b"].sum(), float.__add__,
                     columns=["a", "b"])
table.take(range(0, table.n_rows, table.n_rows // 50), ["a"])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted in other units elsewhere")
def test_walks_and_takes_in_bounded_memory(tmp_path):
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
        words = [sys.executable, "-c", WALK, str(tmp_path / folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 30
