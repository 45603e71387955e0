"""Components without rows, walked as one.

A component that no row uses has the prior for its posterior. All such have the same ℓ_nt but for
E ln π_t, so of every row they take shares that are in proportion: with A the set of them and

    ℓ_nA = ln Σ_{t∈A} exp(E ln π_t) + E ln N(x_n; m₀, Λ₀⁻¹),   r_nt = r_nA exp(E ln π_t)/Σ_A,

one walk over the others and A gives all sums (`cavi`, 4), exactly. A mixture truncated generously
in many columns keeps few components: the walk's cost is then theirs.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from decoct.mixture.normal_wishart import Expected, NormalWishart, Statistics, expected
from decoct.mixture.walks import Table, walk

LEAST_WORK = 2**32
"""Multiplications of a walk from which on one program more pays for itself in some iterations."""

STEPS = 8
"""Numbers of components walked are T·k/8, so few programs are compiled."""

SAME = 1e-12
"""How near the prior is the prior: parts of tr(W₀ W_t⁻¹), prior sds, rows."""


def used(prior: NormalWishart, posterior: NormalWishart) -> Int[np.ndarray, " L"] | None:
    """Return the numbers of the components to walk one by one, None for all.

    Parameters
    ----------
    prior, posterior
        In the same coordinates.
    """
    idle = np.asarray(_idle(prior, posterior))
    T = len(idle)
    count = -(-STEPS * int((~idle).sum()) // T) * T // STEPS
    # the others first, so that a step's last places go to components without rows
    return None if count >= T else np.sort(np.argsort(idle, kind="stable")[:count])


def walk_used(
    table: Table,
    prior: NormalWishart,
    components: Expected,
    log_shares: Float[Array, " T"],
    places: Int[Any, " L"],
    exact: bool,
) -> tuple[Float[Array, ""], Statistics]:
    """Return what `walks.walk` returns; pure JAX.

    Parameters
    ----------
    table
        The rows.
    prior
        In the table's coordinates.
    components, log_shares
        Of q; components other than the used ones are the prior's.
    places
        The numbers of the used ones, to walk one by one.
    exact
        By factors rather than features.
    """
    one = expected(jax.tree.map(lambda value: jnp.asarray(value)[None], prior))
    rest = jnp.ones(len(log_shares), dtype=bool).at[places].set(False)
    of_rest = jnp.where(rest, log_shares, -jnp.inf)
    together = jax.scipy.special.logsumexp(of_rest)
    walked = jax.tree.map(lambda q, p: jnp.concatenate([q[places], p]), components, one)
    evidence, found = walk(table, walked, jnp.append(log_shares[places], together), exact)
    shares = jnp.exp(of_rest - together)
    spread = Statistics(
        shares * found.counts[-1],
        jnp.broadcast_to(found.means[-1][None], components.mean.shape),
        shares[:, None, None] * found.scatters[-1][None],
    )
    return evidence, jax.tree.map(lambda full, part: full.at[places].set(part[:-1]), spread, found)


@eqx.filter_jit
def _idle(prior: NormalWishart, posterior: NormalWishart) -> Bool[Array, " T"]:
    """Return where the posterior is the prior: scatters are never negative, so traces tell."""
    T, D = posterior.mean.shape
    factor = jnp.broadcast_to(jnp.asarray(prior.chol), (T, D, D))
    ratio, away = (
        jax.lax.linalg.triangular_solve(factor, b, left_side=True, lower=True)
        for b in (posterior.chol, (posterior.mean - prior.mean[None, :])[:, :, None])
    )
    traces = jnp.square(ratio).sum(axis=(1, 2))
    sds = jnp.sqrt(prior.dof * jnp.square(away).sum(axis=(1, 2)))
    near = (jnp.abs(traces - D) <= SAME * D) & (sds <= SAME)
    return near & (posterior.dof - prior.dof <= SAME)
