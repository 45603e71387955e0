"""Sensitivities against brute force over the parameters, and what is drawn from them."""

import jax
import numpy as np
import pytest
from scipy.optimize import minimize

import decoct
from decoct.constructions.sampling import sensitivity
from decoct.constructions.sampling.sensitivity import Sensitivity
from decoct.errors import ModelError, RequestError
from decoct.models import GaussianMean, LinearRegression, LogisticRegression
from tests.constructions.contract import SamplingContract, logistic_rows, problem_of  # noqa: F401


def values(method, model, rows, seed=0):
    return method.sensitivities(jax.random.key(seed), problem_of(model, rows, 5)).values


@pytest.fixture(scope="module")
def small():
    """Sixty rows of a logistic regression with three groups and an outlier."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(60, 2)) * [1.0, 0.5] + rng.integers(3, size=(60, 1)) * [1.5, -1.0]
    x[7] = [6.0, 5.0]
    y = (rng.random(60) < 1.0 / (1.0 + np.exp(-x @ [1.0, -0.5]))).astype(int)
    return {"x": x, "y": y}


class TestSensitivity(SamplingContract):
    method = Sensitivity()
    home = sensitivity

    def test_two_passes_and_what_the_report_says(self, logistic_rows):  # noqa: F811
        report = self.build(logistic_rows).report
        assert report.passes == 2
        assert report.rounds[0]["clusters"] == 4
        assert report.rounds[0]["radius"] > 0.0
        assert 1.0 <= report.rounds[0]["mean_sensitivity"] < 1500.0


def test_weights_undo_the_odds(small):
    method, model = Sensitivity(), LogisticRegression()
    coreset = decoct.build(model, small, size=30, method=method)
    # the key of the driver's first step, as the construction splits it
    key = jax.random.split(jax.random.fold_in(jax.random.key(0), 1))[0]
    m = method.sensitivities(key, problem_of(model, small, 5)).values
    counts = coreset.weights * m[coreset.indices] / m.sum() * 30
    np.testing.assert_allclose(counts, np.round(counts), atol=1e-10)
    assert counts.sum() == pytest.approx(30)
    assert coreset.report.rounds[0]["repeated_picks"] == 30 - coreset.size


@pytest.mark.parametrize("model", [LogisticRegression(), GaussianMean(np.diag([1.0, 4.0]))])
def test_totals_are_unbiased(small, model):
    rows = small if isinstance(model, LogisticRegression) else {"x": small["x"]}
    table, repeats = problem_of(model, rows, 20), 400
    method = Sensitivity(radius=1.0)
    at = np.array([[0.3, -0.8]])
    each = table.potentials.vectors(table.potentials.rows.take(np.arange(60)), at)[:, 0]
    sums = []
    for seed in range(repeats):
        state, _ = method.step(
            jax.random.key(seed), table, method.init(jax.random.key(seed), table)
        )
        selection = method.path(state)[-1].selection
        sums.append(selection.weights @ each[selection.indices])
    error = np.std(sums, ddof=1) / np.sqrt(repeats)
    assert abs(np.mean(sums) - each.sum()) < 4.0 * error


def test_gaussian_sensitivities_by_brute_force():
    # Eq. C.1 maximised over the mean, under a covariance that is not the identity.
    rng = np.random.default_rng(0)
    sigma = np.array([[2.0, 0.8], [0.8, 0.5]])
    x = rng.normal(size=(15, 2)) @ [[1.0, 0.3], [0.0, 2.0]] + [100.0, -50.0]
    found = values(Sensitivity(), GaussianMean(sigma), {"x": x})
    precision, centre = np.linalg.inv(sigma), x.mean(axis=0)
    angles = np.linspace(0.0, 2.0 * np.pi, 90, endpoint=False)
    circle = np.column_stack([np.cos(angles), np.sin(angles)])
    starts = (np.geomspace(0.01, 100.0, 60)[:, None, None] * circle).reshape(-1, 2)

    def shares(away):
        apart = x - centre - away
        squares = np.einsum("nd,de,ne->n", apart, precision, apart)
        return 15.0 * squares / squares.sum()

    tried = np.array([shares(start) for start in starts])
    options = {"xatol": 1e-10, "fatol": 1e-14}
    for n, start in enumerate(starts[tried.argmax(axis=0)]):
        best = minimize(
            lambda away, n=n: -shares(away)[n], start, method="Nelder-Mead", options=options
        )
        assert found[n] == pytest.approx(-best.fun, rel=1e-9)
    assert found.sum() == pytest.approx(2.0 * 15)


def test_gaussian_sensitivities_of_equal_rows_are_equal():
    found = values(Sensitivity(), GaussianMean(np.eye(2)), {"x": np.full((9, 2), 0.1)})
    np.testing.assert_allclose(found, found[0], rtol=1e-12)
    one = decoct.build(GaussianMean(np.eye(1)), {"x": [3.0]}, size=1, method=Sensitivity())
    assert one.weights.tolist() == [1.0]


def true_sensitivities(z, radius):
    """A lower bound of N sup_{‖θ‖≤R} f_n/Σf_m: a fine grid over the disc, then a local search."""
    angles, lengths = np.linspace(0.0, 2.0 * np.pi, 181), np.linspace(0.0, radius, 41)
    grid = np.stack([np.outer(lengths, np.cos(angles)), np.outer(lengths, np.sin(angles))], -1)
    grid = grid.reshape(-1, 2)
    losses = np.logaddexp(0.0, -grid @ z.T)
    shares = len(z) * losses / losses.sum(axis=1, keepdims=True)
    best = shares.max(axis=0)
    for n, start in enumerate(grid[shares.argmax(axis=0)]):

        def lost(theta, n=n):
            theta = theta * min(1.0, radius / max(np.linalg.norm(theta), 1e-300))
            loss = np.logaddexp(0.0, -z @ theta)
            return -len(z) * loss[n] / loss.sum()

        best[n] = max(best[n], -minimize(lost, start, method="Nelder-Mead").fun)
    return best


@pytest.mark.parametrize("radius", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("clusters", [1, 4, 20])
def test_the_logistic_bound_is_above_the_sensitivity(small, clusters, radius):
    method = Sensitivity(clusters=clusters, radius=radius)
    bound = values(method, LogisticRegression(), small)
    z = small["x"] * np.where(small["y"] > 0, 1.0, -1.0)[:, None]
    true = true_sensitivities(z, radius)
    assert (true <= bound * (1.0 + 1e-9)).all()
    assert (bound <= 60.0).all()
    assert np.corrcoef(np.log(true), np.log(bound))[0, 1] > 0.5  # and it follows it
    if radius == 0.3 and clusters == 20:
        assert bound.mean() < 1.5 * true.mean()


def test_the_logistic_bound_is_lemma_3_1(small):
    # Two clusters that no k-means could miss, one of them a single row.
    x = np.array([[0.0, 0.0], [0.2, 0.0], [0.0, 0.4], [50.0, 0.0]])
    rows = {"x": x, "y": [1, 1, 0, 1]}
    z = x * np.array([1.0, 1.0, -1.0, 1.0])[:, None]
    found = Sensitivity(clusters=2, radius=0.7).sensitivities(
        jax.random.key(0), problem_of(LogisticRegression(), rows, 5)
    )
    near = [0, 1, 2]
    for n in range(4):
        others = [m for m in near if m != n]
        total = 1.0 + len(others) * np.exp(-0.7 * np.linalg.norm(z[others].mean(axis=0) - z[n]))
        if n != 3:
            total += np.exp(-0.7 * np.linalg.norm(z[3] - z[n]))
        assert found.values[n] == pytest.approx(4.0 / total, rel=1e-12)


def test_the_radius_is_the_scale_over_the_spread(small):
    x = np.array([[0.0, 0.1], [0.0, -0.1], [30.0, 0.3], [30.0, -0.3]])
    rows = {"x": x, "y": [1, 1, 1, 1]}  # `check` would refuse one label; the problem does not ask
    found = Sensitivity(clusters=2, scale=3.0).sensitivities(
        jax.random.key(0), problem_of(LogisticRegression(), rows, 5)
    )
    assert found.numbers["radius"] == pytest.approx(3.0 / np.sqrt(0.05), rel=1e-6)
    scaled = {**small, "x": 10.0 * small["x"]}
    np.testing.assert_allclose(
        values(Sensitivity(), LogisticRegression(), small),
        values(Sensitivity(), LogisticRegression(), scaled),
        rtol=1e-9,
    )


def test_the_intercept_belongs_to_the_rows(small):
    with_ones = {**small, "x": np.column_stack([small["x"], np.ones(60)])}
    np.testing.assert_array_equal(
        values(Sensitivity(radius=1.0), LogisticRegression(intercept=True), small),
        values(Sensitivity(radius=1.0), LogisticRegression(), with_ones),
    )
    signs = {**small, "y": 2 * small["y"] - 1}
    np.testing.assert_array_equal(
        values(Sensitivity(), LogisticRegression(), small),
        values(Sensitivity(), LogisticRegression(), signs),
    )


def test_few_distinct_rows_stand_for_their_number():
    # Three rows of Z, repeated: no spread about the means, so any θ is allowed, and m_n = N/|G|.
    x = np.repeat([[0.1, 0.7], [1.0, 0.3], [1.0, 1.0]], [2, 3, 5], axis=0)
    rows = {"x": x, "y": np.ones(10, dtype=int)}
    problem = problem_of(LogisticRegression(), rows, 5)
    found = Sensitivity().sensitivities(jax.random.key(0), problem)
    np.testing.assert_allclose(found.values, np.repeat([5.0, 10 / 3, 2.0], [2, 3, 5]))
    assert found.numbers == {"clusters": 3, "radius": None}


def test_formulas_are_seen_through(small):
    table = {"a": small["x"][:, 0], "late": small["y"]}
    model = decoct.models.from_formula("late ~ a", decoct.rows(table), "bernoulli")
    assert decoct.build(model, table, size=9, method=Sensitivity()).size <= 9


def test_bad_requests_are_sentences(small):
    with pytest.raises(RequestError, match="clusters must be a whole number, at least 1"):
        Sensitivity(clusters=0)
    for radius in (0.0, -1.0, float("nan")):
        with pytest.raises(RequestError, match="radius must be positive"):
            Sensitivity(radius=radius)
    with pytest.raises(RequestError, match="scale must be positive"):
        Sensitivity(scale=0.0)
    with pytest.raises(RequestError, match="clusters is 61 but the table has 60 rows"):
        decoct.build(LogisticRegression(), small, size=5, method=Sensitivity(clusters=61))
    with pytest.raises(ModelError, match="not for LinearRegression; use IteratedHilbert"):
        decoct.build(LinearRegression(), small, size=5, method=Sensitivity())
