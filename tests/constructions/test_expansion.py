"""The expansion that a site carries: exact, smoothed, the best one, or refused with a reason."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

import decoct
from decoct.constructions import IteratedHilbert
from decoct.constructions.base import uniform_selection
from decoct.constructions.iterated_hilbert.expansion import (
    NOT_FINITE,
    ExpandedTable,
    NoExpansionError,
    expand_at,
    expand_table,
)
from decoct.constructions.iterated_hilbert.fits import INACCURATE_SITE, ROWS_ARE_NEARER
from decoct.constructions.iterated_hilbert.settings import CERTIFYING_DRAWS
from decoct.data import encoded
from decoct.errors import RequestError, ShortBuildWarning
from decoct.models import GaussianMean, LinearRegression, LogisticRegression, PoissonRegression
from decoct.passes.expansions import Expansion, node_rule
from decoct.passes.potentials import Curvature
from decoct.passes.row_samples import RowSample
from decoct.samplers import WeightedDensity
from decoct.samplers.exact import exact_posterior
from tests.constructions.contract import potentials_of, problem_of

SITE = IteratedHilbert(site=True)

LEVELS = [1, 1, 2, 3, 5, 8, 12, 20, 30, 50, 100, 300, 1000]


def expansion_of(model, rows):
    problem = problem_of(model, rows, 10)
    pilot = uniform_selection(jax.random.key(0), problem, problem.n_rows)
    return expand_table(problem, pilot, None, jax.random.key(0))


def logistic(n, d, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return {"x": x, "y": (rng.random(n) < 1.0 / (1.0 + np.exp(-2.0 * x[:, 0]))).astype(int)}


def log_likelihood(rows, z):
    """Σ_n f_n at points (S, d)."""
    margin = (rows["x"] @ z.T) * np.where(rows["y"] > 0, 1.0, -1.0)[:, None]
    return -np.logaddexp(0.0, -margin).sum(axis=0)


@pytest.mark.parametrize("model", [GaussianMean(np.eye(3)), LinearRegression(noise_scale=1.0)])
def test_no_row_is_needed_where_the_log_likelihood_is_quadratic(model):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3)) + 1.0
    rows = {"x": x}
    if isinstance(model, LinearRegression):
        rows["y"] = x @ [1.0, -2.0, 0.5] + rng.normal(size=2000)
    coreset = decoct.build(model, rows, size=0, method=SITE)
    taken = encoded(decoct.rows(rows), model).take(np.arange(2000))
    full = exact_posterior(WeightedDensity.of(model, taken, np.ones(2000)))
    assert coreset.size == 0
    assert decoct.kl_gaussian(exact_posterior(coreset.density), full) < 1e-10
    z = full.sample(rng, 5)
    missed = coreset.site.log_density(z) - potentials_of(model, rows).totals(z)
    assert np.ptp(missed) < 1e-8


def test_few_rows_carry_the_sufficient_statistics_of_a_linear_model_with_unknown_noise():
    """N, Xᵀ(X, y) and yᵀy are (d + 1)(d + 2)/2 numbers where a column of X is constant."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(5000), rng.normal(size=(5000, 3))])
    rows = {"x": x, "y": x @ [1.0, -2.0, 0.5, 0.0] + 0.7 * rng.normal(size=5000)}
    coreset = decoct.build(LinearRegression(), rows, size=5 * 6 // 2)
    both = np.column_stack([x, rows["y"]])
    kept = both[coreset.indices]
    np.testing.assert_allclose(
        kept.T @ (coreset.weights[:, None] * kept), both.T @ both, rtol=1e-8, atol=1e-6
    )
    draws = coreset.sample(draws=250, chains=2, progress=False)
    assert decoct.check(coreset, rows, draws).kl < 1e-12


def nodes(d, count=60):
    """Points and weights of a product of Gauss-Hermite rules, for N(0, I)."""
    at, weight = np.polynomial.hermite_e.hermegauss(count)
    grid = np.stack(np.meshgrid(*[at] * d, indexing="ij"), axis=-1).reshape(-1, d)
    product = np.stack(np.meshgrid(*[weight / weight.sum()] * d, indexing="ij"), axis=-1)
    return grid, product.reshape(-1, d).prod(axis=1)


@pytest.mark.parametrize("d", [1, 2])
def test_smoothed_derivatives_are_those_of_brute_force(d):
    """E f, E ∇f and E ∇²f over N(μ, C), node by node in all dimensions at once."""
    rows = logistic(60, d)
    centre = np.linspace(0.3, -0.2, d)
    factor = np.array([[0.25, 0.0], [0.1, 0.2]])[:d, :d]
    grid, weights = nodes(d)
    z = centre + grid @ factor.T
    potentials = potentials_of(LogisticRegression(), rows)
    found = potentials.expand(Expansion.over(centre, factor, np.zeros((1, d))))

    x, y = rows["x"], rows["y"]
    p = 1.0 / (1.0 + np.exp(-x @ z.T))  # (n, S)
    gradient = x.T @ ((y[:, None] - p) @ weights)
    hessian = -(x * ((p * (1.0 - p)) @ weights)[:, None]).T @ x
    value = weights @ log_likelihood(rows, z) - 0.5 * ((factor @ factor.T) * hessian).sum()
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.hessian, hessian, rtol=1e-5)
    assert found.value == pytest.approx(value, rel=1e-6)


def test_a_spread_of_zero_is_the_expansion_of_taylor():
    rows, centre = logistic(60, 2), np.array([0.4, -0.3])
    potentials = potentials_of(LogisticRegression(), rows)
    at = Expansion.over(centre, np.zeros((2, 2)), np.zeros((1, 2)))
    found, taylor = potentials.expand(at), potentials.curvature(centre)
    assert found.value == pytest.approx(taylor.value)
    np.testing.assert_allclose(found.gradient, taylor.gradient, rtol=1e-12)
    np.testing.assert_allclose(found.hessian, taylor.hessian, rtol=1e-12)


def test_the_fixed_point_maximises_the_evidence_lower_bound():
    rows = logistic(80, 2)
    found = expansion_of(LogisticRegression(prior_scale=1.0), rows)
    grid, weights = nodes(2)

    def bound(centre, factor):
        z = centre + grid @ factor.T
        log_prior = -0.5 * np.square(z).sum(axis=1)
        entropy = np.log(np.abs(np.linalg.det(factor)))
        return weights @ (log_likelihood(rows, z) + log_prior) + entropy

    centre, factor = np.asarray(found.at.centre), np.asarray(found.at.factor)
    best = bound(centre, factor)
    for direction in ([1.0, 0.0], [0.0, 1.0], [0.7, 0.7], [0.7, -0.7]):
        for length in (-0.2, 0.2):
            assert bound(centre + length * factor @ direction, factor) < best
        for scale in (0.8, 1.25):
            stretch = np.eye(2) + (scale - 1.0) * np.outer(direction, direction)
            assert bound(centre, factor @ stretch) < best


def test_it_is_nearer_than_the_expansion_at_the_mode():
    """KL(site alone‖full) of both, by quadrature in two dimensions."""
    rows = logistic(25, 2, seed=1)
    model = LogisticRegression(prior_scale=1.0)
    smoothed, fit = expansion_of(model, rows), decoct.laplace(model, rows)
    at = Expansion.over(fit.mean, np.zeros((2, 2)), np.zeros((1, 2)))
    taylor = expand_at(problem_of(model, rows, 10), at)
    side = np.linspace(-8.0, 8.0, 401)
    z = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    z = fit.mean + z @ np.linalg.cholesky(fit.cov).T
    log_prior = -0.5 * np.square(z).sum(axis=1)
    full = log_likelihood(rows, z) + log_prior

    def kl(expanded):
        near = expanded.quadratic(z) + log_prior
        near, whole = (one - np.logaddexp.reduce(one) for one in (near, full))
        return np.exp(near) @ (near - whole)

    assert 0.0 < kl(smoothed) < 0.5 * kl(taylor)


def test_an_own_model_with_a_quadratic_log_likelihood_is_expanded_exactly():
    """Without a linear predictor: derivatives are averaged over points."""
    rng = np.random.default_rng(0)
    rows = {"y": rng.normal(size=300), "t": rng.normal(size=300)}

    def f(params, rows):
        return -0.5 * (rows["y"] - params["a"] - params["b"] * rows["t"]) ** 2

    def log_prior(params):
        return -0.5 * (params["a"] ** 2 + params["b"] ** 2)

    model = decoct.Model(f, log_prior, {"a": 0.0, "b": 0.0})
    found = expansion_of(model, rows)
    z = found.at.centre + rng.normal(size=(20, 2))
    totals = potentials_of(model, rows).totals(z)
    np.testing.assert_allclose(found.quadratic(z), totals, rtol=1e-9)


def signed():
    """A coefficient that enters as its square, and a prior that knows no sign."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    rows = {"x": x, "y": (1.3 * x) ** 2 + 0.5 + rng.normal(size=300)}

    def f(params, rows):
        return -0.5 * (rows["y"] - (params["a"] * rows["x"]) ** 2 - params["b"]) ** 2

    def log_prior(params):
        return -0.5 * (params["a"] ** 2 + params["b"] ** 2)

    return decoct.Model(f, log_prior, {"a": 1.0, "b": 0.0}), rows


def flat():
    """Nothing is known of the sum of two parameters, not from the prior either."""

    def f(params, rows):
        return -0.5 * (rows["y"] - params["z"][0] + params["z"][1]) ** 2

    model = decoct.Model(f, lambda params: 0.0 * params["z"][0], {"z": jnp.zeros(2)})
    return model, {"y": np.random.default_rng(0).normal(size=200)}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (signed, "several modes"),
        (flat, "flat or not concave|no mode was found"),
    ],
)
def test_no_gaussian_is_near_and_the_reason_is_said(made, reason):
    with pytest.raises(NoExpansionError, match=reason):
        expansion_of(*made())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_build_without_an_expansion_keeps_rows_alone():
    model, rows = signed()
    coreset = decoct.build(model, rows, size=10, method=SITE)
    assert coreset.site is None
    assert 1 <= coreset.size <= 10
    assert coreset.report.no_site == "the posterior has several modes, and a Gaussian has one"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_report_says_why_a_step_of_the_likelihood_has_no_site():
    """No second derivative tells of it."""
    rows = {"y": np.random.default_rng(0).normal(size=200)}
    step = decoct.Model(
        lambda params, rows: jnp.where(rows["y"] > params["a"], -0.1, -0.3),
        lambda params: -0.5 * params["a"] ** 2,
        {"a": 0.0},
    )
    coreset = decoct.build(step, rows, size=10, method=IteratedHilbert(draws=200))
    assert coreset.site is None
    assert coreset.report.no_site == INACCURATE_SITE


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_report_says_that_rows_alone_are_nearer():
    """With more rows than a quadratic has numbers both are exact, but for rounding."""
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(2000, 3)), "y": rng.integers(0, 2, 2000)}
    for seed in range(3):
        for coreset in decoct.path(LogisticRegression(), rows, sizes=[3, 60], seed=seed):
            expected = ROWS_ARE_NEARER if coreset.site is None else None
            assert coreset.report.no_site == expected


def bent_at_one_row():
    """A log-likelihood that is finite everywhere, its second derivative NaN at a row."""
    rng = np.random.default_rng(0)
    rows = {"y": rng.normal(size=3000), "odd": np.zeros(3000)}
    rows["odd"][1234] = 1.0

    def f(params, rows):
        bent = (1.0 - rows["odd"] + rows["odd"] * 0.0 * params["a"]) ** 1.5
        return -0.5 * (rows["y"] - params["a"]) ** 2 - bent

    return decoct.Model(f, lambda params: -0.5 * params["a"] ** 2, {"a": 0.0}), rows


@pytest.mark.parametrize("seed", [0, 1])  # a pilot with that row, and one without
def test_second_derivatives_that_are_not_finite_leave_rows_alone(seed):
    model, rows = bent_at_one_row()
    at = Expansion.over(np.array([0.2]), np.zeros((1, 1)), np.zeros((1, 1)))
    with pytest.raises(NoExpansionError, match="not finite"):
        expand_at(problem_of(model, rows, 10), at)
    coreset = decoct.build(model, rows, size=5, seed=seed, method=SITE)
    assert coreset.site is None
    assert coreset.report.no_site == f"{NOT_FINITE} in row 1234"
    assert seed == 0 or coreset.report.status.ok


def rare_levels(n):
    """Standardised indicators of levels of one to a thousand rows, two of them with one label."""
    rng = np.random.default_rng(0)
    level = np.repeat(np.arange(len(LEVELS)), LEVELS)
    level = np.concatenate([level, np.full(n - len(level), -1)])
    indicators = (level[:, None] == np.arange(len(LEVELS))).astype(float)
    smooth = rng.normal(size=(n, 8))
    eta = smooth @ rng.normal(scale=0.5, size=8) - 0.5
    eta = eta + indicators @ rng.normal(scale=1.5, size=len(LEVELS))
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))).astype(int)
    y[level == 4], y[level == 7] = 1, 0
    x = np.column_stack([smooth, indicators])
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return {"x": np.column_stack([x, np.ones(n)]), "y": y}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_forty_rows_hold_rare_levels():
    """Where a level has a row or two its coefficient is far from Gaussian: a site alone is not."""
    rows, model = rare_levels(20_000), LogisticRegression(prior_scale=0.1)
    none, forty = decoct.path(model, rows, [0, 40], method=SITE)
    certificate = decoct.check(forty, rows, forty.sample(draws=500, chains=4, seed=1))
    assert certificate.kl < 5e-3
    assert forty.site is not None
    assert none.report.predicted_kl > 5e-3


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_forty_rows_hold_rare_levels_that_the_subsample_lacks():
    rows, model = rare_levels(100_000), LogisticRegression(prior_scale=0.1)
    coreset = decoct.build(model, rows, size=40)
    draws = coreset.sample(draws=1000, seed=1)
    certificate = decoct.check(coreset, rows, draws, exact=True, max_draws=4000)
    assert coreset.site is not None
    assert certificate.kl < 1e-3
    assert certificate.kl < 3.0 * coreset.report.predicted_kl + 1e-4


def test_a_goal_that_a_site_alone_reaches_takes_few_draws_and_no_pass_over_all_rows_at_them():
    rows, model = logistic(90_000, 5), LogisticRegression()
    coreset, nearer = (decoct.build(model, rows, kl=kl) for kl in (0.01, 1e-6))
    (only,) = coreset.report.rounds
    assert coreset.size == 0 < nearer.size
    assert (only["draws"], only["draws_on_all_rows"]) == (CERTIFYING_DRAWS, 0)
    assert only["totals_error"] < coreset.report.predicted_kl < 0.01
    assert coreset.report.evaluations < 0.5 * CERTIFYING_DRAWS * len(rows["y"])
    assert nearer.report.rounds[0]["draws"] > CERTIFYING_DRAWS


def test_a_sample_that_makes_the_sum_convex_is_left_for_all_rows(monkeypatch):
    rows, expand, made = logistic(90_000, 5), RowSample.expand, []

    def changing(self, potentials, at):
        found = expand(self, potentials, at)
        made.append(at)
        return found._replace(hessian=found.hessian + 1e9 * len(made) * np.eye(5))

    monkeypatch.setattr(RowSample, "expand", changing)
    coreset = decoct.build(LogisticRegression(), rows)
    assert made
    assert coreset.size == 0
    full = decoct.laplace(LogisticRegression(), rows)
    apart = coreset.sample(seed=1, sampler=decoct.samplers.Laplace())["posterior"]["beta"].mean(
        ("chain", "draw")
    )
    assert (np.abs(apart.to_numpy().ravel() - full.mean) < 0.2 * full.sd).all()


def test_no_row_and_no_site_is_the_prior():
    """No site: modes at ±θ. Size 0 keeps nothing, and says so."""
    rng = np.random.default_rng(0)
    rows = {"y": 4.0 + rng.normal(size=400)}
    model = decoct.Model(
        lambda p, r: -0.5 * (r["y"] - p["a"] ** 2) ** 2, lambda p: -0.5 * p["a"] ** 2, {"a": 1.0}
    )
    with pytest.warns(ShortBuildWarning, match=r"do not tell how close.*no site: .*several modes"):
        coreset = decoct.build(model, rows, size=0)
    assert coreset.site is None
    assert not coreset.report.status.ok
    z = coreset.sample(draws=1000, chains=4)["unconstrained_posterior"]["z"].to_numpy().ravel()
    assert abs(z.mean()) < 0.1
    assert abs(z.std() - 1.0) < 0.1


def test_a_build_of_poisson_counts_needs_few_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3))
    rows = {"x": x, "y": rng.poisson(np.log1p(np.exp(x[:, 0])))}
    coreset = decoct.build(PoissonRegression(), rows, size=5, method=SITE)
    assert coreset.site is not None
    assert coreset.report.predicted_kl < 1e-3


def test_a_site_larger_than_memory_is_refused_with_its_size(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=1e6))
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(300, 120)), "y": np.arange(300) % 2}
    with pytest.raises(RequestError, match=r"120 parameters is a matrix of 0\.00012 GB"):
        decoct.build(LogisticRegression(), rows, size=5)


def test_a_site_is_flat_where_data_bend_upwards_more_than_the_posterior_is_narrow():
    """Of likelihood parameters, "Λ" has a negative diagonal there."""
    none, upwards = np.zeros(2), np.diag([1.0, -2.0])
    at = Expansion.over(none, 2.0 * np.eye(2), np.zeros((1, 2)))
    expanded = ExpandedTable(at, Curvature(0.0, none, upwards), 0.25 * np.eye(2) - upwards)
    site = expanded.site(expanded.sums.scaled(0.0))
    np.testing.assert_allclose(site.precision, np.diag([0.0, 2.0]), atol=1e-12)


def groups_of(thirds):
    """Effects of three groups, the first two of which have the same rows."""
    whole = np.array([[4.0, 4.0, 0.0], [4.0, 4.0, 0.0], [0.0, 0.0, 9.0]])
    sums = Curvature(0.0, np.zeros(3), -whole, np.array(thirds))
    at = Expansion.over(np.zeros(3), 0.3 * np.eye(3), np.zeros((1, 3)))
    return ExpandedTable(at, sums, whole + np.eye(3))


def effects_of(expanded, share=0.0):
    """Effects of the site's terms of third order, with a share of all curvature kept in rows."""
    third = expanded.site(expanded.sums.scaled(share)).third_order
    return [] if third is None else third.effects[third.sizes != 0.0].tolist()


def test_terms_of_third_order_are_of_groups_that_kept_rows_leave():
    assert effects_of(groups_of([0.4, 0.4, 0.9])) == [0, 1, 2]
    assert effects_of(groups_of([0.4, 0.4, 1e-9])) == [0, 1]  # 2 is not skewed
    assert effects_of(groups_of([0.02, 0.02, 0.02])) == []  # less than 1e-5 nats
    assert effects_of(groups_of([0.4, 0.4, 0.9])._replace(has_third_order=False)) == []
    assert effects_of(groups_of([0.4, 0.4, 0.9]), share=0.95) == []  # kept rows have the rest


def test_terms_of_groups_with_the_same_rows_are_one_in_halves():
    """Along δ_0 + δ_1, of sd s = 0.3 √2."""
    expanded, s = groups_of([0.4, 0.4, 0.9]), 0.3 * np.sqrt(2.0)
    third = expanded.site(expanded.sums.scaled(0.0)).third_order
    np.testing.assert_allclose(third.scales, [4.0 * s, 4.0 * s, 9.0 * 0.3])
    expected = [0.2 * s**3, 0.2 * s**3, 0.9 * 0.3**3]
    np.testing.assert_allclose(third.sizes, expected, rtol=1e-5)
    phi = np.random.default_rng(0).normal(scale=0.3, size=(20, 3))
    basis = expanded.basis(phi) @ expanded.sums.thirds
    product = phi @ -expanded.sums.hessian
    np.testing.assert_allclose(basis, third.of(product), atol=1e-11)


def test_large_terms_of_pairs_leave_a_site_concave_together():
    """In units of the precision, at points up to 30 sd from the centre."""
    rng = np.random.default_rng(2)
    root = rng.normal(size=(4, 4))
    whole = root @ root.T + 0.1 * np.eye(4)
    thirds = rng.normal(size=12) * 50.0
    sums = Curvature(0.0, np.zeros(4), -whole, thirds)
    factor = np.linalg.cholesky(np.linalg.inv(whole))
    at = Expansion.over(np.zeros(4), factor, np.zeros((1, 4)))
    site = ExpandedTable(at, sums, whole, pair_offsets=(2,)).site(sums.scaled(0.0))
    assert site.third_order is not None
    points = jnp.asarray(rng.normal(scale=10.0, size=(1000, 4)) @ factor.T)
    hessians = jax.vmap(jax.hessian(site.log_density))(points)
    largest = np.linalg.eigvalsh(factor.T @ np.asarray(hessians) @ factor).max()
    assert largest < 0.02


def test_a_groups_intercept_and_slope_have_terms_of_both_together():
    """A site has the third derivatives of the rows: of η = a + b x at each x, along (1, x)."""
    x, rate = np.array([-1.5, -0.2, 0.4, 2.0]), np.array([9.0, 14.0, 30.0, 6.0])
    design = np.stack([np.ones(4), x], axis=1)
    curvature = design.T @ (rate[:, None] * design)
    own, mixed = -(rate @ design**3), -(rate @ np.stack([x, x**2], axis=1))
    thirds = np.concatenate([own, [mixed[0], 0.0], [mixed[1], 0.0]])
    sums = Curvature(0.0, np.zeros(2), -curvature, thirds)
    at = Expansion.over(np.zeros(2), np.linalg.cholesky(np.linalg.inv(curvature)), np.zeros((1, 2)))
    expanded = ExpandedTable(at, sums, curvature, pair_offsets=(1,))
    third = expanded.site(expanded.sums.scaled(0.0)).third_order
    assert len(third.sizes) == 4
    nodes, weights = node_rule(2)
    delta = nodes @ at.factor.T
    total = -((delta @ design.T) ** 3) @ rate / 6.0
    # Hermite polynomials of degree 3 of (a, b), of variance 1 and uncorrelated
    a, b = nodes.T
    for hermite in (a**3 - 3 * a, b**3 - 3 * b, a * (b**2 - 1), b * (a**2 - 1)):
        expected = weights @ (hermite * total)
        assert weights @ (hermite * third.of(delta @ curvature)) == pytest.approx(
            expected, rel=0.03
        )
    basis = expanded.basis(delta) @ thirds
    np.testing.assert_allclose(basis, third.of(delta @ curvature), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("third", [400.0, -400.0])
def test_with_a_term_of_third_order_the_site_stays_concave(third):
    expanded = groups_of([0.4, 0.4, third])
    site = expanded.site(expanded.sums.scaled(0.0))
    z = np.zeros((2001, 3))
    z[:, 2] = np.linspace(-10.0, 10.0, len(z))
    assert np.diff(site.log_density(z), 2).max() < 0.0


def test_a_site_is_a_gaussian_and_keeps_the_zeros_of_its_precision():
    """Effects, in units of the noise, meet in its scale alone; the data bend upwards along five."""
    rng, m = np.random.default_rng(0), 300
    bends = np.where(np.arange(m) < 5, -0.1 - 0.2 * rng.random(m), np.exp(rng.normal(3.0, 1.0, m)))
    mean = 12.0 + 0.5 * rng.normal(size=m)
    precision = np.diag([*bends, np.abs(bends) @ (mean**2 + 2.0)])
    precision[:m, m] = precision[m, :m] = -bends * mean
    none = np.zeros(m + 1)
    posterior = precision + np.diag([*np.ones(m), 0.0])
    root = np.linalg.cholesky(np.linalg.inv(posterior))
    at = Expansion.over(none, root, np.zeros((1, m + 1)))
    expanded = ExpandedTable(at, Curvature(0.0, none, -precision), posterior)
    site = expanded.site(expanded.sums.scaled(0.0)).precision
    assert not site[precision == 0.0].any()
    assert np.linalg.eigvalsh(site)[0] >= -1e-12
    # about as near as the nearest of all, in units of the posterior
    factor = np.linalg.inv(np.linalg.cholesky(posterior)).T
    scaled = factor.T @ precision @ factor
    values, basis = np.linalg.eigh(scaled)
    nearest = (basis * np.maximum(values, 0.0)) @ basis.T
    changed = np.linalg.norm(factor.T @ site @ factor - scaled)
    assert changed < 1.1 * np.linalg.norm(nearest - scaled)
