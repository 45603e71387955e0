"""A coreset's Gaussian site in PyMC and Bambi: a potential of the unconstrained values."""

import warnings

import jax
import numpy as np
import pandas as pd
import pytest

import decoct
from decoct.bridges.pymc import from_pymc
from decoct.constructions import IteratedHilbert
from tests.bridges.pymc_import import pm, quiet
from tests.bridges.pymc_zoo import homes, logistic, logistic_rows, varying_intercepts

pytestmark = quiet
SITE = IteratedHilbert(restart_above=np.inf)  # with a site, however far
FAST = {"mode": "FAST_COMPILE", "on_unused_input": "ignore", "point_fn": False}


def differences(coreset):
    """Return PyMC's log density with Jacobians minus decoct's, at some points."""
    weighted = coreset.to_pymc()
    assert {"coreset_weighting", "coreset_site"} <= {p.name for p in weighted.potentials}
    density = weighted.compile_fn(weighted.logp(), inputs=weighted.value_vars, **FAST)
    found = []
    for z in np.random.default_rng(1).normal(size=(4, coreset.dim)):
        with jax.enable_x64(True):
            params = coreset.density.space.unflatten(jax.numpy.asarray(z))
        given = [np.asarray(params[rv.name]) for rv in weighted.free_RVs]
        found.append(float(density(*given)) - float(coreset.log_density(z)))
    return np.array(found)


def of_counties():
    return from_pymc(varying_intercepts(*homes(300, n_counties=5)))


def of_bambi():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bmb = pytest.importorskip("bambi")
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"x": rng.normal(size=300), "county": rng.integers(4, size=300).astype(str)}
    )
    table["y"] = 1.0 + 0.5 * table.x + rng.normal(size=300)
    return decoct.from_bambi(bmb.Model("y ~ x + (1|county)", table))


@pytest.mark.filterwarnings("ignore:For backward compatibility, 'str' dtypes")
@pytest.mark.parametrize("of", [of_counties, of_bambi])
def test_the_exported_model_has_the_coresets_density(of):
    """A site alone, and one with five rows."""
    bridge = of()
    alone, with_rows = decoct.path(bridge, bridge.rows, [0, 5], method=SITE)
    assert alone.size == 0 < with_rows.size <= 5
    for coreset in (alone, with_rows):
        assert coreset.site is not None
        shift = differences(coreset)
        np.testing.assert_allclose(shift, shift[0], atol=1e-8)


def of_binary():
    return from_pymc(logistic(*logistic_rows(600)))


def test_pymc_samples_what_decoct_samples():
    """Means within four Monte Carlo errors of two runs of at least 800 effective draws."""
    bridge = of_binary()
    coreset = decoct.build(bridge, bridge.rows, size=5, progress=False, method=SITE)
    with coreset.to_pymc():
        drawn = pm.sample(
            draws=1000,
            tune=400,
            chains=2,
            cores=1,
            random_seed=0,
            progressbar=False,
            compute_convergence_checks=False,
        )
    theirs = drawn["posterior"]["beta"].to_numpy().reshape(-1, 3)
    ours = coreset.sample(draws=1000, chains=2, seed=1, warmup=300)["posterior"]["beta"]
    ours = ours.to_numpy().reshape(-1, 3)
    shift = (theirs.mean(0) - ours.mean(0)) / ours.std(0)
    assert np.abs(shift).max() < 4 * np.sqrt(2 / 800)
    np.testing.assert_allclose(theirs.std(0) / ours.std(0), 1.0, atol=0.15)
