"""What a union of coresets knows of its error, once it is known where its parts lie.

With g_c the growth of part c's error between its own posterior and the union's (`remainder`), and
ρ_c² its square where it was measured, the KL is ½ (Σ_c ρ_c √g_c)² if all errors point the same
way, and ½ Σ_c ρ_c² g_c if they are independent. Nothing is said where the two posteriors lie too
far apart (`drift`).
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from decoct.coreset import Coreset
from decoct.errors import ModelError
from decoct.report import Report
from decoct.samplers.base import Sampler
from decoct.status import Status
from decoct.streams.drift import DRIFTED, Drift, drift_of_parts
from decoct.streams.error_sum import BOUND, NOTHING, ErrorSum
from decoct.streams.remainder import Growth, remainder_order

NAMED = 3
"""Most parts that a warning names."""

DRIFT, DRIFT_SAMPLER, GROWTH, ORDER = "drift", "drift_sampler", "growth", "order"
OF_UNION = (DRIFT, DRIFT_SAMPLER, GROWTH, ORDER)


def located(key: jax.Array, parts: list[Coreset], union: Coreset, sampler: Sampler) -> Coreset:
    """Return the union, with what its report may say when it is known where its parts lie."""
    error, report = ErrorSum.of_report(union.report), union.report
    if report.status is Status.DRIFTED:
        warnings.warn(_drifted_before(parts), stacklevel=3)
    if error is None or len(parts) == 1:  # nothing is claimed, or nothing can contradict
        return union
    try:
        densities = [part.density for part in parts]
        drift = drift_of_parts(key, densities, union.density, sampler)
    except ModelError as why:
        warnings.warn(_unknown(why), stacklevel=3)
        return replace(union, report=replace(report, rounds=[]))
    # An error of ρ can itself move a posterior by ρ sd, as ½δ² ≤ KL ≤ ½ρ²: a part's, the union's.
    worst = max(one.total for one in _errors(parts))
    most, limit = max(drift.distances), DRIFTED + worst + float(np.sqrt(error.squares))
    far = [i for i, sd in enumerate(drift.distances) if sd > limit]
    if far:
        warnings.warn(_too_far(drift, far, limit), stacklevel=3)
    numbers = {DRIFT: most, DRIFT_SAMPLER: drift.sampler}
    numbers |= _carried(parts, drift) if most <= DRIFTED else NOTHING
    return replace(
        union,
        report=replace(
            report,
            status=Status.DRIFTED if far else report.status,
            rounds=[{**report.rounds[-1], **numbers}],
        ),
    )


def _carried(parts: list[Coreset], drift: Drift) -> dict[str, Any]:
    """Return the sums of the parts' errors, all of them known, at the posterior of all parts."""
    orders = [_order(part) for part in parts]
    growths = [
        Growth.of(place, drift.whole, order)
        for place, order in zip(drift.places, orders, strict=True)
    ]
    error = ErrorSum.of_parts(
        one.grown(*growth) for one, growth in zip(_errors(parts), growths, strict=True)
    )
    most = max(growth.expected for growth in growths)
    return {**error.to_dict(), GROWTH: most, ORDER: max(orders)}


def _errors(parts: list[Coreset]) -> list[ErrorSum]:
    known = (ErrorSum.of_report(part.report) for part in parts)
    return [one for one in known if one is not None]


def _order(part: Coreset) -> int:
    """Return the order of what a part leaves; parts in it are each as good as their own rows."""
    return _last(part.report).get(ORDER) or remainder_order(part.size, part.dim)


def _last(report: Report) -> dict[str, Any]:
    return report.rounds[-1] if report.rounds else {}


def kept_of(report: Report, error: ErrorSum | None) -> dict[str, Any]:
    """Return what the report of a union keeps when it is compressed, with the sums as now."""
    last = _last(report)
    kept = {name: last[name] for name in OF_UNION if name in last}
    if error is not None:
        return kept | error.to_dict()
    return kept | NOTHING if BOUND in last else kept


def _drifted_before(parts: list[Coreset]) -> str:
    number = next(i for i, one in enumerate(parts) if one.report.status is Status.DRIFTED)
    return (
        f"Nobody knows how close coreset {number} is, its status is DRIFTED; so no KL of all parts "
        "together is predicted or bounded. Run decoct.check on all rows."
    )


def _too_far(drift: Drift, far: list[int], limit: float) -> str:
    far = sorted(far, key=lambda i: -drift.distances[i])
    named = ", ".join(f"coreset {i}: {drift.distances[i]:.1f} sd" for i in far[:NAMED])
    others = f", and {len(far) - NAMED} more" if len(far) > NAMED else ""
    return (
        f"The posterior of all parts lies more than {limit:.1f} sd from that of a part, in sd of "
        f"the part ({named}{others}). A part's rows were chosen to be right near its own "
        "posterior only, so the sums of the errors may be far too small, and no KL is predicted or "
        "bounded. Build the parts from rows shuffled together, or build once over all rows, or run "
        "decoct.check on all rows to see how close the coreset is."
    )


def _unknown(why: ModelError) -> str:
    return (
        "How far the posteriors of the parts lie from that of all parts is not known, because one "
        "of them has no Laplace approximation and the sampler cannot draw from it either. The "
        "errors of parts add up only if they lie close together, so no KL is predicted or bounded. "
        "Give a sampler that fits the model (sampler=), or run decoct.check on all rows. The "
        f"sampler says: {why}"
    )
