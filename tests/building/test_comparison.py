"""Constructions side by side: the figures are `check`'s, refusals are lines, uniform is in."""

import jax.numpy as jnp
import numpy as np
import pytest

import decoct
import decoct.plots
from decoct.constructions import Hilbert, IteratedHilbert, MomentMatching, Sensitivity, Uniform
from decoct.errors import ModelError, RequestError, RowsError
from decoct.models import GaussianMean, LogisticRegression, StudentTRegression
from decoct.samplers import Laplace
from decoct.samplers.exact import exact_posterior
from decoct.solvers import GIGA

SIZES = [10, 30]
WITH_SITE = {"site": IteratedHilbert(draws=200, pool=300)}
FEW = {
    "GIGA": Hilbert(GIGA(), draws=100),
    "moments": MomentMatching(pool=300),
    "iterated": IteratedHilbert(site=False, draws=300, pool=300),
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


def test_a_k_hat_that_refuses_leaves_a_lower_bound(comparison):
    """The same arithmetic as the certificate's, and the same rule."""
    known = [line for line in comparison.lines if line.khat < 0.7]
    bounds = [line for line in comparison.lines if line.khat >= 0.7 and line.kl > 1e-4]
    assert known
    assert bounds
    for line in known:
        assert 0.0 <= line.kl_low < line.kl < line.kl_high < np.inf
    for line in bounds:
        assert (line.kl_is_known, line.kl_high) == (False, np.inf)
        assert f"at least {line.kl_low:.2g}" in repr(comparison)
        assert f"{line.kl:.2g} ±" not in repr(comparison)


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


def test_a_methods_figures_do_not_depend_on_what_else_is_compared(rows, comparison):
    alone = decoct.compare(
        LogisticRegression(), rows, SIZES[1:], methods={"moments": FEW["moments"]}, draws=200
    )
    then, now = lines_of(comparison, "moments")[1], lines_of(alone, "moments")[0]
    assert now.kl == pytest.approx(then.kl, rel=1e-9)


def test_the_table_lines_up_and_pandas_has_it(comparison):
    written = repr(comparison).splitlines()
    assert len({len(line) for line in written}) == 1
    frame = comparison.to_pandas()
    assert list(frame["method"]) == [line.method for line in comparison.lines]
    assert frame["kl"].notna().all()


def test_the_picture_has_every_method(comparison):
    pytest.importorskip("matplotlib")
    picture = decoct.plots.comparison(comparison)
    left, right = picture.axes
    assert {text.get_text() for text in picture.legends[0].texts} == {
        line.method for line in comparison.lines
    }
    assert left.get_xlabel() == "rows kept"
    assert right.get_xlabel() == "seconds of the build"


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([], r"not \[\]\."),
        ([10, 3000], "has 3000 but the table has 2000 rows"),
        ([-5, 10], "at least 0, not -5"),
        ([10, 2.5], r"at least 0, not 2\.5"),
        ([True], "at least 0, not True"),
        (["10"], "at least 0, not '10'"),
        (10, r"such as \[50, 100\], not 10\."),
        ("10", r"such as \[50, 100\], not '10'\."),
        (np.array(10), r"not array\(10\)\."),
        (None, r"not None\."),
    ],
)
def test_bad_sizes_are_refused_before_any_work(rows, sizes, says):
    with pytest.raises(RequestError, match=says):
        decoct.compare(LogisticRegression(), rows, sizes, methods={"never": None})


def test_no_row_is_a_size_of_methods_with_a_site(rows):
    result = decoct.compare(LogisticRegression(), rows, [0, 10], methods=WITH_SITE, draws=50)
    found = [(line.method, line.size) for line in result.lines]
    assert found == [("uniform", 10), ("site", 0), ("site", 10), ("Laplace + PSIS", None)]
    assert result.lines[1].kl < 0.1


def test_sizes_may_be_any_numbers_in_any_order(rows):
    sizes = np.array([30, 10, 30])
    result = decoct.compare(LogisticRegression(), rows, sizes, methods={}, draws=50)
    assert [line.size for line in result.lines] == [10, 30, None]


@pytest.mark.parametrize("draws", [1, 0, 2.5, True])
def test_bad_draws_are_refused(rows, draws):
    with pytest.raises(RequestError, match="at least 2"):
        decoct.compare(LogisticRegression(), rows, [10], draws=draws)


def test_a_bad_row_is_no_refusal_of_a_method(rows):
    bad = {**rows, "x": rows["x"].copy()}
    bad["x"][1234, 1] = np.nan
    with pytest.raises(RowsError, match=r"'x' has NaN in row 1234"):
        decoct.compare(LogisticRegression(), bad, [10], methods={}, draws=50)


def test_nothing_to_compare_says_what_the_first_method_said():
    model = decoct.Model(
        lambda params, rows: jnp.nan * rows["y"], lambda params: -0.5 * params @ params, np.zeros(2)
    )
    with pytest.raises(ModelError, match="row 0 is nan"):
        decoct.compare(
            model, {"y": np.ones(60)}, [10], methods={}, sampler=Laplace(judge=False), draws=50
        )


def test_the_corrected_draws_are_counted(comparison):
    """1 / Σ r² of the smoothed weights, as `check` has it; as many as drawn where KL is nothing."""
    for line in comparison.lines:
        assert 1.0 <= line.ess <= 200.0 + 1e-9
    laplace = lines_of(comparison, "Laplace + PSIS")[0]
    assert laplace.khat < 0.7
    # 1/ESS − 1/S is Var(r), about 2 KL / S where KL is small
    assert laplace.ess == pytest.approx(200.0 / (1.0 + 2.0 * laplace.kl), rel=0.02)
    worst = max((line for line in comparison.lines if line.rows), key=lambda line: line.kl)
    assert worst.ess < 20.0
    assert "ESS" in repr(comparison).splitlines()[0].split()
    assert list(comparison.to_pandas()["ess"]) == [line.ess for line in comparison.lines]


def test_a_site_is_part_of_the_posterior_that_is_judged(rows):
    method = {"site": IteratedHilbert(site=True)}
    model = LogisticRegression()
    (line,) = lines_of(decoct.compare(model, rows, [8], methods=method, draws=400), "site")
    coreset = decoct.build(model, rows, size=8, method=method["site"])
    found = decoct.check(coreset, rows, coreset.sample(draws=100, sampler=Laplace()))
    assert coreset.site is not None
    assert line.khat < 0.7
    assert line.kl == pytest.approx(found.kl, abs=5.0 * (line.kl_se + found.kl_se))
