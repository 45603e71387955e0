"""What a process pays before it works: ``python -m benchmarks.startup``, half a minute.

Processor and elapsed seconds of new processes, byte code there: the median of several, one after
another.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from benchmarks.tables import RESULTS, write_csv

TIMES = 7

COMMANDS = {
    "python, nothing": ["-c", "pass"],
    "import decoct": ["-c", "import decoct"],
    "decoct --help": ["-m", "decoct", "--help"],
    "import jax": ["-c", "import jax"],
    "import decoct; decoct.build": ["-c", "import decoct; decoct.build"],
}


def measure(arguments: list[str]) -> tuple[float, float]:
    """Return processor and elapsed seconds of one process."""
    before, started = os.times(), time.perf_counter()
    command = [sys.executable, *arguments]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    elapsed, after = time.perf_counter() - started, os.times()
    used = after.children_user + after.children_system
    return used - before.children_user - before.children_system, elapsed


def main() -> None:
    lines = []
    for name, arguments in COMMANDS.items():
        measure(arguments)
        runs = [measure(arguments) for _ in range(TIMES)]
        cpu, elapsed = (statistics.median(values) for values in zip(*runs, strict=True))
        print(f"{name:30s}{cpu:6.2f} CPU s{elapsed:7.2f} s")
        lines.append({"process": name, "cpu_s": round(cpu, 3), "elapsed_s": round(elapsed, 3)})
    write_csv(RESULTS / "startup.csv", lines)


if __name__ == "__main__":
    main()
