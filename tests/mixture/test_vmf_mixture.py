"""The mixture's density against SciPy, its parameters, and what it refuses."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import decoct
from decoct.data.arrays import ArrayRows
from decoct.errors import ModelError, RowsError
from decoct.mixture import VonMisesFisherMixture, sample_vmf
from decoct.models.parameters import ParameterSpace
from decoct.runtime.precision import float64
from decoct.samplers import WeightedDensity

MODEL = VonMisesFisherMixture(4, 3, 20.0)
X = sample_vmf(np.random.default_rng(0), np.repeat(np.eye(3), 5, axis=0), 4.0)


def parameters(seed, model=MODEL):
    rng = np.random.default_rng(seed)
    K, D = model.n_components, model.dim
    return {"modes": rng.normal(size=(K, D)), "logits": rng.normal(size=K)}


@float64
def log_likelihood(model, params, x):
    evaluate = eqx.filter_jit(lambda model, params, rows: model.log_likelihood(params, rows))
    return np.asarray(evaluate(model, params, {"x": jnp.asarray(x)}))


def test_likelihood_is_scipys():
    params = parameters(1)
    modes = params["modes"] / np.linalg.norm(params["modes"], axis=1, keepdims=True)
    weights = np.exp(params["logits"]) / np.exp(params["logits"]).sum()
    density = sum(
        w * stats.vonmises_fisher(m, 20.0).pdf(X) for w, m in zip(weights, modes, strict=True)
    )
    np.testing.assert_allclose(log_likelihood(MODEL, params, X), np.log(density), rtol=1e-12)


def test_large_concentrations_stay_finite():
    model = VonMisesFisherMixture(2, 3, 1e6)
    params = {"modes": np.eye(3)[:2], "logits": np.array([0.0, -3.0])}
    values = log_likelihood(model, params, np.concatenate([np.eye(3), -np.eye(3)]))
    closed = np.log(1e6 / (2 * np.pi)) + np.log([1 / (1 + np.exp(-3)), 1 / (1 + np.exp(3))])
    np.testing.assert_allclose(values[:2], closed, atol=1e-8)
    assert np.isfinite(values).all()


@float64
def test_prior_is_normal_times_log_gamma():
    params = parameters(2)
    expected = stats.norm.logpdf(params["modes"]).sum()
    expected += stats.loggamma(1.0).logpdf(params["logits"]).sum()
    assert float(MODEL.log_prior(jax.tree.map(jnp.asarray, params))) == pytest.approx(expected)


@float64
def unflattened(model, z):
    return jax.vmap(ParameterSpace.of(model.init({"x": X})).unflatten)(jnp.asarray(z))


@float64
def constrained(model, z):
    return jax.vmap(model.constrain)(unflattened(model, z))


def uniform_draws(S, rng):
    modes = rng.normal(size=(S, 4, 3))
    return modes / np.linalg.norm(modes, axis=2, keepdims=True), rng.dirichlet(np.ones(4), size=S)


@pytest.mark.parametrize("with_norms", [False, True])
def test_to_unconstrained_inverts_constrain(with_norms):
    rng = np.random.default_rng(3)
    modes, weights = uniform_draws(50, rng)
    z = MODEL.to_unconstrained(modes, weights, rng if with_norms else None)
    again = constrained(MODEL, z)
    np.testing.assert_allclose(again["modes"], modes, atol=1e-14)
    np.testing.assert_allclose(again["weights"], weights, atol=1e-14)


def test_uniform_modes_and_weights_become_draws_of_the_unconstrained_prior():
    rng = np.random.default_rng(4)
    modes, weights = uniform_draws(4000, rng)
    params = unflattened(MODEL, MODEL.to_unconstrained(modes, weights, rng))
    v, logits = np.asarray(params["modes"]), np.asarray(params["logits"])
    # every coordinate on its own is standard normal or log Gamma(1), and they are uncorrelated
    for column in v.reshape(len(v), -1).T:
        assert stats.kstest(column, "norm").pvalue > 1e-4
    for column in logits.T:
        assert stats.kstest(column, stats.loggamma(1.0).cdf).pvalue > 1e-4
    flat = np.concatenate([v.reshape(len(v), -1), logits], axis=1)
    off = np.corrcoef(flat.T) - np.eye(flat.shape[1])
    assert np.abs(off).max() < 4.5 / np.sqrt(len(flat))


def test_to_unconstrained_refuses_what_has_no_image():
    modes, weights = uniform_draws(2, np.random.default_rng(0))
    with pytest.raises(ModelError, match="shapes"):
        MODEL.to_unconstrained(modes[:, :3], weights)
    with pytest.raises(ModelError, match="logit"):
        MODEL.to_unconstrained(modes, np.eye(4)[:2])


@float64
def test_start_breaks_the_symmetry():
    params = MODEL.init({"x": X})
    gradient = jax.grad(lambda p: MODEL.log_likelihood(p, {"x": jnp.asarray(X)}).sum())(
        jax.tree.map(jnp.asarray, params)
    )
    assert len(np.unique(np.asarray(gradient["modes"]).round(6), axis=0)) == 4
    np.testing.assert_allclose(np.linalg.norm(params["modes"], axis=1), 1.0)


@float64
def test_concentration_is_traced():
    compiled = []

    @eqx.filter_jit
    def evaluate(model, params, rows):
        compiled.append(model)
        return model.log_likelihood(params, rows)

    for tau in (1.0, 50.0, 300.0):
        evaluate(VonMisesFisherMixture(4, 3, tau), parameters(0), {"x": jnp.asarray(X)})
    assert len(compiled) == 1


def test_description_rebuilds_the_model():
    spec = json.loads(json.dumps(MODEL.to_dict()))
    assert spec.pop("kind") == VonMisesFisherMixture.kind == "vmf_mixture"
    assert bool(eqx.tree_equal(VonMisesFisherMixture(**spec), MODEL))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0, 3), "n_components"),
        ((2.5, 3), "whole number"),
        ((2, 1), "dimensions"),
        ((2, 3, 0.0), "concentration"),
        ((2, 3, np.nan), "concentration"),
        ((2, 3, "tight"), "concentration"),
    ],
)
def test_hopeless_hyper_parameters_are_refused(arguments, match):
    with pytest.raises(ModelError, match=match):
        VonMisesFisherMixture(*arguments)


def test_rows_off_the_sphere_are_named():
    x = X.copy()
    x[7] *= 1.1
    with pytest.raises(RowsError, match=r"'x' has the norm 1\.1 in row 107;.*divide"):
        MODEL.encode({"x": x}, 100)
    nearly = X * (1.0 + 5e-7)
    np.testing.assert_array_equal(MODEL.encode({"x": nearly})["x"], nearly)
    assert MODEL.encode({"x": np.eye(3, dtype=int)})["x"].dtype == np.float64


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (X[:, :2], "3 numbers per row"),
        (X[:, 0], "3 numbers per row"),
        (np.where(np.arange(15)[:, None] == 4, np.nan, X), "row 4"),
        (X.astype(str), "not numeric"),
    ],
)
def test_rows_of_another_kind_are_refused(x, match):
    with pytest.raises(RowsError, match=match):
        MODEL.encode({"x": x})
    with pytest.raises(RowsError, match="no column"):
        MODEL.encode({"y": x})


def test_fewer_rows_than_clusters_are_refused():
    with pytest.raises(RowsError, match="3 rows, fewer than the 4"):
        MODEL.check(ArrayRows({"x": X[:3]}))
    MODEL.check(ArrayRows({"x": X[:4]}))


@float64
def test_weights_follow_the_contract():
    z = jnp.asarray(np.random.default_rng(5).normal(size=16))
    weights = np.arange(15) % 3.0
    ours = WeightedDensity.of(MODEL, {"x": X}, weights).log_density(z)
    repeated = {"x": np.repeat(X, weights.astype(int), axis=0)}
    assert float(ours) == pytest.approx(
        float(WeightedDensity.of(MODEL, repeated, np.ones(15)).log_density(z)), rel=1e-13
    )


def test_a_coreset_can_be_built():
    x = sample_vmf(np.random.default_rng(1), np.repeat(np.eye(3), 50, axis=0), 50.0)
    coreset = decoct.build(
        VonMisesFisherMixture(3, 3), {"x": x}, size=20, method=decoct.constructions.Uniform()
    )
    assert coreset.rows["x"].shape == (20, 3)
    assert coreset.dim == 12


def test_relabelled_draws_are_the_same_clusters_in_the_order_asked_for():
    rng, model = np.random.default_rng(0), VonMisesFisherMixture(3, 2)
    modes = rng.normal(size=(3, 2)) + 0.01 * rng.normal(size=(20, 3, 2))
    modes /= np.linalg.norm(modes, axis=2, keepdims=True)
    weights = rng.dirichlet(np.ones(3), size=20)
    z = model.to_unconstrained(modes, weights)
    other = model.to_unconstrained(modes[:, [2, 0, 1]], weights[:, [2, 0, 1]])
    np.testing.assert_allclose(model.relabelled(other, z.mean(axis=0)), z, rtol=1e-12)
    np.testing.assert_array_equal(model.relabelled(z, z[3]), z)
