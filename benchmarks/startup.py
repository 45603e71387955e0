"""What a process pays before it works: ``python -m benchmarks.startup``, two minutes.

Processor and elapsed seconds of new processes, byte code there: the median of several, one after
another. And those of the whole demonstration, with an empty and a full compilation cache.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.tables import RESULTS, write_csv

TIMES = 7

COMMANDS = {
    "python, nothing": ["-c", "pass"],
    "import decoct": ["-c", "import decoct"],
    "decoct --help": ["-m", "decoct", "--help"],
    "import jax": ["-c", "import jax"],
    "import decoct; decoct.build": ["-c", "import decoct; decoct.build"],
}


def measure(arguments: list[str], **options: Any) -> tuple[float, float]:
    """Return processor and elapsed seconds of one process."""
    before, started = os.times(), time.perf_counter()
    command = [sys.executable, *arguments]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command, check=True, **quiet, **options)
    elapsed, after = time.perf_counter() - started, os.times()
    used = after.children_user + after.children_system
    return used - before.children_user - before.children_system, elapsed


def main() -> None:
    lines: list[dict[str, Any]] = []

    def add(name: str, runs: list[tuple[float, float]]) -> None:
        cpu, elapsed = (statistics.median(values) for values in zip(*runs, strict=True))
        print(f"{name:30s}{cpu:6.2f} CPU s{elapsed:7.2f} s", flush=True)
        lines.append({"process": name, "cpu_s": round(cpu, 3), "elapsed_s": round(elapsed, 3)})

    for name, arguments in COMMANDS.items():
        measure(arguments)
        add(name, [measure(arguments) for _ in range(TIMES)])
    with tempfile.TemporaryDirectory() as folder:
        own = {"cwd": folder, "env": {**os.environ, "XDG_CACHE_HOME": folder}}
        for cache in ("an empty", "a full"):
            add(f"decoct demo, {cache} cache", [measure(["-m", "decoct", "demo"], **own)])
    write_csv(RESULTS / "startup.csv", lines)


if __name__ == "__main__":
    main()
