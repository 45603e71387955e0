"""The posteriors between a coreset and all rows, γ(t) = (1 − t)w + t 1, and draws of them.

Averages along the path are over times of one of three distributions, T ~ Beta(1, 2), Beta(2, 1) or
Unif[0, 1] (Campbell & Beronov 2019, Lemma 3), two in each of P/2 strata of equal probability. Every
π_γ(t) is a posterior over all N rows: this is for tables where sampling from it is affordable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np
from jaxtyping import Float

from decoct.data.arrays import ArrayRows
from decoct.data.base import Columns, Rows
from decoct.data.encoded import encoded
from decoct.data.tables import rows as as_rows
from decoct.errors import RequestError
from decoct.models.base import AbstractModel
from decoct.passes.potentials import Potentials
from decoct.runtime.randomness import host_rng
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Draws, Sampler, WeightedDensity
from decoct.theory.information_geometry import nonnegative_weights

Kind = Literal["reverse", "forward", "symmetrised"]
"""Of times: Beta(1, 2), Beta(2, 1) and Unif[0, 1]."""


def path_times(kind: Kind, points: int, rng: np.random.Generator) -> Float[np.ndarray, " P"]:
    """Return times of Beta(1, 2), Beta(2, 1) or Unif[0, 1], two in each of P/2 equal strata.

    Each is uniform in its stratum of the distribution function, so that averages over the times
    are unbiased.
    """
    if points < 4 or points % 2:
        raise RequestError(
            f"points is {points}; an even number is wanted, at least 4: two in each stratum."
        )
    strata = points // 2
    u = ((np.arange(strata)[:, None] + rng.random((strata, 2))) / strata).ravel()
    if kind == "reverse":
        return 1.0 - np.sqrt(1.0 - u)
    return np.sqrt(u) if kind == "forward" else u


def paired_error(values: Float[np.ndarray, " P"]) -> float:
    """Return the standard error of the mean of a stratified sample, two values a stratum.

    √(Σ_k (a_k − b_k)²/4)/K over K strata; its square is unbiased.
    """
    differences = values[0::2] - values[1::2]
    return float(np.linalg.norm(differences)) / len(values)


@dataclass(frozen=True, eq=False)
class PosteriorPath:
    """The posteriors between a coreset and all rows."""

    potentials: Potentials
    columns: Columns
    weights: Float[np.ndarray, " N"]
    kept: Columns
    sampler: Sampler

    @classmethod
    def of(
        cls,
        model: AbstractModel,
        rows: Rows | object,
        weights: np.ndarray,
        sampler: Sampler | None,
    ) -> PosteriorPath:
        table = encoded(as_rows(rows), model)
        weights = nonnegative_weights(weights, table.n_rows)
        columns = table.take(np.arange(table.n_rows))
        kept = np.flatnonzero(weights)
        return cls(
            Potentials(model, ArrayRows(columns)),
            columns,
            weights,
            {name: column[kept] for name, column in columns.items()},
            Automatic() if sampler is None else sampler,
        )

    def points(
        self, kind: Kind, key: jax.Array, points: int, draws: int
    ) -> Iterator[tuple[float, Draws]]:
        """Yield each time and draws of π_γ(t)."""
        if draws < 2:
            raise RequestError(f"draws is {draws}; a variance needs at least 2 at each point.")
        time_key, draw_key = jax.random.split(key)
        for i, t in enumerate(path_times(kind, points, host_rng(time_key))):
            weights = (1.0 - t) * self.weights + t
            density = WeightedDensity.of(self.potentials.model, self.columns, weights)
            yield float(t), self.sampler.draw(jax.random.fold_in(draw_key, i), density, draws)

    def difference(self, z: Float[np.ndarray, "S d"]) -> Float[np.ndarray, " S"]:
        """Return D = Σ (1 − w_n) f_n at draws."""
        totals = self.potentials.totals(z)
        weights = self.weights[self.weights > 0.0]
        return totals - weights @ self.potentials.vectors(self.kept, z) if len(weights) else totals

    def vectors(self, z: Float[np.ndarray, "S d"]) -> Float[np.ndarray, "N S"]:
        return self.potentials.vectors(self.columns, z)
