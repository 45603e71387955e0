"""The lock of a checkpoint: one at a time, and no process that has ended holds it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from decoct.building.checkpoint import reserve
from decoct.errors import RequestError
from decoct.runtime.file_lock import exclusive_lock

LOCK = ".saved.decoct-lock"


def test_one_at_a_time_within_a_process_too(tmp_path):
    path = tmp_path / "saved"
    with reserve(path):
        told = json.loads((tmp_path / LOCK).read_text())["decoct lock"]
        assert (told["process"], told["host"]) == (os.getpid(), socket.gethostname())
        mine = f"saved is in use by process {os.getpid()} on"
        with pytest.raises(RequestError, match=mine), reserve(path):
            pytest.fail("held twice")
        with reserve(tmp_path / "another"):
            pass
    with reserve(path):
        pass
    assert os.listdir(tmp_path) == []


def test_a_failing_block_lets_go(tmp_path):
    with pytest.raises(KeyboardInterrupt), reserve(tmp_path / "saved"):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("rest", ["", '{"decoct lock": ', '{"decoct lock": {"process": 1}}'])
def test_a_lock_file_that_no_process_holds_is_no_lock(tmp_path, rest):
    (tmp_path / LOCK).write_text(rest)
    with reserve(tmp_path / "saved"):
        pass
    assert os.listdir(tmp_path) == []


def test_other_files_are_never_written(tmp_path):
    """A user's poetry.lock beside a checkpoint named poetry, a planted link, a foreign file."""
    mine = tmp_path / "poetry.lock"
    mine.write_text("mine")
    with reserve(tmp_path / "poetry"):
        pass
    assert mine.read_text() == "mine"
    planted = tmp_path / LOCK
    planted.symlink_to(mine)
    with (
        pytest.raises(RequestError, match="cannot be written or locked"),
        reserve(tmp_path / "saved"),
    ):
        pass
    assert mine.read_text() == "mine"
    planted.unlink()
    planted.write_text("not of decoct")
    with pytest.raises(RequestError, match="not written by decoct"), reserve(tmp_path / "saved"):
        pass
    assert planted.read_text() == "not of decoct"


def test_many_who_want_it_at_once(tmp_path):
    inside, most, turns = [], [], []

    def work():
        while len(turns) < 60:
            try:
                with exclusive_lock(tmp_path / "saved", "checkpoint"):
                    inside.append(1)
                    most.append(len(inside))
                    time.sleep(0.001)
                    inside.pop()
                    turns.append(1)
            except RequestError:
                time.sleep(0.0005)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert os.listdir(tmp_path) == []


HOLD = """
import sys, time
from decoct.runtime.file_lock import exclusive_lock
with exclusive_lock(sys.argv[1], "checkpoint"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_process_holds_nothing(tmp_path, started):
    path = tmp_path / "saved"
    process = started(sys.executable, "-c", HOLD, path, stderr=subprocess.DEVNULL)
    assert process.stdout.readline() == "held\n"
    with pytest.raises(RequestError, match=f"in use by process {process.pid} on"), reserve(path):
        pass
    process.kill()
    process.wait()
    with reserve(path):
        pass
    assert os.listdir(tmp_path) == []
