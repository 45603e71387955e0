"""Constructions side by side: the figures are `check`'s, refusals are lines, uniform is in."""

import numpy as np
import pytest

import decoct
from decoct.constructions import Hilbert, IteratedHilbert, MomentMatching, Sensitivity, Uniform
from decoct.errors import RequestError
from decoct.models import GaussianMean, LogisticRegression, StudentTRegression
from decoct.posteriors.exact import exact_posterior
from decoct.solvers import GIGA

SIZES = [10, 30]
FEW = {
    "GIGA": Hilbert(GIGA(), draws=100),
    "moments": MomentMatching(pool=300),
    "iterated": IteratedHilbert(draws=300, pool=300),
}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3))
    return {"x": x, "y": (rng.random(2000) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)}


@pytest.fixture(scope="module")
def comparison(rows):
    return decoct.compare(LogisticRegression(), rows, SIZES, methods=FEW, draws=200)


def lines_of(comparison, method):
    return [line for line in comparison.lines if line.method == method]


def test_every_method_has_a_line_a_size_and_uniform_is_in(comparison):
    assert [line.method for line in comparison.lines] == [
        *(name for name in ("uniform", *FEW) for _ in SIZES),
        "Laplace + PSIS",
    ]
    for name in ("uniform", *FEW):
        assert [line.size for line in lines_of(comparison, name)] == SIZES
        assert all(line.rows <= line.size for line in lines_of(comparison, name))
    assert not any(line.note for line in comparison.lines)


def test_the_order_is_the_known_one(comparison):
    at_30 = {name: lines_of(comparison, name)[-1].kl for name in ("uniform", *FEW)}
    assert at_30["iterated"] < 1e-2 * at_30["GIGA"]
    assert at_30["iterated"] < 1e-2 * at_30["uniform"]
    assert at_30["moments"] < 1e-2
    assert lines_of(comparison, "Laplace + PSIS")[0].kl < 1e-2


def test_kls_are_the_exact_ones_for_a_conjugate_model():
    rng = np.random.default_rng(1)
    rows = {"x": rng.normal(size=(500, 2))}
    model = GaussianMean(np.eye(2))
    result = decoct.compare(model, rows, [400], methods={"uniform": Uniform()}, draws=4000)
    coreset = decoct.build(model, rows, size=400, method=Uniform())
    exact = decoct.kl_gaussian(exact_posterior(coreset.density), decoct.laplace(model, rows))
    line = result.lines[0]
    assert line.kl == pytest.approx(exact, abs=4 * line.kl_se)
    assert line.kl_se < 0.2 * line.kl


def test_a_method_that_refuses_has_a_line_that_says_why():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    rows = {"x": x, "y": x[:, 0] + rng.standard_t(4, size=400)}
    methods = {"sensitivity": Sensitivity(), "uniform rows": Uniform()}
    result = decoct.compare(StudentTRegression(), rows, [50], methods=methods, draws=50)
    refused = lines_of(result, "sensitivity")[0]
    assert refused.kl is None
    assert "not for StudentTRegression" in refused.note
    assert len(lines_of(result, "uniform rows")) == 1
    assert lines_of(result, "uniform") == []
    assert "not for StudentTRegression" in repr(result)


def test_the_table_lines_up_and_pandas_has_it(comparison):
    written = repr(comparison).splitlines()
    assert len({len(line) for line in written}) == 1
    frame = comparison.to_pandas()
    assert list(frame["method"]) == [line.method for line in comparison.lines]
    assert frame["kl"].notna().all()


def test_the_picture_has_every_method(comparison):
    pytest.importorskip("matplotlib")
    picture = comparison.plot()
    left, right = picture.axes
    assert {text.get_text() for text in picture.legends[0].texts} == {
        line.method for line in comparison.lines
    }
    assert left.get_xlabel() == "rows kept"
    assert right.get_xlabel() == "seconds of the build"


def test_bad_requests_are_refused(rows):
    with pytest.raises(RequestError, match="from 1 to 2,000"):
        decoct.compare(LogisticRegression(), rows, [])
    with pytest.raises(RequestError, match="from 1 to 2,000"):
        decoct.compare(LogisticRegression(), rows, [10, 3000])
    with pytest.raises(RequestError, match="at least 2"):
        decoct.compare(LogisticRegression(), rows, [10], draws=1)
