"""What every construction must keep; a new one inherits this class."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import decoct
from decoct.constructions.base import Problem
from decoct.data import encoded
from decoct.passes import potentials
from decoct.passes.potentials import Potentials
from decoct.samplers import Automatic

N, D = 1500, 3


@pytest.fixture(scope="module")
def logistic_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D))
    y = (rng.random(N) < 1.0 / (1.0 + np.exp(-x @ [1.0, -0.5, 0.2]))).astype(int)
    return {"x": x, "y": y}


def parquet(folder, rows):
    """The rows as a Parquet file with odd row groups."""
    columns = {
        "x": pa.FixedSizeListArray.from_arrays(pa.array(rows["x"].ravel()), D),
        "y": pa.array(rows["y"]),
    }
    pq.write_table(pa.table(columns), folder / "rows.parquet", row_group_size=211)
    return folder / "rows.parquet"


def potentials_of(model, rows):
    return Potentials(model, encoded(decoct.rows(rows), model))


def problem_of(model, rows, *sizes, sampler=None):
    return Problem(potentials_of(model, rows), sampler or Automatic(), sizes)


def stop_at(monkeypatch, construction, *calls):
    """Have these steps of a construction, counted over all builds, end as Ctrl-C does."""
    step, made = construction.step, []

    def interrupted(self, key, problem, state):
        made.append(1)
        if len(made) in calls:
            raise KeyboardInterrupt
        return step(self, key, problem, state)

    monkeypatch.setattr(construction, "step", interrupted)


_BUILT = {}


class ConstructionContract:
    """Sub-classes set ``method``."""

    method: object

    def build(self, rows, size=25, seed=0):
        model = decoct.models.LogisticRegression()
        return decoct.build(model, rows, size=size, seed=seed, method=self.method)

    def built(self, rows, size=None, seed=0):
        """As `build`, once for all tests of a construction."""
        key = (type(self).__name__, repr(self.method), size, seed)
        if key not in _BUILT:
            asked = {} if size is None else {"size": size}
            _BUILT[key] = self.build(rows, seed=seed, **asked)
        return _BUILT[key]

    @pytest.mark.parametrize("size", [1, 2, 25, N])
    def test_size_range_order_and_sign(self, logistic_rows, size):
        coreset = self.built(logistic_rows, size)
        # one row may be no better than a site alone
        assert (coreset.site is None or size > 1) <= coreset.size <= size
        assert coreset.indices.dtype == np.int64
        assert coreset.weights.dtype == np.float64
        assert (np.diff(coreset.indices) > 0).all()
        assert ((coreset.indices >= 0) & (coreset.indices < N)).all()
        assert (coreset.weights > 0).all()
        assert np.isfinite(coreset.weights).all()

    def test_it_holds_the_kept_rows_and_no_more(self, logistic_rows):
        coreset = self.built(logistic_rows)
        for name, column in coreset.rows.items():
            np.testing.assert_array_equal(column, logistic_rows[name][coreset.indices])
            assert column.base is None or column.base.shape[0] < N

    def test_a_seed_decides_everything(self, logistic_rows):
        first, again = self.built(logistic_rows), self.build(logistic_rows)
        np.testing.assert_array_equal(first.indices, again.indices)
        np.testing.assert_array_equal(first.weights, again.weights)
        assert self.built(logistic_rows, seed=5).indices.tolist() != first.indices.tolist()

    def test_the_engine_changes_nothing(self, logistic_rows, tmp_path):
        memory = self.built(logistic_rows)
        streamed = self.build(parquet(tmp_path, logistic_rows))
        np.testing.assert_array_equal(streamed.indices, memory.indices)
        np.testing.assert_array_equal(streamed.weights, memory.weights)

    def test_other_chunks_change_rounding_only(self, logistic_rows, monkeypatch):
        # 6 rows: fewer than the 9 that fit the quadratic part, so no choice hangs on round-off.
        usual = self.built(logistic_rows, 6)
        monkeypatch.setattr(potentials, "chunk_rows", lambda _: 257)
        other = self.build(logistic_rows, 6)
        np.testing.assert_array_equal(other.indices, usual.indices)
        np.testing.assert_allclose(other.weights, usual.weights, rtol=1e-6)

    def test_one_run_answers_every_size(self, logistic_rows):
        model = decoct.models.LogisticRegression()
        path = decoct.path(model, logistic_rows, [40, 10, 20], method=self.method)
        assert [one.size <= size for one, size in zip(path, (10, 20, 40), strict=True)] == [
            True
        ] * 3
        assert path[-1].size > path[0].size

    def test_a_build_goes_on_from_its_checkpoint(self, logistic_rows, tmp_path, monkeypatch):
        model, whole = decoct.models.LogisticRegression(), self.built(logistic_rows, 6)
        options = {"size": 6, "method": self.method, "checkpoint": tmp_path / "c.npz"}

        def stopped(*_, **__):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("decoct.building.driver.Report", stopped)  # after the last step
            with pytest.raises(KeyboardInterrupt):
                decoct.build(model, logistic_rows, **options)
        resumed = decoct.build(model, logistic_rows, **options)
        np.testing.assert_array_equal(resumed.indices, whole.indices)
        np.testing.assert_array_equal(resumed.weights, whole.weights)
        assert resumed.report.rounds[-1].keys() == whole.report.rounds[-1].keys()
        assert len(resumed.report.rounds) == len(whole.report.rounds)


class SamplingContract(ConstructionContract):
    """Of constructions that draw rows by scores, chunk by chunk; ``home`` has their `CHUNK`."""

    home: object

    def test_small_chunks_change_rounding_only(self, logistic_rows, tmp_path, monkeypatch):
        usual = self.build(logistic_rows)
        monkeypatch.setattr(self.home, "CHUNK", 101)
        for rows in (logistic_rows, parquet(tmp_path, logistic_rows)):
            other = self.build(rows)
            np.testing.assert_array_equal(other.indices, usual.indices)
            np.testing.assert_allclose(other.weights, usual.weights, rtol=1e-12)

    def test_smaller_sizes_are_the_first_draws(self, logistic_rows):
        model = decoct.models.LogisticRegression()
        ten, forty = decoct.path(model, logistic_rows, [10, 40], method=self.method)
        alone = self.build(logistic_rows, 10)
        np.testing.assert_array_equal(ten.indices, alone.indices)
        np.testing.assert_array_equal(ten.weights, alone.weights)
        assert set(ten.indices) <= set(forty.indices)
