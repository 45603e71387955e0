"""Weighted rows and a site, to fewer weighted rows and another site.

Potentials w_n f_n of weighted rows, with the prior π₀ and the site s for a prior, are a table like
any other. A construction that leaves weights v_m and a site t, the quadratic of the rows that went,

    Σ w_n f_n  ≈  t + Σ v_m w_m f_m,

makes of them the weights v_m w_m and the site s + t: quadratics add exactly, wherever they were
expanded. `IteratedHilbert(site=True)` is the default; its draws are of the posterior of all rows
given, and only what a quadratic there cannot hold is left to the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from decoct.constructions.base import Construction, Problem, Selection
from decoct.constructions.iterated_hilbert.iterated_hilbert import IteratedHilbert
from decoct.coreset import Coreset
from decoct.data.arrays import ArrayRows
from decoct.data.base import Columns
from decoct.models.base import AbstractModel, Params, RawRows
from decoct.models.site import GaussianSite
from decoct.passes.potentials import Potentials
from decoct.runtime import progress
from decoct.samplers.base import Sampler, WeightedDensity
from decoct.status import Status


class Reweighted(AbstractModel):
    """A model whose encoded rows carry weights, w_n f_n, and whose prior has a site, π₀ e^s.

    ``weight`` names the column that holds w_n, which is none of the inner model's.
    """

    inner: AbstractModel
    site: GaussianSite | None
    weight: str = eqx.field(static=True)

    @classmethod
    def of(cls, inner: AbstractModel, rows: Columns, site: GaussianSite | None) -> Reweighted:
        """Return the model of weighted rows, their weights in a column of a new name."""
        name = "weight"
        while name in rows:
            name += "_"
        return cls(inner, site, name)

    def unweighted(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of the inner model."""
        return {name: column for name, column in rows.items() if name != self.weight}

    def init(self, rows: RawRows) -> Params:
        return self.inner.init(self.unweighted(rows))

    def log_likelihood(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        return rows[self.weight] * self.inner.log_likelihood(params, self.unweighted(rows))

    def log_prior(self, params: Params) -> Float[Array, ""]:
        prior = self.inner.log_prior(params)
        if self.site is None:
            return prior
        z = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])
        return prior + self.site.log_density(z)

    def design_matrix(self, rows: Mapping[str, Array]) -> Float[Array, "n d"] | None:
        return self.inner.design_matrix(self.unweighted(rows))

    def log_likelihood_at(
        self, predictor: Float[Array, " n"], rows: Mapping[str, Array]
    ) -> Float[Array, " n"]:
        return rows[self.weight] * self.inner.log_likelihood_at(predictor, self.unweighted(rows))


@dataclass(frozen=True)
class WeightedProblem(Problem):
    """A problem on `Reweighted` rows. Samplers see the model itself, which they may know."""

    def density(self, selection: Selection, padded_as: int = 0) -> WeightedDensity:
        """Return π_w, with the two weights of each row multiplied and the two sites added."""
        model: Any = self.potentials.model
        weights = selection.weights * selection.rows[model.weight]
        rows, site = model.unweighted(selection.rows), _add(model.site, selection.site)
        return WeightedDensity.of(model.inner, rows, weights, padded_as, site)


class Compressed(NamedTuple):
    """What came of a compression.

    ``positions`` say which rows are kept; ``predicted_kl`` is from the posterior of what is kept to
    that of what was given, in nats, or None.
    """

    positions: np.ndarray
    weights: np.ndarray
    site: GaussianSite | None
    predicted_kl: float | None
    status: Status
    rounds: list[dict[str, Any]]
    evaluations: int


def compress(
    key: jax.Array, given: Coreset, size: int, sampler: Sampler, method: Construction
) -> Compressed:
    """Return at most ``size`` of some weighted rows, and a site, to stand for all of them.

    There are more than ``size``. `IteratedHilbert` begins with all of them, for they are few.
    """
    encoded = given.model.encode(given.rows, given.indices)
    weighted = Reweighted.of(given.model, encoded, given.site)
    table = ArrayRows({**encoded, weighted.weight: given.weights})
    potentials = Potentials(weighted, table, numbers=given.indices)
    problem = WeightedProblem(potentials, sampler, (size,))
    if isinstance(method, IteratedHilbert):
        method = replace(method, pilot=given.size, subsample_first=False)
    progress.begin("preparing", given.size)
    state, rounds = method.init(jax.random.fold_in(key, 0), problem), []
    while method.status(problem, state) is Status.RUNNING:
        progress.begin(f"compressing, round {len(rounds) + 1}", given.size)
        round_key = jax.random.fold_in(key, len(rounds) + 1)
        state, info = method.step(round_key, problem, state)
        rounds.append(info.numbers)
    chosen, predicted = method.path(state)[-1]
    weights = chosen.weights * given.weights[chosen.indices]
    site = _add(given.site, chosen.site)
    status, evaluations = method.status(problem, state), potentials.counts.evaluations
    return Compressed(chosen.indices, weights, site, predicted, status, rounds, evaluations)


def _add(one: GaussianSite | None, other: GaussianSite | None) -> GaussianSite | None:
    return (one or other) if one is None or other is None else one + other
