"""NumPyro models as people write them, with rows and constants to go with them."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist


def logistic(x, y=None):
    with numpyro.plate("features", x.shape[1]):
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.0))
    numpyro.deterministic("odds", jnp.exp(beta))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=y)


def logistic_rows(n=400, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    y = rng.random(n) < 1 / (1 + np.exp(-x @ np.array([1.0, -0.5, 0.0])))
    return {"x": x, "y": y.astype(np.int64)}


def varying_intercepts(county, floor, y=None, *, n_counties):
    """The radon model: homes in counties, non-centred."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("county", n_counties):
        offset = numpyro.sample("offset", dist.Normal(0.0, 1.0))
        alpha = numpyro.deterministic("alpha", mu + tau * offset)
    with numpyro.plate("data", floor.shape[0]):
        mean = numpyro.deterministic("mean", alpha[county] + slope * floor)
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def homes(n=300, n_counties=8, seed=1):
    rng = np.random.default_rng(seed)
    county = rng.integers(n_counties, size=n)
    floor = rng.integers(2, size=n)
    y = rng.normal(size=n_counties)[county] - 0.6 * floor + rng.normal(size=n)
    return {"county": county, "floor": floor, "y": y, "n_counties": n_counties}


def two_responses(x, counts=None, scores=None):
    """Negative-binomial counts, and three Student-t scores a row in a plate of their own."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    shape = numpyro.sample("shape", dist.Gamma(2.0, 1.0))
    freedom = numpyro.sample("freedom", dist.Gamma(2.0, 0.1))
    cut = numpyro.sample("cut", dist.Uniform(-1.0, 3.0))
    with numpyro.plate("score", 3, dim=-2):
        centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", x.shape[0], dim=-1):
        mean = jnp.exp(x @ beta)
        numpyro.sample("counts", dist.NegativeBinomial2(mean, shape), obs=counts)
        with numpyro.plate("score", 3, dim=-2):
            location = centre + cut * x[:, 0][None, :]
            target = None if scores is None else scores.T
            numpyro.sample("scores", dist.StudentT(freedom, location, 1.5), obs=target)


def two_responses_rows(n=200, seed=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    counts = rng.poisson(np.exp(0.3 * x[:, 0]))
    return {"x": x, "counts": counts, "scores": rng.normal(size=(n, 3)) + x[:, :1]}


ZOO = {
    "logistic": (logistic, logistic_rows),
    "hierarchical": (varying_intercepts, homes),
    "two observed sites": (two_responses, two_responses_rows),
}
