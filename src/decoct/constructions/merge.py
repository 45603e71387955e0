"""Coresets built apart, merged without touching a weight (Campbell & Broderick 2019, §4.3).

If the table is cut in C parts and a Hilbert coreset is built on each, Σ_c L_c(w_c) is a coreset of
the whole: by the triangle inequality its error is at most the sum of theirs, which gives the
bounds σ η̄/√M for Frank–Wolfe and (σ η̄/√M)(1 + √(2 log C/δ)) for importance sampling, with σ and η̄
of the whole table (Corollaries 4.5, 4.6; `decoct.diagnostics.bounds`). Parts may live on different
machines or arrive one after the other; only the coresets have to meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from decoct.coreset import Coreset
from decoct.errors import RequestError
from decoct.models.base import AbstractModel
from decoct.report import Report
from decoct.status import Status


def merge(coresets: Sequence[Coreset]) -> Coreset:
    """Return the coreset of several tables laid end to end, from one coreset of each.

    Parameters
    ----------
    coresets
        In the order of the tables. All of one model, hyper-parameters included.

    Returns
    -------
    Coreset
        Row numbers count on from table to table; weights and rows are the parts'. Costs in the
        report are the sums; the predicted KL is unknown (None), for the parts' errors may cancel
        or add up: `decoct.check` tells.

    Raises
    ------
    RequestError
        Nothing to merge, or the models or columns differ.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> parts = [decoct.build(model, {"x": rng.normal(size=(500, 2))}, size=8) for _ in range(3)]
    >>> whole = decoct.merge(parts)
    >>> whole.n_rows, whole.size == sum(part.size for part in parts)
    (1500, True)
    """
    listed: list[Any] = list(coresets) if isinstance(coresets, list | tuple) else [coresets]
    parts = [part for part in listed if isinstance(part, Coreset)]
    if len(parts) < len(listed) or isinstance(coresets, Coreset):
        raise RequestError("merge takes a list of coresets, one for each table.")
    if not parts:
        raise RequestError("There is nothing to merge; give at least one coreset.")
    for number, part in enumerate(parts[1:], start=1):
        _require_alike(parts[0], part, number)
    starts = np.cumsum([0, *(part.n_rows for part in parts)])
    indices = [part.indices + start for part, start in zip(parts, starts[:-1], strict=True)]
    rows = {
        name: np.concatenate([np.asarray(part.rows[name]) for part in parts])
        for name in parts[0].rows
    }
    return Coreset(
        np.concatenate(indices),
        np.concatenate([part.weights for part in parts]),
        rows,
        int(starts[-1]),
        parts[0].model,
        _report([part.report for part in parts]),
    )


def _require_alike(first: Coreset, other: Coreset, number: int) -> None:
    if not _same_model(first.model, other.model):
        raise RequestError(
            f"Coreset {number} is of another model than coreset 0: {_described(other)} instead of "
            f"{_described(first)}; potentials of different models do not add up."
        )
    if _shapes(first) != _shapes(other):
        raise RequestError(
            f"Coreset {number} has the columns {_shapes(other)} (name and shape of a row), "
            f"coreset 0 {_shapes(first)}; merge coresets of tables with the same columns."
        )


def _shapes(coreset: Coreset) -> dict[str, tuple[int, ...]]:
    return {name: np.shape(values)[1:] for name, values in coreset.rows.items()}


def _same_model(first: AbstractModel, other: AbstractModel) -> bool:
    if first is other:
        return True
    if first.to_dict()["kind"] == "custom":  # its description does not tell functions apart
        mine, theirs = jax.tree.leaves(first), jax.tree.leaves(other)
        return len(mine) == len(theirs) and all(
            np.array_equal(a, b) if isinstance(a, np.ndarray) else a is b
            for a, b in zip(mine, theirs, strict=True)
        )
    return type(first) is type(other) and first.to_dict() == other.to_dict()


def _described(coreset: Coreset) -> dict[str, Any]:
    return coreset.model.to_dict()


def _report(reports: list[Report]) -> Report:
    sizes = [one.size_asked for one in reports]
    seconds: dict[str, float] = {}
    for one in reports:
        for phase, value in one.seconds.items():
            seconds[phase] = round(seconds.get(phase, 0.0) + value, 3)
    worst = next((one.status for one in reports if not one.status.ok), Status.DONE)
    return Report(
        {"name": "merge", "parts": [one.method for one in reports]},
        reports[0].seed,
        worst,
        None if None in sizes else sum(size for size in sizes if size is not None),
        None,
        [],
        sum(one.passes for one in reports),
        sum(one.evaluations for one in reports),
        seconds,
    )
