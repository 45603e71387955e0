"""The predictors that are read off a likelihood: derivatives and covariances by autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm, t

import decoct
from decoct.models.parameters import ParameterSpace
from decoct.passes.expansions import find_predictors, predictor_shape

N, G = 64, 7
RNG = np.random.default_rng(0)
ROWS = {
    "x": RNG.normal(size=(N, 3)),
    "g": RNG.integers(G, size=N),
    "h": RNG.integers(5, size=N),
    "y": RNG.normal(size=N),
    "b": RNG.integers(2, size=N).astype(float),
}


def student(p, r):
    eta = r["x"] @ p["beta"] + p["u"][r["g"]]
    return t.logpdf(r["y"], 4.0, eta, jnp.exp(p["s"]))


def crossed(p, r):
    eta = p["a"] + r["x"] @ p["beta"] + p["u"][r["g"]] + p["v"][r["h"]] * r["x"][:, 0]
    return r["b"] * eta - jnp.logaddexp(0.0, eta)


def slopes(p, r):
    mean = p["w"][r["g"], 0] + p["w"][r["g"], 1] * r["x"][:, 1]
    return norm.logpdf(r["y"], mean, jnp.exp(p["s"]))


def reference_level(p, r):
    u = jnp.concatenate([jnp.zeros(1), p["u"]])
    eta = u[r["g"]] + 2.0 * u[r["h"]] - r["y"] * p["a"]
    return -jnp.exp(eta) + r["b"] * eta


def products(p, r):
    return -((r["y"] - (p["u"][r["g"]] * p["v"][r["h"]]).sum(axis=1)) ** 2)


def softmax(p, r):
    eta = jnp.stack([jnp.zeros(len(r["g"])), r["x"] @ p["beta"], p["u"][r["g"]]], axis=1)
    return jax.nn.log_softmax(eta, axis=1)[jnp.arange(len(r["h"])), r["h"] % 3]


def scale_of_groups(p, r):
    return norm.logpdf(r["y"], p["a"], jnp.exp(p["u"])[r["g"]])


ONE = np.zeros(())
CASES = {
    student: ({"beta": np.zeros(3), "u": np.zeros(G), "s": ONE}, (2, 4, 1)),
    crossed: ({"a": ONE, "beta": np.zeros(3), "u": np.zeros(G), "v": np.zeros(5)}, (1, 4, 2)),
    slopes: ({"w": np.zeros((G, 2)), "s": ONE}, (2, 1, 2)),
    reference_level: ({"u": np.zeros(G - 1), "a": ONE}, (1, 1, 2)),
    products: ({"u": np.zeros((G, 2)), "v": np.zeros((5, 2))}, (4, 0, 4)),
    softmax: ({"beta": np.zeros(3), "u": np.zeros(G)}, (2, 3, 1)),
    scale_of_groups: ({"a": ONE, "u": np.zeros(G)}, (2, 1, 1)),
}


PAIRS = {slopes: ((0, 1),), products: ((0, 1), (2, 3))}
"""Columns of the picked entries that are picked by the same index."""


@pytest.mark.parametrize("log_likelihood", CASES, ids=lambda f: f.__name__)
def test_they_are_what_the_likelihood_depends_on(log_likelihood):
    init, expected = CASES[log_likelihood]
    model, space = decoct.Model(log_likelihood, lambda p: 0.0, init), ParameterSpace.of(init)
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        rows = {name: jnp.asarray(column) for name, column in ROWS.items()}
        found = find_predictors(model, space, rows)
        assert found is not None
        assert found.shape[:3] == expected
        assert found.pairs == PAIRS.get(log_likelihood, ())
        phi, weights = jnp.asarray(rng.normal(size=space.dim)), jnp.asarray(rng.uniform(size=N))

        def potentials(phi):
            return model.log_likelihood(space.unflatten(phi), rows)

        def total(phi):
            return weights @ potentials(phi)

        eta, k = found.at(phi), found.shape.predictors
        np.testing.assert_allclose(found.potentials(eta), potentials(phi), rtol=1e-12, atol=1e-12)
        ones = [jnp.zeros_like(eta).at[:, i].set(1.0) for i in range(k)]

        @jax.jit
        def first(eta):
            parts = [jax.jvp(found.potentials, (eta,), (one,))[1] for one in ones]
            return jnp.stack(parts, axis=1)

        @jax.jit
        def second(eta):
            return jnp.stack([jax.jvp(first, (eta,), (one,))[1] for one in ones], axis=2)

        np.testing.assert_allclose(
            found.gradient(weights[:, None] * first(eta)), jax.jit(jax.grad(total))(phi), atol=1e-10
        )
        np.testing.assert_allclose(
            found.hessian(weights[:, None, None] * second(eta)),
            jax.jit(jax.hessian(total))(phi),
            atol=1e-10,
        )
        factor = rng.normal(size=(space.dim, space.dim))
        covariance, slope = factor @ factor.T, np.asarray(jax.jit(jax.jacobian(found.at))(phi))
        np.testing.assert_allclose(
            found.covariances(jnp.asarray(covariance)),
            np.einsum("nid,de,nje->nij", slope, covariance, slope),
            atol=1e-10,
        )
        delta = rng.normal(size=(4, space.dim))
        np.testing.assert_allclose(
            found.along(jnp.asarray(delta)), np.einsum("nid,sd->nsi", slope, delta), atol=1e-10
        )


def test_many_curved_parameters_are_no_few_predictors():
    def log_likelihood(p, r):
        return -((r["y"] - jnp.tanh(p["w"]).sum()) ** 2)

    init = {"w": np.zeros(20)}
    model = decoct.Model(log_likelihood, lambda p: 0.0, init)
    assert predictor_shape(model, ParameterSpace.of(init), ROWS) is None
