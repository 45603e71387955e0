"""Coresets built apart and merged: Corollaries 4.5 and 4.6, and what merging keeps."""

from itertools import pairwise

import jax
import numpy as np
import pytest

import decoct
from decoct import solvers
from decoct.constructions import Hilbert, Uniform
from decoct.data import encoded
from decoct.errors import RequestError, RowsError
from decoct.models import GaussianMean, LogisticRegression
from decoct.models.base import AbstractModel
from decoct.passes.embeddings import as_embedding
from decoct.passes.potentials import Potentials
from decoct.samplers import Laplace
from decoct.samplers.base import Draws, WeightedDensity
from decoct.stats import Gaussian
from decoct.streams.drift import DRIFTED, MOST_DRAWS, distance, moments, place_of
from decoct.streams.remainder import Growth, remainder_order
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
    assert whole.report.predicted_kl is None


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
    full = decoct.laplace(whole.model, table)
    kl = decoct.kl_gaussian(decoct.laplace(whole.model, whole.rows, whole.weights), full)
    last = whole.report.rounds[-1]
    assert kl <= last["kl_bound"]
    assert whole.report.predicted_kl == last["kl_if_independent"] <= last["kl_bound"]
    assert whole.report.size_asked == 40
    assert whole.report.evaluations > union.report.evaluations


def test_the_union_knows_the_parts_errors_where_it_lies_itself(parts):
    predicted = np.array([part.report.predicted_kl for part in parts])
    union = decoct.merge(parts)
    last = union.report.rounds[-1]
    assert last["parts"] == 3
    whole, *places = (decoct.laplace(one.model, one.rows, one.weights) for one in (union, *parts))
    orders = [remainder_order(one.size, 3) for one in parts]
    assert last["order"] == max(orders) == 5
    grown = [Growth.of(place, whole, order) for place, order in zip(places, orders, strict=True)]
    expected, bound = np.transpose(grown)
    assert last["growth"] == pytest.approx(expected.max(), rel=1e-6)
    assert last["kl_if_independent"] == pytest.approx(predicted @ expected, rel=1e-6)
    added = 0.5 * np.sqrt(2.0 * predicted * bound).sum() ** 2
    assert last["kl_bound"] == pytest.approx(added, rel=1e-6)


def test_a_part_alone_and_two_that_are_one_have_its_error(parts):
    (one, *_) = parts
    kl = one.report.predicted_kl
    assert decoct.merge([one]).report.rounds[-1]["kl_bound"] == pytest.approx(kl)
    # Twice the same rows: the mode stays and the errors are the same, so that ρ is twice as large.
    twice = decoct.merge([one, one]).report.rounds[-1]
    assert twice["kl_bound"] == pytest.approx(4.0 * kl * twice["growth"])
    assert twice["kl_if_independent"] == pytest.approx(2.0 * kl * twice["growth"])


def test_a_merge_of_merges_says_what_one_merge_does(parts):
    once = decoct.merge(parts).report.rounds[-1]
    twice = decoct.merge([decoct.merge(parts[:2]), parts[2]]).report.rounds[-1]
    # Rows of two parts match no more of either than its own; only the way is another.
    assert twice["order"] == once["order"]
    for name in ("kl_bound", "kl_if_independent"):
        assert 0.5 < twice[name] / once[name] < 10.0
    smaller = decoct.merge([decoct.merge(parts[:2], size=40), parts[2]]).report.rounds[-1]
    assert smaller["order"] == once["order"]


def test_parts_of_unknown_error_have_a_union_of_unknown_error(table):
    whole = decoct.merge(parts_of(table, Uniform(), 30), size=20)
    assert whole.report.predicted_kl is None
    assert "kl_bound" not in whole.report.rounds[-1]
    assert whole.size <= 20


def test_a_size_that_is_large_enough_changes_nothing(parts):
    union, whole = decoct.merge(parts), decoct.merge(parts, size=120)
    np.testing.assert_array_equal(whole.weights, union.weights)
    with pytest.raises(RequestError, match="size must be at least 1, not 0"):
        decoct.merge(parts, size=0)


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
    weighted = decoct.laplace(coreset.model, coreset.rows, coreset.weights)
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
    assert "coreset 0: " in str(told.message)
    assert "coreset 1: " in str(told.message)
    assert last["drift"] > 20.0 > DRIFTED
    assert (last["kl_bound"], last["kl_if_independent"]) == (None, None)
    assert "growth" not in last
    assert whole.report.status is decoct.Status.DRIFTED
    assert whole.report.predicted_kl is None
    # What would have been said is wrong by orders of magnitude.
    assert gaussian_kl(whole, tables) > 1e4 * sum(part.report.predicted_kl for part in parts)
    whole.save(tmp_path / "whole.parquet")
    assert decoct.load(tmp_path / "whole.parquet").report == whole.report


def test_a_merge_of_what_has_drifted_has_drifted(contradicting, parts):
    _, (one, two) = contradicting
    with pytest.warns(UserWarning, match="more than 5.0 sd"):
        drifted = decoct.merge([one, two])
    for size in (None, 40):
        with pytest.warns(UserWarning, match="how close coreset 1 is, its status is DRIFTED"):
            again = decoct.merge([parts[2], drifted], size=size)
        assert again.report.status is decoct.Status.DRIFTED
        assert again.report.predicted_kl is None
        assert again.report.rounds[-1]["kl_bound"] is None


def test_a_merge_of_merges_is_measured_too(contradicting):
    _, (one, two) = contradicting
    same = built_apart([logistic(2, BETA)])[0]
    agreeing = decoct.merge([one, same], size=40)
    assert agreeing.report.status is decoct.Status.DONE
    with pytest.warns(UserWarning, match="more than 5.0 sd") as told:
        whole = decoct.merge([agreeing, two, one])
    assert "coreset 1: " in str(told[0].message).split(",")[1]  # the furthest comes first
    assert whole.report.status is decoct.Status.DRIFTED


@pytest.mark.parametrize("order", ["drawn", "sorted"])
def test_parts_that_agree_are_within_their_bound(order):
    table = logistic(3, BETA, n=8000)
    rows = np.argsort(table["x"][:, 0]) if order == "sorted" else np.arange(8000)
    tables = [{name: column[cut] for name, column in table.items()} for cut in np.split(rows, 4)]
    parts = built_apart(tables)
    for whole in (decoct.merge(parts), decoct.merge(parts, size=40)):
        last = whole.report.rounds[-1]
        assert whole.report.status is decoct.Status.DONE
        assert 0.1 < last["drift"] < DRIFTED
        assert last["drift_sampler"] == "laplace"
        assert gaussian_kl(whole, tables) <= last["kl_bound"]
    assert whole.report.predicted_kl == last["kl_if_independent"]


@pytest.mark.parametrize("size", [12, 25, 40])
@pytest.mark.parametrize("factor", [1.0, 1.1, 1.2])
def test_an_error_is_told_as_it_has_grown_where_parts_disagree_a_little(factor, size):
    """Each part is right near its own posterior; that of all is up to 4 sd away."""
    tables = [logistic(10, BETA, n=8000), logistic(11, factor * BETA, n=8000)]
    parts = built_apart(tables, size)
    last = decoct.merge(parts).report.rounds[-1]
    kl = gaussian_kl(decoct.merge(parts), tables)
    assert 0.1 * last["kl_if_independent"] < kl <= last["kl_bound"]
    assert last["kl_bound"] < 100.0 * kl
    if factor == 1.2:
        assert 3.0 < last["drift"] < DRIFTED
        assert kl > 4.0 * sum(one.report.predicted_kl for one in parts)


def test_collinear_columns_do_not_hide_a_contradiction():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4000, 1)) + 0.01 * rng.normal(size=(4000, 2))
    parts = built_apart([logistic(5, np.array([b, 0.0]), x=x) for b in (1.0, -2.0)], size=30)
    with pytest.warns(UserWarning, match="more than 5.0 sd"):
        last = decoct.merge(parts).report.rounds[-1]
    laplace = [decoct.laplace(one.model, one.rows, one.weights) for one in parts]
    assert (np.abs(laplace[0].mean - laplace[1].mean) / laplace[0].sd).max() < DRIFTED
    assert last["drift"] > 4 * DRIFTED


def test_distance_is_the_most_of_coordinates_and_principal_axes():
    place = Gaussian(np.zeros(2), np.array([[4.0, 2.0 * 0.98], [2.0 * 0.98, 1.0]]))
    assert distance(place, np.array([2.0, 1.0])) == pytest.approx(np.sqrt(2.0 / 1.98))
    assert distance(place, np.array([2.0, -1.0])) == pytest.approx(np.sqrt(2.0 / 0.02))
    assert distance(place, np.array([4.0, 0.0])) >= 2.0


def test_means_that_differ_are_told_of_in_conjugate_models():
    rng = np.random.default_rng(6)
    model = GaussianMean(np.eye(2))
    tables = [{"x": m + rng.normal(size=(500, 2))} for m in (0.0, 3.0)]
    with pytest.warns(UserWarning, match="more than 5.0 sd"):
        whole = decoct.merge([decoct.build(model, rows, size=8) for rows in tables])
    sd = 500**-0.5
    assert whole.report.rounds[-1]["drift"] == pytest.approx(1.5 / sd, rel=0.1)


def test_poor_coresets_of_parts_that_agree_have_not_drifted():
    rng = np.random.default_rng(7)
    x, beta = rng.normal(size=(8000, 20)), rng.normal(size=20) / 3
    table = logistic(8, beta, n=8000, x=x)
    cuts = slice(4000), slice(4000, None)
    halves = [{name: column[cut] for name, column in table.items()} for cut in cuts]
    whole = decoct.merge(built_apart(halves, size=12))
    last = whole.report.rounds[-1]
    # They lie apart because each is poor, as it says itself: no DRIFTED, but no sum either.
    assert last["drift"] > DRIFTED
    assert whole.report.status is decoct.Status.SHORT_ROWS
    assert (last["kl_bound"], last["kl_if_independent"]) == (None, None)
    again = decoct.merge([whole, built_apart([logistic(9, beta)], size=60)[0]], size=30)
    assert again.report.predicted_kl is None
    assert again.report.status is decoct.Status.SHORT_ROWS
    assert "kl_bound" not in again.report.rounds[-1]


def test_without_spread_a_place_is_infinitely_far():
    stuck = Gaussian(np.zeros(2), np.diag([1.0, 0.0]))
    assert distance(stuck, np.zeros(2)) == np.inf
    assert distance(Gaussian(np.zeros(2), np.eye(2)), np.array([0.0, np.nan])) == np.inf
    assert distance(Gaussian(np.zeros(2), np.full((2, 2), np.nan)), np.zeros(2)) == np.inf


@pytest.mark.parametrize("n", [5, 12, 100])
def test_few_draws_say_nothing_of_correlations(n):
    draws = np.random.default_rng(0).normal(size=(n, 10))
    place = moments(draws)
    np.testing.assert_allclose(place.cov, np.diag(draws.var(axis=0)))
    assert distance(place, place.mean + 1.0) < 3.0


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
    assert last["drift_sampler"] == "nuts"
    assert last["drift"] < 1.0
    assert last["kl_bound"] >= 0.0


def test_where_nobody_knows_where_parts_lie_nothing_is_claimed(flat_parts):
    with pytest.warns(UserWarning, match=r"is not known.*sampler=.*The sampler says: The"):
        whole = decoct.merge(flat_parts, sampler=Laplace())
    assert whole.report.rounds == []
    assert whole.report.status is decoct.Status.DONE
    assert decoct.merge([whole, flat_parts[0]]).report.rounds == []


def test_labels_of_all_parts_go_together():
    model, x = LogisticRegression(), np.random.default_rng(0).normal(size=(200, 2))
    one = decoct.build(model, {"x": x, "y": (x[:, 0] > 0).astype(int)}, size=20)
    other = decoct.build(model, {"x": x, "y": np.where(x[:, 0] > 0, 1, -1)}, size=20)
    assert decoct.merge([one, one]).size == 40
    with pytest.raises(RowsError, match="'y' has the labels -1, 0, 1"):
        decoct.merge([one, other])


def test_many_parameters_do_not_ask_for_many_draws():
    class Counting:
        def draw(self, key, density, n):
            self.n = n
            return Draws(np.random.default_rng(0).normal(size=(1, n, density.dim)), "counting")

    rows, sampler = {"x": np.zeros((1, 500))}, Counting()
    density = WeightedDensity.of(GaussianMean(np.eye(500)), rows, np.ones(1))
    place, name = place_of(jax.random.key(0), density, sampler)
    assert (sampler.n, name) == (MOST_DRAWS, "counting")
    assert np.count_nonzero(place.cov) == 500  # too few for the correlations of 500
