"""Hilbert coresets: the contract for every solver, norms and weightings against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct import mixture, solvers
from decoct.constructions import Hilbert
from decoct.constructions.hilbert import weighting
from decoct.constructions.hilbert.norms import ExactGaussian, Scores
from decoct.errors import ModelError, RequestError
from decoct.models import GaussianMean, LogisticRegression
from decoct.passes.chunk_sums import as_embedding
from decoct.runtime.precision import float64
from decoct.samplers import NUTS, Laplace, Pathfinder
from decoct.samplers.exact import exact_posterior
from decoct.stats import Gaussian
from decoct.theory import geometry
from decoct.theory.bounds import frank_wolfe_bound
from tests.constructions.contract import ConstructionContract, logistic_rows, potentials_of  # noqa: F401


class TestPursuit(ConstructionContract):
    method = Hilbert(draws=60)


class TestFrankWolfe(ConstructionContract):
    method = Hilbert(solvers.FrankWolfe(), draws=60)


class TestFixedStep(ConstructionContract):
    method = Hilbert(solvers.FrankWolfe(step="fixed"), draws=60)


class TestAwayStep(ConstructionContract):
    method = Hilbert(solvers.FrankWolfe("away"), norm="fisher", draws=60)


class TestPairwise(ConstructionContract):
    method = Hilbert(
        solvers.FrankWolfe("pairwise"), weighting=weighting.Subsample(200, Laplace()), draws=60
    )


class TestFullyCorrective(ConstructionContract):
    method = Hilbert(solvers.FrankWolfe("fully_corrective"), draws=60)


class TestGIGA(ConstructionContract):
    method = Hilbert(solvers.GIGA(), draws=60)


class TestImportanceSampling(ConstructionContract):
    method = Hilbert(solvers.ImportanceSampling(), norm="fisher", draws=60)


class TestIterativeThresholding(ConstructionContract):
    method = Hilbert(solvers.IterativeThresholding(iterations=30), draws=60)


class TestSmallPool(ConstructionContract):
    method = Hilbert(solvers.GIGA(), draws=60, pool=400)


SIGMA = np.array([[2.0, 0.6], [0.6, 1.0]])


@pytest.fixture(scope="module")
def gaussian():
    rng = np.random.default_rng(0)
    rows = {"x": rng.multivariate_normal([1.0, -2.0], SIGMA, size=400)}
    model = GaussianMean(SIGMA, prior_mean=0.5)
    potentials = potentials_of(model, rows)
    return model, rows, potentials, decoct.laplace(model, rows)


def gram(potentials, at):
    vectors, target = potentials.all_vectors(at)
    np.testing.assert_allclose(target, vectors.sum(axis=0), rtol=1e-9, atol=1e-9)
    return vectors[:6] @ vectors[:6].T


@pytest.mark.parametrize("norm", ["l2", "fisher"])
def test_the_closed_form_is_what_projections_estimate(gaussian, norm):
    model, _, potentials, posterior = gaussian
    # wider than the posterior, so that the shared part tr(A²C) counts as much as the rows do
    wide = Gaussian(posterior.mean, 300.0 * posterior.cov)
    with jax.enable_x64(True):
        exact = gram(potentials, ExactGaussian.of(model, wide, norm))
    estimates = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        draws = wide.sample(rng, 2000)
        with jax.enable_x64(True):
            scores = Scores.at(potentials.space, draws, rng)
            at = scores if norm == "fisher" else as_embedding(draws)
        estimates.append(gram(potentials, at))
    error = np.std(estimates, axis=0, ddof=1) / np.sqrt(len(estimates))
    assert np.abs((np.mean(estimates, axis=0) - exact) / error).max() < 4.5


def test_equation_6_5():
    y = np.random.default_rng(1).normal(size=(50, 2))
    model = GaussianMean(np.eye(2))
    potentials = potentials_of(model, {"x": y})
    posterior = decoct.laplace(model, {"x": y})
    with jax.enable_x64(True):
        vectors, _ = potentials.all_vectors(ExactGaussian.of(model, posterior, "fisher"))
    offset = posterior.mean - y
    np.testing.assert_allclose(vectors @ vectors.T, 2 / 51 + offset @ offset.T, atol=1e-12)


def test_one_coordinate_of_the_gradient_per_draw(gaussian):
    _, rows, potentials, posterior = gaussian
    draws = posterior.sample(np.random.default_rng(0), 40)
    with jax.enable_x64(True):
        at = Scores.at(potentials.space, draws, np.random.default_rng(5))
        values = potentials.vectors({"x": rows["x"][:7]}, at)
    gradients = (rows["x"][:7, None, :] - draws[None]) @ np.linalg.inv(SIGMA)
    picked = np.asarray(at.coordinates)
    assert set(picked) == {0, 1}
    by_hand = np.take_along_axis(gradients, picked[None, :, None], axis=2)[..., 0]
    np.testing.assert_allclose(values, by_hand, rtol=1e-10)
    np.testing.assert_allclose(at.vectors(values), np.sqrt(2 / 40) * by_hand, rtol=1e-10)


def exact_kl(coreset, posterior):
    return decoct.kl_gaussian(posterior, exact_posterior(coreset.density))


def test_exact_frank_wolfe_keeps_falling_below_its_bound(gaussian):
    model, rows, potentials, posterior = gaussian
    sizes = [2, 5, 10, 20, 40, 80, 160]
    method = Hilbert(solvers.FrankWolfe(), norm="fisher", exact=True)
    path = decoct.path(model, rows, sizes, method=method)
    with jax.enable_x64(True):
        vectors, target = potentials.all_vectors(ExactGaussian.of(model, posterior, "fisher"))
    errors = [np.linalg.norm(target - one.weights @ vectors[one.indices]) for one in path]
    bound = frank_wolfe_bound(geometry(vectors), np.array(sizes))
    assert (np.array(errors) <= bound).all()
    kls = [exact_kl(one, posterior) for one in path]
    assert (np.diff(kls) < 0).all()
    # a linear rate: the fall of the log error per step does not die away
    slopes = np.diff(np.log(errors)) / np.diff(sizes)
    assert slopes[-1] < -0.3 * np.abs(slopes[-2])
    away = Hilbert(solvers.FrankWolfe("away"), norm="fisher", exact=True)
    assert exact_kl(decoct.build(model, rows, size=160, method=away), posterior) < 1e-12


def test_more_draws_bring_the_projection_to_the_exact_coreset(gaussian):
    model, rows, _, posterior = gaussian

    def kl(seed=0, **options):
        method = Hilbert(solvers.FrankWolfe(), norm="fisher", **options)
        return exact_kl(decoct.build(model, rows, size=50, seed=seed, method=method), posterior)

    exact = kl(exact=True)
    gaps = [
        np.median([abs(kl(seed, draws=draws) - exact) for seed in range(7)])
        for draws in (2, 20, 1000)
    ]
    assert gaps[0] > 10 * gaps[1]
    assert gaps[1] > 2 * gaps[2]
    assert gaps[2] < 0.2 * exact


@pytest.mark.parametrize("norm", ["l2", "fisher"])
@pytest.mark.parametrize("name", ["laplace", "subsample", "pathfinder"])
def test_weightings_near_the_posterior_give_good_coresets(logistic_rows, norm, name):  # noqa: F811
    model = LogisticRegression()
    method = Hilbert(norm=norm, weighting=name, draws=100)
    coreset = decoct.build(model, logistic_rows, size=40, method=method)
    full = decoct.laplace(model, logistic_rows)
    fit = decoct.laplace(model, dict(coreset.rows), coreset.weights)
    assert decoct.kl_gaussian(fit, full) < 0.01
    assert coreset.report.method["weighting"]["name"] in ("FullLaplace", "Subsample")
    assert coreset.report.rounds[0]["predicted_kl"] == coreset.report.predicted_kl


def test_predicted_kl_is_the_kl_where_draws_are_the_posterior_s(gaussian):
    model, rows, *_, posterior = gaussian
    method = Hilbert(solvers.GIGA(), draws=2000)
    coreset = decoct.build(model, rows, size=12, method=method)
    mine = exact_posterior(coreset.density)
    reverse = decoct.kl_gaussian(mine, posterior)
    assert coreset.report.predicted_kl == pytest.approx(reverse, rel=0.5)


@float64
def draws_of(source, potentials, n=3000):
    return source.draw(jax.random.key(0), potentials, n)


def test_the_gaussian_prior_is_drawn_exactly(gaussian):
    *_, potentials, _ = gaussian
    draws = draws_of(weighting.Prior(), potentials)
    assert np.abs(draws.mean(axis=0) - 0.5).max() < 4.5 / np.sqrt(3000)
    assert np.abs(np.cov(draws.T) - np.eye(2)).max() < 4.5 * np.sqrt(2 / 3000)


def test_another_prior_is_drawn_by_nuts():
    def laplacian(params):
        return -jnp.abs(params["a"]) - 0.5 * params["a"] ** 2

    model = decoct.Model(lambda p, r: -((r["y"] - p["a"]) ** 2), laplacian, {"a": 0.3})
    potentials = potentials_of(model, {"y": np.zeros(5)})
    draws = draws_of(weighting.Prior(NUTS(warmup=200)), potentials, 2000)
    grid = np.linspace(-8, 8, 20001)
    density = np.exp(-np.abs(grid) - 0.5 * grid**2)
    variance = (density * grid**2).sum() / density.sum()
    assert np.var(draws) == pytest.approx(variance, rel=0.2)


def test_a_subset_stands_for_the_table(gaussian):
    *_, potentials, posterior = gaussian
    draws = draws_of(weighting.Subsample(200, Laplace()), potentials)
    np.testing.assert_allclose(np.cov(draws.T), posterior.cov, rtol=0.2, atol=0.0005)
    all_rows = draws_of(weighting.Subsample(None, Laplace()), potentials)
    white = np.linalg.solve(np.linalg.cholesky(posterior.cov), (all_rows - posterior.mean).T)
    assert np.abs(white.mean(axis=1)).max() < 4.5 / np.sqrt(3000)


def test_given_draws_are_used_as_they_are(logistic_rows):  # noqa: F811
    model = LogisticRegression()
    full = decoct.laplace(model, logistic_rows)
    draws = full.sample(np.random.default_rng(0), 80)
    method = Hilbert(weighting=draws)
    coreset = decoct.build(model, logistic_rows, size=30, method=method)
    assert coreset.report.predicted_kl is None  # no draws are left to judge by
    assert coreset.report.rounds[0]["draws"] == 80
    assert "shape (80, 3)" in str(coreset.report.method)
    fit = decoct.laplace(model, dict(coreset.rows), coreset.weights)
    assert decoct.kl_gaussian(fit, full) < 0.1


def build(rows, model=None, size=5, **options):
    return decoct.build(model or LogisticRegression(), rows, size=size, method=Hilbert(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "sup"}, "norm must be one of l2, fisher"),
        ({"draws": 1}, "draws must be a whole number, at least 2"),
        ({"solver": solvers.GIGA}, "solver must be one of"),
        ({"pool": 0}, "pool must be a whole number"),
        ({"iterations": 0}, "iterations must be a whole number"),
        ({"weighting": "posterior"}, "weighting must be one of laplace, prior"),
        ({"weighting": 3}, "weighting must be one of"),
        ({"weighting": "prior", "exact": True}, "exact=True needs a Gaussian"),
    ],
)
def test_options_that_cannot_be_meant(options, message):
    with pytest.raises(RequestError, match=message):
        Hilbert(**options)


@pytest.mark.parametrize(
    ("draws", "message"),
    [
        (np.zeros((5, 2)), r"must be \(S, 3\)"),
        (np.zeros((1, 3)), "at least two"),
        (np.array([[0.0, 0.0, 0.0], [0.0, np.nan, 0.0]]), "draw 1 has NaN"),
    ],
)
def test_weighting_draws_that_do_not_fit(logistic_rows, draws, message):  # noqa: F811
    with pytest.raises(RequestError, match=message):
        build(logistic_rows, weighting=draws)


@pytest.mark.parametrize("rows", [0, True])
def test_a_subset_has_at_least_one_row(rows):
    with pytest.raises(RequestError, match="rows must be a whole number, at least 1"):
        weighting.Subsample(rows)


def test_exact_is_for_gaussians(logistic_rows):  # noqa: F811
    with pytest.raises(ModelError, match="LogisticRegression has no inner product in closed form"):
        build(logistic_rows, exact=True)


def test_importance_sampling_needs_all_rows(logistic_rows):  # noqa: F811
    with pytest.raises(RequestError, match="needs every row"):
        build(logistic_rows, solver=solvers.ImportanceSampling(), pool=100)


def test_a_potential_that_is_not_finite_names_row_and_draw():
    model = decoct.Model(
        lambda p, r: jnp.log(r["y"] + p["a"]), lambda p: -0.5 * p["a"] ** 2, {"a": 0.0}
    )
    rows = {"y": np.array([3.0, 0.5, 4.0])}
    draws = np.array([[0.1], [-0.7], [0.2]])
    with pytest.raises(ModelError, match="row 1 is nan at draw 1"):
        decoct.build(model, rows, size=2, method=Hilbert(weighting=draws))
    with pytest.raises(ModelError, match="row 1 is nan at draw 1"):
        decoct.build(model, rows, size=2, method=Hilbert(weighting=draws, pool=2))


@pytest.mark.parametrize("norm", ["l2", "fisher"])
@pytest.mark.parametrize(
    "solver",
    [
        solvers.GIGA(),
        solvers.FrankWolfe(),
        solvers.ImportanceSampling(),
        solvers.OrthogonalPursuit(),
        solvers.IterativeThresholding(),
    ],
)
def test_rows_all_alike_and_rows_that_say_nothing(solver, norm):
    same = {"x": np.ones((40, 2))}
    coreset = build(same, GaussianMean(np.eye(2)), solver=solver, norm=norm, draws=20)
    assert coreset.weights.sum() == pytest.approx(40)
    silent = {"x": np.zeros((40, 2)), "y": np.tile([0, 1], 20)}
    coreset = build(silent, solver=solver, norm=norm, draws=20)
    assert coreset.size == 5
    np.testing.assert_allclose(coreset.weights, 8.0)


def test_fewer_draws_than_rows_kept(logistic_rows):  # noqa: F811
    coreset = build(logistic_rows, size=50, draws=7)
    assert 1 <= coreset.size <= 7  # as many vectors span everything seen


def test_a_small_pool_is_nearly_as_good(logistic_rows):  # noqa: F811
    model = LogisticRegression()
    full = decoct.laplace(model, logistic_rows)
    for solver in (solvers.OrthogonalPursuit(), solvers.FrankWolfe()):
        coreset = build(logistic_rows, size=40, solver=solver, pool=300, draws=100)
        assert coreset.report.rounds[0]["pool"] <= 300
        assert abs(coreset.weights.sum() / coreset.n_rows - 1) < 0.7
        fit = decoct.laplace(model, dict(coreset.rows), coreset.weights)
        assert decoct.kl_gaussian(fit, full) < 5.0


def test_more_iterations_fill_the_size(logistic_rows):  # noqa: F811
    usual = build(logistic_rows, size=30, solver=solvers.FrankWolfe())
    filled = build(logistic_rows, size=30, solver=solvers.FrankWolfe(), iterations=600)
    assert filled.size <= 30
    error = [one.report.rounds[0]["relative_error"] for one in (usual, filled)]
    assert error[1] <= error[0]


def test_a_huge_pool_is_kept_in_single_precision(logistic_rows, monkeypatch):  # noqa: F811
    from decoct.constructions.hilbert import hilbert

    double = build(logistic_rows, size=8, solver=solvers.GIGA())
    monkeypatch.setattr(hilbert, "DOUBLE_BYTES", 0)
    single = build(logistic_rows, size=8, solver=solvers.GIGA())
    np.testing.assert_array_equal(single.indices, double.indices)
    np.testing.assert_allclose(single.weights, double.weights, rtol=1e-4)
    monkeypatch.setattr(hilbert, "POOL_BYTES", 4 * 500 * 300)
    assert build(logistic_rows, size=8).report.rounds[0]["pool"] <= 300


def test_the_report_survives_the_file(logistic_rows, tmp_path):  # noqa: F811
    coreset = build(logistic_rows, solver=solvers.FrankWolfe("away"), weighting="subsample")
    coreset.save(tmp_path / "c.parquet")
    report = decoct.load(tmp_path / "c.parquet").report
    assert report.method["solver"] == {"name": "FrankWolfe", "variant": "away", "step": "exact"}


def test_potentials_that_do_not_vary_are_no_directions():
    model = decoct.Model(
        lambda p, r: -(r["y"] ** 2) / 3.0 + 0.0 * p["a"], lambda p: -0.5 * p["a"] ** 2, {"a": 0.0}
    )
    rows = {"y": np.random.default_rng(0).normal(size=200)}
    for solver in (solvers.GIGA(), solvers.FrankWolfe(), solvers.OrthogonalPursuit()):
        coreset = build(rows, model, size=10, solver=solver, weighting="prior", draws=100)
        np.testing.assert_allclose(coreset.weights, 20.0)
    gaussian = {"x": np.random.default_rng(0).normal(size=(200, 2))}
    coreset = build(gaussian, GaussianMean(np.eye(2)), size=10, weighting=np.zeros((5, 2)))
    np.testing.assert_allclose(coreset.weights, 20.0)


def test_draws_may_be_lists_and_jax_arrays(logistic_rows):  # noqa: F811
    draws = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    built = [
        build(logistic_rows, weighting=given)
        for given in (draws, draws.tolist(), jnp.asarray(draws))
    ]
    for one in built[1:]:
        np.testing.assert_array_equal(one.indices, built[0].indices)


def test_a_sphere_has_no_laplace_approximation():
    rng = np.random.default_rng(0)
    x = mixture.sample_vmf(rng, np.eye(3)[rng.integers(3, size=300)], 50.0)
    model = mixture.VonMisesFisherMixture(3, 3, 50.0)
    with pytest.raises(ModelError, match="Alternatively use a weighting distribution"):
        build({"x": x}, model)
    coreset = build({"x": x}, model, size=40, weighting=mixture.Conditionals(), norm="fisher")
    assert coreset.report.predicted_kl < 1e-3
    with pytest.raises(ModelError, match="are for VonMisesFisherMixture"):
        build({"x": x}, GaussianMean(np.eye(3)), weighting=mixture.Conditionals())


def test_a_subset_whose_posterior_is_not_gaussian_warns_of_an_approximation():
    rng = np.random.default_rng(0)
    x = mixture.sample_vmf(rng, np.eye(3)[rng.integers(3, size=300)], 50.0)
    method = weighting.Subsample(None, Pathfinder())
    with pytest.warns(UserWarning, match="do not fit the posterior of the subset"):
        build({"x": x}, mixture.VonMisesFisherMixture(3, 3, 50.0), weighting=method, draws=50)
