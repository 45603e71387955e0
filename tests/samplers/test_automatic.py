"""The default sampler: exact, else Laplace where it fits, else NUTS."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoct
from decoct.models import LinearRegression, LogisticRegression
from decoct.samplers import NUTS, Automatic, Laplace, WeightedDensity, automatic

KEY, N = jax.random.key(0), 60
BY_NUTS = Automatic(NUTS(warmup=100))


@pytest.mark.parametrize(
    ("model", "sampler"),
    [(LinearRegression(noise_scale=0.7), "exact"), (LogisticRegression(), "laplace")],
)
def test_it_takes_what_fits(model, sampler):
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(N, 2)), "y": np.where(rng.random(N) < 0.5, 1.0, -1.0)}
    assert (
        Automatic().draw(KEY, WeightedDensity.of(model, rows, np.ones(N)), 400).sampler == sampler
    )


def on_its_own(log_prior):
    model = decoct.Model(
        lambda p, r: 0.0 * r["y"] * p["a"].sum(), lambda p: log_prior(p["a"]), {"a": np.zeros(2)}
    )
    return WeightedDensity.of(model, {"y": np.ones(3)}, np.ones(3))


def test_heavy_tails_which_laplace_lacks_are_left_to_nuts():
    cauchy = on_its_own(lambda a: -jnp.log1p(a**2).sum())
    assert Laplace().draw(KEY, cauchy, 1000).info["khat"] > 0.7
    assert BY_NUTS.draw(KEY, cauchy, 1000).sampler == "nuts"


def test_so_is_a_posterior_that_draws_of_laplace_lie_outside_of():
    """A steep wall beside the mode of two normal parameters: k-hat alone sees nothing of it."""
    walled = on_its_own(lambda a: -0.5 * (a**2).sum() - jnp.exp(30.0 * (a[0] - 0.5)))
    info = Laplace().draw(KEY, walled, 1000).info
    assert info["khat"] < 0.7
    assert info["kl"] > 1e3
    assert BY_NUTS.draw(KEY, walled, 1000).sampler == "nuts"


def test_chains_that_disagree_are_run_again_eight_times_as_long(monkeypatch):
    cauchy = on_its_own(lambda a: -jnp.log1p(a**2).sum())
    once = NUTS(warmup=100).draw(KEY, cauchy, 500)
    monkeypatch.setattr(automatic, "USABLE_RHAT", once.info["rhat"])
    np.testing.assert_array_equal(BY_NUTS.draw(KEY, cauchy, 500).z, once.z)
    monkeypatch.setattr(automatic, "USABLE_RHAT", once.info["rhat"] - 1e-9)
    again = BY_NUTS.draw(KEY, cauchy, 500)
    longer = NUTS(warmup=800).draw(jax.random.fold_in(KEY, 8), cauchy, 4000)
    np.testing.assert_array_equal(again.z, longer.z[:, ::8])
    assert again.z.shape == once.z.shape
    assert again.info["n_steps"].shape == once.info["n_steps"].shape
    few = NUTS(warmup=100).draw(KEY, cauchy, 496)
    monkeypatch.setattr(automatic, "USABLE_RHAT", few.info["rhat"] - 1e-9)
    np.testing.assert_array_equal(BY_NUTS.draw(KEY, cauchy, 496).z, few.z)
