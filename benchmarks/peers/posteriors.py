"""The posteriors of the comparison, each given once: latent sites and the likelihood of a row.

`Problem` makes of these a NumPyro model, with subsampling if asked, decoct's model of it
(`decoct.from_numpyro`), and JAX functions of the flat unconstrained parameters for everybody else.
JAX must be in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from formulaic import model_matrix
from numpyro.infer import init_to_value
from scipy.optimize import minimize

import decoct
from benchmarks import data
from decoct.data import encoded
from decoct.demo.flights import FORMULA, load_flights
from decoct.models.parameters import ParameterSpace
from decoct.passes.potentials import Potentials
from decoct.stats.divergences import Gaussian
from examples.hierarchical import election88, flights
from examples.hierarchical.common import columns_of

BLOCK = 4096
"""Rows evaluated at once: their intermediate values stay in the caches."""

Rows = Mapping[str, Any]


@dataclass(frozen=True)
class Posterior:
    """A table, latent sites, and the distribution of y_n given them.

    Attributes
    ----------
    load
        Returns the rows, column -> array; one column is "y". Its argument is the most rows wanted.
    latents
        Samples the latent sites; returns what the likelihood needs of them.
    likelihood
        Returns the distribution of y, of what `latents` returned and the rows.
    is_logistic
        Whether y is Bernoulli with a logit that is linear in the likelihood parameters.
    """

    load: Callable[[int | None], Rows]
    latents: Callable[[], Any]
    likelihood: Callable[[Any, Rows], dist.Distribution]
    is_logistic: bool = False


class Problem:
    """A posterior, ready for every method.

    Attributes
    ----------
    rows
        Column -> array of N values, NumPy.
    bridge
        decoct's model.
    dim, n_rows
        d and N.
    """

    def __init__(self, name: str, most_rows: int | None = None) -> None:
        self.name, self.posterior = name, POSTERIORS[name]
        self.rows = dict(self.posterior.load(most_rows))
        self.n_rows = len(self.rows["y"])
        self.bridge = decoct.from_numpyro(self.numpyro_model(), self.rows)
        self.space = ParameterSpace.of(self.bridge.start)
        self.dim = self.space.dim
        blocks = -(-self.n_rows // BLOCK)
        places = np.minimum(np.arange(blocks * BLOCK), self.n_rows - 1)
        mask = np.arange(blocks * BLOCK) < self.n_rows
        split = lambda v: jnp.asarray(v[places].reshape(blocks, BLOCK, *v.shape[1:]))  # noqa: E731
        self._blocks = {k: split(v) for k, v in self.rows.items()}
        self._mask = jnp.asarray(mask.reshape(blocks, BLOCK))
        self.log_density = self._make_log_density()

    def numpyro_model(self, batch: int | None = None) -> Callable[..., None]:
        """Return the NumPyro model of the rows given as keywords; of ``batch`` of them a time."""
        latents, likelihood = self.posterior.latents, self.posterior.likelihood

        def model(**rows):
            found = latents()
            with numpyro.plate("data", len(rows["y"]), subsample_size=batch) as at:
                taken = rows if batch is None else {k: jnp.asarray(v)[at] for k, v in rows.items()}
                numpyro.sample("y", likelihood(found, taken), obs=taken["y"])

        return model

    def log_prior(self, z: Any) -> Any:
        """Return log π₀ of flat unconstrained parameters; pure JAX."""
        return self.bridge.log_prior(self.space.unflatten(z))

    def row_log_likelihoods(self, z: Any, rows: Rows) -> Any:
        """Return f_n(z) of some rows; pure JAX."""
        return self.bridge.potentials(self.space.unflatten(z), rows)

    def _make_log_density(self) -> Callable[[Any], Any]:
        """Return log π up to a constant, block by block, its gradient in the same sweep."""

        def of_block(z, block, mask):
            return jnp.where(mask, self.row_log_likelihoods(z, block), 0.0).sum()

        def swept(function, z):
            over = lambda args: function(z, *args)  # noqa: E731
            parts = jax.lax.map(over, (self._blocks, self._mask))
            return jax.tree.map(lambda part: part.sum(axis=0), parts)

        @jax.custom_vjp
        def log_likelihood(z):
            return swept(of_block, z)

        log_likelihood.defvjp(
            lambda z: swept(jax.value_and_grad(of_block), z), lambda grad, g: (g * grad,)
        )
        return lambda z: self.log_prior(z) + log_likelihood(z)

    @cached_property
    def value_and_grad(self) -> Callable[[Any], Any]:
        return jax.jit(jax.value_and_grad(self.log_density))

    @cached_property
    def potentials(self) -> Potentials:
        """The rows as decoct passes over them, for Hessians."""
        return Potentials(self.bridge, encoded(self.bridge.rows, self.bridge))

    @property
    def width(self) -> int:
        """Likelihood parameters that a row depends on: what a Hessian of it counts."""
        return self.potentials.expansion_cost(1, smoothed=False) - 1

    @cached_property
    def start(self) -> np.ndarray:
        """Where optimisers and samplers begin: near the origin, as NumPyro's samplers do."""
        return self.space.flatten(self.bridge.start)

    def find_mode(self) -> tuple[Gaussian, int]:
        """Return the Laplace approximation and the evaluations of rows that it took.

        L-BFGS and one Hessian, which counts as one evaluation and one more for every likelihood
        parameter that the row depends on.

        Raises
        ------
        ValueError
            The search did not end, or the Hessian there is not negative definite.
        """
        objective = lambda z: jax.tree.map(lambda v: -np.asarray(v), self.value_and_grad(z))  # noqa: E731
        options = {"maxiter": 5000, "maxfun": 5000, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-6}
        found = minimize(objective, self.start, jac=True, method="L-BFGS-B", options=options)
        hessian = self.potentials.curvature(found.x).hessian + np.asarray(
            jax.hessian(self.log_prior)(jnp.asarray(found.x))
        )
        bends = np.linalg.eigvalsh(hessian)
        if bends.max() >= 0.0:
            raise ValueError(
                f"There is no mode where L-BFGS ended: the largest eigenvalue of the Hessian is "
                f"{bends.max():.2g}."
            )
        cov = np.linalg.inv(-hessian)
        step = cov @ np.asarray(self.value_and_grad(found.x)[1])
        evaluations = (found.nfev + 2 + self.width) * self.n_rows
        return Gaussian(found.x + step, 0.5 * (cov + cov.T)), evaluations

    def named(self, z: np.ndarray) -> dict[str, np.ndarray]:
        """Return one flat vector as latent sites on their natural scale."""
        constrained = self.bridge.constrain(self.space.unflatten(jnp.asarray(z)))
        return {name: np.asarray(constrained[name]) for name in self.bridge.start}

    def flat(self, samples: Mapping[str, Any]) -> np.ndarray:
        """Return NumPyro's draws (S, ...) as flat unconstrained parameters (S, d)."""
        return self.bridge.unconstrain({k: np.asarray(v)[None] for k, v in samples.items()})[0]

    def init_at(self, z: np.ndarray) -> Callable[..., Any]:
        """Return NumPyro's strategy to start at a point."""
        return init_to_value(values=self.named(z))


def some(rows: Rows, most: int | None) -> Rows:
    """Return at most so many rows, chosen at random."""
    n = len(rows["y"])
    if most is None or most >= n:
        return rows
    chosen = np.sort(np.random.default_rng(0).permutation(n)[:most])
    return {k: v[chosen] for k, v in rows.items()}


def standardised(x: np.ndarray) -> np.ndarray:
    """Return columns with mean 0 and variance 1, and a constant."""
    return np.column_stack([(x - x.mean(axis=0)) / x.std(axis=0), np.ones(len(x))])


def normal_coefficients(size: int, scale: float) -> Any:
    """Sample β ~ N(0, scale²)."""
    return numpyro.sample("beta", dist.Normal(0.0, scale).expand([size]).to_event(1))


def bernoulli(beta: Any, rows: Rows) -> dist.Distribution:
    """Return logit P(y = 1) = xᵀβ."""
    return dist.Bernoulli(logits=rows["x"] @ beta)


def load_diamonds(most: int | None) -> Rows:
    table = columns_of("diamonds_posteriordb")
    x = table["X"][:, 1:]
    return some({"x": x - x.mean(axis=0), "y": table["Y"]}, most)


def diamonds_latents() -> Any:
    intercept = numpyro.sample("intercept", dist.StudentT(3.0, 8.0, 10.0))
    beta = normal_coefficients(24, 1.0)
    half = dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 10.0))
    return intercept, beta, numpyro.sample("sigma", half)


def normal_likelihood(found: Any, rows: Rows) -> dist.Distribution:
    intercept, beta, sigma = found
    return dist.Normal(intercept + rows["x"] @ beta, sigma)


def load_wells(most: int | None) -> Rows:
    table = columns_of("wells")
    centred = lambda v: v - v.mean()  # noqa: E731
    dist100, arsenic = centred(table["dist"] / 100.0), centred(table["arsenic"])
    columns = [dist100, arsenic, dist100 * arsenic, table["assoc"], table["educ"] / 4.0]
    x = np.column_stack([*columns, np.ones(len(dist100))])
    return some({"x": x, "y": table["switched"].astype(np.int64)}, most)


FLIGHTS, GROUPED_FLIGHTS = 150_000, 120_000
"""Most rows of the two large tables."""


def load_new_york(most: int | None) -> Rows:
    """Columns are made orthonormal, times √N, as is recommended for samplers on all rows."""
    table = load_flights(min(FLIGHTS, most or FLIGHTS))
    x = np.asarray(model_matrix(FORMULA.split("~")[1], table), dtype=np.float64)
    q = np.linalg.qr(x)[0]
    return {"x": q * np.sign(q[0]) * np.sqrt(len(q)), "y": table["late"].to_numpy()}


def load_bike_trips(most: int | None) -> Rows:
    return some(data.paper_set("biketrips_large"), most)


def poisson(beta: Any, rows: Rows) -> dist.Distribution:
    return dist.Poisson(jnp.exp(rows["x"] @ beta))


def load_housing(most: int | None) -> Rows:
    table = columns_of("california_housing")
    y = np.log(table["y"])
    return some({"x": standardised(table["X"]), "y": (y - y.mean()) / y.std()}, most)


def robust_latents() -> Any:
    beta = normal_coefficients(9, 1.0)
    freedom = numpyro.sample("freedom", dist.Gamma(2.0, 0.1))
    return beta, freedom, numpyro.sample("sigma", dist.HalfNormal(1.0))


def student_t(found: Any, rows: Rows) -> dist.Distribution:
    beta, freedom, sigma = found
    return dist.StudentT(freedom, rows["x"] @ beta, sigma)


def load_higgs(most: int | None) -> Rows:
    table = columns_of("higgs_7500")
    return some({"x": standardised(table["X"]), "y": (table["y"] > 0).astype(np.int64)}, most)


def horseshoe_latents() -> Any:
    """β_j = τ λ_j u_j with half-Cauchy scales (Carvalho, Polson & Scott 2010), non-centred."""
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    local = numpyro.sample("local", dist.HalfCauchy(1.0).expand([28]).to_event(1))
    unit = numpyro.sample("unit", dist.Normal(0.0, 1.0).expand([28]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 2.5))
    return jnp.concatenate([tau * local * unit, intercept[None]])


def effects_of(groups: Mapping[str, int]) -> dict[str, Any]:
    """Sample effects τ u of sets of groups, τ ~ HalfNormal(1)."""
    effects = {}
    for name, count in groups.items():
        tau = numpyro.sample(f"tau_{name}", dist.HalfNormal(1.0))
        with numpyro.plate(name, count):
            effects[name] = tau * numpyro.sample(f"unit_{name}", dist.Normal(0.0, 1.0))
    return effects


def multilevel(found: Any, rows: Rows) -> dist.Distribution:
    """Return logit P(y = 1) = xᵀβ + Σ effects."""
    beta, effects = found
    return dist.Bernoulli(logits=rows["x"] @ beta + sum(e[rows[k]] for k, e in effects.items()))


AIRPORTS = {"origin": 229, "dest": 229}


def load_airports(most: int | None) -> Rows:
    table = flights.load(min(GROUPED_FLIGHTS, most or GROUPED_FLIGHTS))
    return {"y" if k == "late" else k: v for k, v in table.items() if k != "airports"}


POSTERIORS = {
    "diamonds": Posterior(load_diamonds, diamonds_latents, normal_likelihood),
    "wells": Posterior(load_wells, lambda: normal_coefficients(6, 10.0), bernoulli, True),
    "flights": Posterior(load_new_york, lambda: normal_coefficients(30, 2.5), bernoulli, True),
    "bike_trips": Posterior(load_bike_trips, lambda: normal_coefficients(9, 2.5), poisson),
    "housing": Posterior(load_housing, robust_latents, student_t),
    "horseshoe": Posterior(load_higgs, horseshoe_latents, bernoulli, True),
    "election88": Posterior(
        lambda most: some(election88.load(), most),
        lambda: (normal_coefficients(5, 2.0), effects_of(election88.GROUPS)),
        multilevel,
        True,
    ),
    "airports": Posterior(
        load_airports,
        lambda: (normal_coefficients(6, 2.5), effects_of(AIRPORTS)),
        multilevel,
        True,
    ),
}
