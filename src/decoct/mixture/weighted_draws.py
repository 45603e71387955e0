"""The lightweight coreset of rows that have weights already.

Borsos, Bachem & Krause (2017), Alg. 1, of the table in which row n is there γ_n times. With
Γ = Σγ_n, μ = Σγ_n x_n/Γ and the spread Σγ_n‖x_n − μ‖², M rows are drawn by

    q_n = γ_n [1/(2Γ) + ‖x_n − μ‖²/(2Σ_m γ_m‖x_m − μ‖²)],   weight γ_n/(M q_n) each.          (W1)

The normalised entropy −Σq_n ln(q_n/γ_n)/ln Γ is that of the repeated rows. All γ_n = 1 gives the
algorithm as printed (`decoct.constructions.sampling.lightweight`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from decoct.constructions.sampling.lightweight import told_entropy
from decoct.runtime.randomness import host_rng


class WeightedDraws(NamedTuple):
    """Rows drawn.

    Attributes
    ----------
    places : (m,)
        Their numbers, ascending.
    weights : (m,)
        c γ/(Mq) of a row drawn c times.
    numbers
        Repeated picks, entropy, whether that is near uniform, spread: for the report.
    """

    places: Int[np.ndarray, " m"]
    weights: Float[np.ndarray, " m"]
    numbers: dict[str, Any]


def draw_weighted_rows(
    x: Float[np.ndarray, "n D"], gamma: Float[np.ndarray, " n"], size: int, seed: int
) -> WeightedDraws:
    """Return M draws by (W1), or all rows as they are if there are no more than M.

    Parameters
    ----------
    x : (n, D)
        Finite rows, all different.
    gamma : (n,)
        γ > 0.
    size
        M.
    seed
        Seed of the draws.
    """
    total = gamma.sum()
    away = x - (gamma / total) @ x
    squares = np.einsum("nd,nd->n", away, away)
    spread = float(gamma @ squares)
    each = np.full(len(x), 0.5 / total)
    each += 0.5 * squares / spread if spread > 0.0 else 0.5 / total
    q = gamma * each
    numbers: dict[str, Any] = {"repeated_picks": 0, "spread": spread}
    if total > 1.0:
        entropy = float(-(q @ np.log(each)) / np.log(total))
        numbers |= told_entropy(entropy)
    if len(x) <= size:
        return WeightedDraws(np.arange(len(x)), gamma, numbers)
    upto = np.cumsum(q)
    rng = host_rng(jax.random.key(seed))
    picks = np.searchsorted(upto, rng.random(size) * upto[-1], side="right")
    places, counts = np.unique(picks, return_counts=True)
    numbers["repeated_picks"] = size - len(places)
    return WeightedDraws(places, counts / (size * each[places]), numbers)
