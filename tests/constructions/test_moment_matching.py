"""MomentMatching: derivatives against finite differences, exact where potentials are quadratic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.constructions import MomentMatching
from decoct.constructions.hilbert.norms import Moments
from decoct.errors import ModelError, RequestError
from decoct.models import LinearRegression, LogisticRegression
from decoct.models.parameters import ParameterSpace
from decoct.stats.divergences import Gaussian
from tests.constructions.contract import ConstructionContract, logistic_rows, potentials_of  # noqa: F401


class TestMomentMatching(ConstructionContract):
    method = MomentMatching(pool=400)

    def test_one_run_answers_every_size(self, logistic_rows):  # noqa: F811
        """No more than K = 9 rows are of use to three coefficients."""
        path = decoct.path(LogisticRegression(), logistic_rows, [40, 3, 6], method=self.method)
        assert [one.size for one in path] == [3, 6, 9]


def gaussian(dim):
    rng = np.random.default_rng(2)
    factor = rng.normal(size=(dim, dim))
    return Gaussian(rng.normal(size=dim), factor @ factor.T + np.eye(dim))


def test_the_numbers_are_whitened_derivatives():
    rng, where = np.random.default_rng(0), gaussian(3)
    rows = {"x": rng.normal(size=(5, 3)), "y": np.array([1.0, -1.0, 1.0, 1.0, -1.0])}
    model = LogisticRegression()
    with jax.enable_x64(True):
        space = ParameterSpace.of(model.init(rows))
        at = Moments.of(space, where)
        found = np.asarray(at.evaluate(model, space, jax.tree.map(jnp.asarray, rows)))
    C = np.linalg.cholesky(where.cov)
    for n in range(5):
        x, y = rows["x"][n], rows["y"][n]
        p = 1.0 / (1.0 + np.exp(y * (x @ where.mean)))
        slope = C.T @ (y * p * x)
        curvature = -p * (1 - p) * np.outer(C.T @ x, C.T @ x)
        upper = curvature[np.triu_indices(3, 1)]
        expected = np.concatenate([slope, np.diag(curvature) / np.sqrt(2), upper])
        np.testing.assert_allclose(found[:, n], expected, rtol=1e-10)


def test_squared_length_is_the_variance_of_a_quadratic():
    rng, where = np.random.default_rng(1), gaussian(2)
    model = LinearRegression(noise_scale=1.5)
    rows = {"x": rng.normal(size=(4, 2)), "y": rng.normal(size=4)}
    potentials = potentials_of(model, rows)
    with jax.enable_x64(True):
        at = Moments.of(potentials.space, where)
        found = potentials.vectors(potentials.rows.take(np.arange(4)), at)
    # Gauss-Hermite integrates a quartic exactly
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    u = np.array([(a, b) for a in nodes for b in nodes])
    w = np.array([a * b for a in weights for b in weights]) / (2 * np.pi)
    draws = where.mean + u @ np.linalg.cholesky(where.cov).T
    values = potentials.vectors(potentials.rows.take(np.arange(4)), draws)
    variance = values**2 @ w - (values @ w) ** 2
    np.testing.assert_allclose(np.square(found).sum(axis=1), variance, rtol=1e-9)


def test_quadratic_potentials_are_met_exactly_by_k_rows():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(5000, 4))
    rows = {"x": x, "y": x @ np.array([1.0, -1.0, 0.5, 0.0]) + rng.normal(size=5000)}
    model, K = LinearRegression(noise_scale=1.0), 4 * 7 // 2
    coreset = decoct.build(model, rows, size=K, method=MomentMatching())
    assert coreset.size <= K
    full = decoct.laplace(model, rows)
    kept = decoct.laplace(model, coreset.rows, coreset.weights)
    assert decoct.kl_gaussian(kept, full) < 1e-8
    assert coreset.report.rounds[0]["second_order_kl"] < 1e-8


def test_logistic_rows_come_as_close_as_the_default_construction_does(logistic_rows):  # noqa: F811
    model = LogisticRegression()
    full = decoct.laplace(model, logistic_rows)

    def kl(**options):
        coreset = decoct.build(model, logistic_rows, size=25, **options)
        return decoct.kl_gaussian(decoct.laplace(model, coreset.rows, coreset.weights), full)

    assert kl(method=MomentMatching()) < 1e-4
    assert kl(method=MomentMatching()) < max(10.0 * kl(), 1e-6)


def test_what_cannot_be_meant_is_refused(logistic_rows):  # noqa: F811
    with pytest.raises(RequestError, match="pool must be a whole number"):
        MomentMatching(pool=0)
    with pytest.raises(RequestError, match="exchanges must be"):
        MomentMatching(exchanges=-1)
    wide = {"x": np.random.default_rng(0).normal(size=(40_000, 120)), "y": np.arange(40_000) % 2}
    with pytest.raises(RequestError, match="take IteratedHilbert"):
        decoct.build(LogisticRegression(), wide, size=10, method=MomentMatching())


def test_a_posterior_without_a_mode_is_an_error():
    flat = decoct.Model(
        lambda params, rows: rows["v"] * params["m"],
        lambda params: 0.0 * params["m"],
        {"m": 0.0},
    )
    with pytest.raises(ModelError):
        decoct.build(flat, {"v": np.ones(50)}, size=5, method=MomentMatching())
