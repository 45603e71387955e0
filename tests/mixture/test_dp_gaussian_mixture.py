"""The estimator: scikit-learn's contract, the weights contract, its peer, and bad input."""

import importlib
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse, stats

pytest.importorskip("sklearn", minversion="1.6")
from sklearn.base import clone
from sklearn.exceptions import (
    ConvergenceWarning,
    DataDimensionalityWarning,
    NotFittedError,
)
from sklearn.mixture import BayesianGaussianMixture
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    parametrize_with_checks,
)

from decoct.errors import DecoctError
from decoct.mixture.dp_gaussian_mixture import DPGaussianMixture
from decoct.mixture.initialization import merge_equal_rows

STARTS = ("kmeans", "k-means++", "random", "random_from_data")


@parametrize_with_checks([DPGaussianMixture()])
def test_scikit_learns_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.parametrize("start", STARTS)
def test_scikit_learns_check_of_weights(start):
    estimator = DPGaussianMixture(n_components=3, init_params=start)
    with warnings.catch_warnings():
        for category in (ConvergenceWarning, DataDimensionalityWarning):
            warnings.simplefilter("ignore", category)
        check_sample_weight_equivalence_on_dense_data("DPGaussianMixture", estimator)


@pytest.fixture(name="X", scope="module")
def three_groups():
    """Three groups, in the order that the estimator gives its rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 2)) + 6.0 * np.eye(3)[rng.integers(3, size=600)][:, :2]
    return merge_equal_rows(x, np.ones(600))[0]


def fitted(X, sample_weight=None, **how):
    how = {"n_components": 6, "random_state": 0, "max_iter": 2000, **how}
    return DPGaussianMixture(**how).fit(X, sample_weight=sample_weight)


@pytest.mark.parametrize("kind", ["dirichlet_process", "dirichlet_distribution"])
def test_it_finds_what_scikit_learn_finds(X, kind):
    # From the same start: the rows are in the order that the fit gives them, so k-means is too.
    how = {"n_components": 6, "random_state": 0, "weight_concentration_prior_type": kind}
    peer = BayesianGaussianMixture(**how, reg_covar=0.0, max_iter=2000, tol=1e-7).fit(X)
    ours = fitted(X, weight_concentration_prior_type=kind, reg_covar=0.0, tol=1e-7)
    assert peer.converged_
    assert ours.converged_
    # The Dirichlet is the same model; there v_T is free, which matters little as T is not needed.
    tolerance = 1e-5 if kind == "dirichlet_distribution" else 2e-2
    np.testing.assert_allclose(ours.weights_, peer.weights_, atol=tolerance)
    used = peer.weights_ > 0.05
    assert used.sum() == 3
    for name in ("means_", "covariances_", "precisions_", "precisions_cholesky_"):
        np.testing.assert_allclose(
            getattr(ours, name)[used], getattr(peer, name)[used], rtol=tolerance, atol=tolerance
        )
    np.testing.assert_array_equal(ours.predict(X), peer.predict(X))
    np.testing.assert_allclose(ours.predict_proba(X), peer.predict_proba(X), atol=tolerance)
    if kind == "dirichlet_distribution":
        assert ours.n_iter_ == peer.n_iter_
        np.testing.assert_allclose(
            ours.weight_concentration_, peer.weight_concentration_, rtol=1e-4
        )
    assert ours.weight_concentration_prior_ == peer.weight_concentration_prior_
    np.testing.assert_allclose(ours.covariance_prior_, peer.covariance_prior_, rtol=1e-12)
    np.testing.assert_allclose(ours.mean_prior_, peer.mean_prior_, rtol=1e-12)
    assert ours.degrees_of_freedom_prior_ == peer.degrees_of_freedom_prior_


def test_names_and_defaults_are_scikit_learns():
    ours = DPGaussianMixture().get_params()
    theirs = BayesianGaussianMixture().get_params()
    assert ours.pop("coreset_size") is None
    assert {**theirs, **ours} == theirs
    assert set(theirs) - set(ours) == {"covariance_type"}


@pytest.mark.parametrize("start", STARTS)
def test_weights_are_repeated_rows(X, start):
    counts = np.random.default_rng(3).integers(0, 4, size=600)
    weighted = fitted(X, counts, init_params=start)
    repeated = np.random.default_rng(4).permutation(np.repeat(X, counts, axis=0))
    other = fitted(repeated, init_params=start)
    assert weighted.n_iter_ == other.n_iter_
    np.testing.assert_allclose(weighted.lower_bounds_, other.lower_bounds_, rtol=1e-12)
    for name in ("weights_", "means_", "covariances_", "degrees_of_freedom_", "mean_prior_"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(other, name), rtol=1e-8)
    np.testing.assert_allclose(weighted.score_samples(X), other.score_samples(X), rtol=1e-8)


def test_weights_of_one_and_the_order_of_rows_change_nothing(X):
    plain = fitted(X)
    for other in (fitted(X, np.ones(600)), fitted(X[::-1])):
        np.testing.assert_array_equal(plain.means_, other.means_)
        assert plain.lower_bounds_ == other.lower_bounds_
    assert fitted(X, random_state=1).lower_bounds_ != plain.lower_bounds_


def test_distinct_rows():
    x = np.array([[1.0, 2.0], [0.0, 3.0], [1.0, 2.0], [-0.0, 3.0], [5.0, 5.0], [2.0, 1.0]])
    w = np.array([1.0, 2.0, 0.5, 4.0, 0.0, 1.0])
    rows, weights = merge_equal_rows(x, w)
    found = {tuple(row + 0.0): weight for row, weight in zip(rows, weights, strict=True)}
    assert found == {(1.0, 2.0): 1.5, (0.0, 3.0): 6.0, (2.0, 1.0): 1.0}
    again = merge_equal_rows(x[::-1], w[::-1])
    np.testing.assert_array_equal(rows, again[0])
    np.testing.assert_array_equal(weights, again[1])


def test_samples_are_of_the_density_that_is_scored(X):
    mixture = fitted(X)
    drawn, labels = mixture.sample(20_000)
    assert drawn.shape == (20_000, 2)
    np.testing.assert_allclose(
        np.bincount(labels, minlength=6) / 20_000, mixture.weights_, atol=0.02
    )
    # E of the density's logarithm at its own draws, against a grid's integral of p ln p
    axis = np.linspace(-25.0, 31.0, 561)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    log_p = mixture.score_samples(grid)
    cell = (axis[1] - axis[0]) ** 2
    assert np.exp(log_p).sum() * cell == pytest.approx(1.0, abs=2e-3)
    scores = mixture.score_samples(drawn)
    error = scores.std() / np.sqrt(20_000)
    assert abs(scores.mean() - (np.exp(log_p) * log_p).sum() * cell) < 4 * error + 0.02
    assert mixture.score(drawn) == pytest.approx(scores.mean())
    # one coordinate by its marginal, a mixture of t's
    beta, dof = mixture.mean_precision_, mixture.degrees_of_freedom_ - 1.0
    scatter = mixture.covariances_[:, 0, 0] * mixture.degrees_of_freedom_
    scale = np.sqrt(scatter * (1.0 + beta) / (beta * dof))

    def cdf(v):
        return stats.t(dof, mixture.means_[:, 0], scale).cdf(v[:, None]) @ mixture.weights_

    assert stats.kstest(drawn[:, 0], cdf).pvalue > 1e-4


def test_precisions_are_the_inverse_of_covariances(X):
    mixture = fitted(X)
    identity = np.broadcast_to(np.eye(2), (6, 2, 2))
    np.testing.assert_allclose(mixture.covariances_ @ mixture.precisions_, identity, atol=1e-9)
    factor = mixture.precisions_cholesky_
    np.testing.assert_allclose(factor @ factor.transpose(0, 2, 1), mixture.precisions_)
    np.testing.assert_array_equal(np.tril(factor, -1), 0.0)
    assert mixture.weights_.sum() == pytest.approx(1.0, rel=1e-12)
    a, b = mixture.weight_concentration_
    assert b[-1] == 0.0
    np.testing.assert_allclose(a.sum() - 6.0, 600.0, rtol=1e-12)


def test_warm_starts_go_on(X):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        long = fitted(X, max_iter=40, tol=0.0)
        warm = DPGaussianMixture(
            n_components=6, random_state=0, max_iter=20, tol=0.0, warm_start=True
        )
        bounds = warm.fit(X).lower_bounds_ + warm.fit(X).lower_bounds_
    np.testing.assert_allclose(bounds, long.lower_bounds_, rtol=1e-12)
    np.testing.assert_allclose(warm.means_, long.means_, rtol=1e-8)
    # on other rows, whose bound is no fall of this one
    fewer = warm.set_params(max_iter=2000, tol=1e-3).fit(X[:300])
    assert fewer.converged_
    more = warm.fit(np.vstack([X, X]))
    assert more.converged_
    assert more.lower_bound_ < fitted(X).lower_bound_
    with pytest.raises(DecoctError, match=r"\(6, 2, 'dirichlet_process'\), not \(3, 2"):
        warm.set_params(n_components=3).fit(X)
    warm.set_params(n_components=6, weight_concentration_prior_type="dirichlet_distribution")
    with pytest.raises(DecoctError, match=r"not .*'dirichlet_distribution'"):
        warm.fit(X)


def test_the_best_of_several_starts_is_kept(X):
    alone = [fitted(X, init_params="random", random_state=0, n_init=n).lower_bound_ for n in (1, 4)]
    assert alone[1] >= alone[0]


def test_iterations_can_end_early(X, capsys):
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        short = fitted(X, max_iter=2, verbose=2, verbose_interval=1)
    assert short.n_iter_ == 2
    assert not short.converged_
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "Initialization 0"
    assert told[2].startswith("  Iteration 2\t time lapse")
    assert told[3].startswith("Initialization did not converge. time lapse")
    start = fitted(X, max_iter=0)
    assert start.n_iter_ == 0
    assert start.lower_bound_ == -np.inf
    assert start.predict(X).shape == (600,)
    again = fitted(X, warm_start=True)
    bound, means = again.lower_bound_, again.means_
    again.set_params(max_iter=0).fit(X)
    assert again.n_iter_ == 0
    assert again.lower_bound_ == bound
    np.testing.assert_allclose(again.means_, means, rtol=1e-12)


def test_the_bound_never_falls_in_many_columns():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 74)) + 0.5 * rng.normal(size=(3, 74))[rng.integers(3, size=600)]
    mixture = fitted(
        x,
        rng.gamma(1.0, size=600),
        init_params="random",
        tol=1e-6,
        covariance_prior=74.0,
        weight_concentration_prior=5.0,
    )
    assert mixture.converged_
    assert mixture.n_iter_ > 20
    bounds = np.array(mixture.lower_bounds_)
    assert np.diff(bounds).min() > -1e-12 * np.abs(bounds).max()
    assert bounds[-1] - bounds[0] > 1000.0


@pytest.mark.parametrize("kinds", [("process", "distribution"), ("distribution", "process")])
def test_parameters_set_after_the_fit_wait_for_the_next(X, kinds):
    mixture = fitted(X, weight_concentration_prior_type=f"dirichlet_{kinds[0]}")
    before = mixture.predict_proba(X), mixture.score_samples(X), mixture.sample(50)[0]
    mixture.set_params(
        weight_concentration_prior_type=f"dirichlet_{kinds[1]}",
        weight_concentration_prior=70.0,
        n_components=2,
        covariance_prior=3.0,
    )
    after = mixture.predict_proba(X), mixture.score_samples(X), mixture.sample(50)[0]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    mixture.fit(X)
    assert isinstance(mixture.weight_concentration_, tuple) == (kinds[1] == "process")
    assert mixture.predict_proba(X).shape == (600, 2)


@pytest.mark.parametrize("start", STARTS)
def test_more_components_than_rows(start):
    few = np.array([[0.0, 1.0], [2.0, 2.0], [5.0, 0.0]])
    mixture = fitted(few, [1, 4, 2], init_params=start)
    assert np.isfinite(mixture.lower_bound_)
    assert mixture.weights_.sum() == pytest.approx(1.0)


def test_more_columns_than_rows_and_constant_columns():
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(8, 20))
    told = (
        r"X has 8 distinct rows and 20 columns: its covariance, the default covariance_prior, has "
        r"rank 7 at most, and reg_covar \(1e-06\) is all .* Give covariance_prior"
    )
    with pytest.warns(DataDimensionalityWarning, match=told):
        assert np.isfinite(fitted(wide, n_components=2).score(wide))
    # a prior that holds without rows is no guess, and one row more than columns spans them
    assert np.isfinite(fitted(wide, n_components=2, covariance_prior=1.0).score(wide))
    assert np.isfinite(fitted(wide[:, :7], n_components=2).score(wide[:, :7]))
    repeated = np.repeat(wide[:, :7], 3, axis=0)[:-3]
    with pytest.warns(DataDimensionalityWarning, match="X has 7 distinct rows and 7 columns"):
        fitted(repeated, n_components=2)
    constant = np.column_stack([rng.normal(size=(50, 2)), np.full(50, 3.0)])
    assert np.isfinite(fitted(constant, n_components=2).score(constant))
    with pytest.raises(DecoctError, match=r"8 distinct rows span 7 of 20 columns"):
        fitted(wide, n_components=2, reg_covar=0.0)
    with pytest.raises(DecoctError, match="Column 2 of X is constant"):
        fitted(constant, n_components=2, reg_covar=0.0)


def test_priors_as_the_paper_sets_them(X):
    mixture = fitted(
        X,
        mean_precision_prior=0.8,
        degrees_of_freedom_prior=2,
        weight_concentration_prior=5.0,
        mean_prior=np.zeros(2),
        covariance_prior=0.1,
    )
    np.testing.assert_array_equal(mixture.covariance_prior_, 0.1 * np.eye(2))
    same = clone(mixture).set_params(covariance_prior=0.1 * np.eye(2)).fit(X)
    np.testing.assert_array_equal(same.means_, mixture.means_)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (-1.0, "Negative values in data passed to `sample_weight`"),
        (np.nan, "Input sample_weight contains NaN"),
        (np.inf, "Input sample_weight contains infinity"),
    ],
)
def test_bad_weights(X, weights, message):
    given = np.ones(600)
    given[3] = weights
    with pytest.raises(ValueError, match=message):
        fitted(X, given)


def test_weights_that_are_none_at_all(X):
    with pytest.raises(ValueError, match="at least one non-zero"):
        fitted(X, np.zeros(600))
    with pytest.raises(ValueError, match=r"sample_weight.shape == \(5,\), expected \(600,\)"):
        fitted(X, np.ones(5))
    with pytest.raises(ValueError, match=r"sample_weight sums to 0\.5; weights count rows"):
        fitted(X, np.full(600, 0.5 / 600))
    with pytest.raises(ValueError, match="one distinct row"):
        fitted(X, np.eye(600)[7] * 5.0)


@pytest.mark.parametrize("n", [21, 22, 24, 31])
def test_weights_that_sum_to_one_up_to_rounding(X, n):
    """Some sums are one and 2e-16: a covariance divided by the rest would be 4e15."""
    weights = np.random.default_rng(n).uniform(size=n)
    with pytest.raises(ValueError, match=r"sample_weight sums to 1; .* at least 2: scale them up"):
        fitted(X[:n], weights / weights.sum())
    assert np.isfinite(fitted(X[:n], 2.0 * weights / weights.sum()).lower_bound_)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("columns", "options", "weights"),
    [
        (1, {}, -1.0),
        (1, {"covariance_prior": "three"}, 1.0),
        (2, {"weight_concentration_prior": 7.0, "covariance_prior": -np.eye(2)}, 1.0),
        (2, {"weight_concentration_prior": 7.0}, 1e-6),
    ],
)
def test_a_fit_that_fails_leaves_the_one_before(X, columns, options, weights, warm):
    estimator = DPGaussianMixture(n_components=2, max_iter=500, random_state=0).fit(X[:, :2])
    before, scores = dict(vars(estimator)), estimator.score_samples(X[:, :2])
    estimator.set_params(warm_start=warm, **options)
    with pytest.raises(ValueError, match=r"\w"):
        estimator.fit(X[:, :columns], sample_weight=np.full(600, weights))
    given = {"warm_start": warm, **options}
    assert {k: v for k, v in vars(estimator).items() if k not in given} == {
        k: v for k, v in before.items() if k not in given
    }
    np.testing.assert_array_equal(estimator.score_samples(X[:, :2]), scores)


def test_a_fit_that_is_interrupted_leaves_the_one_before(X, monkeypatch):
    estimator = DPGaussianMixture(n_components=2, max_iter=500, random_state=0).fit(X)
    before = dict(vars(estimator))

    def stop(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("decoct.mixture.cavi.ascend", stop)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(X[:300, :1])
    assert vars(estimator) == before


def test_the_score_of_weighted_rows_is_that_of_repeated_rows(X):
    estimator = fitted(X)
    counts = np.random.default_rng(0).integers(0, 3, size=600)
    repeated = estimator.score(np.repeat(X, counts, axis=0))
    assert estimator.score(X, sample_weight=counts) == pytest.approx(repeated, rel=1e-12)
    with pytest.raises(ValueError, match="at least one non-zero"):
        estimator.score(X, sample_weight=np.zeros(600))


@pytest.mark.parametrize("start", STARTS)
def test_in_vast_weights_the_prior_is_lost_and_nothing_else(X, start):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        many, fewer = (
            fitted(X, np.full(600, weight), init_params=start, max_iter=20, tol=0.0)
            for weight in (1e297, 1e15)
        )
    np.testing.assert_allclose(many.means_, fewer.means_, rtol=1e-9)
    np.testing.assert_allclose(many.score_samples(X), fewer.score_samples(X), rtol=1e-9)
    normal = sum(
        weight * stats.multivariate_normal(mean, covariance).pdf(X)
        for weight, mean, covariance in zip(
            many.weights_, many.means_, many.covariances_, strict=True
        )
    )
    np.testing.assert_allclose(many.score_samples(X), np.log(normal), rtol=1e-9)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"n_components": 0}, r"'n_components' parameter .* int in the range \[1, inf\). Got 0"),
        ({"n_components": 2.0}, "'n_components' parameter"),
        ({"tol": -1.0}, "'tol' parameter"),
        ({"reg_covar": -1.0}, "'reg_covar' parameter"),
        ({"max_iter": -1}, "'max_iter' parameter"),
        ({"n_init": 0}, "'n_init' parameter"),
        ({"init_params": "magic"}, "'init_params' parameter .* must be a str among"),
        ({"init_params": np.array(["kmeans", "random"])}, "must be a str among"),
        ({"weight_concentration_prior_type": ["dirichlet_process"]}, "must be a str among"),
        ({"weight_concentration_prior_type": "x"}, "'weight_concentration_prior_type' parameter"),
        ({"weight_concentration_prior": 0.0}, "'weight_concentration_prior' parameter"),
        ({"mean_precision_prior": -1.0}, "'mean_precision_prior' parameter"),
        ({"degrees_of_freedom_prior": 1.0}, "'degrees_of_freedom_prior' should be greater than 1"),
        ({"mean_prior": [1.0]}, r"'means' should have the shape of \(2,\), but got \(1,\)"),
        ({"mean_prior": [1.0, np.nan]}, "contains NaN"),
        ({"mean_prior": "middle"}, "'mean_prior' parameter .* must be None or an array-like"),
        ({"mean_prior": 1.0}, "'mean_prior' parameter .* must be None or an array-like"),
        ({"covariance_prior": -1.0}, "'covariance_prior' parameter"),
        ({"covariance_prior": "wide"}, "'covariance_prior' parameter .* an array-like or a float"),
        ({"covariance_prior": [[1e-9, 1e-9], [0.0, 1e-9]]}, "symmetric, positive-definite"),
        ({"warm_start": 3}, "'warm_start' parameter .* must be an instance of 'bool'"),
        ({"verbose": -1}, r"'verbose' parameter .* int in the range \[0, inf\)"),
        ({"random_state": -1}, r"'random_state' parameter .* range \[0, 4294967295\]"),
        ({"random_state": "a"}, r"'random_state' parameter .* range \[0, 4294967295\]"),
        ({"covariance_prior": np.eye(3)}, r"should have the shape of \(2, 2\), but got \(3, 3\)"),
        ({"covariance_prior": -np.eye(2)}, "symmetric, positive-definite"),
        ({"covariance_prior": [[1.0, 0.5], [0.0, 1.0]]}, "symmetric, positive-definite"),
    ],
)
def test_bad_parameters(X, how, message):
    with pytest.raises(ValueError, match=message):
        fitted(X, **how)


@pytest.mark.parametrize(
    "how",
    [
        {"n_components": 0}, {"tol": -1.0}, {"reg_covar": None}, {"max_iter": 1.5},
        {"weight_concentration_prior": 0.0}, {"mean_precision_prior": "a"},
        {"degrees_of_freedom_prior": 1.0}, {"mean_prior": "a"}, {"mean_prior": [1.0]},
        {"covariance_prior": "a"}, {"random_state": 1.5}, {"warm_start": "a"}, {"verbose": "a"},
        {"n_init": 0}, {"verbose_interval": 0},
    ],
)  # fmt: skip
def test_the_words_are_scikit_learns(X, how):
    told = []
    for estimator in (BayesianGaussianMixture, DPGaussianMixture):
        with pytest.raises(ValueError, match="par") as caught:
            estimator(**how).fit(X)
        told.append(str(caught.value).replace(estimator.__name__, "It"))
    assert told[0] == told[1]


def test_columns_of_any_unit(X):
    # with one component, as k-means groups columns by their units
    scale = np.array([1e-9, 1e12])
    plain = fitted(X, n_components=1, reg_covar=0.0)
    other = fitted(X * scale + 1e7 * scale, n_components=1, reg_covar=0.0)
    np.testing.assert_allclose(other.means_ / scale - 1e7, plain.means_, atol=1e-7)
    np.testing.assert_allclose(
        other.covariances_ / np.outer(scale, scale), plain.covariances_, rtol=1e-6, atol=1e-6
    )
    assert other.lower_bound_ == pytest.approx(
        plain.lower_bound_ - 600.0 * np.log(scale).sum(), rel=1e-7
    )
    for asked in (fitted, plain.score_samples):
        with pytest.raises(ValueError, match=r"X has .*e\+157 in row 0, column 1, whose square"):
            asked(X * [1.0, 1e160])


def test_digits_that_float64_lacks_are_told():
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    x = rng.normal(size=(400, 3)) * [1e3, 1.0, 1e-4] @ turn
    how = {"n_components": 3, "init_params": "random", "covariance_prior": 1e-10}
    with pytest.warns(
        ConvergenceWarning, match="would have fallen by .* increase covariance_prior"
    ):
        mixture = fitted(x, **how)
    assert not mixture.converged_
    assert (np.diff(mixture.lower_bounds_) > 0.0).all()


@pytest.mark.parametrize(
    "turned", [np.ndarray.tolist, np.asfortranarray, pd.DataFrame, lambda x: x.astype(object)]
)
def test_tables_of_any_kind(X, turned):
    whole = np.round(10.0 * X)
    plain = fitted(whole)
    assert fitted(turned(whole)).lower_bounds_ == plain.lower_bounds_
    for kind in (np.int64, np.float32):
        other = fitted(whole.astype(kind))
        assert other.lower_bounds_ == plain.lower_bounds_
        assert other.means_.dtype == np.float64
        np.testing.assert_array_equal(other.predict(whole.astype(kind)), plain.predict(whole))


def test_sparse_tables_are_refused_and_names_of_columns_kept(X):
    with pytest.raises(TypeError, match="Sparse data was passed for X, but dense data is required"):
        fitted(sparse.csr_matrix(X))
    named = pd.DataFrame(X, columns=["a", "b"])
    mixture = fitted(named)
    assert list(mixture.feature_names_in_) == ["a", "b"]
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        mixture.predict(named[["b", "a"]])


def test_the_smallest_tables():
    two = np.array([[0.0, 1.0], [2.0, -3.0]])
    with pytest.warns(DataDimensionalityWarning, match="has rank 1 at most"):
        mixture = fitted(two)
    assert mixture.weights_.sum() == pytest.approx(1.0)
    assert np.isfinite(mixture.score_samples(two)).all()
    # one row, or rows that are all one, once the prior needs no covariance of theirs
    same = fitted(np.full((3, 2), 7.0), covariance_prior=1.0)
    twice = fitted(np.full((2, 2), 7.0), [1.0, 2.0], covariance_prior=1.0)
    np.testing.assert_array_equal(same.means_, twice.means_)
    assert same.lower_bounds_ == twice.lower_bounds_


def test_bad_rows(X):
    bad = X.copy()
    bad[4, 1] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        fitted(bad)
    with pytest.raises(ValueError, match="one distinct row"):
        fitted(np.full((20, 2), 3.0))
    with pytest.raises(ValueError, match="minimum of 2 is required"):
        fitted(X[:1])
    with pytest.raises(ValueError, match="X has 1 features, but DPGaussianMixture is expecting 2"):
        fitted(X).predict(X[:, :1])
    with pytest.raises(NotFittedError):
        DPGaussianMixture().predict(X)
    for what in ("a", 2.5, 0):
        with pytest.raises(ValueError, match="n_samples must be a whole number, at least 1"):
            fitted(X).sample(what)


def test_without_scikit_learn_a_sentence(monkeypatch):
    name = "decoct.mixture.dp_gaussian_mixture"
    for module in [one for one in sys.modules if one.split(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"needs scikit-learn 1\.6 or newer; install"):
        importlib.import_module(name)


def test_a_vast_concentration_is_no_fall_of_the_bound():
    # ln Γ(1e12) has four digits behind the point: what it leaves of the bound is rounding
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)) + 4.0 * rng.integers(2, size=(300, 1))
    how = {"n_components": 10, "max_iter": 500, "weight_concentration_prior": 1e12}
    mixture = fitted(x, weight_concentration_prior_type="dirichlet_distribution", **how)
    assert mixture.converged_
    assert np.abs(np.diff(mixture.lower_bounds_).min()) < 1.0
