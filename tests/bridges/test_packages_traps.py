"""Traps of other packages' interfaces, one named test each; more are beside what they trap.

The others: weights of 0 and the plate of a fixed size (test_numpyro_values,
test_numpyro_round_trip), subsampling plates and group counts from the rows (test_numpyro_refusals),
PyMC's potentials (test_pymc_traps), Bambi's priors (test_bambi), initial values and int8 ranges
(test_pymc_round_trip), LOO of kept rows (tests/evaluation/test_loo.py).
"""

import arviz_base
import numpy as np
import pytest
import xarray as xr

import decoct
from decoct.constructions import Uniform
from decoct.models.base import AbstractModel
from decoct.models.parameters import ParameterSpace
from decoct.samplers import Laplace
from decoct.samplers.base import Draws
from decoct.samplers.datatree import to_datatree, unconstrained

ROWS = {"x": np.random.default_rng(0).normal(size=(300, 3)), "y": np.arange(300) % 2}
STEPS = 137
"""Warm-up steps."""


@pytest.fixture(scope="module")
def coreset():
    return decoct.build(decoct.models.LogisticRegression(), ROWS, size=30, method=Uniform())


class Labelled(AbstractModel):
    """Two arrays that share the axis "county", which only arrays of two axes have."""

    def init(self, rows):
        return {"a": np.zeros((2, 3)), "b": np.zeros((3, 2))}

    def log_likelihood(self, params, rows):
        return -0.5 * (rows["v"] - params["a"].sum() - params["b"].sum()) ** 2

    def log_prior(self, params):
        return -0.5 * (params["a"] ** 2).sum() - 0.5 * (params["b"] ** 2).sum()

    def dims(self):
        return {"a": ["year", "county"], "b": ["county", "b_dim_1"]}

    def coords(self, rows):
        return {"county": ("county", ["Aitkin", "Anoka", "Becker"]), "year": ("year", ["1988"])}


def tree_of(model, z):
    space = ParameterSpace.of(model.init({}))
    return to_datatree(model, space, {}, Draws(z, "given", {}))


def test_arrays_of_two_axes_have_their_labels():
    """Trap: labels went to arrays of one axis alone."""
    z = np.random.default_rng(0).normal(size=(2, 5, 12))
    posterior = tree_of(Labelled(), z)["posterior"]
    assert posterior["a"].dims == ("chain", "draw", "year", "county")
    assert posterior["b"].dims == ("chain", "draw", "county", "b_dim_1")
    assert list(posterior["county"].to_numpy()) == ["Aitkin", "Anoka", "Becker"]
    assert list(posterior["year"].to_numpy()) == [0, 1]  # one label does not fit two years
    anoka = posterior["a"].sel(county="Anoka").to_numpy()
    np.testing.assert_array_equal(anoka, z[..., :6].reshape(2, 5, 2, 3)[..., 1])


def test_an_axis_name_of_two_lengths_names_none():
    """Trap: xarray refuses the whole posterior, after the sampling."""

    class Clashing(Labelled):
        def dims(self):
            return {"a": ["county", "year"], "b": ["county", "b_dim_1"]}

    posterior = tree_of(Clashing(), np.zeros((1, 2, 12)))["posterior"]
    assert posterior["a"].dims == ("chain", "draw", "a_dim_0", "year")
    assert posterior["b"].dims == ("chain", "draw", "b_dim_0", "b_dim_1")


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_draws_are_data_trees_whatever_arviz_there_is(coreset):
    """ArviZ 0.x keeps InferenceData, 1.x DataTrees; arviz-base gives DataTrees under both."""
    draws = coreset.sample(draws=50, chains=2, sampler=Laplace(judge=False))
    assert type(draws) is xr.DataTree
    assert set(draws.children) == {"posterior", "unconstrained_posterior"}
    again = arviz_base.convert_to_datatree(draws)
    np.testing.assert_array_equal(again["posterior"]["beta"], draws["posterior"]["beta"])
    arviz = pytest.importorskip("arviz")
    if getattr(arviz, "InferenceData", xr.DataTree) is not xr.DataTree:
        old = arviz.InferenceData(posterior=draws["posterior"].to_dataset())
        np.testing.assert_array_equal(old.posterior["beta"], draws["posterior"]["beta"])
        assert arviz.summary(old).shape[0] == 3


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_draws_of_other_packages_are_refused_with_the_way_to_convert_them(coreset):
    """Trap: both kinds lack the unconstrained draws, and neither is an array."""
    samples = {"beta": np.zeros((2, 5, 3))}
    tree = arviz_base.from_dict({"posterior": samples})
    with pytest.raises(decoct.RequestError, match=r"no group 'unconstrained_.*\.unconstrain make"):
        decoct.check(coreset, ROWS, tree)
    with pytest.raises(decoct.RequestError, match=r"A dict is not an array of draws; pass what "):
        decoct.check(coreset, ROWS, samples)
    arviz = pytest.importorskip("arviz")
    if getattr(arviz, "InferenceData", xr.DataTree) is not xr.DataTree:
        old = arviz.from_dict(posterior=samples)
        with pytest.raises(decoct.RequestError, match="A InferenceData is not an array of draws"):
            decoct.check(coreset, ROWS, old)


def test_what_is_an_array_stays_one():
    z = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(unconstrained(z, 2), z[None])
    np.testing.assert_array_equal(unconstrained(z.tolist(), 2), z[None])
