"""What tells the functions of two models apart, and what does not."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoct.models.digest import functions_digest

import decoct

ROWS = {"y": np.zeros(1), "k": np.zeros(1, dtype=np.int64)}


def model(potential, prior=lambda params: -0.5 * params["mu"] ** 2, start=0.0):
    return decoct.Model(potential, prior, {"mu": start})


def looked_up(values, wrap=lambda f: f):
    """Potentials that look numbers up in an array: no text of the function has these."""

    def potential(params, rows):
        return wrap(lambda k, mu: jnp.asarray(values)[k] * mu)(rows["k"], params["mu"])

    return model(potential)


def in_a_branch(f):
    return lambda k, mu: jax.lax.cond(mu > 0.0, f, lambda k, mu: -f(k, mu), k, mu)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint, in_a_branch])
def test_every_entry_of_a_constant_counts(wrap):
    numbers = np.linspace(0.0, 1.0, 5000)
    changed = numbers.copy()
    changed[2500] = np.nextafter(changed[2500], 9.0)
    one = functions_digest(looked_up(numbers, wrap), ROWS)
    assert one == functions_digest(looked_up(numbers.copy(), wrap), ROWS)
    assert one != functions_digest(looked_up(changed, wrap), ROWS)


def test_the_prior_the_start_and_a_number_count():
    def normal(shift):
        return lambda params, rows: -0.5 * (rows["y"] - params["mu"] - shift) ** 2

    one = functions_digest(model(normal(0.1)), ROWS)
    assert one == functions_digest(model(normal(0.1)), ROWS)
    others = [
        model(normal(np.nextafter(0.1, 1.0))),
        model(normal(0.1), start=1.0),
        model(normal(0.1), prior=lambda params: -(params["mu"] ** 2)),
    ]
    assert len({one, *(functions_digest(other, ROWS) for other in others)}) == 4


def test_a_random_key_counts():
    def noisy(seed):
        key = jax.random.key(seed)
        return model(lambda params, rows: params["mu"] * jax.random.normal(key, rows["y"].shape))

    digests = [functions_digest(noisy(seed), ROWS) for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]


def test_models_of_the_package():
    x = {"x": np.zeros((1, 3)), "y": np.zeros(1)}
    digests = [
        functions_digest(decoct.models.LogisticRegression(prior_scale=scale), x)
        for scale in (1.0, 1.0, 2.0)
    ]
    assert digests[0] == digests[1] != digests[2]


ELSEWHERE = """
import jax, jax.numpy as jnp, numpy as np, decoct
from decoct.models.digest import functions_digest
@jax.custom_jvp
def cube(x):
    return x**3
cube.defjvp(lambda primals, tangents: (cube(*primals), 3 * primals[0] ** 2 * tangents[0]))
table = np.linspace(0.0, 1.0, 100)
model = decoct.Model(
    lambda p, rows: jax.nn.softplus(rows["y"] * p["b"]["a"]) + cube(jnp.asarray(table)[3]),
    lambda p: jax.scipy.stats.norm.logpdf(p["b"]["a"]) + jnp.linalg.slogdet(jnp.eye(2) * p["c"])[1],
    {"c": 1.0, "b": {"a": 0.0}},
)
print(functions_digest(model, {"y": np.zeros(1)}))
"""


def test_another_process_comes_to_the_same():
    said = [
        subprocess.run(
            [sys.executable, "-c", ELSEWHERE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert f"(JAX {jax.__version__})" in said[0]
