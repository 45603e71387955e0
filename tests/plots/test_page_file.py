"""``decoct.write_report``: the page of a coreset of any model, and what the command line says."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest
import xarray as xr

import decoct
from decoct.models.formula.model import from_formula
from decoct.plots.page import MOST_PARAMETERS, report_page
from decoct.samplers import Laplace
from decoct.samplers.summary import Parameter
from tests.plots.test_page import Page

pytest.importorskip("matplotlib")

N = 1000
LAPLACE = Laplace(judge=False)


def log_likelihood(params, rows):
    return -0.5 * (rows["v"] - params["m"]) ** 2


@pytest.fixture(scope="module")
def own():
    """A coreset of a model of plain functions, and its rows."""
    model = decoct.Model(log_likelihood, lambda params: -0.5 * params["m"] ** 2, {"m": 0.0})
    rows = {"v": np.random.default_rng(0).normal(0.4, 1.0, N)}
    return decoct.build(model, rows, size=5), rows


@pytest.fixture(scope="module")
def formula():
    """A coreset of a formula model whose columns are standardised, and its table."""
    rng = np.random.default_rng(0)
    a = rng.normal(20.0, 5.0, N)
    table = {"y": (rng.random(N) < 1 / (1 + np.exp(20.0 - a))).astype(int), "a": a}
    model = from_formula("y ~ a", decoct.rows(table), "bernoulli")
    return decoct.build(model, table, size=20), table


def test_draws_as_check_takes_them_give_one_page(own, tmp_path):
    """What ``sample`` returned, its flat draws as an array, and with chains: the same words."""
    coreset, rows = own
    draws = coreset.sample(draws=200, chains=2, sampler=LAPLACE)
    z = draws["unconstrained_posterior"]["z"].to_numpy()
    pages = []
    for i, one in enumerate((draws, z)):
        check = decoct.write_report(coreset, rows, one, path=tmp_path / f"{i}.html")
        assert check.kl == decoct.check(coreset, rows, draws).kl
        pages.append((tmp_path / f"{i}.html").read_text(encoding="utf-8"))
    assert Page(pages[0]).text == Page(pages[1]).text
    mean = draws["posterior"]["m"].to_numpy().mean()
    assert f"m {mean:.4g} " in Page(pages[0]).text
    flat = z.reshape(-1, 1)
    decoct.write_report(coreset, rows, flat, path=str(tmp_path / "flat.html"), title="Mine")
    assert f"Mine {coreset.size} of {N:,} rows" in Page((tmp_path / "flat.html").read_text()).text


def test_without_rows_nothing_is_certified_and_without_draws_it_samples(own, tmp_path, monkeypatch):
    coreset, _ = own
    draws = coreset.sample(draws=50, chains=2, sampler=LAPLACE)
    seeds = []

    def sample(self, *, seed):
        seeds.append(seed)
        return draws

    monkeypatch.setattr(decoct.Coreset, "sample", sample)
    assert decoct.write_report(coreset, path=tmp_path / "a.html", seed=3) is None
    assert seeds == [3]
    text = Page((tmp_path / "a.html").read_text()).text
    assert "Not certified." in text
    assert f"m {draws['posterior']['m'].to_numpy().mean():.4g} " in text
    assert "coreset = decoct.build(model, rows, size=5" in text


def test_the_users_draws_stay_as_they_are(formula, tmp_path):
    """Coefficients per unit of the table are on the page, and not put into the draws."""
    coreset, table = formula
    draws = coreset.sample(draws=50, chains=2, sampler=LAPLACE)
    before = draws.copy(deep=True)
    decoct.write_report(coreset, table, draws, path=tmp_path / "a.html")
    xr.testing.assert_identical(draws, before)
    slope = draws["posterior"]["beta"].to_numpy()[..., 1] / coreset.model.design.scale[1]
    assert f"a {slope.mean():.4g} " in Page((tmp_path / "a.html").read_text()).text


def test_what_is_refused_leaves_no_file(own, tmp_path):
    coreset, rows = own
    page = tmp_path / "a.html"
    with pytest.raises(decoct.RequestError, match=r"no folder"):
        decoct.write_report(coreset, rows, path=tmp_path / "none" / "a.html")
    with pytest.raises(decoct.RequestError, match=r"shape \(1, 5, 2\); this model has 1 "):
        decoct.write_report(coreset, rows, np.zeros((5, 2)), path=page)
    with pytest.raises(decoct.RequestError, match="NaN or infinite"):
        decoct.write_report(coreset, rows, np.full((5, 1), np.nan), path=page)
    with pytest.raises(decoct.CoresetFileError, match="1000 rows"):
        decoct.write_report(coreset, {"v": rows["v"][:7]}, np.zeros((5, 1)), path=page)
    with pytest.raises(decoct.RequestError, match="A dict is not an array of draws"):
        decoct.write_report(coreset, rows, {"m": np.zeros(5)}, path=page)
    assert not list(tmp_path.iterdir())


def many(n):
    """Parameters of which each 7th is far from 0, in units of its sd."""
    z = [40.0 if i % 7 == 0 else 0.01 * (i % 5) for i in range(n)]
    sds = [10.0 ** (i % 3) for i in range(n)]
    return [Parameter(f"p{i}", z[i] * sds[i], sds[i], 0.0, 1.0, 1.0, 100.0) for i in range(n)] + [
        Parameter("constant", 5.0, 0.0, 5.0, 5.0, np.nan, np.nan)
    ]


def drawn_names(monkeypatch, coreset, parameters):
    """Return the names along the axis of the interval picture, and the page."""
    from matplotlib.figure import Figure

    pictures = []
    save = Figure.savefig

    def saving(self, *args, **kwargs):
        pictures.append(self)
        return save(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", saving)
    page = Page(report_page(coreset, parameters=parameters))
    titled = [one for one in pictures if "mean and 90 % interval" in one.axes[0].get_title("left")]
    return [text.get_text() for text in titled[0].axes[0].get_yticklabels()], page


def test_of_many_parameters_the_furthest_from_zero_are_drawn_and_the_page_says_so(own, monkeypatch):
    parameters = many(300)
    names, page = drawn_names(monkeypatch, own[0], parameters)
    assert len(names) == MOST_PARAMETERS
    assert {f"p{i}" for i in range(0, 300, 7)} <= set(names)
    assert "constant" not in names
    assert names == [one.name for one in parameters if one.name in names]  # in the model's order
    assert f"The picture has {MOST_PARAMETERS} of 301 parameters" in page.text
    assert all(re.search(rf"\bp{i}\b", page.text) for i in range(300))


def test_few_parameters_are_all_drawn(own, monkeypatch):
    parameters = many(MOST_PARAMETERS - 1)
    names, page = drawn_names(monkeypatch, own[0], parameters)
    assert names == [one.name for one in parameters]
    assert "The picture has" not in page.text


def test_the_page_names_a_sampler_that_was_chosen(own, tmp_path):
    coreset, rows = own
    method = decoct.constructions.IteratedHilbert(max_rounds=2)
    other = decoct.build(coreset.model, rows, size=5, sampler=LAPLACE, method=method)
    other.save(tmp_path / "c.parquet")
    loaded = decoct.load(tmp_path / "c.parquet", model=coreset.model)
    assert loaded.report.sampler == {"name": "Laplace", "judge": False, "resample": False}
    says = "sampler=decoct.samplers.Laplace(judge=False, resample=False), seed=0)"
    for one, named in ((loaded, True), (coreset, False)):
        page = report_page(one, title="A")
        assert (says in html.unescape(page)) is named
    recipe = html.unescape(report_page(loaded, title="A")).split("<pre>")[1].split("</pre>")[0]
    names = {"decoct": decoct, "model": coreset.model, "rows": rows}
    exec(compile(recipe, "page", "exec"), names)
    np.testing.assert_array_equal(names["coreset"].weights, other.weights)


def test_the_command_names_the_call_for_models_a_file_cannot_hold(own, tmp_path, capsys):
    from decoct.cli import main

    coreset, _ = own
    coreset.save(tmp_path / "own.parquet")
    assert main(["report", str(tmp_path / "own.parquet"), "-o", str(tmp_path / "a.html")]) == 2
    says = capsys.readouterr().err
    assert "a model of your own functions" in says
    assert "pass it: decoct.load(path, model=...)" in says
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    assert main(["report", str(tmp_path / "bad.parquet"), "-o", str(tmp_path / "a.html")]) == 2
    assert "not a readable Parquet file" in capsys.readouterr().err
    assert not (tmp_path / "a.html").exists()


def test_arrays_of_several_axes_are_named_by_their_labels(own):
    from decoct.samplers.summary import parameters

    dims = ("chain", "draw", "county", "year")
    values = xr.DataArray(
        np.random.default_rng(0).normal(size=(2, 10, 2, 3)),
        dims=dims,
        coords={"county": ["Aitkin", "Anoka"]},
    )
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset({"a": values})})
    names = [one.name for one in parameters(tree)]
    assert names[:4] == ["a[Aitkin, 0]", "a[Aitkin, 1]", "a[Aitkin, 2]", "a[Anoka, 0]"]
    whole = xr.DataTree.from_dict(
        {"posterior": xr.Dataset({"k": (("chain", "draw"), np.arange(20).reshape(2, 10))})}
    )
    assert [(one.name, one.mean) for one in parameters(whole)] == [("k", 9.5)]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (
            decoct.constructions.Hilbert(solver=decoct.solvers.GIGA()),
            "method = decoct.constructions.Hilbert(solver=GIGA(",
        ),
        (decoct.constructions.Uniform(), "method = decoct.constructions.Uniform()"),
    ],
)
def test_the_page_says_how_to_make_the_same_coreset(tmp_path, method, said):
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(300, 2)), "y": np.arange(300) % 2}
    model = decoct.models.LogisticRegression()
    coreset = decoct.build(model, rows, size=10, method=method)
    draws = coreset.sample(draws=50, sampler=LAPLACE)
    decoct.write_report(coreset, None, draws, path=tmp_path / "report.html")
    page = html.unescape((tmp_path / "report.html").read_text())
    assert said.split("(")[0] in page
    assert said.split("(", 1)[1] in page
    assert "sampler=" not in page.split("<pre>")[1]  # it was the default


def test_draws_that_are_not_finite_are_refused(tmp_path):
    rows = {"x": np.random.default_rng(0).normal(size=(300, 2)), "y": np.arange(300) % 2}
    coreset = decoct.build(decoct.models.LogisticRegression(), rows, size=10)
    draws = coreset.sample(draws=50, sampler=LAPLACE)
    draws["unconstrained_posterior"]["z"][0, 3, 0] = np.nan
    with pytest.raises(decoct.RequestError, match="NaN or infinite"):
        decoct.write_report(coreset, None, draws, path=tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
