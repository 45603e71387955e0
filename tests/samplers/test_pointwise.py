"""Draws as ArviZ takes them, and leave-one-out: refused on weighted rows, right on the table's."""

import arviz_stats
import numpy as np
import pytest
from scipy import stats

import decoct
from decoct.constructions import IteratedHilbert, Uniform
from decoct.models.formula.model import from_formula
from decoct.samplers import NUTS, Exact, Laplace

Y = np.random.default_rng(5).normal(0.7, 1.0, size=(120, 1))
ROWS = decoct.rows({"x": Y})


@pytest.fixture(scope="module")
def coreset():
    model = decoct.models.GaussianMean(covariance=np.eye(1))
    return decoct.build(model, ROWS, size=6, method=IteratedHilbert(site=False))


@pytest.fixture(scope="module")
def draws(coreset):
    return coreset.sample(draws=2000, chains=2, seed=1, sampler=Exact())


def exact_elpd():
    """Prior N(0, 1), unit variance: the others' posterior is N(S/N, 1/N), for N of them and it."""
    total, n = Y.sum(), len(Y)
    mean = (total - Y[:, 0]) / n
    return stats.norm.logpdf(Y[:, 0], mean, np.sqrt(1 + 1 / n)).sum()


def test_arviz_finds_no_log_likelihood_in_draws(draws):
    """Naive LOO: what a user would write fails, and says what is missing."""
    assert "log_likelihood" not in draws.children
    with pytest.raises(TypeError, match="log likelihood not found"):
        arviz_stats.loo(draws)


def test_the_kept_rows_are_refused_with_the_reason(coreset, draws):
    """Trap: LOO of frequency-weighted rows; one kept row stands for many."""
    for given in (None, dict(coreset.rows)):
        with pytest.raises(decoct.RequestError, match="one standing for many") as caught:
            coreset.log_likelihood(draws, given)
        assert "LOO and WAIC of them mean nothing" in str(caught.value)
        assert "coreset.log_likelihood(draws, rows.take(numbers))" in str(caught.value)


@pytest.fixture(scope="module")
def six():
    return decoct.build(
        decoct.models.GaussianMean(covariance=np.eye(1)), ROWS, size=6, method=Uniform()
    )


@pytest.mark.parametrize(
    "chosen",
    [[0, 1, 2], [4], [5, 3, 1, 0, 2, 4], [0, 0, 0, 3], list(range(6)) * 19],
    ids=["part", "one", "reordered", "repeated", "as the weights would"],
)
def test_tables_of_kept_rows_alone_are_refused(six, draws, chosen):
    """Trap: nothing but the content tells kept rows from others."""
    part = {name: values[chosen] for name, values in six.rows.items()}
    with pytest.raises(decoct.RequestError, match=r"own rows, all or some of them: .*one standing"):
        six.log_likelihood(draws, part)


def test_one_row_that_was_not_kept_makes_a_part_of_the_table(six, draws):
    other = np.setdiff1d(np.arange(120), six.indices)[:1]
    part = np.concatenate([six.indices, other])
    values = six.log_likelihood(draws, ROWS.take(part))["log_likelihood"]["rows"]
    assert values.sizes["row"] == 7


def test_parts_of_tables_whose_rows_recur_are_welcome():
    """Every row of such a table equals a kept one; a random part has more of them."""
    rng = np.random.default_rng(2)
    group = rng.choice(["a", "b", "c"], 600)
    rows = {"group": group, "y": rng.integers(0, 2, 600)}
    model = from_formula("y ~ 0 + group", decoct.rows(rows), "bernoulli")
    coreset = decoct.build(model, rows, size=60, method=Uniform())
    draws = coreset.sample(draws=5, chains=1, sampler=Laplace(judge=False))
    part = {name: values[:100] for name, values in rows.items()}
    values = coreset.log_likelihood(draws, part)["log_likelihood"]["rows"]
    assert values.sizes["row"] == 100
    few = {name: values[10:20] for name, values in coreset.rows.items()}
    with pytest.raises(decoct.RequestError, match="own rows"):
        coreset.log_likelihood(draws, few)
    assert coreset.log_likelihood(draws, rows)["log_likelihood"]["rows"].sizes["row"] == 600


def test_a_coreset_of_every_row_knows_the_table(draws):
    everything = decoct.build(
        decoct.models.GaussianMean(covariance=np.eye(1)), ROWS, size=120, method=Uniform()
    )
    values = everything.log_likelihood(draws, ROWS.take(np.arange(9)))["log_likelihood"]["rows"]
    assert values.sizes["row"] == 9


def test_loo_of_the_tables_rows_is_the_exact_one(coreset, draws):
    assert decoct.check(coreset, ROWS, draws).kl < 1e-3
    pointwise = coreset.log_likelihood(draws, ROWS)
    group = pointwise["log_likelihood"]
    assert group["rows"].dims == ("chain", "draw", "row")
    mu = draws["posterior"]["mean"].to_numpy()[..., 0]
    wanted = stats.norm.logpdf(Y[:, 0], mu[..., None], 1.0)
    np.testing.assert_allclose(group["rows"], wanted, rtol=1e-12)
    loo = arviz_stats.loo(pointwise)
    # 4,000 independent draws: pointwise errors are far below one hundredth
    assert float(loo.elpd) == pytest.approx(exact_elpd(), abs=0.05)
    assert "log_likelihood" not in draws.children


def test_a_coreset_of_no_row_has_the_likelihood_of_the_tables_rows(draws):
    """Its site stands for all rows; none is kept, so none is refused."""
    model = decoct.models.GaussianMean(covariance=np.eye(1))
    bare = decoct.build(model, ROWS, size=0, method=IteratedHilbert(site=True))
    part = np.arange(0, 120, 4)
    values = bare.log_likelihood(draws, ROWS.take(part))["log_likelihood"]["rows"]
    mu = draws["posterior"]["mean"].to_numpy()[..., 0]
    np.testing.assert_allclose(
        values, stats.norm.logpdf(Y[part, 0], mu[..., None], 1.0), rtol=1e-12
    )


def test_a_part_of_the_table(coreset, draws):
    part = np.arange(0, 120, 4)
    values = coreset.log_likelihood(draws, ROWS.take(part))["log_likelihood"]["rows"]
    everything = coreset.log_likelihood(draws, ROWS)["log_likelihood"]["rows"]
    np.testing.assert_array_equal(values, everything.isel(row=part))


def test_too_many_values(coreset, draws, monkeypatch):
    monkeypatch.setattr("decoct.samplers.pointwise.MOST", 100_000)
    with pytest.raises(decoct.RequestError, match=r"120 rows at 4000 draws.* at most 25 rows"):
        coreset.log_likelihood(draws, ROWS)


def test_draws_are_a_tree_with_coordinates_statistics_and_log_weights(coreset):
    """What ArviZ and a reader of a result file look for."""
    draws = coreset.sample(draws=100, chains=2, sampler=NUTS(warmup=150))
    mean = draws["posterior"]["mean"]
    assert mean.dims[:2] == ("chain", "draw")
    assert list(draws["posterior"]["chain"].to_numpy()) == [0, 1]
    assert {"diverging", "energy", "n_steps"} <= set(draws["sample_stats"].data_vars)
    check = decoct.check(coreset, ROWS, draws)
    weighted = check.correct(draws, resample=False)
    weights = weighted["sample_stats"]["log_weight"]
    assert weights.dims == ("chain", "draw")
    assert weights.shape == mean.shape[:2]
    assert float(np.exp(weights).sum()) == pytest.approx(1.0)
    np.testing.assert_array_equal(weighted["posterior"]["mean"], mean)
    assert "log_weight" not in draws["sample_stats"]
    resampled = check.correct(draws)
    assert "log_weight" not in resampled["sample_stats"]
    assert resampled["posterior"]["mean"].dims == mean.dims
