"""PyMC models that no coreset of rows can carry are refused in a sentence with the remedy."""

import importlib

import numpy as np
import pytest

import decoct
from decoct.bridges.pymc import from_pymc
from tests.bridges.pymc_import import pm, quiet

Op = pytest.importorskip("pytensor.graph.op").Op
Apply = pytest.importorskip("pytensor.graph.basic").Apply

pytestmark = quiet
Y = np.linspace(-1.0, 1.0, 12)
X = np.linspace(0.0, 1.0, 36).reshape(12, 3)
IDS = np.arange(12) % 4


def refusal(model, error=decoct.ModelError):
    with pytest.raises(error) as caught:
        from_pymc(model)
    message = str(caught.value)
    assert len(message) < 700
    return message


def test_a_constant_response():
    with pm.Model() as model:
        pm.Normal("seen", pm.Normal("mu", 0.0, 1.0), 1.0, observed=Y)
    message = refusal(model)
    assert "observed data of 'seen' are a constant" in message
    assert 'observed=pm.Data("seen_data", y)' in message


def test_constant_covariates():
    """Trap: data outside pm.Data are constants of the graph."""
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=3)
        pm.Normal("seen", X @ beta, 1.0, observed=pm.Data("y", Y))
    message = refusal(model)
    assert "constants (shape (12, 3))" in message
    assert "Put them in pm.Data" in message


def test_one_latent_per_row_by_its_shape():
    with pm.Model() as model:
        effect = pm.Normal("effect", 0.0, 1.0, shape=12)
        pm.Normal("seen", effect, 1.0, observed=pm.Data("y", Y))
    message = refusal(model)
    assert "free variable 'effect' has 12 values" in message
    assert "Marginalise" in message


@pytest.mark.parametrize("coords", [None, {"row": range(12)}])
def test_one_latent_per_row_by_its_dimension(coords):
    with pm.Model(coords=coords) as model:
        y = pm.Data("y", Y, dims="row")
        effect = pm.Normal("effect", 0.0, 1.0, dims="row")
        pm.Normal("seen", effect, 1.0, observed=y, dims="row")
    message = refusal(model)
    assert "'effect' has shape (12,) on 12 rows and (5,) on 5" in message
    assert "one unknown per row" in message


def test_group_counts_worked_out_from_the_rows():
    with pm.Model() as model:
        ids = pm.Data("ids", np.sort(IDS))
        effect = pm.Normal("effect", 0.0, 1.0, shape=ids.max() + 1)
        pm.Normal("seen", effect[ids], 1.0, observed=pm.Data("y", Y))
    message = refusal(model)
    assert "worked out from the rows" in message
    assert "coords= or shape=" in message


def test_a_discrete_latent():
    with pm.Model() as model:
        kind = pm.Bernoulli("kind", 0.5)
        pm.Normal("seen", kind, 1.0, observed=pm.Data("y", Y))
    message = refusal(model)
    assert "'kind' is discrete (int64)" in message
    assert "pm.Mixture" in message


def test_total_size():
    """Trap: total_size multiplies the density by N/B, on top of the weights."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Normal("seen", mu, 1.0, observed=pm.Data("y", Y), total_size=100)
    message = refusal(model)
    assert "'seen' has a total_size" in message
    assert "leave total_size out" in message


def test_minibatches():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        x, y = pm.Minibatch(pm.Data("x", Y), pm.Data("y", Y), batch_size=4)
        with pytest.warns(UserWarning, match="total_size not provided"):
            pm.Normal("seen", mu * x, 1.0, observed=y)
    assert "pm.Minibatch" in refusal(model)


def test_responses_of_different_lengths():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Normal("one", mu, 1.0, observed=pm.Data("y", Y))
        pm.Normal("other", mu, 1.0, observed=pm.Data("z", Y[:7]))
    message = refusal(model)
    assert "'one' has 12, 'other' has 7" in message
    assert "pm.Potential" in message


def test_missing_responses():
    """Trap: PyMC imputes NaN in observed= by a latent variable per missing row."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        with pytest.warns(pm.exceptions.ImputationWarning):
            pm.Normal("seen", mu, 1.0, observed=np.where(Y > 0.8, np.nan, Y))
    assert "missing responses" in refusal(model)


def test_a_likelihood_as_a_potential():
    with pm.Model() as model:
        y, mu = pm.Data("y", Y), pm.Normal("mu", 0.0, 1.0)
        pm.Potential("like", -((y - mu) ** 2))
    assert "write it as pm.CustomDist" in refusal(model)
    with model:
        pm.Normal("seen", mu, 1.0, observed=y)
    message = refusal(model)
    assert "pm.Potential 'like' depends on the rows, through pm.Data 'y'" in message
    with pm.Model() as custom:
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.CustomDist("seen", mu, logp=lambda v, m: -((v - m) ** 2), observed=pm.Data("y", Y))
    assert from_pymc(custom).inputs == ("y",)


def test_one_density_for_all_rows():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.MvNormal("seen", mu * np.ones(12), np.eye(12), observed=pm.Data("y", Y))
    message = refusal(model)
    assert "'seen' has one log density for all its rows together" in message


def test_the_mean_of_a_column():
    with pm.Model() as model:
        x, mu = pm.Data("x", Y**2), pm.Normal("mu", 0.0, 1.0)
        pm.Normal("seen", mu * (x - x.mean()), 1.0, observed=pm.Data("y", Y))
    assert "changes with the other rows" in refusal(model)
    with pm.Model() as model:
        y = pm.Data("y", Y)
        pm.Normal("seen", pm.Normal("mu", y.mean(), 1.0), 1.0, observed=y)
    assert "changes with the rows given" in refusal(model)


def test_nothing_latent_nothing_observed_and_nested_models():
    with pm.Model() as model:
        pm.Normal("seen", 0.0, 1.0, observed=pm.Data("y", Y))
    assert "no free variable" in refusal(model)
    with pm.Model() as model:
        pm.Normal("mu", 0.0, 1.0)
        with pm.Model(name="inner") as inner:
            pm.Normal("mu", 0.0, 1.0)
    assert "No variable of the model is observed" in refusal(model)
    assert "nested" in refusal(inner)


def test_a_number_as_response_and_a_fixed_shape():
    with pm.Model() as model:
        pm.Normal("seen", pm.Normal("mu", 0.0, 1.0), 1.0, observed=pm.Data("y", 0.5))
    assert "'seen' is a single number" in refusal(model)
    with pm.Model() as model:
        y = pm.Data("y", Y, shape=(12,))
        pm.Normal("seen", pm.Normal("mu", 0.0, 1.0), 1.0, observed=y)
    assert "leave out shape=" in refusal(model)


class Unknown(Op):
    """An operation that PyTensor has no JAX for."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = np.asarray(inputs[0])


class Broken(Unknown):
    """An operation whose JAX cannot be made."""


def with_operation(operation):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 1.0)
        pm.Normal("seen", operation(mu), 1.0, observed=pm.Data("y", Y))
    return model


def test_an_operation_without_a_translation():
    """And what a translation itself raises is no word about missing ones."""
    message = refusal(with_operation(Unknown()))
    assert "PyTensor cannot translate this model to JAX" in message
    assert "`Op`: Unknown. Write that part with other operations" in message

    def fails(op, **options):
        raise RuntimeError("a real error")

    # the backend is loaded by now, with the user's flags put back
    jax_funcify = importlib.import_module("pytensor.link.jax.dispatch").jax_funcify
    jax_funcify.register(Broken)(fails)
    with pytest.raises(RuntimeError, match="a real error"):
        from_pymc(with_operation(Broken()))


def test_a_uniform_prior_without_bounds():
    """PyMC has no starting point for it, and its log density is −∞ everywhere."""
    with pm.Model() as model:
        pm.Normal("seen", pm.Uniform("mu", -np.inf, np.inf), 1.0, observed=pm.Data("y", Y))
    assert "not finite at any of 21 starting points" in refusal(model)


def test_what_is_no_model():
    assert "must be a pymc.Model, not a str" in refusal("model", decoct.RequestError)
