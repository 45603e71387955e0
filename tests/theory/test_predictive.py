"""Fit to held-out rows, against sums written out and SciPy's optimisers."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import xlogy
from scipy.stats import norm, poisson

import decoct
from decoct.data.arrays import ArrayRows
from decoct.data.encoded import encoded
from decoct.errors import ModelError, RequestError
from decoct.models import (
    GaussianMean,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    StudentTRegression,
)
from decoct.passes.potentials import Potentials
from decoct.theory.predictive import best_log_likelihood, negative_log_likelihood

N = 120


def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    mean = x @ [1.0, -0.5, 0.2]
    return {
        "x": x,
        "binary": (mean > rng.logistic(size=N)).astype(int),
        "count": rng.poisson(np.exp(mean)),
        "real": mean + 0.3 * rng.normal(size=N),
    }


TABLE = table()


def rows(response, x=None):
    return {"x": TABLE["x"] if x is None else x, "y": TABLE[response]}


def log_likelihood(name, beta):
    """The mean log-likelihood per row, written out."""
    eta = TABLE["x"] @ beta
    if name == "binary":
        return -np.logaddexp(0.0, np.where(TABLE["binary"] == 1, -eta, eta)).mean()
    return poisson.logpmf(TABLE["count"], np.exp(eta)).mean()


MODELS = {"binary": LogisticRegression(), "count": PoissonRegression(link="log")}


@pytest.mark.parametrize("name", MODELS)
def test_the_average_is_over_rows_and_draws(name):
    draws = 0.5 * np.random.default_rng(1).normal(size=(7, 3))
    expected = -np.mean([log_likelihood(name, beta) for beta in draws])
    value = negative_log_likelihood(MODELS[name], rows(name), draws)
    assert value == pytest.approx(expected, rel=1e-12)


def test_densities_are_normalised():
    draws = np.array([[0.3], [-1.0]])
    x = np.linspace(-2.0, 2.0, 9)
    expected = -np.mean([norm.logpdf(x, mean[0], np.sqrt(2.0)) for mean in draws])
    model = GaussianMean(2.0)
    assert negative_log_likelihood(model, {"x": x}, draws) == pytest.approx(expected, rel=1e-12)


def test_one_pass_is_enough(monkeypatch):
    walks = []
    walk = ArrayRows.map_reduce
    monkeypatch.setattr(ArrayRows, "map_reduce", lambda *a, **k: walks.append(1) or walk(*a, **k))
    negative_log_likelihood(MODELS["binary"], rows("binary"), np.zeros((50, 3)))
    assert len(walks) == 1


@pytest.mark.parametrize("draws", [np.zeros((0, 3)), np.zeros((5, 2)), np.zeros(3)])
def test_draws_of_another_model_are_refused(draws):
    with pytest.raises(RequestError, match=r"\(n, 3\) or .* is wanted"):
        negative_log_likelihood(MODELS["binary"], rows("binary"), draws)


@pytest.mark.parametrize("name", MODELS)
def test_the_best_is_scipys_maximum(name):
    found = minimize(lambda beta: -log_likelihood(name, beta), np.zeros(3), tol=1e-12)
    best = best_log_likelihood(MODELS[name], rows(name))
    assert best == pytest.approx(-found.fun, abs=1e-8)
    # no posterior fits better, and the best fits as well as itself
    draws = found.x + 0.3 * np.random.default_rng(2).normal(size=(200, 3))
    assert negative_log_likelihood(MODELS[name], rows(name), draws) + best > 0.0
    at_best = negative_log_likelihood(MODELS[name], rows(name), found.x[None])
    assert at_best + best == pytest.approx(0.0, abs=1e-8)


def test_the_prior_plays_no_part():
    values = [
        best_log_likelihood(LogisticRegression(prior_scale=s), rows("binary"))
        for s in (1e-3, 1.0, 1e3)
    ]
    assert max(values) == min(values)


@pytest.mark.parametrize("name", MODELS)
def test_the_units_of_the_columns_play_no_part(name):
    scaled = best_log_likelihood(MODELS[name], rows(name, TABLE["x"] * [1e-6, 1.0, 1e5]))
    assert scaled == pytest.approx(best_log_likelihood(MODELS[name], rows(name)), abs=1e-10)


def test_least_squares_with_a_free_noise_scale():
    residual = np.linalg.lstsq(TABLE["x"], TABLE["real"])[1][0] / N
    expected = -0.5 * np.log(2 * np.pi * residual) - 0.5
    best = best_log_likelihood(LinearRegression(), rows("real"))
    assert best == pytest.approx(expected, abs=1e-8)


def test_a_likelihood_that_is_not_concave():
    model = StudentTRegression()
    potentials = Potentials(model, encoded(decoct.rows(rows("real")), model))

    def fall(z):
        at = potentials.curvature(z)
        return -at.value / N, -at.gradient / N

    start = np.zeros(potentials.dim)
    start[:3] = np.linalg.lstsq(TABLE["x"], TABLE["real"])[0]
    found = minimize(fall, start, jac=True, tol=1e-10)
    best = best_log_likelihood(model, rows("real"))
    assert best == pytest.approx(-found.fun, abs=1e-8)


SEPARABLE = {
    "by all columns": {"x": TABLE["x"], "y": (TABLE["x"].sum(axis=1) > 0).astype(int)},
    "one label": {"x": np.ones((9, 1)), "y": np.ones(9, dtype=int)},
    "one row": {"x": np.array([[2.0, -1.0]]), "y": np.array([0])},
}


@pytest.mark.parametrize("name", SEPARABLE)
def test_separable_labels_have_the_supremum_zero_at_infinity(name):
    best = best_log_likelihood(LogisticRegression(), SEPARABLE[name])
    assert -1e-6 < best <= 0.0


def test_half_separable_labels_keep_the_other_half():
    """Rows of zeros say ½ whatever θ; the others can be told apart."""
    half = SEPARABLE["by all columns"]
    both = {
        "x": np.concatenate([half["x"], np.zeros((N, 3))]),
        "y": np.concatenate([half["y"], TABLE["binary"]]),
    }
    best = best_log_likelihood(LogisticRegression(), both)
    assert -0.5 * np.log(2.0) - 1e-6 < best <= -0.5 * np.log(2.0)


def test_counts_that_are_all_zero_have_the_supremum_zero():
    empty = {"x": TABLE["x"], "y": np.zeros(N, dtype=int)}
    for link in ("log", "softplus"):
        best = best_log_likelihood(PoissonRegression(link=link, intercept=True), empty)
        assert -1e-6 < best <= 0.0


def test_large_counts_far_from_the_start():
    """Newton's first step overflows here; the saturated fit is known."""
    counts = np.array([1000.0, 3000.0, 5.0])
    best = best_log_likelihood(PoissonRegression(link="log"), {"x": np.eye(3), "y": counts})
    assert best == pytest.approx(poisson.logpmf(counts, counts).mean(), abs=1e-8)


def test_columns_the_likelihood_does_not_need():
    x = np.column_stack([TABLE["x"], TABLE["x"][:, 0], np.zeros(N)])
    best = best_log_likelihood(LogisticRegression(), rows("binary", x))
    expected = best_log_likelihood(LogisticRegression(), rows("binary"))
    assert best == pytest.approx(expected, abs=1e-8)


def test_entropy_is_the_best_of_a_constant_model():
    share = TABLE["binary"].mean()
    best = best_log_likelihood(LogisticRegression(), rows("binary", np.ones((N, 1))))
    expected = xlogy(share, share) + xlogy(1 - share, 1 - share)
    assert best == pytest.approx(expected, abs=1e-8)


UNBOUNDED = {
    "slope": (lambda p, r: p["a"] * r["y"], {"a": 0.0}),
    "vanishing scale": (
        lambda p, r: -p["s"] - 0.5 * ((r["y"] - p["a"]) * jnp.exp(-p["s"])) ** 2,
        {"a": 0.0, "s": 0.0},
    ),
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_a_likelihood_without_bound_is_an_error(name):
    function, init = UNBOUNDED[name]
    model = decoct.Model(function, lambda p: 0.0 * p["a"], init)
    with pytest.raises(ModelError, match="no bound"):
        best_log_likelihood(model, {"y": np.ones(5)})


def test_a_nan_potential_names_its_row():
    model = decoct.Model(lambda p, r: jnp.log(r["y"]) * p["a"], lambda p: 0.0 * p["a"], {"a": 1.0})
    bad = {"y": np.array([1.0, 2.0, -1.0])}
    with pytest.raises(ModelError, match="row 2 is nan"):
        best_log_likelihood(model, bad)
    with pytest.raises(ModelError, match="row 2 is nan"):
        negative_log_likelihood(model, bad, np.ones((2, 1)))
