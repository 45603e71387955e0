"""Rows that are compared with known ones as they pass."""

import numpy as np
import pandas as pd
import pytest

import decoct
from decoct.data.arrow import ArrowRows
from decoct.data.verified_rows import VerifiedRows
from decoct.errors import CoresetFileError
from decoct.passes.model_checks import EXAMPLES
from decoct.samplers import Laplace
from decoct.stats.summation import Associative

N = 500


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=N), "name": rng.choice(["a", "b"], size=N).astype(object)}


@pytest.fixture(params=["memory", "files"])
def rows(request, table, tmp_path):
    if request.param == "memory":
        return decoct.rows(table)
    for number, piece in enumerate(np.array_split(np.arange(N), 3)):
        pd.DataFrame(table).iloc[piece].to_parquet(tmp_path / f"{number}.parquet")
    return decoct.rows(tmp_path)


def length(chunk):
    return chunk.n_rows


def known(table, indices):
    return indices, {name: column[indices] for name, column in table.items()}


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_the_same_rows_are_walked_as_ever(rows, table, size):
    indices = np.array([0, 3, 130, 131, 499])
    compared = VerifiedRows(rows, *known(table, indices))
    assert (compared.n_rows, compared.columns) == (rows.n_rows, rows.columns)
    assert compared.map_reduce(length, Associative(), size=size) == N
    assert compared.map_reduce(length, Associative(), size=size, columns=["x"]) == N


@pytest.mark.parametrize("column", ["x", "name"])
def test_the_walk_ends_at_the_first_other_row(rows, table, column):
    indices, columns = known(table, np.array([130, 400]))
    columns[column][0] = np.nan if column == "x" else "c"
    seen = []

    def start(chunk):
        seen.append(chunk.start)
        return length(chunk)

    with pytest.raises(CoresetFileError, match=f"column '{column}' differs in the kept rows"):
        VerifiedRows(rows, indices, columns).map_reduce(start, Associative(), size=64)
    assert seen == [0, 64]  # row 130 is in the third chunk


def test_a_missing_value_is_itself(rows, table):
    indices = np.array([5])
    again = dict(table, x=table["x"].copy())
    again["x"][5] = np.nan
    same = VerifiedRows(decoct.rows(again), *known(again, indices))
    assert same.map_reduce(length, Associative())
    with pytest.raises(CoresetFileError):
        VerifiedRows(decoct.rows(again), *known(table, indices)).map_reduce(length, Associative())


def test_a_certificate_reads_its_files_once(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(3000, 2)), columns=["a", "y"])
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=500)
    rows = decoct.rows(tmp_path / "t.parquet")
    model = decoct.models.from_formula("y ~ a", rows)
    coreset = decoct.build(model, rows, size=20)
    draws = coreset.sample(draws=100, sampler=Laplace())
    taken = []
    take = ArrowRows.take

    def counted(self, indices, columns=None):
        taken.append(list(indices))
        return take(self, indices, columns)

    monkeypatch.setattr(ArrowRows, "take", counted)
    assert decoct.check(coreset, rows, draws).kl < 0.1
    # a few rows to learn the parameters' shapes from
    assert taken
    assert max(max(one) for one in taken) < EXAMPLES
    frame.loc[coreset.indices[-1], "a"] += 1e-12
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=500)
    with pytest.raises(CoresetFileError, match=r"column 'a' differs in the kept rows\.$"):
        decoct.check(coreset, decoct.rows(tmp_path / "t.parquet"), draws)
