"""The regressions of Campbell & Beronov (2019, Section 5.3): sets, posteriors, and guesses of them.

Logistic and Poisson regression on N = 500 rows, prior N(0, I); posteriors are Laplace fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

import decoct
from benchmarks import data
from benchmarks.constructions import model_for
from decoct.constructions.base import Construction
from decoct.models.base import AbstractModel
from decoct.samplers import Laplace
from decoct.stats import Gaussian

SETS = {
    "synth_lr": "Synthetic (logistic)",
    "phishing": "Phishing (logistic)",
    "ds1": "Chemical reactivities (logistic)",
    "synth_poiss": "Synthetic (Poisson)",
    "biketrips": "Bike trips (Poisson)",
    "airportdelays": "Airport delays (Poisson)",
}
"""Data sets, and what they are called in pictures."""

QUICK_SETS = ("synth_lr", "synth_poiss")

NOISE = 0.75
"""Relative noise of the realistic π̂."""


class Weights(NamedTuple):
    """Rows and their weights."""

    indices: Int[np.ndarray, " m"]
    weights: Float[np.ndarray, " m"]


@dataclass(frozen=True, eq=False)
class Regression:
    """A data set with its model.

    Attributes
    ----------
    model, rows
        What is compressed.
    full
        Laplace fit of π.
    prior_kl
        KL(π₀‖π) in nats.
    """

    model: AbstractModel
    rows: dict[str, np.ndarray]
    full: Gaussian
    prior_kl: float

    def kl(self, selected: Weights) -> float:
        """Return KL(π_w‖π) between Laplace fits, in nats."""
        used = selected.weights > 0.0
        if not used.any():
            return self.prior_kl
        kept = {name: column[selected.indices[used]] for name, column in self.rows.items()}
        fit = decoct.laplace(self.model, kept, selected.weights[used])
        return decoct.kl_gaussian(fit, self.full)

    def path(self, method: Construction, sizes: Sequence[int], seed: int) -> list[decoct.Coreset]:
        return decoct.path(
            self.model, self.rows, sizes, method=method, sampler=Laplace(), seed=seed,
            progress=False,
        )  # fmt: skip


@cache
def load(name: str) -> Regression:
    """Return a data set of `SETS`, from the data folder."""
    model, rows = model_for(name), data.paper_set(name)
    full = decoct.laplace(model, rows)
    return Regression(model, rows, full, decoct.kl_gaussian(prior(full.dim), full))


def prior(dim: int) -> Gaussian:
    """Return π₀ = N(0, I)."""
    return Gaussian(np.zeros(dim), np.eye(dim))


def realistic(full: Gaussian, rng: np.random.Generator) -> Gaussian:
    """Return a guess of π as the paper simulates one: between prior and π, and noisy.

    With U ~ Unif[0, 1], z ~ N(0, I) and ζ ~ N(0, 1), the noise as in the paper's code,

        μ̂ = m + 0.75‖m‖z,          m = U μ_π + (1 − U)μ₀
        Σ̂ = exp(−1.5|ζ|) V,         V = U Σ_π + (1 − U)Σ₀.
    """
    start, share = prior(full.dim), rng.uniform()
    mean = share * full.mean + (1.0 - share) * start.mean
    cov = share * full.cov + (1.0 - share) * start.cov
    noisy = mean + NOISE * float(np.linalg.norm(mean)) * rng.standard_normal(full.dim)
    return Gaussian(noisy, np.exp(-2.0 * NOISE * abs(rng.standard_normal())) * cov)
