"""Random-walk Metropolis against closed forms and numerical integration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import trapezoid

import decoct
from decoct.errors import ModelError, RequestError
from decoct.models import GaussianMean, LogisticRegression
from decoct.samplers import WeightedDensity
from decoct.samplers.exact import exact_posterior
from decoct.samplers.metropolis import Metropolis

SAMPLER = Metropolis(warmup=20_000, thin=5, chains=2)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def target():
    """A Gaussian posterior of two unlike and correlated coordinates."""
    rng = np.random.default_rng(0)
    model = GaussianMean(np.array([[1.0, 0.6], [0.6, 2.0]]))
    return WeightedDensity.of(model, {"x": rng.normal(size=(40, 2)) + 1.0}, np.arange(40) % 3.0)


@pytest.fixture(scope="module")
def drawn(target):
    return SAMPLER.sample(KEY, target, 8000)


def bimodal(a):
    return jnp.logaddexp(-0.5 * ((a + 1.5) / 0.7) ** 2, -0.5 * ((a - 2.0) / 0.4) ** 2)


def skewed(a):
    return 3.0 * a - 2.0 * jnp.exp(a)


def half_normal(a):
    """−inf to the left of 0: a rejection, not an error."""
    return jnp.where(a > 0.0, -0.5 * a**2, -jnp.inf)


def normal(a):
    return -0.5 * a**2


SHAPES = (bimodal, skewed, half_normal, normal)


def on_a_line(shape, edge=np.inf, beyond=0.0):
    """A density on a line, ``beyond`` right of ``edge``; they share one compilation."""
    row = {"shape": [SHAPES.index(shape)], "edge": [edge], "beyond": [beyond]}
    return WeightedDensity.of(LINE, {k: np.array(v) for k, v in row.items()}, np.ones(1))


def line_log_likelihood(params, row):
    a = params["a"]
    shapes = jnp.stack([shape(a) for shape in SHAPES])
    return jnp.where(a > row["edge"], row["beyond"], shapes[row["shape"]])


LINE = decoct.Model(line_log_likelihood, lambda p: 0.0 * p["a"], {"a": 0.5})
ON_A_LINE = Metropolis(warmup=10_000, chains=2)


def test_mean_and_covariance_are_exact_within_monte_carlo_error(target, drawn):
    exact, ess = exact_posterior(target), drawn.info["ess"]
    assert ess > 2000
    assert drawn.info["rhat"] < 1.01
    white = np.linalg.solve(np.linalg.cholesky(exact.cov), (drawn.flat - exact.mean).T)
    assert np.abs(white.mean(axis=1)).max() < 4.5 / np.sqrt(ess)
    assert np.abs(np.cov(white) - np.eye(2)).max() < 4.5 * np.sqrt(2 / ess)


@pytest.mark.parametrize("aim", [0.234, 0.4])
def test_the_target_acceptance_is_reached(aim):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 3))
    rows = {"x": x, "y": np.where(x[:, 0] > 0.3 * rng.normal(size=30), 1.0, -1.0)}
    target = WeightedDensity.of(LogisticRegression(), rows, np.full(30, 2.0))
    sampler = Metropolis(warmup=30_000, steps=40_000, target_acceptance=aim)
    info = sampler.sample(KEY, target).info
    assert info["acceptance_rate"].shape == (1, 8000)
    assert info["acceptance_rate"].mean() == pytest.approx(aim, abs=0.015)


def test_the_step_is_adapted_from_far_off_and_only_while_warming_up():
    # no strict maximum, so no Laplace fit to tell the scale: the first step is 0.1, the best 200
    quartic = decoct.Model(
        lambda p, r: 0.0 * r["y"],
        lambda p: -0.5 * jnp.sum((p["a"] / 100.0) ** 4),
        {"a": np.zeros(2)},
    )
    wide = WeightedDensity.of(quartic, {"y": np.ones(1)}, np.ones(1))
    adapted = Metropolis(warmup=5000).sample(KEY, wide, 2000).info
    assert adapted["acceptance_rate"].mean() == pytest.approx(0.234, abs=0.03)
    assert adapted["step_size"] > 50.0
    frozen = Metropolis(warmup=0).sample(KEY, wide, 2000).info
    assert frozen["step_size"] == pytest.approx(0.1, rel=1e-12)
    assert frozen["acceptance_rate"].mean() > 0.99
    for draws in (10, 3000):
        step = Metropolis(warmup=500).sample(KEY, wide, draws).info["step_size"]
        assert step == Metropolis(warmup=500).sample(KEY, wide, 50).info["step_size"]


def test_acceptance_is_told_per_draw(target):
    every = Metropolis(warmup=100, thin=1).sample(KEY, target, 3000)
    moved = (np.diff(every.z[0], axis=0) != 0.0).any(axis=1)
    np.testing.assert_array_equal(every.info["acceptance_rate"][0, 1:], moved)


def test_thinning_keeps_every_so_manyth_step(target):
    """Blocks of both are 5,000 steps, so that both walk the same way."""
    every = Metropolis(warmup=100, thin=1).sample(KEY, target, 7000)
    fifth = Metropolis(warmup=100, thin=5, steps=7000).sample(KEY, target)
    assert fifth.z.shape == (1, 1400, 2)
    np.testing.assert_array_equal(fifth.z, every.z[:, 4::5])
    rates = every.info["acceptance_rate"].reshape(1, 1400, 5).mean(axis=2)
    np.testing.assert_allclose(fifth.info["acceptance_rate"], rates, rtol=1e-15)


@pytest.mark.parametrize(("chains", "thin", "n"), [(1, 5, 30), (2, 5, 31), (2, 5, 1)])
def test_draw_returns_at_least_what_is_asked(target, chains, thin, n):
    drawn = Metropolis(warmup=50, thin=thin, chains=chains).draw(KEY, target, n)
    assert drawn.z.shape == (chains, -(-n // chains), 2)
    assert drawn.sampler == "metropolis"


def test_the_default_is_ten_thousand_draws(target):
    assert Metropolis().sample(KEY, target).z.shape == (1, 10_000, 2)


def test_same_key_same_draws_and_a_longer_run_starts_with_the_shorter_one(target, drawn):
    shorter = SAMPLER.sample(KEY, target, 1234)
    np.testing.assert_array_equal(shorter.z, drawn.z[:, :1234])
    other = SAMPLER.sample(jax.random.key(1), target, 1234)
    assert not (other.z == shorter.z).all(axis=-1).any()
    assert not (drawn.z[0] == drawn.z[1]).all(axis=-1).any()


def test_weight_two_is_the_row_twice():
    rng = np.random.default_rng(2)
    rows = {"x": rng.normal(size=(16, 2)), "y": rng.integers(0, 2, size=16) * 2.0 - 1.0}
    weights = np.arange(16) % 3.0
    twice = {k: np.repeat(v, weights.astype(int), axis=0) for k, v in rows.items()}
    sampler = Metropolis(warmup=1000)
    weighted, plain = (
        sampler.draw(KEY, WeightedDensity.of(LogisticRegression(), table, w), 500).flat
        for table, w in ((rows, weights), (twice, np.ones(len(twice["y"]))))
    )
    np.testing.assert_allclose(weighted, plain, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_one_dimensional_targets_against_numerical_integration(shape):
    drawn = ON_A_LINE.sample(KEY, on_a_line(shape), 15_000)
    z, ess = drawn.flat[:, 0], drawn.info["ess"]
    assert ess > 1000
    assert drawn.info["acceptance_rate"].mean() == pytest.approx(0.234, abs=0.02)

    grid = np.linspace(-12.0, 8.0, 200_001)
    with jax.enable_x64(True):
        height = np.exp(np.asarray(shape(jnp.asarray(grid))))
    height /= trapezoid(height, grid)
    mean = trapezoid(height * grid, grid)
    sd = np.sqrt(trapezoid(height * (grid - mean) ** 2, grid))
    assert z.mean() == pytest.approx(mean, abs=4.0 * sd / np.sqrt(ess))
    assert z.std() == pytest.approx(sd, abs=4.0 * sd / np.sqrt(ess))
    below = trapezoid(height * (grid < mean), grid)
    assert (z < mean).mean() == pytest.approx(below, abs=2.0 / np.sqrt(ess))


@pytest.mark.parametrize("beyond", [np.nan, np.inf])
def test_a_nan_on_the_way_is_an_error_that_says_where(beyond):
    cliff = on_a_line(normal, edge=1.5, beyond=beyond)
    told = r"NaN or \+inf at \d+ of .* (nan|inf) at the parameters \[[1-9]"
    with pytest.raises(ModelError, match=told):
        ON_A_LINE.sample(KEY, cliff, 10)
    with pytest.raises(ModelError, match=told):  # also when nothing is left to adapt
        Metropolis(warmup=0, chains=2).sample(KEY, cliff, 1000)


def test_a_start_where_nothing_is_finite_is_an_error():
    for beyond in (np.nan, np.inf):
        with pytest.raises(ModelError, match="at its start"):
            ON_A_LINE.sample(KEY, on_a_line(normal, edge=-np.inf, beyond=beyond), 10)
    with pytest.raises(ModelError, match="init where it is finite"):
        ON_A_LINE.sample(KEY, on_a_line(normal, edge=-np.inf, beyond=-np.inf), 10)


def test_progress_adds_up_to_warm_up_and_draws(target):
    told = []
    Metropolis(warmup=6000).sample(KEY, target, 1500, told.append)
    assert told == [5000, 1000, 1000, 500]


def test_many_chains_walk_in_shorter_blocks():
    sampler = Metropolis(thin=7, chains=100)
    assert sampler._block_steps(dim=20) == 1995
    assert sampler._block_steps(dim=1_000_000) == 7


def test_draws_go_through_a_coreset():
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(60, 2)), "y": rng.integers(0, 2, size=60)}
    coreset = decoct.build(LogisticRegression(), rows, size=5)
    tree = coreset.sample(draws=300, chains=2, sampler=Metropolis(warmup=4000, thin=20))
    assert dict(tree["posterior"].sizes) == {"chain": 2, "draw": 300, "coefficient": 2}
    assert tree["sample_stats"]["acceptance_rate"].shape == (2, 300)
    assert tree["posterior"].attrs["sampler"] == "metropolis"
    assert tree["posterior"].attrs["step_size"] > 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"warmup": -1},
        {"thin": 0},
        {"steps": 2, "thin": 5},
        {"chains": 0},
        {"target_acceptance": 0.0},
        {"target_acceptance": 1.0},
        {"target_acceptance": float("nan")},
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(RequestError, match=r"must (lie|be a whole number)"):
        Metropolis(**wrong)
