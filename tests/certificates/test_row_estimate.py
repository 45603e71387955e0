"""Certificates from a sample of rows against exact ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import decoct
from decoct.certificates import row_estimate
from decoct.certificates.certificate import log_ratios_at
from decoct.constructions import IteratedHilbert, Uniform
from decoct.data import encoded
from decoct.errors import CoresetFileError, ModelError
from decoct.passes.potentials import Potentials
from decoct.samplers import Laplace
from decoct.stats.verdict import judge

N, D = 60_000, 3
MODEL = decoct.models.LogisticRegression()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A sample that pays on a table of a test's size."""
    monkeypatch.setattr(row_estimate, "SAMPLE", 2000)


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=(N, D - 1)), np.ones(N)])
    x[::400, :2] *= 3.0
    return {"x": x, "y": (rng.random(N) < 1.0 / (1.0 + np.exp(-x @ [0.5, -0.2, -4.0]))).astype(int)}


@pytest.fixture(scope="module")
def coreset(rows):
    return decoct.build(MODEL, rows, size=0, method=IteratedHilbert(site=True))


@pytest.fixture(scope="module")
def draws(coreset):
    return coreset.sample(draws=250, chains=4, sampler=Laplace(), seed=1)


@pytest.fixture(scope="module")
def exact(coreset, rows, draws):
    return decoct.check(coreset, rows, draws, exact=True)


def test_it_is_the_exact_one_within_its_error(coreset, rows, draws, exact):
    found = decoct.check(coreset, rows, draws)
    assert (exact.is_exact, exact.sampled_rows) == (True, N)
    assert not found.is_exact
    assert 2000 <= found.sampled_rows <= 4000
    assert found.kl > 1e-4
    assert abs(found.kl - exact.kl) < 0.1 * exact.kl
    low, high = found.kl_interval
    assert low < exact.kl < high
    assert found.khat == pytest.approx(exact.khat, abs=0.2)
    assert found.ess == pytest.approx(exact.ess, rel=0.01)
    assert found.ok
    assert found.modes == exact.modes
    correction = found.mean_log_ratio + found.kl, exact.mean_log_ratio + exact.kl
    assert exact.sampling_se == 0.0 < found.sampling_se < 0.01
    assert abs(correction[0] - correction[1]) < 4.0 * found.sampling_se
    figures = found.to_dict()
    assert (figures["exact"], figures["sampled_rows"]) == (False, found.sampled_rows)
    assert f"Estimated from {found.sampled_rows:,} rows" in repr(found)
    assert exact.to_dict()["exact"]
    assert "Estimated" not in repr(exact)


def test_the_error_by_the_sampling_of_rows_is_the_true_one(
    coreset, rows, draws, exact, monkeypatch
):
    """Over 60 keys: no bias, and 95 % of the KLs within 1.96 standard errors."""
    monkeypatch.setattr(row_estimate, "SAMPLE", 1000)
    monkeypatch.setattr(row_estimate, "TOLERANCE", 1.0)
    monkeypatch.setattr(row_estimate, "GOOD_KHAT", np.inf)  # every key is to be judged
    potentials = Potentials(MODEL, encoded(decoct.rows(rows), MODEL))
    z = draws["unconstrained_posterior"]["z"].to_numpy()
    found, within, bias, off, pulls = [], 0, [], [], []
    for seed in range(60):
        estimate = row_estimate.estimate_totals(potentials, z.reshape(-1, D), jax.random.key(seed))
        ratios = log_ratios_at(coreset, potentials, z, estimate.totals)
        judged, plain = estimate.judge(ratios), judge(ratios)
        assert judged is not None
        se = np.sqrt(judged.kl.reverse_se**2 - plain.kl.reverse_se**2)
        within += abs(judged.kl.reverse - exact.kl) < 1.96 * se
        found.append(judged.kl.reverse)
        bias.append(plain.kl.reverse - judged.kl.reverse)
        off.append(0.5 * np.var(ratios - ratios.mean() - exact.log_ratios))
        correction = ratios.mean() + judged.kl.reverse - exact.mean_log_ratio - exact.kl
        pulls.append(correction / estimate.error(ratios))
    assert abs(np.mean(found) - exact.kl) < 4.0 * np.std(found) / np.sqrt(60)
    assert np.mean(bias) == pytest.approx(np.mean(off), abs=4.0 * np.std(off) / np.sqrt(60))
    assert within >= 50
    assert abs(np.mean(pulls)) < 4.0 / np.sqrt(60)
    assert 0.7 < np.std(pulls) < 1.4


def test_a_small_table_uses_all_rows(coreset, rows, draws, monkeypatch):
    monkeypatch.setattr(row_estimate, "SAMPLE", 4000)
    assert decoct.check(coreset, rows, draws).is_exact


def test_a_coreset_without_a_site_is_no_different(rows):
    coreset = decoct.build(MODEL, rows, size=60, method=IteratedHilbert(site=False))
    draws = coreset.sample(draws=250, sampler=Laplace())
    found, exact = (decoct.check(coreset, rows, draws, exact=one) for one in (False, True))
    assert not found.is_exact
    assert found.kl == pytest.approx(exact.kl, abs=0.1 * exact.kl + 1e-4)
    assert found.kl_interval[0] <= exact.kl <= found.kl_interval[1]


def test_what_is_not_clearly_good_is_decided_by_all_rows(coreset, rows, draws):
    uniform = decoct.build(MODEL, rows, size=100, method=Uniform())
    for bad in (
        uniform,
        dataclasses.replace(
            coreset, site=coreset.site + coreset.site + coreset.site + coreset.site
        ),
    ):
        given = bad.sample(draws=250, sampler=Laplace())
        found, exact = (decoct.check(bad, rows, given, exact=one) for one in (False, True))
        assert found.is_exact
        assert found.to_dict() == exact.to_dict()


def test_another_table_is_refused(rows):
    coreset = decoct.build(MODEL, rows, size=20, method=IteratedHilbert(site=True))
    draws = coreset.sample(draws=250, sampler=Laplace())
    changed = rows["x"].copy()
    changed[coreset.indices[0], 0] += 1e-9
    with pytest.raises(CoresetFileError, match="column 'x' differs"):
        decoct.check(coreset, {**rows, "x": changed}, draws)


def test_every_engine_has_the_same_bits(coreset, rows, draws, tmp_path):
    columns = {
        "x": pa.FixedSizeListArray.from_arrays(pa.array(rows["x"].ravel()), D),
        "y": pa.array(rows["y"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet", row_group_size=997)
    mine = decoct.check(coreset, rows, draws)
    streamed = decoct.check(coreset, decoct.rows(tmp_path / "rows.parquet"), draws)
    assert not mine.is_exact
    np.testing.assert_array_equal(mine.log_ratios, streamed.log_ratios)
    assert mine.to_dict() == streamed.to_dict()


def test_modes_without_draws_are_weighed_by_all_rows(monkeypatch):
    """The sign of a is known by its prior alone; draws have one of both."""
    monkeypatch.setattr(row_estimate, "SAMPLE", 1000)  # two predictors make expansions dearer

    def log_likelihood(params, rows):
        return -0.5 * (rows["y"] - (params["a"] * rows["x"]) ** 2 - params["b"]) ** 2

    def log_prior(params):
        return -0.5 * (params["a"] - 1.0) ** 2 - 0.5 * params["b"] ** 2

    rng = np.random.default_rng(0)
    x = rng.normal(size=N)
    rows = {"x": x, "y": (1.3 * x) ** 2 + 0.5 + rng.normal(size=N)}
    model = decoct.Model(log_likelihood, log_prior, {"a": 1.0, "b": 0.0})
    coreset = decoct.build(model, rows, size=30, method=IteratedHilbert(site=False))
    draws = coreset.sample(draws=250, sampler=Laplace())
    found, exact = (decoct.check(coreset, rows, draws, exact=one) for one in (False, True))
    assert decoct.check(coreset, rows, draws).is_exact  # who knows how smooth it is
    assert not found.is_exact
    assert found.modes.others[0].share == pytest.approx(exact.modes.others[0].share, rel=1e-9)
    assert found.grade is exact.grade
    assert not found.ok


def test_a_potential_that_is_not_finite_is_named(rows):
    """Only at some draws, which the sampled rows and the few draws of the passes may miss."""

    def log_likelihood(params, rows):
        beta = params["beta"]
        eta = rows["x"] @ beta
        value = jnp.where(rows["y"] > 0, -jnp.logaddexp(0.0, -eta), -jnp.logaddexp(0.0, eta))
        return jnp.where((rows["x"][:, 0] > 5.0) & (beta[0] > 0.5), -jnp.inf, value)

    model = decoct.Model(
        log_likelihood, lambda p: -0.5 * jnp.sum(p["beta"] ** 2), {"beta": np.zeros(D)}
    )
    coreset = decoct.build(MODEL, rows, size=0, method=IteratedHilbert(site=True))
    coreset = dataclasses.replace(coreset, model=model)
    assert (rows["x"][:, 0] > 5.0).any()
    given = coreset.sample(draws=250, sampler=Laplace(judge=False))
    with pytest.raises(ModelError, match="row"):
        decoct.check(coreset, rows, given, exact=False)
