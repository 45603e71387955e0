"""A stream that stops and goes on is the stream that never stopped."""

import numpy as np
import pandas as pd
import pytest

import decoct
from decoct.constructions import IteratedHilbert
from decoct.errors import RequestError
from decoct.models import LogisticRegression
from decoct.models.formula.model import from_formula
from decoct.samplers import Laplace
from decoct.streams import StreamingCoreset
from tests.streams.test_streaming import SMALL, assert_same, cut, logistic

N = 2000
GIVEN = {name: SMALL[name] for name in ("method", "sampler")}


@pytest.fixture(scope="module")
def rows():
    return logistic(N)


def fed(stream, batches):
    for batch in batches:
        stream.update(batch)
    return stream


@pytest.mark.parametrize("before", [1, 2])
def test_it_goes_on_as_if_it_had_never_stopped(rows, tmp_path, before):
    model, batches = LogisticRegression(), list(cut(rows, 700))
    whole = fed(StreamingCoreset(model, 20, seed=3, **SMALL), batches)
    path = tmp_path / "stream.npz"
    fed(StreamingCoreset(model, 20, seed=3, **SMALL), batches[:before]).save(path)
    again = StreamingCoreset.load(path, model, **GIVEN)
    assert again.n_rows == min(N, 700 * before)
    fed(again, batches[before:])
    assert_same(again.coreset, whole.coreset)
    assert again.rows_in_memory == whole.rows_in_memory


def test_where_samplers_start_is_saved(rows, tmp_path):
    alone = {**SMALL, "method": IteratedHilbert(site=False, draws=150, pool=150)}
    stream = fed(StreamingCoreset(LogisticRegression(), 40, **alone), cut(rows, 700))
    stream.save(tmp_path / "stream.npz")
    given = {name: alone[name] for name in GIVEN}
    again = StreamingCoreset.load(tmp_path / "stream.npz", LogisticRegression(), **given)
    for one in (stream.coreset, again.coreset):
        assert one.site is None
        assert (np.abs(one.start - one.laplace().mean) < 4.0 * one.laplace().sd).all()
    np.testing.assert_array_equal(stream.coreset.start, again.coreset.start)


def test_a_stream_without_rows_is_saved(rows, tmp_path):
    path = tmp_path / "empty.npz"
    StreamingCoreset(LogisticRegression(), 20, **SMALL).save(path)
    again = StreamingCoreset.load(path, LogisticRegression(), **GIVEN)
    assert again.n_rows == 0
    whole = fed(StreamingCoreset(LogisticRegression(), 20, **SMALL), cut(rows, 900))
    assert_same(fed(again, cut(rows, 900)).coreset, whole.coreset)


def test_strings_and_formulas(rows, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"late": rows["y"], "a": rows["x"][:, 0], "port": rng.choice(["JFK", "Orly ü"], N)}
    )
    model = from_formula("late ~ a + C(port)", decoct.rows(frame), "bernoulli")
    batches = [frame.iloc[:700], frame.iloc[700:1500], frame.iloc[1500:]]
    whole = fed(StreamingCoreset(model, 20, **SMALL), batches)
    path = tmp_path / "stream.npz"
    fed(StreamingCoreset(model, 20, **SMALL), batches[:2]).save(path)
    again = fed(StreamingCoreset.load(path, model, **GIVEN), batches[2:])
    assert_same(again.coreset, whole.coreset)
    assert set(again.coreset.rows["port"]) == {"JFK", "Orly ü"}


def test_another_model_or_sampler_is_refused(rows, tmp_path):
    path = tmp_path / "stream.npz"
    fed(StreamingCoreset(LogisticRegression(), 20, **SMALL), cut(rows, N)).save(path)
    with pytest.raises(RequestError, match="another model"):
        StreamingCoreset.load(path, LogisticRegression(prior_scale=2.0), **GIVEN)
    with pytest.raises(RequestError, match="another sampler"):
        StreamingCoreset.load(path, LogisticRegression(), method=SMALL["method"], sampler=Laplace())
    with pytest.raises(RequestError, match="another method"):
        StreamingCoreset.load(path, LogisticRegression(), sampler=SMALL["sampler"])


def own(scale=1.0, prior_sd=1.0):
    return decoct.Model(
        lambda params, rows: -0.5 * ((rows["y"] - params["mu"]) / scale) ** 2,
        lambda params: -0.5 * (params["mu"] / prior_sd) ** 2,
        {"mu": 0.0},
    )


@pytest.mark.parametrize("n", [300, 900])  # waiting rows alone, and parts
def test_other_functions_are_refused(tmp_path, n):
    path = tmp_path / "stream.npz"
    y = np.random.default_rng(0).normal(size=n)
    batches = [{"y": np.arange(3)}, {"y": y}]  # of two types
    fed(StreamingCoreset(own(), 10, **SMALL), batches).save(path)
    for other in (own(scale=2.0), own(prior_sd=3.0)):
        with pytest.raises(RequestError, match="another model: at two points its log"):
            StreamingCoreset.load(path, other, **GIVEN)
    again = StreamingCoreset.load(path, own(), **GIVEN)
    assert again.n_rows == n + 3


def test_damaged_and_foreign_files_are_refused(rows, tmp_path):
    path = tmp_path / "stream.npz"
    stream = fed(StreamingCoreset(LogisticRegression(), 20, **SMALL), cut(rows, N))
    stream.save(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(RequestError, match="not a readable"):
        StreamingCoreset.load(path, LogisticRegression())
    with pytest.raises(RequestError, match=r"no checkpoint .*missing"):
        StreamingCoreset.load(tmp_path / "missing.npz", LogisticRegression())
    from decoct.building.checkpoint import write_checkpoint

    write_checkpoint(path, {"request": {}})
    with pytest.raises(RequestError, match="not a stream"):
        StreamingCoreset.load(path, LogisticRegression())
    with pytest.raises(RequestError, match="no folder"):
        stream.save(tmp_path / "nowhere" / "stream.npz")


def test_a_failed_save_leaves_the_older_file(rows, tmp_path, monkeypatch):
    path, model = tmp_path / "stream.npz", LogisticRegression()
    stream = fed(StreamingCoreset(model, 20, **SMALL), cut(rows, N))
    stream.save(path)
    older = path.read_bytes()

    def full_disk(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(RequestError, match="No space left"):
        stream.save(path)
    assert path.read_bytes() == older
    assert list(tmp_path.iterdir()) == [path]


def test_a_stream_of_another_format_is_not_called_damaged(rows, tmp_path, monkeypatch):
    path = tmp_path / "stream.npz"
    with monkeypatch.context() as patch:
        patch.setattr("decoct.streams.streaming.FORMAT", 1)
        fed(StreamingCoreset(LogisticRegression(), 20, **SMALL), cut(rows, 900)).save(path)
    with pytest.raises(RequestError, match="has format 1 and this decoct reads 7; use the decoct"):
        StreamingCoreset.load(path, LogisticRegression(), **GIVEN)
