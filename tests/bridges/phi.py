"""Models at θ and at their likelihood parameters φ, and coresets by hand with a site in φ."""

import jax
import jax.numpy as jnp
import numpy as np

from decoct.coreset import Coreset
from decoct.models.site import GaussianSite
from decoct.report import Report, Status

RNG = np.random.default_rng(0)
N, J, K = 60, 6, 4
G, H = RNG.integers(J, size=N), RNG.integers(K, size=N)
X, Z, Y = RNG.normal(size=N), RNG.normal(size=(N, 3)), RNG.normal(size=N)
YES = (Y > 0).astype(np.int64)
LEVEL = RNG.integers(4, size=N)


def at(bridge, seed=1, spread=0.5):
    """Return θ at a random point."""
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(value + spread * rng.normal(size=np.shape(value)))
        for name, value in bridge.start.items()
    }


def few(bridge, n):
    rows = bridge.encode(bridge.rows.take(np.arange(n)))
    return {name: jnp.asarray(values) for name, values in rows.items()}


def check(bridge, expected):
    """Compare names and shapes, and potentials from φ with those from θ; return φ(θ)."""
    found = bridge.likelihood_params
    assert dict(zip(found.names, found.shapes, strict=True)) == expected
    assert list(found.names) == sorted(found.names)
    assert found.sizes == tuple(int(np.prod(shape)) for shape in found.shapes)
    assert found.reason is None
    log_likelihood = jax.jit(lambda p, r: bridge.log_likelihood(p, r))
    with jax.enable_x64(True):
        for seed in (1, 2):
            params = at(bridge, seed)
            phi = bridge.to_likelihood_params(params)
            assert {name: np.shape(value) for name, value in phi.items()} == expected
            for n in (1, 2, 3, 7, N):
                rows = few(bridge, n)
                from_phi = log_likelihood(phi, rows)
                from_theta = bridge.potentials(params, rows)
                assert from_phi.shape == (n,)
                np.testing.assert_allclose(from_phi, from_theta, rtol=1e-10, atol=1e-12)
    return phi


def by_hand(bridge, size):
    """Return a coreset with some rows and some site."""
    rng = np.random.default_rng(3)
    d = sum(bridge.likelihood_params.sizes)
    root = rng.normal(size=(d, d))
    site = GaussianSite(rng.normal(size=d), rng.normal(size=d), root @ root.T, 0.3)
    indices = np.arange(size) * 7
    report = Report({"name": "by hand"}, 0, Status.DONE, None, None, [], 0, 0)
    weights = rng.uniform(1.0, 3.0, size=size)
    return Coreset(
        indices, weights, bridge.rows.take(indices), bridge.rows.n_rows, bridge, report, site
    )


def density(coreset, params):
    """Return log π_w at θ: prior, site at φ(θ), weighted rows."""
    bridge = coreset.model
    with jax.enable_x64(True):
        params = {name: jnp.asarray(value) for name, value in params.items()}
        phi = bridge.to_likelihood_params(params)
        flat = np.concatenate([np.ravel(phi[name]) for name in sorted(phi)])
        total = bridge.log_prior(params) + coreset.site.log_density(flat)
        if coreset.size:
            rows = bridge.encode(coreset.rows, coreset.indices)
            total = total + coreset.weights @ np.asarray(bridge.log_likelihood(phi, rows))
    return float(total)
