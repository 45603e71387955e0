"""The Fisher metric and Propositions 1 and 2, against formulas written out, SciPy, brute force."""

import numpy as np
import pytest
from scipy.linalg import eigh
from scipy.optimize import minimize_scalar

import decoct
from decoct.errors import ModelError, RequestError
from decoct.models import GaussianMean, LinearRegression, LogisticRegression
from decoct.passes.potentials import Potentials
from decoct.runtime.precision import float64
from decoct.stats import Gaussian, kl_gaussian
from decoct.theory.hilbert_constant import (
    ConjugateFamily,
    HilbertBound,
    hilbert_bound,
    largest_ratio,
)
from decoct.theory.information_geometry import (
    Metric,
    hilbert_objective,
    metric,
    residual_correlations,
)

N, D = 14, 3


def problem(kind, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, D)) + 0.5
    if kind == "mean":
        sigma = np.array([[1.0, 0.4, 0.0], [0.4, 2.0, -0.3], [0.0, -0.3, 0.5]])
        return GaussianMean(sigma, prior_covariance=3.0), {"x": x}
    y = x @ [1.0, -2.0, 0.3] + 0.6 * rng.normal(size=N)
    return LinearRegression(noise_scale=0.6, prior_scale=2.0), {"x": x, "y": y}


def coreset_weights(seed=0, kept=5):
    rng = np.random.default_rng(seed)
    weights = np.zeros(N)
    weights[rng.choice(N, kept, replace=False)] = N / kept * rng.gamma(3.0, 1.0 / 3.0, kept)
    return weights


@float64
def exact_metric(model, rows, at):
    family = ConjugateFamily.of(model, rows)
    return family.metric(family.at(at))


def written_out(kind, model, rows, posterior):
    """Eq. 21 and Eq. 24, entry by entry."""
    result = np.empty((N, N))
    if kind == "mean":
        inverse = np.linalg.inv(np.linalg.cholesky(model.covariance))
        psi = inverse @ posterior.cov @ inverse.T
        nu = [inverse @ (x - posterior.mean) for x in rows["x"]]
        for n, m in np.ndindex(N, N):
            result[n, m] = nu[m] @ psi @ nu[n] + 0.5 * np.trace(psi.T @ psi)
        return result
    nu = rows["y"] - rows["x"] @ posterior.mean
    for n, m in np.ndindex(N, N):
        product = rows["x"][n] @ posterior.cov @ rows["x"][m]
        result[n, m] = 0.6**-4 * (nu[n] * nu[m] * product + 0.5 * product**2)
    return result


BOTH = pytest.mark.parametrize("kind", ["mean", "regression"])


@BOTH
def test_the_exact_metric_is_the_papers(kind):
    model, rows = problem(kind)
    weights = coreset_weights()
    expected = written_out(kind, model, rows, decoct.laplace(model, rows, weights))
    assert exact_metric(model, rows, weights).matrix == pytest.approx(expected, rel=1e-9)


@BOTH
def test_the_metric_from_draws_is_the_exact_one(kind):
    model, rows = problem(kind)
    posterior = decoct.laplace(model, rows, coreset_weights())
    draws = posterior.sample(np.random.default_rng(1), 20_000)
    potentials = Potentials(model, decoct.rows(rows)).vectors(rows, draws)
    centred = potentials - potentials.mean(axis=1, keepdims=True)
    exact = exact_metric(model, rows, coreset_weights())
    error = np.array([[np.std(a * b) for b in centred] for a in centred]) / np.sqrt(len(draws))
    z = (metric(potentials).matrix - exact.matrix) / error
    assert np.abs(z).max() < 4.5  # 105 different entries
    at_gaussian = exact_metric(model, rows, posterior)
    assert at_gaussian.matrix == pytest.approx(exact.matrix, rel=1e-9)


def test_the_estimate_is_the_unbiased_covariance():
    potentials = np.random.default_rng(0).normal(size=(6, 9)) + 100.0
    assert metric(potentials).matrix == pytest.approx(np.cov(potentials), rel=1e-9)


def test_an_intercept_is_a_coefficient():
    x = np.random.default_rng(0).normal(size=(N, 2))
    y = x @ [1.0, 1.0] + 2.0
    with_ones = np.column_stack([x, np.ones(N)])
    model = LinearRegression(noise_scale=1.0, intercept=True)
    a = exact_metric(model, {"x": x, "y": y}, np.ones(N))
    b = exact_metric(LinearRegression(noise_scale=1.0), {"x": with_ones, "y": y}, np.ones(N))
    assert a.matrix == pytest.approx(b.matrix, rel=1e-10)


def test_lengths_and_angles_are_those_of_the_covariance():
    rng = np.random.default_rng(0)
    potentials, u, v = rng.normal(size=(6, 40)), rng.normal(size=6), rng.normal(size=6)
    g = metric(potentials)
    assert g.inner(u, v) == pytest.approx(u @ np.cov(potentials) @ v)
    assert g.norm(u) == pytest.approx(np.std(u @ potentials, ddof=1))
    correlation = np.corrcoef(u @ potentials, v @ potentials)[0, 1]
    assert g.cosine(u, v) == pytest.approx(correlation)
    assert g.angle(u, v) == pytest.approx(np.arccos(correlation))
    assert g.angle(u, -u) == pytest.approx(np.pi)


def test_a_small_angle_is_not_rounded_away():
    g = metric(np.array([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]]))  # orthogonal, norms 1 and √3
    assert g.angle(np.array([1.0, 0.0]), np.array([1.0, 1e-10])) == pytest.approx(
        np.sqrt(3.0) * 1e-10, rel=1e-5
    )


def test_scaling_a_potential_scales_its_row_and_nothing_that_is_geometric():
    rng = np.random.default_rng(0)
    potentials, other = rng.normal(size=(5, 30)), rng.normal(size=(5, 30))
    u, v = rng.normal(size=5), rng.normal(size=5)
    scale = 10.0 ** np.array([-6.0, 0.0, 3.0, 7.0, -1.0])
    g, scaled = metric(potentials), metric(scale[:, None] * potentials)
    assert scaled.matrix == pytest.approx(np.outer(scale, scale) * g.matrix)
    assert scaled.inner(u / scale, v / scale) == pytest.approx(g.inner(u, v))
    assert scaled.angle(u / scale, v / scale) == pytest.approx(g.angle(u, v))
    ratio = largest_ratio(metric(scale[:, None] * other), scaled)
    assert ratio == pytest.approx(largest_ratio(metric(other), g), rel=1e-9)


@BOTH
def test_the_hilbert_objective_is_the_variance_of_the_residual(kind):
    model, rows = problem(kind)
    weights = coreset_weights()
    draws = np.random.default_rng(0).normal(size=(50, D))
    potentials = Potentials(model, decoct.rows(rows)).vectors(rows, draws)
    expected = np.var((1.0 - weights) @ potentials, ddof=1)
    assert hilbert_objective(metric(potentials), weights) == pytest.approx(expected)


# Proposition 1


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_the_most_correlated_row_is_the_one_whose_path_leads_closest(kind, seed):
    model, rows = problem(kind, seed)
    weights = coreset_weights(seed)
    g = exact_metric(model, rows, weights)
    correlations = residual_correlations(g, weights)

    def closest(n):  # Eq. 17 by brute force, in log t
        found = minimize_scalar(
            lambda s: g.norm(1.0 - weights - np.exp(s) * np.eye(N)[n]) ** 2,
            bounds=(-30.0, 10.0),
            method="bounded",
            options={"xatol": 1e-9},
        )
        return float(found.fun)

    outside = np.flatnonzero(weights == 0.0)
    reached = np.array([closest(n) for n in outside])
    cosines = np.maximum(0.0, correlations[outside])
    length = g.norm(1.0 - weights)
    assert cosines.max() > 0.0
    assert np.argmin(reached) == np.argmax(cosines)
    assert reached == pytest.approx(length**2 * (1.0 - cosines**2), rel=1e-7)
    assert correlations == pytest.approx([g.cosine(e, 1.0 - weights) for e in np.eye(N)])


def test_a_constant_potential_is_no_candidate():
    potentials = np.random.default_rng(0).normal(size=(4, 20))
    potentials[2] = 0.1 + 0.2
    correlations = residual_correlations(metric(potentials), np.zeros(4))
    assert correlations[2] == 0.0
    assert (np.abs(correlations[[0, 1, 3]]) > 0.0).all()


def test_at_the_full_posterior_there_is_no_direction_left():
    model, rows = problem("mean")
    with pytest.raises(RequestError, match="length 0"):
        residual_correlations(exact_metric(model, rows, np.ones(N)), np.ones(N))


# Proposition 2


def symmetrised(model, rows, weights):
    coreset, full = decoct.laplace(model, rows, weights), decoct.laplace(model, rows)
    return kl_gaussian(coreset, full) + kl_gaussian(full, coreset)


@BOTH
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("reference", ["coreset", "full", "prior", "half", "elsewhere"])
def test_the_bound_holds(kind, seed, reference):
    model, rows = problem(kind, seed)
    weights = coreset_weights(seed)
    at = {
        "coreset": weights,
        "full": np.ones(N),
        "prior": np.zeros(N),
        "half": 0.5 * weights + 0.5,
        "elsewhere": Gaussian(np.full(D, 0.2), 0.05 * np.eye(D)),
    }[reference]
    found = hilbert_bound(model, rows, weights, at)
    assert found.exact
    assert found.constant_se < 1e-5 * found.constant
    assert np.isfinite(found.bound)
    assert found.bound == found.constant * found.objective
    assert found.bound >= symmetrised(model, rows, weights)


def test_with_one_row_the_bound_is_the_divergence():
    model, rows = GaussianMean(1.0), {"x": np.array([0.7])}
    found = hilbert_bound(model, rows, np.array([3.0]), np.array([0.2]))
    assert found.bound == pytest.approx(symmetrised(model, rows, np.array([3.0])), rel=1e-9)


@BOTH
def test_as_the_metric_becomes_constant_so_does_the_constant_become_one(kind):
    _, rows = problem(kind)
    weights = coreset_weights()

    def found(prior_sd):  # next to a tight prior no weight moves the posterior
        if kind == "mean":
            model = GaussianMean(np.eye(D), prior_covariance=prior_sd**2)
        else:
            model = LinearRegression(noise_scale=0.6, prior_scale=prior_sd)
        at = hilbert_bound(model, rows, weights, weights)
        return at.constant - 1.0, at.bound / symmetrised(model, rows, weights) - 1.0

    wide, tight, tighter = found(1.0), found(1e-4), found(1e-5)
    assert wide[0] > 0.1
    # means move by sd² in units of sd, and the metric with them
    assert 0.0 < tighter[0] < tight[0] < 1e-2
    assert tight[0] / tighter[0] == pytest.approx(10.0, rel=0.05)
    assert 0.0 <= tighter[1] < 1e-2


def test_at_the_full_posterior_the_bound_is_zero():
    model, rows = problem("regression")
    found = hilbert_bound(model, rows, np.ones(N), np.ones(N))
    assert found.constant == pytest.approx(1.0, rel=1e-12)
    assert found.bound == 0.0


def test_the_largest_ratio_is_the_largest_generalised_eigenvalue():
    rng = np.random.default_rng(0)
    g, reference = metric(rng.normal(size=(5, 40))), metric(rng.normal(size=(5, 40)))
    expected = eigh(g.matrix, reference.matrix, eigvals_only=True)[-1]
    assert largest_ratio(g, reference) == pytest.approx(expected)


def test_in_a_singular_metric_the_eigenvalue_is_that_of_the_sufficient_statistics():
    model, rows = problem("mean")  # rank D + 1 of N: the statistics are θ and θᵀΣ⁻¹θ
    rng = np.random.default_rng(0)
    reference, other = rng.normal(size=(500, D)), 0.3 + 0.5 * rng.normal(size=(500, D))
    potentials = Potentials(model, decoct.rows(rows))
    precision = np.linalg.inv(model.covariance)

    def statistics(z):
        return np.cov(np.column_stack([z, np.einsum("sd,de,se->s", z, precision, z)]).T)

    expected = eigh(statistics(other), statistics(reference), eigvals_only=True)[-1]
    found = largest_ratio(
        metric(potentials.vectors(rows, other)), metric(potentials.vectors(rows, reference))
    )
    assert found == pytest.approx(expected, rel=1e-9)


def test_rounding_of_large_potentials_is_no_direction():
    rng = np.random.default_rng(0)
    rows, low = rng.normal(size=(30, 4)), rng.normal(size=(2, 4, 200))
    exact = largest_ratio(metric(rows @ low[0]), metric(rows @ low[1]))
    shifted = largest_ratio(metric(rows @ low[0] + 1e6), metric(rows @ low[1] + 1e6))
    assert shifted == pytest.approx(exact, rel=1e-6)


def test_range_that_the_reference_lacks_makes_the_constant_infinite():
    rng = np.random.default_rng(0)
    potentials = rng.normal(size=(3, 20))
    constant = potentials.copy()
    constant[1] = 5.0
    tied = potentials.copy()
    tied[1] = tied[0] - 2.0 * tied[2]
    for lacking in (constant, tied):
        assert largest_ratio(metric(potentials), metric(lacking)) == np.inf
        assert np.isfinite(largest_ratio(metric(lacking), metric(potentials)))
        assert largest_ratio(metric(lacking), metric(lacking)) == pytest.approx(1.0)
    assert HilbertBound(np.inf, 0.0, 0.0, True).bound == np.inf


def test_too_few_draws_to_see_the_range_are_refused():
    rng = np.random.default_rng(0)
    few = metric(rng.normal(size=(30, 20)))
    with pytest.raises(RequestError, match="30 rows comes from 20 draws"):
        largest_ratio(few, few)


# Requests that cannot be honoured


def test_what_does_not_fit_is_refused():
    model, rows = problem("mean")
    g = exact_metric(model, rows, np.ones(N))
    with pytest.raises(RequestError, match=r"shape \(3,\)"):
        g.norm(np.zeros(3))
    with pytest.raises(RequestError, match="nan at row 1"):
        g.norm(np.r_[0.0, np.nan, np.zeros(N - 2)])
    with pytest.raises(RequestError, match="no direction"):
        g.cosine(np.zeros(N), np.ones(N))
    with pytest.raises(RequestError, match=r"row 2 is -1\.0"):
        hilbert_bound(model, rows, np.r_[0.0, 0.0, -1.0, np.zeros(N - 3)], np.ones(N))
    with pytest.raises(RequestError, match="has 2 dimensions and the model has 3"):
        exact_metric(model, rows, Gaussian(np.zeros(2), np.eye(2)))
    with pytest.raises(RequestError, match="over 2 rows, the reference over 14"):
        largest_ratio(Metric(np.eye(2), np.zeros(2)), g)


@pytest.mark.parametrize("potentials", [np.zeros((3, 1)), np.zeros((0, 5)), np.zeros(4)])
def test_a_metric_needs_rows_and_draws(potentials):
    with pytest.raises(RequestError, match=r"\(n, S\) is wanted"):
        metric(potentials)


def test_a_potential_that_is_not_finite_is_named():
    potentials = np.zeros((3, 4))
    potentials[1, 2] = -np.inf
    with pytest.raises(RequestError, match="row 1 at draw 2 is -inf"):
        metric(potentials)


@pytest.mark.parametrize("model", [LogisticRegression(), LinearRegression()])
def test_models_without_a_closed_form_are_refused(model):
    rows = {"x": np.ones((4, 1)), "y": np.array([0, 1, 0, 1])}
    with pytest.raises(ModelError, match="no metric in closed form"):
        exact_metric(model, rows, np.ones(4))


def test_the_bound_prints_as_a_sentence():
    text = str(HilbertBound(2.0, 0.1, 0.5, False))
    assert text.endswith("≤ C J = 1 nats, with C = 2 ± 0.1, J = 0.5")
