"""One pass over the rows of a weighted Gaussian mixture: sums of their responsibilities (4).

Up to `LARGEST_FEATURES` columns the quadratic forms of a chunk are one matrix
product of the T coefficient vectors with the symmetric features (x_i x_j)_{i≤j}, x, 1 of the
centred rows, and (4) is the product of r with the same features: half the operations of one
triangular factor per component. ‖U(x − m)‖² is then a sum of terms that cancel; their rounding
errors, independent as they are, add up to the order of 1e-16 times

    κ = max_t (Σ_ij (ν_t W_t)_ij² s_ti² s_tj²)^½,   s_ti = |m_ti| + (W_t⁻¹/ν_t)_ii^½,            (7)

so where κ is above `LARGEST_REACH`, and for more columns, factors U_t and scatters about m_t do the
same without such terms. Memory: one chunk's features, and T×D×D; never N×T.

Components that no row uses have all the same posterior, the prior, and are evaluated as one. With A
a set of components whose q(μ, Λ) agree, ℓ_nt differs in E ln π_t alone, so of every row they take
shares in proportion:

    ℓ_nA = ln Σ_{t∈A} exp(E ln π_t) + E ln N(x_n; μ, Λ⁻¹),   r_nt = r_nA exp(E ln π_t)/Σ_A.      (8)

One E-step for the others and A gives all sums (4), exactly. A mixture truncated generously in many
columns keeps few components: the E-step's cost is then theirs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from decoct.mixture.normal_wishart import Expected, NormalWishart, Statistics
from decoct.runtime.precision import float64

LARGEST_FEATURES = 256
"""Most columns D for which the D(D+1)/2 features of a row are formed."""

LARGEST_REACH = 1e6
"""κ of (7) up to which features are exact to about 1e-10 nats a row."""

FEATURES_PER_CHUNK = {"cpu": 2**19, "gpu": 2**26, "tpu": 2**24}
"""Numbers formed at once: what stays near the caches of a core, or keeps an accelerator busy."""

SMALLEST_CHUNK, LARGEST_CHUNK = 64, {"cpu": 1024, "gpu": 2**18, "tpu": 2**16}

STEPS = 8
"""Numbers of components evaluated are T·k/8, so few programs are compiled."""

SAME = 1e-30
"""Differences, relative to sds, that no digit can show: rows of weight 0 leave such in zeros."""


class Table(NamedTuple):
    """Weighted rows in chunks, columns first, about their mean; unused places are 0."""

    x: Float[Array, "C D n"]  # x_n − centre
    weights: Float[Array, "C n"]  # γ_n
    # chunks with rows; tables of similar size share one compiled program, which leaves out the rest
    used: Int[Array, ""]
    centre: Float[np.ndarray, " D"]


@float64
def make_table(x: Float[np.ndarray, "N D"], weights: Float[np.ndarray, " N"]) -> Table:
    """Return finite rows in chunks about their mean; γ ≥ 0, some positive."""
    N, D = x.shape
    size = choose_chunk_rows(N, D)
    chunks = -(-N // size)
    centre = (weights / weights.sum()) @ x
    # as many chunks as have at most three binary digits, zeros aside
    unit = 2 ** max(0, chunks.bit_length() - 3)
    centred = np.zeros((-(-chunks // unit) * unit, D, size))
    gamma = np.zeros((len(centred), size))
    for i in range(chunks):
        rows = slice(i * size, min(N, (i + 1) * size))
        count = rows.stop - rows.start
        centred[i, :, :count] = (x[rows] - centre).T
        gamma[i, :count] = weights[rows]
    return Table(jnp.asarray(centred), jnp.asarray(gamma), jnp.asarray(chunks), centre)


def choose_chunk_rows(N: int, D: int) -> int:
    """Return the rows of a chunk, a power of two."""
    backend = jax.default_backend()
    width = D * (D + 3) // 2 if D <= LARGEST_FEATURES else D
    room = FEATURES_PER_CHUNK.get(backend, FEATURES_PER_CHUNK["gpu"]) // (width + 1)
    largest = LARGEST_CHUNK.get(backend, LARGEST_CHUNK["gpu"])
    rows = int(np.clip(room, SMALLEST_CHUNK, largest))
    return min(2 ** int(np.log2(rows)), 2 ** max(5, (N - 1).bit_length()))


def sum_rows(
    table: Table, components: Expected, log_shares: Float[Array, " T"], exact: bool
) -> tuple[Float[Array, ""], Statistics]:
    """Return Σγ_n e_n and (4), in the table's coordinates, at ℓ (2) of this q; pure JAX.

    By factors rather than features if ``exact``.
    """
    sums = _sum_by_factors if exact else _sum_by_features
    evidence, counts, firsts, seconds, origin = sums(table, components, log_shares)
    shift = firsts / jnp.where(counts > 0.0, counts, 1.0)[:, None]
    scatters = seconds - firsts[:, :, None] * shift[:, None, :]
    return evidence, Statistics(counts, origin + shift, scatters)


def _sum_by_features(
    table: Table, components: Expected, log_shares: Float[Array, " T"]
) -> tuple[Array, ...]:
    """Return Σγ_n e_n, Σγr, Σγrx, Σγrxxᵀ and 0, by one product with the features each way."""
    D = table.x.shape[1]
    rows, columns = np.triu_indices(D)
    coefficients = _compute_coefficients(components, log_shares)

    def add(i, carry):
        x = jax.lax.dynamic_index_in_dim(table.x, i, keepdims=False)
        features = jnp.concatenate([x[rows] * x[columns], x, jnp.ones_like(x[:1])])
        evidence, r = _assign(coefficients @ features, table.weights[i])
        return carry[0] + evidence, carry[1] + r @ features.T

    start = jnp.zeros(()), jnp.zeros_like(coefficients)
    evidence, sums = jax.lax.fori_loop(0, table.used, add, start)
    place = np.empty((D, D), dtype=np.int64)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    counts, firsts, seconds = sums[:, -1], sums[:, len(rows) : -1], sums[:, place]
    return evidence, counts, firsts, seconds, jnp.zeros_like(firsts)


def _sum_by_factors(
    table: Table, components: Expected, log_shares: Float[Array, " T"]
) -> tuple[Array, ...]:
    """Return Σγ_n e_n, Σγr, Σγr(x − m), Σγr(x − m)(x − m)ᵀ and m, component by component."""
    T, D = components.mean.shape
    at = (log_shares + components.offset)[:, None]

    def add(i, carry):
        x = jax.lax.dynamic_index_in_dim(table.x, i, keepdims=False)
        square = compute_squares(x, components)
        evidence, r = _assign(at - 0.5 * square, table.weights[i])

        def moments(one):
            mean, share = one
            away = x - mean[:, None]
            shared = share[None, :] * away
            return share.sum(), shared.sum(axis=1), shared @ away.T

        sums = jax.lax.map(moments, (components.mean, r))
        return carry[0] + evidence, jax.tree.map(jnp.add, carry[1], sums)

    zeros = jnp.zeros(T), jnp.zeros((T, D)), jnp.zeros((T, D, D))
    evidence, sums = jax.lax.fori_loop(0, table.used, add, (jnp.zeros(()), zeros))
    return evidence, *sums, components.mean


def _assign(
    log_joint: Float[Array, "T n"], weights: Float[Array, " n"]
) -> tuple[Float[Array, ""], Float[Array, "T n"]]:
    """Return Σγ_n e_n and γ_n r_nt (3) of a chunk."""
    largest = log_joint.max(axis=0)
    scaled = jnp.exp(log_joint - largest[None, :])
    totals = scaled.sum(axis=0)
    return weights @ (largest + jnp.log(totals)), scaled * (weights / totals)[None, :]


def _compute_coefficients(
    components: Expected, log_shares: Float[Array, " T"]
) -> Float[Array, "T F"]:
    """Return ℓ_nt (2) as coefficients of (x_i x_j)_{i≤j}, x and 1."""
    rows, columns = np.triu_indices(components.mean.shape[1])
    precisions = jnp.swapaxes(components.whiten, 1, 2) @ components.whiten
    halves = np.where(rows == columns, 0.5, 1.0)
    white = jnp.einsum("tij,tj->ti", components.whiten, components.mean)
    linear = jnp.einsum("tij,ti->tj", components.whiten, white)
    constant = log_shares + components.offset - 0.5 * jnp.square(white).sum(axis=1)
    return jnp.concatenate(
        [-halves[None, :] * precisions[:, rows, columns], linear, constant[:, None]], axis=1
    )


def compute_squares(x: Float[Array, "D n"], components: Expected) -> Float[Array, "T n"]:
    """Return ‖U_t(x_n − m_t)‖²."""

    def one(component):
        mean, whiten = component
        return jnp.square(whiten @ (x - mean[:, None])).sum(axis=0)

    return jax.lax.map(one, (components.mean, components.whiten))


def compute_reach(posterior: NormalWishart, components: Expected) -> Float[Array, ""]:
    """Return κ (7)."""
    precisions = jnp.swapaxes(components.whiten, 1, 2) @ components.whiten
    variances = jnp.square(posterior.chol).sum(axis=2) / posterior.dof[:, None]
    s = jnp.abs(posterior.mean) + jnp.sqrt(variances)
    terms = precisions * (s[:, :, None] * s[:, None, :])
    return jnp.sqrt(jnp.square(terms).sum(axis=(1, 2)).max())


def find_occupied(posterior: NormalWishart) -> Int[np.ndarray, " L"] | None:
    """Return the components to evaluate: one by one but for the last, a set's first (8).

    None where all are to be evaluated one by one.
    """
    alike = np.asarray(_find_alike(posterior))
    T = len(alike)
    count = -(-STEPS * int((~alike).sum()) // T) * T // STEPS
    if count + 1 >= T:
        return None
    # the others first, so that a step's last places go to components of the set
    order = np.argsort(alike, kind="stable")
    return np.append(np.sort(order[:count]), order[-1])


@eqx.filter_jit
def _find_alike(posterior: NormalWishart) -> Bool[Array, " T"]:
    """Return which components are that with the fewest rows, to the last digit."""
    one = jnp.argmin(posterior.dof)
    scales = jnp.sqrt(jnp.square(posterior.chol[one]).sum(axis=1))
    factors = jnp.abs(posterior.chol - posterior.chol[one][None]) <= SAME * scales[None, :, None]
    means = jnp.abs(posterior.mean - posterior.mean[one][None]) <= SAME * scales[None, :]
    counts = (posterior.dof == posterior.dof[one]) & (
        posterior.mean_precision == posterior.mean_precision[one]
    )
    return factors.all(axis=(1, 2)) & means.all(axis=1) & counts


def sum_rows_of_occupied(
    table: Table,
    components: Expected,
    log_shares: Float[Array, " T"],
    places: Int[Any, " L"],
    exact: bool,
) -> tuple[Float[Array, ""], Statistics]:
    """Return what `sum_rows` returns, with ``places`` from `find_occupied` (8); pure JAX."""
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
