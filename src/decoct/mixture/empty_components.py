"""Components without rows, evaluated as one.

Components that no row uses have all the same posterior, the prior. With A a set of components whose
q(μ, Λ) agree, ℓ_nt differs in E ln π_t alone, so of every row they take shares in proportion:

    ℓ_nA = ln Σ_{t∈A} exp(E ln π_t) + E ln N(x_n; μ, Λ⁻¹),   r_nt = r_nA exp(E ln π_t)/Σ_A.

One E-step for the others and A gives all sums (`cavi`, 4), exactly. A mixture truncated generously
in many columns keeps few components: the E-step's cost is then theirs.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from decoct.mixture.e_step import Table, sum_rows
from decoct.mixture.normal_wishart import Expected, NormalWishart, Statistics

LEAST_WORK = 2**32
"""Multiplications of an E-step from which on one more program pays for itself."""

STEPS = 8
"""Numbers of components evaluated are T·k/8, so few programs are compiled."""

SAME = 1e-30
"""Differences, relative to sds, that no digit can show: rows of weight 0 leave such in zeros."""


def occupied(posterior: NormalWishart) -> Int[np.ndarray, " L"] | None:
    """Return the components to evaluate: one by one but for the last, a set's first.

    None where all are to be evaluated one by one.
    """
    alike = np.asarray(_alike(posterior))
    T = len(alike)
    count = -(-STEPS * int((~alike).sum()) // T) * T // STEPS
    if count + 1 >= T:
        return None
    # the others first, so that a step's last places go to components of the set
    order = np.argsort(alike, kind="stable")
    return np.append(np.sort(order[:count]), order[-1])


def sum_rows_of_occupied(
    table: Table,
    components: Expected,
    log_shares: Float[Array, " T"],
    places: Int[Any, " L"],
    exact: bool,
) -> tuple[Float[Array, ""], Statistics]:
    """Return what `e_step.sum_rows` returns; pure JAX.

    Parameters
    ----------
    table
        The rows.
    components, log_shares
        Of q, which gives ℓ.
    places
        From `occupied`.
    exact
        By factors rather than features.
    """
    single = places[:-1]
    rest = jnp.ones(len(log_shares), dtype=bool).at[single].set(False)
    of_rest = jnp.where(rest, log_shares, -jnp.inf)
    together = jax.scipy.special.logsumexp(of_rest)
    distinct = jax.tree.map(lambda values: values[places], components)
    evidence, found = sum_rows(table, distinct, jnp.append(log_shares[single], together), exact)
    shares = jnp.exp(of_rest - together)
    spread = Statistics(
        shares * found.counts[-1],
        jnp.broadcast_to(found.means[-1][None], components.mean.shape),
        shares[:, None, None] * found.scatters[-1][None],
    )
    return evidence, jax.tree.map(lambda full, part: full.at[single].set(part[:-1]), spread, found)


@eqx.filter_jit
def _alike(posterior: NormalWishart) -> Bool[Array, " T"]:
    """Return which components are that with the fewest rows, to the last digit."""
    one = jnp.argmin(posterior.dof)
    scales = jnp.sqrt(jnp.square(posterior.chol[one]).sum(axis=1))
    factors = jnp.abs(posterior.chol - posterior.chol[one][None]) <= SAME * scales[None, :, None]
    means = jnp.abs(posterior.mean - posterior.mean[one][None]) <= SAME * scales[None, :]
    counts = (posterior.dof == posterior.dof[one]) & (
        posterior.mean_precision == posterior.mean_precision[one]
    )
    return factors.all(axis=(1, 2)) & means.all(axis=1) & counts
