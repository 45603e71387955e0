"""Gibbs sampling of directional mixtures against closed forms and enumeration."""

from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln, ive, logsumexp

from decoct.errors import ModelError, RequestError
from decoct.mixture import VonMisesFisherMixture, log_normaliser, sample_vmf
from decoct.mixture.vmf.gibbs import Gibbs, multinomial
from decoct.models import LinearRegression
from decoct.runtime.precision import float64
from decoct.samplers import WeightedDensity
from decoct.stats.convergence import ess_of_mean

X = sample_vmf(np.random.default_rng(0), np.repeat(np.eye(3), 4, axis=0), 10.0)
ANGLES = np.array([0.2, 0.9, 2.5, -2.0])
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)
QUICK = Gibbs(warmup=50, steps=1000, thin=5)


def density(x, weights, K, tau):
    return WeightedDensity.of(VonMisesFisherMixture(K, x.shape[1], tau), {"x": x}, weights)


def resultant(dim, tau):
    return ive(dim / 2, tau) / ive(dim / 2 - 1, tau)


def assert_mean(values, expected):
    """Compare a mean along chains with its exact value, by its Monte Carlo error."""
    error = values.std() / np.sqrt(ess_of_mean(values))
    assert abs(values.mean() - expected) < 4.5 * error


def test_one_cluster_has_a_von_mises_fisher_mode():
    weights = np.random.default_rng(1).gamma(1.0, 2.0, 12)
    drawn = Gibbs(warmup=0, steps=4000, thin=1).sample(
        jax.random.key(0), density(X, weights, 1, 0.5)
    )
    total = weights @ X
    length = np.linalg.norm(total)
    cosines = drawn.info["modes"][:, :, 0] @ (total / length)
    # draws are independent, and exact also for fractional weights
    assert abs(cosines.mean() - resultant(3, 0.5 * length)) < 4.5 * cosines.std() / np.sqrt(4000)
    mean = drawn.info["modes"].mean(axis=(0, 1, 2)) - cosines.mean() * total / length
    assert np.abs(mean).max() < 4.5 / np.sqrt(3 * 4000)
    assert (drawn.info["weights"] == 1.0).all()
    assert drawn.info["ess"] > 3000


def enumerate_two_clusters(x, tau):
    """Exact posterior expectations of label-invariant functionals, over all assignments."""
    n, dim = x.shape
    log_area, log_c = log_normaliser(dim, 1e-12), log_normaliser(dim, tau)
    probe = np.eye(dim)[0]

    def component(sums):
        """log ∫ exp(τ s·μ) over the sphere, uniform μ."""
        length = np.linalg.norm(sums)
        return log_area - log_normaliser(dim, tau * length) if length > 0 else 0.0

    def mean(sums):
        length = np.linalg.norm(sums)
        return resultant(dim, tau * length) * sums / length if length > 0 else 0.0 * sums

    logs, values = [], []
    for assignment in product([0, 1], repeat=n):
        z = np.eye(2)[list(assignment)]
        counts, sums = z.sum(axis=0), z.T @ x
        log_components = [component(s) for s in sums]
        logs.append(gammaln(1 + counts).sum() + sum(log_components))
        share = (1 + counts) / (2 + n)
        ahead = [
            np.exp(component(s + probe) - one) for s, one in zip(sums, log_components, strict=True)
        ]
        squares = (1 + counts) * (2 + counts) / ((2 + n) * (3 + n))
        values.append([np.exp(log_c) * share @ ahead, squares.sum(), mean(sums[0]) @ mean(sums[1])])
    return np.exp(logs - logsumexp(logs)) @ np.array(values), np.exp(log_c), probe


def test_two_clusters_on_the_circle_match_enumeration_weighted_or_copied():
    tau, weights = 2.0, [2, 1, 3, 0]
    copies = np.repeat(CIRCLE, weights, axis=0)
    exact, c, probe = enumerate_two_clusters(copies, tau)
    sampler = Gibbs(warmup=500, steps=24_000, thin=2, chains=2)
    for x, w in ((CIRCLE, np.array(weights, float)), (copies, np.ones(len(copies)))):
        info = sampler.sample(jax.random.key(1), density(x, w, 2, tau)).info
        modes, shares = info["modes"], info["weights"]
        assert_mean((shares * c * np.exp(tau * modes @ probe)).sum(axis=2), exact[0])
        assert_mean(np.square(shares).sum(axis=2), exact[1])
        assert_mean((modes[:, :, 0] * modes[:, :, 1]).sum(axis=2), exact[2])


@eqx.filter_jit
def compiled_scores(target, z):
    return jax.vmap(jax.grad(target.log_density))(z)


@float64
def scores(target, z):
    return np.asarray(compiled_scores(target, jnp.asarray(z)))


@float64
def unflattened(target, z):
    return jax.vmap(target.space.unflatten)(jnp.asarray(z))


@pytest.mark.parametrize("weights", [np.ones(12), np.arange(12) % 4.0])
def test_unconstrained_draws_have_a_score_of_mean_zero(weights):
    target = density(X, weights, 3, 1.5)
    drawn = Gibbs(warmup=200, steps=20_000, thin=2).sample(jax.random.key(3), target)
    found = scores(target, drawn.flat)
    for column in found.T:
        assert_mean(column[None], 0.0)


def test_norms_and_totals_follow_their_prior():
    target = density(X, np.ones(12), 3, 5.0)
    drawn = Gibbs(warmup=10, steps=3000, thin=1).sample(jax.random.key(0), target)
    params = unflattened(target, drawn.flat)
    norms = np.linalg.norm(params["modes"], axis=2)
    totals = np.exp(np.asarray(params["logits"])).sum(axis=1)
    for column in norms.T:
        assert stats.kstest(column, stats.chi(3).cdf).pvalue > 1e-3
    assert stats.kstest(totals, stats.gamma(3).cdf).pvalue > 1e-3


@float64
def drawn_counts(counts, p, size):
    keys = jax.random.split(jax.random.key(7), size)
    draw = jax.jit(jax.vmap(lambda key: multinomial(key, jnp.asarray(counts), jnp.asarray(p))))
    return np.asarray(draw(keys))


def test_multinomial_counts_add_up_and_have_their_distribution():
    counts = np.array([0.0, 1.0, 7.0, 60.0, 150.0, 400.0, 1e6, 1e6, 9.0])
    p = np.array([[0.2, 0.5, 0.3]] * len(counts)).T
    p[:, 7] = [1e-6, 1.0 - 2e-6, 1e-6]
    p[:, 8] = [0.0, 1.0, 0.0]
    drawn = drawn_counts(counts, p * np.arange(1, 10), 20_000)
    np.testing.assert_array_equal(drawn.sum(axis=1), np.tile(counts, (20_000, 1)))
    assert (drawn >= 0).all()
    assert (drawn == drawn.round()).all()
    np.testing.assert_array_equal(drawn[:, :, 8], np.tile([0.0, 9.0, 0.0], (20_000, 1)))
    for n in range(1, 8):
        for k in range(3):
            binomial = stats.binom(int(counts[n]), p[k, n])
            edges = np.unique(binomial.ppf(np.linspace(0.02, 0.98, 13)))
            mass = np.diff(np.concatenate([[0.0], binomial.cdf(edges), [1.0]]))
            cells = np.searchsorted(edges, drawn[:, k, n])
            seen = np.bincount(cells, minlength=len(mass))[mass > 1e-9]
            assert stats.chisquare(seen, 20_000 * mass[mass > 1e-9]).pvalue > 1e-4
        covariance = np.cov(drawn[:, 0, n], drawn[:, 1, n])[0, 1]
        scale = counts[n] * np.sqrt(np.prod(p[:2, n] * (1 - p[:2, n])))
        expected = -counts[n] * p[0, n] * p[1, n]
        assert abs(covariance - expected) < 5 * np.sqrt(1 / 20_000) * scale


def test_large_weights_concentrate_like_as_many_rows():
    info = (
        Gibbs(warmup=200, steps=4000, thin=2)
        .sample(jax.random.key(0), density(np.eye(3), np.full(3, 3333.5), 3, 50.0))
        .info
    )
    modes, weights = info["modes"], info["weights"]
    gaps = 1.0 - modes.max(axis=3)
    assert gaps.mean() == pytest.approx(1 / (50.0 * 3333.5), rel=0.06)
    sd = np.sqrt(2 / 9 / (3 * 3333.5))
    assert weights.mean(axis=(0, 1)) == pytest.approx(np.full(3, 1 / 3), abs=4.5 * sd / 44)
    assert weights.std(axis=(0, 1)) == pytest.approx(np.full(3, sd), rel=0.1)


def test_draws_are_named_shaped_and_constrained():
    target = density(X, np.arange(12) / 3.0, 3, 10.0)
    sampler = Gibbs(warmup=20, steps=400, thin=4, chains=3)
    drawn = sampler.sample(jax.random.key(0), target, 40)
    assert drawn.sampler == "gibbs"
    assert drawn.z.shape == (3, 40, 12)
    assert sampler.sample(jax.random.key(0), target).z.shape == (3, 100, 12)
    assert sampler.draw(jax.random.key(0), target, 100).z.shape == (3, 34, 12)
    assert np.isfinite(drawn.z).all()
    np.testing.assert_allclose(np.linalg.norm(drawn.info["modes"], axis=-1), 1.0)
    np.testing.assert_allclose(drawn.info["weights"].sum(axis=-1), 1.0)
    with jax.enable_x64(True):
        named = target.model.constrain(target.space.unflatten(jnp.asarray(drawn.z[1, 7])))
    np.testing.assert_allclose(named["modes"], drawn.info["modes"][1, 7], atol=1e-14)
    np.testing.assert_allclose(named["weights"], drawn.info["weights"][1, 7], atol=1e-14)
    assert {"rhat", "ess"} <= set(drawn.info)
    assert len(np.unique(drawn.z[:, -1, 0])) == 3


def test_same_key_same_draws_and_a_longer_run_starts_with_the_shorter_one():
    target = density(X, np.arange(12) / 3.0, 3, 10.0)
    first = QUICK.sample(jax.random.key(0), target, 600).info["modes"]
    np.testing.assert_array_equal(first, QUICK.sample(jax.random.key(0), target, 600).info["modes"])
    shorter = QUICK.sample(jax.random.key(0), target, 7).info["modes"]
    np.testing.assert_array_equal(first[:, :7], shorter)
    other = QUICK.sample(jax.random.key(1), target, 7).info["modes"]
    assert not (other == shorter).any()


def test_thinning_keeps_every_third_step():
    target = density(X, np.ones(12), 3, 10.0)
    every = Gibbs(warmup=0, steps=60, thin=1).sample(jax.random.key(0), target)
    third = Gibbs(warmup=6, steps=54, thin=3).sample(jax.random.key(0), target)
    np.testing.assert_array_equal(third.info["modes"], every.info["modes"][:, 8::3])


def test_rows_of_weight_zero_are_absent():
    weights = np.where(np.arange(12) % 2, 0.0, 1.7)
    there = QUICK.sample(jax.random.key(0), density(X, weights, 3, 10.0), 20)
    without = QUICK.sample(jax.random.key(0), density(X[::2], weights[::2], 3, 10.0), 20)
    np.testing.assert_array_equal(there.z, without.z)


@pytest.mark.parametrize("kept", [0, 2])
def test_fewer_rows_than_clusters_leave_the_others_to_the_prior(kept):
    weights = np.where(np.arange(12) < kept, 500.0, 0.0)
    drawn = Gibbs(warmup=50, steps=2000, thin=1).sample(
        jax.random.key(0), density(X, weights, 3, 50.0)
    )
    assert np.isfinite(drawn.z).all()
    free = np.sort(drawn.info["weights"], axis=2)[:, :, 0]
    if kept == 0:  # the smallest of three uniform shares
        assert abs(free.mean() - 1 / 9) < 4.5 * free.std() / np.sqrt(2000)
    else:
        assert free.mean() < 0.01


def test_progress_adds_up():
    told = []
    QUICK.sample(jax.random.key(0), density(X, np.ones(12), 3, 10.0), 620, told.append)
    assert sum(told) == 50 + 620


def test_other_models_are_refused():
    rows = {"x": np.ones((3, 1)), "y": np.ones(3)}
    with pytest.raises(ModelError, match="LinearRegression is not a VonMisesFisherMixture"):
        QUICK.draw(jax.random.key(0), WeightedDensity.of(LinearRegression(), rows, np.ones(3)), 5)


@pytest.mark.parametrize(
    "options", [{"warmup": -1}, {"thin": 0}, {"steps": 2, "thin": 5}, {"chains": 0}]
)
def test_impossible_counts_are_refused(options):
    with pytest.raises(RequestError, match="must be a whole number"):
        Gibbs(**options)
