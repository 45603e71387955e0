"""A-level chemistry, pupils in schools in authorities: ``python -m examples.hierarchical.chem97``.

31,022 pupils n in 2,410 schools j in 131 local authorities l, y_n ∈ {0, 2, ..., 10} points
(Goldstein 2011, Chapter 4, on the same pupils):

    y_n ~ N(x_nᵀβ + τ_school s_j + τ_lea a_l, σ),    s_j, a_l ~ N(0, 1),

with x the intercept, GCSE score, sex and age. Given the s_j a row is a pupil, and every school has
a parameter (`pupils`): a site of 2,546 likelihood parameters. Integrated over s_j a row is a
*school*. With ν_n = y_n − x_nᵀβ − τ_lea a_l, summed over the n_j pupils of school j, and
v = σ² + n_j τ_school²,

    −2 log p(y_j) = (n_j − 1) log σ² + log v + (Σν² − (τ_school²/v)(Σν)²)/σ² + n_j log 2π.

ν is linear in (β, τ_lea a_l, −1), so that the sums of products of (x, y) per school are all the
data there are.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from examples.hierarchical.common import Example, columns_of, main

COVARIATES = 4


def population():
    """Sample what all pupils share."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 5.0).expand([COVARIATES]).to_event(1))
    tau_school = numpyro.sample("tau_school", dist.HalfNormal(2.0))
    tau_lea = numpyro.sample("tau_lea", dist.HalfNormal(2.0))
    return beta, tau_school, tau_lea, numpyro.sample("sigma", dist.HalfNormal(5.0))


def effects_of(name, tau, count):
    """Sample the effects of a set of groups."""
    with numpyro.plate(name, count):
        unit = numpyro.sample(f"unit_{name}", dist.Normal(0.0, 1.0))
        return numpyro.deterministic(f"effect_{name}", tau * unit)


def pupils(x, school, lea, y=None, *, n_schools, n_leas):
    """A row is a pupil."""
    beta, tau_school, tau_lea, sigma = population()
    of_school = effects_of("school", tau_school, n_schools)
    of_lea = effects_of("lea", tau_lea, n_leas)
    with numpyro.plate("data", x.shape[0]):
        mean = x @ beta + of_school[school] + of_lea[lea]
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)


def schools(count, sums, products, lea, *, n_leas):
    """A row is a school: its number of pupils, sums of (x, y), and sums of their products."""
    beta, tau_school, tau_lea, sigma = population()
    of_lea = effects_of("lea", tau_lea, n_leas)
    with numpyro.plate("data", count.shape[0]):
        shift = of_lea[lea]
        direction = jnp.concatenate([-beta, jnp.ones(1)])  # ν = direction·(x, y) − shift
        total = sums @ direction
        squares = (products @ direction) @ direction - 2.0 * shift * total + count * shift**2
        total = total - count * shift
        variance = sigma**2 + count * tau_school**2
        explained = (tau_school**2 / variance) * total**2
        log_det = 2.0 * (count - 1.0) * jnp.log(sigma) + jnp.log(variance)
        constant = count * jnp.log(2.0 * jnp.pi)
        numpyro.factor("y", -0.5 * (constant + log_det + (squares - explained) / sigma**2))


def load_pupils() -> dict[str, Any]:
    """Return the arguments of `pupils`; x is (1, gcse − mean, female, age in years)."""
    table = columns_of("chem97")
    gcse = table["gcse"].astype(np.float64)
    columns = (np.ones(len(gcse)), gcse - gcse.mean(), table["female"], table["age"] / 12.0)
    school, lea = table["school"].astype(np.int64), table["lea"].astype(np.int64)
    return {
        "x": np.column_stack(columns),
        "school": school,
        "lea": lea,
        "y": table["score"].astype(np.float64),
        "n_schools": int(school.max()) + 1,
        "n_leas": int(lea.max()) + 1,
    }


def load() -> dict[str, Any]:
    """Return the arguments of `schools`."""
    given = load_pupils()
    values = np.column_stack([given["x"], given["y"]])
    school, n = given["school"], given["n_schools"]
    sums, products = np.zeros((n, COVARIATES + 1)), np.zeros((n, COVARIATES + 1, COVARIATES + 1))
    np.add.at(sums, school, values)
    np.add.at(products, school, values[:, :, None] * values[:, None, :])
    lea = np.zeros(n, dtype=np.int64)
    lea[school] = given["lea"]
    count = np.bincount(school, minlength=n).astype(np.float64)
    return {
        "count": count,
        "sums": sums,
        "products": products,
        "lea": lea,
        "n_leas": given["n_leas"],
    }


EXAMPLE = Example(
    "chem97",
    schools,
    load,
    population=("beta", "tau_school", "tau_lea", "sigma"),
    groups=("effect_lea",),
    size=200,
)

if __name__ == "__main__":
    main(EXAMPLE, __doc__)
