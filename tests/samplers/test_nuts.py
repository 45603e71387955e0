"""NUTS against closed forms, and its bookkeeping."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.errors import RequestError
from decoct.models import LinearRegression
from decoct.samplers import NUTS, WeightedDensity, nuts_program
from decoct.samplers.exact import exact_posterior
from decoct.stats.convergence import convergence

SAMPLER = NUTS(chains=4, warmup=200)


@pytest.fixture(scope="module")
def target():
    """A correlated Gaussian: two nearly collinear columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    x[:, 1] = 0.9 * x[:, 0] + 0.3 * x[:, 1]
    rows = {"x": x, "y": x @ [1.0, 2.0] + rng.normal(size=40)}
    return WeightedDensity.of(LinearRegression(noise_scale=1.0), rows, np.arange(40) % 3.0)


@pytest.fixture(scope="module")
def drawn(target):
    return SAMPLER.sample(jax.random.key(0), target, 600)


def test_mean_and_covariance_are_exact_within_monte_carlo_error(target, drawn):
    exact, ess = exact_posterior(target), drawn.info["ess"]
    assert ess > 400
    white = np.linalg.solve(np.linalg.cholesky(exact.cov), (drawn.flat - exact.mean).T)
    assert np.abs(white.mean(axis=1)).max() < 4.5 / np.sqrt(ess)
    assert np.abs(np.cov(white) - np.eye(2)).max() < 4.5 * np.sqrt(2 / ess)
    assert drawn.info["rhat"] < 1.03


def test_a_diagonal_mass_matrix_draws_from_the_closed_form_too(target):
    exact = exact_posterior(target)
    drawn = NUTS(warmup=300, dense_mass=False).sample(jax.random.key(0), target, 1000)
    error = exact.sd / np.sqrt(drawn.info["ess"])
    assert (np.abs(drawn.flat.mean(0) - exact.mean) < 4 * error).all()
    ratio = drawn.flat.std(0) / exact.sd
    assert (np.abs(ratio - 1) < 4 / np.sqrt(drawn.info["ess"])).all()
    assert drawn.info["rhat"] < 1.02


def test_rows_without_weight_change_nothing(target):
    rows = {name: np.asarray(column) for name, column in target.rows.items()}
    longer = WeightedDensity.of(target.model, rows, np.asarray(target.weights))
    first, other = (
        NUTS(warmup=50, chains=2).sample(jax.random.key(1), one, 20).z for one in (target, longer)
    )
    np.testing.assert_allclose(other, first, rtol=1e-8)


def test_with_a_site_that_fits_a_short_warm_up_is_enough():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2000, 30)) * np.geomspace(0.1, 10.0, 30)
    rows = {"x": x, "y": x[:, 0] + rng.normal(size=2000)}
    model = LinearRegression(noise_scale=1.0)
    coreset = decoct.build(model, rows, size=0)
    exact = exact_posterior(WeightedDensity.of(model, rows, np.ones(2000)))
    drawn = NUTS(chains=4, warmup=1000).sample(jax.random.key(0), coreset.density, 1000)
    white = np.linalg.solve(np.linalg.cholesky(exact.cov), (drawn.flat - exact.mean).T)
    of_squares = convergence((drawn.z - exact.mean) ** 2)["ess"]
    assert of_squares > 1000
    assert drawn.info["rhat"] < 1.01
    assert np.abs(white.mean(axis=1)).max() < 4.5 / np.sqrt(4000)
    assert np.abs(np.cov(white) - np.eye(30)).max() < 4.5 * np.sqrt(2 / of_squares)
    # fifty steps are all that is taken
    again = NUTS(chains=4, warmup=50).sample(jax.random.key(0), coreset.density, 1000)
    np.testing.assert_array_equal(drawn.z, again.z)


def test_trees_do_not_go_round_in_circles():
    """With 15 steps a period, the ends of a tree of 16 points are at the same place."""
    rows = {"x": np.zeros((1, 100))}
    model, n = decoct.models.GaussianMean(np.eye(100)), nuts_program.STEPS_A_CALL
    density = WeightedDensity.of(model, rows, np.zeros(1))  # the prior, N(0, I)
    resonant = 2.0 * np.pi / 15.0
    with jax.enable_x64(True):
        starts = np.random.default_rng(0).normal(size=(4, 100))
        states, adapted = nuts_program.begin(density, starts, np.asarray(0.8), True, resonant)
        keys = jax.random.key_data(jax.random.split(jax.random.key(0), 4)), "threefry2x32"
        stages, steps = nuts_program.repeat_stage(nuts_program.SAMPLING, n), []
        for one in (adapted, adapted.pooled()):
            kept = nuts_program.run(density, keys, states, one, stages, np.asarray(0.8), True)[2]
            steps.append(np.asarray(kept[1]["n_steps"]).mean())
    assert steps[0] > 50.0
    assert steps[1] <= 15.0


@pytest.mark.parametrize("step_size", [0.055, 0.3, 0.38, 0.45, 1.2, 3.0])
def test_other_step_sizes_stay(step_size):
    assert nuts_program.shorten_resonant(step_size) == step_size


def test_statistics_are_one_per_draw(drawn):
    assert drawn.sampler == "nuts"
    for name in ("diverging", "acceptance_rate", "n_steps", "energy"):
        assert drawn.info[name].shape == (4, 600)
    assert drawn.info["diverging"].sum() == 0
    assert 0.6 < drawn.info["acceptance_rate"].mean() < 1.0
    assert (drawn.info["n_steps"] >= 1).all()


def test_chains_differ_and_seeds_differ(target, drawn):
    assert len(np.unique(drawn.z[:, -1, 0])) == 4
    other = SAMPLER.sample(jax.random.key(1), target, 600)
    assert not (other.z == drawn.z).all(axis=-1).any()


def test_keys_of_another_kind_serve_too(target):
    """Chains run in threads, which do not see the kind that JAX's context asks for."""
    key = jax.random.key(0, impl="rbg")
    drawn = NUTS(chains=2, warmup=20).sample(key, target, 10)
    assert drawn.z.shape[:2] == (2, 10)
    assert np.ptp(drawn.flat, axis=0).min() > 0.0


def test_a_longer_run_starts_with_the_shorter_one(target, drawn):
    shorter = SAMPLER.sample(jax.random.key(0), target, 150)
    np.testing.assert_array_equal(shorter.z, drawn.z[:, :150])


def test_progress_adds_up_to_all_steps(target):
    told = []
    SAMPLER.sample(jax.random.key(0), target, 250, told.append)
    assert sum(told) == 200 + 250


def test_draw_returns_at_least_what_is_asked(target):
    assert SAMPLER.draw(jax.random.key(0), target, 30).flat.shape == (32, 2)


def cliff():
    """A Gaussian cut off by a cliff a leapfrog step cannot see coming."""
    model = decoct.Model(
        lambda p, r: 0.0 * r["y"] * p["a"],
        lambda p: -0.5 * p["a"] ** 2 - 1e7 * jnp.maximum(p["a"] - 0.5, 0.0) ** 2,
        {"a": 0.0},
    )
    return model, {"y": np.ones(20)}


def test_divergences_are_counted_and_told():
    model, rows = cliff()
    target = WeightedDensity.of(model, rows, np.ones(20))
    sampler = NUTS(chains=2, warmup=30, target_acceptance=0.3)
    info = sampler.sample(jax.random.key(0), target, 300).info
    assert info["diverging"].dtype == bool
    assert info["diverging"].any()
    coreset = decoct.build(model, rows, size=1)
    with pytest.warns(UserWarning, match=r"transitions diverged|R-hat"):
        tree = coreset.sample(
            draws=300,
            chains=2,
            sampler=NUTS(chains=2, warmup=30, target_acceptance=0.3),
            progress=False,
        )
    assert bool(tree["sample_stats"]["diverging"].any())


@pytest.mark.parametrize(("chains", "own"), [(4, 2), (1, 2)])
def test_sampling_with_another_number_of_chains_keeps_draws_and_statistics_together(
    target, chains, own
):
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(60, 2)), "y": rng.normal(size=60)}
    coreset = decoct.build(LinearRegression(noise_scale=1.0), rows, size=5)
    tree = coreset.sample(draws=100, chains=chains, sampler=NUTS(chains=own, warmup=100))
    stats, posterior = tree["sample_stats"].sizes, tree["posterior"].sizes
    assert (stats["chain"], stats["draw"]) == (posterior["chain"], posterior["draw"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chains": 0}, "chains must be a whole number, at least 1, not 0"),
        ({"warmup": 0}, "warmup must be a whole number, at least 1, not 0"),
        ({"target_acceptance": 1.0}, r"target_acceptance is 1\.0; it must lie between 0 and 1\."),
        ({"target_acceptance": np.nan}, "target_acceptance is nan"),
    ],
)
def test_wrong_options_are_sentences(options, message):
    with pytest.raises(RequestError, match=message):
        NUTS(**options)
