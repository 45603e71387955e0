"""Constructions: the contract, exact posteriors, and the hard cases."""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.constructions import IteratedHilbert, Uniform
from decoct.data import encoded
from decoct.errors import RequestError, ShortBuildWarning
from decoct.models import GaussianMean, LinearRegression, LogisticRegression
from decoct.report import Status
from decoct.samplers import WeightedDensity
from decoct.samplers.exact import exact_posterior
from decoct.samplers.laplace import find_mode, gaussian_at
from tests.constructions.contract import ConstructionContract, logistic_rows  # noqa: F401


class TestUniform(ConstructionContract):
    method = Uniform()

    def test_weights_count_repeated_picks(self):
        rows = {"x": np.random.default_rng(0).normal(size=(10, 1))}
        coreset = decoct.build(GaussianMean(np.eye(1)), rows, size=8, method=self.method)
        counts = coreset.weights * 8 / 10
        np.testing.assert_allclose(counts, np.round(counts), atol=1e-12)
        assert counts.sum() == pytest.approx(8)
        assert coreset.report.rounds[0]["repeated_picks"] == 8 - coreset.size

    def test_totals_are_unbiased(self):
        y = np.random.default_rng(0).exponential(size=50)
        model, repeats = GaussianMean(np.eye(1)), 400
        sums = [
            (c.weights * np.ravel(c.rows["x"])).sum()
            for c in (
                decoct.build(model, {"x": y}, size=10, seed=seed, method=self.method)
                for seed in range(repeats)
            )
        ]
        error = np.std(sums, ddof=1) / np.sqrt(repeats)
        assert abs(np.mean(sums) - y.sum()) < 4 * error


class TestIteratedHilbert(ConstructionContract):
    method = IteratedHilbert()


class TestRowsAlone(ConstructionContract):
    method = IteratedHilbert(site=False)


BOTH = pytest.mark.parametrize("site", [True, False], ids=["site", "rows alone"])


def gaussian_of(coreset):
    """The Laplace fit of the coreset's posterior, its site included."""
    mode = find_mode(coreset.density)
    assert mode.status.ok
    return gaussian_at(mode)


def exact_kl(coreset, model, rows):
    """KL between the two closed-form posteriors."""
    taken = encoded(decoct.rows(rows), model).take(np.arange(coreset.n_rows))
    full = exact_posterior(WeightedDensity.of(model, taken, np.ones(coreset.n_rows)))
    return decoct.kl_gaussian(exact_posterior(coreset.density), full)


@pytest.fixture(scope="module")
def linear():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 4))
    return {"x": x, "y": x @ [1.0, 2.0, -1.0, 0.0] + rng.normal(size=3000)}


@BOTH
def test_conjugate_posteriors_are_met_exactly_once_the_quadratic_fits(linear, site):
    gaussian = {"x": np.random.default_rng(1).normal(size=(3000, 4)) + 3.0}
    for model, rows in (
        (GaussianMean(np.eye(4)), gaussian),
        (LinearRegression(noise_scale=1.0), linear),
    ):
        method = IteratedHilbert(site=site)
        coreset = decoct.build(model, rows, size=4 * 7 // 2 + 1, method=method)
        assert exact_kl(coreset, model, rows) < 1e-10


@BOTH
def test_it_beats_uniform_by_orders_of_magnitude(linear, site):
    model = LinearRegression(noise_scale=1.0)
    ours = decoct.build(model, linear, size=10, method=IteratedHilbert(site=site))
    uniform = decoct.build(model, linear, size=1000, method=Uniform())
    assert exact_kl(ours, model, linear) < 0.1 * exact_kl(uniform, model, linear)


@BOTH
def test_kl_is_reached_and_the_claim_is_true(linear, site):
    model = LinearRegression(noise_scale=1.0)
    coreset = decoct.build(model, linear, kl=1e-3, method=IteratedHilbert(site=site))
    assert coreset.report.status is Status.REACHED
    assert coreset.size < 40
    assert exact_kl(coreset, model, linear) < 1e-3


@BOTH
def test_an_unreachable_kl_ends_with_a_status(site):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 12))
    rows = {"x": x, "y": (rng.random(2000) < 0.5).astype(int)}
    method = IteratedHilbert(site=site, max_size=6, pool=100, draws=200)
    coreset = decoct.build(LogisticRegression(), rows, kl=1e-6, method=method)
    assert not coreset.report.status.ok
    assert coreset.size <= 6
    assert coreset.report.passes <= 8


@BOTH
@pytest.mark.parametrize("case", ["duplicates", "zero column", "collinear", "separable", "N < dim"])
def test_hard_tables_work(case, site):
    rng = np.random.default_rng(0)
    n = 8 if case == "N < dim" else 1200
    x = rng.normal(size=(n, 12 if case == "N < dim" else 3))
    if case == "duplicates":
        x = np.repeat(x[:1], n, axis=0)
    if case == "zero column":
        x[:, 1] = 0.0
    if case == "collinear":
        x[:, 2] = x[:, 0]
    y = (x[:, 0] > 0).astype(int) if case == "separable" else np.arange(n) % 2
    model = LogisticRegression()
    rows = {"x": x, "y": y}
    coreset = decoct.build(model, rows, size=min(n, 40), method=IteratedHilbert(site=site))
    full = decoct.laplace(model, rows)
    assert decoct.kl_gaussian(gaussian_of(coreset), full) < 0.01


def separable(dim):
    """Separable labels: under a wide prior π is the prior in a cone, where every margin is > 0."""
    x = np.random.default_rng(1).normal(size=(400, dim))
    rows = {"x": x, "y": (x[:, 0] > 0.0).astype(int)}
    return rows, np.where(x[:, :1] > 0.0, x, -x)


def count_in_cones(margins, kept):
    """Return how many directions are in the cone of the rows that are kept, and in that of all."""
    directions = np.random.default_rng(1).normal(size=(4_000_000, margins.shape[1]))
    inside = directions[(directions @ margins[kept].T > 0.0).all(axis=1)]
    return len(inside), int((inside @ margins.T > 0.0).all(axis=1).sum())


@BOTH
def test_flat_potentials_are_no_small_kl(site):
    """Over draws of π every log-likelihood is all but 0, and says little of rows that bound π."""
    rows, margins = separable(3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ShortBuildWarning)
        coreset = decoct.build(
            LogisticRegression(prior_scale=1e6),
            rows,
            size=30,
            seed=1,
            method=IteratedHilbert(site=site),
        )
    kl = coreset.report.predicted_kl
    is_unknown = coreset.report.status is Status.UNKNOWN
    assert any("do not tell how close" in str(one.message) for one in said) == is_unknown
    assert (kl is None) == is_unknown
    if kl is not None and kl < 1.0:
        kept, whole = count_in_cones(margins, coreset.indices)
        assert 20 < whole <= kept < 1.2 * whole
    assert coreset.weights.max(initial=0.0) < 1e15


def test_rows_that_bound_the_parameters_as_all_do_have_no_kl():
    rows, margins = separable(2)
    coreset = decoct.build(LogisticRegression(prior_scale=1e6), rows, size=30)
    assert coreset.report.status is Status.DONE
    assert coreset.report.predicted_kl < 1e-9
    kept, whole = count_in_cones(margins, coreset.indices)
    assert 20 < whole == kept


@BOTH
def test_columns_lost_in_rounding_end_with_a_status(site):
    """Columns of mean 1e8 and sd 1: the precision has no digit left of what tells them apart."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    rows = {"x": x + 1e8, "y": x[:, 0] + rng.normal(size=400)}
    with pytest.warns(ShortBuildWarning, match="centre and scale"):
        coreset = decoct.build(
            LinearRegression(noise_scale=1.0), rows, size=30, method=IteratedHilbert(site=site)
        )
    assert coreset.report.status is Status.UNKNOWN
    assert coreset.report.predicted_kl is None


def test_a_size_far_too_small_is_not_done():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 8))
    rows = {"x": x, "y": (rng.random(500) < 0.5).astype(int)}
    with pytest.warns(ShortBuildWarning, match="keep more rows"):
        coreset = decoct.build(
            LogisticRegression(), rows, size=4, method=IteratedHilbert(site=False)
        )
    assert coreset.report.status is Status.SHORT_ROWS
    assert coreset.report.predicted_kl >= 0.5
    site = IteratedHilbert(site=True)
    with_site = decoct.build(LogisticRegression(), rows, size=4, method=site)
    assert with_site.report.status is Status.DONE
    assert with_site.report.predicted_kl < 0.02


@BOTH
def test_draws_that_did_not_settle_count_in_the_prediction(site):
    """Unless the coreset's own draws measure its KL, as they do with a site.

    A site alone is far off where there are few rows a parameter and margins are wide.
    """
    rng = np.random.default_rng(0)
    n = 200 if site else 3000
    x = rng.normal(size=(n, 8))
    odds = 1.0 / (1.0 + np.exp(-4.0 * x[:, 0])) if site else 0.5
    rows = {"x": x, "y": (rng.random(n) < odds).astype(int)}
    method = IteratedHilbert(site=site, max_rounds=1)
    coreset = decoct.build(LogisticRegression(), rows, size=60, method=method)
    report = coreset.report
    assert report.status is Status.MAX_ROUNDS_REACHED
    assert report.rounds[-1]["reference_kl"] > 0.02
    if not site:
        assert report.predicted_kl > report.rounds[-1]["reference_kl"]
        return
    check = decoct.check(coreset, rows, coreset.sample(1000, 4), exact=True)
    predicted_from = 500  # draws
    error = check.kl_se * np.sqrt(1.0 + check.log_ratios.size / predicted_from)
    assert abs(report.predicted_kl - check.kl) < 4.0 * error


@BOTH
def test_rows_that_say_nothing_leave_the_prior(site):
    model = decoct.Model(
        lambda p, r: 0.0 * r["y"] * p["a"], lambda p: -0.5 * p["a"] ** 2, {"a": jnp.zeros(())}
    )
    method = IteratedHilbert(site=site)
    coreset = decoct.build(model, {"y": np.arange(1.0, 50.0)}, size=5, method=method)
    np.testing.assert_allclose(gaussian_of(coreset).cov, [[1.0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_rounds": 0}, "max_rounds must be a whole number, at least 1, not 0"),
        ({"exchanges": -1}, "exchanges must be a whole number, at least 0"),
        ({"restarts": -1}, "restarts must be a whole number, at least 0"),
        ({"draws": 4}, "draws must be a whole number, at least 5"),
        ({"pool": 0}, "pool must be a whole number, at least 1"),
        ({"pilot": True}, "pilot must be a whole number, at least 1, not True"),
        ({"max_size": 0}, "max_size must be a whole number, at least 1"),
    ],
)
def test_wrong_options_are_sentences(options, message):
    with pytest.raises(RequestError, match=message):
        IteratedHilbert(**options)
    with pytest.raises(RequestError, match=message):
        dataclasses.replace(IteratedHilbert(), **options)
