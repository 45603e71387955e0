"""Coresets built apart and merged: Corollaries 4.5 and 4.6, and what merging keeps."""

from itertools import pairwise

import jax
import numpy as np
import pytest

import decoct
from decoct import solvers
from decoct.constructions import Hilbert, Uniform
from decoct.data import encoded
from decoct.diagnostics import geometry
from decoct.diagnostics.bounds import merged_frank_wolfe_bound, merged_importance_sampling_bound
from decoct.embeddings import as_embedding
from decoct.errors import RequestError
from decoct.models import GaussianMean, LogisticRegression
from decoct.models.base import AbstractModel
from decoct.potentials import Potentials


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
        with pytest.raises(RequestError, match=r"Coreset 1 is of another model .* with functions"):
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
        with pytest.raises(RequestError, match=r"another model .* with functions"):
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


def test_the_union_knows_the_parts_errors(parts):
    predicted = [part.report.predicted_kl for part in parts]
    last = decoct.merge(parts).report.rounds[-1]
    assert last["parts"] == 3
    assert last["kl_if_independent"] == pytest.approx(sum(predicted))
    assert last["kl_bound"] == pytest.approx(0.5 * np.sqrt(np.multiply(2.0, predicted)).sum() ** 2)
    # Merged in two steps the errors are the same.
    again = decoct.merge([decoct.merge(parts[:2]), parts[2]]).report.rounds[-1]
    assert again["kl_bound"] == pytest.approx(last["kl_bound"])


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
