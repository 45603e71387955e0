"""Freed buffers stay with the process."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource
from decoct.runtime.resources import keep_buffers
print(int(keep_buffers()))
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
c.free.argtypes = [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def use():
    buffer = c.malloc(1 << 24)
    c.memset(buffer, 1, 1 << 24)
    c.free(buffer)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(**environment: str) -> tuple[int, int]:
    words = [sys.executable, "-c", FAULTS]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    kept, faults = map(int, done.stdout.split())
    return kept, faults


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc only"
)
def test_a_buffer_is_paged_in_once():
    eager = {"MALLOC_TRIM_THRESHOLD_": "65536"}  # as in the worker processes of Dask
    kept, faults = run(**eager)
    left_alone, many = run(**eager, DECOCT_KEEP_BUFFERS="0")
    assert (kept, left_alone) == (1, 0)
    assert faults < 100
    assert many > 20 * 2048
