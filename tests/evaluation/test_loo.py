"""Leave-one-out of all rows: ArviZ's numbers where it can hold them, exact ones where known."""

from dataclasses import replace
from functools import cache, partial

import arviz_stats
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

import decoct
from decoct.constructions import IteratedHilbert
from decoct.data import encoded
from decoct.errors import CoresetFileError, PotentialError, RequestError
from decoct.passes import potentials as module
from decoct.samplers import Exact
from tests.problems import LOGISTIC, MODEL, D, N, coreset, draws


@cache
def certificate():
    return decoct.check(coreset(), LOGISTIC, draws())


@cache
def corrected():
    return certificate().correct(draws())


@cache
def found():
    return decoct.loo(coreset(), LOGISTIC, draws())


def assert_same(mine, other, se=1.0):
    assert mine.elpd == pytest.approx(other.elpd, rel=1e-10)
    assert mine.se == pytest.approx(se * other.se, rel=1e-10)
    for name in ("elpd_i", "pareto_k"):
        np.testing.assert_allclose(mine[name], other[name], rtol=0, atol=1e-9)
    assert (mine.n_samples, mine.n_data_points) == (other.n_samples, other.n_data_points)
    assert (mine.kind, mine.scale, mine.good_k) == (other.kind, other.scale, other.good_k)


# before arviz-stats 1.3 standard errors divide by N, not by N - 1
SE = 1.0 if hasattr(arviz_stats, "ELPDDataLOO") else np.sqrt(N / (N - 1.0))


def test_the_numbers_are_arviz_s():
    held = coreset().log_likelihood(draws(), LOGISTIC)
    theirs = arviz_stats.loo(held, pointwise=True)
    assert_same(found(), theirs, SE)
    assert found().p == pytest.approx(theirs.p, rel=1e-9)
    assert not found().warning
    theirs.se = found().se
    assert str(found()) == str(theirs)
    given = decoct.loo(coreset(), LOGISTIC, draws(), reff=0.5)
    assert_same(given, arviz_stats.loo(held, pointwise=True, reff=0.5), SE)


@pytest.mark.filterwarnings("ignore:k-hat is above", "ignore:Estimated shape parameter")
def test_with_a_certificate_the_numbers_are_those_of_an_approximate_posterior(monkeypatch):
    monkeypatch.setattr("decoct.evaluation.loo.OTHER", np.inf)
    held = coreset().log_likelihood(draws(), LOGISTIC)
    ratios = 1e3 * certificate().log_ratios  # of a coreset that is not as good
    far = replace(certificate(), log_ratios=ratios)
    mine = decoct.loo(coreset(), LOGISTIC, draws(), check=far, reff=1.0)
    theirs = arviz_stats.loo_approximate_posterior(
        held, ratios, np.zeros_like(ratios), pointwise=True
    )
    assert_same(mine, theirs, SE)
    assert mine.approx_posterior
    assert "Posterior approximation correction" in str(mine)


# a coreset that is deliberately rough, of a model whose posterior is known
POINTS = np.random.default_rng(0).normal(loc=[1.0, -1.0], size=(400, 2))
MEAN = decoct.models.GaussianMean(np.eye(2))


@cache
def rough():
    good = decoct.build(MEAN, {"x": POINTS}, size=6, method=IteratedHilbert(site=False))
    weights = good.weights * np.linspace(0.95, 1.25, good.size)
    return type(good)(good.indices, weights, good.rows, good.n_rows, MEAN, good.report)


def test_a_certificate_takes_the_coreset_s_error_away():
    """Prior N(0, I), unit variance: all others' posterior is N(S/N, I/N), N of them and it."""
    count = len(POINTS)
    mean = (POINTS.sum(axis=0) - POINTS) / count
    exact = stats.norm.logpdf(POINTS, mean, np.sqrt(1.0 + 1.0 / count)).sum()
    errors = []
    for seed in range(8):
        draws = rough().sample(draws=500, chains=2, sampler=Exact(), seed=seed)
        check = decoct.check(rough(), {"x": POINTS}, draws)
        assert check.kl < 0.05
        plain = decoct.loo(rough(), {"x": POINTS}, draws)
        with_check = decoct.loo(rough(), {"x": POINTS}, draws, check=check)
        corrected = decoct.loo(rough(), {"x": POINTS}, check.correct(draws))
        errors.append([one.elpd - exact for one in (plain, with_check, corrected)])
    means, deviations = np.mean(errors, axis=0), np.std(errors, axis=0, ddof=1) / np.sqrt(8)
    assert means[0] > 0.1
    assert (np.abs(means[1:]) < 4.0 * deviations[1:]).all()
    assert (np.abs(means[1:]) < 0.5 * means[0]).all()
    assert abs(with_check.p - 2.0) < 0.3


def parquet(folder):
    x = pa.FixedSizeListArray.from_arrays(pa.array(LOGISTIC["x"].ravel()), D)
    table = pa.table({"x": x, "y": LOGISTIC["y"]})
    for i, start in enumerate((0, 200)):
        part = table.slice(start, 200 if start == 0 else None)
        pq.write_table(part, folder / f"{i}.parquet", row_group_size=70)
    return decoct.rows(folder / "*.parquet")


def test_files_in_chunks_have_the_numbers_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "chunk_rows", lambda _: 128)  # never more than these rows × draws
    mine = decoct.loo(coreset(), parquet(tmp_path), draws())
    assert_same(mine, found())
    some = decoct.loo(coreset(), parquet(tmp_path), corrected(), observations=50)
    assert_same_sample(some, decoct.loo(coreset(), LOGISTIC, corrected(), observations=50))


def assert_same_sample(mine, other):
    assert mine.elpd == pytest.approx(other.elpd, rel=1e-12)
    assert mine.subsampling_se == pytest.approx(other.subsampling_se, rel=1e-9)
    np.testing.assert_array_equal(mine.loo_subsample_observations, other.loo_subsample_observations)


@pytest.mark.slow
def test_a_cluster_has_the_numbers_of_memory(tmp_path):
    pytest.importorskip("distributed")
    from tests.dask_cluster import local_client

    parquet(tmp_path)
    import dask.dataframe as dd

    with local_client(2):
        rows = decoct.rows(dd.read_parquet(tmp_path / "*.parquet"))
        mine = decoct.loo(coreset(), rows, draws())
        some = decoct.loo(coreset(), rows, corrected(), observations=50)
    assert_same(mine, found())
    assert_same_sample(some, decoct.loo(coreset(), LOGISTIC, corrected(), observations=50))


@pytest.mark.filterwarnings("ignore:The inplace keyword")  # of pandas, in ArviZ
def test_arviz_compares_models_by_it():
    narrow = decoct.models.LogisticRegression(prior_scale=0.1)
    other = decoct.build(narrow, LOGISTIC, size=20)
    table = arviz_stats.compare(
        {"wide": found(), "narrow": decoct.loo(other, LOGISTIC, other.sample(300, 2, warmup=200))}
    )
    assert list(table.index) == ["wide", "narrow"]
    difference = abs(table.loc["narrow", "elpd_diff"])  # below 0 from arviz-stats 1.3 on
    assert difference > 1.0
    samples = {}
    for name, one in (("wide", coreset()), ("narrow", other)):
        drawn = one.sample(300, 2, warmup=200)
        check = decoct.check(one, LOGISTIC, drawn)
        samples[name] = decoct.loo(one, LOGISTIC, drawn, check=check, observations=200)
    sampled = arviz_stats.compare(samples, method="pseudo-BMA")
    apart = abs(sampled.loc["narrow", "elpd_diff"]) - difference
    assert abs(apart) < 4.0 * sampled.loc["narrow", "subsampling_dse"] + 0.5


# subsampled


def test_samples_of_rows_estimate_all_of_them_within_their_stated_error():
    """Over 150 samples: no bias, and standard errors that are right."""
    given = {"draws": corrected(), "observations": 60}
    samples = [decoct.loo(coreset(), LOGISTIC, seed=seed, **given) for seed in range(150)]
    whole = decoct.loo(coreset(), LOGISTIC, corrected())
    errors = np.array([one.elpd for one in samples]) - whole.elpd
    stated = np.array([one.subsampling_se for one in samples])
    assert abs(errors.mean()) < 4.0 * errors.std() / np.sqrt(150)
    assert errors.std() / np.sqrt(np.mean(stated**2)) == pytest.approx(1.0, abs=0.2)
    assert np.mean(np.abs(errors) < 1.96 * stated) > 0.9
    assert np.mean([one.se**2 for one in samples]) == pytest.approx(whole.se**2, rel=0.02)
    p = np.array([one.p for one in samples])
    assert p.mean() == pytest.approx(whole.p, abs=4.0 * p.std() / np.sqrt(150))


def test_the_estimates_are_those_of_arviz_s_estimator():
    try:
        from arviz_stats.loo.loo_helper import _diff_srs_estimator as estimate
    except ImportError:  # before arviz-stats 1.3
        from arviz_stats.loo.helper_loo import _diff_srs_estimator

        estimate = partial(_diff_srs_estimator, subsample_size=60)
    one = decoct.loo(coreset(), LOGISTIC, draws(), observations=60, check=certificate())
    places = one.loo_subsample_observations
    assert len(np.unique(places)) == 60 == one.subsample_size
    approximate = one.elpd_loo_approx.to_numpy()
    mean = np.exp(certificate().log_weights.ravel()) @ z_of(draws())
    potentials = encoded(decoct.rows(LOGISTIC), MODEL).take(np.arange(N))
    wanted = MODEL.potentials({"beta": mean}, {k: jnp.asarray(v) for k, v in potentials.items()})
    np.testing.assert_allclose(approximate, wanted, rtol=1e-5)
    exact = one.elpd_i.to_numpy()[places]
    elpd, subsampling, total = estimate(exact, approximate[places], approximate, N)
    assert (one.elpd, one.subsampling_se) == pytest.approx((elpd, subsampling), rel=1e-10)
    assert one.se == pytest.approx(total, rel=1e-8)
    assert np.isnan(np.delete(one.elpd_i.to_numpy(), places)).all()
    assert "subsampling SE" in str(one)


def z_of(tree):
    return tree["unconstrained_posterior"]["z"].to_numpy().reshape(-1, D)


def test_a_sample_of_every_row_has_no_error():
    one = decoct.loo(coreset(), LOGISTIC, corrected(), observations=N)
    whole = decoct.loo(coreset(), LOGISTIC, corrected())
    assert one.subsampling_se == 0.0
    # the estimator divides by N
    se = whole.se * np.sqrt((N - 1.0) / N)
    assert (one.elpd, one.se, one.p) == pytest.approx((whole.elpd, se, whole.p))


# rows that move the posterior


def located():
    """One row far out, and the model's coreset of no row."""
    x = np.random.default_rng(3).normal(size=(60, 1))
    x[17] = 15.0
    model = decoct.models.GaussianMean(np.eye(1))
    return {"x": x}, decoct.build(model, {"x": x}, size=0)


def test_a_row_that_moves_the_posterior_is_named():
    rows, bare = located()
    drawn = bare.sample(draws=500, chains=2, sampler=Exact())
    with pytest.warns(UserWarning, match=r"k-hat is above 0\.67 in 1 of 60 rows.*in row 17: leav"):
        loo = decoct.loo(bare, rows, drawn)
    assert loo.warning
    assert list(np.flatnonzero(loo.pareto_k > loo.good_k)) == [17]


def test_high_k_hats_of_rows_that_change_nothing_are_no_warning():
    """A potential with a heavy tail of no size."""

    def log_likelihood(params, rows):
        return -rows["y"] * 1e-7 * jnp.exp(params["a"] ** 2) - 0.0 * rows["y"]

    model = decoct.Model(log_likelihood, lambda p: -0.5 * p["a"] ** 2, {"a": 0.0})
    rows = {"y": np.linspace(0.0, 1.0, 40)}
    one = decoct.build(model, rows, size=40, method=decoct.constructions.Uniform())
    z = np.random.default_rng(0).normal(size=(500, 1))
    loo = decoct.loo(one, rows, z)
    assert loo.pareto_k[0] == -np.inf  # the row that is the same at all draws
    assert (loo.pareto_k[1:] > loo.good_k).all()
    assert not loo.warning
    assert np.isfinite(loo.elpd_i).all()


# bad input


def test_the_kept_rows_are_no_table():
    for given in (dict(coreset().rows), {k: v[:5] for k, v in coreset().rows.items()}):
        with pytest.raises(RequestError, match=r"own rows: the kept rows are weighted.* Give the"):
            decoct.loo(coreset(), given, draws())


def test_other_tables_are_refused():
    with pytest.raises(CoresetFileError, match="built from 512 rows and this table has 500"):
        decoct.loo(coreset(), {k: v[:500] for k, v in LOGISTIC.items()}, draws())
    changed = {**LOGISTIC, "x": LOGISTIC["x"] + 1e-9}
    for some in ({}, {"observations": 50}):
        with pytest.raises(CoresetFileError, match="column 'x' differs in the kept rows"):
            decoct.loo(coreset(), changed, corrected(), **some)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((50, 2)), r"shape \(1, 50, 2\); this model has 3 unconstrained parameters"),
        (np.zeros((24, 3)), "There are 24 draws; leave-one-out needs at least 25"),
        (np.arange(90.0).reshape(10, 3, 3), "chains of fewer than 4 draws"),
        (np.zeros((30, 3)), "one value in all draws"),
        (np.full((50, 3), np.nan), "A draw is NaN or infinite"),
        ("none", "not an array of draws"),
    ],
)
def test_draws_that_cannot_be_used(given, message):
    with pytest.raises(RequestError, match=message):
        decoct.loo(coreset(), LOGISTIC, given)


@pytest.mark.parametrize("observations", [1, 513, 2.5, True, "all", [1, 2]])
def test_samples_that_cannot_be_drawn(observations):
    with pytest.raises(RequestError, match="observations must be a whole number from 2 to 512"):
        decoct.loo(coreset(), LOGISTIC, draws(), observations=observations)


@pytest.mark.parametrize("as_array", [False, True])
def test_draws_of_a_coreset_that_is_far_are_refused(as_array):
    far = decoct.build(MODEL, LOGISTIC, size=5, method=decoct.constructions.Uniform())
    drawn = far.sample(draws=200, chains=2, warmup=200)
    given = z_of(drawn) if as_array else drawn
    with pytest.raises(RequestError, match="too far from the full posterior for leave-one-out"):
        decoct.loo(far, LOGISTIC, given)
    with pytest.raises(RequestError, match="A sample of rows cannot show how far"):
        decoct.loo(far, LOGISTIC, given, observations=100)


def test_draws_that_are_not_good_come_with_a_warning():
    some = decoct.build(MODEL, LOGISTIC, size=300, method=decoct.constructions.Uniform())
    drawn = some.sample(draws=500, chains=2, warmup=200)
    with pytest.warns(UserWarning, match=r"draws are 0\.\d+ nats from the full posterior.*check="):
        decoct.loo(some, LOGISTIC, drawn)
    with pytest.warns(UserWarning, match="verdict is 'doubtful"):
        decoct.loo(some, LOGISTIC, drawn, check=decoct.check(some, LOGISTIC, drawn))


def test_rows_that_were_not_checked_are_refused():
    kept = np.isin(np.arange(N), coreset().indices)
    flipped = {**LOGISTIC, "y": np.where(kept, LOGISTIC["y"], 1 - LOGISTIC["y"])}
    for some in ({}, {"observations": 50}):
        with pytest.raises(RequestError, match="not those that the certificate was made with"):
            decoct.loo(coreset(), flipped, draws(), check=certificate(), **some)


def test_certificates_that_do_not_fit():
    check = certificate()
    table = (coreset(), LOGISTIC, draws())
    with pytest.raises(RequestError, match=r"verdict is 'do not use: .*too far from the full"):
        decoct.loo(*table, check=replace(check, kl=3.0))
    with pytest.raises(RequestError, match="not the ones that were checked"):
        decoct.loo(coreset(), LOGISTIC, z_of(draws()), check=check)
    others = draws().map_over_datasets(lambda one: 2.0 * one)
    with pytest.raises(RequestError, match="not the ones that were checked"):
        decoct.loo(coreset(), LOGISTIC, others, check=check)
    narrow = decoct.models.LogisticRegression(prior_scale=0.3)
    other = decoct.build(narrow, LOGISTIC, size=coreset().size)
    for given in (draws(), check.correct(draws())):
        with pytest.raises(RequestError, match="sampled from another coreset"):
            decoct.loo(other, LOGISTIC, given)
        with pytest.raises(RequestError, match="sampled from another coreset"):
            other.predict({"x": np.zeros((2, D))}, given)
    if other.size == coreset().size:
        with pytest.raises(RequestError, match="not the ones that were checked"):
            decoct.loo(other, LOGISTIC, z_of(draws())[None], check=check)
    for lost in (draws().isel(chain=0), draws().drop_nodes("posterior")):
        with pytest.raises(RequestError, match="have lost the group 'posterior' or a dimension"):
            decoct.loo(coreset(), LOGISTIC, lost)
    with pytest.raises(RequestError, match="not a str"):
        decoct.loo(*table, check="good")
    with pytest.raises(RequestError, match="already corrected towards the full"):
        decoct.loo(coreset(), LOGISTIC, check.correct(draws()), check=check)
    weighted = check.correct(draws(), resample=False)
    with pytest.raises(RequestError, match=r"are weighted.* give check\.correct"):
        decoct.loo(coreset(), LOGISTIC, weighted)
    again = decoct.loo(coreset(), LOGISTIC, weighted, check=check)
    assert_same(again, decoct.loo(*table, check=check))


@pytest.mark.filterwarnings("ignore:k-hat is above")
def test_thinned_draws_are_those_that_the_certificate_picked():
    check = decoct.check(coreset(), LOGISTIC, draws(), max_draws=200)
    loo = decoct.loo(coreset(), LOGISTIC, draws(), check=check)
    assert loo.n_samples == 200
    thinned = draws().isel(draw=check.picked)
    whole = decoct.check(coreset(), LOGISTIC, thinned)
    assert_same(loo, decoct.loo(coreset(), LOGISTIC, thinned, check=whole))


def test_an_impossible_row_is_named():
    def log_likelihood(params, rows):
        return jnp.where(rows["y"] > params["most"], -jnp.inf, -params["most"])

    model = decoct.Model(log_likelihood, lambda p: -(p["most"] ** 2), {"most": 10.0})
    rows = {"y": np.linspace(0.0, 2.0, 50)}
    one = decoct.build(model, rows, size=50, method=decoct.constructions.Uniform())
    z = np.full((30, 1), 3.0)
    z[12] = 1.98
    with pytest.raises(PotentialError, match="row 49 is -inf at draw 12"):
        decoct.loo(one, rows, z)


def test_a_mixture_has_no_density_to_leave_rows_out_of():
    x = np.random.default_rng(0).normal(size=(200, 2))
    estimator = decoct.mixture.DPGaussianMixture(n_components=2, random_state=0)
    mixture = decoct.mixture.build(estimator, {"x": x}, size=50)
    with pytest.raises(RequestError, match="score_samples"):
        decoct.loo(mixture, {"x": x}, np.zeros((30, 2)))
