"""Real processes: exit codes, pipes, Ctrl-C."""

import os
import signal
import subprocess

import numpy as np
import pandas as pd
import pytest

import decoct
from tests.faults.conftest import (  # noqa: F401
    COMMAND,
    SLOW_COMMAND,
    rounds_done,
    started,
    wait_for,
)


def run(*words, **options):
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)


def test_help_and_version():
    shown = run("--help")
    assert shown.returncode == 0
    assert shown.stderr == ""
    for word in ("build", "sample", "check", "plot", "demo", "--size 10"):
        assert word in shown.stdout
    assert run("--version").stdout == f"decoct {decoct.__version__}\n"


def test_a_file_that_lacks_some_characters_takes_the_output(late, data):
    ascii_alone = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = run("check", late, data / "flights.csv", env=ascii_alone)
    assert shown.returncode in (0, 1), shown.stderr
    assert r"KL(coreset\u2016full)" in shown.stdout


@pytest.mark.parametrize("command", ["build", "sample", "check", "plot", "demo"])
def test_every_command_has_help(command, capsys):
    from decoct.cli import main

    assert main([command, "--help"]) == 0
    assert "--json" in capsys.readouterr().out


def test_bad_input_is_one_line_without_traceback(tmp_path):
    words = ["build", "none.csv", "--formula", "y ~ x", "--size", 5, "-o", tmp_path / "c.parquet"]
    result = run(*words)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("decoct: There is no file")
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_reader_who_has_gone_is_no_error(late, data, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    words = ["build", data / "flights.csv", "--formula", "delay ~ temp", "--size", 8]
    words += ["-o", tmp_path / "c.parquet"]
    result = subprocess.run(
        [*COMMAND, *map(str, words)], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=600
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")
    assert decoct.load(tmp_path / "c.parquet").size <= 8


def test_ctrl_c_leaves_a_checkpoint_that_the_same_command_goes_on_from(tmp_path, started):  # noqa: F811
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5_000, 3))
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-x.sum(axis=1)))).astype(np.int64)
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y}).to_parquet(
        tmp_path / "table.parquet"
    )
    words = ["build", tmp_path / "table.parquet", "--formula", "y ~ a + b + c"]
    words += ["--family", "bernoulli", "--kl", 1e-6, "-o", tmp_path / "c.parquet"]
    words += ["--checkpoint", tmp_path / "saved"]
    process, saved = started(*SLOW_COMMAND, *words), tmp_path / "saved"
    wait_for(process, lambda: rounds_done(saved))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert out == ""
    done = rounds_done(saved)
    assert err == (
        f"decoct: interrupted after {len(done)} round{'s' if len(done) > 1 else ''}; the same "
        f"command resumes from the checkpoint {saved}.\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved", "table.parquet"]

    resumed = run(*words)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.parquet", "table.parquet"]
    rounds = decoct.load(tmp_path / "c.parquet").report.rounds
    assert 1 <= len(done) < len(rounds)
    assert rounds[: len(done)] == done  # with their seconds: none was done again


def test_ctrl_c_in_the_only_round_of_a_method_says_that_it_begins_again(tmp_path, monkeypatch):
    from decoct.cli import build
    from decoct.constructions import Uniform

    def interrupt(*_):
        raise KeyboardInterrupt

    rng = np.random.default_rng(0)
    pd.DataFrame({"a": rng.normal(size=50), "y": rng.normal(size=50)}).to_parquet(
        tmp_path / "table.parquet"
    )
    monkeypatch.setattr(Uniform, "step", interrupt)
    saved = tmp_path / "saved"
    words = {"formula": "y ~ a", "output": tmp_path / "c.parquet", "size": 5, "method": "uniform"}
    for checkpoint, told in (
        (saved, f"interrupted in the first round, which the same command starts again ({saved})."),
        (None, "interrupted; nothing was written."),
    ):
        with pytest.raises(KeyboardInterrupt) as stop:
            build.build([str(tmp_path / "table.parquet")], checkpoint=checkpoint, **words)
        assert str(stop.value) == told
