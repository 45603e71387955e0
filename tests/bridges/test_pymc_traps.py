"""Traps of PyMC's interfaces that need PyMC itself."""

import numpy as np
import pytest

import decoct
from decoct.bridges.pymc import from_pymc
from decoct.constructions import Uniform
from tests.bridges.pymc_import import pm, quiet

pytestmark = quiet
PLAIN = {"mode": "FAST_COMPILE"}


@pytest.fixture(scope="module")
def weighted():
    """A coreset of a model with a potential of its own, and its weighted PyMC model."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    with pm.Model() as model:
        covariate, response = pm.Data("x", x), pm.Data("y", 2.0 * x + rng.normal(size=400))
        slope = pm.Normal("slope", 0.0, 1.0)
        pm.Potential("near", -0.5 * (slope - 1.0) ** 2)
        pm.Normal("seen", slope * covariate, 0.5, observed=response)
    bridge = from_pymc(model)
    coreset = decoct.build(bridge, bridge.rows, size=6, method=Uniform())
    return coreset, coreset.to_pymc()


def test_predictive_draws_are_of_the_kept_rows_likelihood(weighted):
    """Trap: PyMC leaves potentials out of predictive draws, and the weights are one.

    That is right here: a weight says how often a row counts, not how a new response is spread. Had
    the weights been in, the spread would be 0.5/√w.
    """
    coreset, model = weighted
    slopes = np.linspace(1.0, 3.0, 4000).reshape(2, 2000)
    posterior = {"slope": slopes}
    with model, pytest.warns(UserWarning, match="effect of Potentials"):
        drawn = pm.sample_posterior_predictive(
            pm_tree(posterior), progressbar=False, random_seed=1, compile_kwargs=PLAIN
        )
    seen = drawn["posterior_predictive"]["seen"].to_numpy()
    assert seen.shape == (2, 2000, coreset.size)
    assert coreset.weights.min() > 4.0
    noise = seen - slopes[..., None] * coreset.rows["x"]
    # standard errors over 4,000 draws; the largest of 6 is below 4 of them
    n = slopes.size
    assert np.abs(noise.mean(axis=(0, 1))).max() < 4 * 0.5 / np.sqrt(n)
    assert np.abs(noise.std(axis=(0, 1)) / 0.5 - 1.0).max() < 4 / np.sqrt(2 * n)


def pm_tree(posterior):
    """Draws as this PyMC takes them."""
    import arviz

    if arviz.__version__.startswith("0."):
        return arviz.from_dict(posterior=posterior)
    return arviz.from_dict({"posterior": posterior})


def test_the_potential_is_in_what_is_sampled(weighted):
    """Trap: without it the six rows would count once each."""
    coreset, model = weighted
    options = {"mode": "FAST_COMPILE", "on_unused_input": "ignore", "point_fn": False}
    density = model.compile_fn(model.logp(), inputs=model.value_vars, **options)
    values = [float(density(np.array(z))) for z in (0.0, 2.0)]
    x, y, w = coreset.rows["x"], coreset.rows["y"], coreset.weights

    def exact(slope):
        likelihood = -0.5 * ((y - slope * x) / 0.5) ** 2
        return w @ likelihood - 0.5 * slope**2 - 0.5 * (slope - 1.0) ** 2

    assert values[1] - values[0] == pytest.approx(exact(2.0) - exact(0.0), rel=1e-10)


def test_a_latent_value_for_every_row_behind_an_index():
    """Trap: N groups with ids = arange(N) look like any dimension of groups."""
    y = np.random.default_rng(0).normal(size=60)
    with pm.Model() as model:
        ids = pm.Data("ids", np.arange(60))
        effect = pm.Normal("effect", 0.0, 1.0, shape=60)
        pm.Normal("seen", effect[ids], 1.0, observed=pm.Data("y", y))
    bridge = from_pymc(model)  # perhaps on a few of the rows: the table decides
    with pytest.raises(decoct.ModelError, match="'effect' has a latent value for every one of the"):
        decoct.build(bridge, bridge.rows, size=5)


def test_labels_of_arrays_of_several_axes():
    """Trap: only one-dimensional variables had their coordinates."""
    rng = np.random.default_rng(0)
    coords = {"county": ["a", "b"], "term": ["slope", "floor", "basement"]}
    with pm.Model(coords=coords) as model:
        x, where = pm.Data("x", rng.normal(size=(60, 3))), pm.Data("where", np.arange(60) % 2)
        effect = pm.Normal("effect", 0.0, 1.0, dims=("county", "term"))
        seen = pm.Data("y", rng.normal(size=60))
        pm.Normal("seen", (x * effect[where]).sum(axis=1), 1.0, observed=seen)
    bridge = from_pymc(model)
    coreset = decoct.build(bridge, bridge.rows, size=40, sampler=decoct.samplers.Laplace())
    posterior = coreset.sample(draws=5, sampler=decoct.samplers.Laplace())["posterior"]
    assert posterior["effect"].dims == ("chain", "draw", "county", "term")
    assert {name: posterior[name].to_numpy().tolist() for name in coords} == coords


def test_a_prior_without_draws_has_no_starting_point_of_pymcs():
    """Where PyMC cannot say where to start, the other points are tried."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        x, y = pm.Data("x", rng.normal(3.0, 0.5, size=200)), pm.Data("y", rng.gamma(2.0, size=200))
        rate = pm.Flat("rate", initval="prior")
        pm.Exponential("late", rate * x, observed=y)
    with pytest.raises(NotImplementedError, match="Cannot sample from flat"):
        model.initial_point()
    assert from_pymc(model).start["rate"] > 0.0
