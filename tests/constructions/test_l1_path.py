"""L1Path: the contract, Eq. 95 and 96 against brute force, the search, and what is refused."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy.optimize import minimize

import decoct
from decoct.constructions import L1Path
from decoct.constructions.base import Selection
from decoct.constructions.sparse_vi import l1_steps
from decoct.constructions.sparse_vi.l1_steps import minimiser, proximal
from decoct.constructions.sparse_vi.manifold import base
from decoct.constructions.sparse_vi.weight_updates import Quadratic
from decoct.errors import RequestError
from decoct.models import GaussianMean, LinearRegression, LogisticRegression
from decoct.passes import potentials
from decoct.samplers import Laplace
from decoct.samplers.exact import exact_posterior
from decoct.stats.divergences import Tangent
from tests.constructions.contract import (  # noqa: F401
    ConstructionContract,
    logistic_rows,
    problem_of,
    stop_at,
)

QUICK = L1Path(draws=60, searches=3, iterations=3)


class TestL1Path(ConstructionContract):
    method = QUICK

    def build(self, rows, size=12, seed=0):
        options = {"method": self.method, "sampler": Laplace()}
        return decoct.build(LogisticRegression(), rows, size=size, seed=seed, **options)

    @pytest.mark.parametrize("size", [1, 2, 12])
    def test_size_range_order_and_sign(self, logistic_rows, size):  # noqa: F811
        super().test_size_range_order_and_sign(logistic_rows, size)

    def test_other_chunks_change_rounding_only(self, logistic_rows, monkeypatch):  # noqa: F811
        # The support hangs on draws that hang on all stages before.
        usual = self.build(logistic_rows, 6)
        monkeypatch.setattr(potentials, "chunk_rows", lambda _: 257)
        other = self.build(logistic_rows, 6)
        np.testing.assert_array_equal(other.indices, usual.indices)
        np.testing.assert_allclose(other.weights, usual.weights, rtol=1e-5)

    def test_one_run_answers_every_size(self, logistic_rows):  # noqa: F811
        options = {"method": self.method, "sampler": Laplace()}
        path = decoct.path(LogisticRegression(), logistic_rows, [16, 4, 12], **options)
        for one, size in zip(path, (4, 12, 16), strict=True):
            assert 1 <= one.size <= size
        assert path[-1].size > path[0].size

    def test_a_build_goes_on_from_its_checkpoint(self, logistic_rows, tmp_path, monkeypatch):  # noqa: F811
        model, whole = LogisticRegression(), self.build(logistic_rows, 6)
        stop_at(monkeypatch, L1Path, 3)
        options = {"size": 6, "method": self.method, "sampler": Laplace()}
        options["checkpoint"] = tmp_path / "c.npz"
        with pytest.raises(KeyboardInterrupt):
            decoct.build(model, logistic_rows, **options)
        resumed = decoct.build(model, logistic_rows, **options)
        np.testing.assert_array_equal(resumed.indices, whole.indices)
        np.testing.assert_allclose(resumed.weights, whole.weights, rtol=1e-9)
        assert len(resumed.report.rounds) == len(whole.report.rounds)


X = np.random.default_rng(0).normal(size=(12, 2)) + 1.0
GAUSSIAN = GaussianMean(np.eye(2))


def penalised_kl(x, w, penalty, scales):
    """KL(π_w‖π) + λ f̃ᵀw for a standard Gaussian mean with a standard prior, written out."""

    def gaussian(w):
        precision = 1.0 + w.sum()
        return decoct.stats.Gaussian(w @ x / precision, np.eye(x.shape[1]) / precision)

    return decoct.kl_gaussian(gaussian(w), gaussian(np.ones(len(x)))) + penalty * scales @ w


def prior_deviations(x):
    """√Var_0 f_n = √(‖x_n‖² + d/2) under N(0, I)."""
    return np.sqrt(np.square(x).sum(axis=1) + 0.5 * x.shape[1])


def staged(method, problem, penalty):
    """Run one stage of a construction at a λ from the prior."""
    state = method.init(jax.random.key(0), problem)
    state, _ = method.step(jax.random.key(1), problem, state)
    every, start, view = state.last
    stage, _ = method._stage(jax.random.key(2), every, view, start, penalty, problem.size)
    return stage, every.dense(stage.selection), state


def brute_force(x, penalty, scales):
    """The best of many local minima over w ≥ 0."""
    rng = np.random.default_rng(0)
    return min(
        (
            minimize(
                lambda w: penalised_kl(x, w, penalty, scales),
                rng.exponential(scale, size=len(x)) * (rng.random(len(x)) < 0.3),
                bounds=[(0.0, None)] * len(x),
                method="L-BFGS-B",
                options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000},
            )
            for scale in (0.1, 1.0, 3.0, 10.0)
        ),
        key=lambda one: one.fun,
    )


@pytest.mark.parametrize("part", [0.01, 0.1, 0.5])
def test_a_stage_is_the_minimum_of_the_penalised_kl(monkeypatch, part):
    monkeypatch.setattr(l1_steps, "MIN_GAIN", 1e-8)
    problem, scales = problem_of(GAUSSIAN, {"x": X}, 20), prior_deviations(X)
    _, _, state = staged(L1Path(), problem, 1.0)
    np.testing.assert_allclose(state.scales, scales, rtol=1e-10)
    penalty = part * state.stages[0].penalty
    stage, weights, _ = staged(L1Path(iterations=300), problem, penalty)
    best = brute_force(X, penalty, scales)
    mine = penalised_kl(X, weights, penalty, scales)
    assert mine == pytest.approx(best.fun, rel=1e-5)
    assert stage.rows == np.count_nonzero(weights) > 0
    np.testing.assert_array_equal(weights > 0.0, best.x > 1e-3 * best.x.max())


def test_the_plain_iteration_is_equation_96():
    problem, scales = problem_of(GAUSSIAN, {"x": X}, 20), prior_deviations(X)
    method = L1Path(scheme="plain", iterations=2, rate=1e-3, early=None)
    _, mine, _ = staged(method, problem, penalty=2.0)
    weights = np.zeros(len(X))
    for t in range(2):
        gamma, slope = 1e-3 / (1 + t), np.zeros(len(X))
        for n in range(len(X)):
            step = np.zeros(len(X))
            step[n] = 1e-5
            up, down = (penalised_kl(X, weights + s * step, 0.0, scales) for s in (1, -1))
            slope[n] = (up - down) / 2e-5
        ahead = weights - gamma * slope
        # Eq. 96 in full: w ≥ 0 makes the sign and the absolute value drop out
        signed = np.sign(ahead) * np.maximum(np.abs(ahead) - gamma * 2.0 * scales, 0.0)
        weights = np.maximum(signed, 0.0)
    np.testing.assert_allclose(mine, weights, rtol=1e-5, atol=1e-9)
    assert np.count_nonzero(mine) > 0


def test_the_proximal_operator_minimises_what_it_should():
    rng = np.random.default_rng(0)
    x, thresholds = rng.normal(size=20), rng.exponential(size=20)
    mine = proximal(x, thresholds)
    grid = np.linspace(0.0, 4.0, 400_001)
    for n in range(20):
        best = grid[np.argmin(0.5 * (grid - x[n]) ** 2 + thresholds[n] * grid)]
        assert mine[n] == pytest.approx(best, abs=1e-5)


def expansion(seed=0, rows=30, draws=12):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(rows, draws)) * rng.gamma(2.0, size=(rows, 1))
    return Tangent(vectors, vectors.sum(axis=0)), np.linalg.norm(vectors, axis=1)


@pytest.mark.parametrize("stiffness", [1.0, 7.0])
def test_the_minimiser_of_the_expansion_meets_its_conditions(stiffness):
    tangent, scales = expansion()
    start = np.where(np.arange(30) % 5 == 0, 0.5, 0.0)
    for penalty in (10.0, 1.0, 1e-3):
        v = minimiser(tangent, scales, penalty, start, stiffness)
        residual = tangent.target - start @ tangent.vectors
        slope = -tangent.vectors @ (residual - stiffness * (v - start) @ tangent.vectors)
        left = slope / scales + penalty
        # The penalty is exact up to a part of EXTRA² of itself.
        np.testing.assert_allclose(left[v > 0.0], 0.0, atol=1e-3 * penalty)
        assert (left[v == 0.0] > -1e-3 * penalty).all()


def test_the_support_shrinks_as_the_penalty_grows():
    tangent, scales = expansion(rows=60, draws=40)
    largest = (tangent.vectors @ tangent.target / scales).max()
    sizes = [
        np.count_nonzero(minimiser(tangent, scales, part * largest, np.zeros(60)))
        for part in (1.01, 0.99, 0.5, 0.2, 0.05, 1e-2, 1e-4)
    ]
    assert sizes[:2] == [0, 1]
    assert (np.diff(sizes) >= 0).all()
    assert sizes[-1] > 30


def test_rescaled_potentials_have_the_same_support():
    tangent, scales = expansion()
    factors = np.exp(np.random.default_rng(1).normal(size=30))
    rescaled = Tangent(tangent.vectors * factors[:, None], tangent.target)
    nothing = np.zeros(30)
    root = minimiser(tangent, scales, 3.0, nothing)
    again = minimiser(rescaled, scales * factors, 3.0, nothing)
    np.testing.assert_allclose(again * factors, root, rtol=1e-8)
    assert 3 < np.count_nonzero(root) < 12
    # with the variance, as printed, the support depends on the factors
    printed = minimiser(tangent, scales**2, 3.0, nothing)
    other = minimiser(rescaled, (scales * factors) ** 2, 3.0, nothing)
    assert (printed > 0.0).tolist() != (other > 0.0).tolist()


def counted():
    """A location model whose rows stand for ``count`` observations each."""

    def log_likelihood(params, rows):
        return -0.5 * rows["count"] * (rows["y"] - params["mean"]) ** 2 / 25.0

    return decoct.Model(log_likelihood, lambda p: -0.5 * p["mean"] ** 2, {"mean": np.zeros(())})


def test_a_row_that_stands_for_many_is_chosen_as_the_many_are():
    rng = np.random.default_rng(0)
    y, count = rng.normal(size=30) + 0.5, rng.integers(1, 6, size=30)
    once = {"y": y, "count": count.astype(float)}
    many = {"y": np.repeat(y, count), "count": np.ones(count.sum())}
    method = L1Path(draws=200, update=None)
    kept = []
    for rows in (once, many):
        coreset = decoct.build(counted(), rows, size=3, method=method, sampler=Laplace())
        weight = coreset.weights * coreset.rows["count"]
        kept.append(
            {
                value: weight[coreset.rows["y"] == value].sum()
                for value in np.unique(coreset.rows["y"])
            }
        )
    assert kept[0].keys() == kept[1].keys()
    np.testing.assert_allclose(list(kept[0].values()), list(kept[1].values()), rtol=1e-4)


def test_equal_rows_are_taken_once():
    rows = {"x": np.repeat(np.random.default_rng(0).normal(size=(1, 2)), 300, axis=0)}
    coreset = decoct.build(GaussianMean(np.eye(2)), rows, size=5, method=L1Path())
    assert coreset.size == 1
    assert coreset.weights[0] == pytest.approx(300.0, rel=1e-6)


def test_nothing_has_weight_at_the_upper_bound_and_something_below_it():
    problem = problem_of(GAUSSIAN, {"x": X}, 20)
    _, _, state = staged(L1Path(), problem, 1.0)
    largest = state.stages[0].penalty
    slopes = [
        penalised_kl(X, 1e-7 * np.eye(12)[n], 0.0, np.zeros(12))
        - penalised_kl(X, np.zeros(12), 0.0, np.zeros(12))
        for n in range(12)
    ]
    assert largest == pytest.approx(np.max(np.abs(slopes) / 1e-7 / prior_deviations(X)), rel=1e-3)
    assert staged(L1Path(), problem, 1.001 * largest)[0].rows == 0
    assert staged(L1Path(), problem, 0.98 * largest)[0].rows > 0


def test_a_stage_with_too_many_rows_returns_early(logistic_rows):  # noqa: F811
    model = LogisticRegression()
    problem = problem_of(model, logistic_rows, 3, sampler=Laplace())
    hasty = L1Path(draws=100, iterations=4)
    stage, weights, _ = staged(hasty, problem, 1e-5)
    assert not stage.complete
    assert 6 < np.count_nonzero(weights) < 12  # left at once, not after all that could enter
    patient, _, _ = staged(dataclasses.replace(hasty, early=None), problem, 1e-5)
    assert patient.complete
    assert patient.rows > stage.rows


def test_gradient_steps_return_early_too():
    problem = problem_of(GAUSSIAN, {"x": X}, 1)
    stage, weights, _ = staged(L1Path(scheme="plain"), problem, 1e-3)
    assert not stage.complete
    assert np.count_nonzero(weights) > 2


def exact_kl(coreset, model, rows):
    return decoct.kl_gaussian(exact_posterior(coreset.density), decoct.laplace(model, rows))


def test_exact_coresets_are_exact_once_there_are_enough_rows():
    model = GaussianMean(np.eye(5))
    rows = {"x": np.random.default_rng(0).normal(size=(200, 5)) + 1.0}
    path = decoct.path(model, rows, [2, 6, 20], method=L1Path())
    kls = [exact_kl(one, model, rows) for one in path]
    assert path[0].size <= 2
    assert kls[1] < 1e-20
    assert kls[2] < 1e-20
    assert kls[0] > kls[1]
    for one, kl in zip(path, kls, strict=True):
        assert one.report.predicted_kl == pytest.approx(kl, rel=1e-9, abs=1e-20)
    assert path[2].report.evaluations == 0  # not one potential was evaluated


LINEAR = LinearRegression(noise_scale=0.7)
COVARIATES = np.random.default_rng(1).normal(size=(60, 3))
LINEAR_ROWS = {
    "x": COVARIATES,
    "y": COVARIATES @ [1.0, -1.0, 0.5] + np.random.default_rng(2).normal(size=60),
}


def test_linear_vectors_have_the_inner_products_of_the_manifold():
    problem = problem_of(LINEAR, LINEAR_ROWS, 20)
    _, _, state = staged(L1Path(), problem, 1e3)
    assert state.last is not None
    every, _, view = state.last
    rng = np.random.default_rng(3)
    view = every.spanning(view, np.arange(60) % 4 == 0)
    view = every.manifold.moved(jax.random.key(0), view, rng.gamma(2.0, size=15))
    mine, theirs = view.full_tangent(), view.tangent()
    picked = mine.vectors[::4]
    np.testing.assert_allclose(picked @ picked.T, theirs.vectors @ theirs.vectors.T, rtol=1e-9)
    np.testing.assert_allclose(picked @ mine.target, theirs.vectors @ theirs.target, rtol=1e-9)
    np.testing.assert_allclose(mine.vectors.sum(axis=0), mine.target, rtol=1e-9)


def test_exact_linear_coresets_are_exact_once_there_are_enough_rows():
    coreset = decoct.build(LINEAR, LINEAR_ROWS, size=12, method=L1Path())
    assert exact_kl(coreset, LINEAR, LINEAR_ROWS) < 1e-6


def test_it_comes_near_the_size_and_the_posterior(logistic_rows):  # noqa: F811
    model = LogisticRegression()
    full = decoct.laplace(model, logistic_rows)
    method = L1Path(draws=150)
    path = decoct.path(model, logistic_rows, [10, 30], method=method, sampler=Laplace())
    raw = decoct.build(
        model,
        logistic_rows,
        size=10,
        method=dataclasses.replace(method, update=None),
        sampler=Laplace(),
    )
    fits = [decoct.laplace(model, one.rows, one.weights) for one in (*path, raw)]
    kls = [decoct.kl_gaussian(fit, full) for fit in fits]
    assert 20 <= path[1].size <= 30
    assert kls[0] < 1.0
    assert kls[1] < 1e-4
    assert kls[2] > kls[0]  # without the update the weights are shrunk
    assert raw.weights.sum() < path[0].weights.sum()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"reuse": False}, 0.1),
        ({"subsample": 250, "subsample_totals": True}, 0.1),
        ({"subsample": 250, "subsample_totals": True, "control_variates": False}, 0.1),
        # Eq. 96 by itself hardly leaves the prior in a few steps.
        ({"scheme": "plain", "rate": 1e-3, "early": None, "searches": 2}, 1.0),
    ],
)
def test_every_option_brings_the_posterior_nearer(logistic_rows, options, part):  # noqa: F811
    model = LogisticRegression()
    rows = {name: column[:300] for name, column in logistic_rows.items()}
    full = decoct.laplace(model, rows)
    method = L1Path(**{"draws": 100, "searches": 4, "iterations": 5, **options})
    coreset = decoct.build(model, rows, size=12, method=method, sampler=Laplace())
    prior = decoct.stats.Gaussian(np.zeros(3), np.eye(3))
    kl = decoct.kl_gaussian(decoct.laplace(model, coreset.rows, coreset.weights), full)
    assert 1 <= coreset.size <= 12
    assert kl < part * decoct.kl_gaussian(prior, full)


@pytest.mark.parametrize("corrected", [True, False])
def test_totals_of_a_subsample_are_corrected_unless_asked_not_to(logistic_rows, corrected):  # noqa: F811
    options = {"subsample": 60, "subsample_totals": True, "control_variates": corrected}
    problem = problem_of(LogisticRegression(), logistic_rows, 20, sampler=Laplace())
    method, potentials = L1Path(draws=100, **options), problem.potentials
    state = method.step(jax.random.key(0), problem, method.init(jax.random.key(0), problem))[0]
    every = state.last[0]
    rows = np.arange(0, 1000, 50)
    selection = Selection(rows, np.full(20, potentials.n_rows / 20), potentials.rows.take(rows))
    view = every.manifold.at(jax.random.key(1), selection)  # draws near one another
    estimate = view.cloud.total
    exact = potentials.totals(view.cloud.z)
    exact -= exact.mean()
    error = np.linalg.norm(estimate - exact) / np.linalg.norm(exact)
    plain = potentials.vectors(potentials.rows.take(state.candidates), view.cloud.z).sum(axis=0)
    plain *= potentials.n_rows / len(state.candidates)
    scaled = np.allclose(estimate, plain - plain.mean())
    assert scaled != corrected
    assert (error < 0.05) == corrected


def test_rows_that_say_nothing_leave_the_prior():
    model = decoct.Model(
        lambda p, r: 0.0 * r["y"] * p["a"], lambda p: -0.5 * p["a"] ** 2, {"a": np.zeros(())}
    )
    coreset = decoct.build(model, {"y": np.arange(1.0, 50.0)}, size=5, method=L1Path())
    gaussian = decoct.laplace(model, dict(coreset.rows), coreset.weights)
    np.testing.assert_allclose(gaussian.cov, [[1.0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"searches": 0}, "searches must be a whole number, at least 1"),
        ({"iterations": 0}, "iterations must be a whole number, at least 1"),
        ({"draws": 1}, "draws must be a whole number, at least 2"),
        ({"subsample": 0}, "subsample must be a whole number, at least 1"),
        ({"update": Quadratic}, r"update must be Quadratic\(\)"),
        ({"rate": 0.0}, "rate γ must be positive"),
        ({"rate": np.nan}, "rate γ must be positive"),
        ({"tolerance": 1.0}, "tolerance must be in"),
        ({"tolerance": -0.1}, "tolerance must be in"),
        ({"early": 1.0}, "early must be above 1"),
        ({"early": np.nan}, "early must be above 1"),
        ({"scheme": "lasso"}, "scheme must be one of"),
        ({"subsample_totals": True}, "needs subsample="),
    ],
)
def test_options_that_cannot_be_meant(options, message):
    with pytest.raises(RequestError, match=message):
        L1Path(**options)


def test_a_closed_form_that_does_not_fit_asks_for_draws(monkeypatch):
    monkeypatch.setattr(base, "WHOLE_BYTES", 1000)
    with pytest.raises(RequestError, match="exact=False"):
        decoct.build(LINEAR, LINEAR_ROWS, size=3, method=L1Path())
