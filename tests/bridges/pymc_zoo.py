"""PyMC models as people write them."""

import numpy as np

from tests.bridges.pymc_import import pm


def logistic(x, y):
    with pm.Model() as model:
        covariates = pm.Data("x", x, dims=("row", "feature"))
        response = pm.Data("y", y, dims="row")
        beta = pm.Normal("beta", 0.0, 2.0, dims="feature")
        pm.Deterministic("odds", pm.math.exp(beta), dims="feature")
        pm.Bernoulli("late", logit_p=covariates @ beta, observed=response, dims="row")
    return model


def logistic_rows(n=400, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    y = rng.random(n) < 1 / (1 + np.exp(-x @ np.array([1.0, -0.5, 0.0])))
    return x, y.astype(np.int64)


def varying_intercepts(county, floor, y, n_counties):
    """The radon model: homes in counties, non-centred."""
    counties = [f"county {i}" for i in range(n_counties)]
    with pm.Model(coords={"county": counties, "home": np.arange(len(y)) + 1000}) as model:
        where = pm.Data("where", county, dims="home")
        ground = pm.Data("floor", floor, dims="home")
        response = pm.Data("log_radon", y, dims="home")
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfNormal("tau", 1.0)
        slope = pm.Normal("slope", 0.0, 2.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        offset = pm.Normal("offset", 0.0, 1.0, dims="county")
        alpha = pm.Deterministic("alpha", mu + tau * offset, dims="county")
        mean = pm.Deterministic("mean", alpha[where] + slope * ground, dims="home")
        pm.Normal("radon", mean, sigma, observed=response, dims="home")
    return model


def homes(n=300, n_counties=8, seed=1):
    rng = np.random.default_rng(seed)
    county = rng.integers(n_counties, size=n)
    floor = rng.integers(2, size=n)
    y = rng.normal(size=n_counties)[county] - 0.6 * floor + rng.normal(size=n)
    return county, floor, y, n_counties
