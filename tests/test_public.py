"""Every public function once, on the canonical problem."""

import warnings

import jax
import numpy as np
import pytest

import decoct
from decoct.constructions import Gradient, Hilbert, IteratedHilbert, L1Path
from decoct.constructions.base import entries
from decoct.errors import BadValueError, PotentialError
from decoct.mixture import DPGaussianMixture, MixtureCoreset
from decoct.samplers import NUTS, Exact, Laplace, WeightedDensity
from tests.problems import LINEAR, LOGISTIC, MODEL, SIZE, D, N, coreset, draws


def test_the_coreset_carries_the_posterior():
    certificate = decoct.check(coreset(), LOGISTIC, draws())
    assert certificate.kl < 1e-3
    assert certificate.ok
    assert isinstance(certificate, decoct.Certificate)
    assert coreset().report.status is decoct.Status.DONE
    full = decoct.laplace(MODEL, LOGISTIC)
    assert decoct.kl_gaussian(coreset().laplace(), full) < 1e-3


def test_every_name_of_the_door_is_there():
    for name in decoct.__all__:
        assert getattr(decoct, name) is not None


@pytest.mark.parametrize("name", sorted(entries()))
def test_every_registered_construction(name):
    built = decoct.build(MODEL, LOGISTIC, size=SIZE, method=entries()[name].make())
    assert 1 <= built.size <= SIZE
    assert (built.weights > 0).all()


@pytest.mark.parametrize(
    "method",
    [
        L1Path(update=Gradient(steps=20)),
        Hilbert(weighting=decoct.weighting.FullLaplace()),
        Hilbert(weighting=decoct.weighting.Subsample(100)),
        Hilbert(weighting=decoct.weighting.Given(np.random.default_rng(0).normal(size=(200, D)))),
    ],
    ids=["L1Path", "FullLaplace", "Subsample", "Given"],
)
def test_options_of_constructions(method):
    assert 1 <= decoct.build(MODEL, LOGISTIC, size=5, method=method).size <= 5


def test_a_build_that_falls_short_warns():
    method = IteratedHilbert(site=False, max_size=4)
    with pytest.warns(decoct.ShortBuildWarning, match="not certified"):
        assert decoct.build(MODEL, LOGISTIC, kl=1e-9, method=method).size == 4


def test_a_coreset_of_a_mixture():
    estimator = DPGaussianMixture(n_components=2, max_iter=1000)
    found = decoct.mixture.build(estimator, {"x": LOGISTIC["x"]}, size=50)
    assert isinstance(found, MixtureCoreset)
    assert found.sample(draws=10, chains=1)["posterior"]["means"].shape == (1, 10, 2, D)


def test_a_report_on_a_page(tmp_path):
    pytest.importorskip("jinja2")
    decoct.write_report(coreset(), draws=draws(), path=tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_sizes_in_one_run_and_the_estimate():
    small, large = decoct.path(MODEL, LOGISTIC, [10, SIZE])
    assert small.size <= 10 < large.size <= SIZE
    assert decoct.estimate(MODEL, LOGISTIC, size=SIZE).passes[0] >= 1


def test_a_file_and_back(tmp_path):
    coreset().save(tmp_path / "c.parquet")
    again = decoct.load(tmp_path / "c.parquet")
    np.testing.assert_array_equal(again.weights, coreset().weights)
    coreset().to_stan(tmp_path / "c.json")
    with pytest.raises(decoct.CoresetFileError):
        decoct.load(tmp_path / "c.json")


def test_resuming_from_a_checkpoint(tmp_path, monkeypatch):
    saved = tmp_path / "saved"

    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("decoct.building.driver.Report", stopped)
        with pytest.raises(KeyboardInterrupt):
            decoct.build(MODEL, LOGISTIC, size=SIZE, checkpoint=saved)
    again = decoct.resume(saved, MODEL, LOGISTIC)
    np.testing.assert_array_equal(again.weights, coreset().weights)
    assert not saved.exists()


def test_merged_halves():
    halves = [{n: v[a : a + N // 2] for n, v in LOGISTIC.items()} for a in (0, N // 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", decoct.ShortBuildWarning)
        whole = decoct.merge([decoct.build(MODEL, half, size=SIZE) for half in halves])
    assert whole.n_rows == N


def test_a_stream_that_is_saved_half_way(tmp_path):
    sampler = Laplace(judge=False)
    stream = decoct.StreamingCoreset(MODEL, SIZE, sampler=sampler, buffer=N // 2, keep=2 * SIZE)
    stream.update({name: values[: N // 2] for name, values in LOGISTIC.items()})
    stream.save(tmp_path / "stream.npz")
    stream = decoct.StreamingCoreset.load(tmp_path / "stream.npz", MODEL, sampler=sampler)
    stream.update({name: values[N // 2 :] for name, values in LOGISTIC.items()})
    assert stream.coreset.n_rows == N
    assert stream.coreset.size <= SIZE
    full = decoct.laplace(MODEL, LOGISTIC)
    assert decoct.kl_gaussian(stream.coreset.laplace(), full) < 1e-2


def test_a_comparison_and_its_picture():
    pytest.importorskip("matplotlib")
    result = decoct.compare(MODEL, LOGISTIC, [SIZE], methods={}, draws=100)
    assert isinstance(result, decoct.Comparison)
    assert decoct.plots.comparison(result) is not None
    assert decoct.plots.kept_weights(coreset()) is not None


def test_log_likelihoods_of_rows():
    some = {name: values[:40] for name, values in LOGISTIC.items()}
    values = coreset().log_likelihood(draws(), some)["log_likelihood"]["rows"]
    assert values.shape == (2, 300, 40)


def test_predictions_of_rows():
    found = coreset().predict({"x": LOGISTIC["x"][:40]}, draws())
    assert found.shape == (40, 5)
    assert ((found["q5"] < found["mean"]) & (found["mean"] < found["q95"])).all()


def test_rows_left_out_one_by_one():
    found = decoct.loo(coreset(), LOGISTIC, draws())
    assert found.n_data_points == N
    assert found.p == pytest.approx(D, rel=0.2)


def test_the_evidence():
    """That of the Laplace approximation, which 512 rows bring near (Tierney & Kadane 1986)."""
    full = decoct.laplace(MODEL, LOGISTIC)
    logits = LOGISTIC["x"] @ full.mean
    at_mean = (LOGISTIC["y"] * logits - np.logaddexp(0.0, logits)).sum()
    at_mean += MODEL.log_prior({"beta": full.mean})
    found = decoct.log_evidence(coreset(), LOGISTIC, draws())
    laplace = float(at_mean - full.log_density(full.mean[None])[0])
    assert found.value == pytest.approx(laplace, abs=0.02 + 4.0 * found.se)


def test_other_priors():
    wide = decoct.models.LogisticRegression(prior_scale=10.0)
    given = {"the same": MODEL.log_prior, "wide": wide}
    same, other = decoct.prior_sensitivity(coreset(), draws(), given).priors
    assert same.kl == 0.0
    before, after = (decoct.laplace(model, LOGISTIC) for model in (MODEL, wide))
    assert other.kl == pytest.approx(decoct.kl_gaussian(after, before), rel=0.5)


@pytest.mark.parametrize(
    "sampler", [Laplace(), NUTS(warmup=200)], ids=lambda one: type(one).__name__
)
def test_samplers(sampler):
    found = coreset().sample(draws=300, chains=2, sampler=sampler)
    mean = found["unconstrained_posterior"]["z"].mean(("chain", "draw")).to_numpy()
    assert mean == pytest.approx(decoct.laplace(MODEL, LOGISTIC).mean, abs=0.1)


def test_an_exact_posterior():
    model = decoct.models.LinearRegression(noise_scale=1.0)
    rows = {name: values[:50] for name, values in LINEAR.items()}
    density = WeightedDensity.of(model, model.encode(rows), np.ones(50))
    found = Exact().draw(jax.random.key(0), density, 2000).flat
    precision = np.eye(D) + rows["x"].T @ rows["x"]
    mean = np.linalg.solve(precision, rows["x"].T @ rows["y"])
    assert found.mean(axis=0) == pytest.approx(mean, abs=0.02)


def test_errors_are_of_their_class():
    with pytest.raises(decoct.RequestError, match="not both"):
        decoct.build(MODEL, LOGISTIC, size=5, kl=0.1)
    with pytest.raises(decoct.RowsError):
        decoct.rows(3)
    with pytest.raises(decoct.ModelError):
        decoct.models.LogisticRegression(prior_scale=-1.0)
    with pytest.raises(decoct.CoresetFileError):
        decoct.load("nowhere.parquet")
    bad = {**LOGISTIC, "x": np.where(np.arange(N)[:, None] == 7, np.nan, LOGISTIC["x"])}
    with pytest.raises(BadValueError, match="row 7") as caught:
        decoct.build(MODEL, bad, size=SIZE)
    assert caught.value.row == 7
    model = decoct.Model(
        lambda p, r: r["y"] * p["b"] / (r["y"] - 1.0), lambda p: -(p["b"] ** 2), {"b": 0.0}
    )
    with pytest.raises(PotentialError, match="row"):
        decoct.build(model, {"y": np.arange(5.0)}, size=2)
    assert all(
        issubclass(one, decoct.DecoctError)
        for one in (decoct.RequestError, decoct.RowsError, decoct.ModelError, BadValueError)
    )
