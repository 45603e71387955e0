"""Radon in 12,573 homes of 386 counties: ``python -m examples.hierarchical.radon``.

The model of Gelman & Hill (2006, Chapters 12-13): log radon of home n in county j,

    y_n ~ N(α_j + β_j floor_n + δ unknown_n, σ),
    α_j = μ_α + γ u_j + τ_α a_j,    β_j = μ_β + τ_β b_j,    a_j, b_j ~ N(0, 1),

with u_j the log uranium of the county, floor 0 in the basement and 1 above it. Where the floor of
a home is not recorded (284 homes), it has a mean of its own, δ above that of basements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist

from examples.hierarchical.common import Example, columns_of, main

NOT_RECORDED = 9
"""The code of a missing floor."""


def model(county, floor, unknown, y=None, *, uranium):
    mu_alpha = numpyro.sample("mu_alpha", dist.Normal(0.0, 2.0))
    mu_beta = numpyro.sample("mu_beta", dist.Normal(0.0, 2.0))
    gamma = numpyro.sample("gamma", dist.Normal(0.0, 2.0))
    delta = numpyro.sample("delta", dist.Normal(0.0, 2.0))
    tau_alpha = numpyro.sample("tau_alpha", dist.HalfNormal(1.0))
    tau_beta = numpyro.sample("tau_beta", dist.HalfNormal(1.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("county", len(uranium)):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        alpha = numpyro.deterministic("alpha", mu_alpha + gamma * uranium + tau_alpha * a)
        beta = numpyro.deterministic("beta", mu_beta + tau_beta * b)
    with numpyro.plate("data", len(floor)):
        mean = alpha[county] + beta[county] * floor + delta * unknown
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def load() -> dict[str, Any]:
    """Return the model's arguments."""
    table = columns_of("radon_all")
    county = table["county_idx"].astype(np.int64) - 1
    code = table["floor_measure"]
    homes = np.bincount(county)
    return {
        "county": county,
        "floor": np.where(code == NOT_RECORDED, 0, np.minimum(code, 1)).astype(np.float64),
        "unknown": (code == NOT_RECORDED).astype(np.float64),
        "y": table["log_radon"],
        # a few counties have more than one measured value: their mean
        "uranium": np.bincount(county, table["log_uppm"]) / homes,
    }


EXAMPLE = Example(
    "radon",
    model,
    load,
    population=("mu_alpha", "mu_beta", "gamma", "delta", "tau_alpha", "tau_beta", "sigma"),
    groups=("alpha", "beta"),
    size=50,
)

if __name__ == "__main__":
    main(EXAMPLE, __doc__)
