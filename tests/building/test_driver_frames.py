"""How far it is from `build` to the first kernel."""

import traceback
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import decoct
from decoct.passes import chunk_sums

PACKAGE = str(Path(decoct.__file__).parent)


class ReachedError(Exception):
    pass


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_build_reaches_its_first_kernel_in_ten_frames(tmp_path, monkeypatch, on_disk):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": rng.normal(size=500), "y": np.arange(500) % 2})
    rows = {name: table[name].to_numpy() for name in table}
    if on_disk:
        rows = tmp_path / "t.parquet"
        table.to_parquet(rows)
    frames = []

    def kernel(*_):
        names = [f"{one.filename}:{one.name}" for one in traceback.extract_stack()]
        frames.extend(name for name in names if name.startswith(PACKAGE))
        raise ReachedError

    for name in ("chunk_totals", "expand_chunk"):
        monkeypatch.setattr(chunk_sums, name, kernel)
    with pytest.raises(ReachedError):
        decoct.build(decoct.models.LogisticRegression(), rows, size=20)
    assert len(frames) <= 10, "\n".join(frames)
