"""A mixture and its coreset in one call, by the estimator and by `decoct.build`."""

import copy
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn", minversion="1.6")
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, DataDimensionalityWarning
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    parametrize_with_checks,
)

import decoct
from decoct.constructions import IteratedHilbert, LightweightCoreset, Uniform
from decoct.constructions.sampling.lightweight import theorem_3_1
from decoct.errors import CoresetFileError, DecoctError, RequestError, RowsError
from decoct.mixture import DPGaussianMixture
from decoct.mixture.coreset_fit import draw_weighted_rows
from decoct.report import Status

ATTRIBUTES = (
    "weights_",
    "means_",
    "covariances_",
    "precisions_",
    "precisions_cholesky_",
    "mean_precision_",
    "degrees_of_freedom_",
    "mean_prior_",
    "covariance_prior_",
    "lower_bounds_",
)


@parametrize_with_checks([DPGaussianMixture(n_components=2, coreset_size=12)])
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.fixture(name="X", scope="module")
def four_groups():
    """Three groups and a rare far one."""
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [40.0, 40.0]])
    return rng.normal(size=(4000, 2)) + centres[rng.choice(4, 4000, p=[0.4, 0.3, 0.295, 0.005])]


def mixture(**how):
    how = {"n_components": 6, "random_state": 0, "max_iter": 500, "tol": 1e-2, **how}
    return DPGaussianMixture(**how)


def assert_same_fit(one, other, **tolerance):
    for name in ATTRIBUTES:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), **tolerance)


def by_formula(x):
    squares = np.square(x - x.mean(axis=0)).sum(axis=1)
    return 0.5 / len(x) + 0.5 * squares / squares.sum()


def test_draws_of_unit_weights_are_the_paper_s(X):
    q = by_formula(X)
    places, weights, numbers = draw_weighted_rows(X, np.ones(4000), 300, seed=3)
    counts = weights * 300 * q[places]
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-9)
    assert np.round(counts).sum() == 300
    assert (np.diff(places) > 0).all()
    assert numbers["repeated_picks"] == 300 - len(places)
    entropy = -(q @ np.log(q)) / np.log(4000)
    assert numbers["normalised_entropy"] == pytest.approx(entropy, rel=1e-12)
    assert numbers["spread"] == pytest.approx(4000 * X.var(axis=0).sum())


def test_draws_of_weighted_rows_are_draws_of_repeated_rows(X):
    x, gamma = X[:50], np.random.default_rng(1).integers(1, 5, size=50)
    repeated = np.repeat(np.arange(50), gamma)
    of_repeated = by_formula(x[repeated])
    q = np.bincount(repeated, weights=of_repeated)
    drawn = [draw_weighted_rows(x, gamma.astype(float), 20, seed) for seed in range(2000)]
    entropy = -(of_repeated @ np.log(of_repeated)) / np.log(len(repeated))
    assert drawn[0][2]["normalised_entropy"] == pytest.approx(entropy)
    places, weights = (np.concatenate([one[i] for one in drawn]) for i in (0, 1))
    counts = np.bincount(places, weights=weights * 20 * q[places] / gamma[places], minlength=50)
    # 40,000 draws: a binomial count of each row, unbiased sums of weights
    assert counts.sum() == pytest.approx(40_000)
    assert (np.abs(counts - 40_000 * q) < 4.5 * np.sqrt(40_000 * q)).all()
    sums = np.array([kept @ (x[where] ** 2) for where, kept, _ in drawn])
    error = sums.std(axis=0) / np.sqrt(2000)
    assert (np.abs(sums.mean(axis=0) - gamma @ (x**2)) < 4 * error).all()


def test_fit_leaves_the_coreset_it_was_fitted_on(X):
    fitted = mixture(coreset_size=200).fit(X)
    coreset = fitted.coreset_
    assert isinstance(coreset, decoct.Coreset)
    assert coreset.size <= 200
    assert coreset.n_rows == 4000
    np.testing.assert_array_equal(coreset.rows["x"], X[coreset.indices])
    assert (np.diff(coreset.indices) > 0).all()
    assert coreset.weights.sum() == pytest.approx(4000, rel=0.2)
    assert coreset.model.coreset_ is coreset
    assert_same_fit(coreset.model, fitted, rtol=0)
    assert coreset.report.status is Status.DONE
    assert coreset.report.method["name"] == "LightweightCoreset"
    assert coreset.report.method["components"] == 6
    told = coreset.report.rounds[0]
    assert told["normalised_entropy"] < 1.0
    assert told["near_uniform"] == (told["normalised_entropy"] >= 0.98)
    assert told["epsilon"] == theorem_3_1(200, 2, 6)
    # the fit of those rows, with the default priors of all rows
    by_hand = mixture(mean_prior=X.mean(axis=0), covariance_prior=np.cov(X.T) + 1e-6 * np.eye(2))
    by_hand.fit(coreset.rows["x"], sample_weight=coreset.weights)
    assert by_hand.coreset_ is None
    assert_same_fit(fitted, by_hand, rtol=1e-6, atol=1e-9)
    # and near that of all rows, the rare group included
    full = mixture().fit(X)
    assert fitted.score(X) == pytest.approx(full.score(X), abs=0.15)
    assert fitted.score_samples([[40.0, 40.0]]) == pytest.approx(
        full.score_samples([[40.0, 40.0]]), abs=1.0
    )


def test_a_coreset_keeps_its_fit(X, tmp_path):
    fitted = mixture(coreset_size=60, warm_start=True).fit(X)
    kept, means = fitted.coreset_, fitted.means_.copy()
    assert kept.model.means_ is fitted.means_  # and no second copy of it
    fitted.set_params(n_components=6, mean_precision_prior=3.0).fit(X + 100.0)
    assert fitted.coreset_ is not kept
    assert fitted.means_.max() > 90.0
    np.testing.assert_array_equal(kept.model.means_, means)
    assert kept.model.mean_precision_prior is None
    kept.save(tmp_path / "kept.parquet")
    back = decoct.load(tmp_path / "kept.parquet")
    np.testing.assert_array_equal(back.rows["x"], X[kept.indices])
    np.testing.assert_array_equal(back.model.means_, means)
    # a fit that fails leaves both as they were
    last = fitted.coreset_
    with pytest.raises(DecoctError, match="square overflows"):
        fitted.fit(X * 1e200)
    assert fitted.coreset_ is last
    assert mixture().fit(X[:50]).coreset_ is None


def test_the_model_of_a_coreset_is_not_fitted_again(X, built, tmp_path):
    built.save(tmp_path / "built.parquet")
    own = mixture(coreset_size=60).fit(X).coreset_
    for coreset in (built, own, decoct.load(tmp_path / "built.parquet")):
        means = coreset.model.means_
        with pytest.raises(RequestError, match=r"copy\.copy\(model\)\.fit\(X\)"):
            coreset.model.fit(X)
        assert coreset.model.means_ is means
    other = copy.copy(built.model).set_params(warm_start=True, max_iter=0).fit(X)
    assert other.coreset_ is None
    np.testing.assert_allclose(other.means_, built.model.means_, rtol=1e-12)
    assert clone(built.model).fit(X).coreset_ is None


def test_random_state_decides_the_coreset(X):
    one, same, other = (mixture(coreset_size=50, random_state=seed).fit(X) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.coreset_.indices, same.coreset_.indices)
    np.testing.assert_array_equal(one.means_, same.means_)
    assert not np.array_equal(one.coreset_.indices, other.coreset_.indices)


def test_weights_are_repeated_rows_for_the_coreset_too(X):
    counts = np.random.default_rng(3).integers(0, 4, size=4000)
    weighted = mixture(coreset_size=60).fit(X, sample_weight=counts)
    repeated = np.random.default_rng(4).permutation(np.repeat(np.arange(4000), counts))
    other = mixture(coreset_size=60).fit(X[repeated])
    assert_same_fit(weighted, other, rtol=1e-8, atol=1e-10)
    chosen = weighted.coreset_.indices
    assert set(chosen) == set(repeated[other.coreset_.indices])
    assert (counts[chosen] > 0).all()
    with warnings.catch_warnings():
        for category in (ConvergenceWarning, DataDimensionalityWarning):
            warnings.simplefilter("ignore", category)
        check_sample_weight_equivalence_on_dense_data(
            "DPGaussianMixture", mixture(n_components=2, coreset_size=6)
        )


def test_a_coreset_of_all_rows_is_all_rows(X):
    few = X[:80]
    fitted = mixture(coreset_size=100).fit(few)
    np.testing.assert_array_equal(fitted.coreset_.indices, np.arange(80))
    np.testing.assert_array_equal(fitted.coreset_.weights, np.ones(80))
    assert "epsilon" not in fitted.coreset_.report.rounds[0]
    assert_same_fit(fitted, mixture().fit(few), rtol=0)


def test_a_fit_that_talks_says_whether_the_draws_are_near_uniform(X, capsys):
    for rows, near in ((X[X[:, 0] < 20.0], True), (X, False)):
        mixture(coreset_size=50, verbose=1).fit(rows)
        first = capsys.readouterr().out.splitlines()[0]
        assert first.startswith("Coreset: ")
        assert ("rows, normalised entropy" in first, "nearly uniform" in first) == (True, near)


def test_names_of_columns_stay(X):
    table = pd.DataFrame(X, columns=["east", "north"])
    fitted = mixture(coreset_size=50).fit(table)
    coreset = fitted.coreset_
    assert list(coreset.rows) == ["east", "north"]
    np.testing.assert_array_equal(coreset.rows["north"], X[coreset.indices, 1])
    assert_same_fit(fitted, mixture(coreset_size=50).fit(X), rtol=0)


@pytest.fixture(scope="module")
def built(X):
    return decoct.mixture.build(mixture(), {"x": X}, size=200, seed=5)


def test_build_gives_the_coreset_and_the_fit(X, built):
    estimator = mixture()
    again = decoct.mixture.build(estimator, {"x": X}, size=200, seed=5)
    assert not hasattr(estimator, "means_")
    fitted = again.model
    assert isinstance(fitted, DPGaussianMixture)
    assert fitted.coreset_ is again
    np.testing.assert_array_equal(again.indices, built.indices)
    assert_same_fit(fitted, built.model, rtol=0)
    by_hand = mixture(mean_prior=X.mean(axis=0), covariance_prior=np.cov(X.T) + 1e-6 * np.eye(2))
    by_hand.fit(again.rows["x"], sample_weight=again.weights)
    assert_same_fit(fitted, by_hand, rtol=1e-6, atol=1e-9)
    report = again.report
    assert report.method == {
        "name": "LightweightCoreset",
        "columns": None,
        "components": 6,
        "delta": 0.05,
    }
    assert report.rounds[0]["epsilon"] > 0.0
    assert report.passes == 3  # two of Alg. 1, one for the default priors
    assert "fit" in report.seconds
    assert repr(again).startswith("Coreset(")
    given = mixture(mean_prior=[0.0, 0.0], covariance_prior=1.0)
    assert decoct.mixture.build(given, {"x": X}, size=50).report.passes == 2


def test_draws_that_are_nearly_uniform_are_said_to_be(X, built):
    """Rows on a circle about their mean are all as far from it; one far out is not."""
    angles = np.linspace(0.0, 2.0 * np.pi, 400, endpoint=False)
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    (even,) = decoct.mixture.build(DPGaussianMixture(), circle, size=50).report.rounds
    assert even["near_uniform"]
    assert "as many rows drawn uniformly would do about as well" in even["note"]
    far = np.concatenate([circle, [[1e3, 1e3]]])
    (uneven,) = decoct.mixture.build(DPGaussianMixture(), far, size=50).report.rounds
    assert not uneven["near_uniform"]
    assert "note" not in uneven
    own = DPGaussianMixture(coreset_size=50, random_state=0).fit(circle).coreset_.report
    assert own.rounds[0]["note"] == even["note"]


@pytest.mark.parametrize("seed", [-1, 2**32, 2**40])
def test_any_seed_of_a_build_is_one_of_the_fit(X, seed):
    coreset = decoct.mixture.build(DPGaussianMixture(n_components=2), X, size=50, seed=seed)
    assert coreset.report.seed == seed
    assert coreset.report.sampler is None
    assert coreset.model.random_state == seed % 2**32


def test_estimate_counts_the_passes(X):
    for options, passes in (({}, 3), ({"mean_prior": np.zeros(X.shape[1])}, 3)):
        mixture = DPGaussianMixture(n_components=2, **options)
        assert decoct.mixture.estimate(mixture, X, size=50).passes == (passes, passes)
        assert decoct.mixture.build(mixture, X, size=50).report.passes == passes
    given = {"mean_prior": np.zeros(X.shape[1]), "covariance_prior": 1.0}
    mixture = DPGaussianMixture(n_components=2, **given)
    assert decoct.mixture.estimate(mixture, X, size=50).passes == (2, 2)
    assert decoct.mixture.build(mixture, X, size=50).report.passes == 2


def test_what_is_no_model_is_refused_before_any_row_is_read(X):
    from sklearn.mixture import BayesianGaussianMixture

    with pytest.raises(RequestError, match="not a model with a log-likelihood for each row"):
        decoct.build(BayesianGaussianMixture(), X, size=10)
    with pytest.raises(RequestError, match="the class DPGaussianMixture; give an instance"):
        decoct.build(DPGaussianMixture, X, size=10)
    with pytest.raises(RequestError, match="A NoneType is not a model with a log-likelihood"):
        decoct.estimate(None, X, size=10)
    for wrong in (BayesianGaussianMixture(), DPGaussianMixture, None):
        with pytest.raises(RequestError, match=r"estimator is a .*DPGaussianMixture"):
            decoct.mixture.build(wrong, X, size=10)


def test_merge_says_to_fit_again(X, built):
    with pytest.raises(RequestError, match=r"fit it to them with fit\(X, sample"):
        decoct.merge([built, built])


def test_epsilon_is_told_whoever_names_the_method(X):
    def told(components, model=None):
        method = LightweightCoreset(components=components)
        build = decoct.build if model else decoct.mixture.build
        return build(model or mixture(), {"x": X}, size=50, method=method).report.rounds[0]

    assert told(None)["epsilon"] == theorem_3_1(50, 2, 6)
    assert told(4)["epsilon"] == theorem_3_1(50, 2, 4)
    # a model that is no mixture has no components
    assert "epsilon" not in told(None, decoct.models.GaussianMean(np.eye(2)))


def test_the_coreset_is_the_construction_s_whatever_the_model(X, built):
    other = decoct.build(
        decoct.models.GaussianMean(np.eye(2)),
        {"x": X},
        size=200,
        seed=5,
        method=LightweightCoreset(),
    )
    np.testing.assert_array_equal(built.indices, other.indices)
    np.testing.assert_array_equal(built.weights, other.weights)


def test_build_takes_every_table(X, tmp_path):
    table = pd.DataFrame({"name": ["row"] * 4000, "east": X[:, 0], "north": X[:, 1]})
    file = tmp_path / "rows.parquet"
    table.to_parquet(file)
    method = LightweightCoreset(columns=("east", "north"))
    coresets = [
        decoct.mixture.build(mixture(), source, size=150, method=method)
        for source in (table, str(file))
    ]
    numbers = decoct.mixture.build(mixture(), table[["east", "north"]], size=150)
    for coreset in (coresets[1], numbers):
        assert list(coreset.rows) == ["east", "north"]
        np.testing.assert_array_equal(coresets[0].indices, coreset.indices)
        assert_same_fit(coresets[0].model, coreset.model, rtol=1e-8)
    fitted = coresets[0].model
    assert list(fitted.feature_names_in_) == ["east", "north"]
    assert np.isfinite(fitted.score(table[["east", "north"]]))
    with pytest.raises(RowsError, match="Column 'name' is not numeric"):
        decoct.mixture.build(mixture(), table, size=150)


def test_other_ways_to_choose(X):
    coreset = decoct.mixture.build(mixture(), {"x": X}, size=100, method=Uniform())
    counts = coreset.weights * 100 / 4000
    np.testing.assert_allclose(counts, np.round(counts))
    assert np.isfinite(coreset.model.score(X))
    small, large = decoct.mixture.path(mixture(), {"x": X}, [40, 160], seed=2)
    assert small.size < large.size <= 160
    assert small.model.coreset_ is small
    assert set(small.indices) <= set(large.indices)
    without = mixture(random_state=None)
    one, same = (decoct.mixture.build(without, {"x": X}, size=60, seed=4).model for _ in range(2))
    assert_same_fit(one, same, rtol=0)


@pytest.mark.parametrize(
    ("how", "options", "message"),
    [
        ({}, {"size": 50, "method": IteratedHilbert()}, r"use LightweightCoreset\(\) or Uniform"),
        ({}, {"size": 5000}, "the table has 4000 rows"),
        ({"coreset_size": 50}, {"size": 50}, "coreset_size is 50; leave it None"),
        ({"n_components": 0}, {"size": 50}, "'n_components' parameter"),
    ],
)
def test_requests_that_cannot_be_meant(X, how, options, message):
    with pytest.raises(DecoctError, match=message):
        decoct.mixture.build(mixture(**how), {"x": X}, **options)


@pytest.mark.parametrize("size", [0, 2.5, True, "all"])
def test_bad_sizes(X, size):
    with pytest.raises(RequestError, match="'coreset_size' parameter of DPGaussianMixture must be"):
        mixture(coreset_size=size).fit(X)


def test_rows_that_are_all_one_row():
    with pytest.raises(RowsError, match="one distinct row"):
        decoct.mixture.build(mixture(), {"x": np.full((3000, 2), 0.1)}, size=20)
    fitted = mixture(covariance_prior=1.0, coreset_size=5).fit(np.full((30, 2), 0.1))
    np.testing.assert_array_equal(fitted.coreset_.weights, [30.0])


def test_rows_whose_squares_overflow_are_named(X):
    far = X.copy()
    far[1234, 1] = -1e200
    for how in ({}, {"mean_prior": [0.0, 0.0]}):
        with pytest.raises(RowsError, match=r"X has -1e\+200 in row 1234, column 1, whose square"):
            decoct.mixture.build(mixture(**how), {"x": far}, size=30, method=Uniform())
    # priors that need no look at all rows, and rows that were kept
    given = mixture(mean_prior=[0.0, 0.0], covariance_prior=1.0)
    few = decoct.mixture.build(given, {"x": far}, size=30, method=Uniform())
    assert 1234 not in few.indices
    far[few.indices[7], 0] = 1e160
    with pytest.raises(RowsError, match=rf"X has 1e\+160 in row {few.indices[7]}, column 0"):
        decoct.mixture.build(given, {"x": far}, size=30, method=Uniform())
    with pytest.raises(RowsError, match="squared distances to the mean overflow"):
        decoct.mixture.build(mixture(), {"x": far}, size=30)


def test_there_is_no_density_for_those_who_need_one(X):
    for ask in (
        lambda: decoct.compare(DPGaussianMixture(), X, [10]),
        lambda: decoct.StreamingCoreset(DPGaussianMixture(), 10),
    ):
        with pytest.raises(
            RequestError, match=r"For mixtures of Gaussians use decoct\.mixture\.build"
        ):
            ask()


def test_there_is_no_density_to_walk_on(built):
    for ask in (
        lambda: built.log_density(np.zeros(3)),
        lambda: built.dim,
        lambda: built.density,
    ):
        with pytest.raises(RequestError, match="no density over its parameters"):
            ask()
    with pytest.raises(RequestError, match="need no sampler"):
        built.sample(sampler=decoct.samplers.NUTS())


@pytest.mark.parametrize("kind", ["dirichlet_process", "dirichlet_distribution"])
def test_draws_are_of_the_variational_posterior(X, kind):
    estimator = mixture(weight_concentration_prior_type=kind)
    coreset = decoct.mixture.build(estimator, pd.DataFrame(X, columns=["a", "b"]), size=200)
    fitted = coreset.model
    posterior = coreset.sample(draws=1500, chains=2, seed=1)["posterior"]
    assert posterior["weights"].dims == ("chain", "draw", "component")
    assert posterior["means"].dims == ("chain", "draw", "component", "feature")
    assert posterior["covariances"].dims[-2:] == ("feature", "other_feature")
    assert list(posterior["feature"].to_numpy()) == ["a", "b"]
    assert posterior.sizes["chain"] == 2
    weights, means, covariances = (
        posterior[name].to_numpy().reshape(3000, *posterior[name].shape[2:])
        for name in ("weights", "means", "covariances")
    )
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)

    def agrees(draws, expected):
        error = draws.std(axis=0) / np.sqrt(3000)
        assert (np.abs(draws.mean(axis=0) - expected) < 5 * error + 1e-12).all()

    used = fitted.weights_ > 0.05
    agrees(weights, fitted.weights_)
    agrees(means[:, used], fitted.means_[used])
    agrees(np.linalg.inv(covariances[:, used]), fitted.precisions_[used])
    # Var μ = E(βΛ)⁻¹, with E Λ⁻¹ = W⁻¹/(ν − D − 1)
    t = fitted.weights_.argmax()
    nu = fitted.degrees_of_freedom_[t]
    spread = fitted.covariances_[t] * nu / (nu - 3.0)
    agrees(covariances[:, t], spread)
    away = means[:, t] - fitted.means_[t]
    agrees(away[:, :, None] * away[:, None, :], spread / fitted.mean_precision_[t])
    again = coreset.sample(draws=1500, chains=2, seed=1)["posterior"]
    np.testing.assert_array_equal(again["means"], posterior["means"])


def test_draws_that_would_not_fit(built):
    with pytest.raises(RequestError, match=r"take 768\.0 GB; ask for at most"):
        built.sample(draws=1_000_000_000)


@pytest.mark.parametrize("kind", ["dirichlet_process", "dirichlet_distribution"])
def test_a_file_brings_the_fit_back_to_the_last_bit(X, kind, tmp_path):
    estimator = mixture(
        weight_concentration_prior_type=kind,
        weight_concentration_prior=np.float64(5.0),
        mean_prior=np.zeros(2),
        covariance_prior=0.1,
    )
    coreset = decoct.mixture.build(estimator, pd.DataFrame(X, columns=["a", "b"]), size=120)
    coreset.save(tmp_path / "mixture.parquet")
    back = decoct.load(tmp_path / "mixture.parquet")
    np.testing.assert_array_equal(back.indices, coreset.indices)
    assert back.report == coreset.report
    assert isinstance(back.model, DPGaussianMixture)
    assert back.model.coreset_ is back
    for name in ATTRIBUTES:
        np.testing.assert_array_equal(getattr(back.model, name), getattr(coreset.model, name))
    np.testing.assert_array_equal(
        back.model.weight_concentration_, coreset.model.weight_concentration_
    )
    assert back.model.converged_ == coreset.model.converged_
    table = pd.DataFrame(X, columns=["a", "b"])
    np.testing.assert_array_equal(
        back.model.score_samples(table), coreset.model.score_samples(table)
    )
    np.testing.assert_array_equal(
        back.sample(draws=5)["posterior"]["means"], coreset.sample(draws=5)["posterior"]["means"]
    )
    assert clone(back.model).get_params()["mean_prior"] == [0.0, 0.0]
    back.save(tmp_path / "again.parquet")
    np.testing.assert_array_equal(
        decoct.load(tmp_path / "again.parquet").model.means_, coreset.model.means_
    )


def test_the_estimator_s_own_coreset_can_be_kept_too(X, tmp_path):
    fitted = mixture(coreset_size=80).fit(X)
    fitted.coreset_.save(tmp_path / "own.parquet")
    back = decoct.load(tmp_path / "own.parquet").model
    np.testing.assert_array_equal(back.means_, fitted.means_)
    assert back.coreset_size == 80


def test_what_a_file_cannot_hold_is_refused_before_it_is_written(X, tmp_path):
    random_state = np.random.RandomState(0)
    coreset = decoct.mixture.build(mixture(random_state=random_state), {"x": X}, size=50)
    with pytest.raises(CoresetFileError, match="give random_state as a whole number"):
        coreset.save(tmp_path / "no.parquet")
    assert not list(tmp_path.iterdir())


def test_a_damaged_fit_is_a_sentence(built, tmp_path, monkeypatch):
    state = built.model.fitted_state()
    del state["chol"]
    monkeypatch.setattr(built.model, "fitted_state", lambda: state)
    built.save(tmp_path / "bad.parquet")
    with pytest.raises(CoresetFileError, match="is a damaged coreset file"):
        decoct.load(tmp_path / "bad.parquet")


def test_decoct_does_without_scikit_learn_until_asked():
    program = (
        "import sys, decoct, decoct.mixture, decoct.building.driver, decoct.formats.coreset_file; "
        "sys.exit('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
