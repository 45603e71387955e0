"""What a pass over the data costs through a bridge, beside the same model written by hand.

Three likelihoods, each three times: with JAX by hand, in NumPyro and in PyMC.

    logistic    y_n ~ Bernoulli(σ(x_nᵀβ)),  10 coefficients; by hand `LogisticRegression`
    radon       y_n ~ N(α_j + b floor_n, s),  α_j = μ + τ a_j,  a_j ~ N(0, 1),  85 counties j
    Poisson     y_n ~ Poisson(exp(x_nᵀβ)),  10 coefficients
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array

import decoct
from benchmarks import data
from benchmarks.bridge_models import (
    numpyro_logistic_model,
    numpyro_radon_model,
    pymc_logistic_model,
)
from decoct.passes.potentials import Potentials

COUNTIES = 85

Rows = Mapping[str, Any]


class Twins(NamedTuple):
    """One likelihood on one table: by hand, in NumPyro, in PyMC."""

    rows: Rows
    models: dict[str, Any]


def logistic(n: int) -> Twins:
    """Return logistic regressions with 10 coefficients."""
    rows = data.logistic(n)
    return _twins(
        rows,
        decoct.models.LogisticRegression(),
        numpyro_logistic_model(),
        pymc_logistic_model(rows),
    )


def poisson(n: int) -> Twins:
    """Return Poisson regressions with 10 coefficients and a logarithmic link."""
    import numpyro
    import numpyro.distributions as dist
    import pymc as pm

    x = data.logistic(n)["x"]
    rng = np.random.default_rng(1)
    rows = {"x": x, "y": rng.poisson(np.exp(x @ (0.3 * rng.normal(size=x.shape[1]))))}

    def log_likelihood(params: Any, rows: Mapping[str, Array]) -> Array:
        linear = rows["x"] @ params["beta"]
        return rows["y"] * linear - jnp.exp(linear) - gammaln(rows["y"] + 1.0)

    hand = decoct.Model(
        log_likelihood, lambda p: -0.5 * (p["beta"] ** 2).sum(), {"beta": np.zeros(x.shape[1])}
    )

    def model(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Poisson(jnp.exp(x @ beta)), obs=y)

    with pm.Model() as other:
        covariates, y = (pm.Data(name, rows[name]) for name in ("x", "y"))
        beta = pm.Normal("beta", 0.0, 1.0, shape=x.shape[1])
        pm.Poisson("counts", pm.math.exp(covariates @ beta), observed=y)
    return _twins(rows, hand, model, other)


def radon(n: int) -> Twins:
    """Return varying intercepts, non-centred, with normal noise."""
    import pymc as pm

    rng = np.random.default_rng(2)
    county, floor = rng.integers(COUNTIES, size=n), rng.integers(2, size=n).astype(float)
    mean = 1.3 + 0.3 * rng.normal(size=COUNTIES)[county] - 0.7 * floor
    rows = {"county": county, "floor": floor, "y": mean + 0.7 * rng.normal(size=n)}

    def log_likelihood(params: Any, rows: Mapping[str, Array]) -> Array:
        alpha = params["mu"] + jnp.exp(params["log_tau"]) * params["offset"]
        mean = alpha[rows["county"]] + params["slope"] * rows["floor"]
        scaled = (rows["y"] - mean) * jnp.exp(-params["log_sigma"])
        return -0.5 * scaled**2 - params["log_sigma"] - 0.5 * jnp.log(2.0 * jnp.pi)

    def log_prior(params: Any) -> Array:
        tau, sigma = jnp.exp(params["log_tau"]), jnp.exp(params["log_sigma"])
        normal = (params["mu"] / 5.0) ** 2 + (params["slope"] / 2.0) ** 2 + tau**2
        squares = normal + (sigma / 2.0) ** 2 + (params["offset"] ** 2).sum()
        return -0.5 * squares + params["log_tau"] + params["log_sigma"]

    scalars = dict.fromkeys(("mu", "log_tau", "slope", "log_sigma"), 0.0)
    hand = decoct.Model(log_likelihood, log_prior, {**scalars, "offset": np.zeros(COUNTIES)})

    with pm.Model() as other:
        where, floor, y = (pm.Data(name, rows[name]) for name in ("county", "floor", "y"))
        mu, slope = pm.Normal("mu", 0.0, 5.0), pm.Normal("slope", 0.0, 2.0)
        tau, sigma = pm.HalfNormal("tau", 1.0), pm.HalfNormal("sigma", 2.0)
        alpha = mu + tau * pm.Normal("offset", 0.0, 1.0, shape=COUNTIES)
        pm.Normal("radon", alpha[where] + slope * floor, sigma, observed=y)
    return _twins(rows, hand, numpyro_radon_model(), other, n_counties=COUNTIES)


LIKELIHOODS: dict[str, Callable[[int], Twins]] = {
    "logistic": logistic,
    "radon, 85 counties": radon,
    "Poisson": poisson,
}


def overhead(n: int = 131_072, repeats: int = 6) -> list[dict[str, Any]]:
    """Return the time of passes through the bridges over those of the models written by hand."""
    return [line for name in LIKELIHOODS for line in _lines(name, n, repeats)]


def _lines(likelihood: str, n: int, repeats: int) -> list[dict[str, Any]]:
    twins = LIKELIHOODS[likelihood](n)
    rows = decoct.rows(twins.rows)
    potentials = [Potentials(m, decoct.data.encoded(rows, m)) for m in twins.models.values()]
    z = 0.1 * np.random.default_rng(0).normal(size=(500, potentials[0].dim))
    passes: dict[str, Callable[[Potentials], Any]] = {
        "totals at 500 draws": lambda p: p.totals(z),
        "totals, norms and pool": lambda p: p.one_pass(z, 2000, jax.random.key(0)),
        "gradient and Hessian": lambda p: p.curvature(z[0]),
    }
    results = []
    for name, one_pass in passes.items():
        times = np.array([[_seconds(one_pass, p) for p in potentials] for _ in range(repeats)])
        hand, *bridges = times[1:].min(axis=0)
        for framework, bridge in zip(list(twins.models)[1:], bridges, strict=True):
            seconds = {"hand_written": hand, "bridge": bridge, "ratio": bridge / hand}
            line = {"framework": framework, "likelihood": likelihood, "pass": name}
            results.append({**line, **seconds})
    return results


def _twins(rows: Rows, hand: Any, numpyro_model: Any, pymc_model: Any, **constants: Any) -> Twins:
    from decoct.bridges.numpyro import from_numpyro
    from decoct.bridges.pymc import from_pymc

    bridges = {
        "NumPyro": from_numpyro(numpyro_model, {**rows, **constants}),
        "PyMC": from_pymc(pymc_model),
    }
    return Twins(rows, {"": hand, **bridges})


def _seconds(one_pass: Callable[[Potentials], Any], potentials: Potentials) -> float:
    """Return the processor's time, which other work on the machine does not lengthen as much."""
    started = time.process_time()
    one_pass(potentials)
    return time.process_time() - started
