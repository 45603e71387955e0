"""A disk that is full: the sentence says so, the older file stays, nothing half-written is left."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest

import decoct
from decoct.building.checkpoint import read_checkpoint, reserve, write_checkpoint
from decoct.cli import main
from decoct.errors import RequestError
from decoct.report import Report, Status
from tests.faults.conftest import COMMAND, build_words, fill

NO_ROOM = r"could not be written \(No space left on device\); the older file is"


@pytest.fixture
def coreset():
    """One of a megabyte and more."""
    x = np.random.default_rng(0).normal(size=(3000, 60))
    report = Report({"name": "none"}, 0, Status.DONE, 3000, None, [], 1, 1)
    rows = {"x": x, "y": np.arange(3000) % 2}
    model = decoct.models.LogisticRegression()
    return decoct.Coreset(np.arange(3000), np.full(3000, 2.0), rows, 6000, model, report)


def test_a_coreset(coreset, small_disk):
    path = small_disk / "c.parquet"
    path.write_bytes(b"old")
    with pytest.raises(RequestError, match=rf"c\.parquet {NO_ROOM}"):
        coreset.save(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(small_disk) == ["c.parquet"]
    path.unlink()
    with pytest.raises(RequestError, match=r"c\.parquet could not be written .*; free some space"):
        coreset.save(path)
    assert os.listdir(small_disk) == []


def test_a_checkpoint(small_disk):
    path = small_disk / "saved"
    write_checkpoint(path, {"x": np.arange(3)})
    with pytest.raises(RequestError, match=f"saved {NO_ROOM}"):
        write_checkpoint(path, {"x": np.zeros(10**6)})
    assert read_checkpoint(path)["x"].tolist() == [0, 1, 2]
    assert os.listdir(small_disk) == ["saved"]


def test_a_disk_that_fills_up_during_a_build(table, small_disk, tmp_path, capsys):
    """The checkpoint stands until the coreset is safe; with room again the command goes on."""
    saved, output = tmp_path / "saved", small_disk / "c.parquet"
    words = [*build_words(table, output, saved), "--quiet"]
    ballast = fill(small_disk, leave=0)
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"decoct: {output} could not be written (")
    assert told.count("\n") == 1
    assert os.listdir(small_disk) == ["ballast"]
    done = read_checkpoint(saved)["infos"]
    assert done
    ballast.unlink()
    assert main(words) == 0
    assert decoct.load(output).report.rounds == done  # with their seconds: none was done again
    assert not saved.exists()


def test_a_disk_too_full_for_a_lock(small_disk):
    fill(small_disk, leave=0)
    with (
        pytest.raises(RequestError, match=r"saved\.decoct-lock cannot be"),
        reserve(small_disk / "saved"),
    ):
        pass
    assert os.listdir(small_disk) == ["ballast"]


def test_draws(coreset, small_disk, tmp_path, started):
    """A process of its own: HDF5 does not survive a full disk."""
    rows = {"x": coreset.rows["x"][:50, :2], "y": coreset.rows["y"][:50]}
    small = dataclasses.replace(
        coreset, indices=coreset.indices[:50], weights=coreset.weights[:50], rows=rows
    )
    small.save(tmp_path / "c.parquet")
    fill(small_disk, leave=8192)
    path = small_disk / "p.nc"
    words = ["sample", tmp_path / "c.parquet", "-o", path, "--draws", 500, "--warmup", 50]
    words += ["--chains", 2]
    process = started(*COMMAND, *words, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    out, err = process.communicate(timeout=120)
    assert err.startswith(f"decoct: {path} could not be written (No space left on device)"), err
    assert (process.returncode, out) == (2, "")
    assert os.listdir(small_disk) == ["ballast"]
