"""Draws from the variational posterior of a Gaussian mixture: exact and independent.

Weights by their sticks or Dirichlet. For a component, with A Bartlett's triangular factor of a
standard Wishart (A_ii² ~ χ²(ν + 1 − i), A_ij ~ N(0, 1) for i > j) and LLᵀ = W⁻¹,

    Λ⁻¹ = KKᵀ,  K = LA⁻ᵀ,     μ = m + Kz/√β,  z ~ N(0, I).                                     (D1)
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from decoct.errors import RequestError
from decoct.mixture.cavi import Mixture
from decoct.mixture.stick_breaking import WeightPrior

LARGEST = 2**29
"""Most numbers in the covariances of one request: 4 GB."""


def draw_parameters(
    rng: np.random.Generator, mixture: Mixture, prior: WeightPrior, n: int
) -> dict[str, Float[np.ndarray, "n T ..."]]:
    """Return ``weights`` (n, T), ``means`` (n, T, D) and ``covariances`` Λ⁻¹ (n, T, D, D).

    Raises
    ------
    RequestError
        They would not fit in a few gigabytes.
    """
    m, beta, chol, nu = mixture.components
    T, D = m.shape
    if n * T * D * D > LARGEST:
        raise RequestError(
            f"{n:,} draws of {T} covariances of {D} columns take {n * T * D * D * 8e-9:.1f} GB; "
            f"ask for at most {LARGEST // (T * D * D):,} draws in all chains."
        )
    below = np.tril_indices(D, -1)
    means, covariances = np.empty((n, T, D)), np.empty((n, T, D, D))
    for t in range(T):
        bartlett = np.zeros((n, D, D))
        bartlett[:, *below] = rng.standard_normal((n, len(below[0])))
        bartlett[:, range(D), range(D)] = np.sqrt(rng.chisquare(nu[t] - np.arange(D), size=(n, D)))
        # A⁻¹Lᵀ = Kᵀ
        factor = np.linalg.solve(bartlett, np.broadcast_to(chol[t].T, bartlett.shape))
        factor = factor.transpose(0, 2, 1)
        covariances[:, t] = factor @ factor.transpose(0, 2, 1)
        normal = np.einsum("nij,nj->ni", factor, rng.standard_normal((n, D)))
        means[:, t] = m[t] + normal / np.sqrt(beta[t])
    weights = prior.draw(rng, mixture.shares, n)
    return {"weights": weights, "means": means, "covariances": covariances}
