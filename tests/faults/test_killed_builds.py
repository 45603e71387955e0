"""Builds that are killed, interrupted, terminated or started twice: the same coreset, or none."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import decoct
from decoct.building.checkpoint import read_checkpoint
from decoct.cli import main
from decoct.formats.site import site_to_dict
from decoct.runtime.files import remove_parts, write_atomically
from tests.faults.conftest import KL, SLOW_COMMAND, build_words, rounds_done, wait_for


@pytest.fixture(scope="module")
def whole(table, tmp_path_factory):
    """The coreset of a build that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    assert main([*build_words(table, folder / "c.parquet", folder / "saved"), "--quiet"]) == 0
    assert os.listdir(folder) == ["c.parquet"]
    assert len(decoct.load(folder / "c.parquet").report.rounds) >= 2
    return folder / "c.parquet"


def assert_gone_on_with(coreset, done, whole):
    """The rounds done are in the report as they were, seconds and all, and more came after."""
    rounds = coreset.report.rounds
    assert 1 <= len(done) < len(rounds)
    assert rounds[: len(done)] == done
    assert len(rounds) == len(decoct.load(whole).report.rounds)


def assert_same_coreset(one, two):
    assert pq.read_table(one).equals(pq.read_table(two))
    reports = [decoct.load(path).report for path in (one, two)]
    sites = [site_to_dict(decoct.load(path).site) for path in (one, two)]
    assert sites[0] == sites[1]
    assert reports[0].passes == reports[1].passes
    assert reports[0].predicted_kl == reports[1].predicted_kl


def test_two_builds_and_a_kill(table, whole, tmp_path, started, capsys):
    """A second build with the same checkpoint is refused; the first one's death bars nobody."""
    saved, output = tmp_path / "saved", tmp_path / "c.parquet"
    words = build_words(table, output, saved)
    process = started(*SLOW_COMMAND, *words)
    wait_for(process, lambda: rounds_done(saved))
    process.send_signal(signal.SIGSTOP)
    before, done = saved.read_bytes(), rounds_done(saved)

    assert main([*words, "--quiet"]) == 2
    told = capsys.readouterr().err
    assert re.fullmatch(
        rf"decoct: The checkpoint {saved} is in use by process {process.pid} on \S+ since .*"
        r"\(.*build.*\); wait until it has ended, or give another checkpoint\.\n",
        told,
    )
    assert saved.read_bytes() == before
    assert not output.exists()

    process.kill()
    process.wait()
    assert sorted(os.listdir(tmp_path)) == [".saved.decoct-lock", "saved"]
    # what a build leaves that is killed while it writes
    (tmp_path / ".saved-k1ll_ed9.part").touch()
    assert main([*words, "--quiet"]) == 0
    assert_same_coreset(output, whole)
    assert_gone_on_with(decoct.load(output), done, whole)
    assert os.listdir(tmp_path) == ["c.parquet"]


@pytest.mark.parametrize("name", ["run", "run.npz", "run[1]"])
def test_a_build_removes_its_own_parts_and_no_others(tmp_path, name):
    """What it removes is what was there while it wrote; 'run-2' is another's checkpoint."""
    target = tmp_path / name
    other = target.with_stem(f"{target.stem}-2")
    written = []
    for path in (target, other):
        write_atomically(path, lambda part: written.append(Path(part)))
    assert [path.exists() for path in written] == [False, False]
    mine, theirs = written
    more = [tmp_path / f".{other.name}-abcd1234.part{other.suffix}", tmp_path / f".{name}-x.part"]
    for path in (*written, *more):
        path.touch()
    remove_parts(target)
    assert not mine.exists()
    assert theirs.exists()
    assert all(path.exists() for path in more)
    remove_parts(other)
    assert not theirs.exists()


IN_A_TERMINAL = """
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
"""


def test_ctrl_c_in_a_terminal(table, whole, tmp_path, started):
    """A real Ctrl-C, typed into a terminal that shows the progress."""
    saved, output = tmp_path / "saved", tmp_path / "c.parquet"
    words = build_words(table, output, saved)
    process = started(
        sys.executable, "-c", IN_A_TERMINAL, *SLOW_COMMAND, *words, stdin=subprocess.PIPE
    )
    shown: list[str] = []
    reader = threading.Thread(target=lambda: shown.extend(iter(lambda: process.stdout.read(1), "")))
    reader.start()
    wait_for(process, lambda: rounds_done(saved) and " of 8" in "".join(shown))
    typed = time.monotonic()
    process.stdin.write("\x03")
    process.stdin.flush()
    assert process.wait(60) == 130
    assert time.monotonic() - typed < 30
    reader.join()
    done = rounds_done(saved)
    rounds = "1 round" if len(done) == 1 else f"{len(done)} rounds"
    assert "".join(shown).endswith(
        f"decoct: interrupted after {rounds}; the same command resumes from the checkpoint "
        f"{saved}.\n"
    )
    assert os.listdir(tmp_path) == ["saved"]
    assert main([*words, "--quiet"]) == 0
    assert_same_coreset(output, whole)
    assert_gone_on_with(decoct.load(output), done, whole)


def test_sigterm_in_the_first_round(table, tmp_path, started):
    saved = tmp_path / "saved"
    process = started(*SLOW_COMMAND, *build_words(table, tmp_path / "c.parquet", saved))
    wait_for(process, saved.exists)
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    assert err == (
        f"decoct: terminated in the first round, which the same command starts again ({saved}).\n"
    )
    assert os.listdir(tmp_path) == ["saved"]
    kept = read_checkpoint(saved)
    assert (kept["request"]["kl"], kept["infos"]) == (KL, [])


SCRIPT = """
import sys, threading, time, decoct
from decoct.data.arrow import ArrowRows
from decoct.models.formula import from_formula
convert = ArrowRows._convert
def slowly(self, *arguments):
    time.sleep(0.1)  # or the build might have ended before it is interrupted
    return convert(self, *arguments)
ArrowRows._convert = slowly
rows = decoct.rows(sys.argv[1])
model = from_formula("y ~ a + b + c + d", rows, "bernoulli")
try:
    decoct.build(model, rows, kl=float(sys.argv[3]), seed=3, checkpoint=sys.argv[2])
except KeyboardInterrupt:
    print([thread.name for thread in threading.enumerate()])
    raise
"""


def test_ctrl_c_of_a_script(table, whole, tmp_path, started):
    saved = tmp_path / "saved"
    process = started(sys.executable, "-c", SCRIPT, table, saved, KL)
    wait_for(process, lambda: rounds_done(saved))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert out == "['MainThread']\n"
    assert err.endswith("KeyboardInterrupt\n")
    assert os.listdir(tmp_path) == ["saved"]
    done = rounds_done(saved)
    rows = decoct.rows(table)
    model = decoct.load(whole).model
    resumed = decoct.resume(saved, model, rows)
    assert_gone_on_with(resumed, done, whole)
    np.testing.assert_array_equal(resumed.weights, decoct.load(whole).weights)
    np.testing.assert_array_equal(resumed.indices, decoct.load(whole).indices)
    assert site_to_dict(resumed.site) == site_to_dict(decoct.load(whole).site)
