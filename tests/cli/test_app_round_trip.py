"""build -> sample -> check -> plot, through files."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import decoct as package
from decoct.cli.sample import find_warnings
from decoct.constructions import IteratedHilbert
from decoct.samplers import Laplace
from decoct.samplers.summary import parameters


@pytest.fixture(scope="module")
def posterior(late, tmp_path_factory):
    from decoct.cli import main

    path = tmp_path_factory.mktemp("posterior") / "posterior.nc"
    words = ["sample", late, "-o", path, "--draws", 250, "--chains", 2, "--warmup", 200]
    assert main([str(word) for word in words]) == 0
    return path


def test_the_draws_are_netcdf_in_both_units(posterior, late):
    with xr.open_datatree(posterior, engine="h5netcdf") as tree:
        beta = tree["posterior"]["beta"]
        unscaled = tree["posterior"]["beta_unscaled"]
        assert beta.sizes == {"chain": 2, "draw": 250, "coefficient": 4}
        assert list(beta["coefficient"].to_numpy()) == list(package.load(late).model.design.names)
        scale = package.load(late).model.design.scale
        np.testing.assert_allclose(unscaled[..., 1], beta[..., 1] / scale[1], rtol=1e-12)
        assert tree["sample_stats"]["diverging"].dtype == bool


def test_sample_prints_a_table_and_json(decoct, late, tmp_path):
    words = ["sample", late, "-o", tmp_path / "p.nc", "--draws", 250, "--chains", 2]
    words += ["--warmup", 200, "--seed", 3]
    text = decoct(*words)
    lines = text.out.splitlines()
    assert text.code == 0
    assert lines[0].split() == ["parameter", "mean", "sd", "5", "%", "95", "%", "R-hat", "ESS"]
    assert [line.split()[0] for line in lines[1:5]] == list(package.load(late).model.design.names)
    assert "divergences" in text.out
    figures = decoct(*words, "--json").json
    by_name = {one["name"]: one for one in figures["parameters"]}
    assert f"{by_name['temp']['mean']:.4g}" in text.out
    assert 0.05 < by_name["temp"]["mean"] < 0.3
    assert by_name["temp"]["q5"] < by_name["temp"]["mean"] < by_name["temp"]["q95"]
    assert figures["divergences"] == 0
    assert figures["units"] == "table"


def test_check_passes_a_good_coreset_with_its_draws(decoct, late, data, posterior):
    words = ["check", late, data / "flights.parquet", "--posterior", posterior]
    text = decoct(*words)
    assert text.code == 0
    assert "KL(coreset‖full)" in text.out
    figures = decoct(*words, "--json").json
    assert figures["ok"]
    assert figures["kl"] < 0.05
    assert (figures["size"], figures["n_rows"]) == (package.load(late).size, 600)
    assert (figures["exact"], figures["sampled_rows"]) == (True, 600)
    assert decoct(*words, "--exact", "--json").json["kl"] == figures["kl"]


def test_report_takes_the_draws_that_are_there(
    decoct, late, data, posterior, tmp_path, monkeypatch
):
    """As the README has it: one run of the sampler for certificate and page."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(package.Coreset, "sample", None)
    page = tmp_path / "report.html"
    words = ["report", late, data / "flights.parquet", "--posterior", posterior, "-o", page]
    assert decoct(*words).code == 0
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^decoct report .*$", readme, flags=re.MULTILINE)
    assert "--posterior posterior.nc" in line


@pytest.mark.parametrize(("kl", "code"), [(0.3, 0), (0.7, 1), (1.2, 1)])
def test_the_exit_code_is_the_verdict_s(decoct, late, data, posterior, monkeypatch, kl, code):
    coreset = package.load(late)
    draws = coreset.sample(50, sampler=Laplace(judge=False))
    found = package.check(coreset, package.rows(str(data / "flights.parquet")), draws)
    found = dataclasses.replace(found, kl=kl, khat=0.1, rhat=1.0, draws_ess=400.0)
    monkeypatch.setattr(package, "check", lambda *_, **__: found)
    result = decoct("check", late, data / "flights.parquet", "--posterior", posterior, "--json")
    assert (result.code, result.json["ok"]) == (code, code == 0)
    assert result.json["verdict"] == found.verdict


def test_check_samples_by_itself_and_exits_1_on_a_coreset_too_small(
    decoct, data, tmp_path, monkeypatch
):
    """Laplace draws stand in for NUTS here: they need no compilation."""
    sample = package.Coreset.sample
    monkeypatch.setattr(
        package.Coreset, "sample", lambda self, **_: sample(self, 250, sampler=Laplace())
    )
    alone = IteratedHilbert(site=False)
    monkeypatch.setattr("decoct.constructions.base.make_construction", lambda _: alone)
    small = tmp_path / "small.parquet"
    built = decoct(
        "build", data / "flights.csv", "--formula", "late ~ temp + C(origin)",
        "--family", "bernoulli", "--size", 2, "-o", small, "--quiet",
    )  # fmt: skip
    assert built.code in (0, 1)
    result = decoct("check", small, data / "flights.csv", "--json")
    assert (result.code, result.json["ok"]) == (1, False)
    assert result.json["draws"] == 1000


def test_draws_of_another_coreset_or_no_draws_are_refused(decoct, late, data, posterior, tmp_path):
    other = tmp_path / "other.parquet"
    coreset = package.load(late)
    heavier = dataclasses.replace(coreset, weights=2 * coreset.weights)
    heavier.save(other)
    table = data / "flights.parquet"
    (tmp_path / "text.nc").write_text("no netCDF")
    for words, named in (
        ([other, table, "--posterior", posterior], "another coreset"),
        ([late, table, "--posterior", tmp_path / "text.nc"], "text.nc"),
        ([late, table, "--posterior", tmp_path / "none.nc"], "none.nc"),
        ([late, table, "--posterior", tmp_path], "There is no file"),
    ):
        result = decoct("check", *words)
        assert (result.code, result.out) == (2, "")
        assert named in result.err
        assert result.err.count("\n") == 1


def test_plot_writes_three_pictures(decoct, late, data, tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "pictures"
    result = decoct("plot", late, data / "flights.parquet", "-o", folder, "--json")
    assert result.code == 0
    assert result.json == {
        name: str(folder / f"{name}.png") for name in ("kept_rows", "kl_against_size", "intervals")
    }
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in folder.iterdir())


def draws(values, diverging):
    stats = xr.Dataset({"diverging": (("chain", "draw"), diverging)})
    posterior = xr.Dataset({"a": (("chain", "draw"), values)}).assign_coords(
        chain=np.arange(len(values)), draw=np.arange(values.shape[1])
    )
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})


def test_divergences_and_unmixed_chains_are_said_plainly():
    values = np.random.default_rng(0).normal(size=(2, 100)) + np.array([[0.0], [5.0]])
    tree = draws(values, np.arange(200).reshape(2, 100) < 3)
    diverged, unmixed = find_warnings(tree, parameters(tree))
    assert diverged.startswith("3 of 200 draws diverged")
    assert "R-hat is above 1.01 for 1 of 1 parameters (a: " in unmixed


def test_one_chain_has_no_rhat():
    tree = draws(np.random.default_rng(0).normal(size=(1, 100)), np.zeros((1, 100), dtype=bool))
    (line,) = parameters(tree)
    assert np.isnan(line.rhat)
    assert 20 < line.ess < 300
    assert find_warnings(tree, [line]) == [
        "R-hat is unknown: it needs at least 2 chains of 4 draws."
    ]
