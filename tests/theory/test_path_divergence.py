"""Lemma 3's estimators against exact Gaussian divergences, and quadrature."""

from dataclasses import dataclass

import jax
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import log_expit, logsumexp
from scipy.stats import beta, kstest, uniform

import decoct
from decoct.errors import CoresetFileError, RequestError
from decoct.models import GaussianMean, LinearRegression, LogisticRegression
from decoct.samplers import Draws, Exact, Laplace
from decoct.samplers.base import log_densities
from decoct.stats import kl_gaussian
from decoct.theory.hilbert_constant import hilbert_bound, hilbert_bound_from_draws
from decoct.theory.information_geometry import hilbert_objective
from decoct.theory.path_divergence import (
    FACTOR,
    coreset_path_divergences,
    paired_error,
    path_divergence,
    path_divergences,
    path_times,
)
from tests.theory.test_information_geometry import exact_metric

N, D = 30, 3
KINDS = ("reverse", "forward", "symmetrised")
TIMES = {"reverse": beta(1, 2), "forward": beta(2, 1), "symmetrised": uniform()}


def problem(kind):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, D)) + 0.5
    if kind == "mean":
        return GaussianMean(np.diag([1.0, 2.0, 0.5])), {"x": x}
    y = x @ [1.0, -2.0, 0.3] + rng.normal(size=N)
    return LinearRegression(noise_scale=1.0), {"x": x, "y": y}


def coreset_weights():
    rng = np.random.default_rng(1)
    weights = np.zeros(N)
    weights[rng.choice(N, 8, replace=False)] = rng.gamma(4.0, 1.0, 8)
    return weights


def divergences(model, rows, weights):
    coreset, full = decoct.laplace(model, rows, weights), decoct.laplace(model, rows)
    reverse, forward = kl_gaussian(coreset, full), kl_gaussian(full, coreset)
    return {"reverse": reverse, "forward": forward, "symmetrised": reverse + forward}


BOTH = pytest.mark.parametrize("name", ["mean", "regression"])


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_the_factors_are_one_half_and_one(name, kind):
    """By quadrature over exact metrics; Eq. 47 and 48 print a factor of 2."""
    model, rows = problem(name)
    weights = coreset_weights()

    def integrand(t):
        at = exact_metric(model, rows, (1.0 - t) * weights + t)
        return TIMES[kind].pdf(t) * hilbert_objective(at, weights)

    average = quad(integrand, 0.0, 1.0, epsrel=1e-10)[0]
    assert FACTOR[kind] * average == pytest.approx(
        divergences(model, rows, weights)[kind], rel=1e-8
    )


@pytest.mark.parametrize("kind", KINDS)
def test_times_have_the_papers_distribution_two_in_each_stratum(kind):
    rng = np.random.default_rng(0)
    times = path_times(kind, 2000, rng)
    strata = np.floor(TIMES[kind].cdf(times) * 1000)
    assert (np.bincount(strata.astype(int)) == 2).all()
    unstratified = np.concatenate([path_times(kind, 4, rng)[[0, 2]] for _ in range(2000)])
    assert kstest(unstratified, TIMES[kind].cdf).pvalue > 1e-3


@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_the_error_of_a_stratified_mean_is_calibrated(noise):
    rng = np.random.default_rng(0)
    means, squares = [], []
    for _ in range(4000):
        times = path_times("symmetrised", 10, rng)
        values = np.exp(3.0 * times) + noise * rng.normal(size=10)
        means.append(values.mean())
        squares.append(paired_error(values) ** 2)
    assert np.mean(means) == pytest.approx((np.exp(3.0) - 1.0) / 3.0, abs=4 * np.std(means) / 63)
    assert np.mean(squares) == pytest.approx(np.var(means), rel=0.1)


@BOTH
def test_estimates_are_the_exact_divergences(name):
    model, rows = problem(name)
    exact = divergences(model, rows, coreset_weights())
    found = path_divergences(
        model, rows, coreset_weights(), key=jax.random.key(0), sampler=Exact(), points=40
    )
    for kind in KINDS:
        estimate = found.estimates[kind]
        assert estimate.se < 0.1 * exact[kind]
        assert abs(estimate.value - exact[kind]) < 3.5 * estimate.se
        assert estimate.variances.shape == estimate.times.shape == (40,)
        assert estimate.samplers == ("exact",)
        assert (estimate.value, estimate.se) == (getattr(found, kind), getattr(found, f"{kind}_se"))


def test_over_many_keys_estimates_are_unbiased_and_errors_calibrated():
    model, rows = problem("mean")
    exact = divergences(model, rows, coreset_weights())["symmetrised"]
    found = [
        path_divergence(model, rows, coreset_weights(), key=jax.random.key(k), points=4, draws=15)
        for k in range(80)
    ]
    values, errors = (np.array([getattr(f, name) for f in found]) for name in ("value", "se"))
    assert abs(values.mean() - exact) < 3.5 * values.std(ddof=1) / np.sqrt(len(values))
    excess = errors**2 - (values - values.mean()) ** 2
    unsure = excess.std() / np.sqrt(len(values))
    assert unsure < 0.35 * values.var()
    assert abs(excess.mean()) < 3.5 * unsure


@pytest.mark.parametrize("kind", KINDS)
def test_two_draws_at_four_points_are_unreliable_but_never_negative(kind):
    model, rows = problem("mean")
    near = np.ones(N)
    near[0] = 1.01
    for k in range(10):
        found = path_divergence(model, rows, near, kind, key=jax.random.key(k), points=4, draws=2)
        assert found.value >= 0.0
        assert (found.variances >= 0.0).all()


def test_without_a_residual_all_divergences_vanish():
    model, rows = problem("regression")
    found = path_divergences(model, rows, np.ones(N), key=jax.random.key(0), points=4)
    assert max(found.reverse, found.forward, found.symmetrised) < 1e-20


def test_the_empty_coreset_is_the_prior():
    model, rows = problem("mean")
    exact = divergences(model, rows, np.zeros(N))["forward"]
    found = path_divergence(model, rows, np.zeros(N), "forward", key=jax.random.key(0), points=80)
    assert abs(found.value - exact) < 3.5 * found.se
    assert found.se < 0.2 * exact


def test_the_key_decides():
    model, rows = problem("mean")

    def values(seed):
        found = path_divergences(
            model, rows, coreset_weights(), key=jax.random.key(seed), points=4, draws=5
        )
        return [found.reverse, found.forward, found.symmetrised]

    assert values(3) == values(3)
    assert values(3) != values(4)
    variances = path_divergences(
        model, rows, coreset_weights(), key=jax.random.key(3), points=4, draws=5
    ).estimates
    # separate draws: the sum is not the sum of the other two
    assert len({tuple(part.times) for part in variances.values()}) == 3


GRID = np.linspace(-8.0, 10.0, 4001)


@dataclass(frozen=True)
class OnAGrid:
    """Independent draws of one parameter from its density on a grid."""

    def draw(self, key, density, n):
        p = np.exp(grid_log_density(log_densities(density, GRID[:, None])))
        places = np.searchsorted(np.cumsum(p), np.asarray(jax.random.uniform(key, (n,))))
        return Draws(GRID[places][None, :, None], "grid")


def grid_log_density(values):
    return values - logsumexp(values)


@pytest.mark.parametrize("sampler", [OnAGrid(), Laplace()])
def test_a_posterior_without_closed_form_is_sampled(sampler):
    """One logistic coefficient, against sums over a grid."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    y = (x > rng.logistic(size=40)).astype(int)
    weights = np.zeros(40)
    weights[:8] = 5.0
    potentials = log_expit(np.where(y == 1, 1.0, -1.0)[:, None] * x[:, None] * GRID)
    log_p = grid_log_density(weights @ potentials - 0.5 * GRID**2)
    log_q = grid_log_density(potentials.sum(axis=0) - 0.5 * GRID**2)
    exact = float((np.exp(log_p) - np.exp(log_q)) @ (log_p - log_q))

    found = path_divergence(
        LogisticRegression(),
        {"x": x[:, None], "y": y},
        weights,
        key=jax.random.key(0),
        sampler=sampler,
        points=20,
        draws=400,
    )
    if isinstance(sampler, Laplace):  # close, but not exact
        assert found.samplers == ("laplace",)
        assert found.khat is not None
        assert found.value == pytest.approx(exact, rel=0.25)
    else:
        assert abs(found.value - exact) < 3.5 * found.se
        assert found.se < 0.1 * exact


# A coreset and its table


def test_a_coreset_is_its_weights():
    model, rows = problem("mean")
    coreset = decoct.build(
        model, rows, size=10, method=decoct.constructions.Uniform(), seed=0, progress=False
    )
    weights = np.zeros(N)
    weights[coreset.indices] = coreset.weights
    options = {"key": jax.random.key(0), "points": 4, "draws": 10}
    found = coreset_path_divergences(coreset, rows, **options)
    assert found.reverse == path_divergences(model, rows, weights, **options).reverse
    with pytest.raises(CoresetFileError, match="30 rows and this table has 12"):
        coreset_path_divergences(coreset, {"x": rows["x"][:12]}, **options)
    with pytest.raises(CoresetFileError, match="column 'x' differs"):
        coreset_path_divergences(coreset, {"x": rows["x"][::-1]}, **options)


# Proposition 2 from draws


def test_the_bound_from_draws_is_the_exact_one():
    model, rows = problem("mean")
    weights, full = coreset_weights(), decoct.laplace(model, rows)
    exact = hilbert_bound(model, rows, weights, np.ones(N))
    found = hilbert_bound_from_draws(
        model,
        rows,
        weights,
        full.sample(np.random.default_rng(0), 5000),
        key=jax.random.key(0),
        points=40,
        draws=5000,
    )
    assert not found.exact
    # S = 5000 and rank 4: noise in the largest of four eigenvalues, and √(2/S) in J
    assert found.constant == pytest.approx(exact.constant, abs=3.5 * found.constant_se, rel=0.1)
    assert found.constant_se < 0.1 * exact.constant
    assert found.objective == pytest.approx(exact.objective, rel=5 * np.sqrt(2.0 / 5000))
    assert found.bound >= divergences(model, rows, weights)["symmetrised"]


def test_reference_draws_that_cannot_be_used_are_refused():
    model, rows = problem("mean")
    key = jax.random.key(0)
    with pytest.raises(RequestError, match=r"\(n, 3\) or .* is wanted"):
        hilbert_bound_from_draws(model, rows, coreset_weights(), np.zeros((9, 2)), key=key)
    few = np.random.default_rng(0).normal(size=(4, 3))
    with pytest.raises(RequestError, match="comes from 4 draws"):
        hilbert_bound_from_draws(model, rows, coreset_weights(), few, key=key)


# What is printed, and what is refused


@dataclass(frozen=True)
class Reporting:
    """Exact draws that come with a diagnostic."""

    info: tuple[str, float]

    def draw(self, key, density, n):
        return Draws(Exact().draw(key, density, n).z, "reporting", dict([self.info]))


@pytest.mark.parametrize(
    ("info", "said"), [(("khat", 0.9), "k-hat is 0.90"), (("rhat", 1.3), "R-hat is 1.30")]
)
def test_a_doubtful_sampler_is_named(info, said):
    model, rows = problem("mean")
    options = {"key": jax.random.key(0), "points": 4, "draws": 5}
    found = path_divergences(model, rows, coreset_weights(), sampler=Reporting(info), **options)
    assert str(found).count(said) == 1
    assert said in str(found.estimates["forward"])
    fine = path_divergences(model, rows, coreset_weights(), **options)
    assert "doubtful" not in str(fine)
    assert f"KL(coreset‖full) = {fine.reverse:.4g} ± {fine.reverse_se:.2g} nats" in str(fine)


def test_requests_that_make_no_sense_are_refused():
    model, rows = problem("mean")
    key = jax.random.key(0)
    with pytest.raises(RequestError, match="points is 5; an even number"):
        path_divergences(model, rows, coreset_weights(), key=key, points=5)
    with pytest.raises(RequestError, match="points is 2"):
        path_divergences(model, rows, coreset_weights(), key=key, points=2)
    with pytest.raises(RequestError, match="draws must be a whole number, at least 2"):
        path_divergences(model, rows, coreset_weights(), key=key, draws=1)
    with pytest.raises(RequestError, match=r"shape \(4,\); there are 30 rows"):
        path_divergences(model, rows, np.ones(4), key=key)
    with pytest.raises(RequestError, match=r"row 0 is -1\.0"):
        path_divergences(model, rows, np.r_[-1.0, np.zeros(N - 1)], key=key)
