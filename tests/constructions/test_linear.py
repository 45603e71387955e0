"""The closed form of linear regression against dense formulas for moments of quadratics."""

import jax
import numpy as np
import pytest

import decoct
from decoct.constructions.base import Selection
from decoct.constructions.sparse_vi.manifold.linear import LinearManifold
from decoct.errors import ModelError
from decoct.models import LinearRegression
from decoct.samplers.base import WeightedDensity
from decoct.samplers.exact import exact_posterior
from decoct.stats import Gaussian
from tests.constructions.contract import problem_of

N, D = 150, 6
NOISE_SCALE = 0.4
PRIOR_SCALE = np.array([0.5, 2.0, 10.0, 1.0, 1.0, 3.0])
NOTHING = np.zeros(0, dtype=np.int64)


def manifold_of(x, y, **options):
    model = LinearRegression(noise_scale=NOISE_SCALE, **options)
    return LinearManifold(problem_of(model, {"x": x, "y": y}, 20))


@pytest.fixture(scope="module")
def manifold():
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(size=(N, D))) * [1.0, 0.1, 5.0, 1.0, 1.0, 0.3]
    y = x @ rng.normal(size=D) + NOISE_SCALE * rng.standard_t(4.0, size=N)
    return manifold_of(x, y, prior_scale=PRIOR_SCALE)


def selection_of(manifold, rows, weights):
    taken = {name: column[rows] for name, column in manifold.rows.items()}
    return Selection(rows, np.asarray(weights, dtype=float), taken)


def some_rows(manifold, m, seed):
    """Return m rows whose weights sum to about N, one of them 0 if there are several."""
    rng = np.random.default_rng([m, seed])
    weights = rng.gamma(2.0, N / (2.0 * m), size=m)
    if 1 < m < N:
        weights[0] = 0.0
    return selection_of(manifold, np.sort(rng.choice(N, m, replace=False)), weights)


def posterior(manifold, weights):
    """Return π_w of N weights from Eq. 23."""
    x, y = manifold.rows["x"], manifold.rows["y"]
    cov = np.linalg.inv(np.diag(PRIOR_SCALE**-2.0) + (x.T * weights) @ x / NOISE_SCALE**2)
    return Gaussian(cov @ (x.T @ (weights * y)) / NOISE_SCALE**2, cov)


def dense(selection):
    weights = np.zeros(N)
    weights[selection.indices] = selection.weights
    return weights


def covariances(manifold, here):
    """Return Cov_w[f_n, f_m] of all rows, from the moments of each pair of residuals.

    y_n − θᵀx_n is Gaussian with mean ν_n; for Gaussian a and b with means α and β and covariance c,
    Cov[a², b²] = 2c² + 4αβc.
    """
    x, y = manifold.rows["x"], manifold.rows["y"]
    c, nu = x @ here.cov @ x.T, y - x @ here.mean
    return (2.0 * c**2 + 4.0 * np.outer(nu, nu) * c) / (4.0 * NOISE_SCALE**4)


SUPPORTS = pytest.mark.parametrize(
    ("m", "seed"), [(1, 0), (2, 0), (4, 1), (12, 0), (40, 2), (N, 0)]
)


@SUPPORTS
def test_kl_is_that_of_two_gaussians(manifold, m, seed):
    selection = some_rows(manifold, m, seed)
    full = posterior(manifold, np.ones(N))
    expected = decoct.kl_gaussian(posterior(manifold, dense(selection)), full)
    assert manifold.kl(selection) == pytest.approx(expected, rel=1e-8)
    view = manifold.at(jax.random.key(0), selection)
    assert view.predicted_kl() == manifold.kl(selection)
    other = selection._replace(weights=1.3 * selection.weights)
    expected = decoct.kl_gaussian(posterior(manifold, dense(other)), full)
    assert view.local_kl(other.weights).kl == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("change", [1e-1, 1e-3, 1e-5])
def test_a_small_kl_keeps_its_digits(manifold, change):
    # KL is (change²/2) Var_1[dᵀf] up to a relative error of the size of the change
    direction = np.random.default_rng(0).normal(size=N)
    cov = covariances(manifold, posterior(manifold, np.ones(N)))
    expected = 0.5 * direction @ cov @ direction
    selection = selection_of(manifold, np.arange(N), 1.0 + change * direction)
    if change == 1e-1:
        selection = selection._replace(weights=1.0 + 1e-2 * direction)
        change = 1e-2
    kl = manifold.kl(selection)
    assert kl / change**2 == pytest.approx(expected, rel=30.0 * change)


def test_no_weight_is_the_prior_and_all_ones_the_posterior(manifold):
    nothing = selection_of(manifold, np.arange(1), [0.0])
    prior = Gaussian(np.zeros(D), np.diag(PRIOR_SCALE**2))
    full = posterior(manifold, np.ones(N))
    expected = decoct.kl_gaussian(prior, full)
    assert manifold.kl(nothing) == pytest.approx(expected, rel=1e-9)
    everything = selection_of(manifold, np.arange(N), np.ones(N))
    assert 0.0 <= manifold.kl(everything) < 1e-20
    assert manifold.at(jax.random.key(0), everything).best_row(NOTHING) is None


@SUPPORTS
def test_vectors_have_the_gram_matrix_of_eq_24_and_the_target_of_all_rows(manifold, m, seed):
    selection = some_rows(manifold, m, seed)
    cov = covariances(manifold, posterior(manifold, dense(selection)))
    vectors, target = manifold.at(jax.random.key(0), selection).tangent()
    sds = np.sqrt(np.diag(cov))
    mine = selection.indices
    gram = vectors @ vectors.T / np.outer(sds[mine], sds[mine])
    np.testing.assert_allclose(
        gram, cov[np.ix_(mine, mine)] / np.outer(sds[mine], sds[mine]), atol=1e-8
    )
    scale = sds[mine] * np.sqrt(cov.sum())
    np.testing.assert_allclose(vectors @ target / scale, cov.sum(axis=1)[mine] / scale, atol=1e-8)


@SUPPORTS
def test_picks_are_those_of_eq_10(manifold, m, seed):
    selection = some_rows(manifold, m, seed)
    weights = dense(selection)
    cov = covariances(manifold, posterior(manifold, weights))
    scores = cov @ (1.0 - weights) / np.sqrt(np.diag(cov))
    scores = np.where(weights > 0.0, np.abs(scores), scores)
    view = manifold.at(jax.random.key(0), selection)
    order = np.argsort(-scores)
    if m < N:
        assert scores[order[0]] > (1.0 + 1e-6) * scores[order[1]]  # else no row is the best
    assert view.best_row(NOTHING) == order[0]
    assert view.best_row(order[:3]) == order[3]


def test_the_norm_of_the_target_is_that_of_all_rows(manifold):
    selection = some_rows(manifold, 12, 3)
    cov = covariances(manifold, posterior(manifold, dense(selection)))
    view = manifold.at(jax.random.key(0), selection)
    assert view._target_norm() == pytest.approx(np.sqrt(cov.sum()), rel=1e-8)


def test_a_view_knows_its_posterior(manifold):
    selection = some_rows(manifold, 12, 4)
    view = manifold.at(jax.random.key(0), selection)
    expected = exact_posterior(
        WeightedDensity.of(
            LinearRegression(noise_scale=NOISE_SCALE, prior_scale=PRIOR_SCALE),
            dict(selection.rows),
            selection.weights,
        )
    )
    inverse = np.linalg.inv(manifold.factor)
    np.testing.assert_allclose(manifold.centre + inverse.T @ view.offset, expected.mean, rtol=1e-7)
    np.testing.assert_allclose(inverse.T @ view.cov @ inverse, expected.cov, rtol=1e-7, atol=1e-12)


def test_more_columns_than_rows(manifold):
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(8, 30)), rng.normal(size=8)
    wide = manifold_of(x, y, prior_scale=2.0)
    selection = selection_of(wide, np.arange(3), [1.0, 2.0, 3.0])
    pair = []
    for weights in (np.array([1.0, 2.0, 3.0, 0, 0, 0, 0, 0]), np.ones(8)):
        cov = np.linalg.inv(np.eye(30) / 4.0 + (x.T * weights) @ x / NOISE_SCALE**2)
        pair.append(Gaussian(cov @ (x.T @ (weights * y)) / NOISE_SCALE**2, cov))
    assert wide.kl(selection) == pytest.approx(decoct.kl_gaussian(*pair), rel=1e-9)


def test_a_direction_nobody_speaks_of_is_refused():
    x = np.ones((20, 2))
    with pytest.raises(ModelError, match="not numerically positive definite"):
        manifold_of(x, np.arange(20.0), prior_scale=1e12)
