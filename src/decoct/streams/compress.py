"""Compression of weighted rows and a site to fewer rows and another site.

Potentials w_n f_n of weighted rows, with π₀ and the site s for a prior, are a table like any other.
Where a construction leaves weights v_m and a site t, Σ w_n f_n ≈ t + Σ v_m w_m f_m, the rows have
the weights v_m w_m and the site s + t: quadratics add exactly, wherever they were expanded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import jax

from decoct.constructions.base import Construction, Problem, Selection
from decoct.constructions.iterated_hilbert.iterated_hilbert import IteratedHilbert
from decoct.coreset import Coreset
from decoct.data.arrays import ArrayRows
from decoct.models.reweighted import Reweighted
from decoct.models.site import GaussianSite
from decoct.passes.potentials import Potentials
from decoct.report import Status
from decoct.runtime import progress
from decoct.samplers.base import Sampler, WeightedDensity


@dataclass(frozen=True)
class WeightedProblem(Problem):
    """A problem on `Reweighted` rows. Samplers get the model itself, which may be conjugate."""

    has_third_order = False

    def density(self, selection: Selection, padded_as: int = 0) -> WeightedDensity:
        """Return π_w, with the two weights of each row multiplied and the two sites added."""
        model: Any = self.potentials.model
        weights = selection.weights * selection.rows[model.weight]
        rows, site = model.unweighted(selection.rows), sum_of_sites([model.site, selection.site])
        return WeightedDensity.of(model.inner, rows, weights, padded_as, site, selection.start)


def compress(
    key: jax.Array, given: Coreset, size: int, sampler: Sampler, method: Construction
) -> Coreset:
    """Return at most ``size`` of some weighted rows, and a site, to stand for all of them."""
    before, started = replace(given.report, size_asked=size), time.perf_counter()
    if given.size <= size:
        return replace(given, report=before)
    if given.site is not None and given.site.third_order is not None:  # they do not add
        given = replace(given, site=given.site.quadratic())
        before = replace(before, predicted_kl=None)
    encoded = given.model.encode(given.rows, given.indices)
    weight = "_".join(["weight", *encoded])  # longer than any of them
    table = ArrayRows({**encoded, weight: given.weights})
    model = Reweighted(given.model, given.site, weight)
    potentials = Potentials(model, table, numbers=given.indices)
    problem = WeightedProblem(potentials, sampler, (size,))
    if isinstance(method, IteratedHilbert):  # a pilot of all rows, which are few
        method = replace(method, pilot=given.size, subsample_first=False)
    state, rounds = method.init(jax.random.fold_in(key, 0), problem), []
    while method.status(problem, state) is Status.RUNNING:
        progress.begin(f"compressing, round {len(rounds) + 1}", given.size)
        state, info = method.step(jax.random.fold_in(key, len(rounds) + 1), problem, state)
        rounds.append(info.numbers)
    chosen, lost = method.path(state)[-1]
    predicted = sum_of_known([before.predicted_kl, lost])
    report = replace(
        before,
        status=worst([method.status(problem, state).with_kl(predicted), before.status]),
        rounds=[*rounds, before.rounds[-1]],
        evaluations=before.evaluations + potentials.counts.evaluations,
        seconds={"all": round(sum(before.seconds.values()) + time.perf_counter() - started, 3)},
        predicted_kl=predicted,
    )
    kept = some(given, chosen.indices, sum_of_sites([given.site, chosen.site]))
    weights = chosen.weights * kept.weights
    return replace(kept, weights=weights, report=report, start=chosen.start)


def some(coreset: Coreset, which: Any, site: GaussianSite | None) -> Coreset:
    """Return some rows of a coreset with another site."""
    rows = {name: values[which] for name, values in coreset.rows.items()}
    indices, weights = coreset.indices[which], coreset.weights[which]
    return replace(coreset, indices=indices, weights=weights, rows=rows, site=site)


def sum_of_sites(sites: Sequence[GaussianSite | None]) -> GaussianSite | None:
    """Return the site of all, None where there is none."""
    known = [site for site in sites if site is not None]
    return reduce(add, known) if known else None


def sum_of_known(values: Sequence[Any]) -> Any:
    """Return the sum, None if one of the values is."""
    return None if None in values else sum(values)


def worst(statuses: Sequence[Status]) -> Status:
    """Return DRIFTED if it is among them, else the first that is not ok."""
    bad = [one for one in statuses if not one.ok]
    return Status.DRIFTED if Status.DRIFTED in bad else (bad or [Status.DONE])[0]
