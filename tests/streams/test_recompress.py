"""Weighted rows compressed once more, and how their errors add up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.constructions.base import Selection
from decoct.data import ArrayRows
from decoct.errors import ModelError
from decoct.models import GaussianMean, LogisticRegression
from decoct.passes.potentials import Potentials
from decoct.samplers import Exact, Laplace
from decoct.samplers.base import Draws
from decoct.status import Status
from decoct.streams.error_sum import ErrorSum
from decoct.streams.recompress import Reweighted, recompress

N, D = 400, 3


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
    weighted = Potentials(Reweighted(model, "w"), ArrayRows(rows)).vectors(rows, z)
    np.testing.assert_allclose(weighted, given.weights[:, None] * plain, rtol=1e-14)


def test_the_posterior_of_weighted_rows_is_kept(given):
    model = LogisticRegression()
    found = recompress(jax.random.key(0), model, given, 30, Laplace())
    kept = found.chosen.selection
    np.testing.assert_array_equal(kept.indices, given.indices[found.positions])
    assert kept.size <= 30
    assert (np.diff(kept.indices) > 0).all()
    assert found.status is Status.DONE
    assert len(found.rounds) == 1  # the draws are of the rows' own posterior from the start
    before = decoct.laplace(model, given.rows, given.weights)
    after = decoct.laplace(model, kept.rows, kept.weights)
    kl = decoct.kl_gaussian(after, before)
    assert kl < 1e-4
    assert 0.1 * kl < found.chosen.predicted_kl < 10 * kl


def test_a_sampler_that_knows_the_model_still_knows_it(given):
    """`Exact` asks for a conjugate model, which the weighted one is not."""
    rows, model = {"x": given.rows["x"]}, GaussianMean(np.eye(D))
    found = recompress(jax.random.key(0), model, given._replace(rows=rows), 10, Exact())
    kept = found.chosen.selection
    before = decoct.laplace(model, rows, given.weights)
    after = decoct.laplace(model, kept.rows, kept.weights)
    assert decoct.kl_gaussian(after, before) < 1e-12
    assert kept.weights.sum() == pytest.approx(given.weights.sum())


def test_a_weight_is_as_good_as_a_repeated_row(given):
    """Integer weights and repeated rows are the same problem."""
    model, counts = LogisticRegression(), np.r_[np.full(10, 3), np.ones(40)].astype(int)
    few = {name: column[:50] for name, column in given.rows.items()}
    weighted = Selection(np.arange(50), counts.astype(float), few)
    found = recompress(jax.random.key(0), model, weighted, 12, Laplace(judge=False))
    repeated = {name: np.repeat(column, counts, axis=0) for name, column in few.items()}
    kept = found.chosen.selection
    full = decoct.laplace(model, repeated)
    kl = decoct.kl_gaussian(decoct.laplace(model, kept.rows, kept.weights), full)
    assert kl < 1e-2


def test_errors_add_up_as_the_corollaries_say():
    parts = [ErrorSum().with_step(kl) for kl in (0.5, 0.02, 0.0)]
    whole = ErrorSum.of_parts(parts).with_step(0.08)
    assert whole.total == pytest.approx(1.0 + 0.2 + 0.4)
    assert whole.kl_bound == pytest.approx(0.5 * 1.6**2)
    assert whole.kl_if_independent == pytest.approx(0.6)
    assert whole.with_step(None) is None


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
        recompress(jax.random.key(0), model, few, 10, Spread())


def test_a_column_may_have_any_name(given):
    """Also one that weights might have had."""
    names = ("weight", "weight_", "_weight")
    model = decoct.Model(
        lambda p, rows: -0.5 * sum(rows[name] for name in names) * p["b"] ** 2,
        lambda p: -0.5 * p["b"] ** 2,
        {"b": 0.0},
    )
    rows = {name: given.rows["x"][:, i] ** 2 for i, name in enumerate(names)}
    found = recompress(jax.random.key(0), model, given._replace(rows=rows), 10, Laplace())
    assert tuple(found.chosen.selection.rows) == names
    sums = [w @ sum(r.values()) for w, r in ((given.weights, rows), found.chosen.selection[1:])]
    assert sums[1] == pytest.approx(sums[0], rel=1e-9)
