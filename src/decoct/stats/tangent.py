"""Rows as centred vectors at draws: the tangent space at a weighting distribution.

With g_n the centred potentials of row n at S draws of π̂ and b = Σ_n g_n over all N rows,

    ½ ‖(b − Σ w_n g_n)/√S‖² ≈ ½ Var_π̂[Σ (1 − w_n) f_n] ≈ KL(π_w‖π)

when π̂ is near π_w (Campbell & Beronov 2019, §4: the local metric of KL; Hilbert coresets, Eq. 4).
Vectors are scaled by 1/√S, so that ½‖residual‖² is in nats.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Tangent(NamedTuple):
    """Pool vectors g_n/√S and the target b/√S at one set of draws."""

    vectors: Float[np.ndarray, "P S"]
    target: Float[np.ndarray, " S"]

    def predicted_kl(self, positions: np.ndarray, weights: Float[np.ndarray, " m"]) -> float:
        """Return ½‖target − Σ w_n vectors_n‖² in nats."""
        residual = self.target - weights @ self.vectors[positions]
        return 0.5 * float(residual @ residual)


def tangent(potentials: Float[np.ndarray, "P S"], totals: Float[np.ndarray, " S"]) -> Tangent:
    """Centre potentials and totals over the draws and scale them to nats."""
    scale = 1.0 / np.sqrt(max(1, potentials.shape[1] - 1))
    vectors = (potentials - potentials.mean(axis=1, keepdims=True)) * scale
    return Tangent(vectors, (totals - totals.mean()) * scale)
