"""The code blocks of the guides, run.

Only, on the bridges' pages, builds take fewer draws than for a reader, and so do samplers.
"""

import dataclasses
import functools
import re
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import decoct
from tests.bridges.conftest import _ranks_may_be_promoted  # noqa: F401

short_runs = pytest.mark.filterwarnings(
    "ignore:.*transitions diverged", "ignore:R-hat is", "ignore:overflow encountered"
)
of_pymc = pytest.mark.filterwarnings(
    "ignore:PyTensor could not link to a BLAS",
    "ignore::FutureWarning:arviz",
    "ignore:For backward compatibility, 'str' dtypes",  # Bambi's use of pandas
)
DOCS = Path(__file__).parents[2] / "docs"


def run(page, monkeypatch, folder):
    """Run a page's Python blocks one after another, as a reader would."""
    monkeypatch.chdir(folder)
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    names = {}
    for block in blocks:
        exec(compile(block, f"{page}: {block.splitlines()[0]}", "exec"), names)
    return names, len(blocks)


def do_less(monkeypatch):
    """Let builds take 300 draws, and ``coreset.sample`` two chains of 800."""
    sample = decoct.Coreset.sample

    def short(self, draws, chains, *, sampler):
        return sample(self, 800, 2, sampler=dataclasses.replace(sampler, warmup=500))

    method = decoct.constructions.IteratedHilbert(draws=300, pool=500, max_rounds=2)
    build = functools.partial(decoct.build, method=method)
    monkeypatch.setattr(decoct, "build", build)
    monkeypatch.setattr(decoct.Coreset, "sample", short)


def sample_less_with_pymc(monkeypatch, draws):
    """Let ``pm.sample`` take two chains of so many draws, one after the other."""
    from tests.bridges.pymc_import import pm

    few = {"draws": draws, "tune": 400, "chains": 2, "cores": 1}
    few |= {"progressbar": False, "random_seed": 0}
    monkeypatch.setattr(
        pm, "sample", functools.partial(pm.sample, compute_convergence_checks=False, **few)
    )


@short_runs
def test_numpyro(monkeypatch, tmp_path):
    infer = pytest.importorskip("numpyro.infer")
    pytest.importorskip("matplotlib")

    class Short(infer.MCMC):
        def __init__(self, kernel, *, num_warmup, num_samples):
            super().__init__(kernel, num_warmup=300, num_samples=500, progress_bar=False)

    monkeypatch.setattr(infer, "MCMC", Short)
    do_less(monkeypatch)
    names, blocks = run("numpyro.md", monkeypatch, tmp_path)
    assert blocks == 6
    assert names["check"].ok
    assert names["draws"]["posterior"]["alpha"].dims == ("chain", "draw", "county")
    assert names["predicted"]["y"].shape == (2, 800, 1)
    assert "Pareto k-hat" in (tmp_path / "radon.html").read_text(encoding="utf-8")


@of_pymc
@short_runs
def test_pymc(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    do_less(monkeypatch)
    sample_less_with_pymc(monkeypatch, 200)
    names, blocks = run("pymc.md", monkeypatch, tmp_path)
    assert blocks == 4
    assert names["check"].ok
    assert set(names["idata"]["posterior"]["alpha"].dims) == {"chain", "draw", "county"}
    assert "alpha[county 3]" in (tmp_path / "radon.html").read_text(encoding="utf-8")


@of_pymc
@short_runs
def test_bambi(monkeypatch, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("bambi")
    do_less(monkeypatch)
    sample_less_with_pymc(monkeypatch, 600)
    names, blocks = run("bambi.md", monkeypatch, tmp_path)
    assert blocks == 4
    assert names["check"].ok
    predicted = names["predicted"]["posterior"]["mu"].to_numpy().reshape(1600, 3)
    draws, homes = names["draws"]["posterior"], names["homes"].iloc[:3]
    wanted = draws["Intercept"] + draws["floor"] * homes["floor"].to_numpy()[0]
    wanted = wanted + draws["1|county"].sel(county__factor_dim=homes["county"].iloc[0])
    np.testing.assert_allclose(predicted[:, 0], wanted.to_numpy().ravel(), rtol=1e-6)


def test_hierarchical(monkeypatch, tmp_path):
    names, blocks = run("hierarchical.md", monkeypatch, tmp_path)
    assert blocks == 1
    assert names["coreset"].size <= 10
    assert names["check"].ok
    assert names["check"].kl < 0.02


def test_streams(monkeypatch, tmp_path):
    """Rows in random order: the stream, and parts that are merged, predict a small KL."""
    names, blocks = run("streams.md", monkeypatch, tmp_path)
    assert blocks == 2
    assert names["stream"].coreset.n_rows == 20_000
    assert names["coreset"].report.status.ok
    assert names["whole"].size <= 10
    assert decoct.check(names["whole"], names["rows"]).ok


def test_samplers(monkeypatch, tmp_path):
    pytest.importorskip("emcee")
    names, blocks = run("samplers.md", monkeypatch, tmp_path)
    assert blocks == 8
    assert names["check"].ok
    assert names["best"].x == pytest.approx(names["coreset"].laplace().mean, abs=1e-3)
    coreset = names["few"]
    assert coreset.site is not None
    stored = names["stored_density"]
    for z in np.random.default_rng(1).normal(size=(4, 3)):
        difference = stored(z) - stored(np.zeros(3))
        same = float(coreset.log_density(z)) - float(coreset.log_density(np.zeros(3)))
        assert difference == pytest.approx(same, rel=1e-10, abs=1e-8)
    assert -0.7 < names["per_row"] < -0.4
    assert not jax.config.read("jax_enable_x64")


def test_predicting(monkeypatch, tmp_path):
    names, blocks = run("predicting.md", monkeypatch, tmp_path)
    assert blocks == 3
    rates, counts = names["rates"], names["counts"]
    wanted = np.exp([1.0, 1.0 + 0.05 * 25.0 + 0.3])
    assert (np.abs(rates["mean"] - wanted) < 4.0 * rates["sd"]).all()
    assert (counts["sd"] > 5.0 * rates["sd"]).all()
    assert names["total"] == pytest.approx(rates["mean"].sum(), rel=1e-12)
    own = decoct.build(names["model"], names["bikes"], size=5)
    found = own.predict(names["new"], np.array([[0.0, 2.0], [0.0, 2.0]]), kind="response")
    assert (np.abs(found["mean"] - [0.0, 50.0]) < 5.0).all()


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, in ArviZ
def test_loo(monkeypatch, tmp_path):
    names, blocks = run("loo.md", monkeypatch, tmp_path)
    assert blocks == 2
    found = names["found"]
    assert found["Student-t"].elpd > found["normal"].elpd + 1000.0
    assert not found["Student-t"].warning
    away = names["some"].elpd - found["Student-t"].elpd
    assert abs(away) < 4.0 * names["some"].subsampling_se


def test_evidence(monkeypatch, tmp_path):
    """The fourth column says nothing, and costs its prior's width: some log(posterior sd)."""
    names, blocks = run("evidence.md", monkeypatch, tmp_path)
    assert blocks == 1
    assert 2.0 < names["log_bayes_factor"] < 6.0
    assert names["error"] < 0.05


def test_prior_sensitivity(monkeypatch, tmp_path):
    names, blocks = run("prior_sensitivity.md", monkeypatch, tmp_path)
    assert blocks == 1
    wide, sparse, narrow = names["found"].priors
    assert wide.reweighted
    assert sparse.reweighted
    assert narrow.new_draws == "good"
    assert names["found"].verdict.startswith("good")


def test_stan(monkeypatch, tmp_path):
    pytest.importorskip("stanli")
    names, blocks = run("stan.md", monkeypatch, tmp_path)
    assert blocks == 3
    assert names["check"].ok
    text = (DOCS / "stan.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```stan\n(data.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert [names["program"].strip()] == [one.strip() for one in shown]
