"""Weighted rows and a site, compressed to fewer rows and another site."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.constructions import IteratedHilbert
from decoct.constructions.base import Selection
from decoct.coreset import Coreset
from decoct.data import ArrayRows
from decoct.errors import ModelError
from decoct.models import GaussianMean, LogisticRegression
from decoct.models.reweighted import Reweighted
from decoct.models.site import GaussianSite
from decoct.passes.potentials import Potentials
from decoct.report import Report, Status
from decoct.samplers import Exact, Laplace
from decoct.samplers.base import Draws, WeightedDensity
from decoct.samplers.laplace import find_mode, gaussian_at
from decoct.streams.compress import compress

N, D = 400, 3
METHOD = IteratedHilbert()


def coreset_of(model, given):
    report = Report({"name": "rows"}, 0, Status.DONE, None, None, [{}], 1, 0, {}, 0.0)
    n_rows = int(given.indices[-1]) + 1
    return Coreset(given.indices, given.weights, given.rows, n_rows, model, report, given.site)


def compressed(model, given, size, sampler):
    return compress(jax.random.key(0), coreset_of(model, given), size, sampler, METHOD)


def fit(model, kept):
    """Laplace fit of the posterior of weighted rows and a site."""
    density = WeightedDensity.of(model, kept.rows, kept.weights, site=kept.site)
    return gaussian_at(find_mode(density))


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(N, D)), rng.gamma(2.0, 5.0, size=N)
    y = np.where(rng.random(N) < 1 / (1 + np.exp(-x @ [1.0, -0.5, 0.2])), 1.0, -1.0)
    return Selection(7 * np.arange(N), weights, {"x": x, "y": y})


def test_potentials_are_the_models_times_the_weight(given):
    model, z = LogisticRegression(), np.random.default_rng(1).normal(size=(5, D))
    plain = Potentials(model, ArrayRows(given.rows)).vectors(given.rows, z)
    rows = {**given.rows, "w": given.weights}
    weighted = Potentials(Reweighted(model, None, "w"), ArrayRows(rows)).vectors(rows, z)
    np.testing.assert_allclose(weighted, given.weights[:, None] * plain, rtol=1e-14)


def test_the_posterior_of_weighted_rows_is_kept(given):
    model = LogisticRegression()
    kept = compressed(model, given, 30, Laplace())
    assert kept.size <= 30
    assert (np.diff(kept.indices) > 0).all()
    assert kept.report.status is Status.DONE
    before = decoct.laplace(model, given.rows, given.weights)
    after = fit(model, kept)
    kl = decoct.kl_gaussian(after, before)
    assert kl < 1e-4
    assert 0.1 * kl < kept.report.predicted_kl < 10 * kl


def test_a_site_counts_as_much_as_the_rows_that_it_stands_for(given):
    """A linear model: its likelihood is a quadratic, wherever it is written down."""
    rows, model = {"x": given.rows["x"]}, GaussianMean(np.eye(D))
    whole, w = given._replace(rows=rows), given.weights
    mean = w @ rows["x"] / w.sum()
    site = GaussianSite(np.ones(D), w.sum() * (mean - 1.0), w.sum() * np.eye(D), 0.0)
    twice = fit(model, whole._replace(weights=2.0 * w))
    for size in (0, 10):
        kept = compressed(model, whole._replace(site=site), size, Exact())
        assert kept.size <= size
        assert decoct.kl_gaussian(fit(model, kept), twice) < 1e-12


def test_a_sampler_that_knows_the_model_still_knows_it(given):
    """`Exact` asks for a conjugate model, which the weighted one is not."""
    rows, model = {"x": given.rows["x"]}, GaussianMean(np.eye(D))
    kept = compressed(model, given._replace(rows=rows), 10, Exact())
    before = decoct.laplace(model, rows, given.weights)
    after = fit(model, kept)
    assert decoct.kl_gaussian(after, before) < 1e-12


def test_a_weight_is_as_good_as_a_repeated_row(given):
    """Integer weights and repeated rows are the same problem."""
    model, counts = LogisticRegression(), np.r_[np.full(10, 3), np.ones(40)].astype(int)
    few = {name: column[:50] for name, column in given.rows.items()}
    weighted = Selection(np.arange(50), counts.astype(float), few)
    kept = compressed(model, weighted, 12, Laplace(judge=False))
    repeated = {name: np.repeat(column, counts, axis=0) for name, column in few.items()}
    full = decoct.laplace(model, repeated)
    kl = decoct.kl_gaussian(fit(model, kept), full)
    assert kl < 1e-2


def test_a_bad_potential_is_named_by_the_number_the_row_had(given):
    def log_likelihood(params, rows):
        bad = (rows["number"] == 42) & (jnp.abs(params["b"] - 0.5) < 0.5)
        return jnp.where(bad, jnp.nan, -0.5 * (rows["number"] / N - params["b"]) ** 2)

    model = decoct.Model(log_likelihood, lambda p: -0.5 * p["b"] ** 2, {"b": 0.0})
    few = given._replace(rows={"number": np.arange(N, dtype=float)})

    class Spread:
        def draw(self, key, density, n):
            return Draws(np.linspace(-1.0, 1.0, n)[None, :, None], "spread", {})

    with pytest.raises(ModelError, match="log-likelihood of row 294 is nan"):
        compressed(model, few, 10, Spread())


def test_a_column_may_have_any_name(given):
    """Also one that weights might have had."""
    names = ("weight", "weight_", "_weight")
    model = decoct.Model(
        lambda p, rows: -0.5 * sum(rows[name] for name in names) * p["b"] ** 2,
        lambda p: -0.5 * p["b"] ** 2,
        {"b": 0.0},
    )
    rows = {name: given.rows["x"][:, i] ** 2 for i, name in enumerate(names)}
    kept = compressed(model, given._replace(rows=rows), 10, Laplace())
    assert tuple(kept.rows) == names
    kl = decoct.kl_gaussian(fit(model, kept), fit(model, given._replace(rows=rows)))
    assert kl < 1e-12
