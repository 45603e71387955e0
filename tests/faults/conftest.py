"""A table, the command that builds from it, and real processes to do harm to."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from decoct.building.checkpoint import read_checkpoint

COMMAND = [sys.executable, "-m", "decoct"]

SLOW_COMMAND = [
    sys.executable,
    "-c",
    """
import sys, time
from decoct.runtime.progress import ProgressBar
advance = ProgressBar.advance
def slowly(bar, *units):
    advance(bar, *units)
    if bar._label.startswith("round "):
        time.sleep(0.2)  # or the build might be over before it is interrupted
ProgressBar.advance = slowly
from decoct.cli import main
sys.exit(main())
""",
]
"""The same command, with time to interrupt it in a round."""

N = 40_000


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> Path:
    """Two Parquet files, large enough that a pass over them can be interrupted."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 4))
    frame = pd.DataFrame(x, columns=list("abcd"))
    frame["y"] = (rng.random(N) < 1 / (1 + np.exp(-x.sum(axis=1)))).astype(np.int64)
    frame[: N // 3].to_parquet(folder / "1.parquet", row_group_size=5000)
    frame[N // 3 :].to_parquet(folder / "2.parquet", row_group_size=5000)
    return folder


KL = 1e-5
"""Nats that take a round to fit and another to certify."""


def build_words(table: Path, output: Path, checkpoint: Path) -> list[str]:
    words = ["build", table, "--formula", "y ~ a + b + c + d", "--family", "bernoulli"]
    words += ["--kl", KL, "--seed", 3, "-o", output, "--checkpoint", checkpoint]
    return [str(word) for word in words]


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes; whatever still runs at the end of the test is killed."""
    running = []

    def start(*words: object, **options) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen([*map(str, words)], text=True, **pipes)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def wait_for(process: subprocess.Popen[str], condition: Callable[[], object]) -> None:
    """Wait until a running process has brought something about."""
    until = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.005)


def rounds_done(checkpoint: Path) -> list[dict[str, Any]]:
    """Return what a running build has written of its finished rounds, seconds and all."""
    return read_checkpoint(checkpoint)["infos"] if checkpoint.exists() else []


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of one megabyte, where one may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"a small disk cannot be mounted here: {error}")
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """Fill a small disk but for some bytes."""
    ballast = folder / "ballast"
    try:
        with open(ballast, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    except OSError:
        os.truncate(ballast, ballast.stat().st_size - leave)
    return ballast


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder that everybody may enter, while this process has no special rights."""
    before = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
        os.seteuid(before)
        for path in Path(folder).rglob("*"):
            path.chmod(0o755)
