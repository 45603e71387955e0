"""What the benchmarks share: CSV files, timing, and parts run in processes of their own."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write one line a mapping; columns in the order of their first appearance."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = list(dict.fromkeys(key for one in rows for key in one))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file that `write_csv` wrote, or none if there is none."""
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def best_of(function: Callable[[], Any], times: int = 3) -> float:
    """Return the shortest of several runs in seconds, after one to warm up."""
    function()
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def in_process(module: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run a module in a process of its own and return the JSON object of its last line."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])
