"""SparseVI: the contract, closed forms against draws, the updates, and what is refused."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.constructions import L1Path, SparseVI
from decoct.constructions.base import Selection
from decoct.constructions.sparse_vi import weight_updates
from decoct.constructions.sparse_vi.manifold import base
from decoct.constructions.sparse_vi.manifold.gaussian import GaussianManifold
from decoct.constructions.sparse_vi.manifold.linear import LinearManifold
from decoct.constructions.sparse_vi.manifold.sampled import SampledManifold
from decoct.constructions.sparse_vi.options import require_proper_prior
from decoct.constructions.sparse_vi.weight_updates import Gradient, Quadratic
from decoct.data.encoded import EncodedRows
from decoct.errors import ModelError, RequestError, SamplerError
from decoct.models import GaussianMean, LinearRegression, LogisticRegression, PoissonRegression
from decoct.passes import potentials
from decoct.samplers import Exact, Laplace
from decoct.samplers.base import Draws, WeightedDensity
from decoct.samplers.exact import exact_posterior
from tests.constructions import contract
from tests.constructions.contract import (  # noqa: F401
    ConstructionContract,
    logistic_rows,
    stop_at,
)


class TestSparseVI(ConstructionContract):
    method = SparseVI(draws=100, update=Quadratic(steps=2))

    @pytest.mark.parametrize("size", [1, 2, 25])
    def test_size_range_order_and_sign(self, logistic_rows, size):  # noqa: F811
        super().test_size_range_order_and_sign(logistic_rows, size)

    def test_other_chunks_change_rounding_only(self, logistic_rows, monkeypatch):  # noqa: F811
        # Each pick hangs on draws that hang on all picks before, and NUTS, which the automatic
        # sampler takes for the first of them, makes any rounding large.
        def build():
            options = {"method": self.method, "sampler": Laplace()}
            return decoct.build(LogisticRegression(), logistic_rows, size=3, **options)

        usual = build()
        monkeypatch.setattr(potentials, "chunk_rows", lambda _: 257)
        other = build()
        np.testing.assert_array_equal(other.indices, usual.indices)
        np.testing.assert_allclose(other.weights, usual.weights, rtol=1e-5)


class TestSubsampled(TestSparseVI):
    method = SparseVI(draws=100, update=Quadratic(steps=2), subsample=300)


def problem_of(model, rows, sampler=None):
    return contract.problem_of(model, rows, 20, sampler=sampler or Exact())


GAUSSIAN = (
    GaussianMean([[2.0, 0.6], [0.6, 1.0]], 0.5, 3.0),
    {"x": np.random.default_rng(0).normal(size=(60, 2)) + 1.0},
)
X = np.random.default_rng(1).normal(size=(60, 3))
LINEAR = (
    LinearRegression(noise_scale=0.7),
    {"x": X, "y": X @ [1.0, -1.0, 0.5] + np.random.default_rng(2).normal(size=60)},
)


def some_weights(problem):
    rng = np.random.default_rng(3)
    indices = np.sort(rng.choice(60, size=8, replace=False))
    return Selection(indices, rng.gamma(2.0, size=8), problem.potentials.rows.take(indices))


@pytest.mark.parametrize(
    ("case", "manifold"), [(GAUSSIAN, GaussianManifold), (LINEAR, LinearManifold)]
)
def test_closed_forms_are_what_draws_estimate(case, manifold):
    problem = problem_of(*case)
    selection = some_weights(problem)
    exact = manifold(problem).at(jax.random.key(0), selection)
    grams, products, heights, scores = [], [], [], []
    v = selection.weights * 1.05
    for seed in range(20):
        sampled = SampledManifold(problem, 4000, None, False, True)
        view = sampled.at(jax.random.key(seed), selection)
        vectors, target = view.tangent()
        grams.append(vectors @ vectors.T)
        products.append(vectors @ target)
        heights.append(view.local_kl(v).kl - view.local_kl(selection.weights).kl)
        scores.append(view.best_row(np.zeros(0, dtype=np.int64)))
    vectors, target = exact.tangent()
    for mine, theirs in ((vectors @ vectors.T, grams), (vectors @ target, products)):
        error = np.std(theirs, axis=0, ddof=1) / np.sqrt(len(theirs)) + 1e-12
        assert np.abs((np.mean(theirs, axis=0) - mine) / error).max() < 5.0
    fall = exact.local_kl(v).kl - exact.local_kl(selection.weights).kl
    assert abs(np.mean(heights) - fall) < 5.0 * np.std(heights, ddof=1) / np.sqrt(20)
    assert exact.best_row(np.zeros(0, dtype=np.int64)) in scores


def test_reused_draws_stand_for_the_weights_they_are_moved_to():
    problem = problem_of(*LINEAR)
    selection = some_weights(problem)
    manifold = SampledManifold(problem, 40_000, None, False, True)
    view = manifold.at(jax.random.key(0), selection)
    near = manifold.moved(jax.random.key(1), view, 1.1 * selection.weights)
    assert near.cloud is view.cloud
    exact = LinearManifold(problem).at(jax.random.key(0), near.selection)
    mine, theirs = near.tangent().vectors, exact.tangent().vectors
    np.testing.assert_allclose(mine @ mine.T, theirs @ theirs.T, rtol=0.15, atol=0.02)
    far = manifold.moved(jax.random.key(1), view, 30.0 * selection.weights)
    assert far.cloud is not view.cloud  # too few of the old draws are left


def test_the_gradient_is_the_derivative_of_the_exact_kl():
    problem = problem_of(*LINEAR)
    selection = some_weights(problem)
    view = LinearManifold(problem).at(jax.random.key(0), selection)
    vectors, target = view.tangent()
    slope = -vectors @ (target - selection.weights @ vectors)
    for k in range(8):
        step = np.zeros(8)
        step[k] = 1e-5
        up, down = (view.local_kl(selection.weights + s * step).kl for s in (1, -1))
        assert slope[k] == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-6)


def exact_kl(coreset, model, rows):
    full = decoct.laplace(model, rows)
    return decoct.kl_gaussian(exact_posterior(coreset.density), full)


@pytest.mark.parametrize("dim", [3, 20])
def test_exact_gaussian_coresets_are_exact_once_there_are_enough_rows(dim):
    rows = {"x": np.random.default_rng(0).normal(size=(300, dim))}
    model = GaussianMean(np.eye(dim))
    path = decoct.path(model, rows, [dim // 2 + 1, dim + 8], method=SparseVI(picks=3 * dim + 9))
    assert path[0].size <= dim // 2 + 1
    assert exact_kl(path[1], model, rows) < 1e-9
    assert path[1].report.predicted_kl == pytest.approx(exact_kl(path[1], model, rows), abs=1e-9)
    assert path[1].report.evaluations == 0  # not one potential was evaluated


def test_exact_linear_coresets_are_exact_once_there_are_enough_rows():
    model, rows = LINEAR
    coreset = decoct.build(model, rows, size=20, method=SparseVI(picks=40))
    assert exact_kl(coreset, model, rows) < 1e-6


UPDATES = {
    "quadratic": (Quadratic(), 0.05),
    "quadratic, undamped": (Quadratic(damped=False, steps=20), 0.2),
    "third order": (Quadratic(third_order=True), 0.5),
    "quadratic, single": (Quadratic(single=True, steps=10), 20.0),
    "gradient": (Gradient(steps=100, rate=0.5), 10.0),
    "adam": (Gradient(steps=100, rate=20.0, optimizer="adam"), 20.0),
}


@pytest.mark.parametrize("name", UPDATES)
def test_every_update_brings_the_posterior_nearer(logistic_rows, name):  # noqa: F811
    update, goal = UPDATES[name]
    model = LogisticRegression()
    full = decoct.laplace(model, logistic_rows)
    prior = decoct.stats.Gaussian(np.zeros(3), np.eye(3))
    method = SparseVI(update=update, draws=200)
    coreset = decoct.build(model, logistic_rows, size=15, method=method, sampler=Laplace())
    fit = decoct.laplace(model, dict(coreset.rows), coreset.weights)
    kl = decoct.kl_gaussian(fit, full)
    assert kl < goal
    assert kl < 0.02 * decoct.kl_gaussian(prior, full)


def test_subsampled_totals_are_near_and_corrected_ones_nearer(logistic_rows):  # noqa: F811
    model, kls = LogisticRegression(), []
    full = decoct.laplace(model, logistic_rows)
    for corrected in (True, False):
        method = SparseVI(
            draws=200, subsample=400, subsample_totals=True, control_variates=corrected
        )
        coreset = decoct.build(model, logistic_rows, size=15, method=method, sampler=Laplace())
        fit = decoct.laplace(model, dict(coreset.rows), coreset.weights)
        kls.append(decoct.kl_gaussian(fit, full))
    assert kls[0] < 0.05
    assert kls[0] < kls[1] < 20.0


@dataclass(frozen=True)
class Idle:
    """An update that leaves all weights as they are."""

    steps: int = 1

    def run(self, key, manifold, view, picked):
        return view


def test_a_row_that_the_update_left_alone_is_not_picked_again(logistic_rows):  # noqa: F811
    coreset = decoct.build(
        LogisticRegression(), logistic_rows, size=6, method=SparseVI(Idle()), sampler=Laplace()
    )
    picked = [one["row"] for one in coreset.report.rounds if "row" in one]
    assert len(picked) >= 5
    assert len(set(picked)) == len(picked)


def test_more_picks_than_rows_swap_the_row_that_is_missed_least(logistic_rows):  # noqa: F811
    model = LogisticRegression()
    full = decoct.laplace(model, logistic_rows)
    kls = []
    for picks in (6, 30):
        coreset = decoct.build(
            model, logistic_rows, size=6, method=SparseVI(picks=picks), sampler=Laplace()
        )
        assert coreset.size <= 6
        kls.append(decoct.kl_gaussian(decoct.laplace(model, coreset.rows, coreset.weights), full))
    assert kls[1] < kls[0]


def test_a_build_goes_on_from_its_checkpoint_to_the_same_coreset(
    logistic_rows,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    model, method = LogisticRegression(), SparseVI(draws=150)
    whole = decoct.build(model, logistic_rows, size=12, method=method, sampler=Laplace())
    stop_at(monkeypatch, SparseVI, 8)
    file = tmp_path / "c.npz"
    options = {"size": 12, "method": method, "sampler": Laplace(), "checkpoint": file}
    with pytest.raises(KeyboardInterrupt):
        decoct.build(model, logistic_rows, **options)
    resumed = decoct.build(model, logistic_rows, **options)
    np.testing.assert_array_equal(resumed.indices, whole.indices)
    np.testing.assert_allclose(resumed.weights, whole.weights, rtol=1e-9)


@dataclass(frozen=True)
class FromStart:
    """Draws that lean towards where the sampler began to look, as short chains do."""

    def draw(self, key, density, n):
        drawn = Laplace().draw(key, density, n)
        return replace(drawn, z=0.9 * drawn.z + 0.1 * np.asarray(density.start))


@pytest.mark.parametrize(
    ("method", "stops"),
    [
        (SparseVI(draws=60, picks=8, reuse=False), (3, 6, 9)),
        (L1Path(draws=60, searches=4, iterations=2, reuse=False), (3, 5)),
    ],
    ids=["greedy", "l1"],
)
def test_a_resumed_build_starts_its_samplers_where_the_first_would_have(
    logistic_rows,  # noqa: F811
    tmp_path,
    monkeypatch,
    method,
    stops,
):
    rows = {name: column[:300] for name, column in logistic_rows.items()}
    options = {"size": 4, "method": method, "sampler": FromStart()}
    whole = decoct.build(LogisticRegression(), rows, **options)
    stop_at(monkeypatch, type(method), *stops)
    options["checkpoint"] = tmp_path / "c.npz"
    for _ in stops:
        with pytest.raises(KeyboardInterrupt):
            decoct.build(LogisticRegression(), rows, **options)
    resumed = decoct.build(LogisticRegression(), rows, **options)
    np.testing.assert_array_equal(resumed.indices, whole.indices)
    np.testing.assert_allclose(resumed.weights, whole.weights, rtol=1e-7)
    assert resumed.report.predicted_kl == pytest.approx(whole.report.predicted_kl, rel=1e-6)


def test_draws_begin_where_the_last_were_and_trials_change_nothing():
    problem = problem_of(*LINEAR, sampler=FromStart())
    selection = some_weights(problem)
    manifold = SampledManifold(problem, 50, None, False, False)
    view = manifold.at(jax.random.key(0), selection)
    np.testing.assert_allclose(view.origin.centre, view.cloud.z.mean(axis=0))
    np.testing.assert_array_equal(view.origin.start, np.zeros(3))
    manifold.at(jax.random.key(1), selection._replace(weights=30.0 * selection.weights))
    again = manifold.at(jax.random.key(0), selection)
    np.testing.assert_array_equal(again.cloud.z, view.cloud.z)
    moved = manifold.moved(jax.random.key(2), view, 2.0 * selection.weights)
    np.testing.assert_array_equal(moved.origin.start, view.origin.centre)
    beyond = manifold.warm_started(moved.origin).at(jax.random.key(3), selection)
    np.testing.assert_array_equal(beyond.origin.start, moved.origin.centre)
    restored = manifold.restored(beyond.origin, selection)
    np.testing.assert_array_equal(restored.cloud.z, beyond.cloud.z)


def test_given_candidates_are_what_there_is_to_choose_from():
    problem = problem_of(*LINEAR)
    selection, nothing = some_weights(problem), np.zeros(0, dtype=np.int64)
    candidates = np.arange(0, 60, 7)
    manifold = SampledManifold(problem, 50, None, True, True, candidates, control_variates=False)
    view = manifold.at(jax.random.key(0), selection)
    assert view.best_row(nothing) in np.union1d(candidates, selection.indices)
    assert view.best_row(np.union1d(candidates, selection.indices)) is None
    total = problem.potentials.vectors(problem.potentials.rows.take(candidates), view.cloud.z)
    total = 60 / len(candidates) * total.sum(axis=0)
    np.testing.assert_allclose(view.cloud.total, total - total.mean(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("case", "exact", "kind"),
    [
        (GAUSSIAN, True, GaussianManifold),
        (LINEAR, True, LinearManifold),
        (LINEAR, False, SampledManifold),
        ((LinearRegression(), LINEAR[1]), True, SampledManifold),
    ],
)
def test_closed_forms_are_taken_where_there_are_any(case, exact, kind):
    manifold = SparseVI(draws=50, exact=exact).make_manifold(problem_of(*case), None, None)
    assert type(manifold) is kind
    assert manifold.warm_started(None) is manifold


def test_poisson_counts_from_draws_of_the_prior():
    rng = np.random.default_rng(0)
    x = np.column_stack([3.0 * rng.normal(size=(300, 4)), np.ones(300)])
    rows = {"x": x, "y": rng.poisson(np.logaddexp(0.0, x @ [20.0, -10.0, 5.0, 1.0, 30.0]))}
    model = PoissonRegression(link="softplus")
    coreset = decoct.build(
        model, rows, size=20, method=SparseVI(picks=60, draws=300), sampler=Laplace()
    )
    fit = decoct.laplace(model, dict(coreset.rows), coreset.weights)
    full = decoct.laplace(model, rows)
    prior = decoct.stats.Gaussian(np.zeros(5), np.eye(5))
    assert decoct.kl_gaussian(fit, full) < 1e-2 * decoct.kl_gaussian(prior, full)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gradient(rate=0.0), "rate γ must be positive"),
        (lambda: Gradient(rate=np.nan), "rate γ must be positive"),
        (lambda: Gradient(optimizer="lbfgs"), "optimizer must be sgd or adam"),
        (lambda: Gradient(steps=1), "steps must be a whole number, at least 2"),
        (lambda: Quadratic(steps=0), "steps must be a whole number, at least 1"),
        (lambda: SparseVI(update=Quadratic), r"update must be Quadratic\(\)"),
        (lambda: Quadratic(heaviest=np.nan), "heaviest must be positive"),
        (lambda: Gradient(rate=True), "rate γ must be positive"),
        (lambda: SparseVI(picks=True), "picks must be a whole number, at least 1"),
        (lambda: SparseVI(draws=1), "draws must be a whole number, at least 2"),
        (lambda: SparseVI(picks=0), "picks must be a whole number, at least 1"),
        (lambda: SparseVI(subsample=0), "subsample must be a whole number, at least 1"),
        (lambda: SparseVI(subsample_totals=True), "needs subsample="),
    ],
)
def test_options_that_cannot_be_meant(make, message):
    with pytest.raises(RequestError, match=message):
        make()


def test_an_improper_prior_is_refused_before_any_work(logistic_rows):  # noqa: F811
    base = LogisticRegression()
    for log_prior in (
        lambda p: 0.0 * p["beta"].sum(),
        lambda p: -0.5 * p["beta"][0] ** 2,
        lambda p: -0.5 * ((p["beta"][0] - p["beta"][1]) ** 2 + p["beta"][2] ** 2),
    ):
        model = decoct.Model(base.log_likelihood, log_prior, {"beta": np.zeros(3)})
        rows = {"x": logistic_rows["x"], "y": 2.0 * logistic_rows["y"] - 1.0}
        for method in (SparseVI(), L1Path()):
            named = rf"does not fall along .* {type(method).__name__} starts"
            with pytest.raises(ModelError, match=named):
                decoct.build(model, rows, size=5, method=method)
        with pytest.raises(ModelError, match="Another starts from the prior"):
            require_proper_prior(problem_of(model, rows).potentials, "Another")


@pytest.mark.parametrize(
    "log_prior",
    [
        lambda z: -jnp.log1p(z @ z),  # its tails are too heavy for three dimensions
        lambda z: -((z[0] - z[1]) ** 4) - z[2] ** 2,  # flat along (1, 1, 0), without curvature
        lambda z: -jnp.abs(z[0] + z[1]) - z[2] ** 2,
        lambda z: -jnp.square(z - z.mean()).sum(),  # flat along (1, 1, 1)
    ],
)
def test_an_improper_prior_is_found_off_the_axes(log_prior):
    model = decoct.Model(lambda z, rows: -0.5 * jnp.square(rows["x"] @ z), log_prior, np.zeros(3))
    rows = {"x": np.eye(3)}
    with pytest.raises(ModelError, match="must be proper"):
        require_proper_prior(problem_of(model, rows).potentials, "SparseVI")


@pytest.mark.parametrize(
    "log_prior",
    [
        lambda z: -2.0 * jnp.log1p(z @ z),  # the multivariate Cauchy distribution
        lambda z: -jnp.log1p(jnp.square(z)).sum(),
        lambda z: -0.5 * z[0] ** 2 - jnp.abs(z[1] - z[0]) - jnp.abs(z[2]),
        lambda z: -0.5 * z[0] ** 2 - z[0] - 0.5 * jnp.square(z[1:] / jnp.exp(z[0])).sum(),
    ],
)
def test_a_proper_prior_passes_however_it_falls(log_prior):
    model = decoct.Model(lambda z, rows: -0.5 * jnp.square(rows["x"] @ z), log_prior, np.zeros(3))
    require_proper_prior(problem_of(model, {"x": np.eye(3)}).potentials, "SparseVI")


def test_a_vague_prior_is_proper(logistic_rows):  # noqa: F811
    for model in (LogisticRegression(prior_scale=1000.0), GaussianMean(np.eye(3), 0.0, 1e6)):
        require_proper_prior(problem_of(model, logistic_rows).potentials, "SparseVI")


def test_a_heavy_tailed_prior_is_proper(logistic_rows):  # noqa: F811
    base = LogisticRegression()

    def cauchy(params):
        return -jnp.log1p(params["beta"] ** 2).sum()

    model = decoct.Model(base.log_likelihood, cauchy, {"beta": np.zeros(3)})
    rows = {"x": logistic_rows["x"][:200], "y": 2.0 * logistic_rows["y"][:200] - 1.0}
    method = SparseVI(draws=100, update=Quadratic(steps=1))
    assert decoct.build(model, rows, size=2, method=method, sampler=Laplace()).size <= 2


def test_third_order_terms_are_refused_in_closed_form_before_any_work(monkeypatch):
    monkeypatch.setattr(SparseVI, "step", None)
    method = SparseVI(update=Quadratic(third_order=True))
    for model, rows in (GAUSSIAN, LINEAR):
        with pytest.raises(RequestError, match="third_order=True needs draws; set exact=False"):
            decoct.build(model, rows, size=5, method=method)
    monkeypatch.undo()
    drawn = replace(method, exact=False, draws=100)
    assert decoct.build(*LINEAR, size=3, method=drawn).size <= 3


def test_plain_steps_that_run_away_say_so():
    rows = {"x": np.random.default_rng(0).normal(size=(200, 30)) + 1.0}
    options = {"model": GaussianMean(np.eye(30)), "rows": rows, "size": 4}
    plain = decoct.build(**options, method=SparseVI(Gradient(steps=50, rate=1.0)))
    last = plain.report.rounds[-1]["warning"]
    share = plain.weights.sum() / 200
    assert share > 4.0
    assert f"add up to {share:.3g} times the number of rows" in last
    assert "optimizer='adam'" in last
    for update in (Gradient(steps=50, rate=1.0, optimizer="adam"), Quadratic()):
        others = decoct.build(**options, method=SparseVI(update)).report.rounds
        assert not any("warning" in one for one in others)


@dataclass(frozen=True)
class Noting:
    """Laplace draws, and a note of where the sampler began to look."""

    starts: list

    def draw(self, key, density, n):
        self.starts.append(np.asarray(density.start))
        return Laplace().draw(key, density, n)


def test_trial_steps_begin_to_look_at_the_nearest_weights(logistic_rows):  # noqa: F811
    starts = []
    problem = problem_of(LogisticRegression(), logistic_rows, sampler=Noting(starts))
    manifold = SampledManifold(problem, 200, None, False, True)
    rows = np.arange(0, 900, 100)
    selection = Selection(rows, np.full(9, 1000 / 9), problem.potentials.rows.take(rows))
    view = manifold.warm_started(manifold.at(jax.random.key(0), selection).origin).at(
        jax.random.key(1), selection._replace(weights=np.linspace(20.0, 200.0, 9))
    )
    goal = np.r_[np.full(8, 1e-3), 1000.0]
    weight_updates._try_lengths(jax.random.key(2), manifold, view, goal, 1.0)
    assert len(starts) > 2
    for start in starts[2:]:
        np.testing.assert_array_equal(start, view.origin.centre)


def test_algorithm_1_written_out():
    """Potentials, correlations and steps in NumPy; only the draws of π_w are the package's own."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(40, 2))
    y = np.where(rng.random(40) < 1.0 / (1.0 + np.exp(-2.0 * x[:, 0])), 1.0, -1.0)
    model, picks, steps, draws, rate = LogisticRegression(), 4, 12, 25, 0.3
    weights, picked = np.zeros(40), []

    def potentials(key, weights):
        kept = np.flatnonzero(weights) if weights.any() else np.zeros(1, dtype=int)
        density = WeightedDensity.of(model, {"x": x[kept], "y": y[kept]}, weights[kept])
        z = Laplace().draw(jax.random.fold_in(key, 0), density, draws).flat
        f = -np.logaddexp(0.0, -y[:, None] * (x @ z.T))
        return f - f.mean(axis=1, keepdims=True)

    for pick in range(picks):
        key = jax.random.fold_in(jax.random.key(7), pick + 1)
        g = potentials(jax.random.fold_in(key, 0), weights)
        scores = g @ ((1.0 - weights) @ g) / np.sqrt(np.square(g).sum(axis=1))
        picked.append(int(np.argmax(np.where(weights > 0.0, np.abs(scores), scores))))
        active = np.unique(np.r_[np.flatnonzero(weights), picked[-1]])
        for t in range(steps):
            # lines 11-12: new draws at the weights as they are, the first time too
            number = steps if t == 0 else t - 1
            g = potentials(jax.random.fold_in(jax.random.fold_in(key, 1), number), weights)
            slope = -g[active] @ ((1.0 - weights) @ g) / draws
            weights[active] = np.maximum(0.0, weights[active] - rate / (1.0 + t) * slope)
    assert len(set(picked)) == picks
    update = Gradient(steps=steps, rate=rate)
    coreset = decoct.build(
        model, {"x": x, "y": y}, size=picks, sampler=Laplace(), seed=7,
        method=SparseVI(update, draws=draws, reuse=False),
    )  # fmt: skip
    assert [one["row"] for one in coreset.report.rounds if "row" in one] == picked[:-1]
    np.testing.assert_array_equal(coreset.indices, np.flatnonzero(weights))
    np.testing.assert_allclose(coreset.weights, weights[weights > 0.0], rtol=1e-8)


class Sparing:
    """A sampler that returns fewer draws than asked for."""

    def draw(self, key, density, n):
        return Draws(np.zeros((1, 1, density.dim)), "sparing")


class Excessive:
    """A sampler whose draws are finite and their squares are not."""

    def draw(self, key, density, n):
        z = np.zeros((1, n, density.dim))
        z[0, 3] = 1e200
        return Draws(z, "excessive")


class Broken:
    """A sampler that returns what is no number."""

    def draw(self, key, density, n):
        return Draws(np.full((1, n, density.dim), np.nan), "broken")


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Broken(), "Draw 0 of the sampler 'broken' is not finite"),
        (Sparing(), "'sparing' returned 1 draws of the 50"),
        (Excessive(), "at draw 3 of the sampler 'excessive' are too large"),
    ],
)
def test_draws_that_cannot_be_used_are_refused(logistic_rows, sampler, message):  # noqa: F811
    method = SparseVI(draws=50)
    with np.errstate(over="ignore"), pytest.raises(ModelError, match=message):
        decoct.build(LogisticRegression(), logistic_rows, size=5, method=method, sampler=sampler)


class Souring:
    """A sampler that is sound until its n-th set of draws."""

    def __init__(self, n):
        self.n = n

    def draw(self, key, density, n):
        self.n -= 1
        return (Laplace() if self.n > 0 else Broken()).draw(key, density, n)


@pytest.mark.parametrize("method", [SparseVI(draws=50), L1Path(draws=50)], ids=["greedy", "l1"])
@pytest.mark.parametrize("bad", [2, 3, 4])
def test_draws_that_turn_bad_later_are_refused_too(logistic_rows, method, bad):  # noqa: F811
    rows = {name: column[:200] for name, column in logistic_rows.items()}
    with pytest.raises(SamplerError, match="of the sampler 'broken' is not finite"):
        decoct.build(LogisticRegression(), rows, size=4, method=method, sampler=Souring(bad))


def test_a_table_too_large_for_one_look_asks_for_a_subsample(logistic_rows, monkeypatch):  # noqa: F811
    monkeypatch.setattr(base, "WHOLE_BYTES", 1000)
    with pytest.raises(RequestError, match="give subsample="):
        decoct.build(LogisticRegression(), logistic_rows, size=3, method=SparseVI())


@pytest.fixture
def taken(monkeypatch):
    """How many rows were asked for, each time that some were."""
    asked = []
    take = EncodedRows.take

    def watched(rows, indices, columns=None):
        asked.append(len(indices))
        return take(rows, indices, columns)

    monkeypatch.setattr(EncodedRows, "take", watched)
    return asked


@pytest.mark.parametrize("case", [GAUSSIAN, LINEAR], ids=["mean", "regression"])
def test_a_closed_form_of_too_many_rows_asks_for_draws(case, taken, monkeypatch):
    model, rows = case
    numbers = sum(np.size(column) for column in rows.values()) + 60 * (rows["x"].shape[1] + 1)
    monkeypatch.setattr(base, "WHOLE_BYTES", 8 * numbers - 1)
    for method in (SparseVI(), SparseVI(subsample=10), L1Path()):
        with pytest.raises(
            RequestError, match=r"all 60 rows in this process.*exact=False with sub"
        ):
            decoct.build(model, rows, size=3, method=method)
    assert max(taken) < 60  # refused before they came
    for method in (SparseVI, L1Path):
        chosen = method(exact=False, subsample=10, draws=50)
        assert 1 <= decoct.build(model, rows, size=3, method=chosen).size <= 3
    assert max(taken) < 60
    monkeypatch.setattr(base, "WHOLE_BYTES", 8 * numbers)
    decoct.build(model, rows, size=3, method=SparseVI())
    assert max(taken) == 60


@pytest.mark.parametrize("method", [SparseVI, L1Path])
def test_rows_that_are_too_large_for_one_look_ask_for_a_subsample(
    logistic_rows,  # noqa: F811
    method,
    taken,
    monkeypatch,
):
    """Rows wider than the draws are many count as well as their potentials."""
    n, numbers = 200, 1 + logistic_rows["x"].shape[1] + 20
    rows = {name: column[:n] for name, column in logistic_rows.items()}
    monkeypatch.setattr(base, "WHOLE_BYTES", 8 * n * numbers - 1)
    with pytest.raises(RequestError, match="All 200 rows and their potentials at 20 draws"):
        decoct.build(LogisticRegression(), rows, size=2, method=method(draws=20))
    assert max(taken) < n
    chosen = method(draws=20, subsample=50)
    options = {"method": chosen, "sampler": Laplace()}
    assert decoct.build(LogisticRegression(), rows, size=2, **options).size <= 2
    assert max(taken) < n


def test_the_plain_algorithm_of_the_paper_runs(logistic_rows):  # noqa: F811
    rows = {name: column[:200] for name, column in logistic_rows.items()}
    method = SparseVI(draws=50, update=Gradient(steps=20, rate=0.5), reuse=False)
    coreset = decoct.build(LogisticRegression(), rows, size=4, method=method, sampler=Laplace())
    assert 1 <= coreset.size <= 4
    assert coreset.report.passes > 4 * 20  # fresh draws, and so a pass, for every gradient
