"""Models through JSON, and what importing them does."""

import json
import subprocess
import sys

import equinox as eqx
import numpy as np
import pytest

import decoct
from decoct.constructions import Uniform
from decoct.data.arrays import ArrayRows
from decoct.errors import CoresetFileError
from decoct.loading import KINDS, model_from_dict
from decoct.models import (
    GaussianMean,
    LinearRegression,
    LogisticRegression,
    Model,
    PoissonRegression,
    StudentTRegression,
)
from decoct.models.formula.model import from_formula

THIRDS = np.array([1 / 3, 0.1, 1e-150])
SIGMA = np.array([[2.0, 1 / 3], [1 / 3, 0.7]])

MODELS = [
    GaussianMean(SIGMA),
    GaussianMean(SIGMA, prior_mean=[0.1, 1 / 7], prior_covariance=SIGMA / 9),
    GaussianMean(0.3),
    LinearRegression(),
    LinearRegression(noise_scale=1 / 3, prior_scale=THIRDS, intercept=True),
    LogisticRegression(),
    LogisticRegression(prior_scale=2.5, intercept=True),
    PoissonRegression(),
    PoissonRegression(link="log", prior_scale=THIRDS),
    StudentTRegression(),
    StudentTRegression(nu=10 / 3, scale="log-linear", prior_scale=0.1, intercept=True),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_round_trip_through_json_is_exact(model):
    text = json.dumps(model.to_dict())
    again = model_from_dict(json.loads(text))
    assert type(again) is type(model)
    assert bool(eqx.tree_equal(again, model))
    assert json.dumps(again.to_dict()) == text


def test_a_formula_comes_back_too():
    rows = ArrayRows({"late": np.array([0, 1, 1, 0]), "temp": np.array([1.0, 2.0, 4.0, 3.0])})
    model = from_formula("late ~ temp", rows, "bernoulli", prior_scale=[1 / 3, 0.1])
    again = model_from_dict(json.loads(json.dumps(model.to_dict())))
    assert type(again) is type(model)
    assert bool(eqx.tree_equal(again, model))


def test_every_hyper_parameter_is_written():
    model = StudentTRegression(nu=4.0, scale="log-linear", prior_scale=[1.0, 2.0], intercept=True)
    assert model.to_dict() == {
        "kind": "student_t_regression",
        "prior_scale": [1.0, 2.0],
        "intercept": True,
        "nu": 4.0,
        "scale": "log-linear",
    }
    assert PoissonRegression(link="log").to_dict()["link"] == "log"
    assert LinearRegression().to_dict()["noise_scale"] is None
    assert {model.to_dict()["kind"] for model in MODELS} <= set(KINDS)


def test_unknown_kinds_are_refused():
    with pytest.raises(CoresetFileError, match="unknown kind 'probit'"):
        model_from_dict({"kind": "probit"})
    with pytest.raises(CoresetFileError, match="unknown kind None"):
        model_from_dict({})
    with pytest.raises(CoresetFileError, match="unknown kind"):
        model_from_dict({"kind": ["logistic_regression"]})


def test_a_custom_model_cannot_come_from_a_file(tmp_path):
    model = Model(lambda p, r: -((r["x"] - p) ** 2), lambda p: 0.0, np.zeros(()))
    rows = {"x": np.arange(9.0)}
    decoct.build(model, rows, size=3, method=Uniform()).save(tmp_path / "c")
    with pytest.raises(CoresetFileError, match=r"model of your own functions \(Model\)"):
        decoct.load(tmp_path / "c")


@pytest.mark.parametrize(
    "change", [{"prior_scale": -1.0}, {"prior_scale": "x"}, {"link": "log"}, {"intercept": {}}]
)
def test_damaged_descriptions_are_refused(change, tmp_path, monkeypatch):
    damaged = {**LogisticRegression().to_dict(), **change}
    monkeypatch.setattr(LogisticRegression, "to_dict", lambda self: damaged)
    rows = {"x": np.arange(9.0), "y": np.arange(9) % 2}
    coreset = decoct.build(LogisticRegression(), rows, size=3, method=Uniform())
    coreset.save(tmp_path / "c")
    with pytest.raises(CoresetFileError, match="c is a damaged coreset file"):
        decoct.load(tmp_path / "c")


def test_importing_allocates_nothing_on_a_device():
    # an empty stand-in for decoct/__init__.py, which would import everything else too
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.find_spec('decoct')\n"
        "spec.loader = None\n"
        "sys.modules['decoct'] = importlib.util.module_from_spec(spec)\n"
        "import decoct.models, decoct.models.logistic, jax\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
        "assert not jax.config.jax_enable_x64\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
