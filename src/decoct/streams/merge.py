"""Merging of coresets built separately (Campbell & Broderick 2019, §4.3), and compression.

If the parts of a table have weighted rows and a site s_c each, Σ_c (s_c + Σ_m w_cm f_cm) is a
coreset of the whole: rows are put together and sites add exactly. With a size all rows are
compressed once more, at the posterior of all parts together (`decoct.streams.compress`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from decoct.constructions.base import Construction
from decoct.constructions.iterated_hilbert.iterated_hilbert import IteratedHilbert
from decoct.coreset import Coreset
from decoct.data.arrays import ArrayRows
from decoct.errors import ModelError, RequestError
from decoct.models.base import AbstractModel, is_of_functions
from decoct.models.fingerprint import find_difference, fingerprint
from decoct.report import Report, Status
from decoct.runtime.checks import checked_whole
from decoct.runtime.progress import ProgressBar
from decoct.runtime.randomness import check_seed
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Sampler, require_sampler
from decoct.streams.compress import compress, sum_of_known, sum_of_sites, worst
from decoct.streams.drift import with_drift


def merge(
    coresets: Sequence[Coreset],
    size: int | None = None,
    *,
    method: Construction | None = None,
    sampler: Sampler | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Coreset:
    """Return the coreset of several tables laid end to end, from one coreset of each.

    Parameters
    ----------
    coresets
        In the order of the tables, all of one model. Your own functions are compared by value.
    size
        Most rows to keep; 0 for a site alone. None keeps every row and weight.
    method
        How rows are compressed; default `IteratedHilbert`.
    sampler
        Draws from the parts and from all of them together; default `Automatic`.
    seed
        Seed of those draws.
    progress
        Show a progress bar; None shows it on a terminal.

    Returns
    -------
    Coreset
        Rows are numbered through all tables. The predicted KL is the sum of the parts' and that
        of the compression, and what the terms of third order of the parts' sites amount to: a sum
        of sites is without them.
        ``drift`` in the report's last round is the largest distance of the posterior of all parts
        from that of a part, in sd of the latter: 1 to 3 for parts cut at random.

    Warns
    -----
    UserWarning
        No KL is predicted: the posterior has drifted by more than 5 sd from that of a part
        (`Status.DRIFTED`), or the sampler cannot draw from a part.

    Raises
    ------
    RequestError
        Nothing to merge, the models or columns differ, or ``size`` is not a number of rows.
    RowsError
        The parts' responses have values that exclude each other, such as labels −1, 0 and 1.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> parts = [decoct.build(model, {"x": rng.normal(size=(500, 2))}, size=8) for _ in range(3)]
    >>> whole = decoct.merge(parts, size=0)  # a Gaussian likelihood is a quadratic
    >>> whole.n_rows, whole.size
    (1500, 0)
    """
    _check(coresets)
    sampler = Automatic() if sampler is None else sampler
    require_sampler(sampler)
    size = None if size is None else checked_whole("size", size, 0)
    place_key, key = jax.random.split(jax.random.key(check_seed(seed)))
    union = unite(coresets)
    if union.size:
        union.model.check_values(union.model.distinct(ArrayRows(union.rows)))
    with ProgressBar(progress):
        try:
            if union.report.predicted_kl is not None:  # else nothing is claimed
                union = with_drift(place_key, coresets, union, sampler)
        except ModelError as error:
            warnings.warn(
                "The drift of the parts is not known, so no KL is predicted. Give "
                f"another sampler (sampler=), or run decoct.check. The sampler says: {error}",
                stacklevel=2,
            )
            union = replace(union, report=replace(union.report, predicted_kl=None))
        if union.report.status is Status.DRIFTED:
            warnings.warn(
                f"The posterior of all parts lies {union.report.rounds[-1]['drift']:.1f} sd from "
                "that of a part, or a part had drifted before, so no KL is predicted. Build the "
                "parts from rows shuffled together, or run decoct.check on all rows.",
                stacklevel=2,
            )
        if size is None:
            return union
        union = replace(union, report=replace(union.report, seed=int(seed)))
        return compress(key, union, size, sampler, method or IteratedHilbert())


def unite(parts: Sequence[Coreset]) -> Coreset:
    """Return the rows of all parts with their weights, and the sum of their sites."""
    starts = np.cumsum([0, *(part.n_rows for part in parts[:-1])])
    reports = [part.report for part in parts]
    known = [one.rounds[-1]["drift"] for one in reports if one.rounds and "drift" in one.rounds[-1]]
    report = Report(
        method={"name": "merge", "parts": [one.method for one in reports]},
        seed=reports[0].seed,
        status=worst([one.status for one in reports]),
        size_asked=sum_of_known([one.size_asked for one in reports]),
        kl_asked=None,
        rounds=[{"parts": len(parts), **({"drift": max(known)} if known else {})}],
        passes=sum(one.passes for one in reports),
        evaluations=sum(one.evaluations for one in reports),
        seconds={"parts": sum(time for one in reports for time in one.seconds.values())},
        predicted_kl=sum_of_known([one.predicted_kl for one in reports]),
    )
    return Coreset(
        np.concatenate([p.indices + start for p, start in zip(parts, starts, strict=True)]),
        np.concatenate([part.weights for part in parts]),
        {name: np.concatenate([part.rows[name] for part in parts]) for name in parts[0].rows},
        sum(part.n_rows for part in parts),
        parts[0].model,
        report,
        sum_of_sites([part.site for part in parts]),
        next((part.start for part in parts if part.start is not None), None),
    )


def _check(parts: Any) -> None:
    """Refuse what cannot be merged."""
    if not parts or isinstance(parts, Coreset) or not all(isinstance(p, Coreset) for p in parts):
        raise RequestError("There is nothing to merge; give a list of coresets, one per table.")
    if not isinstance(parts[0].model, AbstractModel):
        raise RequestError(
            f"Coresets of a {type(parts[0].model).__name__} cannot be merged; join the rows and "
            "weights of all coresets, and fit it to them with fit(X, sample_weight=w)."
        )
    for number, part in enumerate(parts[1:], 1):
        if (differs := _difference(parts[0], part)) is not None:
            raise RequestError(
                f"Coreset {number} is of another model than coreset 0: {differs}; merge coresets "
                "of tables with the same columns, and of one model."
            )


def _difference(first: Coreset, other: Coreset) -> str | None:
    """Return in what two differ: their models, columns, or what the models' functions compute."""
    one, two = (f"{type(c.model).__name__} {c.model.to_dict()}" for c in (first, other))
    if one == two:
        one, two = ({name: v.shape[1:] for name, v in c.rows.items()} for c in (first, other))
    if one != two:
        return f"{two} instead of {one}"
    some = first if first.size else other
    if not is_of_functions(first.model.to_dict()):
        return None
    rows, others = (c.model.encode(some.rows, some.indices) for c in (first, other))
    return find_difference(fingerprint(first.model, rows), other.model, others)
