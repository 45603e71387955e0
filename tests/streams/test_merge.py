"""Coresets built apart and merged: Corollaries 4.5 and 4.6, and what merging keeps."""

from dataclasses import replace
from itertools import pairwise

import jax
import numpy as np
import pytest

import decoct
from decoct import solvers
from decoct.constructions import Hilbert, IteratedHilbert, Uniform
from decoct.data import encoded
from decoct.errors import RequestError, RowsError
from decoct.models import GaussianMean, LogisticRegression
from decoct.models.base import AbstractModel
from decoct.models.site import ThirdOrder
from decoct.passes.chunk_sums import as_embedding
from decoct.passes.potentials import Potentials
from decoct.samplers import Laplace
from decoct.samplers.laplace import find_mode, gaussian_at
from decoct.streams.drift import DRIFTED
from decoct.theory import geometry
from decoct.theory.bounds import merged_frank_wolfe_bound, merged_importance_sampling_bound


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 3))
    return {"x": x, "y": (rng.random(900) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.5]))).astype(int)}


CUTS = (0, 100, 450, 900)


def parts_of(table, method, size, seed=0):
    return [
        decoct.build(
            LogisticRegression(),
            {name: column[a:b] for name, column in table.items()},
            size=size,
            seed=seed + a,
            method=method,
        )
        for a, b in pairwise(CUTS)
    ]


@pytest.fixture(scope="module")
def space(table):
    """Vectors of all rows at draws shared by the parts, as §4.3 wants."""
    model = LogisticRegression()
    draws = decoct.laplace(model, table).sample(np.random.default_rng(1), 50)
    with jax.enable_x64(True):
        potentials = Potentials(model, encoded(decoct.rows(table), model))
        vectors, target = potentials.all_vectors(as_embedding(draws))
    return draws, vectors, target


def test_a_sum_of_sites_is_without_terms_of_third_order_which_are_part_of_its_kl(table):
    parts = parts_of(table, IteratedHilbert(site=True), 0)
    parts = [replace(part, site=part.site.quadratic()) for part in parts]
    third = ThirdOrder(np.array([1]), np.full(1, 10.0), np.array([1.0]))
    skewed = [replace(part, site=replace(part.site, third_order=third)) for part in parts]
    assert decoct.merge(skewed[:1]).site.third_order is third
    merged, plain = decoct.merge(skewed), decoct.merge(parts)
    assert merged.site.third_order is None
    np.testing.assert_array_equal(merged.site.linear, plain.site.linear)
    z = merged.sample(draws=1000, chains=2)["unconstrained_posterior"]["z"].to_numpy()
    moved = [(z.reshape(-1, merged.dim) - one.site.centre) @ one.site.precision for one in parts]
    lost = 0.5 * np.var(sum(third.of(product) for product in moved))
    more = merged.report.predicted_kl - plain.report.predicted_kl
    assert more == pytest.approx(lost, rel=0.25)


@pytest.mark.parametrize("size", [1, 5, 20, 60])
def test_merged_frank_wolfe_is_within_its_bound(table, space, size):
    draws, vectors, target = space
    method = Hilbert(solvers.FrankWolfe(), weighting=draws)
    whole = decoct.merge(parts_of(table, method, size))
    error = np.linalg.norm(target - whole.weights @ vectors[whole.indices])
    assert whole.size <= 3 * size
    assert error <= merged_frank_wolfe_bound(geometry(vectors), size)


def test_merged_importance_sampling_fails_no_oftener_than_delta(table, space):
    draws, vectors, target = space
    method, size, delta, trials = (
        Hilbert(solvers.ImportanceSampling(), weighting=draws),
        10,
        0.2,
        60,
    )
    bound = merged_importance_sampling_bound(geometry(vectors), size, 3, delta)
    failures = 0
    for trial in range(trials):
        whole = decoct.merge(parts_of(table, method, size, seed=1000 * trial))
        failures += np.linalg.norm(target - whole.weights @ vectors[whole.indices]) > bound
    assert failures <= delta * trials + 3 * np.sqrt(delta * (1 - delta) * trials)


def test_rows_and_weights_are_the_parts(table):
    parts = parts_of(table, Hilbert(draws=60), 12)
    whole = decoct.merge(parts)
    assert whole.n_rows == 900
    np.testing.assert_array_equal(whole.weights, np.concatenate([one.weights for one in parts]))
    for name, column in whole.rows.items():
        np.testing.assert_array_equal(column, table[name][whole.indices])
    assert (np.diff(whole.indices) > 0).all()
    assert whole.report.passes == sum(one.report.passes for one in parts)


def test_a_merged_coreset_is_certified_saved_and_loaded(table, tmp_path):
    whole = decoct.merge(parts_of(table, Hilbert(draws=200), 40))
    check = decoct.check(whole, table, whole.sample(draws=300, progress=False))
    assert check.kl < 0.05
    whole.save(tmp_path / "whole.parquet")
    again = decoct.load(tmp_path / "whole.parquet")
    np.testing.assert_array_equal(again.indices, whole.indices)
    assert again.report.method["parts"][0]["name"] == "Hilbert"


def test_what_cannot_be_merged(table):
    with pytest.raises(RequestError, match="nothing to merge"):
        decoct.merge([])
    one, two, _ = parts_of(table, Hilbert(draws=60), 5)
    rows = {"x": table["x"][:100], "y": table["y"][:100]}
    wide = decoct.build(LogisticRegression(prior_scale=2.0), rows, size=5)
    with pytest.raises(RequestError, match="Coreset 1 is of another model"):
        decoct.merge([one, wide])
    other = decoct.build(GaussianMean(np.eye(3)), {"x": table["x"]}, size=5)
    with pytest.raises(RequestError, match="another model"):
        decoct.merge([one, two, other])


def test_rows_of_another_shape_are_not_merged(table):
    one = parts_of(table, Hilbert(draws=60), 5)[0]
    narrow = {"x": table["x"][:, :2], "y": table["y"]}
    other = decoct.build(LogisticRegression(), narrow, size=5)
    with pytest.raises(RequestError, match="merge coresets of tables with the same columns"):
        decoct.merge([one, other])


def own_model(scale=1.0, prior=1.0):
    """New functions at every call: nothing but what they compute is the same."""
    return decoct.Model(
        lambda params, rows: -0.5 * ((rows["y"] - params["mu"]) / scale) ** 2,
        lambda params: -0.5 * (params["mu"] / prior) ** 2,
        {"mu": 0.0},
    )


def test_custom_models_are_told_apart_by_what_they_compute():
    y = np.random.default_rng(0).normal(size=50)

    def built(model, y=y):
        return decoct.build(model, {"y": y}, size=4)

    one, again, whole_numbers = built(own_model()), built(own_model()), built(own_model(), y > 0)
    assert decoct.merge([one, again]).n_rows == 100
    assert decoct.merge([whole_numbers, one]).rows["y"].dtype == np.float64
    for other in (own_model(scale=0.5), own_model(prior=3.0)):
        with pytest.raises(
            RequestError,
            match="Coreset 1 is of another model than coreset 0: at two",
        ):
            decoct.merge([one, built(other)])


class ShiftedMean(AbstractModel):
    """A user's class: its parameters are no hyper-parameters that a description would tell."""

    shift: np.ndarray

    def init(self, rows):
        return {"mu": np.zeros(())}

    def log_likelihood(self, params, rows):
        return -0.5 * (rows["y"] - params["mu"] - self.shift) ** 2

    def log_prior(self, params):
        return -0.5 * params["mu"] ** 2


def test_models_of_a_users_class_are_told_apart_by_their_numbers():
    y = np.random.default_rng(0).normal(size=50)
    built = [decoct.build(ShiftedMean(np.array(s)), {"y": y}, size=4) for s in (1.0, 1.0, 2.0)]
    assert decoct.merge(built[:2]).n_rows == 100
    with pytest.raises(RequestError, match="another model"):
        decoct.merge(built[1:])


def test_bridge_models_are_told_apart_by_what_they_compute():
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions
    y = np.random.default_rng(0).normal(size=50)

    def built(scale):
        def model(y):
            mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
            with numpyro.plate("data", len(y)):
                numpyro.sample("y", dist.Normal(mu, scale), obs=y)

        bridge = decoct.from_numpyro(model, {"y": y})
        return decoct.build(bridge, bridge.rows, size=4)

    with jax.numpy_rank_promotion("allow"):
        one, again, other = built(1.0), built(1.0), built(2.0)
        assert one.model.to_dict() == other.model.to_dict()
        assert decoct.merge([one, again]).n_rows == 100
        with pytest.raises(RequestError, match="another model than coreset 0: at two points"):
            decoct.merge([one, other])


@pytest.fixture(scope="module")
def parts(table):
    cuts = [{name: column[a:b] for name, column in table.items()} for a, b in pairwise(CUTS)]
    return [decoct.build(LogisticRegression(), rows, size=40) for rows in cuts]


def test_a_merged_coreset_is_compressed_again(table, parts):
    union, whole = decoct.merge(parts), decoct.merge(parts, size=40, seed=3)
    assert whole.size <= 40 < union.size
    assert whole.n_rows == 900
    assert set(whole.indices) <= set(union.indices)
    assert (np.diff(whole.indices) > 0).all()
    for name, column in whole.rows.items():
        np.testing.assert_array_equal(column, table[name][whole.indices])
    assert gaussian_kl(whole, [table]) < 10.0 * whole.report.predicted_kl
    assert whole.report.predicted_kl > union.report.predicted_kl
    assert whole.report.size_asked == 40
    assert whole.report.evaluations > union.report.evaluations


def test_parts_of_unknown_error_have_a_union_of_unknown_error(table):
    whole = decoct.merge(parts_of(table, Uniform(), 30), size=20)
    assert whole.report.predicted_kl is None
    assert whole.size <= 20


def test_a_size_that_is_large_enough_changes_nothing(parts):
    union, whole = decoct.merge(parts), decoct.merge(parts, size=120)
    np.testing.assert_array_equal(whole.weights, union.weights)
    with pytest.raises(RequestError, match=r"size must be .* at least 0, not -1"):
        decoct.merge(parts, size=-1)


# Parts whose posteriors lie apart

BETA = np.array([1.0, -0.5, 0.3])


def logistic(seed, coefficients, n=4000, x=None):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, len(coefficients))) if x is None else x
    return {"x": x, "y": (rng.random(n) < 1 / (1 + np.exp(-x @ coefficients))).astype(int)}


def built_apart(tables, size=40):
    return [decoct.build(LogisticRegression(), rows, size=size) for rows in tables]


def gaussian_kl(coreset, tables):
    table = {name: np.concatenate([one[name] for one in tables]) for name in coreset.rows}
    weighted = gaussian_at(find_mode(coreset.density))
    return decoct.kl_gaussian(weighted, decoct.laplace(coreset.model, table))


@pytest.fixture(scope="module")
def contradicting():
    tables = [logistic(0, BETA), logistic(1, -2.0 * BETA)]
    return tables, built_apart(tables)


@pytest.mark.parametrize("size", [None, 40])
def test_parts_that_contradict_each_other_predict_nothing(contradicting, size, tmp_path):
    tables, parts = contradicting
    with pytest.warns(UserWarning, match=r"rows shuffled together.*decoct\.check") as told:
        whole = decoct.merge(parts, size=size)
    (told,) = told
    last = whole.report.rounds[-1]
    assert f"{last['drift']:.1f} sd" in str(told.message)
    assert last["drift"] > 20.0 > DRIFTED
    assert whole.report.status is decoct.Status.DRIFTED
    assert whole.report.predicted_kl is None
    # What would have been said is wrong by orders of magnitude.
    assert gaussian_kl(whole, tables) > 1e4 * sum(part.report.predicted_kl for part in parts)
    whole.save(tmp_path / "whole.parquet")
    assert decoct.load(tmp_path / "whole.parquet").report == whole.report


def test_a_merge_of_what_has_drifted_has_drifted(contradicting, parts):
    _, (one, two) = contradicting
    with pytest.warns(UserWarning, match="The posterior of all parts lies"):
        drifted = decoct.merge([one, two])
    for size in (None, 40):
        with pytest.warns(UserWarning, match="or a part had drifted before"):
            again = decoct.merge([parts[2], drifted], size=size)
        assert again.report.status is decoct.Status.DRIFTED
        assert again.report.predicted_kl is None


def test_a_merge_of_merges_is_measured_too(contradicting):
    _, (one, two) = contradicting
    same = built_apart([logistic(2, BETA)])[0]
    agreeing = decoct.merge([one, same], size=40)
    assert agreeing.report.status is decoct.Status.DONE
    with pytest.warns(UserWarning, match="The posterior of all parts lies"):
        whole = decoct.merge([agreeing, two, one])
    assert whole.report.status is decoct.Status.DRIFTED


@pytest.mark.parametrize("order", ["drawn", "sorted"])
def test_parts_that_agree_are_within_their_bound(order):
    table = logistic(3, BETA, n=8000)
    rows = np.argsort(table["x"][:, 0]) if order == "sorted" else np.arange(8000)
    tables = [{name: column[cut] for name, column in table.items()} for cut in np.split(rows, 4)]
    parts = built_apart(tables, size=20)
    for whole in (decoct.merge(parts), decoct.merge(parts, size=20)):
        last = whole.report.rounds[-1]
        assert whole.report.status is decoct.Status.DONE
        assert 0.1 < last["drift"] < DRIFTED
        assert gaussian_kl(whole, tables) <= 10.0 * whole.report.predicted_kl


def test_collinear_columns_do_not_hide_a_contradiction():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4000, 1)) + 0.01 * rng.normal(size=(4000, 2))
    parts = built_apart([logistic(5, np.array([b, 0.0]), x=x) for b in (1.0, -2.0)], size=30)
    with pytest.warns(UserWarning, match="The posterior of all parts lies"):
        last = decoct.merge(parts).report.rounds[-1]
    laplace = [decoct.laplace(one.model, one.rows, one.weights) for one in parts]
    assert (np.abs(laplace[0].mean - laplace[1].mean) / laplace[0].sd).max() < DRIFTED
    assert last["drift"] > 4 * DRIFTED


def test_means_that_differ_are_told_of_in_conjugate_models():
    rng = np.random.default_rng(6)
    model = GaussianMean(np.eye(2))
    tables = [{"x": m + rng.normal(size=(500, 2))} for m in (0.0, 3.0)]
    with pytest.warns(UserWarning, match="The posterior of all parts lies"):
        whole = decoct.merge([decoct.build(model, rows, size=8) for rows in tables])
    sd = 500**-0.5
    # from the same distance along each axis to √2 times that along the diagonal
    assert 0.9 * 1.5 / sd < whole.report.rounds[-1]["drift"] < 1.1 * np.sqrt(2.0) * 1.5 / sd + 3.0


def test_poor_coresets_of_parts_that_agree_have_not_drifted():
    rng = np.random.default_rng(7)
    x, beta = rng.normal(size=(8000, 20)), rng.normal(size=20) / 3
    table = logistic(8, beta, n=8000, x=x)
    cuts = slice(4000), slice(4000, None)
    halves = [{name: column[cut] for name, column in table.items()} for cut in cuts]
    rows_alone = IteratedHilbert(site=False)
    parts = [
        decoct.build(LogisticRegression(), half, size=12, method=rows_alone) for half in halves
    ]
    whole = decoct.merge(parts)
    last = whole.report.rounds[-1]
    # They lie apart because each is poor, as it says itself: no DRIFTED, but no sum either.
    assert last["drift"] > DRIFTED
    assert whole.report.status is decoct.Status.SHORT_ROWS
    assert whole.report.predicted_kl is None
    again = decoct.merge([whole, built_apart([logistic(9, beta)], size=60)[0]], size=30)
    assert again.report.predicted_kl is None
    assert again.report.status is decoct.Status.SHORT_ROWS


def flat_model():
    """The Hessian is 0 at the mode: there is no Laplace approximation."""
    return decoct.Model(
        lambda params, rows: -((rows["y"] * params["mu"]) ** 4),
        lambda params: -(params["mu"] ** 4),
        {"mu": 0.0},
    )


@pytest.fixture(scope="module")
def flat_parts():
    model, rng = flat_model(), np.random.default_rng(9)
    return [decoct.build(model, {"y": rng.normal(size=100)}, size=6) for _ in range(2)]


def test_without_laplace_draws_say_where_parts_lie(flat_parts):
    last = decoct.merge(flat_parts).report.rounds[-1]
    assert last["drift"] < 1.0


def test_where_nobody_knows_where_parts_lie_nothing_is_claimed(flat_parts):
    at_mode = [replace(part, start=None) for part in flat_parts]
    with pytest.warns(UserWarning, match=r"is not known.*sampler=.*The sampler says: The"):
        whole = decoct.merge(at_mode, sampler=Laplace())
    assert "drift" not in whole.report.rounds[-1]
    assert (whole.report.status, whole.report.predicted_kl) == (decoct.Status.DONE, None)


def test_labels_of_all_parts_go_together():
    model, x = LogisticRegression(), np.random.default_rng(0).normal(size=(200, 2))
    one = decoct.build(model, {"x": x, "y": (x[:, 0] > 0).astype(int)}, size=20)
    other = decoct.build(model, {"x": x, "y": np.where(x[:, 0] > 0, 1, -1)}, size=20)
    assert decoct.merge([one, one]).size == 2 * one.size
    with pytest.raises(RowsError, match="'y' has the labels -1, 0, 1"):
        decoct.merge([one, other])


@pytest.mark.parametrize("size", [None, 0])
def test_sites_of_parts_add_exactly(size):
    """A Gaussian likelihood is a quadratic, wherever each part was expanded."""
    rng, model = np.random.default_rng(8), GaussianMean(np.eye(3))
    tables = [{"x": rng.normal(size=(300, 3))} for _ in range(3)]
    method = IteratedHilbert()
    parts = [decoct.build(model, rows, size=0, method=method) for rows in tables]
    whole = decoct.merge(parts, size=size)
    assert whole.size == 0
    assert whole.site is not None
    assert gaussian_kl(whole, [{"x": np.concatenate([one["x"] for one in tables])}]) < 1e-12


def test_sites_and_rows_of_parts_are_put_together():
    tables, method = [logistic(0, BETA), logistic(1, BETA)], IteratedHilbert()
    one, two = (decoct.build(LogisticRegression(), rows, size=15, method=method) for rows in tables)
    z = np.array([0.9, -0.4, 0.2])
    union = decoct.merge([one, two])
    apart = sum(float(c.log_density(z)) - float(c.log_density(BETA)) for c in (one, two))
    prior = -0.5 * (z @ z - BETA @ BETA)
    together = float(union.log_density(z)) - float(union.log_density(BETA))
    assert together == pytest.approx(apart - prior, rel=1e-10)
    assert gaussian_kl(decoct.merge([one, two], size=15), tables) < 1e-5
