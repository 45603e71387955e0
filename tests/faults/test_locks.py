"""The lock of a checkpoint: one at a time, and the dead bar nobody."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from decoct.checkpoint import held
from decoct.errors import RequestError
from decoct.file_lock import sole_user


def test_one_at_a_time_within_a_process_too(tmp_path):
    path = tmp_path / "saved"
    with held(path):
        told = json.loads((tmp_path / "saved.lock").read_text())
        assert (told["process"], told["host"]) == (os.getpid(), socket.gethostname())
        mine = f"saved is in use by process {os.getpid()} on"
        with pytest.raises(RequestError, match=mine), held(path):
            pytest.fail("held twice")
        with held(tmp_path / "another"), held(None):
            pass
    with held(path):
        pass
    assert os.listdir(tmp_path) == []


def test_a_failing_block_lets_go(tmp_path):
    with pytest.raises(KeyboardInterrupt), held(tmp_path / "saved"):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("rest", ["", "{", "[]", '{"process": 1, "host": "elsewhere"}'])
def test_a_lock_file_that_nobody_holds_is_no_lock(tmp_path, rest):
    (tmp_path / "saved.lock").write_text(rest)
    with held(tmp_path / "saved"):
        pass
    assert os.listdir(tmp_path) == []


def test_many_who_want_it_at_once(tmp_path):
    inside, most, turns = [], [], []

    def work():
        while len(turns) < 60:
            try:
                with sole_user(tmp_path / "saved", "checkpoint"):
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
import os, sys, time
from decoct.file_lock import sole_user
with sole_user(sys.argv[1], "checkpoint"):
    if len(sys.argv) > 2 and os.fork() == 0:
        os.close(1)
        time.sleep(60)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("child", [[], ["with a child"]])
def test_the_dead_bar_nobody(tmp_path, started, child):
    path = tmp_path / "saved"
    process = started(
        sys.executable, "-c", HOLD, path, *child, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdout.readline() == "held\n"
    with pytest.raises(RequestError, match=f"in use by process {process.pid} on"), held(path):
        pass
    process.kill()
    process.wait()
    with held(path):
        pass
    assert os.listdir(tmp_path) == []
    if child:
        os.killpg(process.pid, signal.SIGKILL)


TRY = """
import sys
from decoct.errors import RequestError
from decoct.file_lock import sole_user
try:
    with sole_user(sys.argv[1], "checkpoint"):
        print("taken")
except RequestError as error:
    print(error)
"""


def test_a_container_of_the_same_name_does_not_take_the_lock(tmp_path):
    """In a new count of processes, where this one's number is nobody's; the host is the same."""
    apart = ["unshare", "--pid", "--fork"]
    try:
        possible = subprocess.run([*apart, "true"], capture_output=True, timeout=60).returncode == 0
    except OSError:
        possible = False
    if not possible:
        pytest.skip("processes cannot be counted apart here")
    path = tmp_path / "saved"
    words = [*apart, sys.executable, "-c", TRY, str(path)]
    with held(path):
        lock = (tmp_path / "saved.lock").read_text()
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
        assert f"in use by process {os.getpid()} on {socket.gethostname()}" in done.stdout
        assert (tmp_path / "saved.lock").read_text() == lock
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "taken\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("place", [None, "", "another start of the machine pid:[1]"])
def test_the_dead_of_another_place_are_not_known_to_be_dead(tmp_path, started, place):
    """A machine of the same name: its process is not seen here, and may well be alive."""
    path = tmp_path / "saved"
    process = started(
        sys.executable, "-c", HOLD, path, "child", stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdout.readline() == "held\n"
    process.kill()
    process.wait()
    lock = tmp_path / "saved.lock"
    said = json.loads(lock.read_text())
    assert said["process"] == process.pid
    lock.write_text(json.dumps({**said, "place": place}))
    with pytest.raises(RequestError, match=f"in use by process {process.pid} on"), held(path):
        pass
    os.killpg(process.pid, signal.SIGKILL)


def test_a_folder_that_is_gone(tmp_path):
    with (
        pytest.raises(RequestError, match=r"saved\.lock cannot be written \(No such file"),
        held(tmp_path / "gone" / "saved"),
    ):
        pass
