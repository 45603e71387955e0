"""Fits of the full data, of a coreset and of uniform rows, with the paper's hyper-parameters."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from sklearn.exceptions import ConvergenceWarning

from decoct.mixture import DPGaussianMixture

FULL, CORESET, UNIFORM = "full", "coreset", "uniform"

INVERSE, PRINTED = "inverse", "printed"

READINGS = {INVERSE: 10.0, PRINTED: 0.1}
"""W₀⁻¹ over I. The paper prints W₀ = 10·I, which added to Algorithm 2's scatters is 0.1. Its first
author's public estimator is scikit-learn's with weights, whose ``covariance_prior`` is W₀⁻¹: 10."""

TOLERANCE = 1e-5
"""Nats a row below which a rise of the bound ends a fit."""


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters of Section 4, and when a fit ends, which the paper does not say.

    Parameters
    ----------
    components
        T.
    covariance_prior
        W₀⁻¹ as a multiple of I, one of `READINGS`.
    iterations
        Most iterations, for every fit alike.
    start
        Responsibilities at random, as "initialize φ" in Alg. 2 may be read.
    starts
        Starts, of which the best bound is kept.
    """

    components: int = 100
    covariance_prior: float = READINGS[INVERSE]
    iterations: int = 100
    start: str = "random"
    starts: int = 1

    def mixture(self, n: int, dim: int, seed: int, size: int | None = None) -> DPGaussianMixture:
        """Return the estimator for n rows, or for a coreset of them."""
        return DPGaussianMixture(
            n_components=self.components,
            tol=TOLERANCE * n,
            max_iter=self.iterations,
            init_params=self.start,
            n_init=self.starts,
            weight_concentration_prior=5.0,
            mean_precision_prior=0.8,
            mean_prior=np.zeros(dim),
            degrees_of_freedom_prior=dim,
            covariance_prior=self.covariance_prior,
            random_state=seed,
            coreset_size=size,
        )


@dataclass(frozen=True)
class Fitted:
    """A fit and what it cost.

    Attributes
    ----------
    mixture
        The fit.
    picked
        Rows it saw, None for all.
    seconds
        CPU seconds, start and choice of rows included.
    """

    mixture: DPGaussianMixture
    picked: Int[np.ndarray, " m"] | None
    seconds: float


def fit(
    method: str, x: Float[np.ndarray, "N D"], size: int | None, seed: int, settings: Settings
) -> Fitted:
    """Return the fit of all rows, of the lightweight coreset or of uniform rows."""
    n, dim = x.shape
    mixture = settings.mixture(n, dim, seed, size if method == CORESET else None)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if method == UNIFORM:
            picks = np.random.default_rng(seed).integers(n, size=size)
            picked, counts = np.unique(picks, return_counts=True)
            mixture.fit(x[picked], sample_weight=counts * (n / len(picks)))
        else:
            mixture.fit(x)
            picked = None if mixture.coreset_ is None else mixture.coreset_.indices
    return Fitted(mixture, picked, time.process_time() - began)
