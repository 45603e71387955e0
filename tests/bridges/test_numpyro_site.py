"""A coreset's Gaussian site in NumPyro: a factor of the unconstrained latent values."""

from functools import cache

import numpy as np
import pytest

pytest.importorskip("numpyro")

import jax
import numpyro
from numpyro import distributions, infer
from numpyro.infer.reparam import LocScaleReparam

import decoct
from decoct.bridges.numpyro import from_numpyro
from decoct.constructions import IteratedHilbert
from tests.bridges.numpyro_zoo import homes, varying_intercepts

SITE = IteratedHilbert(site=True)
ROWS = homes(600, n_counties=6)


def scaled(y):
    """Three latent sites whose order in the model is not that of their names."""
    sigma = numpyro.sample("sigma", distributions.HalfNormal(2.0))
    share = numpyro.sample("share", distributions.Dirichlet(np.ones(3)))
    mu = numpyro.sample("mu", distributions.Normal(0.0, 5.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", distributions.Normal(mu + share[0], sigma), obs=y)


Y = np.random.default_rng(3).normal(1.0, 2.0, size=500)


def of_scaled():
    return from_numpyro(scaled, {"y": Y})


def of_counties():
    return from_numpyro(varying_intercepts, ROWS)


@cache
def coresets(of):
    """A site alone, and one with five rows."""
    bridge = of()
    return decoct.path(bridge, bridge.rows, [0, 5], method=SITE)


def differences(coreset):
    """Return NumPyro's log density with Jacobians minus decoct's, at some points."""
    found = []
    with jax.enable_x64(True):
        model, args = coreset.to_numpyro()
        for z in np.random.default_rng(1).normal(size=(4, coreset.dim)):
            params = coreset.density.space.unflatten(jax.numpy.asarray(z))
            energy = infer.util.potential_energy(model, args, {}, params)
            found.append(float(-energy) - float(coreset.log_density(z)))
    return np.array(found)


@pytest.mark.parametrize("of", [of_scaled, of_counties], ids=["scaled", "groups and constants"])
def test_the_exported_model_has_the_coresets_density(of):
    alone, with_rows = coresets(of)
    assert alone.size == 0 < with_rows.size <= 5
    for coreset in (alone, with_rows):
        assert coreset.site is not None
        shift = differences(coreset)
        np.testing.assert_allclose(shift, shift[0], atol=1e-8)


def test_numpyro_samples_what_decoct_samples():
    """Means within four Monte Carlo errors of two runs of at least 800 effective draws."""
    coreset = coresets(of_scaled)[1]
    weighted, args = coreset.to_numpyro()
    mcmc = infer.MCMC(
        infer.NUTS(weighted),
        num_warmup=300,
        num_samples=4000,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), *args)
    theirs = coreset.model.unconstrain(mcmc.get_samples(group_by_chain=True)).reshape(-1, 4)
    drawn = coreset.sample(draws=4000, chains=2, seed=1, warmup=300)
    ours = drawn["unconstrained_posterior"]["z"].to_numpy().reshape(-1, 4)
    shift = (theirs.mean(0) - ours.mean(0)) / ours.std(0)
    assert np.abs(shift).max() < 4 * np.sqrt(2 / 800)
    np.testing.assert_allclose(theirs.std(0) / ours.std(0), 1.0, atol=0.15)


def test_a_reparametrised_site_counts_at_its_own_value():
    """Trap: under a reparametrisation the site is a deterministic one of another latent."""
    coreset = coresets(of_scaled)[0]
    shift = []
    with jax.enable_x64(True):
        weighted, args = coreset.to_numpyro()
        moved = numpyro.handlers.reparam(weighted, config={"mu": LocScaleReparam(0.0)})
        for z in np.random.default_rng(1).normal(size=(4, 4)):
            params = dict(coreset.density.space.unflatten(jax.numpy.asarray(z)))
            params["mu_decentered"] = params.pop("mu") / 5.0
            energy = infer.util.potential_energy(moved, args, {}, params)
            shift.append(float(-energy) - float(coreset.log_density(z)))
    np.testing.assert_allclose(shift, shift[0], atol=1e-8)
