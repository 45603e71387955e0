"""What scales entries that rows pick moves before the pick: φ are effects, values stay."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("numpyro")

import numpyro
import numpyro.distributions as dist

from decoct.bridges.numpyro import from_numpyro
from decoct.bridges.rewrites import rewrite
from tests.bridges.phi import YES, G, J, X, check

RNG = np.random.default_rng(0)
DATA = RNG.normal(size=J)


def columns(x):
    return jnp.stack([jnp.ones_like(x), x], axis=1)


# name -> predictor of z (J, 2), τ (2,), g, x; and the shapes of φ
FORMS: dict[str, tuple[Any, dict[str, tuple[int, ...]]]] = {
    "taken": (lambda z, t, g, x: t[0] * jnp.take(z[:, 0], g), {"f(tau, z)": (J,)}),
    "negative": (lambda z, t, g, x: -z[g][:, 0] * t[1], {"f(tau, z)": (J,)}),
    "divided": (lambda z, t, g, x: z[g][:, 0] / t[1], {"f(tau, z)": (J,)}),
    "scale of a column": (lambda z, t, g, x: t[0] * x * z[g, 0], {"f(tau, z)": (J,)}),
    "scale last": (lambda z, t, g, x: x * z[g, 0] * t[0], {"f(tau, z)": (J,)}),
    "two columns": (
        lambda z, t, g, x: t[0] * z[g, 0] + t[1] * z[g, 1] * x,
        {"f(tau, z)": (J,), "f(tau, z) 2": (J,)},
    ),
    "rows of two": (lambda z, t, g, x: (t * z[g] * columns(x)).sum(-1), {"f(tau, z)": (J, 2)}),
    "einsum": (
        lambda z, t, g, x: jnp.einsum("nk,nk->n", columns(x), z[g] * t),
        {"f(tau, z)": (J, 2)},
    ),
    "a matrix": (
        lambda z, t, g, x: (columns(x) * (z[g] @ (t[:, None] * jnp.eye(2, k=-1)).T)).sum(-1),
        {"f(tau, z)": (J, 2)},
    ),
    "vmap": (
        lambda z, t, g, x: jax.vmap(lambda g, x: t[0] * z[g, 0] * x)(g, x),
        {"f(tau, z)": (J,)},
    ),
    "vmap, rows of two": (
        lambda z, t, g, x: (jax.vmap(lambda g: t * z[g])(g) * columns(x)).sum(-1),
        {"f(tau, z)": (J, 2)},
    ),
    "one-hot": (
        lambda z, t, g, x: x * (jax.nn.one_hot(g, J) @ z[:, 0]) * t[0],
        {"f(tau, z)": (J,)},
    ),
    "the vector first": (
        lambda z, t, g, x: z[:, 0] @ jax.nn.one_hot(g, J, axis=0) / t[0],
        {"f(tau, z)": (J,)},
    ),
    "two indices": (lambda z, t, g, x: t[0] * z[g, (x > 0) * 1], {"f(tau, z)": (J, 2)}),
    "a row of the transpose": (
        lambda z, t, g, x: t[0] * z.T[0, g] + t[1] * z.T[1, g] * x,
        {"f(tau, z)": (J,), "f(tau, z) 2": (J,)},
    ),
    "two arrays": (lambda z, t, g, x: z[:, 0][g] * z[:, 1][g] * t[0], {"f(tau, z)": (J,)}),
    "data of groups": (lambda z, t, g, x: t[0] * jnp.asarray(DATA)[g], {"f(tau)": (1,)}),
}


@pytest.mark.parametrize("name", FORMS)
def test_rows_depend_on_effects_however_they_are_scaled(name):
    predictor, shapes = FORMS[name]

    def model(g, x, y=None):
        normal = dist.Normal(0.0, 1.0)
        mu = numpyro.sample("mu", normal)
        tau = numpyro.sample("tau", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
        z = numpyro.sample("z", normal.expand([J, 2]).to_event(2))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=mu + predictor(z, tau, g, x)), obs=y)

    check(from_numpyro(model, {"g": G, "x": X, "y": YES}), {"mu": (), **shapes})


@pytest.mark.parametrize("name", FORMS)
def test_values_and_derivatives_stay(name):
    predictor = FORMS[name][0]
    with jax.enable_x64(True):
        z, tau = jnp.asarray(RNG.normal(size=(J, 2))), jnp.array([0.7, 1.3])
        fixed = jnp.asarray(G), jnp.asarray(X)
        for look in (lambda f: f, jax.jacobian):
            wanted, found = (look(f)(z, tau, *fixed) for f in (predictor, rewrite(predictor)))
            np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "other",
    [
        lambda z, t, g, x: z[g] * jnp.roll(z, 1, axis=0)[g[::-1]],  # other rows
        lambda z, t, g, x: x * z[g],  # rows alone
        lambda z, t, g, x: z[:, None][g] * x[None, :, None],  # an outer product
        lambda z, t, g, x: jnp.take(z, g + J, fill_value=2.0) * t,  # beyond the array
        lambda z, t, g, x: (z[g] * t)[::2],
        lambda z, t, g, x: (x[:, None] * z @ z) * x,
        lambda z, t, g, x: z[g] @ jnp.arange(len(g) * 2.0).reshape(len(g), 2),
    ],
)
def test_other_products_stay_as_they_are(other):
    with jax.enable_x64(True):
        z, fixed = jnp.asarray(RNG.normal(size=J)), (jnp.asarray(G), jnp.asarray(X))
        wanted, found = (f(z, jnp.array(0.4), *fixed) for f in (other, rewrite(other)))
        np.testing.assert_array_equal(found, wanted)
