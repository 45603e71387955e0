"""The evidence bound and its updates against brute force, repeated rows and scikit-learn."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import digamma, gammaln, logsumexp, multigammaln

from decoct.errors import ModelError
from decoct.mixture import cavi, e_step, normal_wishart
from decoct.mixture.cavi import Mixture, Priors, ascend, group_rows, start_mixture
from decoct.mixture.e_step import make_table
from decoct.mixture.normal_wishart import NormalWishart
from decoct.mixture.posterior import compute_log_predictive, compute_responsibilities
from decoct.mixture.stick_breaking import FiniteDirichlet, StickBreaking

T, D = 4, 2


def priors(weights=None, dim=D, centre=0.0):
    rng = np.random.default_rng(5)
    factor = np.tril(rng.normal(size=(dim, dim)))
    factor[np.diag_indices(dim)] = 1.0 + rng.random(dim)
    components = NormalWishart(
        centre + rng.normal(size=dim), np.float64(0.8), 0.6 * factor, np.float64(dim + 0.7)
    )
    return Priors(StickBreaking(1.7) if weights is None else weights, components)


def round_priors(dim, precision, scale):
    """m₀ = 0, W₀⁻¹ = scale² I, ν₀ = D."""
    chol = scale * np.eye(dim)
    components = NormalWishart(np.zeros(dim), np.float64(precision), chol, np.float64(dim))
    return Priors(StickBreaking(1.0), components)


class OpenSticks(StickBreaking):
    """scikit-learn's truncation: v_T is free, and what is beyond it belongs to no component."""

    def update(self, counts):
        a, b = super().update(counts)
        return jnp.stack([a, b.at[-1].set(self.concentration)])

    def _free(self, shares):
        return shares


KINDS = {
    "sticks": StickBreaking(1.7),
    "open sticks": OpenSticks(1.7),
    "dirichlet": FiniteDirichlet(0.3),
}


@pytest.fixture(scope="module")
def rows():
    """Rows of three groups, weights that are no whole numbers, one of them 0."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, D)) * [1.0, 0.3] + 4.0 * rng.integers(3, size=(300, 1)) * [1.0, -1.0]
    gamma = rng.gamma(2.0, size=300)
    gamma[5] = 0.0
    return x + np.array([20.0, -7.0]), gamma


def random_start(x, gamma, prior, seed=0, components=T):
    share = np.random.default_rng(seed).dirichlet(np.ones(components), size=len(x))
    return start_mixture(prior, group_rows(x, gamma, share))


def bound_by_hand(x, gamma, r, prior, mixture):
    """(1) with the expectations written out in NumPy and SciPy, matrices inverted."""
    shares, (m, beta, chol, nu) = mixture
    m0, beta0, chol0, nu0 = prior.components
    alpha = prior.weights.concentration
    W0 = np.linalg.inv(chol0 @ chol0.T)
    total, dim = 0.0, x.shape[1]
    if isinstance(prior.weights, FiniteDirichlet):
        c = shares[0]
        log_pi = digamma(c) - digamma(c.sum())
        log_p = gammaln(len(c) * alpha) - len(c) * gammaln(alpha) + ((alpha - 1.0) * log_pi).sum()
        total += log_p + stats.dirichlet(c).entropy()
    else:
        free = len(shares[0]) - (0 if isinstance(prior.weights, OpenSticks) else 1)
        log_pi, before = np.zeros(len(shares[0])), 0.0
        for t, (a, b) in enumerate(shares.T):
            if t >= free:
                log_pi[t] = before
                continue
            log_pi[t] = before + digamma(a) - digamma(a + b)
            log_rest = digamma(b) - digamma(a + b)
            before += log_rest
            total += np.log(alpha) + (alpha - 1.0) * log_rest + stats.beta(a, b).entropy()
    for t in range(len(m)):
        W = np.linalg.inv(chol[t] @ chol[t].T)
        log_det = digamma((nu[t] - np.arange(dim)) / 2.0).sum() + dim * np.log(2.0)
        log_det += np.linalg.slogdet(W)[1]
        away = m[t] - m0
        # E ln N(μ; m0, (β0Λ)⁻¹) + E ln Wishart(Λ; W0, ν0)
        total += 0.5 * (dim * np.log(beta0 / (2 * np.pi)) + log_det - dim * beta0 / beta[t])
        total -= 0.5 * beta0 * nu[t] * away @ W @ away
        total += 0.5 * (nu0 - dim - 1) * log_det - 0.5 * nu[t] * np.trace(np.linalg.inv(W0) @ W)
        total -= 0.5 * nu0 * (dim * np.log(2.0) + np.linalg.slogdet(W0)[1])
        total -= multigammaln(nu0 / 2.0, dim)
        # entropies
        total += 0.5 * dim * (1.0 + np.log(2 * np.pi / beta[t])) - 0.5 * log_det
        total += stats.wishart(nu[t], W).entropy()
        for n in range(len(x)):
            d = x[n] - m[t]
            ell = log_pi[t] - 0.5 * dim * np.log(2 * np.pi) - 0.5 * dim / beta[t]
            ell += 0.5 * log_det - 0.5 * nu[t] * d @ W @ d
            log_r = np.log(r[n, t]) if r[n, t] > 0.0 else 0.0
            total += gamma[n] * r[n, t] * (ell - log_r)
    return total


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_the_one_by_hand(rows, kind, exact, monkeypatch):
    x, gamma = rows
    if exact:
        monkeypatch.setattr(cavi, "LARGEST_REACH", -1.0)
    prior = priors(KINDS[kind], centre=15.0)
    mixture = random_start(x, gamma, prior)
    for _ in range(4):
        r = compute_responsibilities(mixture, prior.weights, x)
        fit = ascend(make_table(x, gamma), prior, mixture, max_iterations=1)
        by_hand = bound_by_hand(x, gamma, r, prior, fit.mixture)
        assert fit.bounds[0] == pytest.approx(by_hand, rel=1e-11)
        mixture = fit.mixture


@pytest.mark.parametrize("kind", KINDS)
def test_each_update_is_the_maximiser_of_its_block(rows, kind):
    x, gamma = (one[:40] for one in rows)
    prior = priors(KINDS[kind], centre=15.0)
    start = random_start(x, gamma, prior)
    r = compute_responsibilities(start, prior.weights, x)
    best = ascend(make_table(x, gamma), prior, start, max_iterations=1).mixture
    height = bound_by_hand(x, gamma, r, prior, best)

    def rises(**changed):
        shares = changed.pop("shares", best.shares)
        other = Mixture(shares, best.components._replace(**changed))
        return bound_by_hand(x, gamma, r, prior, other) - height

    rng = np.random.default_rng(1)
    for step in (1e-3, -1e-3):
        free = best.shares > 0.0
        moved = {
            "shares": best.shares * np.where(free, np.exp(step * rng.normal(size=free.shape)), 1.0),
            "mean": best.components.mean + step * rng.normal(size=(T, D)),
            "mean_precision": best.components.mean_precision * np.exp(step * rng.normal(size=T)),
            "chol": best.components.chol + step * np.tril(rng.normal(size=(T, D, D))),
            "dof": best.components.dof * np.exp(step * rng.normal(size=T)),
        }
        for name, value in moved.items():
            # a maximiser: every move loses, and only to second order
            assert -0.1 < rises(**{name: value}) < -1e-9, name
    for n in (0, 7):
        logits = np.log(r[n])

        def lost(z, n=n):
            other = r.copy()
            other[n] = np.exp(z - logsumexp(z))
            return -bound_by_hand(x[[n]], gamma[[n]], other[[n]], prior, start)

        found = minimize(lost, logits + rng.normal(size=T), method="BFGS", options={"gtol": 1e-7})
        np.testing.assert_allclose(np.exp(found.x - logsumexp(found.x)), r[n], atol=1e-5)


def test_the_bound_is_below_the_evidence_of_few_rows():
    # All assignments of three rows to two components, integrated in closed form; v by quadrature.
    x = np.array([[0.0, 0.1], [0.3, -0.2], [4.0, 3.0]])
    prior = priors()
    m0, beta0, chol0, nu0 = prior.components
    alpha = prior.weights.concentration

    def log_evidence(group):
        k = len(group)
        if k == 0:
            return 0.0
        mean = group.mean(axis=0)
        scatter = (group - mean).T @ (group - mean)
        pull = beta0 * k / (beta0 + k) * np.outer(mean - m0, mean - m0)
        inverse = chol0 @ chol0.T + scatter + pull
        value = -k * np.log(np.pi) + multigammaln((nu0 + k) / 2, 2) - multigammaln(nu0 / 2, 2)
        value += nu0 * np.log(np.diag(chol0)).sum() - (nu0 + k) / 2 * np.linalg.slogdet(inverse)[1]
        return value + np.log(beta0 / (beta0 + k))

    terms = []
    for z in itertools.product((0, 1), repeat=3):
        first = np.array(z) == 0
        k = first.sum()
        share = quad(lambda v, k=k: alpha * v**k * (1 - v) ** (3 - k + alpha - 1), 0.0, 1.0)[0]
        terms.append(np.log(share) + log_evidence(x[first]) + log_evidence(x[~first]))
    gamma = np.ones(3)
    best = max(
        ascend(
            make_table(x, gamma),
            prior,
            random_start(x, gamma, prior, seed, components=2),
            tolerance=1e-10,
            max_iterations=500,
        ).bounds[-1]
        for seed in range(4)
    )
    assert logsumexp(terms) - 2.0 < best < logsumexp(terms)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_never_falls(rows, kind, exact, monkeypatch):
    x, gamma = rows
    if exact:
        monkeypatch.setattr(cavi, "LARGEST_REACH", -1.0)
    prior = priors(KINDS[kind], centre=15.0)
    rises = []
    for seed in range(3):
        start = random_start(x, gamma, prior, seed)
        fit = ascend(make_table(x, gamma), prior, start, tolerance=1e-9, max_iterations=3000)
        assert fit.converged
        assert np.diff(fit.bounds).min() > -1e-12 * abs(fit.bounds[0])
        rises.append(fit.bounds[-1] - fit.bounds[0])
    assert max(rises) > 100.0


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_repeated_rows(rows, kind):
    x, _ = rows
    counts = np.random.default_rng(2).integers(0, 4, size=300)
    prior = priors(KINDS[kind], centre=15.0)
    start = random_start(x, counts, prior)
    fits = [
        ascend(make_table(*one), prior, start, tolerance=0.0, max_iterations=60)
        for one in ((x, counts.astype(float)), (np.repeat(x, counts, axis=0), np.ones(sum(counts))))
    ]
    np.testing.assert_allclose(fits[0].bounds, fits[1].bounds, rtol=1e-12)
    for one, other in zip(fits[0].mixture.components, fits[1].mixture.components, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(fits[0].mixture.shares, fits[1].mixture.shares, rtol=1e-8)


def test_both_kernels_and_any_chunks_agree(rows, monkeypatch):
    x, gamma = rows
    prior = priors(centre=15.0)
    start = random_start(x, gamma, prior)
    usual = ascend(make_table(x, gamma), prior, start, max_iterations=20, tolerance=0.0)
    chunks = []
    for reach, size in ((-1.0, 64), (4e7, 32)):
        monkeypatch.setattr(cavi, "LARGEST_REACH", reach)
        monkeypatch.setattr(e_step, "choose_chunk_rows", lambda *_, size=size: size)
        cut = make_table(x, gamma)
        chunks.append((cut.x.shape[0], int(cut.used)))
        other = ascend(cut, prior, start, max_iterations=20, tolerance=0.0)
        np.testing.assert_allclose(other.bounds, usual.bounds, rtol=1e-12)
        np.testing.assert_allclose(
            other.mixture.components.mean, usual.mixture.components.mean, rtol=1e-9
        )
    assert chunks == [(5, 5), (10, 10)]
    monkeypatch.setattr(e_step, "choose_chunk_rows", lambda *_: 16)
    assert make_table(x, gamma).x.shape[0] == 20  # one unused chunk
    assert int(make_table(x, gamma).used) == 19


def test_tight_far_groups_take_factors_without_cancellation(monkeypatch):
    # Groups 1e6 standard deviations apart: features lose 12 digits, so κ sends them to factors.
    rng = np.random.default_rng(3)
    groups = rng.integers(2, size=200)
    x = 1e-6 * rng.normal(size=(200, D)) + groups[:, None]
    gamma = np.ones(200)
    prior = round_priors(D, 1e-18, 1e-6)
    start = start_mixture(prior, group_rows(x, gamma, np.eye(2)[groups]))
    fit = ascend(make_table(x, gamma), prior, start, max_iterations=5, tolerance=0.0)
    with jax.enable_x64(True):
        rows = make_table(x, gamma)
        known = cavi._prepare(rows.centre, *cavi._to_arrays((prior, start)))[1]
        assert known.reach > 1e10
        blurred, clear = (
            e_step.sum_rows(rows, known.components, known.log_shares, exact)[0]
            for exact in (False, True)
        )
        assert abs(blurred - clear) > 1e-3
    # were κ not looked at, the bound's fall would tell
    monkeypatch.setattr(cavi, "LARGEST_REACH", np.inf)
    caught = ascend(make_table(x, gamma), prior, start, max_iterations=5, tolerance=0.0)
    assert caught.bounds[-1] == pytest.approx(fit.bounds[-1], rel=1e-9)
    r = compute_responsibilities(fit.mixture, prior.weights, x)
    assert fit.bounds[-1] == pytest.approx(bound_by_hand(x, gamma, r, prior, fit.mixture), rel=1e-9)
    for t in range(2):
        scatter = np.cov(x[groups == t].T, bias=True) * (groups == t).sum()
        chol = fit.mixture.components.chol[t]
        np.testing.assert_allclose(
            chol @ chol.T, scatter + 1e-12 * np.eye(D), rtol=2e-5, atol=2e-5 * scatter.max()
        )


def test_a_fit_turns_to_factors_where_they_lose_digits(monkeypatch):
    # Three groups found from a blur: κ goes from 20 to 9,000 as they are told apart.
    rng = np.random.default_rng(3)
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    x, gamma = 1e-2 * rng.normal(size=(300, D)) + corners[rng.integers(3, size=300)], np.ones(300)
    prior = round_priors(D, 1e-3, 1e-2)
    start = start_mixture(prior, group_rows(x, gamma, rng.dirichlet(np.ones(3), size=300)))
    calls, usual = [], cavi._iterate

    def watched(*arguments):
        found = usual(*arguments)
        calls.append((arguments[5], int(found.done), int(found.end)))
        return found

    fits = []
    for limit in (-1.0, 3e3, np.inf):
        monkeypatch.setattr(cavi, "LARGEST_REACH", limit)
        monkeypatch.setattr(cavi, "_iterate", watched if limit == 3e3 else usual)
        fits.append(ascend(make_table(x, gamma), prior, start, max_iterations=60, tolerance=1e-8))
    # features, one step too many, the same without it, then factors
    steps, some = len(fits[0].bounds), calls[0][1]
    assert 0 < some < steps
    assert calls == [
        (False, some, cavi.ESCAPED),
        (False, some, cavi.GOES_ON),
        (True, steps - some, cavi.CONVERGED),
    ]
    for fit in fits:
        assert fit.converged
        np.testing.assert_allclose(fit.bounds, fits[0].bounds, rtol=1e-11)
    for one, other in zip(fits[0].mixture.components, fits[1].mixture.components, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


def test_a_bound_that_float64_would_let_fall_ends_the_fit():
    # Rows ten million times longer than wide, slantwise: the width is lost in their scatter.
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    x = rng.normal(size=(400, 3)) * [1e3, 1.0, 1e-4] @ turn
    prior = round_priors(3, 1e-3, 1e-5)
    gamma = rng.gamma(1.0, size=400)
    start = random_start(x, gamma, prior, components=3)
    told = []
    fit = ascend(
        make_table(x, gamma), prior, start, tolerance=0.0, max_iterations=300,
        on_iteration=lambda *a: told.append(a),
    )  # fmt: skip
    assert fit.fall > 0.0
    assert not fit.converged
    assert np.diff(fit.bounds).min() > -1e-9 * abs(fit.bounds[0])
    assert len(told) == len(fit.bounds) < 300
    assert np.isfinite(fit.mixture.components.chol).all()
    # the same, many iterations to a call; a tolerance above the fall is convergence
    many = ascend(make_table(x, gamma), prior, start, tolerance=0.0, max_iterations=300)
    assert (many.bounds, many.fall) == (fit.bounds, fit.fall)
    coarse = ascend(make_table(x, gamma), prior, start, tolerance=1e3, max_iterations=300)
    assert coarse.converged
    assert coarse.fall == 0.0


def test_iterations_are_the_same_one_by_one_and_many_to_a_call(rows, monkeypatch):
    x, gamma = rows
    prior = priors(centre=15.0)
    start = random_start(x, gamma, prior)
    how = {"tolerance": 0.0, "max_iterations": 150}
    many = ascend(make_table(x, gamma), prior, start, **how)
    assert len(many.bounds) == 150 > cavi.ITERATIONS_A_CALL
    told = []
    one = ascend(make_table(x, gamma), prior, start, **how, on_iteration=lambda *a: told.append(a))
    assert one.bounds == many.bounds == [bound for _, bound, _ in told]
    assert [number for number, _, _ in told] == list(range(1, 151))
    np.testing.assert_allclose([rise for *_, rise in told][1:], np.diff(many.bounds))
    monkeypatch.setattr(cavi, "WORK_A_CALL", 0)  # as for many rows
    assert ascend(make_table(x, gamma), prior, start, **how).bounds == many.bounds
    # and a start from where it got, its bound known
    half = ascend(make_table(x, gamma), prior, start, tolerance=0.0, max_iterations=75)
    rest = ascend(make_table(x, gamma), prior, half.mixture, tolerance=1e-3, bound=half.bounds[-1])
    assert rest.converged
    np.testing.assert_allclose(rest.bounds, many.bounds[75 : 75 + len(rest.bounds)], rtol=1e-12)


@pytest.mark.parametrize("kind", ["dirichlet_process", "dirichlet_distribution"])
def test_scikit_learn_raises_the_same_bound(kind):
    sklearn = pytest.importorskip("sklearn.mixture")
    rng = np.random.default_rng(7)
    x = rng.normal(size=(400, 3)) + 3.0 * rng.integers(3, size=(400, 1))
    share = rng.dirichlet(np.ones(6), size=400)
    peer = sklearn.BayesianGaussianMixture(
        n_components=6,
        weight_concentration_prior_type=kind,
        weight_concentration_prior=0.7,
        mean_precision_prior=0.8,
        degrees_of_freedom_prior=3.5,
        reg_covar=0.0,
        tol=0.0,
        max_iter=1,
        warm_start=True,
    )
    peer._check_parameters(x)
    peer._initialize(x, share)
    weights = {
        "dirichlet_process": OpenSticks(0.7),
        "dirichlet_distribution": FiniteDirichlet(0.7),
    }[kind]
    prior = Priors(
        weights,
        NormalWishart(
            x.mean(axis=0), np.float64(0.8), np.linalg.cholesky(np.cov(x.T)), np.float64(3.5)
        ),
    )
    gamma = np.ones(400)
    start = start_mixture(prior, group_rows(x, gamma, share))
    fit = ascend(make_table(x, gamma), prior, start, max_iterations=60, tolerance=0.0)
    theirs = []
    for _ in range(60):
        log_norm, log_r = peer._e_step(x)
        peer._m_step(x, log_r)
        theirs.append(peer._compute_lower_bound(log_r, log_norm))
    peer._set_parameters(peer._get_parameters())
    components = fit.mixture.components
    np.testing.assert_allclose(components.mean, peer.means_, rtol=1e-7)
    np.testing.assert_allclose(components.dof, peer.degrees_of_freedom_, rtol=1e-7)
    covariances = components.chol @ components.chol.transpose(0, 2, 1)
    covariances /= components.dof[:, None, None]
    np.testing.assert_allclose(covariances, peer.covariances_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(weights.mean(fit.mixture.shares), peer.weights_, rtol=1e-7)
    # theirs lacks constants: the two differ by one number throughout
    difference = np.array(fit.bounds) - theirs
    np.testing.assert_allclose(difference, difference[0], atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_the_predictive_density_is_a_mixture_of_students(rows, kind):
    x, gamma = rows
    prior = priors(KINDS[kind], centre=15.0)
    mixture = ascend(make_table(x, gamma), prior, random_start(x, gamma, prior)).mixture
    weights = prior.weights.mean(mixture.shares)
    assert weights.sum() == pytest.approx(1.0, rel=1e-14)
    by_scipy = 0.0
    for t, (m, beta, chol, nu) in enumerate(zip(*mixture.components, strict=True)):
        dof = nu + 1 - D
        shape = chol @ chol.T * (1 + beta) / (beta * dof)
        by_scipy += weights[t] * stats.multivariate_t(m, shape, dof).pdf(x)
    np.testing.assert_allclose(
        compute_log_predictive(mixture, prior.weights, x), np.log(by_scipy), rtol=1e-10
    )
    far = compute_log_predictive(mixture, prior.weights, np.array([[1e8, -1e8], [0.0, 1e140]]))
    assert np.isfinite(far).all()


@pytest.mark.parametrize("dim", [2, 7, 74])
def test_gamma_functions_of_many_rows_keep_their_digits(dim):
    few, many = np.array([0.3, 2.0, 77.5, 9990.0]), np.array([1.2e4, 3e7, 1e13, 1e200])
    with jax.enable_x64(True):
        small, large = (normal_wishart._log_rising(a, dim) for a in (few, many))
        # Γ(a + 1) = aΓ(a), half a step at a time: for an even number this is a sum of logarithms
        steps = sum(normal_wishart._log_rising(many + 0.5 * k, 1) for k in range(dim))
    np.testing.assert_allclose(small, gammaln(few + 0.5 * dim) - gammaln(few), rtol=1e-10)
    np.testing.assert_allclose(large, steps, rtol=1e-14)


def test_expected_weights_are_the_means_of_draws():
    shares = np.array([[3.0, 2.0, 9.0, 1.5], [4.0, 0.7, 2.0, 0.0]])
    rng = np.random.default_rng(0)
    v = np.ones((200_000, 4))
    v[:, :3] = rng.beta(shares[0, :3], shares[1, :3], size=(200_000, 3))
    pi = v * np.cumprod(np.column_stack([np.ones(200_000), 1.0 - v[:, :3]]), axis=1)
    found = StickBreaking(1.0).mean(shares)
    error = pi.std(axis=0) / np.sqrt(200_000)
    assert (np.abs(found - pi.mean(axis=0)) < 4.5 * error).all()


def test_a_component_without_rows_is_the_prior(rows):
    x, gamma = rows
    prior = priors(centre=15.0)
    share = np.zeros((300, T))
    share[:, 0] = 1.0
    mixture = start_mixture(prior, group_rows(x, gamma, share))
    np.testing.assert_allclose(mixture.components.mean[1], prior.components.mean, rtol=1e-12)
    np.testing.assert_allclose(mixture.components.chol[1], prior.components.chol, rtol=1e-12)
    fit = ascend(make_table(x, gamma), prior, mixture, max_iterations=3)
    assert np.isfinite(fit.bounds).all()


def test_many_columns_take_factors(monkeypatch):
    monkeypatch.setattr(e_step, "LARGEST_FEATURES", 3)
    monkeypatch.setattr(cavi, "LARGEST_FEATURES", 3)
    rng = np.random.default_rng(0)
    x, gamma = rng.normal(size=(100, 5)), np.ones(100)
    prior = priors(dim=5)
    start = random_start(x, gamma, prior, components=2)
    few = ascend(make_table(x, gamma), prior, start, max_iterations=5, tolerance=0.0)
    monkeypatch.undo()
    many = ascend(make_table(x, gamma), prior, start, max_iterations=5, tolerance=0.0)
    np.testing.assert_allclose(few.bounds, many.bounds, rtol=1e-12)


def test_a_scatter_that_is_not_definite_is_named():
    x, gamma = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]), np.ones(3)
    prior = round_priors(2, 1.0, 1e-200)
    with pytest.raises(ModelError, match="ill-defined empirical covariance"):
        start_mixture(prior, group_rows(x, gamma, np.ones((3, 1))))


def spare_start(x, gamma, prior, components):
    """All rows in the first and third component, nothing in the others."""
    share = np.zeros((len(x), components))
    share[:, [0, 2]] = np.random.default_rng(1).dirichlet(np.ones(2), size=len(x))
    return start_mixture(prior, group_rows(x, gamma, share))


@pytest.mark.parametrize(
    ("kind", "exact", "waking"),
    [*((kind, False, 60) for kind in KINDS), ("sticks", True, 60), ("sticks", False, 0)],
)
def test_components_without_rows_evaluated_as_one_change_no_digit(kind, exact, waking, monkeypatch):
    rng = np.random.default_rng(3)
    prior, components = priors(KINDS[kind], dim=8), 16
    far = rng.normal(size=(200, 8)) + 60.0 * rng.normal(size=(3, 8))[rng.integers(3, size=200)]
    # rows near the prior's mean wake some of the spare components up
    x = np.concatenate([far, prior.components.mean + 0.3 * rng.normal(size=(waking, 8))])
    gamma = rng.gamma(2.0, size=len(x))
    start = spare_start(x, gamma, prior, components)
    how = {"max_iterations": 30, "tolerance": 0.0, "on_iteration": lambda *a: None}
    if exact:
        monkeypatch.setattr(cavi, "LARGEST_REACH", -1.0)
    plain = ascend(make_table(x, gamma), prior, start, **how)

    evaluated, usual = [], cavi.find_occupied
    monkeypatch.setattr(cavi, "LEAST_WORK", 0)
    monkeypatch.setattr(
        cavi, "find_occupied", lambda *a: evaluated.append(usual(*a)) or evaluated[-1]
    )
    merged = ascend(make_table(x, gamma), prior, start, **how)
    sizes = [components if one is None else len(one) for one in evaluated]
    assert sizes[0] == 3
    # a Dirichlet treats spare components alike, with rows and without
    wakes = waking and kind != "dirichlet"
    assert max(sizes) > 3 if wakes else max(sizes) == 3
    np.testing.assert_allclose(merged.bounds, plain.bounds, rtol=1e-11)
    np.testing.assert_allclose(merged.mixture.shares, plain.mixture.shares, rtol=1e-8, atol=1e-8)
    for one, other in zip(merged.mixture.components, plain.mixture.components, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("changed", ["β", "W", "ν"])
def test_spare_components_of_another_prior_are_no_prior(changed, monkeypatch):
    # a warm start under new priors: what was idle is alike still, but not the new prior
    rng = np.random.default_rng(3)
    correlated = np.linalg.cholesky(np.full((8, 8), 0.5) + 0.5 * np.eye(8))
    before = NormalWishart(np.zeros(8), np.float64(1.0), correlated, np.float64(9.0))
    x = rng.normal(size=(200, 8)) + 60.0 * rng.normal(size=(3, 8))[rng.integers(3, size=200)]
    gamma = np.ones(len(x))
    start = spare_start(x, gamma, Priors(StickBreaking(1.7), before), 16)
    new = {"β": {"mean_precision": np.float64(10.0)}, "W": {"chol": np.eye(8)}, "ν": {"dof": 40.0}}
    prior = Priors(StickBreaking(1.7), before._replace(**new[changed]))
    how = {"max_iterations": 8, "tolerance": 0.0, "on_iteration": lambda *a: None}
    plain = ascend(make_table(x, gamma), prior, start, **how)
    monkeypatch.setattr(cavi, "LEAST_WORK", 0)
    assert len(e_step.find_occupied(start.components)) == 3
    merged = ascend(make_table(x, gamma), prior, start, **how)
    assert not plain.fall
    np.testing.assert_allclose(merged.bounds, plain.bounds, rtol=1e-11)


def test_an_ill_conditioned_prior_changes_no_digit_either(monkeypatch):
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    chol = np.linalg.cholesky(turn * np.geomspace(1.0, 1e-11, 8) @ turn.T)
    prior = Priors(
        StickBreaking(1.0), NormalWishart(np.ones(8), np.float64(1.0), chol, np.float64(8.0))
    )
    x = rng.normal(size=(100, 8))
    start = spare_start(x, np.ones(100), prior, 16)
    how = {"max_iterations": 3, "tolerance": 0.0, "on_iteration": lambda *a: None}
    plain = ascend(make_table(x, np.ones(100)), prior, start, **how)
    monkeypatch.setattr(cavi, "LEAST_WORK", 0)
    merged = ascend(make_table(x, np.ones(100)), prior, start, **how)
    assert merged.fall == plain.fall
    np.testing.assert_allclose(merged.bounds, plain.bounds, rtol=1e-10)
