"""The certificate against exact divergences, its verdict, and the correction it allows."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln, logsumexp, psi

import decoct
from decoct.constructions import IteratedHilbert
from decoct.data import encoded
from decoct.errors import CoresetFileError, RequestError
from decoct.samplers import Exact, Laplace, WeightedDensity
from decoct.samplers.exact import exact_posterior
from decoct.stats import Gaussian, kl_from_log_ratios, kl_gaussian
from decoct.stats.chains import smoothed_log_weights
from decoct.stats.verdict import Grade, grade_of, judge

MODEL = decoct.models.GaussianMean(np.eye(2))
ALONE = IteratedHilbert(site=False)


@pytest.fixture(scope="module")
def rows():
    return {"x": np.random.default_rng(0).normal(loc=[1.0, -1.0], size=(400, 2))}


@pytest.fixture(scope="module")
def full(rows):
    taken = encoded(decoct.rows(rows), MODEL).take(np.arange(400))
    return exact_posterior(WeightedDensity.of(MODEL, taken, np.ones(400)))


@pytest.fixture(scope="module")
def coreset(rows):
    """Deliberately rough: the weights of a good coreset, shifted."""
    good = decoct.build(MODEL, rows, size=6, method=ALONE)
    weights = good.weights * np.linspace(0.9, 1.1, good.size)
    return type(good)(good.indices, weights, good.rows, good.n_rows, MODEL, good.report)


@pytest.fixture(scope="module")
def draws(coreset):
    return coreset.sample(draws=1000, chains=4, sampler=Exact(), seed=1)


def test_both_divergences_are_the_exact_ones(coreset, rows, draws, full):
    certificate = decoct.check(coreset, rows, draws, max_draws=4000)
    mine = exact_posterior(coreset.density)
    assert certificate.kl > 1e-3
    assert abs(certificate.kl - kl_gaussian(mine, full)) < 4 * certificate.kl_se
    assert abs(certificate.forward_kl - kl_gaussian(full, mine)) < 4 * certificate.forward_kl_se
    low, high = certificate.kl_interval
    assert low <= certificate.kl <= high


def test_standard_errors_are_calibrated():
    p, q = Gaussian(np.zeros(1), np.eye(1)), Gaussian(np.array([0.4]), 0.9 * np.eye(1))
    exact, z = kl_gaussian(p, q), []
    for seed in range(200):
        theta = p.sample(np.random.default_rng(seed), 500)
        found = kl_from_log_ratios(q.log_density(theta) - p.log_density(theta))
        z.append((found.reverse - exact) / found.reverse_se)
    assert 0.8 < np.std(z) < 1.25
    assert abs(np.mean(z)) < 0.4


def test_autocorrelation_widens_the_error():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4, 2000))
    chain = np.zeros_like(noise)
    for t in range(1, 2000):
        chain[:, t] = 0.95 * chain[:, t - 1] + np.sqrt(1 - 0.95**2) * noise[:, t]
    dependent = kl_from_log_ratios(0.3 * chain)
    assert dependent.reverse_se > 2 * kl_from_log_ratios(0.3 * chain.ravel()).reverse_se


def test_psis_sign():
    """ArviZ negates its input: the largest ratio must get the largest weight."""
    log_ratios = np.random.default_rng(0).normal(size=500)
    log_weights, khat = smoothed_log_weights(log_ratios)
    assert np.argmax(log_weights) == np.argmax(log_ratios)
    assert np.corrcoef(log_weights, log_ratios)[0, 1] > 0.99
    assert np.exp(log_weights).sum() == pytest.approx(1.0)
    assert khat < 0.7


def test_identical_posteriors_have_no_divergence(rows):
    everything = decoct.build(MODEL, rows, size=400, method=ALONE)
    certificate = decoct.check(everything, rows, everything.sample(draws=100, sampler=Exact()))
    assert certificate.kl < 1e-12
    assert certificate.ok


@pytest.mark.parametrize("size", [0, 3])
def test_a_site_of_a_quadratic_log_likelihood_has_no_divergence(rows, full, size):
    coreset = decoct.build(MODEL, rows, size=size, method=IteratedHilbert(site=True))
    certificate = decoct.check(coreset, rows, coreset.sample(draws=250, sampler=Exact()))
    assert certificate.kl < 1e-12
    assert certificate.ok
    assert kl_gaussian(exact_posterior(coreset.density), full) < 1e-12


def test_a_site_that_is_shifted_diverges_as_it_should(rows, full):
    """The site enters the certificate: a rough one, and the divergences are the exact ones."""
    good = decoct.build(MODEL, rows, size=0, method=IteratedHilbert(site=True))
    shifted = replace(good.site, linear=good.site.linear + 3.0, precision=0.9 * good.site.precision)
    rough = replace(good, site=shifted)
    draws = rough.sample(draws=1000, chains=4, sampler=Exact(), seed=1)
    certificate = decoct.check(rough, rows, draws, max_draws=4000)
    mine = exact_posterior(rough.density)
    assert certificate.kl > 1e-3
    assert abs(certificate.kl - kl_gaussian(mine, full)) < 4 * certificate.kl_se
    assert abs(certificate.forward_kl - kl_gaussian(full, mine)) < 4 * certificate.forward_kl_se


def test_correction_moves_means_to_the_full_posterior(coreset, rows, draws, full):
    certificate = decoct.check(coreset, rows, draws, max_draws=4000)
    corrected = certificate.correct(draws)
    mean = corrected["posterior"]["mean"].mean(("chain", "draw")).to_numpy()
    before = draws["posterior"]["mean"].mean(("chain", "draw")).to_numpy()
    error = full.sd / np.sqrt(certificate.ess)
    assert np.abs(before - full.mean).max() > 5 * error.max()
    assert (np.abs(mean - full.mean) < 4 * error).all()
    assert corrected["posterior"].sizes == draws["posterior"].sizes


def test_weights_instead_of_resampling(coreset, rows, draws, full):
    certificate = decoct.check(coreset, rows, draws, max_draws=400)
    weighted = certificate.correct(draws, resample=False)
    w = np.exp(weighted["sample_stats"]["log_weight"])
    assert float(w.sum()) == pytest.approx(1.0)
    mean = (w * weighted["posterior"]["mean"]).sum(("chain", "draw")).to_numpy()
    assert (np.abs(mean - full.mean) < 4 * full.sd / np.sqrt(certificate.ess)).all()
    assert w.sizes == {"chain": 4, "draw": 100}


def test_a_bad_coreset_is_refused_correction(rows):
    good = decoct.build(MODEL, rows, size=6, method=ALONE)
    weights = 6.0 * good.weights  # far too sure: the ratios have no variance
    bad = type(good)(good.indices, weights, good.rows, good.n_rows, MODEL, good.report)
    draws = bad.sample(draws=250, sampler=Exact())
    certificate = decoct.check(bad, rows, draws)
    assert not certificate.ok
    assert certificate.verdict.startswith("do not use")
    with pytest.raises(RequestError, match=r"do not use.*at least .* nats; k-hat"):
        certificate.correct(draws)
    # a lower bound, and nothing else
    low, high = certificate.kl_interval
    assert (0.0 < low < certificate.kl, high) == (True, np.inf)
    assert repr(certificate).startswith(f"KL(coreset‖full) at least {low:.2g} nats; k-hat")
    assert "[" not in repr(certificate)
    assert np.isnan(certificate.forward_kl)
    figures = certificate.to_dict()
    assert (figures["kl_interval"], figures["forward_kl"]) == ([low, None], None)


def test_plain_arrays_are_accepted_and_wrong_ones_refused(coreset, rows):
    z = np.random.default_rng(0).normal(size=(50, 2))
    assert decoct.check(coreset, rows, z).log_ratios.shape == (1, 50)
    with pytest.raises(RequestError, match="2 unconstrained"):
        decoct.check(coreset, rows, np.zeros((50, 3)))
    with pytest.raises(RequestError, match="not the ones"):
        decoct.check(coreset, rows, coreset.sample(draws=60, sampler=Exact())).correct(
            coreset.sample(draws=10, sampler=Exact())
        )


def test_another_table_is_refused(coreset, rows, draws):
    with pytest.raises(CoresetFileError, match="400 rows"):
        decoct.check(coreset, {"x": rows["x"][:-1]}, draws)
    changed = rows["x"].copy()
    changed[coreset.indices[0], 0] += 1e-9
    with pytest.raises(CoresetFileError, match="column 'x' differs"):
        decoct.check(coreset, {"x": changed}, draws)


def test_kl_gaussian_is_the_integral():
    p, q = Gaussian(np.array([0.3]), np.array([[0.5]])), Gaussian(np.zeros(1), np.array([[2.0]]))
    grid = np.linspace(-12, 12, 20_001)
    log_p, log_q = p.log_density(grid[:, None]), q.log_density(grid[:, None])
    assert kl_gaussian(p, q) == pytest.approx(np.trapezoid(np.exp(log_p) * (log_p - log_q), grid))
    assert kl_gaussian(p, p) == 0.0


def test_a_tail_of_next_to_nothing_is_not_judged():
    """k-hat is the shape of a tail, whatever its size: 0.8 here, for weights within a hundredth."""
    ratios = 1e-4 * np.random.default_rng(0).standard_t(1.5, size=1000).clip(-30, 30)
    assert np.ptp(ratios) < 1e-2
    assert smoothed_log_weights(100.0 * ratios)[1] > 0.5
    log_weights, khat = smoothed_log_weights(ratios)
    assert khat == -np.inf
    np.testing.assert_allclose(log_weights, ratios - logsumexp(ratios))


@pytest.mark.parametrize(
    ("kl", "khat", "grade"),
    [
        (0.049, 0.49, Grade.GOOD),
        (0.049, 0.51, Grade.USABLE),
        (0.33, 0.1, Grade.USABLE),
        (0.51, 0.1, Grade.DOUBTFUL),
        (0.51, 0.6, Grade.DOUBTFUL),
        (1.01, 0.01, Grade.REFUSED),
        (126.0, -np.inf, Grade.REFUSED),
        (2e-4, 0.7, Grade.REFUSED),
        (7e-7, 0.5025, Grade.GOOD),
        (9e-5, 3.0, Grade.GOOD),
        (np.nan, 0.1, Grade.REFUSED),
    ],
)
def test_the_grade_follows_kl_and_k_hat(kl, khat, grade):
    assert grade_of(kl, khat) is grade


def test_a_small_kl_that_k_hat_refuses_is_not_called_far(coreset, rows, draws):
    unknown = replace(decoct.check(coreset, rows, draws), kl=2e-4, khat=0.74)
    assert "cannot be said from these draws (k-hat is not below 0.7)" in unknown.verdict
    assert "too far from the full one" in replace(unknown, kl=1.1).verdict


def test_every_reader_of_the_verdict_agrees(coreset, rows, draws):
    good = decoct.check(coreset, rows, draws)
    for kl, word, ok in ((0.3, "usable", True), (0.7, "doubtful", False), (1.1, "do not", False)):
        other = replace(good, kl=kl)
        assert other.verdict.startswith(word)
        assert (other.ok, other.to_dict()["ok"]) == (ok, ok)
        assert other.to_dict()["verdict"] in repr(other)
        if word == "do not":
            with pytest.raises(RequestError, match="nothing is corrected"):
                other.correct(draws)
        else:
            other.correct(draws)


def gaussians(seed, spread, shift, dim=20):
    """Return N(0, I), another Gaussian, and log ratios at draws of the first."""
    rng = np.random.default_rng(seed)
    p = Gaussian(np.zeros(dim), np.eye(dim))
    cov = np.diag(np.exp(2.0 * spread * rng.normal(size=dim)))
    q = Gaussian(shift * rng.normal(size=dim), cov)
    z = p.sample(rng, 1000)
    return p, q, (q.log_density(z) - p.log_density(z)).reshape(4, 250)


def test_the_lower_bound_is_one():
    """The plain estimate lies above the truth in a third of these."""
    refused = above = 0
    for seed in range(100):
        p, q, ratios = gaussians(seed, 0.3, 0.5)
        found = judge(ratios)
        if found.khat >= 0.7:
            refused += 1
            assert found.kl.reverse_high == np.inf
            above += found.kl.reverse_low > kl_gaussian(p, q)
    assert refused > 50
    assert above <= 0.05 * refused


def test_intervals_take_the_skewness_of_rare_draws_into_account():
    """Gammas of a Poisson rate, of which estimate ± 1.96 standard errors holds 82 % or so."""
    (a, b), (c, d) = (20.0, 10.0), (16.0, 7.5)
    exact = (a - c) * psi(a) - gammaln(a) + gammaln(c) + c * np.log(b / d) + a * (d - b) / b
    held = plain = 0
    for seed in range(200):
        theta = np.random.default_rng(seed).gamma(a, 1.0 / b, size=250)
        found = kl_from_log_ratios((c - a) * np.log(theta) - (d - b) * theta)
        held += found.reverse_low <= exact <= found.reverse_high
        plain += abs(found.reverse - exact) <= 1.96 * found.reverse_se
    assert plain < 0.88 * 200
    assert held >= 0.9 * 200


def test_no_divergence_is_below_zero():
    for seed in range(50):
        ratios = 1e-9 * np.random.default_rng(seed).normal(size=(2, 100)) + 3.0
        found = kl_from_log_ratios(ratios)
        assert min(found.reverse, found.forward, found.reverse_low) >= 0.0
    assert np.isnan(kl_from_log_ratios(np.array([0.0, np.nan, 1.0])).reverse)


@pytest.mark.filterwarnings("error")
def test_ratios_whose_largest_are_the_same_are_refused():
    ratios = np.concatenate([np.linspace(-5.0, 0.0, 900), np.full(100, 3.0)])
    log_weights, khat = smoothed_log_weights(ratios)
    assert khat == np.inf
    np.testing.assert_allclose(log_weights, ratios - logsumexp(ratios))


def test_a_hopeless_coreset_is_refused_and_not_an_exception(rows):
    """All ratios of the tail are one number, of 1e26 with 16 digits."""
    far = {"x": 1e12 * rows["x"]}
    coreset = decoct.build(MODEL, far, size=6, method=ALONE)
    certificate = decoct.check(coreset, far, coreset.sample(draws=250, sampler=Exact()))
    assert certificate.khat == np.inf
    assert certificate.verdict.startswith("do not use")


def test_chains_that_have_not_mixed_are_doubtful(coreset, rows, draws):
    z = draws["unconstrained_posterior"]["z"].to_numpy().copy()
    assert decoct.check(coreset, rows, z).ok
    z[0] += 0.1  # three quarters of a standard deviation
    apart = decoct.check(coreset, rows, z)
    assert apart.rhat > 1.05
    assert apart.grade is Grade.DOUBTFUL
    assert f"R-hat of the draws is {apart.rhat:.2f}" in apart.verdict
    assert not apart.ok
    # a single chain is compared with itself
    single = decoct.check(coreset, rows, z[:2].reshape(-1, 2))
    assert single.rhat > 1.05
    assert single.grade is Grade.DOUBTFUL


def test_few_draws_are_doubtful(coreset, rows, draws):
    z = draws["unconstrained_posterior"]["z"].to_numpy()
    few = decoct.check(coreset, rows, z[:1, :60])
    assert few.draws_ess < 100.0
    assert few.verdict.startswith("doubtful: ")
    assert f"worth {few.draws_ess:.0f} independent ones" in few.verdict
    short = decoct.check(coreset, rows, z.reshape(-1, 2)[:240].reshape(80, 3, 2))
    assert "R-hat of the draws is unknown" in short.verdict
    assert "worth an unknown number of" in short.verdict
    assert "fewer than 25 draws" in decoct.check(coreset, rows, z[:, :5]).verdict


def test_the_draws_are_judged_before_they_are_thinned(coreset, rows, draws):
    assert decoct.check(coreset, rows, draws, max_draws=60).ok


def two_means(y):
    """A mixture of two normals whose labels can be swapped."""

    def log_likelihood(params, rows):
        first, second = (-0.5 * (rows["y"] - params["mu"][k]) ** 2 for k in (0, 1))
        return jnp.logaddexp(first, second)

    def log_prior(params):
        return -0.5 * jnp.sum((params["mu"] / 3.0) ** 2)

    return decoct.Model(log_likelihood, log_prior, {"mu": np.array([-1.0, 1.0])}), {"y": y}


def signed(centre):
    """A coefficient that enters as its square: its sign is the prior's, N(centre, 1)."""

    def log_likelihood(params, rows):
        return -0.5 * (rows["y"] - (params["a"] * rows["x"]) ** 2 - params["b"]) ** 2

    def log_prior(params):
        return -0.5 * (params["a"] - centre) ** 2 - 0.5 * params["b"] ** 2

    rng = np.random.default_rng(0)
    x = rng.normal(size=500)
    rows = {"x": x, "y": (1.3 * x) ** 2 + 0.5 + rng.normal(size=500)}
    return decoct.Model(log_likelihood, log_prior, {"a": 1.0, "b": 0.0}), rows


@pytest.fixture(scope="module")
def by_sign():
    model, rows = signed(1.0)
    coreset = decoct.build(model, rows, size=10)
    return coreset, rows, coreset.sample(draws=250, sampler=Laplace())


def test_a_swap_of_labels_is_found():
    rng = np.random.default_rng(0)
    y = rng.normal(size=500) + np.where(rng.random(500) < 0.5, -1.5, 1.5)
    model, rows = two_means(y)
    coreset = decoct.build(model, rows, size=20)
    certificate = decoct.check(coreset, rows, coreset.sample(draws=250, sampler=Laplace()))
    assert certificate.kl < 0.05
    assert certificate.verdict.startswith("one mode of several: ")
    assert "50% of the mass" in certificate.verdict
    assert set(certificate.modes.others[0].parameters) == {"mu[0]", "mu[1]"}
    assert not certificate.ok
    assert certificate.to_dict()["other_modes"][0]["share"] == pytest.approx(0.5, abs=0.01)


def test_a_second_mode_is_weighed_by_all_rows(by_sign):
    """log odds of the two signs of a are 2 a; draws of either know of the other."""
    coreset, rows, draws = by_sign
    certificate = decoct.check(coreset, rows, draws)
    share = certificate.modes.others[0].share
    a = float(draws["posterior"]["a"].mean())
    assert share == pytest.approx(1.0 / (1.0 + np.exp(2.0 * a)), rel=0.05)
    assert 0.05 < share < 0.1
    assert certificate.modes.others[0].parameters == ("a",)
    assert "differs in a;" in certificate.verdict
    z = draws["unconstrained_posterior"]["z"].to_numpy() * np.array([-1.0, 1.0])
    mirrored = decoct.check(coreset, rows, z)
    assert mirrored.modes.others[0].share == pytest.approx(1.0 - share, rel=0.01)
    assert mirrored.grade is Grade.ONE_MODE
    assert decoct.check(coreset, rows, z, seed=0).to_dict() == mirrored.to_dict()


def test_modes_that_have_draws_are_no_other_modes(by_sign):
    coreset, rows, draws = by_sign
    z = draws["unconstrained_posterior"]["z"].to_numpy().copy()
    z[:, ::13, 0] *= -1.0
    assert decoct.check(coreset, rows, z).modes.others == ()


def test_a_posterior_of_one_mode_has_no_other(coreset, rows, draws):
    certificate = decoct.check(coreset, rows, draws)
    assert certificate.modes.others == ()
    assert certificate.modes.searches == 20
    assert "20 searches for other modes found none" in repr(certificate)


def test_a_logistic_regression_with_a_vague_prior_has_no_other_mode():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 3))
    rows = {"x": x, "y": (rng.random(600) < 1.0 / (1.0 + np.exp(-x[:, 0]))).astype(int)}
    coreset = decoct.build(decoct.models.LogisticRegression(prior_scale=1e4), rows, size=20)
    certificate = decoct.check(coreset, rows, coreset.sample(draws=250, sampler=Laplace()))
    assert certificate.modes.others == ()
    assert certificate.modes.searches > 5
    assert certificate.ok


def test_beyond_fifty_parameters_modes_are_not_searched_for(rows):
    wide = {"x": np.random.default_rng(0).normal(size=(60, 51))}
    model = decoct.models.GaussianMean(np.eye(51))
    whole = decoct.build(model, wide, size=60)
    certificate = decoct.check(whole, wide, whole.sample(draws=100, sampler=Exact()))
    assert certificate.modes.searches is None
    assert "not searched for beyond 50 parameters" in repr(certificate)
