"""Third derivatives of potentials in effects that rows pick, and sums of them by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from decoct.passes.predictors import Predictors


def smooth_thirds(
    weights: Float[Array, " Q"],
    nodes: Float[Array, "Q k"],
    bends: Float[Array, "Q n k k"],
    factor: Sequence[Sequence[Float[Array, " n"]]],
) -> Float[Array, "n k"]:
    """Return E ∂³ℓ_n in each predictor, from ∂²ℓ_n at the nodes of N(0, LLᵀ).

    By parts, for g = ∂²ℓ at η = o + Bμ + Lξ: E g ξ = Lᵀ E ∇g.
    """
    k = nodes.shape[1]
    diagonal = jnp.diagonal(bends, axis1=2, axis2=3)
    moments = jnp.einsum("q,qj,qni->jni", weights, nodes, diagonal)
    gradients: list[Any] = [None] * k
    for i in reversed(range(k)):
        left = moments[i] - sum(factor[j][i][:, None] * gradients[j] for j in range(i + 1, k))
        pivot = factor[i][i][:, None]
        gradients[i] = jnp.where(pivot > 0.0, left / jnp.where(pivot > 0.0, pivot, 1.0), 0.0)
    return jnp.stack([gradients[i][:, i] for i in range(k)], axis=1)


def sum_by_group(
    found: Predictors, thirds: Float[Array, "n k"], weights: Float[Array, " n"]
) -> Float[Array, "K _"]:
    """Return Σ w_n E ∂³ℓ_n over the rows that pick each entry of φ, for each place of a row.

    A last column counts the rows that do not just add it to one predictor, or subtract it.
    """
    of_rows, is_added = in_effects(found, thirds)
    other = ((weights[:, None] != 0.0) & ~is_added).sum(axis=0)
    each, none = enumerate((weights[:, None] * of_rows).T), jnp.zeros(found.dim)
    sums = jnp.stack([none.at[found.picked[:, a]].add(column) for a, column in each])
    return jnp.concatenate([sums, other[:, None]], axis=1)


def in_effects(
    found: Predictors, thirds: Float[Array, "n k"]
) -> tuple[Float[Array, "n K"], Bool[Array, "n K"]]:
    """Return third derivatives in effects, and which of them are just added or subtracted."""
    is_one, is_none = jnp.abs(found.sparse) == 1.0, found.sparse == 0.0
    is_added = (is_one.sum(axis=1) == 1) & (is_one | is_none).all(axis=1)
    signs = jnp.where(is_one, found.sparse, 0.0)
    return jnp.einsum("nk,nka->na", thirds, signs), is_added
