"""What tells the functions of two models apart, and what does not."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.models.fingerprint import TOLERANCE, find_difference, fingerprint

ROWS = {"y": np.linspace(-1.0, 2.0, 20), "k": np.arange(20)}


def normal(shift=0.1, prior_scale=1.0, start=0.0):
    return decoct.Model(
        lambda params, rows: -0.5 * (rows["y"] - params["mu"] - shift) ** 2,
        lambda params: -0.5 * (params["mu"] / prior_scale) ** 2,
        {"mu": start},
    )


def looked_up(values, wrap=lambda f: f):
    def potential(params, rows):
        return wrap(lambda k, mu: jnp.asarray(values)[k] * mu)(rows["k"], 1.0 + params["mu"])

    return decoct.Model(potential, lambda params: -0.5 * params["mu"] ** 2, {"mu": 0.0})


def test_a_model_agrees_with_itself_through_json():
    known = json.loads(json.dumps(fingerprint(normal(), ROWS)))
    assert find_difference(known, normal(), ROWS) is None
    within = 0.1 * (1.0 + 0.01 * TOLERANCE)
    assert find_difference(known, normal(within), ROWS) is None


def test_the_likelihood_the_prior_and_the_number_of_parameters_count():
    known = fingerprint(normal(), ROWS)
    assert "log-likelihood" in find_difference(known, normal(shift=0.2), ROWS)
    assert "log prior" in find_difference(known, normal(prior_scale=2.0), ROWS)
    two = decoct.Model(lambda p, r: r["y"] * p["a"].sum(), lambda p: 0.0, {"a": np.zeros(2)})
    assert find_difference(known, two, ROWS) == "it has 2 parameters, not 1"
    likelihood = {name: known[name] for name in ("at", "log_likelihood")}
    assert find_difference(likelihood, normal(prior_scale=2.0), ROWS) is None
    # the points are known: where a search starts does not matter
    assert find_difference(known, normal(start=1.0), ROWS) is None


def test_without_rows_the_likelihood_counts_at_made_up_ones():
    """Where it is finite: here it is not at the row of zeros."""

    def gamma(shape):
        return decoct.Model(
            lambda params, rows: shape * jnp.log(rows["y"]) - rows["y"] * params["mu"],
            lambda params: -0.5 * params["mu"] ** 2,
            {"mu": 0.0},
        )

    none = {name: column[:0] for name, column in ROWS.items()}
    known = fingerprint(gamma(2.0), none)
    assert find_difference(known, gamma(2.0), none) is None
    assert "log-likelihood" in find_difference(known, gamma(2.1), none)
    before = {**known, "log_likelihood": [0.0, 0.0]}  # of files from before there were such rows
    assert find_difference(before, gamma(2.0), none) is None


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
def test_constants_count_as_far_as_the_rows_show_them(wrap):
    values = np.linspace(0.0, 1.0, 50)
    changed, unseen = values.copy(), values.copy()
    changed[7], unseen[40] = 3.0, 3.0
    known = fingerprint(looked_up(values, wrap), ROWS)
    assert find_difference(known, looked_up(values.copy(), wrap), ROWS) is None
    assert find_difference(known, looked_up(changed, wrap), ROWS) is not None
    assert find_difference(known, looked_up(unseen, wrap), ROWS) is None


def test_models_of_the_package():
    rows = {"x": np.ones((3, 2)), "y": np.array([0.0, 1.0, 1.0])}
    known = fingerprint(decoct.models.LogisticRegression(), rows)
    assert find_difference(known, decoct.models.LogisticRegression(), rows) is None
    wider = decoct.models.LogisticRegression(prior_scale=2.0)
    assert "log prior" in find_difference(known, wider, rows)


ELSEWHERE = """
import json, sys, numpy as np, decoct
from decoct.models.fingerprint import fingerprint
rows = {"x": np.linspace(0.0, 1.0, 12).reshape(6, 2), "y": np.arange(6) % 2}
print(json.dumps(fingerprint(decoct.models.LogisticRegression(), rows)))
"""


def test_another_process_comes_to_the_same():
    said = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, check=True).stdout
    rows = {"x": np.linspace(0.0, 1.0, 12).reshape(6, 2), "y": np.arange(6) % 2}
    assert find_difference(json.loads(said), decoct.models.LogisticRegression(), rows) is None
