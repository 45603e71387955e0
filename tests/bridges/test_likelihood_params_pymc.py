"""Likelihood parameters of PyMC and Bambi models; what they are is in test_likelihood_params."""

import warnings

import jax
import numpy as np
import pandas as pd
import pytest

import decoct
from decoct.bridges.pymc import from_pymc
from tests.bridges.phi import LEVEL, YES, G, H, J, K, N, X, Y, Z, at, by_hand, check, density
from tests.bridges.pymc_import import pm, quiet

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    bmb = pytest.importorskip("bambi")

pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")
pymc_site = pytest.importorskip("decoct.bridges.pymc_site")

INTERCEPTS = {"sigma": (), "slope": (), "u": (J,)}
pytestmark = [*quiet, pytest.mark.filterwarnings("ignore:For backward compatibility, 'str' dtypes")]
FAST = {"mode": "FAST_COMPILE", "on_unused_input": "ignore"}


def pymc_intercepts(centred=False):
    with pm.Model() as model:
        g, x, y = pm.Data("g", G), pm.Data("x", X), pm.Data("rows", Y)
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        slope, sigma = pm.Normal("slope"), pm.HalfNormal("sigma")
        if centred:
            u = pm.Normal("u", mu, tau, shape=J)
        else:
            u = pm.Deterministic("u", mu + tau * pm.Normal("z", shape=J))
        pm.Normal("y", u[g] + slope * x, sigma, observed=y)
    return model


def pymc_slopes():
    with pm.Model() as model:
        g, x, y = pm.Data("g", G), pm.Data("x", X), pm.Data("rows", Y)
        sd = pm.Exponential.dist(1.0, shape=2)
        chol, _, _ = pm.LKJCholeskyCov("L", n=2, eta=1.0, sd_dist=sd)
        u = pm.Normal("m", shape=2) + pt.dot(pm.Normal("z", shape=(J, 2)), chol.T)
        freedom = pm.Gamma("nu", 2.0, 0.1)
        pm.StudentT("y", nu=freedom, mu=u[g, 0] + u[g, 1] * x, sigma=1.0, observed=y)
    return model


def pymc_crossed():
    with pm.Model() as model:
        g, h, y = pm.Data("g", G), pm.Data("h", H), pm.Data("rows", YES)
        first = pm.HalfNormal("s") * pm.Normal("a", shape=J)
        second = pm.HalfNormal("t") * pm.Normal("b", shape=K)
        pm.Bernoulli("y", logit_p=pm.Normal("mu") + first[g] + second[h], observed=y)
    return model


def pymc_picked():
    with pm.Model() as model:
        g, y = pm.Data("g", G), pm.Data("rows", YES)
        effect = pm.HalfNormal("tau") * pm.Normal("z", shape=J)[g]
        pm.Bernoulli("y", logit_p=pm.Normal("mu") + effect, observed=y)
    return model


def pymc_picked_columns():
    with pm.Model() as model:
        g, x, y = pm.Data("g", G), pm.Data("x", X), pm.Data("rows", YES)
        tau, z = pm.HalfNormal("tau", shape=2), pm.Normal("z", shape=(J, 2))
        effect = tau[0] * z[g, 0] + tau[1] * x * z[g, 1]
        pm.Bernoulli("y", logit_p=pm.Normal("mu") + effect, observed=y)
    return model


def pymc_ordered():
    with pm.Model() as model:
        x, y = pm.Data("x", Z), pm.Data("rows", LEVEL)
        beta = pm.HalfNormal("tau") * pm.Normal("b", shape=3)
        ordered = pm.distributions.transforms.ordered
        cuts = pm.Normal("cuts", shape=3, transform=ordered, initval=[-1.0, 0.0, 1.0])
        pm.OrderedLogistic("y", eta=x @ beta, cutpoints=cuts, observed=y)
    return model


def pymc_plain():
    with pm.Model() as model:
        x, y = pm.Data("x", Z), pm.Data("rows", Y)
        a, b, sigma = pm.Normal("a"), pm.Normal("b", shape=3), pm.HalfNormal("sigma")
        pm.Normal("y", a + x @ b, sigma, observed=y)
    return model


PYMC_MODELS = {
    "non-centred": (pymc_intercepts, INTERCEPTS),
    "centred": (lambda: pymc_intercepts(centred=True), INTERCEPTS),
    "slopes": (pymc_slopes, {"f(L, m, z)": (J, 2), "nu": ()}),
    "crossed": (pymc_crossed, {"f(a, s)": (J,), "f(b, t)": (K,), "mu": ()}),
    "scaled after it is picked": (pymc_picked, {"f(tau, z)": (J,), "mu": ()}),
    "columns": (pymc_picked_columns, {"f(tau, z)": (J,), "f(tau, z) 2": (J,), "mu": ()}),
    "ordered": (pymc_ordered, {"cuts": (3,), "f(b, tau)": (3, 1)}),
    "plain": (pymc_plain, {"a": (), "b": (3,), "sigma": ()}),
}


@pytest.mark.parametrize("name", PYMC_MODELS)
def test_pymc(name):
    make, expected = PYMC_MODELS[name]
    bridge = from_pymc(make())
    check(bridge, expected)
    assert bridge.likelihood_params.is_identity == (name == "plain")


def test_pymc_group_numbers_out_of_range_are_refused():
    model = pymc_intercepts()
    model["g"].set_value(np.where(np.arange(N) == 23, J, G).astype(np.int32))
    bridge = from_pymc(model)
    with pytest.raises(decoct.RowsError, match="outside an array in row 23, "):
        bridge.check(bridge.rows)


def table():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": X, "w": rng.normal(size=N), "y": Y, "yes": YES})
    return frame.assign(g=G.astype(str), h=H.astype(str))


BAMBI_MODELS = {
    "y ~ x + w": ("gaussian", {"Intercept_centered": (), "sigma": (), "w": (), "x": ()}),
    "y ~ x + (1|g)": (
        "gaussian",
        {"1|g": (J,), "Intercept_centered": (), "sigma": (), "x": ()},
    ),
    "yes ~ x + (x|g) + (1|h)": (
        "bernoulli",
        {"1|g": (J,), "1|h": (K,), "Intercept_centered": (), "x": (), "x|g": (J,)},
    ),
}


@pytest.mark.parametrize("formula", BAMBI_MODELS)
def test_bambi(formula):
    family, expected = BAMBI_MODELS[formula]
    bridge = decoct.from_bambi(bmb.Model(formula, table(), family=family))
    check(bridge, expected)
    assert bridge.likelihood_params.is_identity == ("|" not in formula)


def pymc_differences(coreset, mode):
    """Return PyMC's log density minus decoct's, and the largest difference of gradients."""
    weighted = coreset.to_pymc()
    z, logp = weighted.value_vars, weighted.logp()
    gradient = pt.concatenate([g.ravel() for g in pytensor.grad(logp, z)])
    compiled = pytensor.function(z, [logp, gradient], **{**FAST, "mode": mode})
    names = [rv.name for rv in weighted.free_RVs]
    shift, worst = [], 0.0
    for seed in range(3):
        params = {name: np.asarray(v, np.float64) for name, v in at(coreset.model, seed).items()}
        value, slopes = compiled(*(params[name] for name in names))
        shift.append(float(value) - density(coreset, params))
        step = 1e-6
        for i, name in enumerate(names[:2]):
            moved = {**params, name: params[name] + step}
            back = {**params, name: params[name] - step}
            numeric = (density(coreset, moved) - density(coreset, back)) / (2 * step)
            begin = sum(params[k].size for k in names[:i])
            ours = slopes[begin : begin + params[name].size].sum()
            worst = max(worst, abs(ours - numeric) / (1.0 + abs(numeric)))
    return np.array(shift), float(worst)


@pytest.mark.parametrize("size", [0, 5])
@pytest.mark.parametrize("name", ["non-centred", "centred", "crossed", "ordered", "plain"])
def test_pymc_takes_the_site(name, size):
    coreset = by_hand(from_pymc(PYMC_MODELS[name][0]()), size)
    assert not _operations(coreset.to_pymc())
    shift, worst = pymc_differences(coreset, "FAST_COMPILE")
    np.testing.assert_allclose(shift, shift[0], atol=1e-9)
    assert worst < 1e-6


@pytest.mark.filterwarnings("ignore:Numba will use object mode")
@pytest.mark.filterwarnings("ignore:Skipping")
@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA", "JAX"])
def test_pymc_takes_a_site_that_is_no_value_of_its_graph(monkeypatch, mode):
    """decoct's JAX function is then an operation with a gradient, on any backend."""
    monkeypatch.setattr(pymc_site, "_find", lambda *given: None)
    coreset = by_hand(from_pymc(pymc_intercepts()), 5)
    with jax.enable_x64(True):
        shift, worst = pymc_differences(coreset, mode)
    np.testing.assert_allclose(shift, shift[0], atol=1e-9)
    assert worst < 1e-6
    (op,) = _operations(coreset.to_pymc())
    z = pt.dvector("z")
    total = op(z)[1].sum()
    with pytest.raises(NotImplementedError, match="no second derivative"):
        pytensor.grad(total, z)


def _operations(model):
    nodes = {v.owner for v in pytensor.graph.traversal.ancestors([model.logp()]) if v.owner}
    return [node.op for node in nodes if isinstance(node.op, pymc_site.SiteOp)]


def test_bambi_takes_the_site():
    coreset = by_hand(decoct.from_bambi(bmb.Model("y ~ x + (1|g)", table())), 5)
    shift, worst = pymc_differences(coreset, "FAST_COMPILE")
    np.testing.assert_allclose(shift, shift[0], atol=1e-9)
    assert worst < 1e-6
