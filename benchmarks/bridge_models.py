"""Models of other frameworks that more than one benchmark runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def numpyro_logistic_model() -> Any:
    """Return y_n ~ Bernoulli(σ(x_nᵀβ)), β ~ N(0, I)."""
    import numpyro
    import numpyro.distributions as dist

    def model(x, y=None):
        with numpyro.plate("features", x.shape[1]):
            beta = numpyro.sample("beta", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)

    return model


def pymc_logistic_model(rows: Mapping[str, np.ndarray]) -> Any:
    """Return `numpyro_logistic_model` in PyMC, with its data."""
    import pymc as pm

    with pm.Model() as model:
        x, y = (pm.Data(name, rows[name]) for name in ("x", "y"))
        beta = pm.Normal("beta", 0.0, 1.0, shape=rows["x"].shape[1])
        pm.Bernoulli("late", logit_p=x @ beta, observed=y)
    return model


def numpyro_radon_model() -> Any:
    """Return y_n ~ N(α_j + b floor_n, s), α_j = μ + τ a_j, a_j ~ N(0, 1), for counties j."""
    import numpyro
    import numpyro.distributions as dist

    def model(county, floor, y=None, *, n_counties):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        with numpyro.plate("county", n_counties):
            offset = numpyro.sample("offset", dist.Normal(0.0, 1.0))
            alpha = numpyro.deterministic("alpha", mu + tau * offset)
        with numpyro.plate("data", len(floor)):
            numpyro.sample("y", dist.Normal(alpha[county] + slope * floor, sigma), obs=y)

    return model
